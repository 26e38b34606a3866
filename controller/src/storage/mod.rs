//! Storage as several controllers see it: claims, their classes, and snapshots of claims.
//!
//! ```text
//!  claim ── storage class ──┬── what CDI knows of it (StorageProfile) ──> VolumeSnapshotClass
//!                           └── its provisioner: the driver's VolumeSnapshotClass, the default one of several
//! ```
//!
//! Of claims, of which there may be many of others, the cache has what controllers go by: class, phase, owners, and what restores
//! have written on them. A controller that copies a claim reads the claim anew. VolumeSnapshots and their classes are not kinds of Kubernetes: a
//! cluster that gets them later is seen within half a minute.

pub mod backend;
mod class;
mod overhead;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, Pod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use podvirt_api::cdi::{CdiConfig, POPULATED_FOR, StorageProfile};
use podvirt_api::csi::{VolumeSnapshot, VolumeSnapshotClass};
use podvirt_api::memory_dump;
use podvirt_api::names::label::MIGRATION_NAME;
use podvirt_api::snapshot::{LAST_RESTORE, RESTORE_NAME};
use podvirt_api::state::PERSISTENT_STATE_FOR;

use crate::kept::Kept;
use crate::watch;

pub use class::{Ambiguous, snapshot_class, snapshot_statuses};
pub use overhead::overhead;

/// The caches. Clones see the same.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Claims, as far as controllers go by them.
    pub claims: Kept<PersistentVolumeClaim>,
    /// Storage classes.
    pub classes: Kept<StorageClass>,
    /// What CDI knows of storage classes.
    pub profiles: Kept<StorageProfile>,
    /// CDI's settings.
    pub data_settings: Kept<CdiConfig>,
    /// Snapshots of claims.
    pub snapshots: Kept<VolumeSnapshot>,
    /// How drivers take them.
    pub snapshot_classes: Kept<VolumeSnapshotClass>,
}

/// What fills the caches.
pub struct Writers {
    claims: Writer<PersistentVolumeClaim>,
    classes: Writer<StorageClass>,
    profiles: Writer<StorageProfile>,
    data_settings: Writer<CdiConfig>,
    snapshots: Writer<VolumeSnapshot>,
    snapshot_classes: Writer<VolumeSnapshotClass>,
}

impl Storage {
    /// Empty caches, and what fills them.
    pub fn new() -> (Storage, Writers) {
        // Each pass over an instance asks for the claim of its state.
        let (claims, claim_writer) = Kept::indexed(backend::machines);
        let (classes, class_writer) = Kept::new();
        let (profiles, profile_writer) = Kept::new();
        let (data_settings, data_settings_writer) = Kept::new();
        let (snapshots, snapshot_writer) = Kept::new();
        let (snapshot_classes, snapshot_class_writer) = Kept::new();
        let writers = Writers {
            claims: claim_writer,
            classes: class_writer,
            profiles: profile_writer,
            data_settings: data_settings_writer,
            snapshots: snapshot_writer,
            snapshot_classes: snapshot_class_writer,
        };
        (Storage { claims, classes, profiles, data_settings, snapshots, snapshot_classes }, writers)
    }
}

/// Keeps the caches filled until it is dropped.
pub async fn keep(client: Client, storage: Storage, writers: Writers) {
    let claims = watch::all::<PersistentVolumeClaim>(&client).map(|event| event.map(trimmed));
    futures::join!(
        storage.claims.keep(claims, writers.claims),
        storage.classes.keep(watch::all(&client), writers.classes),
        storage.profiles.keep_if_there(|| watch::all(&client), writers.profiles),
        storage.data_settings.keep_if_there(|| watch::all(&client), writers.data_settings),
        storage.snapshots.keep_if_there(|| watch::all(&client), writers.snapshots),
        storage.snapshot_classes.keep_if_there(|| watch::all(&client), writers.snapshot_classes),
    );
}

fn trimmed(event: Event<PersistentVolumeClaim>) -> Event<PersistentVolumeClaim> {
    match event {
        Event::Apply(claim) => Event::Apply(facts(claim)),
        Event::InitApply(claim) => Event::InitApply(facts(claim)),
        other => other,
    }
}

/// What controllers go by of a claim.
fn facts(claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    let PersistentVolumeClaim { metadata, spec, status } = claim;
    let annotations = metadata.annotations.map(|mut all| {
        let kept = [LAST_RESTORE, POPULATED_FOR, RESTORE_NAME, memory_dump::ANNOTATION];
        all.retain(|name, _| kept.contains(&name.as_str()));
        all
    });
    let labels = metadata.labels.map(|mut all| {
        all.retain(|name, _| [PERSISTENT_STATE_FOR, MIGRATION_NAME].contains(&name.as_str()));
        all
    });
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            creation_timestamp: metadata.creation_timestamp,
            labels: labels.filter(|all| !all.is_empty()),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            owner_references: metadata.owner_references,
            annotations: annotations.filter(|all| !all.is_empty()),
            ..ObjectMeta::default()
        },
        spec: spec.map(|spec| PersistentVolumeClaimSpec {
            storage_class_name: spec.storage_class_name,
            access_modes: spec.access_modes,
            volume_mode: spec.volume_mode,
            resources: spec.resources,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: status.map(|status| PersistentVolumeClaimStatus {
            phase: status.phase,
            access_modes: status.access_modes,
            capacity: status.capacity,
            ..PersistentVolumeClaimStatus::default()
        }),
    }
}

/// Whether a pod that has not ended has the claim of this name.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mut volumes = pod.spec.iter().filter_map(|spec| spec.volumes.as_ref()).flatten();
    !matches!(phase, Some("Succeeded" | "Failed"))
        && volumes.any(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim)
        })
}

/// Whether a claim has its storage.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// The storage class that a claim names.
pub fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}
