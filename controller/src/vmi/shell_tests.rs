//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Error, Shared, one};
use super::pods::Pods;
use crate::attempt::Attempts;
use crate::data::DataVolumes;
use crate::expectations::Expectations;
use crate::metrics::Metrics;
use crate::settings::{Cluster, Settings};
use crate::template::pod_name;

/// Asked before a pod is made.
const QUOTAS: &str = "GET /api/v1/namespaces/shop/resourcequotas";

/// What the API server does with a request; `None`: what was sent comes back.
type Answer = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync>;

struct Server {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    shared: Shared,
}

impl Server {
    fn new(answer: Answer) -> Self {
        // A namespace without quotas.
        let (client, asked) = testing::recorded("shop", move |asked| match asked.0.as_str() {
            QUOTAS => Some((
                200,
                json!({"kind": "ResourceQuotaList", "apiVersion": "v1", "metadata": {}, "items": []}),
            )),
            _ => answer(asked),
        });
        let pods = Arc::new(Pods::default());
        let expectations = Expectations::default();
        for event in [Event::Init, Event::InitDone] {
            pods.apply(event, &expectations);
        }
        let context = Context {
            client: client.clone(),
            cluster: Cluster::fixed(Settings::default()),
            launcher_image: "launcher:1".into(),
            recorder: Recorder::new(client, "virt-controller", None),
            metrics: Metrics::new(&mut Default::default()),
            data: DataVolumes::new().0,
            storage: crate::storage::Storage::new().0,
        };
        let attempts = Attempts::new("vmi", context.metrics.clone());
        Server {
            asked,
            shared: Shared {
                context,
                pods,
                claims_told: Default::default(),
                ends: Default::default(),
                expectations,
                attempts,
            },
        }
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

fn machine(more: Value) -> VirtualMachineInstance {
    let mut vmi = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "resourceVersion": "7",
            "finalizers": ["foregroundDeleteVirtualMachine"]},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
        "status": {"phase": "Pending", "conditions": [
            {"type": "Ready", "status": "False", "reason": "PodNotExists", "message": "there is no launcher pod"},
            {"type": "LiveMigratable", "status": "True"},
        ], "migrationMethod": "LiveMigration"},
    });
    json_patch::merge(&mut vmi, &more);
    serde_json::from_value(vmi).unwrap()
}

fn failure(code: u16, reason: &str) -> Option<(u16, Value)> {
    Some(testing::failure(code, reason, &format!("because of {reason}")))
}

const PODS: &str = "POST /api/v1/namespaces/shop/pods";
const MACHINE: &str = "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";
const READ_MACHINE: &str = "GET /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";

fn launcher(machine: &str) -> Value {
    json!({"metadata": {"name": pod_name("web", "m1"), "namespace": "shop", "uid": "p1", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": machine,
            "controller": true}]}})
}

#[tokio::test]
async fn a_pod_is_asked_for_once_also_while_the_cache_lags() {
    let server = Server::new(Box::new(|(what, _)| (what == PODS).then(|| (201, launcher("m1")))));
    let vmi = machine(json!({}));
    one(&vmi, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [PODS, "event SuccessfulCreate"]);
    one(&vmi, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [""; 0], "the pod was not seen yet");
    assert!(server.shared.expectations.wait("m1", Instant::now()).is_some());
    let pod: Pod = serde_json::from_value(launcher("m1")).unwrap();
    server.shared.pods.apply(Event::Apply(pod), &server.shared.expectations);
    one(&vmi, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [MACHINE], "it is seen: Scheduling");
}

#[tokio::test]
async fn a_pod_that_is_there_already_is_taken_if_it_is_the_machines() {
    for (owner, mine) in [("m1", true), ("m0", false)] {
        let server = Server::new(Box::new(move |(what, _)| {
            if what == PODS { failure(409, "AlreadyExists") } else { Some((200, launcher(owner))) }
        }));
        let result = one(&machine(json!({})), &server.shared).await;
        assert!(if mine { result.is_ok() } else { matches!(result, Err(Error::Taken(_))) }, "{result:?}");
        assert_eq!(server.asked().len(), 2, "it was tried, then looked at");
    }
}

