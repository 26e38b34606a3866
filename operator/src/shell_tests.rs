//! Passes against an API server that notes what it is asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use podvirt_api::v1::KubeVirt;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked, failure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::reconcile::{FINALIZER, Parts};
use crate::target::Own;

type Log = Arc<Mutex<VecDeque<Asked>>>;

/// virt-operator of version `tag` before a server whose answers are a function's.
fn operator(
    tag: &str,
    answer: impl Fn(&Asked) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Parts, Log) {
    let (client, log) = testing::recorded("kubevirt", move |asked| {
        answer(asked).or_else(|| {
            if asked.0.contains("/kubevirts/kubevirt") {
                let mut stored = serde_json::to_value(kubevirt(json!({}), json!({}))).unwrap();
                json_patch::merge(&mut stored, &asked.1);
                return Some((200, stored));
            }
            if asked.0 == "GET /apis/monitoring.coreos.com/v1" {
                return Some(failure(404, "NotFound", "page not found"));
            }
            let empty = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []});
            asked.0.starts_with("GET ").then_some((200, empty))
        })
    });
    let parts = Parts {
        cluster: Cluster::new(client.clone(), "kubevirt"),
        own: Own { operator_image: format!("r/virt-operator:{tag}"), ..Own::default() },
        recorder: Recorder::new(client, "virt-operator", None),
        metrics: Metrics::default(),
    };
    (parts, log)
}

/// What was asked, without reading.
fn writes(log: &Log) -> Vec<Asked> {
    log.lock().unwrap().drain(..).filter(|asked| !asked.0.starts_with("GET ")).collect()
}

fn place(writes: &[Asked], path: &str) -> Option<usize> {
    writes.iter().position(|asked| asked.0.ends_with(path))
}

fn status(writes: &[Asked]) -> Value {
    let at = place(writes, "/kubevirts/kubevirt/status").expect("the status was not written");
    writes[at].1["status"].clone()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).unwrap()
}

fn kubevirt(spec: Value, status: Value) -> KubeVirt {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec, "status": status,
        "metadata": {"name": "kubevirt", "namespace": "kubevirt", "generation": 2, "resourceVersion": "1", "uid": "u"},
    }))
    .unwrap()
}

/// The same, held by virt-operator.
fn held(spec: Value, status: Value) -> KubeVirt {
    let mut held = kubevirt(spec, status);
    held.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    held
}

/// An object that podvirt's virt-operator has applied, as lists have it.
fn made(mut metadata: Value) -> Value {
    metadata["managedFields"] = json!([{"manager": "virt-operator", "operation": "Apply"}]);
    json!({"metadata": metadata})
}

fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

/// A daemon as the API server has it once all its pods are new.
fn rolled_out(asked: &Asked) -> Option<(u16, Value)> {
    let mut object = asked.1.clone();
    object["metadata"]["generation"] = json!(1);
    object["status"] = match object["kind"].as_str()? {
        "Deployment" => {
            json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2})
        }
        "DaemonSet" => {
            json!({"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
            "numberAvailable": 2})
        }
        _ => return None,
    };
    Some((200, object))
}

#[tokio::test]
async fn an_installation_goes_wave_by_wave_to_the_end() {
    let (parts, log) = operator("v1.0.0", rolled_out);
    assert!(!Box::pin(parts.pass(held(json!({}), json!({})))).await);
    let writes = writes(&log);
    let at = |path: &str| place(&writes, path).unwrap_or_else(|| panic!("{path} was not written"));
    assert!(
        at("/customresourcedefinitions/virtualmachines.kubevirt.io") < at("/clusterroles/kubevirt-apiserver")
    );
    assert!(at("/clusterroles/kubevirt-apiserver") < at("/deployments/virt-api"));
    assert!(at("/deployments/virt-api") < at("/deployments/virt-controller"));
    assert!(at("/deployments/virt-controller") < at("/daemonsets/virt-handler"));
    let status = status(&writes);
    assert_eq!((&status["phase"], &status["observedGeneration"]), (&json!("Deployed"), &json!(2)));
}

