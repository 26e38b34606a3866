//! `podvirt-cni dynamic`: a controller of dynamic networks. It has Multus attach pods that run, and detach them.
//!
//! # Theory of operation
//!
//! Multus attaches a pod to the networks of the annotation [`NETWORKS`](podvirt_api::names::annotation::NETWORKS) while
//! the pod is made, and tells what came of it in a second one,
//! [`NETWORK_STATUS`]. Of a change of the first one it does not hear. This controller, one on each node, does:
//!
//! ```text
//! the annotations differ   what the first asks for and the second lacks, and the other way round   [`difference`]
//!   the pod's sandbox      the container runtime tells it and its network namespace               [`sandbox`]
//!   DEL, ADD               Multus' daemon carries them out, one interface after another           [`multus`]
//! the annotations agree    the second one is written, and an event says what was done
//! ```
//!
//! Nothing is kept between two attempts: they begin from the pod as the API server has it. An ADD that fails is followed by
//! a DEL of the same interface, as the specification wants it; so what an attempt has left behind that ended before it
//! could write, the next one clears away with its first ADD, and makes with its second.
//!
//! When the pod ends, Multus detaches what it attached when the pod began. An interface that came later goes with the pod's
//! network namespace; what its plugin keeps beside that (addresses of `host-local`) is the plugin's to collect. Addresses
//! of podvirt-cni are the machine's.

pub mod difference;
pub mod multus;
pub mod sandbox;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::annotation::NETWORK_STATUS;
use podvirt_daemon::backoff::Backoff;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::http::{Gate, Readiness};
use podvirt_daemon::shutdown::Shutdown;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::objects::NetworkAttachmentDefinition;
use difference::{Attached, Difference, Element, Told};
use multus::{Multus, Subject};
use sandbox::Runtime;

/// Pods that are worked on at a time.
const CONCURRENCY: u16 = 4;
/// Between two looks at whether Multus' daemon is there.
const LOOK: Duration = Duration::from_secs(5);
/// Events' reasons, as upstream's controller has them.
const ADDED: &str = "AddedInterface";
const REMOVED: &str = "RemovedInterface";
const FAILED_TO_ADD: &str = "FailedAddingInterface";
const FAILED_TO_REMOVE: &str = "FailedRemovingInterface";

/// Where things are.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The node's name
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
    /// Which pods are looked after, by labels
    #[arg(long, default_value = "kubevirt.io=virt-launcher")]
    pub selector: String,
    /// The socket of the node's container runtime
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    pub runtime: PathBuf,
    /// The socket of Multus' daemon
    #[arg(long, default_value = "/run/multus/multus.sock")]
    pub multus: PathBuf,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, default_value = "[::]:8080")]
    pub listen: SocketAddr,
}

