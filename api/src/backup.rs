//! Backups of a running machine's disks, and the tracking of changed blocks that incremental ones stand on: what virt-api,
//! virt-controller, virt-handler and virt-launcher agree on.
//!
//! ```text
//!  changedBlockTrackingLabelSelectors of the KubeVirt object ── select ──> VirtualMachine
//!     each of its disks on a claim gets an overlay: a qcow2 file on the machine's backend claim ([`crate::state`], cbt/<volume>.qcow2),
//!     which has no data of its own but bitmaps of what was changed; the data stays in the claim as it was, raw
//!
//!  virt-controller   VirtualMachineBackup: the target's claim becomes one of the instance's `utilityVolumes`; an attachment pod has it
//!  virt-handler      carries the descriptor of the claim's directory from there to the launcher
//!  virt-controller   subresource `backup`: Start
//!  virt-launcher     has libvirt copy the disks into files in that directory, whole or what has changed since a checkpoint
//!  virt-handler      tells of it in status.changedBlockTracking.backupStatus of the instance
//!  virt-controller   writes the checkpoint into the VirtualMachineBackupTracker; the claim leaves the instance; Done
//! ```
//!
//! A checkpoint is the name of a bitmap: what has changed since the backup that it is of. libvirt forgets its checkpoints with the
//! domain, and the bitmaps stay in the overlays. So virt-controller has the tracker's checkpoint made known again
//! (`redefine-checkpoint`) to each libvirt that the machine comes to; where the bitmap is gone, the tracker loses the checkpoint,
//! and the next backup is a full one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::storage;
use crate::v1::{
    BackupMode, ChangedBlockTrackingState as State, ChangedBlockTrackingStatus as Status, Disk,
    UtilityVolume, UtilityVolumeType, VirtualMachineInstance, Volume,
};

/// The feature gate that backups and trackers want.
pub const GATE: &str = "IncrementalBackup";
/// Finalizer of a backup that may have something under way in its machine.
pub const FINALIZER: &str = "backup.kubevirt.io/vmbackup-protection";
/// Group of backups and trackers.
pub const GROUP: &str = "backup.kubevirt.io";

/// What the subresource `backup` of an instance asks for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Command {
    /// Begin.
    #[default]
    Start,
    /// End it before it is complete.
    Abort,
}

/// Body of the subresource `backup` of an instance.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// The backup's name.
    pub backup_name: String,
    /// What is asked for.
    pub cmd: Command,
    /// How its output leaves the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<BackupMode>,
    /// When the backup was asked for; with the name it tells one backup from another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_start_time: Option<Time>,
    /// The checkpoint since which changes are copied; none: everything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incremental: Option<String>,
    /// Where the launcher has the directory that is written into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_path: Option<String>,
    /// Whether the guest's file systems are not frozen at the begin.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_quiesce: bool,
}

/// Name of the checkpoint that a backup makes, which is a part of its directory's name as well.
pub fn checkpoint(backup: &str, started: Timestamp) -> String {
    format!("{backup}-{}", started.strftime("%Y-%m-%d_%H-%M-%S"))
}

/// Name of the utility volume that a backup writes to.
pub fn target_volume(backup: &str) -> String {
    format!("{backup}-backup-target-pvc")
}

/// The utility volume that a backup writes to, of the claim of this name.
pub fn target(backup: &str, claim: &str) -> UtilityVolume {
    UtilityVolume {
        name: target_volume(backup),
        claim_name: claim.to_owned(),
        r#type: Some(UtilityVolumeType::Backup),
        ..UtilityVolume::default()
    }
}

/// Whether changes of a volume's disk can be tracked.
pub fn can_be_tracked(volume: &Volume) -> bool {
    volume.host_disk.is_some() || volume.data_volume.is_some() || volume.persistent_volume_claim.is_some()
}

