//! What a review takes of virt-operator's memory, also where its sender knows the webhook's path.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use axum::body::Body;
use axum::http::Request;
use jiff::Timestamp;
use peak_alloc::PeakAlloc;
use podvirt_daemon::pki::{PathKey, WebhookPaths, make_ca};
use podvirt_daemon::testing::{self, ca_secret};
use serde_json::{Value, json};
use tower::ServiceExt;
use virt_operator::target::Own;
use virt_operator::webhook::Judge;

/// Bytes by which a review may have the process grow: two are in their read form at a time, and virt-operator has a limit of 256 MiB.
const MAX_GROWTH_BYTES: usize = 48 << 20;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

fn review(object: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "object": object, "userInfo": {}, "name": "kubevirt",
        "kind": {"group": "kubevirt.io", "version": "v1", "kind": "KubeVirt"},
        "resource": {"group": "kubevirt.io", "version": "v1", "resource": "kubevirts"},
    }})
    .to_string()
}

fn kubevirt(spec: Value) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec,
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
}

fn patched(form: &str, patch: &str) -> Value {
    kubevirt(json!({"customizeComponents": {"patches": [
        {"resourceType": "*", "resourceName": "*", "type": form, "patch": patch}]}}))
}

/// Whether `judge` allows what `text` asks for at `path`.
async fn allowed(judge: &Judge, path: &str, text: String) -> bool {
    let request = Request::post(path).header("content-type", "application/json");
    let answer = judge.clone().router().oneshot(request.body(Body::from(text)).unwrap()).await.unwrap();
    if !answer.status().is_success() {
        assert_ne!(answer.status().as_u16(), 404, "{path}");
        return false;
    }
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice::<Value>(&body).unwrap()["response"]["allowed"] == true
}

#[tokio::test]
async fn no_review_takes_much_memory() {
    let ca = make_ca(Timestamp::now(), std::time::Duration::from_secs(3600)).unwrap();
    let path = PathKey::new(&ca).path("/kubevirt-validate");
    let client = testing::client("kubevirt", move |_, uri, _| {
        let is_ca = uri.path().ends_with("/secrets/kubevirt-ca");
        if is_ca { (200, ca_secret(&ca)) } else { (404, Value::Null) }
    });
    let paths = WebhookPaths::new(client.clone(), "kubevirt");
    let judge = Judge::new(client, "kubevirt", Own::from_env(|_| None), paths);
    let plain = review(&kubevirt(json!({})));
    assert!(allowed(&judge, &path, plain).await, "and the manifests are in memory now");

    // Each `copy` doubles the list.
    let mut doublings = vec![json!({"op": "add", "path": "/spec/a", "value": [0]})];
    doublings.resize(22, json!({"op": "copy", "from": "/spec/a", "path": "/spec/a/-"}));
    let doublings = patched("json", &Value::from(doublings).to_string());
    // Objects of one member, five bytes of text and some 650 of memory each.
    let nested = format!("{}0{}", r#"{"":"#.repeat(100), "}".repeat(100));
    let list = format!("[{}]", vec![nested.as_str(); 1_000].join(","));
    let large = review(&kubevirt(json!({}))).replace(r#""userInfo":{}"#, &format!(r#""userInfo":{list}"#));
    let within = review(&kubevirt(json!({}))).replace(r#""spec":{}"#, &format!(r#""spec":{{"x":{list}}}"#));
    // Empty structures, which are large once they have types.
    let volumes = json!({"spec": {"template": {"spec": {"volumes": vec![json!({}); 50_000]}}}});
    let strategic = patched("strategic", &volumes.to_string());
    let merge = patched("merge", &format!(r#"{{"spec":{list}}}"#));
    let terms =
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": vec![json!({}); 8_000]}});
    let placed = kubevirt(json!({"infra": {"nodePlacement": {"affinity": terms}}}));

    for (name, text) in [
        ("doublings", review(&doublings)),
        ("a large review", large),
        ("a large object", within),
        ("a strategic patch", review(&strategic)),
        ("a merge patch", review(&merge)),
        ("a placement", review(&placed)),
        ("a long body", " ".repeat(4 << 20)),
    ] {
        let before = ALLOCATED.current_usage();
        ALLOCATED.reset_peak_usage();
        assert!(!allowed(&judge, &path, text).await, "{name} is allowed");
        let growth = ALLOCATED.peak_usage().saturating_sub(before);
        assert!(growth < MAX_GROWTH_BYTES, "{name}: the process grew by {} MiB", growth >> 20);
    }
}
