//! What the machine's report tells of tracked disks and of backups, for the VMI's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::backup::{self, UNREACHED};
use podvirt_api::v1::{
    BackupVolumeInfo, ChangedBlockTrackingState as State, VirtualMachineInstance,
    VirtualMachineInstanceStatus as Status,
};
use podvirt_proto::domain::{Backup, Domain};
use serde_json::json;

/// Writes what the report tells. virt-controller has said that disks are to be tracked, and which backup is under way.
pub(super) fn follow(vmi: &VirtualMachineInstance, status: &mut Status, domain: &Domain) {
    let Some(tracking) = &mut status.changed_block_tracking else { return };
    if tracking.state == State::Initializing && is_tracked(vmi, domain) {
        tracking.state = State::Enabled;
    }
    let Some(told) = &mut tracking.backup_status else { return };
    let Some(report) = domain.backup.as_ref().filter(|report| is_of(report, told)) else { return };
    told.checkpoint_name = Some(report.checkpoint.clone());
    told.volumes = report
        .disks
        .iter()
        .map(|disk| {
            let info = BackupVolumeInfo {
                volume_name: disk.volume.clone(),
                disk_target: disk.target.clone(),
                ..BackupVolumeInfo::default()
            };
            json!(info)
        })
        .collect();
    told.backup_msg = match (report.unreached.as_str(), report.message.as_str()) {
        ("", "") => None,
        ("", message) => Some(message.to_owned()),
        (why, _) => Some(format!("{UNREACHED}{why}")),
    };
    if let Some(ended) = report.ended_at_ms {
        told.end_timestamp = Some(seconds(ended));
        told.completed = Some(true);
        told.failed = Some(report.failed);
    }
}

/// Whether the machine has all the overlays that it is to have. A disk that comes later has its own when it comes.
fn is_tracked(vmi: &VirtualMachineInstance, domain: &Domain) -> bool {
    let wanted = backup::tracked(vmi);
    let disks = || domain.disks.iter().filter(|disk| wanted.contains_key(&disk.name));
    !domain.disks.is_empty() && disks().all(|disk| disk.tracked)
}

/// Whether the report is of the backup that the status names.
fn is_of(report: &Backup, told: &podvirt_api::v1::VirtualMachineInstanceBackupStatus) -> bool {
    let asked = told.start_timestamp.as_ref().and_then(|time| time.as_ref());
    let is_same_time = asked.is_none_or(|time| Some(time) == seconds(report.asked_at_ms).as_ref());
    told.backup_name.as_deref() == Some(&report.name) && is_same_time
}

/// The API's times have seconds.
fn seconds(ms: u64) -> Option<Time> {
    let seconds = i64::try_from(ms / 1000).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::{BackupDisk, Disk};

    use super::*;

    fn vmi(backup: serde_json::Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {"disks": [{"name": "root"}, {"name": "seed"}]}}, "volumes": [
                {"name": "root", "persistentVolumeClaim": {"claimName": "root"}}, {"name": "seed", "cloudInitNoCloud": {}},
            ]},
            "status": {"changedBlockTracking": {"state": "Initializing", "backupStatus": backup}},
        }))
        .unwrap()
    }

    fn domain(tracked: bool) -> Domain {
        let disk = |name: &str, tracked| Disk { name: name.into(), tracked, ..Disk::default() };
        Domain { disks: vec![disk("root", tracked), disk("seed", false)], ..Domain::default() }
    }

    fn followed(vmi: &VirtualMachineInstance, domain: &Domain) -> serde_json::Value {
        let mut status = vmi.status.clone();
        follow(vmi, &mut status, domain);
        json!(status.changed_block_tracking)
    }

    #[test]
    fn tracking_is_enabled_once_the_disks_on_claims_have_overlays() {
        let vmi = vmi(serde_json::Value::Null);
        assert_eq!(followed(&vmi, &Domain::default())["state"], "Initializing", "nothing is known of disks");
        assert_eq!(followed(&vmi, &domain(false))["state"], "Initializing");
        assert_eq!(followed(&vmi, &domain(true)), json!({"state": "Enabled"}));
    }

    #[test]
    fn a_backup_is_told_from_its_begin_to_its_end() {
        let asked = "2026-01-02T03:04:05Z";
        let vmi = vmi(json!({"backupName": "b", "startTimestamp": asked}));
        let asked_at_ms = u64::try_from(asked.parse::<Timestamp>().unwrap().as_millisecond()).unwrap();
        let mut report = Backup {
            name: "b".into(),
            asked_at_ms,
            checkpoint: "b-1".into(),
            disks: vec![BackupDisk { volume: "root".into(), target: "vda".into() }],
            ..Backup::default()
        };
        let told = |report: &Backup| {
            let domain = Domain { backup: Some(report.clone()), ..domain(true) };
            followed(&vmi, &domain)["backupStatus"].clone()
        };
        let runs = json!({"backupName": "b", "startTimestamp": asked, "checkpointName": "b-1",
            "volumes": [{"volumeName": "root", "diskTarget": "vda"}]});
        assert_eq!(told(&report), runs);
        report.unreached = "no answer within 10 s".into();
        assert_eq!(told(&report)["backupMsg"], "the exporter is not reached: no answer within 10 s");
        report.unreached = String::new();
        report.ended_at_ms = Some(asked_at_ms + 1500);
        (report.failed, report.message) = (true, "no room".into());
        let mut ended = runs;
        for (field, value) in [
            ("endTimestamp", json!("2026-01-02T03:04:06Z")),
            ("completed", json!(true)),
            ("failed", json!(true)),
            ("backupMsg", json!("no room")),
        ] {
            ended[field] = value;
        }
        assert_eq!(told(&report), ended);
        report.asked_at_ms += 1000;
        assert_eq!(
            told(&report),
            json!({"backupName": "b", "startTimestamp": asked}),
            "it is an earlier backup"
        );
    }
}
