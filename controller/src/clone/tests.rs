use jiff::Timestamp;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineClone as Clone_, VirtualMachineClonePhase as Phase,
    VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content,
};
use serde_json::{Value, json};

use super::controller::{WAITS_FOR_CLAIMS, names};
use super::decide::{Action, Observed, Plan, decide};

fn clone(kind: &str, status: Value) -> Clone_ {
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
        "spec": {"source": {"apiGroup": "g", "kind": kind, "name": "from"},
            "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}},
        "status": status,
    }))
    .unwrap()
}

fn vm(statuses: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": "from", "namespace": "ns"},
        "spec": {"template": {"spec": {"domain": {"devices": {}}, "volumes": [
            {"name": "root", "containerDisk": {"image": "x"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]}}},
        "status": {"volumeSnapshotStatuses": statuses},
    }))
    .unwrap()
}

fn content(backups: Value) -> Content {
    serde_json::from_value(json!({"metadata": {"name": "k"}, "spec": {"virtualMachineSnapshotName": "s",
        "source": {"virtualMachine": {"metadata": {"name": "from"}, "spec": vm(json!([])).spec}}, "volumeBackups": backups}}))
    .unwrap()
}

fn snapshot(status: Value) -> Snapshot {
    serde_json::from_value(json!({"metadata": {"name": "s"},
        "spec": {"source": {"kind": "VirtualMachine", "name": "from"}}, "status": status}))
    .unwrap()
}

fn restore(status: Value) -> Restore {
    serde_json::from_value(json!({"metadata": {"name": "tmp-restore-u"}, "spec": {
        "target": {"kind": "VirtualMachine", "name": "copy"}, "virtualMachineSnapshotName": "s"}, "status": status}))
    .unwrap()
}

fn nothing(clone: &Clone_) -> Observed<'_> {
    Observed {
        clone,
        source: None,
        snapshot: None,
        content: None,
        restore: None,
        target: None,
        bound: false,
        now: Timestamp::UNIX_EPOCH,
    }
}

fn ready(plan: &Plan) -> &str {
    let one = plan.status.conditions.iter().find(|one| one.r#type.as_str() == "Ready").unwrap();
    one.reason.as_deref().unwrap()
}

#[test]
fn a_machine_is_cloned_by_a_snapshot_that_can_be_taken() {
    let new = clone("VirtualMachine", json!({}));
    let pends = decide(&nothing(&new));
    assert_eq!(
        (ready(&pends), pends.status.phase.clone()),
        ("Source doesnt exist: VirtualMachine ns/from", None)
    );
    assert_eq!(pends.notes[0].0, "SourceDoesNotExist");
    for (statuses, why) in [
        (json!([]), "Virtual Machine volume data snapshot support unknown"),
        (
            json!([{"name": "data", "enabled": false}]),
            "Virtual Machine volume data does not support snapshots",
        ),
    ] {
        let source = vm(statuses);
        let pends = decide(&Observed { source: Some(&source), ..nothing(&new) });
        assert_eq!((ready(&pends), &pends.action), (why, &None));
    }
    let source = vm(json!([{"name": "data", "enabled": true}]));
    let plan = decide(&Observed { source: Some(&source), ..nothing(&new) });
    let Some(Action::Take(made)) = &plan.action else { panic!("{plan:?}") };
    assert_eq!(made.metadata.name.as_deref(), Some("tmp-snapshot-u"));
    assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].kind, "VirtualMachineClone");
    assert_eq!(plan.status.snapshot_name.as_deref(), Some("tmp-snapshot-u"));
    assert_eq!(plan.status.phase, Some(Phase::SnapshotInProgress));
}

#[test]
fn a_ready_snapshot_is_restored_to_the_new_machine() {
    let of = clone("VirtualMachineSnapshot", json!({}));
    let (waits, done) = (snapshot(json!({"readyToUse": false})), snapshot(json!({"readyToUse": true})));
    let whole = content(json!([{"volumeName": "data", "persistentVolumeClaim": {}}]));
    let plan = decide(&Observed { snapshot: Some(&waits), ..nothing(&of) });
    assert_eq!((plan.action, plan.status.phase), (None, Some(Phase::SnapshotInProgress)));
    let plan = decide(&Observed { snapshot: Some(&done), content: Some(&whole), ..nothing(&of) });
    let Some(Action::Restore(made)) = &plan.action else { panic!("{plan:?}") };
    assert_eq!(made.spec.target.name, "copy");
    assert_eq!(made.spec.virtual_machine_snapshot_name, "s");
    assert_eq!(plan.status.restore_name.as_deref(), Some("tmp-restore-u"));
    assert_eq!(plan.status.phase, Some(Phase::RestoreInProgress));
    let part = content(json!([]));
    let fails = decide(&Observed { snapshot: Some(&done), content: Some(&part), ..nothing(&of) });
    assert_eq!(fails.status.phase, Some(Phase::Failed));
    assert_eq!(ready(&fails), "volume data is not backed up in snapshot s");
    let failed = snapshot(json!({"phase": "Failed"}));
    let fails = decide(&Observed { snapshot: Some(&failed), ..nothing(&of) });
    assert_eq!(fails.status.phase, Some(Phase::Failed));
}

