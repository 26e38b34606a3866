//! Carries out [`next_step`] against the API server. Any number of replicas may run it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tracing::{debug, info, warn};

use super::certificate::{Certificate, CertificateError, KeyPairPem, make_ca, make_leaf};
use super::plan::{LeafRequest, Observed, Step, next_step};
use super::policy::{Policies, Policy};
use super::{CA_BUNDLE_KEY, CA_CONFIG_MAP, CA_SECRET};
use crate::follow::follow;

/// Wait after an error.
const RETRY: Duration = Duration::from_secs(5);
/// More steps than any plan has; reaching it means that another program undoes them.
const MAX_STEPS: usize = 64;
/// How many changes of a Secret the next look at the certificates reads at a time.
const TOGETHER: usize = 64;
/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE_KEY: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";

/// Why the certificates could not be brought into order.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The API server refused.
    #[error("{what}")]
    Api {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// A certificate could not be made.
    #[error("the certificate of Secret {secret} cannot be made")]
    Make {
        /// Secret it is for.
        secret: String,
        /// Why.
        #[source]
        source: CertificateError,
    },
    /// Step after step was needed and none lasted.
    #[error("the certificates are not in order after {MAX_STEPS} steps: another program changes them")]
    Restless,
}

fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> IssueError {
    let what = what.into();
    move |source| IssueError::Api { what, source: Box::new(source) }
}

/// Certificate and key of a Secret, when both are there as text.
pub fn key_pair(secret: &Secret) -> Option<KeyPairPem> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    Some(KeyPairPem { certificate: text(CERTIFICATE_KEY)?, key: text(PRIVATE_KEY)? })
}

/// The certificate of a Secret, when its key fits.
fn usable(secret: Option<&Secret>) -> Option<Certificate> {
    let pair = key_pair(secret?)?;
    pair.certified_key().ok()?;
    Certificate::all_from_pem(&pair.certificate).ok()?.into_iter().next()
}

/// The stored objects as they were read.
struct Stored {
    ca: Option<Secret>,
    bundle: Option<ConfigMap>,
    leaves: Vec<Option<Secret>>,
}

impl Stored {
    fn observed(&self) -> Observed {
        let bundle = self
            .bundle
            .as_ref()
            .and_then(|map| map.data.as_ref()?.get(CA_BUNDLE_KEY))
            .and_then(|pem| Certificate::all_from_pem(pem).ok())
            .unwrap_or_default();
        Observed {
            ca: usable(self.ca.as_ref()),
            bundle,
            leaves: self.leaves.iter().map(|leaf| usable(leaf.as_ref())).collect(),
        }
    }
}

/// Keeps the CA, the bundle and the requested leaves in order.
#[derive(Clone)]
pub struct Issuer {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    namespace: String,
    requests: Vec<LeafRequest>,
    policies: Policies,
    ca_secret: &'static str,
    ca_config_map: &'static str,
}

impl Issuer {
    /// An issuer of `requests`, all of them kept in `namespace`.
    pub fn new(client: Client, namespace: &str, requests: Vec<LeafRequest>, policies: Policies) -> Self {
        Issuer {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            requests,
            policies,
            ca_secret: CA_SECRET,
            ca_config_map: CA_CONFIG_MAP,
        }
    }

    /// The same with a CA of its own, kept in a Secret and a ConfigMap of these names.
    #[must_use]
    pub fn with_ca(self, secret: &'static str, config_map: &'static str) -> Self {
        Self { ca_secret: secret, ca_config_map: config_map, ..self }
    }

    /// Does all that is due now; waits until the lives of certificates are known.
    ///
    /// # Errors
    ///
    /// The API server refused, or a certificate could not be made. What was done stays; calling again goes on.
    pub async fn ensure(&self) -> Result<(), IssueError> {
        let policy = self.policies.clone().get().await;
        self.ensure_by(&policy).await
    }

    async fn ensure_by(&self, policy: &Policy) -> Result<(), IssueError> {
        for _ in 0..MAX_STEPS {
            let stored = self.read().await?;
            let now = Timestamp::now();
            let Some(step) = next_step(&stored.observed(), &self.requests, policy, now) else {
                return Ok(());
            };
            self.carry_out(step, stored, policy, now).await?;
        }
        Err(IssueError::Restless)
    }

    /// Looks after the certificates for ever: now and then, and whenever one of the objects changes. Errors are logged and
    /// retried.
    pub async fn run(&self) {
        self.run_on(self.changes()).await;
    }

    /// As [`Issuer::run`], with `changes` for word of the objects.
    async fn run_on(&self, changes: impl Stream<Item = ()>) {
        let mut policies = self.policies.clone();
        let mut changes = pin!(changes.ready_chunks(TOGETHER));
        loop {
            let policy = policies.get().await;
            if let Err(error) = self.ensure_by(&policy).await {
                warn!(error = &error as &dyn std::error::Error, "looking after the certificates failed");
                // Not sooner for a change: what undoes each step would be answered without a pause.
                tokio::time::sleep(RETRY).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(policy.look()) => {}
                () = policies.changed() => {}
                Some(_) = changes.next() => {}
            }
        }
    }

