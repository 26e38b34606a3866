//! The shells before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use kube::runtime::watcher::Event;
use podvirt_api::names::annotation;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Shared, one};
use super::tests::{content, snapshot, vm, vmi};
use super::{Snapshots, contents};
use crate::data::DataVolumes;
use crate::kept::{Kept, Kind};
use crate::metrics::Metrics;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::View;

/// What the API server does with a request; `None`: what was sent comes back.
type Answer = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync>;

struct Scene {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    context: Context,
}

fn kept<K: Kind>(list: Value) -> Kept<K> {
    let list: Vec<K> = serde_json::from_value(list).unwrap();
    Kept::with(list).0
}

/// What is there, to a request that reads it or changes it.
fn kept_there(asked: &Asked, there: &[Value]) -> Option<(u16, Value)> {
    let (method, path) = asked.0.split_once(' ')?;
    let path = path.strip_suffix("/status").unwrap_or(path);
    let name = path.rsplit('/').next()?;
    let found = there.iter().find(|one| one["metadata"]["name"] == name);
    match (method, found) {
        ("GET", None) => Some(testing::failure(404, "NotFound", "not here")),
        ("GET", Some(one)) => Some((200, one.clone())),
        ("PATCH", Some(one)) => {
            let mut changed = one.clone();
            json_patch::merge(&mut changed, &asked.1);
            Some((200, changed))
        }
        _ => None,
    }
}

impl Scene {
    /// A cluster with a machine, its instance, a snapshot and its content, whose claim is of the class `fast`.
    fn new(
        machine: &VirtualMachine,
        instance: Option<VirtualMachineInstance>,
        snapshot: &Snapshot,
        content: Option<&Content>,
        answer: Answer,
    ) -> Self {
        let claim = json!({"metadata": {"name": "claim", "namespace": "ns"}, "spec": {"storageClassName": "fast"},
            "status": {"phase": "Bound"}});
        let mut there = vec![json!(machine), json!(snapshot), claim.clone()];
        there.extend(content.map(|content| json!(content)));
        let (client, asked) =
            testing::recorded("ns", move |asked| answer(asked).or_else(|| kept_there(asked, &there)));
        let (view, mut instances) = View::new();
        view.fill_pods();
        let mut fill = vec![Event::Init];
        fill.extend(instance.map(Event::InitApply));
        fill.push(Event::InitDone);
        fill.iter().for_each(|event| instances.apply_watcher_event(event));
        let (machines, mut writer) = Machines::new();
        for event in [Event::Init, Event::InitApply(machine.clone()), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let storage = Storage {
            claims: kept(json!([claim])),
            classes: kept(json!([{"metadata": {"name": "fast"}, "provisioner": "csi.a"}])),
            profiles: kept(json!([])),
            data_settings: kept(json!([])),
            snapshots: kept(json!([])),
            snapshot_classes: kept(json!([{"metadata": {"name": "taken"}, "driver": "csi.a"}])),
        };
        let context = Context {
            recorder: Recorder::new(client.clone(), "virt-controller", None),
            client,
            metrics: Metrics::new(&mut Default::default()),
            machines,
            view,
            storage,
            data: DataVolumes::with([]).0,
            snapshots: Snapshots {
                snapshots: kept(json!([snapshot])),
                contents: kept(json!(content.into_iter().collect::<Vec<_>>())),
            },
        };
        Scene { asked, context }
    }

    /// What was asked beside reads, by the last parts of the paths, and the bodies.
    fn asked(&self) -> Vec<(String, Value)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let told = asked.into_iter().filter(|(what, _)| !what.starts_with("GET"));
        told.map(|(what, body)| {
            let (method, path) = what.split_once(' ').unwrap();
            let parts: Vec<&str> = path.rsplitn(3, '/').take(2).collect();
            match body["reason"].as_str() {
                Some(reason) if path.ends_with("/events") => (format!("event {reason}"), body),
                _ => (format!("{method} {}/{}", parts[1].rsplit('/').next().unwrap(), parts[0]), body),
            }
        })
        .collect()
    }

    fn names(asked: &[(String, Value)]) -> Vec<&str> {
        asked.iter().map(|(what, _)| what.as_str()).collect()
    }
}

/// A snapshot whose time is not over.
fn fresh() -> Snapshot {
    versioned(snapshot(json!({"metadata": {"creationTimestamp": null}})))
}

fn versioned<K: kube::Resource>(mut object: K) -> K {
    object.meta_mut().resource_version = Some("1".into());
    object
}

#[tokio::test]
async fn a_source_is_held_by_status_and_finalizer() {
    let (machine, of) = (versioned(vm(false)), fresh());
    let pods =
        |asked: &Asked| asked.0.ends_with("/pods").then(|| (200, json!({"items": [], "metadata": {}})));
    let scene = Scene::new(&machine, None, &of, None, Box::new(pods));
    one(&of, &Shared::new(scene.context.clone())).await.unwrap();
    let asked = scene.asked();
    let names = Scene::names(&asked);
    assert_eq!(names[..2.min(names.len())], ["PATCH vm/status", "PATCH virtualmachines/vm"], "{names:?}");
    assert_eq!(asked[0].1["status"]["snapshotInProgress"], "s");
    assert_eq!(asked[1].1["metadata"]["finalizers"][0], "snapshot.kubevirt.io/snapshot-source-protection");
}

