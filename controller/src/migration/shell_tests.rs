//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Error, Shared, one};
use crate::metrics::Metrics;
use crate::settings::{Cluster, Settings};
use crate::template::pod_name;
use crate::vmi::View;

/// Asked before a pod is made.
const QUOTAS: &str = "GET /api/v1/namespaces/shop/resourcequotas";

/// What the API server does with a request; `None`: what was sent comes back.
type Answer = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync>;

struct Server {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    shared: Shared,
    /// Fills the caches while it lives.
    _writer: reflector::store::Writer<VirtualMachineInstance>,
}

impl Server {
    fn new(machines: &[Value], migrations: &[Value], answer: Answer) -> Self {
        // A namespace without quotas.
        let (client, asked) = testing::recorded("shop", move |asked| match asked.0.as_str() {
            QUOTAS => Some((
                200,
                json!({"kind": "ResourceQuotaList", "apiVersion": "v1", "metadata": {}, "items": []}),
            )),
            _ => answer(asked),
        });
        let (view, mut machine_writer) = View::new();
        machine_writer.apply_watcher_event(&Event::Init);
        for machine in machines {
            let machine = serde_json::from_value(machine.clone()).unwrap();
            machine_writer.apply_watcher_event(&Event::InitApply(machine));
        }
        machine_writer.apply_watcher_event(&Event::InitDone);
        view.fill_pods();
        let context = Context {
            client: client.clone(),
            cluster: Cluster::fixed(Settings::default()),
            launcher_image: "launcher:1".into(),
            recorder: Recorder::new(client, "virt-controller", None),
            metrics: Metrics::new(&mut Default::default()),
            view,
            nodes: kube::runtime::reflector::store().0,
            storage: crate::storage::Storage::new().0,
        };
        let shared = Shared::new(context);
        let list = migrations.iter().map(|migration| Event::InitApply(typed(migration)));
        for event in [Event::Init].into_iter().chain(list).chain([Event::InitDone]) {
            shared.apply(&event);
        }
        Server { asked, shared, _writer: machine_writer }
    }

    /// What was asked since the last call, events by their reasons alone.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let told = |(what, body): Asked| match body["reason"].as_str() {
            Some(reason) if what.ends_with("/events") => format!("event {reason}"),
            _ => what,
        };
        asked.into_iter().filter(|(what, _)| what != QUOTAS).map(told).collect()
    }
}

fn machine(more: Value) -> Value {
    let mut vmi = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "resourceVersion": "7"},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
        "status": {"phase": "Running", "nodeName": "n1", "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    });
    json_patch::merge(&mut vmi, &more);
    vmi
}

fn migration(phase: &str, more: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "move", "namespace": "shop", "uid": "j1", "resourceVersion": "3",
            "finalizers": ["kubevirt.io/migrationJobFinalize"]},
        "spec": {"vmiName": "web"},
        "status": {"phase": phase},
    });
    json_patch::merge(&mut object, &more);
    object
}

fn typed(object: &Value) -> Migration {
    serde_json::from_value(object.clone()).unwrap()
}

fn failure(code: u16, reason: &str) -> Option<(u16, Value)> {
    Some(testing::failure(code, reason, &format!("because of {reason}")))
}

