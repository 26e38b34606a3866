use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::error::chain;
use podvirt_api::v1::BackupMode;
use tokio::sync::mpsc;

use super::super::shared::Identity;
use super::describe::{Description, describe};
use super::*;
use crate::domain::schema::{Disk, Domain};

fn disks() -> Vec<Disk> {
    let domain = Domain::from_xml(
        "<domain><devices>\
         <disk type='file'><source file='/cbt/root.qcow2'><dataStore type='file'><format type='raw'/><source file='/root.img'/>\
         </dataStore></source><target dev='vda' bus='virtio'/><alias name='ua-root'/></disk>\
         <disk type='file'><source file='/cbt/late.qcow2'><dataStore type='block'><format type='raw'/><source dev='/dev/late'/>\
         </dataStore></source><target dev='vdb' bus='virtio'/><alias name='ua-late'/></disk>\
         <disk type='file'><source file='/seed.iso'/><target dev='sda' bus='sata'/><alias name='ua-seed'/></disk>\
         </devices></domain>",
    );
    domain.unwrap().devices.disks
}

fn options(incremental: Option<&str>) -> Options {
    Options { backup_name: "b".into(), incremental: incremental.map(ToOwned::to_owned), ..Options::default() }
}

#[test]
fn tracked_disks_are_copied_and_the_others_are_not() {
    let described = describe(&disks(), &options(None), "b-1", Path::new("/to/vm/b-1"), &[], None).unwrap();
    let Description { job, checkpoint: point, told } = described;
    assert_eq!(
        job,
        "<domainbackup mode=\"push\"><disks>\
         <disk name=\"vda\" backup=\"yes\" type=\"file\"><target file=\"/to/vm/b-1/b-root.qcow2\"/><driver type=\"qcow2\"/></disk>\
         <disk name=\"vdb\" backup=\"yes\" type=\"file\"><target file=\"/to/vm/b-1/b-late.qcow2\"/><driver type=\"qcow2\"/></disk>\
         <disk name=\"sda\" backup=\"no\"/></disks></domainbackup>"
    );
    assert_eq!(
        point,
        "<domaincheckpoint><name>b-1</name><disks><disk name=\"vda\" checkpoint=\"bitmap\"/>\
         <disk name=\"vdb\" checkpoint=\"bitmap\"/><disk name=\"sda\" checkpoint=\"no\"/></disks></domaincheckpoint>"
    );
    let told: Vec<_> = told.iter().map(|disk| (disk.volume.as_str(), disk.target.as_str())).collect();
    assert_eq!(told, [("root", "vda"), ("late", "vdb")]);
}

#[test]
fn a_disk_that_came_later_is_copied_whole() {
    let whole = ["ua-late".to_owned()];
    let described = describe(&disks(), &options(Some("a-1")), "b-1", Path::new("/to"), &whole, None);
    let job = described.unwrap().job;
    assert!(job.starts_with("<domainbackup mode=\"push\"><incremental>a-1</incremental>"), "{job}");
    let at = |name: &str| job.split("<disk ").find(|disk| disk.contains(name)).unwrap().to_owned();
    assert!(at("vdb").contains("backupmode=\"full\"") && !at("vda").contains("backupmode"), "{job}");
}

#[test]
fn in_pull_mode_disks_are_offered_by_their_volumes_names() {
    let socket = Some(Path::new("/private/uid/backup-nbd"));
    let described = describe(&disks(), &options(None), "b-1", Path::new("/to/vm/b-1"), &[], socket).unwrap();
    assert_eq!(
        described.job,
        "<domainbackup mode=\"pull\"><server transport=\"unix\" socket=\"/private/uid/backup-nbd\"/><disks>\
         <disk name=\"vda\" backup=\"yes\" type=\"file\" exportname=\"root\"><scratch file=\"/to/vm/b-1/b-root.qcow2\"/>\
         <driver type=\"qcow2\"/></disk>\
         <disk name=\"vdb\" backup=\"yes\" type=\"file\" exportname=\"late\"><scratch file=\"/to/vm/b-1/b-late.qcow2\"/>\
         <driver type=\"qcow2\"/></disk>\
         <disk name=\"sda\" backup=\"no\"/></disks></domainbackup>"
    );
    let told: Vec<_> = described.told.iter().map(|disk| disk.volume.as_str()).collect();
    assert_eq!(told, ["root", "late"]);
    // What has changed is told of disks that have the bitmap.
    let whole = ["ua-late".to_owned()];
    let described = describe(&disks(), &options(Some("a-1")), "b-1", Path::new("/to"), &whole, socket);
    assert_eq!(
        described.unwrap().job,
        "<domainbackup mode=\"pull\"><incremental>a-1</incremental>\
         <server transport=\"unix\" socket=\"/private/uid/backup-nbd\"/><disks>\
         <disk name=\"vda\" backup=\"yes\" type=\"file\" exportname=\"root\" exportbitmap=\"changes\">\
         <scratch file=\"/to/b-root.qcow2\"/><driver type=\"qcow2\"/></disk>\
         <disk name=\"vdb\" backup=\"yes\" type=\"file\" backupmode=\"full\" exportname=\"late\">\
         <scratch file=\"/to/b-late.qcow2\"/><driver type=\"qcow2\"/></disk>\
         <disk name=\"sda\" backup=\"no\"/></disks></domainbackup>"
    );
}

