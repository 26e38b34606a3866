//! As much of an API server, with virt-api behind it, as virt-handler sees: VMIs with versions, watches and merge patches;
//! pods; events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::StreamExt;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use super::within;

/// Name of the VMI that most tests are about.
const NAME: &str = "a";

#[derive(Default)]
struct Content {
    version: u64,
    /// A watch cannot begin before this version, or go on from before it.
    oldest: u64,
    /// By their names.
    vmis: BTreeMap<String, Value>,
    pods: Vec<Value>,
    /// How often a pod was asked for since it was put there.
    looks: usize,
    events: Vec<Value>,
    log: Vec<(u64, String)>,
}

/// The server.
#[derive(Clone)]
pub(crate) struct Api {
    content: Arc<Mutex<Content>>,
    changed: Arc<watch::Sender<u64>>,
    address: std::net::SocketAddr,
}

impl Api {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Self { content: Arc::default(), changed: Arc::new(watch::channel(0).0), address };
        api.put_pod(super::pod());
        let router = Router::new()
            .route("/apis/subresources.kubevirt.io/v1/nodevirtualmachineinstances", get(list))
            .route(
                "/apis/subresources.kubevirt.io/v1/namespaces/n/nodevirtualmachineinstances/{name}",
                get(one),
            )
            .route(
                "/apis/kubevirt.io/v1/namespaces/n/virtualmachineinstances/{name}",
                axum::routing::patch(patch),
            )
            .route("/api/v1/namespaces/n/pods/{name}", get(pod_named))
            .route("/apis/events.k8s.io/v1/namespaces/n/events", axum::routing::post(event))
            .with_state(api.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        api
    }

    pub(crate) fn client(&self) -> Client {
        podvirt_daemon::crypto::install();
        Client::try_from(Config::new(format!("http://{}", self.address).parse().unwrap())).unwrap()
    }

    /// Creates or replaces a VMI.
    pub(crate) fn put(&self, vmi: Value) {
        let name = vmi["metadata"]["name"].as_str().unwrap().to_owned();
        self.change(|content, version| {
            let known = content.vmis.insert(name.clone(), vmi);
            content.tell(&name, if known.is_some() { "MODIFIED" } else { "ADDED" }, version);
        });
    }

    /// Changes the VMI.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.edit_of(NAME, edit);
    }

    fn edit_of(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.change(|content, version| {
            edit(content.vmis.get_mut(name).unwrap());
            content.tell(name, "MODIFIED", version);
        });
    }

    /// Removes the VMI.
    pub(crate) fn remove(&self) {
        self.change(|content, version| {
            content.tell(NAME, "DELETED", version);
            content.vmis.remove(NAME);
        });
    }

    /// Removes the VMI and forgets all changes, its own too: a client that watches has to list again.
    pub(crate) fn remove_and_forget(&self) {
        self.change(|content, version| {
            content.vmis.remove(NAME);
            content.oldest = version;
        });
    }

    /// Removes the machine's pod.
    pub(crate) fn remove_pod(&self) {
        let name = super::pod()["metadata"]["name"].clone();
        self.content.lock().unwrap().pods.retain(|known| known["metadata"]["name"] != name);
    }

    /// Creates or replaces a pod; the machine's is there from the beginning.
    pub(crate) fn put_pod(&self, pod: Value) {
        let mut content = self.content.lock().unwrap();
        content.pods.retain(|known| known["metadata"]["name"] != pod["metadata"]["name"]);
        content.pods.push(pod);
        content.looks = 0;
    }

    /// Waits until pods were asked for that often since the last one was put there.
    pub(crate) async fn looked_for_a_pod(&self, times: usize) {
        let mut changed = self.changed.subscribe();
        within("a pod is asked for", async {
            while self.content.lock().unwrap().looks < times {
                changed.changed().await.unwrap();
            }
        })
        .await;
    }

    /// Waits for a VMI as `is` wants it.
    pub(crate) async fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut changed = self.changed.subscribe();
        within(what, async {
            loop {
                changed.borrow_and_update();
                let vmi = self.content.lock().unwrap().vmis.get(NAME).cloned();
                if let Some(vmi) = vmi.filter(&is) {
                    return vmi;
                }
                changed.changed().await.unwrap();
            }
        })
        .await
    }

    pub(crate) async fn wait_phase(&self, phase: &str) -> Value {
        self.wait(phase, |vmi| vmi["status"]["phase"] == phase).await
    }

    /// Waits for an event with this reason; returns what it says.
    pub(crate) async fn wait_event(&self, reason: &str) -> String {
        let mut changed = self.changed.subscribe();
        within(reason, async {
            loop {
                changed.borrow_and_update();
                let events = self.content.lock().unwrap().events.clone();
                if let Some(event) = events.iter().find(|event| event["reason"] == reason) {
                    return event["note"].as_str().unwrap_or_default().to_owned();
                }
                changed.changed().await.unwrap();
            }
        })
        .await
    }

    fn change(&self, change: impl FnOnce(&mut Content, u64)) {
        let mut content = self.content.lock().unwrap();
        content.version += 1;
        let version = content.version;
        change(&mut content, version);
        drop(content);
        self.changed.send_modify(|changes| *changes += 1);
    }
}