fn target() -> Value {
    json!({"metadata": {"name": pod_name("web", "j1"), "namespace": "shop", "uid": "p2",
        "labels": {"kubevirt.io/migrationJobUID": "j1"},
        "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web",
            "uid": "m1", "controller": true}]},
        "spec": {"containers": [{"name": "compute"}], "nodeName": "n2"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "compute", "image": "launcher:1",
            "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]}})
}

const DEFINITION: &str = "GET /apis/k8s.cni.cncf.io/v1/namespaces/shop/network-attachment-definitions/blue";
const PODS: &str = "POST /api/v1/namespaces/shop/pods";
const MACHINE: &str = "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";
const STATUS: &str =
    "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/move/status";
const OWN: &str = "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/move";
const POLICIES: &str = "GET /apis/migrations.kubevirt.io/v1alpha1/migrationpolicies";

fn get_target() -> String {
    format!("GET /api/v1/namespaces/shop/pods/{}", pod_name("web", "j1"))
}

#[tokio::test]
async fn what_was_let_start_counts_before_the_cache_shows_it() {
    let all: Vec<Value> = (1..=3)
        .map(|n| {
            migration(
                "Pending",
                json!({"metadata": {"name": format!("move-{n}"), "uid": format!("j{n}")},
            "spec": {"vmiName": format!("web-{n}")}}),
            )
        })
        .collect();
    let machines: Vec<Value> = (1..=3)
        .map(|n| machine(json!({"metadata": {"name": format!("web-{n}"), "uid": format!("m{n}")}})))
        .collect();
    let server = Server::new(&machines, &all, Box::new(|_| None));
    for (migration, made) in all.iter().zip([true, true, false]) {
        one(&typed(migration), &server.shared).await.unwrap();
        assert_eq!(server.asked().contains(&PODS.to_owned()), made, "two may leave a node");
    }
    server.shared.stop("j1");
    one(&typed(&all[2]), &server.shared).await.unwrap();
    assert_eq!(server.asked(), [""; 0], "j1 goes first, its turn is remembered no more");
}

#[tokio::test]
async fn a_pod_that_is_refused_is_told_once_and_takes_no_turn() {
    let pending = migration("Pending", json!({}));
    let server = Server::new(
        &[machine(json!({}))],
        std::slice::from_ref(&pending),
        Box::new(|(what, _)| if what == PODS { failure(403, "Forbidden") } else { None }),
    );
    let error = one(&typed(&pending), &server.shared).await.unwrap_err();
    assert!(matches!(error, Error::Create { .. }), "{error}");
    let urgent = json!({"metadata": {"uid": "j2"}, "spec": {"priority": "system-critical"}});
    server.shared.apply(&Event::Apply(typed(&migration("Pending", urgent))));
    let limits = super::admit::Limits { cluster: 1, node: 1 };
    assert!(server.shared.queue.is_turn("j2", limits, Timestamp::now()));
    let patch = {
        let asked = server.asked.lock().unwrap();
        asked.iter().find(|(what, _)| what == STATUS).unwrap().1.clone()
    };
    assert_eq!(patch["metadata"]["resourceVersion"], "3");
    assert_eq!(patch["status"]["conditions"][0]["type"], "migrationRejectedByResourceQuota");
    assert_eq!(server.asked(), [PODS, STATUS, "event FailedCreate"]);
}

#[tokio::test]
async fn a_target_pod_asks_for_what_its_networks_take_once_these_exist() {
    let pending = migration("Pending", json!({}));
    let networks = json!([{"name": "blue", "multus": {"networkName": "blue"}}]);
    let interfaces = json!([{"name": "blue", "bridge": {}}]);
    let machine =
        machine(json!({"spec": {"networks": networks, "domain": {"devices": {"interfaces": interfaces}}}}));
    let server = |there: bool| {
        let annotations = json!({"k8s.v1.cni.cncf.io/resourceName": "example.com/port"});
        let definition = json!({"metadata": {"name": "blue", "annotations": annotations}});
        Server::new(
            std::slice::from_ref(&machine),
            std::slice::from_ref(&pending),
            Box::new(move |(what, _)| match what.as_str() {
                DEFINITION if there => Some((200, definition.clone())),
                DEFINITION => failure(404, "NotFound"),
                _ => None,
            }),
        )
    };
    let without = server(false);
    let error = one(&typed(&pending), &without.shared).await.unwrap_err();
    assert!(matches!(error, Error::Attachments(_)), "{error}");
    let patch = {
        let asked = without.asked.lock().unwrap();
        asked.iter().find(|(what, _)| what == STATUS).unwrap().1.clone()
    };
    let message = "the target pod could not be made: no such NetworkAttachmentDefinition: shop/blue";
    assert_eq!(patch["status"]["conditions"][0]["message"], message);
    assert_eq!(without.asked(), [DEFINITION, STATUS, "event FailedCreate"]);

    let with = server(true);
    one(&typed(&pending), &with.shared).await.unwrap();
    let asked = with.asked.lock().unwrap().clone();
    let (_, pod) = asked.iter().find(|(what, _)| what == PODS).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["example.com/port"], "1");
}

