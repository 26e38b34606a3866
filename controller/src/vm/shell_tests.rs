//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use podvirt_api::names;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing;
use serde_json::{Value, json};

use super::reconcile::{Error, Shell};
use crate::data::DataVolumes;
use crate::kept::Kept;
use crate::settings::{Cluster, Settings};

type Asked = Arc<Mutex<VecDeque<testing::Asked>>>;

const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm";
const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm";

/// A shell whose cache has this instance, what it asks, and the cache's writer: without it the cache
/// ends. `answer`: code and body; `None` sends back what came.
fn shell(
    cached: Option<VirtualMachineInstance>,
    answer: impl Fn(&str) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Shell, Asked, Writer<VirtualMachineInstance>) {
    let (client, asked) = testing::recorded("ns", move |(what, _)| answer(what));
    let (instances, mut writer) = store();
    writer.apply_watcher_event(&Event::Init);
    if let Some(vmi) = cached {
        writer.apply_watcher_event(&Event::InitApply(vmi));
    }
    writer.apply_watcher_event(&Event::InitDone);
    let recorder = Recorder::new(client.clone(), "virt-controller", None);
    let cluster = Cluster::fixed(Settings::default());
    (
        Shell::new(
            client,
            recorder,
            cluster,
            instances,
            DataVolumes::new().0,
            crate::storage::Storage::new().0,
            (Kept::new().0, store().0),
        ),
        asked,
        writer,
    )
}

fn machine(more: &Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v1", "resourceVersion": "5", "generation": 1,
            "finalizers": [names::VM_FINALIZER]},
        "spec": {"runStrategy": "Manual", "template": {"spec": {"domain": {"devices": {}}}}},
        "status": {"runStrategy": "Manual"},
    });
    json_patch::merge(&mut vm, more);
    serde_json::from_value(vm).unwrap()
}

fn instance(uid: &str) -> VirtualMachineInstance {
    let vmi = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": uid, "resourceVersion": "9",
            "annotations": {"kubevirt.io/vm-generation": "1"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm",
                "uid": "v1", "controller": true}]},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running"},
    });
    serde_json::from_value(vmi).unwrap()
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "Forbidden",
    };
    testing::failure(code, reason, message)
}

/// Methods and paths that were asked.
fn paths(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect()
}

#[tokio::test]
async fn a_request_is_not_dropped_and_the_machine_not_let_go_by_a_cache_that_lags() {
    let stop = json!({"status": {"stateChangeRequests": [{"action": "Stop", "uid": "u2"}]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}});
    for (vm, cached) in
        [(machine(&stop), None), (machine(&stop), Some(instance("u1"))), (machine(&deleted), None)]
    {
        let (shell, asked, _cache) = shell(cached, |what| {
            let there = json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "u2"}});
            what.ends_with(INSTANCE).then_some((200, there))
        });
        shell.pass(&vm).await.unwrap();
        assert_eq!(paths(&asked), [format!("GET {INSTANCE}")], "nothing is written");
    }
    let (shell, asked, _cache) = shell(None, |what| what.ends_with(INSTANCE).then(|| failure(404, "gone")));
    shell.pass(&machine(&stop)).await.unwrap();
    assert_eq!(paths(&asked), [format!("GET {INSTANCE}"), format!("PATCH {MACHINE}/status")]);
}

#[tokio::test]
async fn a_stop_names_the_version_that_was_judged() {
    let stop = machine(&json!({"status": {"stateChangeRequests": [{"action": "Stop", "uid": "u1"}]}}));
    let vm = serde_json::to_value(&stop).unwrap();
    let (shell, asked, _cache) = shell(Some(instance("u1")), move |what| match what {
        _ if what.starts_with("DELETE") => Some(failure(409, "changed")),
        _ if what.contains("/virtualmachines/") => Some((200, vm.clone())),
        _ => None,
    });
    shell.pass(&stop).await.unwrap();
    let asked = asked.lock().unwrap();
    let (_, body) = asked.iter().find(|(what, _)| what.starts_with("DELETE")).unwrap();
    assert_eq!(body["preconditions"], json!({"uid": "u1", "resourceVersion": "9"}));
}

