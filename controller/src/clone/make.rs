//! The snapshot and the restore that a clone makes: pure functions.

use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use podvirt_api::names::short_name;
use podvirt_api::v1::{
    self, SnapshotVirtualMachine, VirtualMachineClone as Clone_, VirtualMachineRestore as Restore,
    VirtualMachineRestoreSpec, VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotSpec,
    VolumeNamePolicy, VolumeRestorePolicy,
};

use super::patches::{FilterError, patches};

fn machine(name: String) -> TypedLocalObjectReference {
    TypedLocalObjectReference { api_group: Some(v1::GROUP.into()), kind: "VirtualMachine".into(), name }
}

fn metadata(clone: &Clone_, name: String) -> ObjectMeta {
    let owner = clone
        .controller_owner_ref(&())
        .map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
    ObjectMeta {
        name: Some(name),
        namespace: clone.namespace(),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Name of the snapshot that a clone of a machine makes.
pub(super) fn snapshot_name(clone: &Clone_) -> String {
    format!("tmp-snapshot-{}", clone.uid().unwrap_or_default())
}

/// Name of the restore.
pub(super) fn restore_name(clone: &Clone_) -> String {
    format!("tmp-restore-{}", clone.uid().unwrap_or_default())
}

/// Name of the new machine. Admission sets it where it is not given.
pub(super) fn target_name(clone: &Clone_) -> String {
    let named = clone.spec.target.as_ref().map(|target| target.name.clone());
    let source = clone.spec.source.as_ref().map(|source| source.name.as_str()).unwrap_or_default();
    let uid = clone.uid().unwrap_or_default();
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| short_name(&format!("clone-{source}-"), &uid))
}

/// The snapshot of the source.
pub(super) fn snapshot(clone: &Clone_) -> Snapshot {
    let source = clone.spec.source.as_ref().map(|source| source.name.clone()).unwrap_or_default();
    Snapshot {
        metadata: metadata(clone, snapshot_name(clone)),
        spec: VirtualMachineSnapshotSpec { source: machine(source), ..VirtualMachineSnapshotSpec::default() },
        ..Snapshot::default()
    }
}

/// The restore of a snapshot, which has this machine.
///
/// # Errors
///
/// Filters of the clone take too much.
pub(super) fn restore(
    clone: &Clone_,
    snapshot: &str,
    vm: &SnapshotVirtualMachine,
) -> Result<Restore, FilterError> {
    let policy = clone.spec.volume_name_policy.as_ref().map(|policy| match policy {
        VolumeNamePolicy::PrefixTargetName => VolumeRestorePolicy::PrefixTargetName,
        VolumeNamePolicy::RandomizeNames | VolumeNamePolicy::Other(_) => VolumeRestorePolicy::RandomizeNames,
    });
    Ok(Restore {
        metadata: metadata(clone, restore_name(clone)),
        spec: VirtualMachineRestoreSpec {
            target: machine(target_name(clone)),
            virtual_machine_snapshot_name: snapshot.to_owned(),
            volume_restore_policy: policy,
            patches: patches(vm, &clone.spec)?,
            ..VirtualMachineRestoreSpec::default()
        },
        ..Restore::default()
    })
}
