//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Error, Shared, one};
use super::tests::{instance, set};
use crate::metrics::Metrics;
use crate::vmi::View;

/// What the API server does with a request; `None`: what was sent comes back.
type Answer = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync>;

struct Server {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    shared: Shared,
    writer: Writer<VirtualMachineInstance>,
}

impl Server {
    /// A server that has `there` as the replica set is.
    fn new(there: &ReplicaSet, instances: Vec<VirtualMachineInstance>, answer: Answer) -> Self {
        let there = serde_json::to_value(there).unwrap();
        let (client, asked) = testing::recorded("shop", move |asked| {
            answer(asked).or_else(|| (asked.0 == READ).then(|| (200, there.clone())))
        });
        let (view, mut writer) = View::new();
        view.fill_pods();
        writer.apply_watcher_event(&Event::Init);
        for vmi in instances {
            writer.apply_watcher_event(&Event::InitApply(vmi));
        }
        writer.apply_watcher_event(&Event::InitDone);
        let context = Context {
            recorder: Recorder::new(client.clone(), "virt-controller", None),
            client,
            metrics: Metrics::new(&mut Default::default()),
            view,
        };
        Server { asked, shared: Shared::new(context), writer }
    }

    /// What was asked since the last call, events by their reasons alone.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let told = |(what, body): Asked| match body["reason"].as_str() {
            Some(reason) if what.ends_with("/events") => format!("event {reason}"),
            _ => what,
        };
        asked.into_iter().map(told).collect()
    }
}

const READ: &str = "GET /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancereplicasets/web";
const STATUS: &str =
    "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancereplicasets/web/status";
const CREATE: &str = "POST /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances";
const DELETE: &str = "DELETE /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/a";

fn made(uid: &str) -> Option<(u16, Value)> {
    Some((201, serde_json::to_value(instance(uid, "Pending", &json!({}))).unwrap()))
}

#[tokio::test]
async fn what_is_missing_is_made_once_also_while_the_cache_lags() {
    let set = set(&json!({"spec": {"replicas": 1}}));
    let mut server =
        Server::new(&set, vec![], Box::new(|(what, _)| if what == CREATE { made("a") } else { None }));
    one(&set, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [READ, CREATE, "event SuccessfulCreate", STATUS]);
    one(&set, &server.shared).await.unwrap();
    assert!(!server.asked().contains(&CREATE.to_owned()), "the instance was not seen yet");
    assert!(server.shared.expectations.wait("r1", Instant::now()).is_some());
    server.writer.apply_watcher_event(&Event::Apply(instance("a", "Pending", &json!({}))));
    one(&set, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [STATUS]);
    assert_eq!(server.shared.expectations.wait("r1", Instant::now()), None);
}

#[tokio::test]
async fn a_set_that_is_another_one_by_now_does_nothing() {
    let (old, new) =
        (set(&json!({})), set(&json!({"metadata": {"resourceVersion": "6"}, "spec": {"replicas": 0}})));
    let server = Server::new(&new, vec![], Box::new(|_| None));
    one(&old, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [READ]);
}

#[tokio::test]
async fn a_refusal_is_told_on_the_set_and_ends_the_attempt() {
    let set = set(&json!({"spec": {"replicas": 40}}));
    let answer =
        |(what, _): &Asked| (what == CREATE).then(|| testing::failure(403, "Forbidden", "exceeded quota"));
    let server = Server::new(&set, vec![], Box::new(answer));
    let error = one(&set, &server.shared).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { reason: "FailedCreate", .. }), "{error}");
    let written = {
        let asked = server.asked.lock().unwrap();
        asked.iter().find(|(what, _)| what == STATUS).unwrap().1.clone()
    };
    assert_eq!(written["metadata"]["resourceVersion"], "5");
    let condition = &written["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("ReplicaFailure"), &json!("FailedCreate"))
    );
    assert!(condition["message"].as_str().unwrap().ends_with("exceeded quota"), "{condition}");
    let creations = server.asked().iter().filter(|what| *what == CREATE).count();
    assert!(creations < 40, "{creations} were tried");
}

#[tokio::test]
async fn an_excess_instance_is_deleted_by_its_uid_once() {
    let set = set(&json!({"spec": {"replicas": 0}}));
    let server = Server::new(&set, vec![instance("a", "Running", &json!({}))], Box::new(|_| None));
    one(&set, &server.shared).await.unwrap();
    let body = server.asked.lock().unwrap().iter().find(|(what, _)| what == DELETE).unwrap().1.clone();
    assert_eq!(body["preconditions"]["uid"], "a");
    assert_eq!(server.asked(), [READ, DELETE, "event SuccessfulDelete", STATUS]);
    one(&set, &server.shared).await.unwrap();
    assert!(!server.asked().contains(&DELETE.to_owned()), "it is seen to go first");
}

#[tokio::test]
async fn an_orphan_is_adopted_as_it_was_seen() {
    let set = set(&json!({"spec": {"replicas": 1}}));
    let orphan = instance("a", "Running", &json!({"metadata": {"ownerReferences": null}}));
    let server = Server::new(&set, vec![orphan], Box::new(|_| None));
    one(&set, &server.shared).await.unwrap();
    let (what, body) = server.asked.lock().unwrap()[1].clone();
    assert_eq!(what, "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/a");
    let metadata = &body["metadata"];
    assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("a"), &json!("9")));
    assert_eq!(metadata["ownerReferences"][0]["uid"], "r1");
}
