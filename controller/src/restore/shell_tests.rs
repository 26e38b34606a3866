//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use kube::runtime::watcher::Event;
use podvirt_api::v1::{VirtualMachine, VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Shared, one};
use super::tests::{content, restore, vm};
use super::{act, settle};
use crate::data::DataVolumes;
use crate::failure::Error;
use crate::kept::{Kept, Kind};
use crate::metrics::Metrics;
use crate::snapshot::Snapshots;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::View;

const INSTANCE: &str = "/virtualmachineinstances/vm";

fn cache<K: Kind>(list: Value) -> Kept<K> {
    let list: Vec<K> = serde_json::from_value(list).unwrap();
    Kept::with(list).0
}

/// A cluster with a restore, the machine that is its target, and a snapshot of that machine. `answer` goes before what is there.
fn scene(
    restore: &Restore,
    target: Option<VirtualMachine>,
    (claims, data): (Value, Value),
    answer: impl Fn(&Asked) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Context, Arc<Mutex<VecDeque<Asked>>>) {
    let there = serde_json::to_value(restore).unwrap();
    let (client, asked) = testing::recorded("ns", move |asked| {
        answer(asked).or_else(|| {
            let is_read = asked.0.starts_with("GET");
            let is_restore = asked.0.trim_end_matches("/status").ends_with("/virtualmachinerestores/r");
            match (is_restore, is_read) {
                (true, true) => Some((200, there.clone())),
                (true, false) => {
                    let mut changed = there.clone();
                    json_patch::merge(&mut changed, &asked.1);
                    Some((200, changed))
                }
                (false, true) => Some(testing::failure(404, "NotFound", "not here")),
                (false, false) if asked.0.starts_with("DELETE") => {
                    Some((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
                }
                (false, false) => None,
            }
        })
    });
    let (view, mut instances) = View::new();
    view.fill_pods();
    [Event::Init, Event::InitDone].iter().for_each(|event| instances.apply_watcher_event(event));
    let (machines, mut writer) = Machines::new();
    let mut fill = vec![Event::Init];
    fill.extend(target.map(Event::InitApply));
    fill.push(Event::InitDone);
    fill.iter().for_each(|event| writer.apply_watcher_event(event));
    let snapshot: Snapshot = serde_json::from_value(json!({
        "metadata": {"name": "s", "namespace": "ns", "uid": "s1"},
        "spec": {"source": {"kind": "VirtualMachine", "name": "vm"}},
        "status": {"sourceUID": "v1", "readyToUse": true, "virtualMachineSnapshotContentName": "c"},
    }))
    .unwrap();
    let mut held = serde_json::to_value(content(json!({}))).unwrap();
    held["metadata"]["name"] = podvirt_api::snapshot::content_name(&snapshot).into();
    let context = Context {
        recorder: Recorder::new(client.clone(), "virt-controller", None),
        client,
        metrics: Metrics::new(&mut Default::default()),
        machines,
        view,
        storage: Storage { claims: cache(claims), classes: cache(json!([])), ..Storage::new().0 },
        data: data_volumes(data),
        snapshots: Snapshots { snapshots: cache(json!([snapshot])), contents: cache(json!([held])) },
        restores: cache(json!([restore])),
    };
    (context, asked)
}

fn data_volumes(list: Value) -> DataVolumes {
    cache(list)
}

/// Methods and paths that were asked, but for reads.
fn writes(asked: &Mutex<VecDeque<Asked>>) -> Vec<String> {
    let asked = asked.lock().unwrap();
    asked.iter().map(|(what, _)| what.clone()).filter(|what| !what.starts_with("GET")).collect()
}

/// The reason of the condition Ready in the last status that was written.
fn reason(asked: &Mutex<VecDeque<Asked>>) -> String {
    let asked = asked.lock().unwrap();
    let (_, body) = asked.iter().rev().find(|(what, _)| what.ends_with("/r/status")).unwrap();
    let conditions = body["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|one| one["type"] == "Ready").unwrap();
    ready["reason"].as_str().unwrap_or_default().to_owned()
}

fn instance(phase: &str) -> (u16, Value) {
    let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "ns", "uid": "i"}, "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase}});
    (200, vmi)
}

#[tokio::test]
async fn an_instance_that_has_ended_is_off_and_one_that_runs_is_waited_for() {
    let none = || (json!([]), json!([]));
    for (phase, has_target, waits) in [
        ("Succeeded", true, false),
        ("Failed", true, false),
        ("Running", true, true),
        // The cache does not know the machine yet, or nothing but the instance is there.
        ("Running", false, true),
    ] {
        let of = restore(json!({"spec": {"targetReadinessPolicy": "WaitEventually"}}));
        let target = has_target.then(|| vm(json!({})));
        let (context, asked) =
            scene(&of, target, none(), move |(what, _)| what.ends_with(INSTANCE).then(|| instance(phase)));
        one(&of, &Shared::new(context)).await.unwrap();
        let said = reason(&asked);
        assert_eq!(said.starts_with("Waiting for target VM"), waits, "{phase}: {said}");
        assert_eq!(said == "Waiting for new PVCs", !waits, "{phase}: {said}");
    }
}

#[tokio::test]
async fn a_target_that_does_not_stop_says_so_and_is_not_asked_twice() {
    let of = restore(json!({"spec": {"targetReadinessPolicy": "StopTarget"}}));
    let run = async |target: VirtualMachine, refusal: Option<&'static str>| {
        let (context, asked) =
            scene(&of, Some(target), (json!([]), json!([])), move |(what, _)| match what {
                _ if what.ends_with(INSTANCE) => Some(instance("Running")),
                _ if what.ends_with("/vm/stop") => {
                    Some(refusal.map_or((202, json!({})), |why| testing::failure(409, "Conflict", why)))
                }
                _ => None,
            });
        one(&of, &Shared::new(context)).await.unwrap();
        (reason(&asked), writes(&asked).iter().any(|what| what.ends_with("/vm/stop")))
    };
    let stops = "Automatically stopping restore target for restore operation".to_owned();
    assert_eq!(run(vm(json!({})), None).await, (stops.clone(), true));
    let refused = "Restore target was not stopped: VM is not running".to_owned();
    assert_eq!(run(vm(json!({})), Some("VM is not running")).await, (refused, true));
    let asked = json!({"status": {"stateChangeRequests": [{"action": "Stop", "uid": "i"}]}});
    assert_eq!(run(vm(asked), Some("underway")).await, (stops, false));
}

#[tokio::test]
async fn a_claim_that_a_pod_has_is_not_deleted() {
    let note = json!({"volumeName": "data", "persistentVolumeClaim": "claim", "volumeSnapshotName": "vs"});
    let of = restore(json!({"spec": {"volumeRestorePolicy": "InPlace"}, "status": {"restores": [note]}}));
    for (phase, is_deleted) in [("Running", false), ("Pending", false), ("Succeeded", true), ("Failed", true)]
    {
        let claim = json!({"metadata": {"name": "claim", "namespace": "ns", "uid": "p"}, "status": {"phase": "Bound"}});
        let pod = json!({"metadata": {"name": "reader"}, "status": {"phase": phase},
            "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]}});
        let (context, asked) =
            scene(&of, Some(vm(json!({}))), (json!([claim]), json!([])), move |(what, _)| {
                let lists = what.ends_with("/namespaces/ns/pods");
                lists.then(|| (200, json!({"metadata": {}, "items": [pod]})))
            });
        let passed = one(&of, &Shared::new(context)).await;
        assert_eq!(matches!(passed, Err(Error::Refused(_))), !is_deleted, "{phase}: {passed:?}");
        let deletes = "DELETE /api/v1/namespaces/ns/persistentvolumeclaims/claim".to_owned();
        assert_eq!(writes(&asked).contains(&deletes), is_deleted, "{phase}");
        if !is_deleted {
            assert_eq!(reason(&asked), "claim claim not deleted: pod reader uses it");
        }
    }
}

#[tokio::test]
async fn only_data_volumes_of_the_machine_are_deleted_with_its_former_templates() {
    let of = restore(json!({"status": {"deletedDataVolumes": ["own", "others", "none", "gone"]}}));
    let data = |name: &str, uid: Option<&str>| {
        let owner = uid.map(|uid| {
            json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": uid,
            "controller": true}])
        });
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owner}, "spec": {}})
    };
    let there = json!([data("own", Some("v1")), data("others", Some("v0")), data("none", None)]);
    let target = vm(json!({}));
    let (context, asked) = scene(&of, Some(target.clone()), (json!([]), there), |_| None);
    settle::tidy(&context, &of, &target).await.unwrap();
    let path = "/apis/cdi.kubevirt.io/v1beta1/namespaces/ns/datavolumes/own";
    assert_eq!(writes(&asked), [format!("DELETE {path}")]);
    let asked = asked.lock().unwrap();
    let (_, body) = asked.iter().find(|(what, _)| what.starts_with("DELETE")).unwrap();
    assert_eq!(body["preconditions"]["uid"], "own", "the very one that was seen");
}

#[tokio::test]
async fn data_volumes_of_templates_are_posted_without_a_source_of_another_namespace() {
    let source = json!({"source": {"pvc": {"namespace": "bank", "name": "ledger"}}, "storage": {}});
    let made = vm(json!({"spec": {"dataVolumeTemplates": [{"metadata": {"name": "loot"}, "spec": source}]}}));
    let of = restore(json!({}));
    let (context, asked) = scene(&of, None, (json!([]), json!([])), |_| None);
    act::make_data(&context, &of, None, &made, &[0]).await.unwrap();
    let asked = asked.lock().unwrap();
    let (_, body) = asked.iter().find(|(what, _)| what.starts_with("POST")).unwrap();
    assert_eq!(body["spec"]["source"], json!({"blank": {}}));
}
