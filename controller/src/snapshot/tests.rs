use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::names::annotation;
use podvirt_api::snapshot::{CONTENT_FINALIZER, FINALIZER, SOURCE_FINALIZER};
use podvirt_api::v1::{
    SnapshotConditionType as Condition, VirtualMachine, VirtualMachineInstance,
    VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
    VirtualMachineSnapshotPhase as Phase,
};
use serde_json::{Value, json};

use super::content::{self, Taken, volume_snapshot};
use super::decide::{Action, Observed, Plan, decide, wants_source};
use super::source::{Source, users, volumes};

const MADE: &str = "2026-01-01T00:00:00Z";

fn at(seconds: i64) -> Timestamp {
    MADE.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds)
}

fn merged<T: serde::de::DeserializeOwned>(mut object: Value, more: &Value) -> T {
    json_patch::merge(&mut object, more);
    serde_json::from_value(object).unwrap()
}

pub(super) fn snapshot(more: Value) -> Snapshot {
    let object = json!({
        "metadata": {"name": "s", "namespace": "ns", "uid": "u", "creationTimestamp": MADE, "finalizers": [FINALIZER]},
        "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}},
        "status": {"phase": "InProgress", "readyToUse": false},
    });
    merged(object, &more)
}

pub(super) fn vm(held: bool) -> VirtualMachine {
    let held = if held {
        json!({"metadata": {"finalizers": [SOURCE_FINALIZER]}, "status": {"snapshotInProgress": "s"}})
    } else {
        json!({})
    };
    let object = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v1"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}, "volumes": [
            {"name": "root", "containerDisk": {"image": "x"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
        ]}}},
    });
    merged(object, &held)
}

pub(super) fn vmi(conditions: &[&str]) -> VirtualMachineInstance {
    let conditions: Vec<Value> =
        conditions.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
    let object = json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}}, "status": {"conditions": conditions}});
    serde_json::from_value(object).unwrap()
}

pub(super) fn content(more: Value) -> Content {
    let object = json!({
        "metadata": {"name": "vmsnapshot-content-u", "namespace": "ns", "uid": "c", "finalizers": [CONTENT_FINALIZER]},
        "spec": {
            "virtualMachineSnapshotName": "s",
            "source": {"virtualMachine": {"metadata": {"name": "vm", "namespace": "ns"},
                "spec": serde_json::to_value(vm(false).spec).unwrap()}},
            "volumeBackups": [{"volumeName": "data", "volumeSnapshotName": "vs",
                "persistentVolumeClaim": {"metadata": {"name": "claim"}, "spec": {"storageClassName": "fast"}}}],
        },
    });
    merged(object, &more)
}

fn seen(snapshot: &Snapshot, source: Option<Source<'_>>, content: Option<&Content>, seconds: i64) -> Plan {
    decide(&Observed { snapshot, source, obstacle: None, content, error: None, now: at(seconds) })
}

