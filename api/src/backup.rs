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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::v1::{
    BackupMode, ChangedBlockTrackingState as State, ChangedBlockTrackingStatus as Status, Disk,
    UtilityVolume, UtilityVolumeType, VirtualMachineBackup, VirtualMachineInstance, Volume,
};
use crate::{duration, storage};

/// The feature gate that backups and trackers want.
pub const GATE: &str = "IncrementalBackup";
/// Finalizer of a backup that may have something under way in its machine.
pub const FINALIZER: &str = "backup.kubevirt.io/vmbackup-protection";
/// Group of backups and trackers.
pub const GROUP: &str = "backup.kubevirt.io";
/// Kind of backups, as sources of exports name it.
pub const KIND: &str = "VirtualMachineBackup";
/// Life of a backup in pull mode that says none.
pub const TTL: Duration = Duration::from_secs(2 * 3600);

/// Start of what an instance's `backupMsg` says while a backup runs that its exporter cannot read: the machine does not reach the exporter.
pub const UNREACHED: &str = "the exporter is not reached: ";

/// What the subresource `backup` of an instance asks for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Command {
    /// Begin.
    #[default]
    Start,
    /// Let an exporter read what a backup in pull mode offers.
    Export,
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
    /// The checkpoints that trackers of the machine go on from: the launcher removes all others before it begins. None: it
    /// removes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_checkpoints: Option<BTreeSet<String>>,
    /// Host of the exporter's Service; with [`Command::Export`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_server_addr: Option<String>,
    /// Name in the exporter's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_server_name: Option<String>,
    /// Key of the launcher's certificate, as PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_key: Option<Key>,
    /// The certificate that the launcher shows the exporter, as PEM; its common name is [`tunnel_identity`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_cert: Option<String>,
    /// Certificates of the CAs that the exporter's certificate may be of, as PEM.
    #[serde(rename = "caCert", skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
}

/// A private key as PEM, which is not written into logs.
#[derive(Clone, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Key(pub String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Common name of the certificate by which the exporter of a backup knows the launcher; `uid`: the backup's.
pub fn tunnel_identity(uid: &str) -> String {
    format!("kubevirt.io:system:client:{uid}")
}

/// Whether a backup is read from an endpoint, and not written to its claim.
pub fn is_pulled(backup: &VirtualMachineBackup) -> bool {
    backup.spec.mode == Some(BackupMode::Pull)
}

/// When a backup in pull mode ends at the latest. A life that reaches beyond all time has no other end.
pub fn expires(backup: &VirtualMachineBackup) -> Option<Timestamp> {
    let ttl = backup.spec.ttl_duration.as_deref().and_then(duration::parse).unwrap_or(TTL);
    let made = backup.metadata.creation_timestamp.as_ref()?.0;
    Some(made.checked_add(ttl).unwrap_or(Timestamp::MAX))
}

/// Name of the checkpoint that a backup makes, which is a part of its directory's name as well.
pub fn checkpoint(backup: &str, started: Timestamp) -> String {
    format!("{backup}-{}", started.strftime("%Y-%m-%d_%H-%M-%S"))
}

/// End of the names of utility volumes that backups write to.
const TARGET_SUFFIX: &str = "-backup-target-pvc";

/// Name of the utility volume that a backup writes to.
pub fn target_volume(backup: &str) -> String {
    format!("{backup}{TARGET_SUFFIX}")
}

/// Name of the backup that writes to a utility volume, if one does.
pub fn backup_of(volume: &UtilityVolume) -> Option<&str> {
    let is_target = volume.r#type == Some(UtilityVolumeType::Backup);
    volume.name.strip_suffix(TARGET_SUFFIX).filter(|_| is_target)
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
    has_overlays(vmi.status.changed_block_tracking.as_ref())
}

/// Whether disks have overlays by what the status of a machine, or of its instance, tells.
pub fn has_overlays(status: Option<&Status>) -> bool {
    matches!(state(status), State::Initializing | State::Enabled)
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
    fn a_backup_in_pull_mode_lives_as_long_as_it_says() {
        let backup = |spec: serde_json::Value| -> VirtualMachineBackup {
            let metadata = json!({"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        for (spec, is, ends) in [
            (json!({}), false, "2026-01-01T02:00:00Z"),
            (json!({"mode": "Push"}), false, "2026-01-01T02:00:00Z"),
            (json!({"mode": "Pull", "ttlDuration": "15s"}), true, "2026-01-01T00:00:15Z"),
            (json!({"mode": "Pull", "ttlDuration": "999999999h"}), true, "9999-12-30T22:00:00.999999999Z"),
        ] {
            let of = backup(spec);
            assert_eq!((is_pulled(&of), expires(&of).unwrap().to_string()), (is, ends.to_owned()));
        }
        assert_eq!(expires(&VirtualMachineBackup::default()), None);
    }

    #[test]
    fn options_are_upstreams() {
        let text = json!({"backupName": "b", "cmd": "Start", "mode": "Push", "backupStartTime": "2026-01-02T03:04:05Z",
            "incremental": "c", "targetPath": "/t", "skipQuiesce": true, "keepCheckpoints": ["c", "d"], "exportServerAddr": "a", "exportServerName": "n",
            "backupKey": "secret", "backupCert": "d", "caCert": "e"});
        let options: Options = serde_json::from_value(text.clone()).unwrap();
        assert!(!format!("{options:?}").contains("secret"));
        assert_eq!(serde_json::to_value(&options).unwrap(), text);
        assert_eq!(
            serde_json::from_value::<Options>(json!({"backupName": "b"})).unwrap().cmd,
            Command::Start
        );
    }
}
