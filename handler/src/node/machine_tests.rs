//! Which pod a machine's launcher is looked for in, against a made-up API server.

use podvirt_daemon::testing::{self, failure};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::super::Store;
use super::*;
use crate::metrics::Metrics;
use crate::record::Records;
use crate::sockets::PodVolumes;

/// The VMI with these active pods, `UID: node`.
fn vmi(active_pods: &Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "n", "uid": "v"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": "node1", "activePods": active_pods},
    }))
    .unwrap()
}

/// The pod of the machine that the API server has on this node.
fn pod(uid: &str) -> Value {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "a", "uid": "v",
        "controller": true});
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": uid, "labels": {"kubevirt.io/created-by": "v"},
            "ownerReferences": [owner]},
        "spec": {"nodeName": "node1", "containers": []},
    })
}

/// Looks for the launcher of the VMI with these active pods, where it was in `known` before, and the API server has the
/// pod `there`. Tells where it is, the pod that is the machine's then, and how often the API server was asked.
async fn found(known: &str, active_pods: Value, there: Option<&'static str>) -> (Place, String, usize) {
    let answer =
        move || there.map_or_else(|| failure(404, "NotFound", "there is no such pod"), |uid| (200, pod(uid)));
    let (client, asked) = testing::recorded("n", move |_| Some(answer()));
    let (directory, store) = (tempfile::tempdir().unwrap(), Store::default());
    let metrics = Metrics::register(&mut Registry::default(), store.clone(), "node1".into());
    let records = Records::open(directory.path()).unwrap();
    let volumes = PodVolumes::new(directory.path());
    let (node, _triggers, _mail) = Node::new("node1".into(), client, volumes, records, store, metrics);
    let mut machine = Machine::default();
    machine.take_pod(known.to_owned());
    let place = machine.find_pod(&node, &vmi(&active_pods)).await.unwrap();
    let asked = asked.lock().unwrap().len();
    (place, machine.pod_uid().to_owned(), asked)
}

fn at(place: Place, pod: &str, asked: usize) -> (Place, String, usize) {
    (place, pod.to_owned(), asked)
}

#[tokio::test]
async fn a_launcher_is_in_the_pod_that_the_vmi_lists_on_this_node() {
    let listed = json!({"p1": "node1"});
    assert_eq!(found("", listed.clone(), Some("p1")).await, at(Place::Pod, "p1", 1));
    assert_eq!(found("p1", listed, None).await, at(Place::Pod, "p1", 0), "what is known is not asked for");
    let elsewhere = json!({"p1": "node2"});
    assert_eq!(found("", elsewhere, Some("p1")).await, at(Place::Nowhere, "", 0));
    assert_eq!(found("", json!({}), Some("p1")).await, at(Place::Nowhere, "", 0));
    // A pod of the machine's on this node, but not the one that the VMI lists here.
    for others in [json!({"p2": "node1"}), json!({"p2": "node1", "p1": "node2"})] {
        assert_eq!(found("", others, Some("p1")).await, at(Place::Nowhere, "", 1));
    }
}

#[tokio::test]
async fn a_pod_that_the_vmi_does_not_list_here_gives_way_to_the_one_that_it_lists() {
    for listed in [json!({"p2": "node1"}), json!({"p2": "node1", "p1": "node2"})] {
        assert_eq!(found("p1", listed, Some("p2")).await, at(Place::Pod, "p2", 1));
    }
    // The machine has come by a migration, and its pod is not listed yet.
    for listed in [json!({}), json!({"p0": "node2"})] {
        assert_eq!(found("p1", listed, None).await, at(Place::Pod, "p1", 0));
    }
}

#[tokio::test]
async fn a_pod_that_is_listed_here_and_does_not_exist_is_gone() {
    assert_eq!(found("", json!({"p1": "node1"}), None).await, at(Place::Gone, "", 1));
    // Nothing is left of another pod either: its launcher is not this machine's.
    assert_eq!(found("p1", json!({"p2": "node1"}), None).await, at(Place::Gone, "", 1));
}