#[tokio::test]
async fn a_failed_dump_is_noted_on_its_claim_while_that_is_there() {
    let dump = json!({"name": "dump", "memoryDump": {"claimName": "dump", "hotpluggable": true}});
    let failed = json!({
        "spec": {"template": {"spec": {"volumes": [dump]}}},
        "status": {"memoryDumpRequest": {"claimName": "dump", "phase": "Failed"}},
    });
    let note = "PATCH /api/v1/namespaces/ns/persistentvolumeclaims/dump";
    // Until the claims are listed the API server is asked; then a claim that is not among them is gone.
    for (listed, notes) in [(false, 1), (true, 0)] {
        let (shell, asked, _cache) = shell(None, |what| match what {
            _ if what.starts_with("PATCH") && what.contains("/persistentvolumeclaims/") => {
                Some(failure(404, "gone"))
            }
            _ => None,
        });
        if listed {
            shell.storage.claims.taken(&Ok(Event::InitDone));
        }
        shell.pass(&machine(&failed)).await.unwrap();
        let asked = paths(&asked).into_iter().filter(|what| what == note).count();
        assert_eq!(asked, notes, "listed: {listed}");
    }
}

#[tokio::test]
async fn a_refusal_with_another_text_each_time_is_written_once() {
    let mut vm = machine(&json!({"status": {"stateChangeRequests": [{"action": "Start"}]}}));
    for (text, writes) in [("exceeded quota, used 3", 1), ("exceeded quota, used 4", 0)] {
        let stored = serde_json::to_value(&vm).unwrap();
        let (shell, asked, _cache) = shell(None, move |what| match what {
            _ if what.starts_with("POST") && what.ends_with("/virtualmachineinstances") => {
                Some(failure(403, text))
            }
            _ if what.ends_with(INSTANCE) => Some(failure(404, "none")),
            _ if what.contains("/virtualmachines/") => Some((200, stored.clone())),
            _ if what.starts_with("GET") && what.contains("/controllerrevisions") => {
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {}, "items": []});
                Some((200, list))
            }
            _ => None,
        });
        // Its own conditions first, as in the pass before.
        let decided = super::decide(&vm, super::Instance::None, jiff::Timestamp::now());
        vm.status = decided.status;
        let error = shell.pass(&vm).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(message) if message.ends_with(text)), "{error}");
        let asked = asked.lock().unwrap();
        let failures: Vec<_> = asked
            .iter()
            .filter_map(|(_, body)| body["status"]["conditions"].as_array())
            .filter_map(|all| all.iter().find(|one| one["type"] == "Failure").cloned())
            .collect();
        assert_eq!(failures.len(), writes, "{text}: {failures:?}");
        let conditions: Vec<_> =
            failures.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
        vm.status.conditions.extend(conditions);
    }
}

#[tokio::test]
async fn an_orphaned_instance_is_adopted_as_it_was_seen() {
    let mut orphan = instance("u1");
    orphan.metadata.owner_references = None;
    let vm = machine(&json!({}));
    let stored = serde_json::to_value(&vm).unwrap();
    let (shell, asked, _cache) = shell(Some(orphan), move |what| match what {
        _ if what.contains("/virtualmachines/") => Some((200, stored.clone())),
        // It has changed meanwhile: the next pass looks again.
        _ if what == format!("PATCH {INSTANCE}") => Some(failure(409, "changed")),
        _ => None,
    });
    shell.pass(&vm).await.unwrap();
    let asked = asked.lock().unwrap();
    let (_, body) = asked.iter().find(|(what, _)| *what == format!("PATCH {INSTANCE}")).unwrap();
    let meta = &body["metadata"];
    assert_eq!((&meta["uid"], &meta["resourceVersion"]), (&json!("u1"), &json!("9")));
    assert_eq!(
        (&meta["ownerReferences"][0]["uid"], &meta["ownerReferences"][0]["controller"]),
        (&json!("v1"), &json!(true))
    );
    assert_eq!(meta["annotations"]["kubevirt.io/vm-generation"], "0");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_the_settings_were_read() {
    let tracked = json!({"status": {"changedBlockTracking": {"state": "Enabled"}}});
    let (mut shell, asked, _cache) = shell(None, |_| None);
    let (sender, cluster) = Cluster::changing();
    shell.cluster = cluster;
    let vm = machine(&tracked);
    let mut pass = Box::pin(shell.pass(&vm));
    // Another task carries requests to the server: a pass that does not wait has asked for something by then.
    let early = tokio::time::timeout(Duration::from_secs(1), &mut pass).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(paths(&asked), [""; 0], "the status loses nothing by defaults");
    sender.send_replace(Some(Arc::new(Settings::default())));
    pass.await.unwrap();
    assert_ne!(paths(&asked), [""; 0]);
}
