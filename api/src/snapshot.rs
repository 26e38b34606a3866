//! Snapshots, restores and clones of VirtualMachines: names, and what their states mean. Names and words are upstream's.

use std::time::Duration;

use jiff::Timestamp;

use crate::duration;
use crate::v1::{
    DeletionPolicy, SnapshotCondition, SnapshotConditionType, SnapshotVirtualMachine, VirtualMachineRestore,
    VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSnapshotPhase as Phase, Volume,
};

/// Group of snapshots and restores.
pub const GROUP: &str = "snapshot.kubevirt.io";
/// Group of clones.
pub const CLONE_GROUP: &str = "clone.kubevirt.io";
/// Version of both groups that is stored.
pub const VERSION: &str = "v1beta1";

/// Finalizer on a VirtualMachineSnapshot: it stays until it has let go of its source.
pub const FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshot-protection";
/// Finalizer on a VirtualMachineSnapshotContent: it stays until its source's file systems are thawed.
pub const CONTENT_FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshotcontent-protection";
/// Finalizer on a VirtualMachine of which a snapshot is being taken.
pub const SOURCE_FINALIZER: &str = "snapshot.kubevirt.io/snapshot-source-protection";
/// Finalizer on a VirtualMachineRestore: it stays until it has let go of its target.
pub const RESTORE_FINALIZER: &str = "snapshot.kubevirt.io/vmrestore-protection";

/// Labels of a VolumeSnapshot: name and namespace of the VirtualMachine.
pub const SOURCE_LABELS: [&str; 2] =
    ["snapshot.kubevirt.io/source-vm-name", "snapshot.kubevirt.io/source-vm-namespace"];
/// Labels of a claim that a restore has made: name and namespace of the VirtualMachine whose snapshot it is from.
pub const RESTORE_LABELS: [&str; 2] =
    ["restore.kubevirt.io/source-vm-name", "restore.kubevirt.io/source-vm-namespace"];
/// Annotation of a claim or a DataVolume that a restore has made: the restore's name.
pub const RESTORE_NAME: &str = "restore.kubevirt.io/name";
/// Annotation of a VirtualMachine and of its claims: the restore that they were made by last.
pub const LAST_RESTORE: &str = "restore.kubevirt.io/lastRestoreUID";
/// Annotation of a claim whose owner is to be the VirtualMachine that a restore makes: the restore's name.
pub const OWNED_BY_MACHINE: &str = "restore.kubevirt.io/owned-by-vm";

/// Time that a snapshot has, and a restore's target to be stopped, where none is given.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);

/// What QEMU's agent says when the guest, which is a Windows, has thawed its file systems by itself.
pub const FREEZE_LIMIT: &str = "fsfreeze is limited";

/// Name of the content of a snapshot.
pub fn content_name(snapshot: &VirtualMachineSnapshot) -> String {
    let told = snapshot.status.virtual_machine_snapshot_content_name.clone();
    let uid = snapshot.metadata.uid.as_deref().unwrap_or_default();
    told.unwrap_or_else(|| format!("vmsnapshot-content-{uid}"))
}

/// Name of the VolumeSnapshot of a volume.
pub fn volume_snapshot_name(snapshot: &VirtualMachineSnapshot, volume: &str) -> String {
    format!("vmsnapshot-{}-volume-{volume}", snapshot.metadata.uid.as_deref().unwrap_or_default())
}

/// The claim of a volume of which a snapshot can be taken.
pub fn claim(volume: &Volume) -> Option<&str> {
    if let Some(data) = &volume.data_volume {
        return Some(&data.name);
    }
    if let Some(dump) = &volume.memory_dump {
        return Some(&dump.claim_name);
    }
    volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str())
}

/// The volumes of the template of a stored VirtualMachine.
pub fn volumes(vm: &SnapshotVirtualMachine) -> &[Volume] {
    let spec = vm.spec.as_ref().and_then(|spec| spec.template.as_ref()?.spec.as_ref());
    spec.map_or(&[], |spec| &spec.volumes)
}

/// Time that a snapshot may take; none is for ever.
pub fn failure_deadline(snapshot: &VirtualMachineSnapshot) -> Option<Duration> {
    let given = snapshot.spec.failure_deadline.as_deref().and_then(duration::parse);
    Some(given.unwrap_or(DEFAULT_DEADLINE)).filter(|given| !given.is_zero())
}

/// When a snapshot that is not taken has failed.
pub fn deadline(snapshot: &VirtualMachineSnapshot) -> Option<Timestamp> {
    let made = snapshot.metadata.creation_timestamp.as_ref()?.0;
    made.checked_add(failure_deadline(snapshot)?).ok()
}

/// Whether a snapshot is neither taken nor has failed.
pub fn progresses(snapshot: &VirtualMachineSnapshot) -> bool {
    !matches!(snapshot.status.phase, Some(Phase::Failed | Phase::Succeeded))
}

/// Whether a snapshot is being deleted, or is not taken in time.
pub fn ends(snapshot: &VirtualMachineSnapshot, now: Timestamp) -> bool {
    snapshot.metadata.deletion_timestamp.is_some() || is_late(snapshot, now)
}

/// Whether a snapshot has failed or will, as its time is over.
pub fn is_late(snapshot: &VirtualMachineSnapshot, now: Timestamp) -> bool {
    snapshot.status.phase == Some(Phase::Failed)
        || progresses(snapshot) && deadline(snapshot).is_some_and(|deadline| deadline < now)
}

/// Whether the content goes when its snapshot is deleted or has failed. What is not ready is of no use.
pub fn deletes(snapshot: &VirtualMachineSnapshot, content: &VirtualMachineSnapshotContent) -> bool {
    !matches!(snapshot.spec.deletion_policy, Some(DeletionPolicy::Retain))
        || content.status.ready_to_use != Some(true)
}

/// Whether a restore has failed for good.
pub fn has_failed(restore: &VirtualMachineRestore) -> bool {
    restore.status.conditions.iter().any(|condition| condition.r#type == SnapshotConditionType::Failure)
}

/// Whether a restore is neither complete nor has failed.
pub fn restores(restore: &VirtualMachineRestore) -> bool {
    restore.status.complete != Some(true) && !has_failed(restore)
}

/// What [`LAST_RESTORE`] says after a restore.
pub fn restored_by(restore: &VirtualMachineRestore) -> String {
    let metadata = &restore.metadata;
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    format!("{}-{}", text(&metadata.name), text(&metadata.uid))
}

/// Sets a condition, which keeps its time while it says the same.
pub fn set_condition(
    conditions: &mut Vec<SnapshotCondition>,
    kind: SnapshotConditionType,
    status: bool,
    reason: &str,
    now: Timestamp,
) {
    let wanted = SnapshotCondition {
        r#type: kind,
        status: if status { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        last_transition_time: Some(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now))),
        ..SnapshotCondition::default()
    };
    match conditions.iter_mut().find(|condition| condition.r#type == wanted.r#type) {
        Some(there) if there.status == wanted.status && there.reason == wanted.reason => {}
        Some(there) => *there = wanted,
        None => conditions.push(wanted),
    }
}
