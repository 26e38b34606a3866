//! `snapshot.storage.k8s.io/v1`: what podvirt reads and writes of the snapshots of claims, which a CSI driver takes.
//!
//! The kinds are not Kubernetes' own: a cluster has them once its storage is installed with them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// Group of these resources.
pub const GROUP: &str = "snapshot.storage.k8s.io";
/// Version of these resources.
pub const VERSION: &str = "v1";
/// Kind of a snapshot, which a claim names as the source of its data.
pub const VOLUME_SNAPSHOT: &str = "VolumeSnapshot";
/// Annotation of the class that is taken where a driver has several.
pub const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

objects! {
    /// A snapshot of a claim.
    VolumeSnapshot {
        /// Its name and owner.
        metadata: ObjectMeta,
        /// What it is of.
        spec: VolumeSnapshotSpec,
        /// How far it is.
        status: Option<VolumeSnapshotStatus>,
    }

    /// What a snapshot is of.
    VolumeSnapshotSpec {
        /// The claim.
        source: VolumeSnapshotSource,
        /// How it is taken.
        volume_snapshot_class_name: Option<String>,
    }

    /// What a snapshot is of.
    VolumeSnapshotSource {
        /// Name of the claim.
        persistent_volume_claim_name: Option<String>,
    }

    /// How far a snapshot is.
    VolumeSnapshotStatus {
        /// Whether a claim can be made from it.
        ready_to_use: Option<bool>,
        /// The moment whose data it has.
        creation_time: Option<Time>,
        /// Room that a claim which is made from it needs at least.
        restore_size: Option<Quantity>,
        /// What went wrong last.
        error: Option<VolumeSnapshotError>,
    }

    /// What went wrong with a snapshot.
    VolumeSnapshotError {
        /// When.
        time: Option<Time>,
        /// For people.
        message: Option<String>,
    }

    /// How a driver takes snapshots.
    VolumeSnapshotClass {
        /// Its name and whether it is the default.
        metadata: ObjectMeta,
        /// The driver: provisioner of the storage classes whose claims it is for.
        driver: String,
    }
}

kind!(
    VolumeSnapshot,
    "snapshot.storage.k8s.io",
    "v1",
    "VolumeSnapshot",
    "volumesnapshots",
    NamespaceResourceScope
);
kind!(
    VolumeSnapshotClass,
    "snapshot.storage.k8s.io",
    "v1",
    "VolumeSnapshotClass",
    "volumesnapshotclasses",
    ClusterResourceScope
);
