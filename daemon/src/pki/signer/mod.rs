//! Signs the nodes' certificates. Every replica of virt-api may run it.
//!
//! # Theory of operation
//!
//! Requests come as `CertificateSigningRequest` objects for [`NODE_SIGNER`], by a watch. [`judge`](super::node) decides
//! alone from what the API server says of the sender and from the request itself; its answer is written in two steps,
//! each of which is refused when another replica was faster: the condition `Approved` or `Denied`, and, if approved, the
//! certificate. A replica that ends between the two leaves the second to the other. What has an answer is left alone.
//! Kubernetes' controller manager removes old requests.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition as Condition,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use podvirt_api::error::chain;
use serde_json::json;
use tracing::{debug, info, warn};

use super::certificate::{CertificateError, Purpose, sign};
use super::issuer::key_pair;
use super::node::{judge, node_name};
use super::policy::Policies;
use super::{CA_SECRET, NODE_COMMON_NAME, NODE_SIGNER};

/// Wait until what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Why a request has no answer yet.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The API server refused.
    #[error("{what}")]
    Api {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// There is no CA at the moment.
    #[error("Secret {CA_SECRET} holds no CA")]
    NoCa,
    /// The certificate could not be made.
    #[error("the certificate of node {node} cannot be made")]
    Make {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: CertificateError,
    },
}

/// Answers the nodes' requests for certificates.
#[derive(Clone)]
pub struct Signer {
    requests: Api<CertificateSigningRequest>,
    secrets: Api<Secret>,
    user: String,
    policies: Policies,
}

impl Signer {
    /// A signer with the CA in `namespace`, where virt-handler's ServiceAccount `account` is, too.
    pub fn new(client: Client, namespace: &str, account: &str, policies: Policies) -> Self {
        Signer {
            requests: Api::all(client.clone()),
            secrets: Api::namespaced(client, namespace),
            user: format!("system:serviceaccount:{namespace}:{account}"),
            policies,
        }
    }

    /// Answers requests for ever; errors are logged and retried.
    pub async fn run(&self) {
        let config = watcher::Config::default().fields(&format!("spec.signerName={NODE_SIGNER}"));
        let mut seen = Box::pin(watcher(self.requests.clone(), config).default_backoff().touched_objects());
        let mut unanswered = BTreeMap::<String, CertificateSigningRequest>::new();
        loop {
            let again = !unanswered.is_empty();
            let due: Vec<_> = tokio::select! {
                event = seen.next() => match event {
                    Some(Ok(request)) => vec![request],
                    Some(Err(error)) => {
                        let error = &error as &dyn std::error::Error;
                        warn!(error, "the nodes' requests for certificates cannot be watched; trying again");
                        continue;
                    }
                    None => return warn!("the watch of the nodes' requests for certificates ended"),
                },
                () = tokio::time::sleep(RETRY), if again => std::mem::take(&mut unanswered).into_values().collect(),
            };
            for request in due {
                let name = request.name_any();
                unanswered.remove(&name);
                if let Err(error) = self.answer(&request).await {
                    let error = &error as &dyn std::error::Error;
                    warn!(name, error, "a node's request for a certificate has no answer; trying again");
                    unanswered.insert(name, request);
                }
            }
        }
    }

    /// Answers one request, unless it has an answer.
    ///
    /// # Errors
    ///
    /// The API server refused, or the certificate could not be made.
    pub async fn answer(&self, request: &CertificateSigningRequest) -> Result<(), SignError> {
        let status = request.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is = |kind: &str| conditions.iter().any(|c| c.type_ == kind);
        let certified = status.certificate.is_some_and(|certificate| !certificate.0.is_empty());
        if certified || is("Denied") || is("Failed") || request.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let name = request.name_any();
        let granted = match judge(&request.spec, &self.user) {
            Ok(granted) => granted,
            Err(refused) => {
                let message = chain(&refused);
                warn!(
                    name,
                    user = request.spec.username,
                    message,
                    "a request for a node's certificate is denied"
                );
                let kept = conditions.clone();
                return self.decide(request, kept, "Denied", &message).await.map(drop);
            }
        };
        let node = granted.node;
        let request = if is("Approved") {
            request.clone()
        } else {
            let message = format!("virt-handler on node {node} asks for its own name");
            let approved = self.decide(request, conditions, "Approved", &message).await?;
            // Another replica was faster, and goes on.
            let Some(approved) = approved else { return Ok(()) };
            approved
        };
        let ca = self.secrets.get_opt(CA_SECRET).await;
        let ca = ca.map_err(api(format!("reading Secret {CA_SECRET}")))?;
        let ca = ca.as_ref().and_then(key_pair).ok_or(SignError::NoCa)?;
        let names = [node_name(&node)];
        let life = self.policies.clone().get().await.leaf.duration;
        let now = Timestamp::now();
        let signed = sign(&ca, &granted.key, NODE_COMMON_NAME, &names, Purpose::Node, now, life);
        let signed = signed.map_err(|source| SignError::Make { node: node.clone(), source })?;
        let patch = json!({
            "metadata": { "resourceVersion": request.metadata.resource_version },
            "status": { "certificate": ByteString(signed.into_bytes()) },
        });
        let written = self.requests.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        if first(written, format!("writing the certificate of CertificateSigningRequest {name}"))?.is_some() {
            info!(node, name, "the node's certificate is signed");
        }
        Ok(())
    }

    /// Writes the decision; `None`: another replica was faster, or the request is gone.
    async fn decide(
        &self,
        request: &CertificateSigningRequest,
        mut conditions: Vec<Condition>,
        decision: &str,
        message: &str,
    ) -> Result<Option<CertificateSigningRequest>, SignError> {
        let now = Some(Time(Timestamp::now()));
        conditions.push(Condition {
            last_transition_time: now.clone(),
            last_update_time: now,
            message: Some(message.to_owned()),
            reason: Some("virt-api".into()),
            status: "True".into(),
            type_: decision.to_owned(),
        });
        let patch = json!({
            "metadata": { "resourceVersion": request.metadata.resource_version },
            "status": { "conditions": conditions },
        });
        let name = request.name_any();
        let written =
            self.requests.patch_approval(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        first(written, format!("deciding on CertificateSigningRequest {name}"))
    }
}

fn api(what: String) -> impl FnOnce(kube::Error) -> SignError {
    |source| SignError::Api { what, source: Box::new(source) }
}

/// The object as it was written; `None` when another replica wrote before, or it is gone.
fn first<T>(written: Result<T, kube::Error>, what: String) -> Result<Option<T>, SignError> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(what, status.message, "another one was first");
            Ok(None)
        }
        Err(source) => Err(api(what)(source)),
    }
}

#[cfg(test)]
mod tests;
