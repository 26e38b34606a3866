//! virt-api as its callers see it: which callers are let in, what is written, what streams carry.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test needs is there or the test fails")]

mod bounds;
mod flood;
mod node;
mod paths;
mod presets;
mod streams;
mod world;

use http::Method;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use world::{Caller, VM, VMI, World, vm, vmi};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const API: &str = "/apis/subresources.kubevirt.io/v1/namespaces/ns";
/// A port on which no program listens: no test that uses it gets as far as virt-handler.
const NO_HANDLER: u16 = 9;

#[tokio::test]
async fn only_the_front_proxy_speaks_for_users() {
    let world = World::new(NO_HANDLER).await;
    world.put(VM, vm("Halted"));
    let start = format!("{API}/virtualmachines/vm1/start");
    for (caller, code) in [(Caller::FrontProxy, 202), (Caller::OtherName, 401), (Caller::Nobody, 401)] {
        let (got, body) = world.call(caller, "jane", Method::PUT, &start, "").await.unwrap();
        assert_eq!(got.as_u16(), code, "{caller:?} {body}");
    }
    world.call(Caller::OtherCa, "jane", Method::PUT, &start, "").await.unwrap_err();
    assert_eq!(world.writes().len(), 1, "only the front proxy's request was carried out");
}

#[tokio::test]
async fn a_user_who_may_not_is_refused_before_anything_is_looked_at() {
    let world = World::new(NO_HANDLER).await;
    for (method, path) in [
        (Method::PUT, format!("{API}/virtualmachines/vm1/start")),
        (Method::GET, format!("{API}/virtualmachineinstances/vm1/console")),
        (Method::PUT, format!("{API}/virtualmachineinstances/vm1/addvolume")),
        (Method::GET, format!("{API}/virtualmachineinstances/vm1/nothing")),
    ] {
        let (code, body) = world.call(Caller::FrontProxy, "mallory", method, &path, "").await.unwrap();
        assert_eq!((code.as_u16(), &body["reason"]), (403, &json!("Forbidden")), "{path}");
        assert!(body["message"].as_str().unwrap().contains("mallory"), "{body}");
    }
    let cluster = world.cluster.lock().unwrap();
    let asked = &cluster.reviews[0]["spec"];
    assert_eq!((&asked["user"], &asked["groups"]), (&json!("mallory"), &json!(["devs"])));
    assert_eq!(
        asked["resourceAttributes"],
        json!({
            "group": "subresources.kubevirt.io", "version": "v1", "namespace": "ns", "verb": "update",
            "resource": "virtualmachines", "name": "vm1", "subresource": "start",
        })
    );
    assert_eq!(cluster.reviews.len(), 4);
}

#[tokio::test]
async fn discovery_and_health_need_no_user() {
    let world = World::new(NO_HANDLER).await;
    for (path, field, value) in [
        ("/apis", "kind", "APIGroupList"),
        ("/apis/subresources.kubevirt.io", "kind", "APIGroup"),
        ("/apis/subresources.kubevirt.io/v1", "kind", "APIResourceList"),
        ("/apis/subresources.kubevirt.io/v1alpha3/", "groupVersion", "subresources.kubevirt.io/v1alpha3"),
        ("/apis/subresources.kubevirt.io/v1/version", "compiler", "rustc"),
        ("/openapi/v2", "swagger", "2.0"),
        ("/openapi/v3/apis/subresources.kubevirt.io/v1", "openapi", "3.0.0"),
    ] {
        let (code, body) = world.call(Caller::Nobody, "", Method::GET, path, "").await.unwrap();
        assert_eq!((code.as_u16(), &body[field]), (200, &json!(value)), "{path}");
    }
    for (path, code) in [
        ("/apis/subresources.kubevirt.io/v1/guestfs", 501),
        ("/openapi/v3/apis/apps/v1", 404),
        ("/apis/subresources.kubevirt.io/v2", 404),
        ("/nothing", 404),
    ] {
        let (got, body) = world.call(Caller::Nobody, "", Method::GET, path, "").await.unwrap();
        assert_eq!((got.as_u16(), &body["kind"]), (code, &json!("Status")), "{path}");
    }
    assert!(world.cluster.lock().unwrap().reviews.is_empty());
}

