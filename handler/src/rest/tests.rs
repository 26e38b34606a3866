//! Which pod a request for a machine leads to.

use axum::response::IntoResponse;
use podvirt_api::v1::VirtualMachineInstance;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

fn vmi(active_pods: Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "n", "uid": "v"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "activePods": active_pods},
    }))
    .unwrap()
}

#[test]
fn a_request_leads_to_a_pod_that_was_found_and_that_the_vmi_lists_on_this_node() {
    let store = Store::default();
    let volumes = PodVolumes::new("/nowhere");
    let triggers = mpsc::channel(1).0;
    let server = Server::new("node1".into(), store.clone(), volumes, triggers);
    let find = |active_pods: Value| {
        store.put(vmi(active_pods));
        server.find("n", "a").map(|(_, pod)| pod)
    };
    let here = json!({"p1": "node1"});
    assert_eq!(server.find("n", "a").unwrap_err().into_response().status(), 404);
    assert_eq!(find(here.clone()), Err(not_running()), "the VMI's own word is not enough");
    store.put_pod(&vmi(here.clone()), "p1");
    assert_eq!(find(here.clone()), Ok("p1".into()));
    assert_eq!(find(json!({"p0": "node2", "p1": "node1"})), Ok("p1".into()));
    // The machine has moved, or runs in another pod here.
    for gone in [json!({}), json!({"p1": "node2"}), json!({"p2": "node1"})] {
        assert_eq!(find(gone.clone()), Err(not_running()), "{gone}");
    }
    assert_eq!(find(here), Ok("p1".into()));
}
