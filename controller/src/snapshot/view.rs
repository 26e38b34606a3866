//! Snapshots and their contents as the caches have them, for the controllers of snapshots, restores and clones.

use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use podvirt_api::snapshot::content_name;
use podvirt_api::v1::{VirtualMachineSnapshot, VirtualMachineSnapshotContent};

use super::content::name_of;
use super::controller::is_open;
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
        // A change of a machine or of a VolumeSnapshot asks who is concerned; thousands may be stored.
        let (snapshots, snapshot_writer) = Kept::indexed(machines);
        let (contents, content_writer) = Kept::indexed(volume_snapshots);
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

/// By which texts the cache of snapshots is indexed: the machine of one that is open.
fn machines(snapshot: &VirtualMachineSnapshot) -> Vec<String> {
    is_open(snapshot).then(|| snapshot.spec.source.name.clone()).into_iter().collect()
}

/// By which texts the cache of contents is indexed: the VolumeSnapshots.
fn volume_snapshots(content: &VirtualMachineSnapshotContent) -> Vec<String> {
    content.spec.volume_backups.iter().filter_map(name_of).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn open_snapshots_are_found_by_their_machine_and_contents_by_their_volume_snapshots() {
        let snapshot = |more: Value| -> VirtualMachineSnapshot {
            let mut snapshot = json!({"metadata": {"name": "s", "namespace": "ns"},
                "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}}});
            json_patch::merge(&mut snapshot, &more);
            serde_json::from_value(snapshot).unwrap()
        };
        assert_eq!(machines(&snapshot(json!({}))), ["vm"]);
        assert_eq!(machines(&snapshot(json!({"status": {"phase": "InProgress"}}))), ["vm"]);
        assert_eq!(machines(&snapshot(json!({"status": {"phase": "Succeeded"}}))), [""; 0]);
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Succeeded"}});
        assert_eq!(machines(&snapshot(deleted)), ["vm"]);
        let mut content = VirtualMachineSnapshotContent::default();
        for name in ["vs-root", "vs-data"] {
            content.spec.volume_backups.push(podvirt_api::v1::VolumeBackup {
                volume_snapshot_name: Some(name.into()),
                ..podvirt_api::v1::VolumeBackup::default()
            });
        }
        assert_eq!(volume_snapshots(&content), ["vs-root", "vs-data"]);
    }
}
