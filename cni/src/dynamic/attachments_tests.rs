use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use podvirt_daemon::backoff::Backoff;
use podvirt_daemon::events::Recorder;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::*;
use crate::dynamic::difference::difference;
use crate::dynamic::isolation::tests::isolation;
use crate::dynamic::multus::Multus;
use crate::dynamic::sandbox::{Runtime, Sandbox};
use crate::dynamic::tests::pod;

/// What the cluster and Multus' daemon were asked for, and the events; in their order.
type Log = Arc<Mutex<Vec<String>>>;

/// A node without a container runtime.
struct Node {
    log: Log,
    dynamic: Dynamic,
    _directory: TempDir,
}

/// A node where Multus' daemon cannot do what is `failing` (`ADD podred`); the controller has these arguments.
fn node(failing: &'static [&'static str], arguments: &[&str]) -> Node {
    let log = Log::default();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("multus.sock");
    tokio::spawn(daemon(UnixListener::bind(&socket).unwrap(), log.clone(), failing));
    let client = cluster(log.clone());
    let dynamic = Dynamic {
        recorder: Recorder::new(client.clone(), "podvirt-cni", None),
        client,
        runtime: Runtime::at(&directory.path().join("runtime.sock")),
        multus: Multus::at(&socket),
        isolation: isolation(arguments).unwrap(),
        backoff: Backoff::default(),
    };
    Node { log, dynamic, _directory: directory }
}

async fn daemon(listener: UnixListener, log: Log, failing: &'static [&'static str]) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let log = log.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let log = log.clone();
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let told = |key: &str| body["env"][key].as_str().unwrap().to_owned();
                let what = format!("{} {}", told("CNI_COMMAND"), told("CNI_IFNAME"));
                let (code, answer) = if failing.contains(&what.as_str()) {
                    (400_u16, r#"{"code": 100, "msg": "no address is left"}"#)
                } else {
                    (200, r#"{"Result": {}}"#)
                };
                log.lock().unwrap().push(what);
                let body = Full::new(Bytes::from_static(answer.as_bytes()));
                Ok::<_, hyper::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        // The client may be gone before the connection ends.
        let _ =
            server::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await;
    }
}

/// An API server with every network but those of the name `gone`.
fn cluster(log: Log) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = log.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, value, what) = answer(&path, body);
            log.lock().unwrap().push(what);
            let mut response = Response::new(Body::from(value.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "shop")
}

/// The answer to a request, and what the request is in the log.
fn answer(path: &str, body: Value) -> (u16, Value, String) {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., namespace, "network-attachment-definitions", "gone"] => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "no"});
            (404, status, format!("get {namespace}/gone"))
        }
        [.., namespace, "network-attachment-definitions", name] => {
            let network = json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"config": r#"{"type": "bridge"}"#},
            });
            (200, network, format!("get {namespace}/{name}"))
        }
        [.., "events"] => {
            let what = format!("{}: {}", body["reason"].as_str().unwrap(), body["note"].as_str().unwrap());
            (201, body, what)
        }
        _ => (500, Value::Null, path.to_owned()),
    }
}

fn asking(networks: &Value, status: &Value) -> Pod {
    pod(&json!({"metadata": {"annotations": {
        "k8s.v1.cni.cncf.io/networks": networks.to_string(),
        "k8s.v1.cni.cncf.io/network-status": status.to_string(),
    }}}))
}