/// An attempt failed; it is made again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod says what cannot be read.
    #[error(transparent)]
    Annotation(#[from] difference::Unreadable),
    /// The runtime.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// Multus or a plugin.
    #[error("interface {interface} on the network {network}")]
    Plugin {
        /// Name of the pod's interface.
        interface: String,
        /// Namespace and name of the network.
        network: String,
        /// What happened.
        source: multus::Error,
    },
    /// The network is not there, or has no configuration.
    #[error("NetworkAttachmentDefinition {0}: {1}")]
    Network(String, &'static str),
    /// The API server.
    #[error("{0}")]
    Cluster(&'static str, #[source] Box<kube::Error>),
}

/// The controller of one node.
pub struct Dynamic {
    client: Client,
    recorder: Recorder,
    runtime: Runtime,
    multus: Multus,
    backoff: Backoff<ObjectRef<Pod>>,
}

/// Looks after the node's pods until the end is asked for. It is ready while Multus' daemon is there.
pub async fn run(options: &Options, client: Client, readiness: &Readiness, shutdown: &Shutdown) {
    let gate = readiness.gate("multus");
    let dynamic = Arc::new(Dynamic {
        recorder: Recorder::new(client.clone(), "podvirt-cni", Some(options.node.clone())),
        client: client.clone(),
        runtime: Runtime::at(&options.runtime),
        multus: Multus::at(&options.multus),
        backoff: Backoff::default(),
    });
    let config = watcher::Config::default()
        .fields(&format!("spec.nodeName={}", options.node))
        .labels(&options.selector);
    let work = Controller::new(Api::<Pod>::all(client), config)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .run(
            |pod, dynamic| async move { Box::pin(dynamic.reconcile(&pod)).await },
            |pod, error, dynamic| dynamic.failed(&pod, error),
            Arc::clone(&dynamic),
        )
        .for_each(|result| async move {
            match result {
                Ok(_) | Err(kube::runtime::controller::Error::ReconcilerFailed(..)) => {}
                Err(error) => debug!(error = &error as &dyn std::error::Error, "watch of pods"),
            }
        });
    let looked = watch_multus(&dynamic.multus, &gate);
    shutdown.or(async { tokio::join!(Box::pin(work), looked) }).await;
}

/// The daemon is ready while Multus' is there.
async fn watch_multus(multus: &Multus, gate: &Gate) {
    let mut told = None;
    loop {
        let serves = multus.serves().await;
        gate.set(serves);
        if told.replace(serves) != Some(serves) {
            info!(serves, "Multus' daemon");
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Dynamic {
    async fn reconcile(&self, seen: &Pod) -> Result<Action, Error> {
        let reference = ObjectRef::from_obj(seen);
        if is_settled(seen)? {
            self.backoff.forget(&reference);
            return Ok(Action::await_change());
        }
        // The cache may lack what was written a moment ago, and what was done must not be done again.
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &seen.namespace().unwrap_or_default());
        let read = api.get_opt(&seen.name_any()).await;
        let read = read.map_err(|error| Error::Cluster("read the pod", Box::new(error)))?;
        let Some(pod) = read.filter(|pod| pod.metadata.uid == seen.metadata.uid) else {
            return Ok(Action::await_change());
        };
        if !is_settled(&pod)? {
            self.settle(&api, &pod).await?;
        }
        self.backoff.forget(&reference);
        Ok(Action::await_change())
    }

    fn failed(&self, pod: &Arc<Pod>, error: &Error) -> Action {
        let delay = self.backoff.failed(ObjectRef::from_obj(pod.as_ref()));
        let (namespace, name) = (pod.namespace(), pod.name_any());
        warn!(namespace, name, ?delay, error = error as &dyn std::error::Error, "tried again later");
        Action::requeue(delay)
    }

    /// Brings `pod` to what it asks for, as far as it goes, and writes how far that was.
    async fn settle(&self, api: &Api<Pod>, pod: &Pod) -> Result<(), Error> {
        let wanted = difference::difference(pod)?;
        let Some(before) = Told::of(pod)? else { return Ok(()) };
        let uid = pod.uid().unwrap_or_default();
        let sandbox = self.runtime.sandbox(&uid).await?;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let subject = Subject { namespace: &namespace, name: &name, uid: &uid, sandbox: &sandbox };
        let mut told = before.clone();
        let done = Box::pin(self.carry_out(pod, subject, &wanted, &mut told)).await;
        if told != before {
            let annotations = json!({NETWORK_STATUS: told.text()});
            let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
            let written =
                api.patch_status(&name, &PatchParams::default(), &Patch::<Value>::Merge(patch)).await;
            written.map_err(|error| Error::Cluster("write the pod", Box::new(error)))?;
        }
        done
    }

    /// Detaches and attaches, one interface after another, and notes each in `told`; ends at the first failure.
    async fn carry_out(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        wanted: &Difference,
        told: &mut Told,
    ) -> Result<(), Error> {
        for there in &wanted.detach {
            let config = self.config(&there.namespace, &there.name).await?;
            self.detach(pod, subject, there, &config).await?;
            told.remove(&there.interface);
        }
        for element in &wanted.attach {
            let interface = element.interface.as_deref().unwrap_or_default();
            let config = self.config(&element.namespace, &element.name).await?;
            let made = self.attach(pod, subject, interface, element, &config).await?;
            told.add(&element.namespace, &element.name, interface, &made);
        }
        Ok(())
    }

    async fn attach(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        interface: &str,
        element: &Element,
        config: &str,
    ) -> Result<multus::Made, Error> {
        let network = format!("{}/{}", element.namespace, element.name);
        match self.multus.attach(subject, interface, element, config).await {
            Ok(made) => {
                info!(namespace = subject.namespace, name = subject.name, interface, network, "attached");
                let message = format!("The pod is attached to {network} by the interface {interface}.");
                self.recorder.normal(pod, ADDED, &message).await;
                Ok(made)
            }
            Err(source) => {
                if let Err(error) = self.multus.detach(subject, interface, config).await {
                    debug!(interface, network, error = &error as &dyn std::error::Error, "DEL after ADD");
                }
                let error = Error::Plugin { interface: interface.to_owned(), network, source };
                self.recorder.warning(pod, FAILED_TO_ADD, &chain(&error)).await;
                Err(error)
            }
        }
    }

    async fn detach(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        there: &Attached,
        config: &str,
    ) -> Result<(), Error> {
        let (interface, network) = (&there.interface, format!("{}/{}", there.namespace, there.name));
        match self.multus.detach(subject, interface, config).await {
            Ok(()) => {
                info!(namespace = subject.namespace, name = subject.name, interface, network, "detached");
                let message = format!("The pod is detached from {network}; its interface was {interface}.");
                self.recorder.normal(pod, REMOVED, &message).await;
                Ok(())
            }
            Err(source) => {
                let error = Error::Plugin { interface: interface.clone(), network, source };
                self.recorder.warning(pod, FAILED_TO_REMOVE, &chain(&error)).await;
                Err(error)
            }
        }
    }

    /// The configuration of a network, as Multus would give it to the plugin.
    async fn config(&self, namespace: &str, name: &str) -> Result<String, Error> {
        let api: Api<NetworkAttachmentDefinition> = Api::namespaced(self.client.clone(), namespace);
        let whole = || format!("{namespace}/{name}");
        let read = api.get_opt(name).await;
        let read =
            read.map_err(|error| Error::Cluster("read a NetworkAttachmentDefinition", Box::new(error)))?;
        let found = read.ok_or_else(|| Error::Network(whole(), "it is not there"))?;
        configuration(&found.spec.config, name).map_err(|why| Error::Network(whole(), why))
    }
}

/// Whether there is nothing to do for the pod: it is as it asks to be, or it does not run (any more, or yet).
fn is_settled(pod: &Pod) -> Result<bool, difference::Unreadable> {
    let runs = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let of_node = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    if !runs || of_node || pod.metadata.deletion_timestamp.is_some() {
        return Ok(true);
    }
    Ok(difference::difference(pod)? == Difference::default())
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

/// An error with its causes.
fn chain(error: &Error) -> String {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