#[tokio::test]
async fn a_content_has_the_machine_and_its_claims() {
    let (machine, of) = (versioned(vm(true)), fresh());
    let scene = Scene::new(&machine, None, &of, None, Box::new(|_| None));
    one(&of, &Shared::new(scene.context.clone())).await.unwrap();
    let asked = scene.asked();
    let (what, made) = &asked[0];
    assert!(what.starts_with("POST ") && what.ends_with("virtualmachinesnapshotcontents"), "{what}");
    assert_eq!(made["metadata"]["name"], "vmsnapshot-content-u");
    let backups = made["spec"]["volumeBackups"].as_array().unwrap();
    assert_eq!(backups.len(), 1, "a container disk is no claim");
    assert_eq!(backups[0]["volumeSnapshotName"], "vmsnapshot-u-volume-data");
    assert_eq!(backups[0]["persistentVolumeClaim"]["spec"]["storageClassName"], "fast");
    assert_eq!(made["spec"]["source"]["virtualMachine"]["spec"]["runStrategy"], "Halted");
}

#[tokio::test]
async fn a_refused_volume_snapshot_thaws_the_guest_and_leaves_none() {
    let (machine, of) = (versioned(vm(true)), fresh());
    let second = json!({"volumeName": "more", "volumeSnapshotName": "vs2",
        "persistentVolumeClaim": {"metadata": {"name": "more"}, "spec": {"storageClassName": "fast"}}});
    let mut of_two = content(json!({}));
    of_two.spec.volume_backups.push(serde_json::from_value(second).unwrap());
    let of_two = versioned(of_two);
    let answer = |(what, body): &Asked| {
        let refused = what.starts_with("POST") && body["metadata"]["name"] == "vs2";
        let done = what.starts_with("DELETE") || what.contains("freeze");
        refused
            .then(|| testing::failure(403, "Forbidden", "exceeded quota"))
            .or_else(|| done.then(|| (200, json!({"kind": "Status", "status": "Success"}))))
    };
    let with_agent = vmi(&["AgentConnected"]);
    let mut with_agent = with_agent;
    with_agent.metadata.namespace = Some("ns".into());
    let scene = Scene::new(&machine, Some(with_agent), &of, Some(&of_two), Box::new(answer));
    contents::one(&of_two, &contents::Shared::new(scene.context.clone())).await.unwrap();
    let asked = scene.asked();
    assert_eq!(
        Scene::names(&asked),
        [
            "PUT vm/freeze",
            "POST ns/volumesnapshots",
            "event SuccessfulVolumeSnapshotCreate",
            "POST ns/volumesnapshots",
            "PUT vm/unfreeze",
            "DELETE volumesnapshots/vs",
            "DELETE volumesnapshots/vs2",
            "event FailedCreate",
            "event FailedCreate",
            "PATCH virtualmachinesnapshotcontents/vmsnapshot-content-u",
        ]
    );
    assert_eq!(asked[0].1, json!({"unfreezeTimeout": "300s"}));
    let error = asked.last().unwrap().1["metadata"]["annotations"][annotation::NOT_MADE].as_str().unwrap();
    assert!(error.contains("vs2 not made") && error.contains("exceeded quota"), "{error}");
}

#[tokio::test]
async fn a_guest_is_thawed_before_its_snapshot_is_told_of() {
    let (machine, of) = (versioned(vm(true)), fresh());
    let open = versioned(content(json!({})));
    let mut with_agent = vmi(&["AgentConnected"]);
    with_agent.metadata.namespace = Some("ns".into());
    for (code, told) in [(200, true), (500, false)] {
        let answer = move |(what, _): &Asked| {
            what.contains("unfreeze")
                .then(|| testing::failure(code, "InternalError", "no answer"))
                .map(|(_, body)| (code, if code == 200 { json!({}) } else { body }))
        };
        let mut scene = Scene::new(&machine, Some(with_agent.clone()), &of, Some(&open), Box::new(answer));
        let taken = json!([{"metadata": {"name": "vs", "namespace": "ns"},
            "status": {"creationTime": "2026-01-01T00:00:00Z", "readyToUse": true}}]);
        scene.context.storage.snapshots = kept(taken);
        let done = contents::one(&open, &contents::Shared::new(scene.context.clone())).await;
        assert_eq!(done.is_ok(), told);
        let asked = scene.asked();
        let names = Scene::names(&asked);
        assert_eq!(names[0], "PUT vm/unfreeze");
        assert_eq!(names.contains(&"PATCH vmsnapshot-content-u/status"), told, "{names:?}");
    }
}

#[tokio::test]
async fn a_claim_is_not_left_out_while_its_class_is_not_known() {
    let (machine, of) = (versioned(vm(true)), fresh());
    for unknown in [true, false] {
        let mut scene = Scene::new(&machine, None, &of, None, Box::new(|_| None));
        if unknown {
            scene.context.storage.classes = Kept::new().0;
        }
        one(&of, &Shared::new(scene.context.clone())).await.unwrap();
        let asked = scene.asked();
        let made = Scene::names(&asked).iter().any(|what| what.starts_with("POST"));
        assert_eq!(made, !unknown, "{:?}", Scene::names(&asked));
    }
}
