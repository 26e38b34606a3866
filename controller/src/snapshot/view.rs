//! Snapshots and their contents as the caches have them, for the controllers of snapshots, restores and clones.

use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use podvirt_api::snapshot::content_name;
use podvirt_api::v1::{VirtualMachineSnapshot, VirtualMachineSnapshotContent};

use crate::kept::Kept;

/// The caches. Clones see the same.
#[derive(Clone, Debug)]
pub struct Snapshots {
    /// Snapshots.
    pub snapshots: Kept<VirtualMachineSnapshot>,
    /// Contents.
    pub contents: Kept<VirtualMachineSnapshotContent>,
}

/// What fills the caches.
pub struct Writers {
    pub(super) snapshots: Writer<VirtualMachineSnapshot>,
    pub(super) contents: Writer<VirtualMachineSnapshotContent>,
}

impl Snapshots {
    /// Empty caches, and what fills them.
    pub fn new() -> (Snapshots, Writers) {
        let (snapshots, snapshot_writer) = Kept::new();
        let (contents, content_writer) = Kept::new();
        let writers = Writers { snapshots: snapshot_writer, contents: content_writer };
        (Snapshots { snapshots, contents }, writers)
    }

    /// The content of a snapshot, if it is there.
    pub fn content_of(
        &self,
        snapshot: &VirtualMachineSnapshot,
    ) -> Option<Arc<VirtualMachineSnapshotContent>> {
        let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
        self.contents.get(namespace, &content_name(snapshot))
    }
}