#[tokio::test]
async fn a_hand_over_writes_the_machine_alone_and_on_the_version_that_was_seen() {
    let scheduled = migration("Scheduled", json!({}));
    let policy = json!({"items": [{"metadata": {"name": "slow"},
        "spec": {"selectors": {"namespaceSelector": {"team": "a"}}, "bandwidthPerMigration": "1Mi"}}]});
    for stale in [false, true] {
        let policy = policy.clone();
        let answer: Answer = Box::new(move |(what, _)| match what.as_str() {
            POLICIES => Some((200, policy.clone())),
            "GET /api/v1/namespaces/shop" => {
                Some((200, json!({"metadata": {"name": "shop", "labels": {"team": "a"}}})))
            }
            MACHINE if stale => failure(409, "Conflict"),
            what if what == get_target() => Some((200, target())),
            _ => None,
        });
        let server = Server::new(&[machine(json!({}))], std::slice::from_ref(&scheduled), answer);
        one(&typed(&scheduled), &server.shared).await.unwrap();
        let (_, body) =
            server.asked.lock().unwrap().iter().find(|(what, _)| what == MACHINE).unwrap().clone();
        assert_eq!(body["metadata"]["resourceVersion"], "7");
        assert_eq!(body["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"], "n2");
        let state = &body["status"]["migrationState"];
        assert_eq!((&state["migrationUid"], &state["migrationPolicyName"]), (&json!("j1"), &json!("slow")));
        assert_eq!(state["migrationConfiguration"]["bandwidthPerMigration"], "1Mi");
        assert_eq!(
            server.asked().last().map(String::as_str),
            Some(MACHINE),
            "the phase follows what is seen"
        );
    }
}

#[tokio::test]
async fn a_pod_that_the_cache_does_not_show_is_deleted_before_the_finalizer_goes() {
    let failed = migration("Failed", json!({}));
    let there: Answer = Box::new(|(what, _)| (*what == get_target()).then(|| (200, target())));
    let server = Server::new(&[machine(json!({}))], std::slice::from_ref(&failed), there);
    one(&typed(&failed), &server.shared).await.unwrap();
    let delete = format!("DELETE /api/v1/namespaces/shop/pods/{}", pod_name("web", "j1"));
    let body = server.asked.lock().unwrap().iter().find(|(what, _)| *what == delete).unwrap().1.clone();
    assert_eq!(body["preconditions"]["uid"], "p2");
    assert!(!server.asked().contains(&OWN.to_owned()));

    let gone: Answer =
        Box::new(|(what, _)| if *what == get_target() { failure(404, "NotFound") } else { None });
    let server = Server::new(&[machine(json!({}))], std::slice::from_ref(&failed), gone);
    one(&typed(&failed), &server.shared).await.unwrap();
    assert_eq!(server.asked(), [get_target(), OWN.to_owned()]);
}

#[tokio::test]
async fn an_end_is_told_on_the_machine_too() {
    let running = migration("Running", json!({}));
    let vmi = machine(
        json!({"status": {"migrationState": {"migrationUid": "j1", "failed": true, "completed": true,
        "failureReason": "no route"}}}),
    );
    let answer: Answer = Box::new(|(what, _)| (*what == get_target()).then(|| (200, target())));
    let server = Server::new(&[vmi], std::slice::from_ref(&running), answer);
    one(&typed(&running), &server.shared).await.unwrap();
    assert_eq!(
        server.asked(),
        [get_target().as_str(), STATUS, "event FailedMigration", "event FailedMigration"]
    );
}
