//! What a backup sees and changes of its machine's instance: pure functions.

use kube::ResourceExt;
use podvirt_api::backup::{can_be_tracked, target, target_volume};
use podvirt_api::v1::{
    BackupVolumeInfo, VirtualMachineBackup as Backup, VirtualMachineInstance,
    VirtualMachineInstanceBackupStatus as Told, VirtualMachineInstancePhase as Phase, VolumePhase,
};
use podvirt_daemon::patch::{list, unchanged};
use serde_json::{Value, json};

/// What the instance tells of the backup that holds it.
pub(super) fn told(vmi: &VirtualMachineInstance) -> Option<&Told> {
    vmi.status.changed_block_tracking.as_ref()?.backup_status.as_ref()
}

/// Whether that is of this backup, not of another one, nor of an earlier one of the same name.
pub(super) fn is_of(told: &Told, backup: &Backup) -> bool {
    let started = told.start_timestamp.clone().flatten();
    told.backup_name.as_deref() == backup.metadata.name.as_deref()
        && (started.is_none() || started == backup.metadata.creation_timestamp)
}

/// What the instance tells of this backup.
pub(super) fn told_of<'a>(vmi: &'a VirtualMachineInstance, backup: &Backup) -> Option<&'a Told> {
    told(vmi).filter(|told| is_of(told, backup))
}

/// Whether the launcher has begun it.
pub(super) fn has_begun(told: &Told) -> bool {
    told.completed == Some(true) || !told.volumes.is_empty()
}

/// The volumes that are copied, as far as they are told.
pub(super) fn volumes(told: &Told) -> Vec<BackupVolumeInfo> {
    told.volumes.iter().filter_map(|one| serde_json::from_value(one.clone()).ok()).collect()
}

/// Whether the guest runs, and is to.
pub(super) fn runs(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.phase == Some(Phase::Running) && vmi.metadata.deletion_timestamp.is_none()
}

/// Whether any of its volumes can be backed up.
pub(super) fn has_volumes(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.volumes.iter().any(can_be_tracked)
}

/// Whether the target's claim is to be in the instance.
pub(super) fn has_target(vmi: &VirtualMachineInstance, backup: &Backup) -> bool {
    has_backup_target(vmi, &backup.name_any())
}

/// As [`has_target`], of the backup of this name.
pub(super) fn has_backup_target(vmi: &VirtualMachineInstance, backup: &str) -> bool {
    let name = target_volume(backup);
    vmi.spec.utility_volumes.iter().any(|volume| volume.name == name)
}

/// Whether the instance's status tells of the target's claim.
pub(super) fn tells_of_target(vmi: &VirtualMachineInstance, backup: &Backup) -> bool {
    let name = target_volume(&backup.name_any());
    vmi.status.volume_status.iter().any(|told| told.name == name)
}

/// Whether the launcher has the target's directory.
pub(super) fn is_mounted(vmi: &VirtualMachineInstance, backup: &Backup) -> bool {
    let name = target_volume(&backup.name_any());
    let mut all = vmi.status.volume_status.iter();
    all.any(|told| {
        told.name == name && told.hotplug_volume.is_some() && told.phase == Some(VolumePhase::MountedToPod)
    })
}

/// The operations of a JSON patch that give the instance the target's claim.
pub(super) fn attach(vmi: &VirtualMachineInstance, backup: &Backup) -> Vec<Value> {
    let claim = backup.spec.pvc_name.as_deref().unwrap_or_default();
    let mut volumes = vmi.spec.utility_volumes.clone();
    volumes.push(target(&backup.name_any(), claim));
    let change = list("/spec/utilityVolumes", &json!(vmi.spec.utility_volumes), &json!(volumes));
    [Some(unchanged(vmi)), change].into_iter().flatten().collect()
}

/// Those that have the backup hold the instance, which no backup holds.
pub(super) fn hold(vmi: &VirtualMachineInstance, backup: &Backup) -> Vec<Value> {
    let begun = Told {
        backup_name: Some(backup.name_any()),
        start_timestamp: backup.metadata.creation_timestamp.clone().map(Some),
        ..Told::default()
    };
    vec![
        unchanged(vmi),
        json!({"op": "add", "path": "/status/changedBlockTracking/backupStatus", "value": begun}),
    ]
}

/// Those that take the target's claim of the backup of this name out of the instance, which has it.
pub(super) fn detach(vmi: &VirtualMachineInstance, backup: &str) -> Vec<Value> {
    let name = target_volume(backup);
    let stay: Vec<_> = vmi.spec.utility_volumes.iter().filter(|volume| volume.name != name).collect();
    let change = if stay.is_empty() {
        json!({"op": "remove", "path": "/spec/utilityVolumes"})
    } else {
        json!({"op": "replace", "path": "/spec/utilityVolumes", "value": stay})
    };
    vec![unchanged(vmi), change]
}

/// Those that let go of the instance, which is held.
pub(super) fn release(vmi: &VirtualMachineInstance) -> Vec<Value> {
    vec![unchanged(vmi), json!({"op": "remove", "path": "/status/changedBlockTracking/backupStatus"})]
}
