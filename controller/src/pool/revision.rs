//! ControllerRevisions: the specifications of a pool that its VMs and their instances were made from.
//!
//! A revision's data is the pool's specification, its number the pool's generation. It is never changed, so what was read once is
//! kept in memory for as long as the pool is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use podvirt_api::names::{self, label};
use podvirt_api::v1::{VirtualMachinePool as Pool, VirtualMachinePoolSpec};
use serde::Deserialize as _;

use crate::claim;

/// Specifications by the names of their revisions.
pub type Revisions = BTreeMap<String, Arc<VirtualMachinePoolSpec>>;

/// Why a revision could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another object's revision has the name.
    #[error("ControllerRevision {0} belongs to another object")]
    Taken(String),
    /// The specification cannot be written as JSON.
    #[error("specification as JSON")]
    Json(#[from] serde_json::Error),
    /// The API server refused or could not be asked.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// The revisions of all pools that were looked at, by the pools' UIDs.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<String, Revisions>>);

impl Known {
    /// The revisions of a pool.
    pub(super) async fn of(
        &self,
        api: &Api<ControllerRevision>,
        pool: &Pool,
    ) -> Result<Revisions, kube::Error> {
        let uid = pool.uid().unwrap_or_default();
        if let Some(known) = self.lock(|all| all.get(&uid).cloned()) {
            return Ok(known);
        }
        let own = ListParams::default().labels(&format!("{}={uid}", label::CREATED_BY));
        let listed = api.list(&own).await?.items;
        let found: Revisions = listed
            .iter()
            .filter(|one| is_of(one, &uid))
            .filter_map(|one| Some((one.name_any(), data(one)?)))
            .collect();
        self.lock(|all| all.insert(uid, found.clone()));
        Ok(found)
    }

    /// Writes the pool's specification down.
    pub(super) async fn remember(&self, api: &Api<ControllerRevision>, pool: &Pool) -> Result<(), Error> {
        let (name, uid) = (name(pool), pool.uid().unwrap_or_default());
        let made = match api.create(&PostParams::default(), &of(pool)?).await {
            // An earlier attempt has made it, or one of an earlier pool of this name is still there.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let there = api.get_opt(&name).await?.filter(|there| is_of(there, &uid));
                there.ok_or_else(|| Error::Taken(name.clone()))?
            }
            made => made?,
        };
        if let Some(data) = data(&made) {
            self.lock(|all| all.entry(uid).or_default().insert(name, data));
        }
        Ok(())
    }

    /// Deletes a revision.
    pub(super) async fn delete(
        &self,
        api: &Api<ControllerRevision>,
        pool: &Pool,
        name: &str,
    ) -> Result<(), kube::Error> {
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            gone => drop(gone?),
        }
        self.lock(|all| all.get_mut(&pool.uid().unwrap_or_default()).and_then(|own| own.remove(name)));
        Ok(())
    }

    /// The pool is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.lock(|all| all.remove(uid));
    }

    fn lock<T>(&self, with: impl FnOnce(&mut HashMap<String, Revisions>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Name of the revision of the pool as it is, as upstream has it. It is the value of a label as well, which has less room than a name.
pub(super) fn name(pool: &Pool) -> String {
    let generation = format!("-{}", pool.metadata.generation.unwrap_or_default());
    names::limits::shortened_with(&pool.name_any(), &generation, names::LABEL_VALUE_MAX_BYTES)
}

/// The revision of the pool as it is.
fn of(pool: &Pool) -> Result<ControllerRevision, serde_json::Error> {
    let mut revision = ControllerRevision {
        data: Some(RawExtension(serde_json::to_value(&pool.spec)?)),
        revision: pool.metadata.generation.unwrap_or_default(),
        ..ControllerRevision::default()
    };
    revision.metadata.name = Some(name(pool));
    revision.metadata.namespace = pool.namespace();
    revision.metadata.labels =
        Some(BTreeMap::from([(label::CREATED_BY.to_owned(), pool.uid().unwrap_or_default())]));
    revision.metadata.owner_references = pool.controller_owner_ref(&()).map(|owner| vec![owner]);
    Ok(revision)
}

fn is_of(revision: &ControllerRevision, pool: &str) -> bool {
    claim::controller_of(&revision.metadata).is_some_and(|owner| owner.uid == pool)
}

fn data(revision: &ControllerRevision) -> Option<Arc<VirtualMachinePoolSpec>> {
    let data = &revision.data.as_ref()?.0;
    VirtualMachinePoolSpec::deserialize(data).ok().map(Arc::new)
}