impl Node {
    /// One attempt with a pod: the log, what failed, and what the pod has then.
    async fn attempt(&self, networks: &Value, status: &Value) -> (Vec<String>, Vec<String>, Told) {
        let pod = asking(networks, status);
        let wanted = difference(&pod).unwrap();
        let mut told = Told::of(&pod).unwrap().unwrap();
        let sandbox = Sandbox { id: "s1".into(), namespace: "/var/run/netns/cni-1".into() };
        let subject = Subject { namespace: "shop", name: "web", uid: "u1", sandbox: &sandbox };
        let errors = Box::pin(self.dynamic.carry_out(&pod, subject, &wanted, &mut told)).await;
        (self.log(), errors.iter().map(|error| chain(error)).collect(), told)
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

/// The reason and the message of the event for an interface that was not attached.
fn not_attached(interface: &str, network: &str, why: &str) -> String {
    format!("FailedAddingInterface: interface {interface} on the network {network}: {why}")
}

#[tokio::test]
async fn what_fails_does_not_keep_the_others_back() {
    let node = node(&["DEL podblue", "ADD podgrey"], &[]);
    let networks = json!([
        {"name": "red", "interface": "podblue"},
        {"name": "gone", "interface": "podnew"},
        {"name": "grey", "interface": "podgrey"},
        {"name": "red", "interface": "podgreen"},
    ]);
    let status = json!([
        {"name": "shop/blue", "interface": "podblue"},
        {"name": "shop/gone", "interface": "podgone"},
        {"name": "shop/green", "interface": "podgreen"},
    ]);
    let (log, errors, told) = node.attempt(&networks, &status).await;
    let gone = "the NetworkAttachmentDefinition is not usable: it is not there";
    assert_eq!(
        log,
        [
            "get shop/blue",
            "DEL podblue",
            "FailedRemovingInterface: interface podblue on the network shop/blue: no address is left",
            "get shop/gone",
            &format!("FailedRemovingInterface: interface podgone on the network shop/gone: {gone}"),
            "get shop/green",
            "DEL podgreen",
            "RemovedInterface: The pod is detached from shop/green; its interface was podgreen.",
            // Its detach has failed.
            &not_attached(
                "podblue",
                "shop/red",
                "the pod has this interface already, on the network shop/blue"
            ),
            "get shop/gone",
            &not_attached("podnew", "shop/gone", gone),
            "get shop/grey",
            "ADD podgrey",
            "DEL podgrey",
            &not_attached("podgrey", "shop/grey", "no address is left"),
            "get shop/red",
            "ADD podgreen",
            "AddedInterface: The pod is attached to shop/red by the interface podgreen.",
        ]
    );
    let events: Vec<&str> = log
        .iter()
        .filter_map(|line| line.strip_prefix("Failed")?.split_once(": "))
        .map(|(_, why)| why)
        .collect();
    assert_eq!(errors, events);
    let has =
        ["podblue", "podgone", "podgreen", "podnew", "podgrey"].map(|interface| told.network(interface));
    assert_eq!(has, [Some("shop/blue"), Some("shop/gone"), Some("shop/red"), None, None]);
}

#[tokio::test]
async fn an_interface_that_the_pod_has_is_left_alone() {
    let node = node(&[], &[]);
    let networks =
        json!([{"name": "a"}, {"name": "b", "interface": "net1"}, {"name": "c", "interface": "eth0"}]);
    let status = json!([
        {"name": "pods", "interface": "eth0", "default": true},
        {"name": "shop/a", "interface": "net1"},
    ]);
    let (log, errors, told) = node.attempt(&networks, &status).await;
    assert_eq!(
        log,
        [
            not_attached("net1", "shop/b", "the pod has this interface already, on the network shop/a"),
            not_attached("eth0", "shop/c", "the pod has this interface already, on the network pods"),
        ]
    );
    assert_eq!(errors.len(), 2);
    assert_eq!(Some(told), Told::of(&asking(&networks, &status)).unwrap());
}

#[tokio::test]
async fn an_interface_that_is_named_twice_is_not_made() {
    let node = node(&[], &[]);
    let networks = json!([
        {"name": "red", "interface": "podred"},
        {"name": "blue", "interface": "podred"},
        {"name": "grey", "interface": "podgrey"},
    ]);
    let (log, errors, _) = node.attempt(&networks, &json!([])).await;
    let why = "the annotation k8s.v1.cni.cncf.io/networks names this interface more than once";
    assert_eq!(
        log,
        [
            not_attached("podred", "shop/red", why).as_str(),
            &not_attached("podred", "shop/blue", why),
            "get shop/grey",
            "ADD podgrey",
            "AddedInterface: The pod is attached to shop/grey by the interface podgrey.",
        ]
    );
    assert_eq!(errors.len(), 2);
}

#[tokio::test]
async fn a_network_of_another_namespace_is_refused_where_they_are_isolated() {
    let networks = json!([
        {"name": "red", "namespace": "net", "interface": "podred"},
        {"name": "grey", "namespace": "lab", "interface": "podgrey"},
    ]);
    // What a pod has may end all the same.
    let status = json!([{"name": "net/blue", "interface": "podblue"}]);
    let isolated = node(&[], &["--namespace-isolation", "--global-namespaces=lab"]);
    let (log, errors, _) = isolated.attempt(&networks, &status).await;
    let why = "networks of the namespace net are refused (--namespace-isolation); allowed are those of the \
               namespaces shop, lab";
    assert_eq!(
        log,
        [
            "get net/blue",
            "DEL podblue",
            "RemovedInterface: The pod is detached from net/blue; its interface was podblue.",
            &not_attached("podred", "net/red", why),
            "get lab/grey",
            "ADD podgrey",
            "AddedInterface: The pod is attached to lab/grey by the interface podgrey.",
        ]
    );
    assert_eq!(errors.len(), 1);
    let (log, errors, _) = node(&[], &[]).attempt(&networks, &json!([])).await;
    assert!(errors.is_empty() && log.contains(&"ADD podred".to_owned()), "{log:?}");
}

#[tokio::test]
async fn what_fails_before_the_first_interface_is_told_as_well() {
    let coming = node(&[], &[]);
    let api = Api::namespaced(coming.dynamic.client.clone(), "shop");
    let networks = json!([{"name": "red", "interface": "podred"}]);
    let pod = asking(&networks, &json!([]));
    assert!(matches!(Box::pin(coming.dynamic.settle(&api, &pod)).await, Err(Error::Sandbox(_))));
    let log = coming.log();
    assert!(
        matches!(log.as_slice(), [one] if one.starts_with("FailedAddingInterface: ask the container runtime: ")),
        "{log:?}"
    );

    let going = node(&[], &[]);
    let pod = asking(&json!([]), &json!([{"name": "shop/red", "interface": "podred"}]));
    assert!(Box::pin(going.dynamic.settle(&api, &pod)).await.is_err());
    let log = going.log();
    assert!(matches!(log.as_slice(), [one] if one.starts_with("FailedRemovingInterface: ")), "{log:?}");

    let unreadable = node(&[], &[]);
    let pod = asking(&networks, &json!({}));
    assert!(matches!(Box::pin(unreadable.dynamic.reconcile(&pod)).await, Err(Error::Annotation(_))));
    let log = unreadable.log();
    let what = "FailedAddingInterface: the pod's annotation k8s.v1.cni.cncf.io/network-status is not a list";
    assert!(matches!(log.as_slice(), [one] if one.starts_with(what)), "{log:?}");
}

#[test]
fn a_network_has_a_name_and_a_configuration() {
    let named = |text: &str| -> Value { serde_json::from_str(&configuration(text, "red").unwrap()).unwrap() };
    assert_eq!(named(r#"{"type": "bridge"}"#), json!({"type": "bridge", "name": "red"}));
    assert_eq!(named(r#"{"type": "bridge", "name": "own"}"#)["name"], "own");
    for (text, why) in [("", "spec.config is empty"), ("{", "not JSON"), ("[]", "not an object")] {
        assert!(configuration(text, "red").unwrap_err().contains(why));
    }
}
