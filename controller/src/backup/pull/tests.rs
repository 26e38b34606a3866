use std::time::Duration;

use podvirt_api::backup::Command;
use podvirt_api::v1::{BackupMode, VirtualMachineExport as Export};
use serde_json::{Value, json};

use crate::backup::decide::refused;
use crate::backup::fixtures::{
    begun, complete, export, held, link, mounted, of_tracker, pulls, tracker, vmi, with_checkpoint,
};
use crate::backup::plan::{Action, Plan};
use crate::backup::status::{Phase, phase};
use crate::backup::tests::{NOW, Scene, conditions, fails};

const PREPARING: &str = "Backup export is being initialized";

fn scene(initiated: Option<&str>, ready: Option<&str>, export: Option<Export>) -> Scene {
    Scene { export, ..Scene::new(&pulls(initiated, ready), &held(&begun(), mounted())) }
}

/// What ExportInitiated and ExportReady say; the reason is that of Progressing, too.
fn export_is(plan: &Plan) -> (String, String, String) {
    let told = |kind: &str| {
        let one = plan.status.conditions.iter().find(|one| one.r#type.as_str() == kind);
        one.map(|one| (one.status.clone(), one.reason.clone().unwrap_or_default())).unwrap_or_default()
    };
    let (initiated, ready) = (told("ExportInitiated"), told("ExportReady"));
    assert_eq!(initiated.1, ready.1);
    assert_eq!(told("Progressing"), ("True".to_owned(), initiated.1.clone()));
    assert_eq!(phase(&plan.status), Phase::Running);
    (initiated.0, ready.0, ready.1)
}

fn says(initiated: &str, ready: &str, reason: &str) -> (String, String, String) {
    (initiated.to_owned(), ready.to_owned(), reason.to_owned())
}

/// Event: whether it warns, and its reason.
fn note(plan: &Plan) -> Option<(bool, &str)> {
    plan.note.as_ref().map(|note| (note.warns, note.reason))
}

fn links(external: Option<Value>) -> Value {
    json!({"internal": link("https://in", "INNER"), "external": external})
}

#[test]
fn it_begins_in_its_mode() {
    let mut of = pulls(None, None);
    of["status"] = json!({});
    let plan = Scene::new(&of, &held(&json!({}), mounted())).plan();
    let Some(Action::Start(options)) = &plan.action else { panic!("{plan:?}") };
    assert_eq!(options.mode, Some(BackupMode::Pull));
    assert!(options.target_path.is_some(), "what the guest overwrites goes there");
    assert_eq!(plan.again_after, Some(Duration::from_secs(50 * 60)), "its life ends");
}

#[test]
fn that_there_is_no_export_is_stored_before_it_is_made() {
    for (initiated, ready) in [(None, None), (Some("True"), Some("False")), (Some("True"), Some("True"))] {
        let mut scene = scene(initiated, ready, None);
        let first = scene.plan();
        assert_eq!((&first.action, export_is(&first)), (&None, says("False", "False", PREPARING)));
        assert_eq!(note(&first), Some((false, "VirtualMachineBackupPreparingExport")));
        scene.backup.status = first.status;
        let second = scene.plan();
        assert_eq!((&second.note, &second.status), (&None, &scene.backup.status));
        let Some(Action::MakeExport(wanted)) = second.action else { panic!("{second:?}") };
        let wanted = json!(wanted);
        let owner = json!({"apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackup", "name": "b",
            "uid": "u", "controller": true});
        assert_eq!(wanted["metadata"], json!({"name": "b", "namespace": "ns", "ownerReferences": [owner]}));
        let source = json!({"apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackup", "name": "b"});
        let spec = json!({"source": source, "tokenSecretRef": "token", "ttlDuration": "3000s"});
        assert_eq!(wanted["spec"], spec);
    }
}

#[test]
fn an_export_made_within_a_second_ends_with_its_backup() {
    let mut scene = scene(Some("False"), None, None);
    scene.now = "2026-01-01T00:59:50.25Z".parse().unwrap();
    let Some(Action::MakeExport(wanted)) = scene.plan().action else { panic!("{:?}", scene.plan()) };
    assert_eq!(wanted.spec.ttl_duration.as_deref(), Some("10s"), "made at 00:59:50, by the API's clock");
    assert_eq!(scene.plan().again_after, Some(Duration::from_millis(9750)));
}

#[test]
fn the_machine_is_told_of_its_own_export_once_it_has_begun() {
    for initiated in [None, Some("False")] {
        let mut scene = scene(initiated, None, Some(export("Pending", &json!({}))));
        let plan = scene.plan();
        let Some(Action::Export(options)) = &plan.action else { panic!("{plan:?}") };
        let wanted = json!({"backupName": "b", "cmd": "Export", "mode": "Pull", "backupStartTime": "2026-01-01T00:00:00Z",
            "exportServerAddr": "virt-export-b.ns.svc", "exportServerName": "virt-export-b.ns.svc"});
        assert_eq!(json!(options), wanted);
        let told = "Backup export has been initiated, waiting for export links";
        assert_eq!(export_is(&plan), says("True", "False", told));
        assert_eq!(note(&plan), Some((false, "VirtualMachineBackupExportInitiated")));
        scene.vmi = Some(vmi(&held(&json!({}), mounted())));
        let early = scene.plan();
        assert_eq!((&early.action, &early.status), (&None, &scene.backup.status), "nothing is offered yet");
    }
}

#[test]
fn endpoints_are_told_once_the_export_is_ready() {
    let mut first = scene(Some("True"), Some("False"), None);
    for (phase, links) in [("Pending", json!({})), ("Pending", links(None)), ("Ready", json!({}))] {
        first.export = Some(export(phase, &links));
        let plan = first.plan();
        assert_eq!((plan.action, plan.note, export_is_ready(&plan.status)), (None, None, false));
    }
    let outside = |cert: &str| links(Some(link("https://out", cert)));
    let empty = links(Some(json!({"cert": "OUTER", "volumes": []})));
    for (links, base, cert) in [
        (links(None), "https://in", "INNER"),
        (outside("OUTER"), "https://out", "OUTER"),
        (outside(""), "https://in", "INNER"),
        (empty, "https://in", "INNER"),
    ] {
        first.export = Some(export("Ready", &links));
        let plan = first.plan();
        assert_eq!(plan.action, None);
        assert_eq!(export_is(&plan), says("True", "True", "Backup export is ready to pull"));
        assert_eq!(note(&plan), Some((false, "VirtualMachineBackupExportReady")));
        assert_eq!(plan.status.endpoint_cert.as_deref(), Some(cert));
        let volume = |name: &str, target: &str| {
            json!({"volumeName": name, "diskTarget": target,
                "dataEndpoint": format!("{base}/{name}/data"), "mapEndpoint": format!("{base}/{name}/map")})
        };
        assert_eq!(
            json!(plan.status.included_volumes),
            json!([volume("data", "vdb"), volume("root", "vda")])
        );
    }
}

fn export_is_ready(status: &podvirt_api::v1::VirtualMachineBackupStatus) -> bool {
    let mut all = status.conditions.iter();
    all.any(|one| one.r#type.as_str() == "ExportReady" && one.status == "True")
}

#[test]
fn endpoints_stay_as_the_machine_tells_on_and_change_with_the_links() {
    let mut scene = scene(Some("True"), Some("False"), Some(export("Ready", &links(None))));
    scene.backup.status = scene.plan().status;
    let known = scene.backup.status.included_volumes.clone();
    for export in [
        export("Ready", &links(None)),
        export("Pending", &json!({})),
        export("Ready", &json!({"internal": null})),
    ] {
        scene.export = Some(export);
        let plan = scene.plan();
        assert_eq!((&plan.action, &plan.note, &plan.status), (&None, &None, &scene.backup.status));
    }
    scene.export = Some(export("Ready", &json!({"internal": link("https://in", "NEWER")})));
    let plan = scene.plan();
    assert_eq!((&plan.note, plan.status.endpoint_cert.as_deref()), (&None, Some("NEWER")));
    assert_eq!(plan.status.included_volumes, known);
}

#[test]
fn a_machine_that_does_not_reach_the_exporter_says_so_until_it_does() {
    let mut scene = scene(Some("True"), Some("False"), Some(export("Ready", &links(None))));
    scene.backup.status = scene.plan().status;
    let why = "the exporter is not reached: connect: no route";
    let mut cut = begun();
    cut["backupMsg"] = why.into();
    scene.vmi = Some(vmi(&held(&cut, mounted())));
    let plan = scene.plan();
    assert_eq!((&plan.action, export_is(&plan)), (&None, says("True", "False", why)));
    assert_eq!(note(&plan), Some((true, "VirtualMachineBackupExportUnreached")));
    scene.backup.status = plan.status;
    let again = scene.plan();
    assert_eq!((&again.action, &again.note, &again.status), (&None, &None, &scene.backup.status));
    scene.vmi = Some(vmi(&held(&begun(), mounted())));
    let reached = scene.plan();
    assert_eq!(export_is(&reached), says("True", "True", "Backup export is ready to pull"));
    assert_eq!(note(&reached), Some((false, "VirtualMachineBackupExportReady")));
}

#[test]
fn an_export_that_is_not_usable_is_waited_for() {
    let mut foreign = export("Ready", &links(None));
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "other".into();
    let mut free = foreign.clone();
    free.metadata.owner_references = None;
    let mut mere = export("Ready", &links(None));
    mere.metadata.owner_references.as_mut().unwrap()[0].controller = None;
    let taken = "VMExport b already exists but is not owned by backup b";
    let mut going = export("Ready", &links(None));
    going.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
    for (export, warns, why) in
        [(foreign, true, taken), (free, true, taken), (mere, true, taken), (going, false, PREPARING)]
    {
        let mut scene = scene(Some("True"), Some("True"), Some(export));
        let plan = scene.plan();
        assert_eq!((&plan.action, export_is(&plan)), (&None, says("False", "False", why)));
        assert_eq!(note(&plan), Some((warns, "VirtualMachineBackupPreparingExport")));
        scene.backup.status = plan.status;
        let again = scene.plan();
        assert_eq!((&again.action, &again.note, &again.status), (&None, &None, &scene.backup.status));
    }
}

#[test]
fn what_is_refused_is_told() {
    let none = scene(Some("False"), Some("False"), None);
    let there = scene(Some("False"), Some("False"), Some(export("Pending", &json!({}))));
    for (scene, why) in [(none, "quota"), (there, "the machine does not offer its disks: quota")] {
        let action = scene.plan().action.unwrap();
        let plan = refused(&scene.seen(), &action, "quota").unwrap();
        assert_eq!((&plan.action, &plan.note), (&None, &None));
        assert_eq!(export_is(&plan), says("False", "False", why));
        assert!(plan.again_after.is_some());
    }
}

#[test]
fn its_life_and_a_deletion_end_it_in_order() {
    let deleted = json!({"metadata": {"deletionTimestamp": NOW}});
    let over = json!({"spec": {"ttlDuration": "10m"}});
    for (more, reason) in
        [(deleted, "Backup is aborting"), (over, "pull mode backup TTL has expired: Backup is aborting")]
    {
        let mut of = pulls(Some("True"), Some("True"));
        json_patch::merge(&mut of, &more);
        json_patch::merge(&mut of, &of_tracker());
        let mut scene = Scene {
            export: Some(export("Ready", &links(None))),
            ..Scene::new(&of, &held(&begun(), mounted()))
        };
        scene.tracker = Some(tracker(&with_checkpoint()));
        let plan = scene.plan();
        let Some(Action::Abort(options)) = &plan.action else { panic!("{plan:?}") };
        assert_eq!((options.cmd, options.backup_name.as_str()), (Command::Abort, "b"));
        assert_eq!((note(&plan), plan.again_after), (Some((false, "VirtualMachineBackupAborting")), None));
        let all = conditions(&plan);
        for kind in ["Aborting", "Progressing"] {
            assert!(all.contains(&format!("{kind}=True {reason}")), "{all:?}");
        }
        // Neither is it asked again, nor is the export made anew meanwhile.
        scene.backup.status = plan.status;
        for there in [Some(export("Ready", &links(None))), None] {
            scene.export = there;
            let again = scene.plan();
            assert_eq!((&again.action, &again.note, &again.status), (&None, &None, &scene.backup.status));
        }
        scene.export = Some(export("Ready", &links(None)));
        scene.vmi = Some(vmi(&held(&complete(), mounted())));
        assert!(matches!(scene.plan().action, Some(Action::Remember(_))), "the checkpoint is valid");
        scene.tracker = Some(tracker(&json!({"status": {"latestCheckpoint": {"name": "b-1"}}})));
        assert_eq!(scene.plan().action, Some(Action::DeleteExport));
        scene.export = None;
        assert_eq!(scene.plan().action, Some(Action::Detach));
        let mut instance = held(&complete(), None);
        instance["spec"] = json!({});
        scene.vmi = Some(vmi(&instance));
        let ended = scene.plan();
        assert_eq!(note(&ended), Some((false, "VirtualMachineBackupCompletedSuccessfully")));
        assert_eq!(
            (phase(&ended.status), ended.status.checkpoint_name.as_deref()),
            (Phase::Ended, Some("b-1"))
        );
        let volumes = &ended.status.included_volumes;
        assert!(
            !volumes.is_empty() && volumes.iter().all(|one| one.data_endpoint.is_none()),
            "it cannot be read"
        );
    }
}

#[test]
fn a_life_that_is_over_before_the_begin_fails_it() {
    let mut of = pulls(None, None);
    of["status"] = json!({});
    of["spec"]["ttlDuration"] = json!("10m");
    let mut scene = Scene::new(&of, &json!({}));
    assert_eq!(fails(&scene.plan()), "pull mode backup TTL has expired before it began");
    scene.vmi = Some(vmi(&held(&json!({}), mounted())));
    assert_eq!(scene.plan().action, Some(Action::Detach));
    scene.vmi = Some(vmi(&held(&begun(), mounted())));
    let plan = scene.plan();
    assert_eq!((phase(&plan.status), &plan.action), (Phase::Running, &None), "the machine has begun it");
    let push = Scene::new(&json!({"spec": {"ttlDuration": "10m"}}), &json!({}));
    assert_eq!((push.plan().action, push.plan().again_after), (Some(Action::Attach), None));
}

#[test]
fn the_export_goes_however_the_backup_ends() {
    let own = || Some(export("Ready", &links(None)));
    let mut scene = scene(Some("True"), Some("True"), own());
    type Change = fn(&mut Scene);
    let lost = |scene: &mut Scene| {
        let mut instance = held(&json!({}), None);
        instance["spec"] = json!({});
        instance["status"]["changedBlockTracking"]["backupStatus"] = Value::Null;
        scene.vmi = Some(vmi(&instance));
    };
    let table: [(Change, &str); 3] = [
        (|scene| scene.vmi = None, "the machine's instance was deleted meanwhile"),
        (
            |scene| scene.vmi = Some(vmi(&json!({"status": {"phase": "Failed"}}))),
            "the machine does not run any more",
        ),
        (lost, "what the machine told of it is lost"),
    ];
    for (change, why) in table {
        scene.export = own();
        change(&mut scene);
        let plan = scene.plan();
        assert_eq!((&plan.action, phase(&plan.status)), (&Some(Action::DeleteExport), Phase::Running));
        scene.export.as_mut().unwrap().metadata.deletion_timestamp =
            serde_json::from_value(json!(NOW)).unwrap();
        assert_eq!(fails(&scene.plan()), why, "an export that goes is not waited for");
        scene.export.as_mut().unwrap().metadata.owner_references = None;
        assert_eq!(fails(&scene.plan()), why);
    }
    // It is seen only now, and goes before the backup does.
    let mut of = pulls(Some("False"), Some("False"));
    of["status"] = json!({"conditions": [{"type": "Done", "status": "True"}]});
    json_patch::merge(&mut of, &json!({"metadata": {"deletionTimestamp": NOW}}));
    let mut scene = Scene { export: own(), ..Scene::new(&of, &json!({})) };
    assert_eq!(scene.plan().action, Some(Action::DeleteExport));
    scene.export = None;
    assert_eq!(scene.plan().action, Some(Action::RemoveFinalizer));
    // A backup in push mode has no export, though one has its name.
    of["spec"]["mode"] = json!("Push");
    let scene = Scene { export: own(), ..Scene::new(&of, &json!({})) };
    assert_eq!(scene.plan().action, Some(Action::RemoveFinalizer));
}