pub(super) fn shared(backup: Option<Backup>) -> Arc<Shared> {
    let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
    shared.facts.send_modify(|facts| facts.backup = backup);
    shared
}

pub(super) fn asked(name: &str, cmd: Command, at: &str) -> Options {
    let backup_start_time = Some(Time(at.parse().unwrap()));
    Options { backup_name: name.into(), cmd, backup_start_time, ..Options::default() }
}

pub(super) const AT: &str = "2026-01-02T03:04:05Z";

pub(super) fn running() -> Backup {
    let asked_at_ms = u64::try_from(Time(AT.parse().unwrap()).0.as_millisecond()).unwrap();
    Backup { name: "b".into(), asked_at_ms, ..Backup::default() }
}

#[tokio::test]
async fn a_backup_is_begun_once_and_one_at_a_time() {
    let ended = Backup { ended_at_ms: Some(1), ..running() };
    for known in [running(), ended.clone()] {
        let again = command(&shared(Some(known)), "vm", asked("b", Command::Start, AT)).await;
        again.expect("it is the same backup");
    }
    let busy = shared(Some(running()));
    let later = "2026-01-02T03:04:06Z";
    for other in [asked("c", Command::Start, AT), asked("b", Command::Start, later)] {
        let refused = command(&busy, "vm", other).await.unwrap_err();
        assert_eq!(chain(&refused), "backup b is under way: one at a time is allowed");
    }
    // After another backup it is begun: here is no machine.
    let begun = command(&shared(Some(ended)), "vm", asked("c", Command::Start, AT)).await.unwrap_err();
    assert!(chain(&begun).contains("is not running"), "{begun}");
    let odd = Options { mode: Some(BackupMode::from("Shove")), ..asked("b", Command::Start, AT) };
    let refused = command(&shared(None), "vm", odd).await.unwrap_err();
    assert_eq!(chain(&refused), "mode: 'Shove': Push and Pull are allowed");
    let elsewhere = command(&shared(None), "vm", asked("../b", Command::Start, AT)).await.unwrap_err();
    assert_eq!(chain(&elsewhere), "backupName: '../b' is no object's name");
    // What is refused is not noted.
    let free = shared(None);
    command(&free, "vm", asked("b", Command::Start, AT)).await.unwrap_err();
    assert_eq!(free.facts.borrow().backup, None);
    let timeless = Options { backup_start_time: None, ..asked("b", Command::Start, AT) };
    let refused = command(&shared(None), "vm", timeless).await.unwrap_err();
    assert_eq!(chain(&refused), "backupStartTime: required");
}

#[tokio::test]
async fn the_backup_that_runs_alone_is_given_up() {
    let abort = || asked("b", Command::Abort, AT);
    let ended = Backup { ended_at_ms: Some(1), ..running() };
    for known in [None, Some(ended)] {
        let refused = command(&shared(known), "vm", abort()).await.unwrap_err();
        assert_eq!(chain(&refused), "backup b is not under way");
    }
    // The hypervisor is asked: here is none.
    let told = command(&shared(Some(running())), "vm", abort()).await.unwrap_err();
    assert!(chain(&told).contains("is not running"), "{told}");
}

#[test]
fn while_a_backup_runs_its_target_stays_and_so_does_the_machine() {
    let shared = shared(Some(running()));
    assert_eq!(may_go(&shared, "b-backup-target-pvc"), Err(UnderWay::Writes("b".to_owned())));
    assert_eq!(may_go(&shared, "data"), Ok(()));
    let stays = may_leave(&shared).unwrap_err();
    assert_eq!(stays.to_string(), "cannot migrate VMI until backup b is completed");
    shared.facts.send_modify(|facts| facts.backup = Some(Backup { ended_at_ms: Some(1), ..running() }));
    assert_eq!((may_go(&shared, "b-backup-target-pvc"), may_leave(&shared)), (Ok(()), Ok(())));
}