#[tokio::test]
async fn nothing_is_made_before_the_object_is_held() {
    let (parts, log) = operator("v1.0.0", rolled_out);
    assert!(
        !Box::pin(parts.pass(kubevirt(json!({}), json!({})))).await,
        "its change calls for the next pass"
    );
    let writes = writes(&log);
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].0.ends_with("/kubevirts/kubevirt"));
    assert_eq!(writes[0].1["metadata"]["finalizers"], json!([FINALIZER]));
}

#[tokio::test]
async fn an_update_begins_on_the_nodes_and_waits_there() {
    let (parts, log) = operator("v1.1.0", |_| None);
    let old = json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.0.0"});
    assert!(!Box::pin(parts.pass(held(json!({}), old))).await);
    let writes = writes(&log);
    assert!(place(&writes, "/daemonsets/virt-handler").is_some());
    assert_eq!(place(&writes, "/deployments/virt-controller"), None);
    assert_eq!(place(&writes, "/deployments/virt-api"), None);
    let status = status(&writes);
    assert_eq!(condition(&status, "Progressing")["reason"], "UpdateInProgress");
    assert_eq!(condition(&status, "Available")["status"], "True");
}

#[tokio::test]
async fn an_older_version_changes_nothing_and_says_why() {
    let (parts, log) = operator("v0.9.0", rolled_out);
    let newer = json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.0.0"});
    assert!(!Box::pin(parts.pass(held(json!({}), newer))).await, "only a change of the object helps");
    let writes = writes(&log);
    assert_eq!(place(&writes, "/deployments/virt-api"), None);
    assert_eq!(condition(&status(&writes), "Synchronized")["reason"], "DowngradeRefused");
    assert!(writes.iter().any(|asked| asked.1["reason"] == "DowngradeRefused"), "no event");
}

#[tokio::test]
async fn a_server_that_refuses_is_told_of_and_asked_again() {
    let (parts, log) = operator("v1.0.0", |asked| {
        asked
            .0
            .contains("/clusterroles/")
            .then(|| failure(403, "Forbidden", "attempting to grant RBAC permissions"))
    });
    assert!(Box::pin(parts.pass(held(json!({}), json!({})))).await);
    let status = status(&writes(&log));
    let message = condition(&status, "Synchronized")["message"].as_str().unwrap();
    assert!(message.contains("applying ClusterRole") && message.contains("RBAC"), "{message}");
}

#[tokio::test]
async fn what_is_as_it_was_left_is_not_sent_again() {
    let stored =
        list(vec![made(json!({"name": "virt-api", "namespace": "kubevirt", "resourceVersion": "7"}))]);
    let (parts, log) = operator("v1.0.0", move |asked| {
        if asked.0.starts_with("GET ") && asked.0.ends_with("/services") {
            return Some((200, stored.clone()));
        }
        let mut object = rolled_out(asked).map_or(asked.1.clone(), |(_, object)| object);
        object["metadata"]["resourceVersion"] = json!("7");
        asked.0.starts_with("PATCH ").then_some((200, object))
    });
    let mut sent = Vec::new();
    for _ in 0..2 {
        Box::pin(parts.pass(held(json!({}), json!({})))).await;
        sent.push(place(&writes(&log), "/services/virt-api").is_some());
    }
    assert_eq!(sent, [true, false]);
}