#[test]
fn it_succeeds_with_the_machine_and_cleans_up_with_the_claims() {
    let status = json!({"phase": "RestoreInProgress", "snapshotName": "s", "restoreName": "tmp-restore-u"});
    let of = clone("VirtualMachine", status);
    let waits = restore(
        json!({"complete": false, "conditions": [{"type": "Ready", "status": "False", "reason": "no room"}]}),
    );
    let plan = decide(&Observed { restore: Some(&waits), ..nothing(&of) });
    assert_eq!((&plan.action, ready(&plan)), (&None, "Still processing"));
    let told = plan.status.conditions.iter().find(|one| one.r#type.as_str() == "Ready").unwrap();
    assert_eq!(told.message.as_deref(), Some("no room"), "what holds it up is told");
    let done = restore(json!({"complete": true}));
    let target = vm(json!([]));
    let plan = decide(&Observed { restore: Some(&done), target: Some(&target), ..nothing(&of) });
    assert_eq!((ready(&plan), plan.status.target_name.as_deref()), ("Ready", Some("copy")));
    assert_eq!((plan.action, plan.status.phase), (None, Some(Phase::Succeeded)));
    let status = json!({"phase": "Succeeded", "snapshotName": "s", "restoreName": "tmp-restore-u", "targetName": "copy"});
    for (kind, snapshot) in [("VirtualMachine", Some("s".to_owned())), ("VirtualMachineSnapshot", None)] {
        let of = clone(kind, status.clone());
        let plan =
            decide(&Observed { restore: Some(&done), target: Some(&target), bound: true, ..nothing(&of) });
        assert_eq!(plan.action, Some(Action::CleanUp { restore: "tmp-restore-u".into(), snapshot }));
        assert_eq!((plan.status.snapshot_name, plan.status.restore_name), (None, None));
        assert_eq!(decide(&nothing(&of)).action, Some(Action::DeleteSelf), "it goes with its machine");
    }
}

#[test]
fn what_is_gone_ends_it() {
    let of = clone("VirtualMachine", json!({"phase": "RestoreInProgress", "snapshotName": "s"}));
    let plan = decide(&nothing(&of));
    assert_eq!(
        (ready(&plan), plan.status.phase.clone()),
        ("snapshot s does not exist anymore", Some(Phase::Failed))
    );
    let failed = clone("VirtualMachine", json!({"phase": "Failed"}));
    assert_eq!(decide(&nothing(&failed)).status, failed.status);
    let status = json!({"phase": "RestoreInProgress", "snapshotName": "s", "restoreName": "tmp-restore-u"});
    let lost = restore(json!({"conditions": [{"type": "Failure", "status": "True"}]}));
    let of = clone("VirtualMachine", status);
    let plan = decide(&Observed { restore: Some(&lost), ..nothing(&of) });
    assert_eq!(plan.status.phase, Some(Phase::Failed));
}

#[test]
fn a_source_that_keeps_the_state_of_firmware_or_tpm_is_not_cloned() {
    let keep = |vm: &mut VirtualMachine| {
        let spec = vm.spec.template.as_mut().and_then(|template| template.spec.as_mut()).unwrap();
        spec.domain.devices.tpm = Some(serde_json::from_value(json!({"persistent": true})).unwrap());
    };
    let mut source = vm(json!([{"name": "data", "enabled": true}]));
    keep(&mut source);
    let new = clone("VirtualMachine", json!({}));
    let plan = decide(&Observed { source: Some(&source), ..nothing(&new) });
    assert_eq!((plan.action, plan.status.phase.clone()), (None, Some(Phase::Failed)));
    let why = "Clone of source with backendstorage is not supported: VM ns/from";
    assert_eq!(plan.notes, [("SourceVMWithBackendStorageInvalid", why.to_owned())]);
    let of = clone("VirtualMachineSnapshot", json!({}));
    let done = snapshot(json!({"readyToUse": true}));
    let mut whole = content(json!([{"volumeName": "data", "persistentVolumeClaim": {}}]));
    whole.spec.source.virtual_machine.as_mut().unwrap().spec = Some(source.spec);
    let plan = decide(&Observed { snapshot: Some(&done), content: Some(&whole), ..nothing(&of) });
    assert_eq!(plan.status.phase.clone(), Some(Phase::Failed));
    assert_eq!(ready(&plan), "Clone of source with backendstorage is not supported: snapshot ns/s");
}

#[test]
fn clones_are_found_by_what_they_are_of_and_what_they_make() {
    let open = clone("VirtualMachine", json!({}));
    assert_eq!(names(&open), ["copy", "tmp-snapshot-u", "tmp-restore-u", "from"]);
    let waiting = clone("VirtualMachine", json!({"phase": "Succeeded", "restoreName": "tmp-restore-u"}));
    assert_eq!(names(&waiting)[4..], [WAITS_FOR_CLAIMS]);
    assert_eq!(names(&clone("VirtualMachine", json!({"phase": "Succeeded"}))).len(), 4);
}
