//! One attempt with a pod: what is to end is detached, then what is new is attached.
//!
//! What fails does not keep the others back, and an event of the pod says why it did. Where a DEL fails the pod still has the
//! interface, so that another network is not attached by the same name.
//!
//! An ADD that fails is followed by a DEL of the same interface. Multus may have told that the pod has an interface of this
//! name already, by any of its networks. Then no ADD is tried: the DEL after it would take that interface away.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use podvirt_api::error::chain;
use serde_json::Value;
use tracing::{debug, info};

use super::difference::{Attached, Difference, Element, Told};
use super::error::{Error, Failure};
use super::multus::{Made, Subject};
use super::{ADDED, Dynamic, FAILED_TO_ADD, FAILED_TO_REMOVE, REMOVED};
use crate::objects::NetworkAttachmentDefinition;

impl Dynamic {
    /// Detaches and attaches, one interface after another, and notes each in `told`; answers what failed.
    pub(super) async fn carry_out(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        wanted: &Difference,
        told: &mut Told,
    ) -> Vec<Error> {
        let mut errors = Vec::new();
        for there in &wanted.detach {
            match self.detach(pod, subject, there).await {
                Ok(()) => told.remove(&there.interface),
                Err(error) => errors.push(error),
            }
        }
        for element in &wanted.doubled {
            errors.push(self.not_attached(pod, element, Failure::Twice).await);
        }
        for element in &wanted.attach {
            errors.extend(self.attach(pod, subject, element, told).await.err());
        }
        errors
    }

    async fn attach(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        element: &Element,
        told: &mut Told,
    ) -> Result<(), Error> {
        let (interface, network) = names(element);
        match self.add(subject, interface, element, told).await {
            Ok(made) => {
                told.add(&element.namespace, &element.name, interface, &made);
                info!(namespace = subject.namespace, name = subject.name, interface, network, "attached");
                let message = format!("The pod is attached to {network} by the interface {interface}.");
                self.recorder.normal(pod, ADDED, &message).await;
                Ok(())
            }
            Err(failure) => Err(self.not_attached(pod, element, failure).await),
        }
    }

    /// The ADD, if there may be one, and the DEL if it fails.
    async fn add(
        &self,
        subject: Subject<'_>,
        interface: &str,
        element: &Element,
        told: &Told,
    ) -> Result<Made, Failure> {
        if let Some(network) = told.network(interface) {
            return Err(Failure::InUse(network.to_owned()));
        }
        self.isolation.permit(subject.namespace, &element.namespace)?;
        let config = self.config(&element.namespace, &element.name).await?;
        let failed = match self.multus.attach(subject, interface, element, &config).await {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        if let Err(error) = self.multus.detach(subject, interface, &config).await {
            let (_, network) = names(element);
            debug!(interface, network, error = &error as &dyn std::error::Error, "DEL after ADD");
        }
        Err(failed.into())
    }

    async fn detach(&self, pod: &Pod, subject: Subject<'_>, there: &Attached) -> Result<(), Error> {
        let (interface, network) = (&there.interface, format!("{}/{}", there.namespace, there.name));
        match self.del(subject, there).await {
            Ok(()) => {
                info!(namespace = subject.namespace, name = subject.name, interface, network, "detached");
                let message = format!("The pod is detached from {network}; its interface was {interface}.");
                self.recorder.normal(pod, REMOVED, &message).await;
                Ok(())
            }
            Err(source) => {
                let error = Error::Interface { interface: interface.clone(), network, source };
                Err(self.warned(pod, FAILED_TO_REMOVE, error).await)
            }
        }
    }

    async fn del(&self, subject: Subject<'_>, there: &Attached) -> Result<(), Failure> {
        let config = self.config(&there.namespace, &there.name).await?;
        Ok(self.multus.detach(subject, &there.interface, &config).await?)
    }

    async fn not_attached(&self, pod: &Pod, element: &Element, source: Failure) -> Error {
        let (interface, network) = names(element);
        let error = Error::Interface { interface: interface.to_owned(), network, source };
        self.warned(pod, FAILED_TO_ADD, error).await
    }

    /// Has an event say what failed, and answers that.
    pub(super) async fn warned(&self, pod: &Pod, reason: &str, error: Error) -> Error {
        let message = chain(&error);
        self.recorder.warning(pod, reason, &message).await;
        error
    }

    /// The configuration of a network, as Multus would give it to the plugin.
    async fn config(&self, namespace: &str, name: &str) -> Result<String, Failure> {
        let api: Api<NetworkAttachmentDefinition> = Api::namespaced(self.client.clone(), namespace);
        let read = api.get_opt(name).await.map_err(|error| Failure::Read(Box::new(error)))?;
        let found = read.ok_or(Failure::Definition("it is not there"))?;
        configuration(&found.spec.config, name).map_err(Failure::Definition)
    }
}

/// Name of the interface that is asked for; namespace and name of the network.
fn names(element: &Element) -> (&str, String) {
    (element.interface.as_deref().unwrap_or_default(), format!("{}/{}", element.namespace, element.name))
}

/// A network's configuration with a name: that of its object where it has none itself.
fn configuration(text: &str, name: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        return Err("spec.config is empty; a configuration that is a file of the node is for Multus alone");
    }
    let mut config: Value = serde_json::from_str(text).map_err(|_| "spec.config is not JSON")?;
    let fields = config.as_object_mut().ok_or("spec.config is not an object")?;
    if fields.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() {
        fields.insert("name".into(), name.into());
    }
    Ok(config.to_string())
}

#[cfg(test)]
#[path = "attachments_tests.rs"]
mod tests;
