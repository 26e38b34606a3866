//! Applying, listing and deleting objects of any of podvirt's kinds.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::customize::{IDENTIFIER, MANAGED_BY, OPERATOR};
use crate::manifests::{KINDS, Kind, MONITORING_GROUP, OPTIONAL, Object, SERVICE_MONITOR};

/// Namespace of a RoleBinding that podvirt has outside of its own: by it virt-api reads the API server's client CA.
pub const SYSTEM: &str = "kube-system";

/// What the API server did not do.
#[derive(Debug, thiserror::Error)]
#[error("{what} {title}")]
pub struct ClusterError {
    what: &'static str,
    title: String,
    source: Box<kube::Error>,
}

impl ClusterError {
    pub(crate) fn new(what: &'static str, title: String, source: kube::Error) -> Self {
        Self { what, title, source: Box::new(source) }
    }
}

/// An object that virt-operator has made, as the API server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Whether it is on its way out.
    pub deleting: bool,
    /// Its version in the API server.
    pub version: Option<String>,
    /// Digest of the target that it was made for ([`IDENTIFIER`]).
    pub identifier: Option<String>,
    /// It was applied by podvirt. KubeVirt's virt-operator has the same labels and annotations, and does not use server-side apply.
    pub is_applied: bool,
}

impl Stored {
    /// Whether it is the stored form of `object`.
    pub fn is(&self, object: &Object) -> bool {
        self.kind == object.kind
            && self.name == object.name()
            && self.namespace.as_deref() == object.namespace()
    }
}

/// Whether podvirt's virt-operator has applied the object.
fn is_applied(metadata: &ObjectMeta) -> bool {
    let mut managers = metadata.managed_fields.iter().flatten();
    managers.any(|entry| {
        entry.manager.as_deref() == Some(OPERATOR) && entry.operation.as_deref() == Some("Apply")
    })
}

/// How an object was applied last: the digest of what was sent, and the version that was stored.
type Applied = HashMap<(&'static str, Option<String>, String), (u64, Option<String>)>;

/// The cluster, with virt-operator's eyes.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    /// Spares the API server requests that change nothing; definitions of kinds are large.
    applied: Arc<Mutex<Applied>>,
}