impl Content {
    fn tell(&mut self, name: &str, kind: &str, version: u64) {
        let vmi = self.vmis.get_mut(name).unwrap();
        vmi["metadata"]["resourceVersion"] = version.to_string().into();
        let line = format!("{}\n", json!({ "type": kind, "object": vmi }));
        self.log.push((version, line));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Wish {
    watch: bool,
    resource_version: String,
}

async fn list(State(api): State<Api>, Query(wish): Query<Wish>) -> Response {
    if !wish.watch {
        let content = api.content.lock().unwrap();
        let items: Vec<_> = content.vmis.values().cloned().collect();
        return Json(json!({
            "kind": "VirtualMachineInstanceList", "apiVersion": "kubevirt.io/v1",
            "metadata": { "resourceVersion": content.version.to_string() }, "items": items,
        }))
        .into_response();
    }
    let mut seen: u64 = wish.resource_version.parse().unwrap();
    let lines = WatchStream::new(api.changed.subscribe()).map(move |_| {
        let content = api.content.lock().unwrap();
        if seen < content.oldest {
            let expired = status(StatusCode::GONE, "Expired");
            return Ok(Bytes::from(format!("{}\n", json!({ "type": "ERROR", "object": expired }))));
        }
        let new = content.log.iter().filter(|(version, _)| *version > seen);
        let lines: String = new.map(|(_, line)| line.as_str()).collect();
        seen = content.version;
        Ok::<_, std::io::Error>(Bytes::from(lines))
    });
    Body::from_stream(lines.filter(|line| std::future::ready(!matches!(line, Ok(l) if l.is_empty()))))
        .into_response()
}

fn status(code: StatusCode, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": reason, "code": code.as_u16(),
    })
}

fn failure(code: StatusCode, reason: &str) -> Response {
    (code, Json(status(code, reason))).into_response()
}

async fn one(State(api): State<Api>, Path(name): Path<String>) -> Response {
    let content = api.content.lock().unwrap();
    match content.vmis.get(&name) {
        Some(vmi) => Json(vmi).into_response(),
        None => failure(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn patch(State(api): State<Api>, Path(name): Path<String>, body: Bytes) -> Response {
    let patch: Value = serde_json::from_slice(&body).unwrap();
    let known = api.content.lock().unwrap().vmis.get(&name).cloned();
    let Some(known) = known else { return failure(StatusCode::NOT_FOUND, "NotFound") };
    if patch["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"] {
        return failure(StatusCode::CONFLICT, "Conflict");
    }
    api.edit_of(&name, |vmi| json_patch::merge(vmi, &patch));
    Json(api.content.lock().unwrap().vmis.get(&name).cloned()).into_response()
}

async fn pod_named(State(api): State<Api>, Path(name): Path<String>) -> Response {
    let pods = api.content.lock().unwrap().pods.clone();
    api.change(|content, _| content.looks += 1);
    match pods.into_iter().find(|pod| pod["metadata"]["name"] == *name) {
        Some(pod) => Json(pod).into_response(),
        None => failure(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn event(State(api): State<Api>, Json(event): Json<Value>) -> Response {
    api.change(|content, _| content.events.push(event.clone()));
    (StatusCode::CREATED, Json(event)).into_response()
}
