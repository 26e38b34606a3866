//! What a node learns of machines: all of its own, and of others where they are.

use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::NO_HANDLER;
use crate::world::{Caller, VMI, World, vmi};

const OWN: &str = "/apis/subresources.kubevirt.io/v1/nodevirtualmachineinstances";
const MACHINES: &str = "/apis/kubevirt.io/v1/virtualmachineinstances";
const HERE: &str = "labelSelector=kubevirt.io%2FnodeName%3Dnode1";

async fn get(world: &World, user: &str, node: Option<&str>, path: &str) -> (u16, Value) {
    let answer = world.send(Caller::FrontProxy, user, node, Method::GET, path, "").await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_node_lists_its_own_machines() {
    let world = World::new(NO_HANDLER).await;
    let list = json!({"kind": "VirtualMachineInstanceList", "apiVersion": "kubevirt.io/v1", "metadata": {}, "items": [vmi()]});
    world.put(MACHINES, list.clone());
    let path = format!("{OWN}?{HERE}&limit=500");
    assert_eq!(get(&world, "jane", Some("node1"), &path).await, (200, list));
    let cluster = world.cluster.lock().unwrap();
    assert_eq!(cluster.reads, [format!("{MACHINES}?{HERE}&limit=500")]);
    let asked = &cluster.reviews[0]["spec"];
    assert_eq!(asked["extra"], json!({"authentication.kubernetes.io/node-name": ["node1"]}));
    let attributes = json!({
        "group": "subresources.kubevirt.io", "version": "v1", "verb": "list",
        "resource": "nodevirtualmachineinstances",
    });
    assert_eq!(asked["resourceAttributes"], attributes);
}

#[tokio::test]
async fn no_client_lists_the_machines_of_another_node() {
    let world = World::new(NO_HANDLER).await;
    world.put(MACHINES, json!({"items": [vmi()]}));
    let there = "labelSelector=kubevirt.io%2FnodeName%3Dnode2";
    let [here, there, all] = [HERE, there, ""].map(|query| format!("{OWN}?{query}"));
    for (user, node, path, why) in [
        (
            "jane",
            Some("node1"),
            &there,
            "labelSelector: 'kubevirt.io/nodeName=node2' is not allowed to node node1",
        ),
        ("jane", Some("node1"), &all, "labelSelector: '' is not allowed to node node1"),
        ("jane", None, &here, "the token names no node"),
        ("jane", Some(""), &here, "the token names no node"),
        ("mallory", Some("node1"), &here, "\"mallory\" cannot list resource \"nodevirtualmachineinstances\""),
    ] {
        let (code, body) = get(&world, user, node, path).await;
        let said = body["message"].as_str().unwrap_or_default();
        assert!(code == 403 && said.contains(why), "{user} {path}: {code} {body}");
    }
    let answer = world.send(Caller::Nobody, "jane", Some("node1"), Method::GET, &here, "").await.unwrap();
    assert_eq!(answer.status(), 401);
    assert_eq!(world.cluster.lock().unwrap().reads, Vec::<String>::new(), "the API server was asked");
}

#[tokio::test]
async fn a_watch_goes_through_and_ends_with_virt_api() {
    let world = World::new(NO_HANDLER).await;
    let event = json!({"type": "ADDED", "object": vmi()});
    world.put(MACHINES, event.clone());
    let path = format!("{OWN}?{HERE}&watch=true");
    let watch = world.send(Caller::FrontProxy, "jane", Some("node1"), Method::GET, &path, "").await.unwrap();
    assert_eq!(watch.status(), 200);
    assert_eq!(world.cluster.lock().unwrap().reviews[0]["spec"]["resourceAttributes"]["verb"], "watch");
    let mut body = watch.into_body();
    let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), event);
    world.end();
    assert!(body.frame().await.is_none(), "it says more");
    world.ended().await;
}

#[tokio::test]
async fn of_any_machine_a_node_learns_where_it_is() {
    let world = World::new(NO_HANDLER).await;
    let mut machine = vmi();
    machine["spec"]["volumes"] = json!([{"name": "i", "cloudInitNoCloud": {"userData": "secret"}}]);
    world.put(VMI, machine);
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/ns/nodevirtualmachineinstances/vm1";
    let (code, told) = get(&world, "jane", Some("node2"), path).await;
    assert_eq!(
        (code, &told["status"]["nodeName"], &told["metadata"]["uid"]),
        (200, &json!("node1"), &json!("u-vmi"))
    );
    assert!(!told.to_string().contains("secret"), "{told}");
    for (path, code) in [(path.replace("vm1", "vm2"), 404), (path.replace("vm1", "..%2Fvm1"), 404)] {
        assert_eq!(get(&world, "jane", Some("node2"), &path).await.0, code, "{path}");
    }
    assert_eq!(get(&world, "jane", None, path).await.0, 403);
    assert_eq!(get(&world, "mallory", Some("node1"), path).await.0, 403);
    let reads = world.cluster.lock().unwrap().reads.clone();
    assert_eq!(reads, [format!("{VMI}?"), format!("{}?", VMI.replace("vm1", "vm2"))]);
}