fn reason(plan: &Plan, kind: &str) -> String {
    let found = plan.status.conditions.iter().find(|one| one.r#type.as_str() == kind);
    found
        .map(|one| format!("{}: {}", one.status, one.reason.as_deref().unwrap_or_default()))
        .unwrap_or_default()
}

#[test]
fn a_snapshot_holds_its_source_before_it_takes_anything() {
    let new = snapshot(json!({"metadata": {"finalizers": null}, "status": null}));
    let free = vm(false);
    let source = Source { vm: &free, vmi: None };
    let begun = seen(&new, Some(source), None, 1);
    assert_eq!(begun.actions, [Action::AddFinalizer], "it says first that it has begun");
    assert_eq!(begun.status.phase, Some(Phase::InProgress));
    assert_eq!(reason(&begun, "Progressing"), "False: Source not locked");

    let goes = snapshot(json!({}));
    assert!(wants_source(&goes, source, at(1)));
    assert_eq!(seen(&goes, Some(source), None, 1).actions, [Action::Lock]);
    let blocked = decide(&Observed {
        snapshot: &goes,
        source: Some(source),
        obstacle: Some("source ns/vm volume not bound: claim"),
        content: None,
        error: None,
        now: at(1),
    });
    assert_eq!((blocked.actions.len(), blocked.again_after.unwrap().as_secs()), (0, 5));
    assert_eq!(
        reason(&blocked, "Progressing"),
        "False: Source not locked source ns/vm volume not bound: claim"
    );

    let held = vm(true);
    let source = Source { vm: &held, vmi: None };
    let plan = seen(&goes, Some(source), None, 1);
    assert_eq!(plan.actions, [Action::MakeContent]);
    assert_eq!(reason(&plan, "Progressing"), "True: Source locked and operation in progress");
    assert_eq!(plan.again_after.unwrap().as_secs(), 299, "the deadline");
    assert_eq!(
        seen(&goes, None, None, 1).status.conditions[0].reason.as_deref(),
        Some("Source does not exist")
    );
}

#[test]
fn a_snapshot_that_is_taken_lets_go() {
    let held = vm(true);
    let source = Source { vm: &held, vmi: None };
    let created = content(json!({"status": {"creationTime": MADE, "readyToUse": false}}));
    let taken = seen(&snapshot(json!({})), Some(source), Some(&created), 2);
    assert_eq!(taken.status.phase, Some(Phase::Succeeded));
    assert_eq!(taken.actions, [Action::Unlock], "before it is written that the snapshot is taken");
    assert_eq!(reason(&taken, "Ready"), "False: Not ready");
    let lists = taken.status.snapshot_volumes.clone().unwrap();
    assert_eq!(
        (lists.included_volumes, lists.excluded_volumes),
        (vec!["data".to_owned()], vec!["root".to_owned()])
    );
    let done = snapshot(json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(
        seen(&done, Some(source), Some(&created), 400).actions,
        [Action::Unlock],
        "no deadline any more"
    );
    let ready = content(json!({"status": {"creationTime": MADE, "readyToUse": true}}));
    assert_eq!(reason(&seen(&done, Some(source), Some(&ready), 3), "Ready"), "True: Ready");
}

#[test]
fn a_snapshot_that_is_late_fails_and_leaves_nothing() {
    let held = vm(true);
    let source = Source { vm: &held, vmi: None };
    let open = content(json!({"status": {"readyToUse": false}}));
    let late = seen(&snapshot(json!({})), Some(source), Some(&open), 301);
    assert_eq!(late.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&late, "Failure"), "True: snapshot deadline exceeded");
    assert_eq!(late.actions, [Action::DeleteContent]);
    let denied = json!({"metadata": {"annotations": {annotation::NOT_MADE: "denied"}}});
    let waits = seen(&snapshot(json!({})), Some(source), Some(&content(denied)), 3);
    let progress = waits.status.conditions.iter().find(|one| one.r#type == Condition::Progressing).unwrap();
    assert_eq!((progress.status.as_str(), progress.message.as_deref()), ("True", Some("denied")));
    let refused = content(json!({"status": {"readyToUse": false, "error": {"message": "denied"}}}));
    let late = seen(&snapshot(json!({})), Some(source), Some(&refused), 301);
    assert_eq!(reason(&late, "Progressing"), "False: Operation failed", "an error says no less");
    let failed = snapshot(json!({"status": {"phase": "Failed"}}));
    let goes = seen(&failed, Some(source), Some(&open), 302);
    assert_eq!(goes.actions, [Action::DeleteContent], "the guest is thawed while its source is held");
    assert_eq!(seen(&failed, Some(source), None, 303).actions, [Action::Unlock]);
    let endless = snapshot(json!({"spec": {"failureDeadline": "0s"}}));
    assert_eq!(seen(&endless, Some(source), Some(&open), 9999).status.phase, Some(Phase::InProgress));
    let short = snapshot(json!({"spec": {"failureDeadline": "1m"}}));
    assert_eq!(seen(&short, Some(source), Some(&open), 61).status.phase, Some(Phase::Failed));
}

#[test]
fn a_deleted_snapshot_goes_when_its_source_is_free() {
    let deleted = |more: Value| {
        let mut object = json!({"metadata": {"deletionTimestamp": MADE}});
        json_patch::merge(&mut object, &more);
        snapshot(object)
    };
    let (held, free) = (vm(true), vm(false));
    let (held, free) = (Source { vm: &held, vmi: None }, Source { vm: &free, vmi: None });
    let open = content(json!({}));
    let ready = content(json!({"status": {"creationTime": MADE, "readyToUse": true}}));
    let goes = seen(&deleted(json!({})), Some(held), Some(&open), 1);
    assert_eq!((goes.actions, goes.status.phase), (vec![Action::DeleteContent], Some(Phase::Deleting)));
    assert_eq!(
        seen(&deleted(json!({})), Some(held), None, 1).actions,
        [Action::Unlock, Action::RemoveFinalizer],
        "once the content is gone"
    );
    let done = deleted(json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(
        seen(&done, Some(free), Some(&ready), 1).actions,
        [Action::DeleteContent, Action::RemoveFinalizer]
    );
    let kept = deleted(json!({"spec": {"deletionPolicy": "Retain"}, "status": {"phase": "Succeeded"}}));
    assert_eq!(seen(&kept, Some(free), Some(&ready), 1).actions, [Action::RemoveFinalizer]);
    assert_eq!(
        seen(&kept, Some(free), Some(&open), 1).actions,
        [Action::DeleteContent, Action::RemoveFinalizer],
        "what is not ready is of no use"
    );
    assert_eq!(seen(&done, None, None, 1).actions, [Action::RemoveFinalizer], "without a source");
}

#[test]
fn an_instance_that_has_ended_is_off() {
    let (held, mut ended) = (vm(true), vmi(&["AgentConnected"]));
    for (phase, online) in [("Running", true), ("Succeeded", false), ("Failed", false)] {
        ended.status.phase = Some(phase.into());
        let source = Source { vm: &held, vmi: Some(&ended) };
        let told = seen(&snapshot(json!({})), Some(source), None, 1).status.indications;
        assert_eq!((source.is_online(), !told.is_empty()), (online, online), "{phase}");
        let plan = looked(&content(json!({})), Some(&snapshot(json!({}))), Some(source), &Taken::new());
        assert_eq!((plan.take, plan.freeze), (vec![0], online), "{phase}: nobody is there to freeze");
    }
}

#[test]
fn what_the_guest_was_like_is_told() {
    let held = vm(true);
    let told = |conditions: &[&str], status: Value| -> Vec<String> {
        let vmi = vmi(conditions);
        let snapshot = snapshot(json!({ "status": status }));
        let plan = seen(&snapshot, Some(Source { vm: &held, vmi: Some(&vmi) }), None, 1);
        assert_eq!(plan.status.indications.len(), plan.status.source_indications.len());
        plan.status.indications.iter().map(|one| one.as_str().to_owned()).collect()
    };
    assert_eq!(told(&[], json!({})), ["NoGuestAgent", "Online"]);
    assert_eq!(told(&["AgentConnected"], json!({})), ["GuestAgent", "Online"]);
    assert_eq!(told(&["AgentConnected", "Paused"], json!({})), ["Online", "Paused"]);
    let limited = json!({"error": {"message": "fsfreeze is limited up to 10 seconds"}});
    assert_eq!(told(&["AgentConnected"], limited), ["GuestAgent", "Online", "QuiesceTimeout"]);
    let before = json!({"indications": ["NoGuestAgent", "Online"]});
    assert_eq!(told(&["AgentConnected"], before), ["GuestAgent", "NoGuestAgent", "Online"]);
}

fn taken(status: Value) -> Taken {
    let one: VolumeSnapshot =
        serde_json::from_value(json!({"metadata": {"name": "vs"}, "status": status})).unwrap();
    BTreeMap::from([("vs".to_owned(), Arc::new(one))])
}

fn looked(
    content: &Content,
    snapshot: Option<&Snapshot>,
    source: Option<Source<'_>>,
    taken: &Taken,
) -> content::Plan {
    content::decide(&content::Observed { content, snapshot, source, taken, now: at(1) })
}

#[test]
fn a_content_freezes_takes_and_thaws() {
    let (held, with_agent) = (vm(true), vmi(&["AgentConnected"]));
    let online = Some(Source { vm: &held, vmi: Some(&with_agent) });
    let offline = Some(Source { vm: &held, vmi: None });
    let (open, of) = (content(json!({})), snapshot(json!({})));
    let first = looked(&open, Some(&of), online, &Taken::new());
    assert_eq!((first.take, first.freeze, first.status), (vec![0], true, None));
    assert!(!looked(&open, Some(&of), offline, &Taken::new()).freeze);
    let paused = vmi(&["AgentConnected", "Paused"]);
    assert!(!looked(&open, Some(&of), Some(Source { vm: &held, vmi: Some(&paused) }), &Taken::new()).freeze);

    let waits = looked(&open, Some(&of), online, &taken(Value::Null));
    let status = waits.status.unwrap();
    assert_eq!((waits.thaw, status.creation_time, status.ready_to_use), (None, None, Some(false)));
    let made = looked(&open, Some(&of), online, &taken(json!({"creationTime": MADE, "readyToUse": false})));
    assert_eq!(made.thaw, Some(true), "it must be thawed before that is told");
    assert!(made.status.unwrap().creation_time.is_some());
    let created = content(json!({"status": {"creationTime": MADE}}));
    let ready =
        looked(&created, Some(&of), online, &taken(json!({"creationTime": MADE, "readyToUse": true})));
    assert_eq!((ready.thaw, ready.status.unwrap().ready_to_use), (None, Some(true)));
}

#[test]
fn what_is_wrong_with_a_content_is_told() {
    let (held, of) = (vm(true), snapshot(json!({})));
    let source = Some(Source { vm: &held, vmi: None });
    let message = |plan: content::Plan| plan.status.unwrap().error.unwrap().message.unwrap();
    let error =
        looked(&content(json!({})), Some(&of), source, &taken(json!({"error": {"message": "no room"}})));
    assert_eq!(message(error), "VolumeSnapshot vs error: no room");
    let created = content(json!({"status": {"creationTime": MADE, "readyToUse": true}}));
    let gone = looked(&created, Some(&of), source, &Taken::new());
    assert_eq!(gone.missing, ["vs"]);
    let status = gone.status.clone().unwrap();
    assert_eq!(status.ready_to_use, Some(false));
    assert_eq!(message(gone), "VolumeSnapshots (vs) missing");
}

#[test]
fn a_content_whose_snapshot_ends_thaws_and_lets_go() {
    let (held, with_agent) = (vm(true), vmi(&["AgentConnected"]));
    let source = Some(Source { vm: &held, vmi: Some(&with_agent) });
    let deleted = snapshot(json!({"metadata": {"deletionTimestamp": MADE}}));
    let plan = looked(&content(json!({})), Some(&deleted), source, &Taken::new());
    assert_eq!((plan.thaw, plan.lets_go, plan.take.len(), plan.status), (Some(false), true, 0, None));
    let retained = content(json!({"status": {"creationTime": MADE, "readyToUse": true}}));
    let plan = looked(&retained, None, None, &taken(json!({"creationTime": MADE, "readyToUse": true})));
    assert!(plan.lets_go && plan.thaw.is_none());
    assert_eq!(plan.status.unwrap().ready_to_use, Some(true));
}

#[test]
fn a_volume_snapshot_belongs_to_its_content() {
    let content = content(json!({}));
    let made =
        serde_json::to_value(volume_snapshot(&content, &content.spec.volume_backups[0], "class")).unwrap();
    assert_eq!(
        made,
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "vs", "namespace": "ns",
                "labels": {"snapshot.kubevirt.io/source-vm-name": "vm", "snapshot.kubevirt.io/source-vm-namespace": "ns"},
                "ownerReferences": [{"apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineSnapshotContent",
                    "name": "vmsnapshot-content-u", "uid": "c", "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"source": {"persistentVolumeClaimName": "claim"}, "volumeSnapshotClassName": "class"},
        })
    );
}

#[test]
fn pods_that_use_the_claims_are_counted() {
    let pod = |claim: &str, phase: &str| {
        serde_json::from_value(json!({"spec": {"containers": [], "volumes": [{"name": "v",
            "persistentVolumeClaim": {"claimName": claim}}]}, "status": {"phase": phase}}))
        .unwrap()
    };
    let pods =
        [pod("claim", "Running"), pod("claim", "Succeeded"), pod("other", "Running"), pod("claim", "Failed")];
    assert_eq!(users(&vm(false), &crate::storage::Storage::new().0, &pods), 1);
}

#[test]
fn the_state_of_firmware_and_tpm_is_taken_as_well() {
    let claim = |owner: &str| {
        let claim = json!({"metadata": {"name": "persistent-state-for-vm-x", "namespace": "ns", "labels": {"persistent-state-for": "vm"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "VirtualMachine", "name": "vm", "uid": owner}]}});
        let claims = crate::kept::Kept::with([serde_json::from_value(claim).unwrap()]).0;
        crate::storage::Storage { claims, ..crate::storage::Storage::new().0 }
    };
    let keeps: VirtualMachine = merged(
        serde_json::to_value(vm(false)).unwrap(),
        &json!({"spec": {"template": {"spec": {"domain": {"devices": {"tpm": {"persistent": true}}}}}}}),
    );
    let names = |vm: &VirtualMachine, owner: &str| -> Vec<String> {
        volumes(vm, &claim(owner)).into_iter().map(|volume| volume.name).collect()
    };
    assert_eq!(names(&keeps, "v1"), ["root", "data", "persistent-state-for-vm"]);
    assert_eq!(names(&keeps, "v0"), ["root", "data"], "another machine's");
    assert_eq!(names(&vm(false), "v1"), ["root", "data"]);
    let backup = json!({"volumeName": "persistent-state-for-vm", "volumeSnapshotName": "vt",
        "persistentVolumeClaim": {"metadata": {"name": "persistent-state-for-vm-x"}}});
    let mut content = content(json!({"status": {"readyToUse": true, "creationTime": MADE}}));
    content.spec.volume_backups.push(serde_json::from_value(backup).unwrap());
    let held = vm(true);
    let source = Some(Source { vm: &held, vmi: None });
    let snapshot = snapshot(json!({}));
    let seen = Observed {
        snapshot: &snapshot,
        source,
        obstacle: None,
        content: Some(&content),
        error: None,
        now: at(1),
    };
    let lists = decide(&seen).status.snapshot_volumes.unwrap();
    assert_eq!(lists.included_volumes, ["data", "persistent-state-for-vm"]);
    assert_eq!(lists.excluded_volumes, ["root"]);
}