#[tokio::test]
async fn a_removal_deletes_kinds_first_and_lets_the_object_go_at_the_end() {
    let there = Arc::new(Mutex::new(true));
    let state = there.clone();
    let (parts, log) = operator("v1.0.0", move |asked| {
        let name = if asked.0.ends_with("/customresourcedefinitions") && *state.lock().unwrap() {
            "virtualmachines.kubevirt.io"
        } else if asked.0.ends_with("/deployments") && *state.lock().unwrap() {
            "virt-api"
        } else {
            return None;
        };
        let list = list(vec![made(json!({"name": name, "namespace": "kubevirt"}))]);
        asked.0.starts_with("GET ").then_some((200, list))
    });
    let mut going = held(json!({}), json!({"phase": "Deployed"}));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Box::pin(parts.pass(going.clone())).await;
    let first = writes(&log);
    assert!(place(&first, "/customresourcedefinitions/virtualmachines.kubevirt.io").is_some());
    assert_eq!(place(&first, "/deployments/virt-api"), None, "controllers are needed to the last object");
    assert_eq!(status(&first)["phase"], "Deleting");
    *there.lock().unwrap() = false;
    Box::pin(parts.pass(going)).await;
    let last = writes(&log);
    assert_eq!(status(&last)["phase"], "Deleted");
    assert_eq!(last[place(&last, "/kubevirts/kubevirt").unwrap()].1["metadata"]["finalizers"], json!([]));
}

/// An API server on which the Prometheus operator is, as far as `state` says: its kinds, and the account.
fn monitored(state: Arc<Mutex<(Vec<&'static str>, bool)>>) -> (Parts, Log) {
    operator("v1.0.0", move |asked| {
        let (kinds, account) = state.lock().unwrap().clone();
        if asked.0 == "GET /apis/monitoring.coreos.com/v1" && !kinds.is_empty() {
            let resource = |name: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": ["list"]});
            let resources: Vec<Value> = kinds.iter().map(|name| resource(name)).collect();
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "resources": resources,
                "groupVersion": "monitoring.coreos.com/v1"});
            return Some((200, list));
        }
        if asked.0.starts_with("GET ") && asked.0.contains("/serviceaccounts/") {
            if account && asked.0 == "GET /api/v1/namespaces/monitoring/serviceaccounts/prometheus-k8s" {
                return Some((
                    200,
                    json!({"metadata": {"name": "prometheus-k8s", "namespace": "monitoring"}}),
                ));
            }
            return Some(failure(404, "NotFound", "not found"));
        }
        if asked.0 == "GET /apis/monitoring.coreos.com/v1/servicemonitors" && account {
            let monitor = made(json!({"name": "prometheus-kubevirt-rules", "namespace": "elsewhere"}));
            return Some((200, list(vec![monitor])));
        }
        rolled_out(asked)
    })
}

const MONITOR: &str = "/namespaces/monitoring/servicemonitors/prometheus-kubevirt-rules";
const RULES: &str = "/namespaces/kubevirt/prometheusrules/prometheus-kubevirt-rules";

#[tokio::test]
async fn what_prometheus_needs_is_made_once_its_kinds_and_its_account_are_there() {
    let state = Arc::new(Mutex::new((vec!["servicemonitors", "prometheusrules"], false)));
    let (parts, log) = monitored(state.clone());
    assert!(!Box::pin(parts.pass(held(json!({}), json!({})))).await, "without an account nothing fails");
    let without = writes(&log);
    assert_eq!(status(&without)["phase"], "Deployed");
    assert!(!without.iter().any(|asked| asked.0.contains("monitoring")), "{without:?}");

    state.lock().unwrap().1 = true;
    Box::pin(parts.pass(held(json!({}), json!({})))).await;
    let with = writes(&log);
    let at = |path: &str| place(&with, path).unwrap_or_else(|| panic!("{path} was not written"));
    let monitor = &with[at(MONITOR)].1;
    assert_eq!(monitor["spec"]["namespaceSelector"]["matchNames"], json!(["kubevirt"]));
    assert_eq!(monitor["metadata"]["labels"]["app.kubernetes.io/managed-by"], "virt-operator");
    assert_eq!(with[at("/rolebindings/kubevirt-monitoring")].1["subjects"][0]["namespace"], "monitoring");
    at("/namespaces/kubevirt/roles/kubevirt-monitoring");
    at("/networkpolicies/podvirt-monitoring");
    at(RULES);
    let elsewhere = at("/namespaces/elsewhere/servicemonitors/prometheus-kubevirt-rules");
    assert!(with[elsewhere].0.starts_with("DELETE "), "Prometheus was there before");
}