impl Cluster {
    /// A cluster in which podvirt is in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), applied: Arc::default() }
    }

    /// podvirt's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn resource(kind: Kind) -> ApiResource {
        ApiResource {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            api_version: kind.api_version(),
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
        }
    }

    fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = Self::resource(kind);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Metadata of all objects of a kind in a place.
    pub fn metadata(&self, kind: Kind, namespace: Option<&str>) -> Api<PartialObjectMeta<DynamicObject>> {
        let resource = Self::resource(kind);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Where objects of a kind can be.
    pub fn places(&self, kind: Kind) -> Vec<Option<&str>> {
        match (kind.namespaced, kind.kind) {
            (false, _) => vec![None],
            (true, "RoleBinding") => vec![Some(self.namespace()), Some(SYSTEM)],
            // The namespace of Prometheus may be another one now than it was.
            (true, _) if kind == SERVICE_MONITOR => vec![None],
            (true, _) => vec![Some(self.namespace())],
        }
    }

    /// Selects what virt-operator has made.
    pub fn selector() -> String {
        format!("{MANAGED_BY}={OPERATOR}")
    }

    /// Makes an object as it shall be; the object as it is stored then. One that is so already is not written.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn apply(&self, object: &Object) -> Result<Value, ClusterError> {
        let api = self.api(object.kind, object.namespace());
        let params = PatchParams::apply(OPERATOR).force();
        let stored = api.patch(object.name(), &params, &Patch::Apply(&object.value)).await;
        let stored = stored.and_then(|stored| serde_json::to_value(stored).map_err(kube::Error::SerdeError));
        stored.map_err(|source| ClusterError {
            what: "applying",
            title: object.title(),
            source: Box::new(source),
        })
    }

    /// Makes an object as it shall be, unless it is stored as this virt-operator has left it; `there` are the objects
    /// that virt-operator has made.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn keep(&self, object: &Object, there: &[Stored]) -> Result<(), ClusterError> {
        let mut hasher = DefaultHasher::new();
        object.value.to_string().hash(&mut hasher);
        let digest = hasher.finish();
        let key = (object.kind.plural, object.namespace().map(str::to_owned), object.name().to_owned());
        let stored = there.iter().find(|own| own.is(object));
        let known = self.applied.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let (Some(stored), Some(known)) = (stored, known)
            && known == (digest, stored.version.clone())
        {
            return Ok(());
        }
        let version = self.apply(object).await?["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (digest, version));
        Ok(())
    }

    /// Those of the [`OPTIONAL`] kinds that the cluster has.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn served(&self) -> Result<Vec<Kind>, ClusterError> {
        let version = SERVICE_MONITOR.api_version();
        let listed = match self.client.list_api_group_resources(&version).await {
            Ok(listed) => listed.resources,
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => {
                return Err(ClusterError::new("asking for the kinds of", MONITORING_GROUP.into(), error));
            }
        };
        let has = |kind: &&Kind| listed.iter().any(|resource| resource.name == kind.plural);
        Ok(OPTIONAL.iter().filter(has).copied().collect())
    }

    /// What virt-operator has made of every kind; of the [`OPTIONAL`] ones those in `served` are there.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn all(&self, served: &[Kind]) -> Result<Vec<Stored>, ClusterError> {
        let mut there = Vec::new();
        for kind in KINDS.iter().chain(served) {
            there.extend(self.own(*kind).await?);
        }
        Ok(there)
    }

    /// What virt-operator has made of a kind.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    async fn own(&self, kind: Kind) -> Result<Vec<Stored>, ClusterError> {
        let mut found = Vec::new();
        for place in self.places(kind) {
            let params = ListParams::default().labels(&Self::selector());
            let list = self.metadata(kind, place).list(&params).await.map_err(|source| ClusterError {
                what: "listing",
                title: kind.plural.to_owned(),
                source: Box::new(source),
            })?;
            found.extend(list.items.into_iter().map(|object| Stored {
                kind,
                namespace: object.namespace(),
                name: object.name_any(),
                deleting: object.metadata.deletion_timestamp.is_some(),
                identifier: object.annotations().get(IDENTIFIER).cloned(),
                is_applied: is_applied(&object.metadata),
                version: object.metadata.resource_version,
            }));
        }
        Ok(found)
    }

    /// What virt-operator has made of a kind, whole.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn documents(&self, kind: Kind) -> Result<Vec<Value>, ClusterError> {
        let mut found = Vec::new();
        for place in self.places(kind) {
            let params = ListParams::default().labels(&Self::selector());
            let list = self.api(kind, place).list(&params).await;
            let error = |source| ClusterError::new("listing", kind.plural.to_owned(), source);
            for object in list.map_err(error)?.items {
                let mut value =
                    serde_json::to_value(object).map_err(|e| error(kube::Error::SerdeError(e)))?;
                // The API server may leave it out in a list.
                value["kind"] = kind.kind.into();
                found.push(value);
            }
        }
        Ok(found)
    }

    /// Deletes objects. One that cannot be deleted does not keep it from the others.
    ///
    /// # Errors
    ///
    /// The API server refuses: the first refusal.
    pub async fn delete_all<'a>(
        &self,
        objects: impl Iterator<Item = &'a Stored>,
    ) -> Result<(), ClusterError> {
        let mut refused = Ok(());
        for own in objects {
            tracing::info!(kind = own.kind.kind, name = own.name, "deleted");
            let deleted = self.delete(own).await;
            refused = refused.and(deleted);
        }
        refused
    }

    /// Deletes an object, what belongs to it first. One that is gone is no error.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    pub async fn delete(&self, own: &Stored) -> Result<(), ClusterError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        match self.api(own.kind, own.namespace.as_deref()).delete(&own.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(ClusterError {
                what: "deleting",
                title: format!("{} {}", own.kind.kind, own.name),
                source: Box::new(source),
            }),
        }
    }
}