    /// Word of each change of the CA, its bundle and the leaves, this issuer's own among them.
    fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let leaves = self.requests.iter().map(|request| request.secret.as_str());
        let secrets = leaves.chain([self.ca_secret]).map(|name| told(&self.secrets, name));
        stream::select_all(secrets.chain([told(&self.config_maps, self.ca_config_map)]))
    }

    async fn read(&self) -> Result<Stored, IssueError> {
        let secret = async |name: &str| {
            self.secrets.get_opt(name).await.map_err(api(format!("reading Secret {name}")))
        };
        let mut leaves = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            leaves.push(secret(&request.secret).await?);
        }
        // The bundle and the CA last: a leaf that another replica has made meanwhile has its CA among these.
        let bundle = self.config_maps.get_opt(self.ca_config_map).await;
        let bundle = bundle.map_err(api(format!("reading ConfigMap {}", self.ca_config_map)))?;
        Ok(Stored { ca: secret(self.ca_secret).await?, bundle, leaves })
    }

    async fn carry_out(
        &self,
        step: Step,
        stored: Stored,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<(), IssueError> {
        match step {
            Step::MakeCa => {
                let pair = make_ca(now, policy.ca.duration)
                    .map_err(|source| IssueError::Make { secret: self.ca_secret.to_owned(), source })?;
                self.store_secret(self.ca_secret, stored.ca, &pair).await
            }
            Step::WriteBundle(bundle) => self.store_bundle(stored.bundle, &bundle).await,
            Step::MakeLeaf(index) => {
                // Both exist: the plan names a leaf only by a request, and only when there is a CA.
                let (Some(request), Some(ca)) =
                    (self.requests.get(index), stored.ca.as_ref().and_then(key_pair))
                else {
                    return Ok(());
                };
                let pair = make_leaf(
                    &ca,
                    &request.common_name,
                    &request.dns_names,
                    request.purpose,
                    now,
                    policy.leaf.duration,
                )
                .map_err(|source| IssueError::Make { secret: request.secret.clone(), source })?;
                let old = stored.leaves.into_iter().nth(index).flatten();
                self.store_secret(&request.secret, old, &pair).await
            }
        }
    }

    /// Metadata that replaces exactly the version that was read, or only creates.
    fn metadata(&self, name: &str, old: Option<ObjectMeta>) -> ObjectMeta {
        let mut metadata = old.unwrap_or_default();
        metadata.name = Some(name.to_owned());
        metadata.namespace = Some(self.namespace.clone());
        metadata.managed_fields = None;
        metadata
            .labels
            .get_or_insert_default()
            .insert("app.kubernetes.io/managed-by".to_owned(), "virt-api".to_owned());
        metadata
    }

    async fn store_secret(
        &self,
        name: &str,
        old: Option<Secret>,
        pair: &KeyPairPem,
    ) -> Result<(), IssueError> {
        let exists = old.is_some();
        let secret = Secret {
            metadata: self.metadata(name, old.map(|old| old.metadata)),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(BTreeMap::from([
                (CERTIFICATE_KEY.to_owned(), ByteString(pair.certificate.clone().into_bytes())),
                (PRIVATE_KEY.to_owned(), ByteString(pair.key.clone().into_bytes())),
            ])),
            ..Secret::default()
        };
        let params = PostParams::default();
        let stored = if exists {
            self.secrets.replace(name, &params, &secret).await
        } else {
            self.secrets.create(&params, &secret).await
        };
        finish(stored, &format!("Secret {name}"))
    }

    async fn store_bundle(&self, old: Option<ConfigMap>, bundle: &[Certificate]) -> Result<(), IssueError> {
        let exists = old.is_some();
        let pem: String = bundle.iter().map(Certificate::to_pem).collect();
        let map = ConfigMap {
            metadata: self.metadata(self.ca_config_map, old.map(|old| old.metadata)),
            data: Some(BTreeMap::from([(CA_BUNDLE_KEY.to_owned(), pem)])),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let stored = if exists {
            self.config_maps.replace(self.ca_config_map, &params, &map).await
        } else {
            self.config_maps.create(&params, &map).await
        };
        finish(stored, &format!("ConfigMap {}", self.ca_config_map))
    }
}

/// Word of each change of the object `name`.
fn told<K>(objects: &Api<K>, name: &str) -> stream::BoxStream<'static, ()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    let what = format!("{} {name}", K::kind(&()));
    let seen = move |change: Result<Option<K>, kube::runtime::watcher::Error>| {
        let told =
            change.inspect_err(|error| warn!(error = error as &dyn std::error::Error, "watch of {what}"));
        std::future::ready(told.ok().map(drop))
    };
    follow(objects.clone(), name).filter_map(seen).boxed()
}

/// Another replica having been first is no error: what is stored is read again.
fn finish<T>(result: Result<T, kube::Error>, what: &str) -> Result<(), IssueError> {
    match result {
        Ok(_) => {
            info!("{what} written");
            Ok(())
        }
        // 409: exists already, or was changed since. 404: was deleted since.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(status.message, "{what} was changed by another");
            Ok(())
        }
        Err(source) => Err(api(format!("writing {what}"))(source)),
    }
}

#[cfg(test)]
mod tests;