async fn put(world: &World, path: &str, body: &str) -> (u16, String) {
    let path = format!("{API}/{path}");
    let (code, body) = world.call(Caller::FrontProxy, "jane", Method::PUT, &path, body).await.unwrap();
    (code.as_u16(), body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn requests_become_patches_of_the_right_object() {
    let world = World::new(NO_HANDLER).await;
    world.put(VM, vm("Halted"));
    assert_eq!(put(&world, "virtualmachines/vm1/start", "").await.0, 202);
    world.put(VM, vm("Manual"));
    assert_eq!(put(&world, "virtualmachines/vm1/start", r#"{"dryRun":["All"]}"#).await.0, 202);
    world.put(VMI, vmi());
    assert_eq!(put(&world, "virtualmachines/vm1/stop", r#"{"gracePeriod":0}"#).await.0, 202);
    assert_eq!(put(&world, "virtualmachines/vm1/restart", r#"{"gracePeriodSeconds":0}"#).await.0, 202);
    let paths: Vec<String> =
        world.writes().iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    assert_eq!(
        paths,
        [
            format!("PATCH {VM}?"),
            format!("PATCH {VM}/status?&dryRun=All"),
            format!("PATCH {VMI}?"),
            format!("PATCH {VM}/status?"),
            format!("PATCH {VM}/status?"),
            "DELETE /api/v1/namespaces/ns/pods/virt-launcher-vm1-abcde".to_owned(),
        ]
    );
    let writes = world.writes();
    assert_eq!(writes[0].2[1], json!({"op": "replace", "path": "/spec/runStrategy", "value": "Always"}));
    assert_eq!(writes[5].2["gracePeriodSeconds"], 1);
}

#[tokio::test]
async fn a_vm_that_changed_meanwhile_is_read_and_judged_again() {
    let world = World::new(NO_HANDLER).await;
    world.put(VM, vm("Manual"));
    world.cluster.lock().unwrap().stale = 2;
    assert_eq!(put(&world, "virtualmachines/vm1/start", "").await.0, 202);
    assert_eq!(world.writes().len(), 3);

    world.cluster.lock().unwrap().stale = 100;
    let (code, message) = put(&world, "virtualmachines/vm1/start", "").await;
    assert_eq!(code, 409, "{message}");
    assert!(world.writes().len() < 20, "it gives up");
}

#[tokio::test]
async fn a_change_that_a_webhook_refuses_is_told_and_not_tried_again() {
    let world = World::new(NO_HANDLER).await;
    world.put(VM, vm("Always"));
    let refusal = "admission webhook \"virtualmachine-validator.kubevirt.io\" denied the request: spec.x: unknown field";
    world.cluster.lock().unwrap().refusal = Some(refusal.into());
    assert_eq!(put(&world, "virtualmachines/vm1/stop", "").await, (422, refusal.into()));
    assert_eq!(world.writes().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_done_is_told_like_upstream_does() {
    let world = World::new(NO_HANDLER).await;
    let missing = put(&world, "virtualmachines/vm1/start", "").await;
    assert_eq!(missing, (404, "virtualmachine.kubevirt.io \"vm1\" not found".into()));
    world.put(VM, vm("Manual"));
    let stopped = put(&world, "virtualmachines/vm1/stop", "").await;
    let message = "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm1\": VM is not running";
    assert_eq!(stopped, (409, message.into()));
    assert_eq!(put(&world, "virtualmachines/vm1/start", "{").await.0, 400);
    assert_eq!(put(&world, "virtualmachines/vm1/memorydump", "").await.0, 400);
    assert_eq!(put(&world, "virtualmachineinstances/vm1/backup", "").await.0, 404);
    assert_eq!(put(&world, "virtualmachineinstances/vm1/sev/setupsession", "").await.0, 501);
    assert_eq!(put(&world, "virtualmachines/vm1/addvolume", "").await.0, 400);
    let idle = put(&world, "virtualmachines/vm1/migrate", "").await;
    assert_eq!(idle, (409, message.into()));
    assert_eq!(put(&world, "virtualmachineinstances/vm1/pause", "").await.0, 404);
    world.put(VMI, vmi());
    world.put("no-handler", Value::Null);
    let (code, message) = put(&world, "virtualmachineinstances/vm1/pause", "").await;
    assert_eq!((code, message.as_str()), (503, "no virt-handler is ready on node node1"));
    assert!(world.writes().is_empty());
}

#[tokio::test]
async fn a_migration_is_made_and_an_evacuation_taken_back() {
    let world = World::new(NO_HANDLER).await;
    assert_eq!(put(&world, "virtualmachines/vm1/migrate", "").await.0, 404);
    world.put(VM, vm("Always"));
    world.put(VMI, vmi());
    for (body, query) in
        [(r#"{"addedNodeSelector": {"zone": "a"}}"#, ""), (r#"{"dryRun": ["All"]}"#, "dryRun=All")]
    {
        assert_eq!(put(&world, "virtualmachines/vm1/migrate", body).await.0, 202);
        let (method, path, made) = world.writes().pop().unwrap();
        let migrations = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstancemigrations";
        assert_eq!((method, path.replace("?&", "?")), (Method::POST, format!("{migrations}?{query}")));
        assert_eq!(made["spec"]["vmiName"], "vm1");
        assert_eq!(made["metadata"]["generateName"], "kubevirt-migrate-vm-");
        assert_eq!(made["spec"].get("addedNodeSelector").is_some(), query.is_empty());
    }
    // Nothing to take back is no failure.
    let before = world.writes().len();
    assert_eq!(put(&world, "virtualmachineinstances/vm1/evacuate/cancel", "").await.0, 202);
    assert_eq!(world.writes().len(), before);
    let mut leaving = vmi();
    leaving["status"]["evacuationNodeName"] = json!("node1");
    world.put(VMI, leaving);
    for kind in ["virtualmachines", "virtualmachineinstances"] {
        assert_eq!(put(&world, &format!("{kind}/vm1/evacuate/cancel"), "").await.0, 202);
        let (method, path, change) = world.writes().pop().unwrap();
        assert_eq!((method, path), (Method::PATCH, format!("{VMI}?")));
        assert_eq!(
            change,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u-vmi"},
                {"op": "test", "path": "/status/evacuationNodeName", "value": "node1"},
                {"op": "remove", "path": "/status/evacuationNodeName"},
            ])
        );
    }
    let before = world.writes().len();
    let path = "virtualmachineinstances/vm1/evacuate/cancel";
    let (code, message) = put(&world, path, r#"{"evacuationNodeName": "node2"}"#).await;
    assert_eq!(code, 409);
    assert!(message.ends_with("it is to leave node node1, not node2"), "{message}");
    assert_eq!(world.writes().len(), before);
    assert_eq!(put(&world, path, r#"{"evacuationNodeName": "node1"}"#).await.0, 202);
    assert_eq!(world.writes().len(), before + 1);
}

#[tokio::test]
async fn a_webhook_is_answered_over_https() {
    let world = World::new(NO_HANDLER).await;
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r-9", "operation": "CREATE", "object": {"metadata": {}}},
    });
    let path = world.review_path("/migration-validate-create");
    let call = async |body: &str| world.call(Caller::Nobody, "", Method::POST, &path, body).await.unwrap();
    let (code, answer) = call(&review.to_string()).await;
    assert_eq!(code.as_u16(), 200);
    assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("r-9"), &json!(false)));
    assert_eq!(answer["response"]["status"]["code"], 422);
    for body in ["", "[", "{}", r#"{"request":{"uid":7}}"#] {
        let (code, _) = call(body).await;
        assert!(code.is_client_error(), "{body}: {code}");
    }
}
