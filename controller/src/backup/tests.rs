use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::backup::{Command, FINALIZER, Options};
use podvirt_api::v1::{
    BackupType, VirtualMachineBackup as Backup, VirtualMachineBackupTracker as Tracker,
    VirtualMachineExport as Export, VirtualMachineInstance,
};
use serde_json::{Value, json};

use super::decide::{Observed, decide, refused};
use super::fixtures::{
    MADE, backup, claim, complete, held, mounted, of_tracker, runs, tracker, vmi, with_checkpoint,
};
use super::plan::{Action, Plan};
use super::status::{Phase, phase};
use super::{instance, orphan};

pub(super) const NOW: &str = "2026-01-01T00:10:00Z";

/// A backup for which all is there.
pub(super) struct Scene {
    pub(super) backup: Backup,
    pub(super) tracker: Option<Tracker>,
    pub(super) is_there: bool,
    pub(super) vmi: Option<VirtualMachineInstance>,
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) export: Option<Export>,
    pub(super) holder: Option<Backup>,
    pub(super) evacuates: bool,
    pub(super) now: Timestamp,
}

impl Scene {
    pub(super) fn new(of: &Value, instance: &Value) -> Scene {
        Scene {
            backup: backup(of),
            tracker: None,
            is_there: true,
            vmi: Some(vmi(instance)),
            claim: Some(claim("Filesystem")),
            export: None,
            holder: None,
            evacuates: false,
            now: NOW.parse().unwrap(),
        }
    }

    pub(super) fn seen(&self) -> Observed<'_> {
        Observed {
            backup: &self.backup,
            tracker: self.tracker.as_ref(),
            machine: "vm",
            is_there: self.is_there,
            vmi: self.vmi.as_ref(),
            claim: self.claim.as_ref(),
            export: self.export.as_ref(),
            holder: self.holder.as_ref(),
            evacuates: self.evacuates,
            now: self.now,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        decide(&self.seen())
    }
}