#[tokio::test]
async fn a_pod_that_is_refused_is_told_on_the_machine() {
    let server = Server::new(Box::new(|(what, _)| match what.as_str() {
        PODS => failure(403, "Forbidden"),
        READ_MACHINE => Some((200, serde_json::to_value(machine(json!({}))).unwrap())),
        _ => None,
    }));
    let error = one(&machine(json!({})), &server.shared).await.unwrap_err();
    assert!(matches!(error, Error::Create { .. }), "{error}");
    let patch = {
        let asked = server.asked.lock().unwrap();
        asked.iter().find(|(what, _)| what == MACHINE).unwrap().1.clone()
    };
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let told = patch["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Synchronized");
    assert_eq!(told.unwrap()["reason"], "FailedCreate");
    assert_eq!(told.unwrap()["message"], "the launcher pod could not be made: because of Forbidden");
    assert_eq!(server.asked(), [PODS, READ_MACHINE, MACHINE, "event FailedCreate"]);
}

#[tokio::test]
async fn a_pod_asks_for_the_devices_of_its_networks_once_these_exist() {
    const DEFINITION: &str =
        "GET /apis/k8s.cni.cncf.io/v1/namespaces/shop/network-attachment-definitions/fast";
    const OTHER: &str = "GET /apis/k8s.cni.cncf.io/v1/namespaces/net/network-attachment-definitions/flat";
    let networks = json!([
        {"name": "default", "pod": {}}, {"name": "fast", "multus": {"networkName": "fast"}},
        {"name": "flat", "multus": {"networkName": "net/flat"}},
    ]);
    let interfaces = json!([
        {"name": "default", "passtBinding": {}}, {"name": "fast", "sriov": {}}, {"name": "flat", "bridge": {}},
    ]);
    let vmi =
        machine(json!({"spec": {"networks": networks, "domain": {"devices": {"interfaces": interfaces}}}}));
    let copy = serde_json::to_value(&vmi).unwrap();
    let server = Server::new(Box::new(move |(what, _)| match what.as_str() {
        DEFINITION | OTHER => failure(404, "NotFound"),
        READ_MACHINE => Some((200, copy.clone())),
        _ => None,
    }));
    let next = one(&vmi, &server.shared).await.unwrap();
    assert_eq!(next, kube::runtime::controller::Action::requeue(std::time::Duration::from_secs(5)));
    let patch = {
        let asked = server.asked.lock().unwrap();
        asked.iter().rfind(|(what, _)| what == MACHINE).unwrap().1.clone()
    };
    let told = patch["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Synchronized");
    let message =
        "the launcher pod could not be made: no such NetworkAttachmentDefinition: shop/fast, net/flat";
    assert_eq!(told.unwrap()["message"], message);
    let asked = server.asked();
    assert!(!asked.contains(&PODS.to_owned()), "{asked:?}");
    assert_eq!(asked.last().unwrap(), "event FailedCreate");

    let definition = |resource: &str| {
        let annotations = json!({"k8s.v1.cni.cncf.io/resourceName": resource});
        Some((200, json!({"metadata": {"name": "n", "annotations": annotations}})))
    };
    let server = Server::new(Box::new(move |(what, _)| match what.as_str() {
        DEFINITION => definition("example.com/vf"),
        OTHER => definition(""),
        _ => None,
    }));
    one(&vmi, &server.shared).await.unwrap();
    let asked = server.asked.lock().unwrap().clone();
    let (_, pod) = asked.iter().find(|(what, _)| what == PODS).unwrap();
    let compute = &pod["spec"]["containers"][0];
    assert_eq!(compute["name"], "compute");
    for amounts in ["requests", "limits"] {
        assert_eq!(compute["resources"][amounts]["example.com/vf"], "1");
        assert_eq!(compute["resources"][amounts].as_object().unwrap().get(""), None);
    }
}

#[tokio::test]
async fn a_decision_from_an_old_copy_does_nothing() {
    let server =
        Server::new(Box::new(|(what, _)| if what == MACHINE { failure(409, "Conflict") } else { None }));
    let vmi = machine(json!({"status": {"conditions": []}}));
    one(&vmi, &server.shared).await.unwrap();
    assert_eq!(server.asked(), [MACHINE], "no pod, no event");
}

