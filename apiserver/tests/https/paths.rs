//! Which reviews are answered: those at the paths that the webhook configurations name.

use std::time::Duration;

use http::{Method, Request};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use serde_json::json;
use virt_api::metrics::AdmissionLabels;

use super::NO_HANDLER;
use super::world::{Caller, VMI, World, vmi};

const WEBHOOK: &str = "/migration-validate-create";
/// Length that a body declares which never comes, in bytes.
const BODY_BYTES: usize = 1 << 20;
/// Longer than any answer takes on a busy machine.
const REVIEW_ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

#[tokio::test]
async fn a_review_at_another_path_tells_nothing_of_a_namespace() {
    let world = World::new(NO_HANDLER).await;
    world.put(VMI, vmi());
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r", "operation": "CREATE", "namespace": "ns",
            "object": {"metadata": {"name": "m"}, "spec": {"vmiName": "vm1"}}},
    })
    .to_string();
    let call = async |path: &str| world.call(Caller::Nobody, "", Method::POST, path, &review).await.unwrap();
    let path = world.review_path(WEBHOOK);
    assert_eq!(call(&path).await.0.as_u16(), 200);
    world.cluster.lock().unwrap().reads.clear();

    let other = world.review_path("/migration-validate-update").replace("-update", "-create");
    let wrong = format!("{WEBHOOK}/{}", "0".repeat(64));
    for path in [WEBHOOK.to_owned(), format!("{WEBHOOK}/"), wrong, other, format!("{path}/x")] {
        let (code, answer) = call(&path).await;
        assert_eq!((code.as_u16(), &answer["kind"]), (404, &json!("Status")), "{path}: {answer}");
        assert!(!answer.to_string().contains("vm1"), "{answer}");
    }
    let reads = world.cluster.lock().unwrap().reads.clone();
    assert!(reads.iter().all(|read| read.contains("/secrets/kubevirt-ca")), "{reads:?}");
    let refused = AdmissionLabels {
        webhook: "migration-create-validator.kubevirt.io",
        operation: "other",
        allowed: "false",
    };
    assert_eq!(world.metrics.admissions.get_or_create(&refused).get(), 3);
}

#[tokio::test]
async fn a_path_of_a_new_ca_is_known_before_the_ca_was_told_of() {
    let world = World::new(NO_HANDLER).await;
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r", "operation": "UPDATE", "object": {"spec": {}}, "oldObject": {"spec": {}}},
    })
    .to_string();
    let webhook = "/migration-validate-update";
    let new = world.rotate_ca().path(webhook);
    for path in [new, world.review_path(webhook)] {
        let (code, answer) = world.call(Caller::Nobody, "", Method::POST, &path, &review).await.unwrap();
        assert_eq!((code.as_u16(), &answer["response"]["allowed"]), (200, &json!(true)), "{path}");
    }
}

#[tokio::test]
async fn a_review_at_another_path_is_refused_before_its_body_has_come() {
    let world = World::new(NO_HANDLER).await;
    for path in [WEBHOOK.to_owned(), format!("{WEBHOOK}/{}", "0".repeat(64))] {
        let stream = world.connect(Caller::Nobody).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let body =
            StreamBody::new(Box::pin(futures::stream::pending::<Result<Frame<Bytes>, std::io::Error>>()));
        let request = Request::post(&path).header("host", "virt-api").header("content-length", BODY_BYTES);
        let answer = sender.send_request(request.body(body).unwrap());
        let answer = tokio::time::timeout(REVIEW_ANSWER_TIMEOUT, answer).await.expect("no answer").unwrap();
        assert_eq!(answer.status().as_u16(), 404, "{path}");
    }
}