/// The volumes of an instance whose disks have overlays, and what their data is on: a claim, or a path on the node. Disks that the guest
/// cannot write to have none, nor have CD-ROMs and LUNs.
pub fn tracked(vmi: &VirtualMachineInstance) -> BTreeMap<String, String> {
    if !is_tracked(vmi) {
        return BTreeMap::new();
    }
    let read_only = |disk: &Disk| disk.disk.as_ref().and_then(|disk| disk.readonly) == Some(true);
    let is_plain = |disk: &&Disk| disk.cdrom.is_none() && disk.lun.is_none() && !read_only(disk);
    let disks = vmi.spec.domain.devices.disks.iter().filter(is_plain);
    let volumes = disks.filter_map(|disk| vmi.spec.volumes.iter().find(|volume| volume.name == disk.name));
    let on = |volume: &Volume| match storage::claim(volume) {
        Some(claim) => (!claim.read_only).then(|| claim.name.to_owned()),
        None => volume.host_disk.as_ref().map(|disk| disk.path.clone()),
    };
    let volumes = volumes.filter(|volume| can_be_tracked(volume));
    volumes.filter_map(|volume| Some((volume.name.clone(), on(volume)?))).collect()
}

/// How far the tracking is.
pub fn state(status: Option<&Status>) -> State {
    status.map(|status| status.state.clone()).unwrap_or_default()
}

/// Whether the instance's disks have overlays.
pub fn is_tracked(vmi: &VirtualMachineInstance) -> bool {
    matches!(state(vmi.status.changed_block_tracking.as_ref()), State::Initializing | State::Enabled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_checkpoint_is_named_by_its_backup_and_the_time() {
        let started = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(checkpoint("nightly", started), "nightly-2026-01-02_03-04-05");
    }

    #[test]
    fn disks_on_claims_and_of_the_node_can_be_tracked() {
        let volume = |source: &str, value: serde_json::Value| -> Volume {
            serde_json::from_value(json!({"name": "v", source: value})).unwrap()
        };
        let claim = json!({"claimName": "c"});
        assert!(can_be_tracked(&volume("persistentVolumeClaim", claim.clone())));
        assert!(can_be_tracked(&volume("dataVolume", json!({"name": "d"}))));
        assert!(can_be_tracked(&volume("hostDisk", json!({"path": "/p", "type": "Disk"}))));
        assert!(!can_be_tracked(&volume("memoryDump", claim.clone())));
        assert!(!can_be_tracked(&volume("ephemeral", json!({"persistentVolumeClaim": claim}))));
        assert!(!can_be_tracked(&volume("emptyDisk", json!({"capacity": "1Gi"}))));
    }

    #[test]
    fn disks_that_the_guest_writes_are_tracked() {
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {
                "domain": {"devices": {"disks": [
                    {"name": "root", "disk": {"bus": "virtio"}}, {"name": "plain"}, {"name": "seed"},
                    {"name": "books", "disk": {"readonly": true}}, {"name": "drive", "cdrom": {}}, {"name": "raw", "lun": {}},
                ]}},
                "volumes": [
                    {"name": "root", "dataVolume": {"name": "data"}}, {"name": "plain", "hostDisk": {"path": "/d.img", "type": "Disk"}},
                    {"name": "books", "persistentVolumeClaim": {"claimName": "b"}}, {"name": "drive", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "raw", "persistentVolumeClaim": {"claimName": "l"}}, {"name": "seed", "cloudInitNoCloud": {}},
                    {"name": "files", "persistentVolumeClaim": {"claimName": "f"}},
                ],
            },
            "status": {"changedBlockTracking": {"state": "Initializing"}},
        }))
        .unwrap();
        let on =
            [("plain", "/d.img"), ("root", "data")].map(|(volume, on)| (volume.to_owned(), on.to_owned()));
        assert_eq!(tracked(&vmi), on.into());
        vmi.status.changed_block_tracking = None;
        assert!(tracked(&vmi).is_empty());
    }

    #[test]
    fn options_are_upstreams() {
        let text = json!({"backupName": "b", "cmd": "Start", "mode": "Push", "backupStartTime": "2026-01-02T03:04:05Z",
            "incremental": "c", "targetPath": "/t", "skipQuiesce": true});
        let options: Options = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&options).unwrap(), text);
        assert_eq!(
            serde_json::from_value::<Options>(json!({"backupName": "b"})).unwrap().cmd,
            Command::Start
        );
    }
}