#[tokio::test]
async fn only_the_very_pod_that_was_seen_is_deleted() {
    let server =
        Server::new(Box::new(
            |(what, _)| {
                if what.starts_with("DELETE") { failure(409, "Conflict") } else { None }
            },
        ));
    let pod: Pod = serde_json::from_value(launcher("m1")).unwrap();
    server.shared.pods.apply(Event::Apply(pod), &server.shared.expectations);
    let going = machine(json!({"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}}));
    one(&going, &server.shared).await.unwrap();
    let asked = server.asked.lock().unwrap().clone();
    let (what, body) = asked.iter().find(|(what, _)| what.starts_with("DELETE")).unwrap();
    assert_eq!(*what, format!("DELETE /api/v1/namespaces/shop/pods/{}", pod_name("web", "m1")));
    assert_eq!(body["preconditions"]["uid"], "p1");
    assert_eq!(server.shared.expectations.wait("m1", Instant::now()), None, "another pod has the name");
}

#[tokio::test]
async fn the_gate_is_written_without_touching_other_conditions() {
    let server = Server::new(Box::new(|_| None));
    let mut pod = launcher("m1");
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    server.shared.pods.apply(Event::Apply(pod), &server.shared.expectations);
    one(&machine(json!({"status": {"phase": "Running"}})), &server.shared).await.unwrap();
    let asked = server.asked.lock().unwrap().clone();
    let (_, body) = asked.iter().find(|(what, _)| what.ends_with("/status")).unwrap();
    assert_eq!(body["metadata"]["uid"], "p1");
    let conditions = body["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(
        (conditions[0]["type"].as_str(), conditions[0]["status"].as_str()),
        (Some("kubevirt.io/virtual-machine-unpaused"), Some("True"))
    );
}

#[tokio::test]
async fn a_pod_that_the_watch_does_not_show_is_no_lost_pod() {
    const POD: &str = "GET /api/v1/namespaces/shop/pods/";
    // What the API server has under the pod's name, and whether the machine goes on.
    let mut labelled = launcher("m1");
    labelled["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    labelled["metadata"]["labels"] = json!({"kubevirt.io/created-by": "m1"});
    for (there, lives) in
        [(Some(launcher("m1")), true), (Some(labelled), true), (Some(launcher("m0")), false), (None, false)]
    {
        for more in [
            json!({"status": {"phase": "Running"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}, "status": {"phase": "Running"}}),
        ] {
            let answer = there.clone();
            let server = Server::new(Box::new(move |(what, _)| match &answer {
                _ if !what.starts_with(POD) => None,
                Some(pod) => Some((200, pod.clone())),
                None => failure(404, "NotFound"),
            }));
            let next = one(&machine(more.clone()), &server.shared).await.unwrap();
            let asked = server.asked.lock().unwrap().clone();
            assert_eq!(asked[0].0, format!("{POD}{}", pod_name("web", "m1")));
            let failed = asked.iter().any(|(_, body)| body["status"]["phase"] == "Failed");
            let let_go = asked.iter().any(|(_, body)| body["metadata"].get("finalizers").is_some());
            let deleting = more.get("metadata").is_some();
            assert_eq!((failed, let_go), (!lives, !lives && deleting), "{there:?} {more}");
            let again = kube::runtime::controller::Action::requeue(std::time::Duration::from_secs(5));
            assert_eq!(next == again, lives, "{next:?}");
        }
    }
}

#[tokio::test]
async fn claims_are_read_until_they_are_mounted_and_are_told_in_the_status() {
    const CLAIM: &str = "GET /api/v1/namespaces/shop/persistentvolumeclaims/data";
    let claim = json!({"metadata": {"name": "data", "namespace": "shop"},
        "spec": {"accessModes": ["ReadWriteMany"]},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    let server = Server::new(Box::new(move |(what, _)| (what == CLAIM).then(|| (200, claim.clone()))));
    let pod: Pod = serde_json::from_value(launcher("m1")).unwrap();
    server.shared.pods.apply(Event::Apply(pod), &server.shared.expectations);
    let volumes = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]);
    for (phase, reads) in
        [("Scheduling", 1), ("Scheduling", 1), ("Running", 1), ("Running", 0), ("Failed", 0)]
    {
        let vmi = machine(json!({"spec": {"volumes": volumes}, "status": {"phase": phase}}));
        one(&vmi, &server.shared).await.unwrap();
        let asked = std::mem::take(&mut *server.asked.lock().unwrap());
        assert_eq!(asked.iter().filter(|(what, _)| what == CLAIM).count(), reads, "{phase}");
        let patch = asked.iter().find(|(what, _)| what == MACHINE).map(|(_, body)| body.clone());
        let told =
            patch.unwrap_or_default()["status"]["volumeStatus"][0]["persistentVolumeClaimInfo"].clone();
        assert_eq!(told["accessModes"][0] == "ReadWriteMany", phase != "Failed", "{told}");
    }
}