#[tokio::test]
async fn of_two_kinds_the_one_that_is_there_is_made() {
    let state = Arc::new(Mutex::new((vec!["prometheusrules"], true)));
    let (parts, log) = monitored(state);
    Box::pin(parts.pass(held(json!({}), json!({})))).await;
    let writes = writes(&log);
    assert!(place(&writes, RULES).is_some());
    assert_eq!((place(&writes, MONITOR), place(&writes, "/roles/kubevirt-monitoring")), (None, None));
}

#[tokio::test]
async fn a_removal_takes_the_monitoring_along() {
    let (parts, log) = monitored(Arc::new(Mutex::new((vec!["servicemonitors"], true))));
    let mut going = held(json!({}), json!({"phase": "Deployed"}));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Box::pin(parts.pass(going)).await;
    let writes = writes(&log);
    let gone = place(&writes, "/namespaces/elsewhere/servicemonitors/prometheus-kubevirt-rules").unwrap();
    assert!(writes[gone].0.starts_with("DELETE "), "{writes:?}");
}

#[tokio::test]
async fn an_installation_of_kubevirts_own_is_left_alone() {
    // As KubeVirt's virt-operator makes objects: the same labels, no server-side apply.
    let theirs = json!({"metadata": {"name": "virt-handler", "namespace": "kubevirt", "managedFields": [
        {"manager": "virt-operator", "operation": "Update"}]}});
    let (parts, log) = operator("0.2", move |asked| {
        (asked.0.starts_with("GET ") && asked.0.ends_with("/daemonsets"))
            .then(|| (200, list(vec![theirs.clone()])))
    });
    let of_theirs = || held(json!({}), json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.8.0"}));
    assert!(!Box::pin(parts.pass(of_theirs())).await, "no time helps");
    let mut going = of_theirs();
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    for kubevirt in [of_theirs(), going] {
        Box::pin(parts.pass(kubevirt)).await;
        let writes = writes(&log);
        let changed =
            writes.iter().filter(|(asked, _)| !asked.contains("/kubevirts/") && !asked.contains("/events"));
        assert_eq!(changed.count(), 0, "{writes:?}");
        let status = status(&writes);
        let told = condition(&status, "Synchronized");
        assert_eq!(told["reason"], "KubeVirtInstalled");
        assert!(told["message"].as_str().unwrap().contains("DaemonSet virt-handler"), "{told}");
        assert!(writes.iter().any(|asked| asked.1["reason"] == "KubeVirtInstalled"), "no event");
    }
}

#[tokio::test]
async fn an_update_leaves_the_old_daemons_their_rights_until_all_are_new() {
    let is_new = Arc::new(Mutex::new(false));
    let state = is_new.clone();
    let annotations = json!({"kubevirt.io/install-strategy-identifier": "older"});
    let (parts, log) = operator("v1.1.0", move |asked| {
        if asked.0.starts_with("GET ") && asked.0.ends_with("/clusterroles") {
            let mut role = made(json!({"name": "kubevirt-controller", "annotations": annotations}));
            role["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
            role["kind"] = json!("ClusterRole");
            role["rules"] = json!([{"apiGroups": [""], "resources": ["oldthings"], "verbs": ["get"]}]);
            return Some((200, list(vec![role])));
        }
        if *state.lock().unwrap() { rolled_out(asked) } else { None }
    });
    let old = || {
        held(
            json!({}),
            json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.0.0", "observedDeploymentID": "older"}),
        )
    };
    let role = "/clusterroles/kubevirt-controller";
    Box::pin(parts.pass(old())).await;
    let during = writes(&log);
    assert_eq!(place(&during, role), None, "the old virt-controller has its rules");
    let next = place(&during, "/clusterroles/kubevirt-controller-next").expect("the new one has none");
    assert!(next < place(&during, "/daemonsets/virt-handler").unwrap());
    assert!(during[next].1["rules"].as_array().unwrap().len() > 10);
    let binding = place(&during, "/clusterrolebindings/kubevirt-controller-next").unwrap();
    assert_eq!(during[binding].1["roleRef"]["name"], "kubevirt-controller-next");
    assert_eq!(during[binding].1["subjects"][0]["name"], "kubevirt-controller");
    let of_old = "/clusterrolebindings/kubevirt-controller";
    assert_eq!(place(&during, of_old), None, "virt-operator may not give the old rules any more");

    *is_new.lock().unwrap() = true;
    Box::pin(parts.pass(old())).await;
    let after = writes(&log);
    let exact = place(&after, role).expect("the old rules are still there");
    assert!(exact > place(&after, "/deployments/virt-api").unwrap());
    assert!(place(&after, of_old).unwrap() > exact);
    assert_eq!(after[exact].1["rules"], during[next].1["rules"]);
}

#[tokio::test]
async fn an_update_does_not_wait_for_a_node_that_is_away() {
    let ready = |status: &str, since: &str| json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]});
    let now = jiff::Timestamp::now().to_string();
    let long_ago = "2026-01-01T00:00:00Z";
    // Kubernetes does not count a node that it has tainted, where the DaemonSet does not tolerate that.
    for (since, counted, waits) in [(long_ago, 2, false), (long_ago, 1, false), (now.as_str(), 2, true)] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}, "status": ready("Unknown", since)});
        let pod = json!({"metadata": {"name": "virt-handler-x", "labels": {"kubevirt.io": "virt-handler"}},
            "spec": {"nodeName": "n9", "containers": []}, "status": ready("False", "2026-01-01T00:00:00Z")});
        let (parts, log) = operator("v1.1.0", move |asked| match asked.0.as_str() {
            "GET /api/v1/nodes/n9" => Some((200, node.clone())),
            "GET /api/v1/namespaces/kubevirt/pods" => Some((200, list(vec![pod.clone()]))),
            _ => {
                let (code, mut object) = rolled_out(asked)?;
                if object["kind"] == "DaemonSet" {
                    object["status"]["desiredNumberScheduled"] = json!(counted);
                    object["status"]["updatedNumberScheduled"] = json!(1);
                    object["status"]["numberAvailable"] = json!(1);
                }
                Some((code, object))
            }
        });
        let old = json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.0.0", "observedDeploymentID": "older"});
        Box::pin(parts.pass(held(json!({}), old))).await;
        let writes = writes(&log);
        // Kubernetes replaces no other pod while as many are unavailable as may be.
        let daemon = &writes[place(&writes, "/daemonsets/virt-handler").unwrap()].1;
        let most = &daemon["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
        assert_eq!(*most, json!(if waits { 1 } else { 2 }), "{since}");
        assert_eq!(place(&writes, "/deployments/virt-api").is_none(), waits, "{since}");
        let status = status(&writes);
        let degraded = condition(&status, "Degraded");
        if waits {
            assert_eq!(degraded["reason"], "UpdateInProgress");
        } else {
            assert_eq!(status["observedKubeVirtVersion"], "v1.1.0");
            assert_eq!((&degraded["status"], &degraded["reason"]), (&json!("True"), &json!("NodesNotReady")));
            assert!(degraded["message"].as_str().unwrap().ends_with(": n9"), "{degraded}");
        }
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_deleted_does_not_keep_the_others() {
    let names = ["podvirt-old-a", "podvirt-old-b"];
    let (parts, log) = operator("v1.0.0", move |asked| {
        if asked.0.starts_with("GET ") && asked.0.ends_with("/services") {
            let items = names.map(|name| made(json!({"name": name, "namespace": "kubevirt"})));
            return Some((200, list(items.to_vec())));
        }
        if asked.0.starts_with("DELETE ") && asked.0.ends_with(names[0]) {
            return Some(failure(403, "Forbidden", "no"));
        }
        rolled_out(asked)
    });
    assert!(Box::pin(parts.pass(held(json!({}), json!({})))).await, "it is tried again");
    let writes = writes(&log);
    assert!(place(&writes, names[1]).is_some(), "{writes:?}");
    assert!(condition(&status(&writes), "Synchronized")["message"].as_str().unwrap().contains(names[0]));
}