/// The conditions as texts: type, status and reason.
pub(super) fn conditions(plan: &Plan) -> Vec<String> {
    let all = plan.status.conditions.iter();
    all.map(|one| format!("{}={} {}", one.r#type, one.status, one.reason.as_deref().unwrap_or_default()))
        .collect()
}

/// Why the backup waits.
fn waits(plan: &Plan) -> String {
    let all = conditions(plan);
    let why = all[0].strip_prefix("Initializing=True ").unwrap_or_else(|| panic!("{all:?}")).to_owned();
    assert_eq!(all[1], format!("Progressing=False {why}"));
    assert_eq!((phase(&plan.status), &plan.note), (Phase::Initializing, &None));
    why
}

/// Why the backup has failed.
pub(super) fn fails(plan: &Plan) -> String {
    assert_eq!(phase(&plan.status), Phase::Ended, "{plan:?}");
    let note = plan.note.as_ref().unwrap();
    assert_eq!((note.warns, note.reason), (true, "VirtualMachineBackupFailed"));
    let all = conditions(plan);
    assert!(all.contains(&format!("Progressing=False {}", note.message)), "{all:?}");
    assert!(all.contains(&format!("Done=False {}", note.message)) && !all[0].starts_with("Initializing"));
    assert_eq!(plan.status.checkpoint_name, None);
    note.message.strip_prefix("Backup has failed: ").unwrap().to_owned()
}

#[test]
fn what_is_missing_is_waited_for_and_told() {
    type Change = fn(&mut Scene);
    let table: [(Change, &str); 13] = [
        (|scene| scene.evacuates = true, "the VirtualMachine vm leaves its node"),
        (|scene| scene.backup = backup(&of_tracker()), "the VirtualMachineBackupTracker t is not there"),
        (|scene| scene.is_there = false, "the VirtualMachine vm is not there"),
        (|scene| scene.vmi = None, "the VirtualMachine vm does not run"),
        (
            |scene| scene.vmi = Some(vmi(&json!({"status": {"phase": "Scheduled"}}))),
            "the VirtualMachine vm does not run",
        ),
        (
            |scene| scene.vmi = Some(vmi(&json!({"metadata": {"deletionTimestamp": NOW}}))),
            "the VirtualMachine vm does not run",
        ),
        (
            |scene| scene.vmi = Some(vmi(&json!({"spec": {"volumes": [{"name": "r", "emptyDisk": {}}]}}))),
            "the VirtualMachine vm has no volume that can be backed up",
        ),
        (
            |scene| scene.vmi = Some(vmi(&json!({"status": {"changedBlockTracking": null}}))),
            "changed blocks of the VirtualMachine vm are not tracked: it is off",
        ),
        (
            |scene| {
                let initializing = json!({"status": {"changedBlockTracking": {"state": "Initializing"}}});
                scene.vmi = Some(vmi(&initializing));
            },
            "changed blocks of the VirtualMachine vm are not tracked: it is Initializing",
        ),
        (
            |scene| {
                scene.backup = backup(&of_tracker());
                scene.tracker = Some(tracker(&json!({"status": {"latestCheckpoint": {"name": "c"}}})));
            },
            "the checkpoint of the VirtualMachineBackupTracker t is redefined first",
        ),
        (
            |scene| scene.vmi = Some(vmi(&json!({"status": {"migrationState": {"migrationUid": "m"}}}))),
            "the VirtualMachine vm migrates",
        ),
        (|scene| scene.claim = None, "the PersistentVolumeClaim to is not there"),
        (
            |scene| {
                let other = held(&json!({"backupName": "other"}), None);
                scene.vmi = Some(vmi(&other));
                scene.holder = Some(backup(&json!({"metadata": {"name": "other"}})));
            },
            "the VirtualMachineBackup other of the VirtualMachine vm is in progress",
        ),
    ];
    for (change, why) in table {
        let mut scene = Scene::new(&json!({}), &json!({}));
        assert_eq!(scene.plan().action, Some(Action::Attach), "it would go on");
        change(&mut scene);
        let plan = scene.plan();
        assert_eq!((waits(&plan).as_str(), &plan.action), (why, &None));
    }
}

#[test]
fn the_machine_is_held_before_it_is_asked() {
    let free = Scene::new(&json!({"metadata": {"finalizers": []}}), &json!({}));
    assert_eq!(free.plan().action, Some(Action::AddFinalizer));
    let comes = "the PersistentVolumeClaim to comes to the VirtualMachine vm";
    let attaches = Some(
        json!({"name": "b-backup-target-pvc", "target": "", "phase": "AttachedToNode", "hotplugVolume": {}}),
    );
    let unheld = |target: Option<Value>| {
        let mut instance = held(&json!({}), target);
        instance["status"]["changedBlockTracking"]["backupStatus"] = Value::Null;
        instance
    };
    for (instance, action) in [
        (json!({}), Some(Action::Attach)),
        (
            json!({"status": {"changedBlockTracking": {"backupStatus": {"backupName": "b", "startTimestamp": MADE}}}}),
            Some(Action::Attach),
        ),
        (unheld(None), None),
        // The claim may never come, and nothing is held until it has.
        (unheld(attaches), None),
        (unheld(mounted()), Some(Action::Hold)),
    ] {
        let plan = Scene::new(&json!({}), &instance).plan();
        assert_eq!((waits(&plan).as_str(), plan.action), (comes, action), "{instance}");
    }
    let earlier = held(&json!({"startTimestamp": "2025-01-01T00:00:00Z"}), mounted());
    let plan = Scene::new(&json!({}), &earlier).plan();
    assert!(waits(&plan).contains("VirtualMachineBackup b of"), "an earlier one of the same name holds it");
    assert_eq!(plan.action, None);
    let left = held(&json!({"backupName": "gone", "completed": true}), None);
    let mut scene = Scene::new(&json!({}), &left);
    assert_eq!(scene.plan().action, Some(Action::Release));
    scene.holder = Some(backup(&json!({"metadata": {"name": "gone"}})));
    assert_eq!(scene.plan().action, None, "it is there, and lets go itself");
}

#[test]
fn it_begins_whole_or_from_the_trackers_checkpoint() {
    let begun = |scene: &Scene| {
        let plan = scene.plan();
        assert_eq!(
            conditions(&plan),
            ["Progressing=True Backup is in progress", "Done=False Backup is in progress"]
        );
        let kind = plan.status.r#type.unwrap();
        match plan.action {
            Some(Action::Start(options)) => (options, kind),
            other => panic!("{other:?}"),
        }
    };
    let waiting = json!({"status": {"conditions": [{"type": "Initializing", "status": "True"}]}, "spec": {"skipQuiesce": true}});
    let mut scene = Scene::new(&waiting, &held(&json!({}), mounted()));
    let made: Timestamp = MADE.parse().unwrap();
    let wanted = Options {
        backup_name: "b".into(),
        cmd: Command::Start,
        mode: Some(podvirt_api::v1::BackupMode::Push),
        backup_start_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(made)),
        incremental: None,
        target_path: Some("/var/run/kubevirt/hotplug-disks/b-backup-target-pvc".into()),
        skip_quiesce: true,
        ..Options::default()
    };
    assert_eq!(begun(&scene), (wanted.clone(), BackupType::Full));
    for (more, checkpoint, since) in [
        (json!({}), json!({}), None),
        (json!({}), with_checkpoint(), Some("c".to_owned())),
        (json!({"spec": {"forceFullBackup": true}}), with_checkpoint(), None),
    ] {
        let mut of = of_tracker();
        json_patch::merge(&mut of, &more);
        (scene.backup, scene.tracker) = (backup(&of), Some(tracker(&checkpoint)));
        let kind = if since.is_some() { BackupType::Incremental } else { BackupType::Full };
        let options = Options { incremental: since, skip_quiesce: false, ..wanted.clone() };
        assert_eq!(begun(&scene), (options, kind));
    }
}

#[test]
fn a_machine_that_has_begun_is_not_asked_again() {
    let begun = held(&json!({"volumes": [{"volumeName": "root", "diskTarget": "vda"}]}), mounted());
    for more in [json!({}), json!({"metadata": {"deletionTimestamp": NOW}})] {
        let plan = Scene::new(&more, &begun).plan();
        assert_eq!((plan.action, phase(&plan.status)), (None, Phase::Running));
        assert_eq!(plan.status.r#type, Some(BackupType::Full));
        assert_eq!(plan.status.included_volumes[0].disk_target, "vda");
    }
}

#[test]
fn a_refused_start_is_told() {
    let scene = Scene::new(&json!({}), &held(&json!({}), mounted()));
    let action = scene.plan().action.unwrap();
    let plan = refused(&scene.seen(), &action, "no room").unwrap();
    assert_eq!(waits(&plan), "the machine does not begin the backup: no room");
    assert_eq!((plan.action, plan.status.r#type), (None, None));
    assert_eq!(refused(&scene.seen(), &Action::Detach, "no"), None, "it stays as it is");
}

#[test]
fn what_can_never_begin_ends_once_the_claim_has_left() {
    let other = json!({"spec": {"mode": "Slow"}});
    let deleted = json!({"metadata": {"deletionTimestamp": NOW}});
    for (more, mode, why) in [
        (json!({}), "Block", "the PersistentVolumeClaim to is a block device; a file system is needed"),
        (other, "Filesystem", "there is no mode Slow; Push and Pull are allowed"),
        (deleted, "Filesystem", "the backup was deleted before it began"),
    ] {
        let mut scene = Scene::new(&more, &held(&json!({}), mounted()));
        scene.claim = Some(claim(mode));
        let plan = scene.plan();
        assert_eq!((plan.action, phase(&plan.status)), (Some(Action::Detach), Phase::Initializing));
        let mut leaves = held(&json!({}), mounted());
        leaves["spec"] = json!({"utilityVolumes": null});
        scene.vmi = Some(vmi(&leaves));
        let plan = scene.plan();
        assert_eq!((plan.action, phase(&plan.status)), (None, Phase::Initializing), "its pod has the claim");
        leaves["status"]["volumeStatus"] = json!([]);
        scene.vmi = Some(vmi(&leaves));
        let plan = scene.plan();
        assert_eq!((fails(&plan).as_str(), &plan.action), (why, &None));
    }
    for name in ["b.1".to_owned(), "b".repeat(46)] {
        let scene = Scene::new(&json!({ "metadata": { "name": name } }), &json!({}));
        let why = "its name may have 45 of a-z, 0-9 and '-' at most: a volume of the machine is named by it";
        assert_eq!(fails(&scene.plan()), why);
    }
    let mut scene = Scene::new(&json!({"metadata": {"deletionTimestamp": NOW}}), &json!({}));
    scene.vmi = None;
    assert_eq!(fails(&scene.plan()), "the backup was deleted before it began");
}

#[test]
fn volumes_are_told_as_soon_as_they_are_known() {
    let quiet = Scene::new(&runs(), &held(&json!({}), mounted()));
    let plan = quiet.plan();
    assert_eq!((&plan.status, &plan.action), (&quiet.backup.status, &None));
    let told = json!({"checkpointName": "b-1", "volumes": [{"volumeName": "root", "diskTarget": "vda"}]});
    let plan = Scene::new(&runs(), &held(&told, mounted())).plan();
    assert_eq!(plan.status.included_volumes[0].volume_name, "root");
    assert_eq!(plan.status.checkpoint_name, None, "it is not made yet");
}

#[test]
fn the_tracker_gets_the_checkpoint_before_the_claim_leaves() {
    let mut of = runs();
    json_patch::merge(&mut of, &of_tracker());
    let mut scene = Scene::new(&of, &held(&complete(), mounted()));
    scene.tracker = Some(tracker(&with_checkpoint()));
    let Some(Action::Remember(made)) = scene.plan().action else { panic!("{:?}", scene.plan()) };
    let wanted = json!({"name": "b-1", "creationTime": MADE, "volumes": [{"volumeName": "root", "diskTarget": "vda"}]});
    assert_eq!(json!(made), wanted);
    scene.tracker = Some(tracker(&json!({"status": {"latestCheckpoint": wanted}})));
    assert_eq!(scene.plan().action, Some(Action::Detach));
    // Neither a failed backup, nor one of the machine itself, has a checkpoint to remember.
    let mut failed = complete();
    failed["failed"] = json!(true);
    scene.vmi = Some(vmi(&held(&failed, mounted())));
    scene.tracker = Some(tracker(&json!({})));
    assert_eq!(scene.plan().action, Some(Action::Detach));
    assert_eq!(Scene::new(&runs(), &held(&complete(), mounted())).plan().action, Some(Action::Detach));
}

#[test]
fn its_outcome_is_what_the_machine_tells() {
    let known = json!({"status": {"latestCheckpoint": {"name": "b-1"}}});
    for (more, warns, event, reason, checkpoint) in [
        (
            json!({}),
            false,
            "VirtualMachineBackupCompletedSuccessfully",
            "Successfully completed VirtualMachineBackup",
            Some("b-1"),
        ),
        (
            json!({"backupMsg": "not frozen"}),
            true,
            "VirtualMachineBackupCompletedWithWarning",
            "Completed VirtualMachineBackup, warning: not frozen",
            Some("b-1"),
        ),
        (
            json!({"failed": true, "backupMsg": "No space left on device"}),
            true,
            "VirtualMachineBackupFailed",
            "Backup has failed: No space left on device",
            None,
        ),
        (
            json!({"failed": true}),
            true,
            "VirtualMachineBackupFailed",
            "Backup has failed: the machine has not told why",
            None,
        ),
    ] {
        let mut told = complete();
        json_patch::merge(&mut told, &more);
        let mut instance = held(&told, None);
        instance["spec"] = json!({});
        let mut of = runs();
        json_patch::merge(&mut of, &of_tracker());
        let mut scene = Scene::new(&of, &instance);
        scene.tracker = Some(tracker(&known));
        let ended = scene.plan();
        let note = ended.note.clone().unwrap();
        assert_eq!((note.warns, note.reason, note.message.as_str()), (warns, event, reason));
        assert_eq!(ended.status.checkpoint_name.as_deref(), checkpoint);
        assert_eq!(ended.status.included_volumes.len(), 1);
        assert_eq!((phase(&ended.status), ended.action), (Phase::Ended, None));
        // The outcome stands while the instance is let go.
        scene.backup.status = ended.status;
        let done = scene.plan();
        assert_eq!((&done.action, &done.note), (&Some(Action::Release), &None));
        assert_eq!(conditions(&done), [format!("Progressing=False {reason}"), format!("Done=True {reason}")]);
        assert_eq!(done.status.checkpoint_name.as_deref(), checkpoint);
        scene.vmi = None;
        assert_eq!(scene.plan().action, None);
        scene.backup.status = done.status;
        let over = scene.plan();
        assert_eq!((&over.action, &over.status), (&None, &scene.backup.status));
    }
    // Without a tracker a checkpoint is of no use.
    let mut instance = held(&complete(), None);
    instance["spec"] = json!({});
    let plan = Scene::new(&runs(), &instance).plan();
    assert_eq!((phase(&plan.status), plan.status.checkpoint_name), (Phase::Ended, None));
}

#[test]
fn a_machine_that_goes_fails_its_backup() {
    let mut scene = Scene::new(&runs(), &held(&json!({}), mounted()));
    for (more, why) in [
        (json!({"status": {"phase": "Failed"}}), "the machine does not run any more"),
        (json!({"metadata": {"deletionTimestamp": NOW}}), "the machine does not run any more"),
        (
            json!({"spec": {"utilityVolumes": null}, "status": {"volumeStatus": [], "changedBlockTracking": {"backupStatus": null}}}),
            "what the machine told of it is lost",
        ),
    ] {
        let mut instance = held(&json!({}), mounted());
        json_patch::merge(&mut instance, &more);
        scene.vmi = Some(vmi(&instance));
        assert_eq!(fails(&scene.plan()), why);
    }
    scene.vmi = None;
    assert_eq!(fails(&scene.plan()), "the machine's instance was deleted meanwhile");
    // Of another backup, not its own: its claim leaves nonetheless.
    scene.vmi = Some(vmi(&held(&json!({"backupName": "other", "completed": true}), mounted())));
    assert_eq!(scene.plan().action, Some(Action::Detach));
}

#[test]
fn a_machine_that_leaves_its_node_goes_first() {
    let leaving = |of: &Value, instance: &Value| {
        let mut scene = Scene::new(of, instance);
        scene.evacuates = true;
        scene.plan()
    };
    // What has not begun is given back, and waits.
    let mut instance = held(&json!({}), mounted());
    let why = "the VirtualMachine vm leaves its node";
    let plan = leaving(&json!({}), &instance);
    assert_eq!((waits(&plan).as_str(), plan.action), (why, Some(Action::Detach)));
    instance["spec"]["utilityVolumes"] = Value::Null;
    let plan = leaving(&json!({}), &instance);
    assert_eq!((waits(&plan).as_str(), plan.action), (why, Some(Action::Release)));
    // Also where the backup waits for more than that.
    let plan = leaving(&of_tracker(), &held(&json!({}), mounted()));
    assert_eq!((waits(&plan).as_str(), plan.action), (why, Some(Action::Detach)), "its tracker is gone");
    // What runs is aborted, once.
    let begun = held(&json!({"volumes": [{"volumeName": "root", "diskTarget": "vda"}]}), mounted());
    let plan = leaving(&runs(), &begun);
    let Some(Action::Abort(options)) = &plan.action else { panic!("{plan:?}") };
    assert_eq!((options.cmd, options.backup_name.as_str()), (Command::Abort, "b"));
    let message = "the machine leaves its node: Backup is aborting";
    assert_eq!(plan.note.as_ref().unwrap().message, message);
    let mut of = runs();
    json_patch::merge(&mut of, &json!({"status": {"conditions": plan.status.conditions}}));
    assert_eq!(leaving(&of, &begun).action, None);
    // What is complete ends as ever.
    assert_eq!(leaving(&runs(), &held(&complete(), mounted())).action, Some(Action::Detach));
}

#[test]
fn what_a_backup_that_is_gone_has_left_is_ended_and_released() {
    let step = |told: &Value, has_target: bool| {
        let mut instance = held(told, mounted());
        if !has_target {
            instance["spec"] = json!({});
        }
        let vmi = vmi(&instance);
        orphan::step(&vmi, instance::told(&vmi).unwrap())
    };
    let begun = json!({"volumes": [{"volumeName": "root", "diskTarget": "vda"}]});
    let orphan::Step::Abort(options) = step(&begun, true) else { panic!() };
    let start = options.backup_start_time.map(|time| time.0.to_string());
    assert_eq!((options.cmd, options.backup_name, start), (Command::Abort, "b".into(), Some(MADE.into())));
    for told in [json!({}), complete()] {
        assert_eq!(step(&told, true), orphan::Step::Detach("b".into()));
        assert_eq!(step(&told, false), orphan::Step::Release);
    }
}

#[test]
fn a_deleted_backup_is_aborted_once_and_freed_when_it_is_done() {
    let mut of = runs();
    json_patch::merge(&mut of, &json!({"metadata": {"deletionTimestamp": NOW}}));
    let mut scene = Scene::new(&of, &held(&json!({}), mounted()));
    let plan = scene.plan();
    let Some(Action::Abort(options)) = &plan.action else { panic!("{plan:?}") };
    assert_eq!(
        (options.cmd, options.backup_name.as_str(), &options.target_path),
        (Command::Abort, "b", &None)
    );
    assert!(options.backup_start_time.is_some());
    let note = plan.note.clone().unwrap();
    assert_eq!((note.warns, note.reason), (true, "VirtualMachineBackupAborting"));
    let all = conditions(&plan);
    for one in [
        "Aborting=True Backup is aborting",
        "Progressing=True Backup is aborting",
        "Deleting=True Backup is being deleted",
    ] {
        assert!(all.contains(&one.to_owned()), "{all:?}");
    }
    scene.backup.status = plan.status;
    let again = scene.plan();
    assert_eq!((&again.action, &again.note, &again.status), (&None, &None, &scene.backup.status));
    let mut instance = held(&json!({"completed": true, "failed": true, "backupMsg": "cancelled"}), None);
    instance["spec"] = json!({});
    scene.vmi = Some(vmi(&instance));
    let ended = scene.plan();
    assert_eq!(fails(&ended), "cancelled");
    assert!(conditions(&ended).contains(&"Aborting=False Backup has failed: cancelled".to_owned()));
    scene.backup.status = ended.status;
    scene.backup.status = scene.plan().status;
    let free = scene.plan();
    assert_eq!((&free.action, &free.status), (&Some(Action::RemoveFinalizer), &scene.backup.status));
    scene.backup.metadata.finalizers = None;
    assert_eq!(scene.plan().action, None);
    scene.backup.metadata.deletion_timestamp = None;
    scene.backup.metadata.finalizers = Some(vec![FINALIZER.into()]);
    assert_eq!(scene.plan().action, None, "a backup that is done is kept");
}
