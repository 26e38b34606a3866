//! New machines in a namespace whose presets have no place in virt-api's cache.

use std::sync::Arc;

use base64::Engine as _;
use http::Method;
use podvirt_daemon::testing::{client, failure};
use serde_json::{Value, json};
use tokio::sync::Notify;
use virt_api::presets::{MAX_PRESETS, Presets};

use crate::NO_HANDLER;
use crate::world::{Caller, World};

/// virt-api that has left out the namespace `ns`, which has `count` presets meanwhile.
async fn crowded(count: usize) -> World {
    let client = client("default", move |_, uri, _| {
        if uri.query().unwrap_or_default().contains("watch=true") {
            return failure(503, "ServiceUnavailable", "no watches");
        }
        let count = if uri.path().contains("/namespaces/ns/") { count } else { MAX_PRESETS + 1 };
        let preset = |n: usize| {
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset",
                "metadata": {"name": format!("p{n}"), "namespace": "ns"},
                "spec": {"selector": {}, "domain": {"cpu": {"cores": 3}, "devices": {}}}})
        };
        let presets: Vec<Value> = (0..count).map(preset).collect();
        let list = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePresetList",
            "metadata": {"resourceVersion": "1"}, "items": presets});
        (200, list)
    });
    let known = Arc::new(Notify::new());
    let listed = Arc::clone(&known);
    let (presets, follow) = Presets::follow(client, move || listed.notify_one());
    tokio::spawn(follow);
    known.notified().await;
    World::with_presets(NO_HANDLER, presets).await
}

async fn review(world: &World) -> Value {
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r", "operation": "CREATE", "namespace": "ns",
            "object": {"metadata": {"name": "vm1"}, "spec": {"domain": {"devices": {}}}}}});
    let path = world.review_path("/virtualmachineinstances-mutate");
    let body = body.to_string();
    let (code, answer) = world.call(Caller::Nobody, "", Method::POST, &path, &body).await.unwrap();
    assert_eq!(code.as_u16(), 200, "{answer}");
    answer["response"].clone()
}

#[tokio::test]
async fn a_machine_gets_presets_that_are_listed_for_it() {
    let world = crowded(1).await;
    let response = review(&world).await;
    assert_eq!(response["allowed"], true, "{response}");
    let patch = base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap());
    let patch: json_patch::Patch = serde_json::from_slice(&patch.unwrap()).unwrap();
    let mut machine = json!({"metadata": {"name": "vm1"}, "spec": {"domain": {"devices": {}}}});
    json_patch::patch(&mut machine, &patch).unwrap();
    assert_eq!(machine["spec"]["domain"]["cpu"]["cores"], 3);
}

#[tokio::test]
async fn a_namespace_beyond_its_own_bound_makes_no_machine() {
    let world = crowded(MAX_PRESETS + 1).await;
    let response = review(&world).await;
    assert_eq!(response["allowed"], false, "{response}");
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("VirtualMachineInstancePresets of the namespace are too many"), "{message}");
}
