//! A pod without a token and without a certificate, which reaches podvirt's daemons by the cluster's network.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::Api;
use podvirt_api::v1;
use podvirt_e2e::cluster::{ClientPod, Cluster, SOON, Security};
use serde_json::{Value, json};

use super::{HONEST, Honest, PODVIRT, addresses};

/// Maps in a review that is as large as virt-api takes it, by the number of its items.
const MAPS: usize = 290_000;

/// A request: what it is, where it goes, and what it says.
type Request = (String, String, u16, &'static str, String, Value, Value);
/// What it is, the code of the answer, or 0 for a connection that broke, and the answer's start.
type Answer = (String, u16, String);

/// Sends requests from the pod, all at once.
fn ask(cluster: &Cluster, namespace: &str, pod: &str, requests: &[Request]) -> Vec<Answer> {
    let lines: Vec<String> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
    let script = include_str!("ask.py");
    let args = ["--namespace", namespace, "exec", "-i", pod, "--", "python3", "-c", script];
    let said = cluster.kubectl_with(&args, &lines.join("\n")).unwrap();
    let answers: Vec<Answer> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), requests.len(), "{said}");
    answers
}

/// The address and the port of a Service of podvirt's.
fn service(cluster: &Cluster, name: &str) -> (String, u16) {
    let services: Api<Service> = Api::namespaced(cluster.client(), PODVIRT);
    let spec = cluster.block_on(async { services.get(name).await }).unwrap().spec.unwrap();
    (spec.cluster_ip.unwrap(), u16::try_from(spec.ports.unwrap()[0].port).unwrap())
}

/// A review of an object.
fn review(resource: [&str; 3], kind: &str, namespace: &str, name: &str, object: &Value) -> Value {
    let [group, version, resource] = resource;
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": namespace, "name": name, "userInfo": {},
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": resource}, "object": object,
    }})
}

const KUBEVIRTS: [&str; 3] = ["kubevirt.io", "v1", "kubevirts"];

/// Reviews that become hundreds of megabytes once they are read, and patches that double: all are answered, by a status.
fn fills_no_webhook(cluster: &Cluster, namespace: &str, pod: &str) {
    let mut requests: Vec<Request> = Vec::new();
    for api in addresses(cluster, "virt-api") {
        for path in [
            "virtualmachineinstances-mutate",
            "virtualmachineinstances-validate-create",
            "virtualmachines-mutate",
        ] {
            let what = format!("{path} of {api}");
            requests.push((what, api.clone(), 8443, "POST", format!("/{path}"), json!({}), json!(MAPS)));
        }
    }
    let (operator, port) = service(cluster, "kubevirt-operator-webhook");
    let path = "/kubevirt-validate".to_owned();
    for n in 0..4 {
        requests.push((
            format!("maps {n}"),
            operator.clone(),
            port,
            "POST",
            path.clone(),
            json!({}),
            json!(MAPS),
        ));
    }
    let mut patches = vec![json!({"op": "add", "path": "/metadata/annotations/a", "value": [0]})];
    patches.resize(
        31,
        json!({"op": "copy", "from": "/metadata/annotations/a", "path": "/metadata/annotations/a/-"}),
    );
    let kubevirt = json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": PODVIRT},
        "spec": {"customizeComponents": {"patches": [{"resourceType": "Deployment", "resourceName": "virt-api", "type": "json",
            "patch": Value::Array(patches).to_string()}]}}});
    let doubles = review(KUBEVIRTS, "KubeVirt", PODVIRT, "kubevirt", &kubevirt);
    requests.push(("patches that double".into(), operator, port, "POST", path, json!({}), doubles));
    for (what, code, text) in ask(cluster, namespace, pod, &requests) {
        let start = &text[..text.floor_char_boundary(200)];
        eprintln!("{what}: {code} {start}");
        // 503: it may try again, since others are served.
        assert!(code == 200 || (400..500).contains(&code) || code == 503, "{what}: {code}: {start}");
        assert!(!what.starts_with("patches") || text.contains("\"allowed\":false"), "{what}: {start}");
    }
}

/// A client that names a user by the API server's headers and shows no certificate is not known: 401.
fn speaks_for_no_user(cluster: &Cluster, namespace: &str, pod: &str, others: &str) {
    let base = format!("/apis/subresources.kubevirt.io/v1/namespaces/{others}");
    let all = "/apis/subresources.kubevirt.io/v1/nodevirtualmachineinstances?labelSelector=kubevirt.io%2FnodeName%3Dnode1";
    let asked = [
        ("GET", format!("{base}/virtualmachineinstances/{HONEST}/console")),
        ("GET", format!("{base}/virtualmachineinstances/{HONEST}/portforward/7777")),
        ("GET", format!("{base}/virtualmachineinstances/{HONEST}/guestosinfo")),
        ("PUT", format!("{base}/virtualmachineinstances/{HONEST}/pause")),
        ("PUT", format!("{base}/virtualmachines/{HONEST}/stop")),
        ("GET", all.to_owned()),
    ];
    let forged = json!({"X-Remote-User": "kubernetes-admin", "X-Remote-Group": "system:masters",
        "X-Remote-Extra-Scopes": "*", "X-Forwarded-For": "192.168.77.100"});
    let api = addresses(cluster, "virt-api").remove(0);
    let requests: Vec<Request> = [json!({}), forged]
        .into_iter()
        .flat_map(|headers| asked.iter().map(move |(method, path)| (method, path, headers.clone())))
        .map(|(method, path, headers)| {
            (
                format!("{method} {path} {headers}"),
                api.clone(),
                8443,
                *method,
                path.clone(),
                headers,
                Value::Null,
            )
        })
        .collect();
    for (what, code, text) in ask(cluster, namespace, pod, &requests) {
        assert_eq!(code, 401, "{what}: {text}");
    }
}

/// An eviction that the API server has not been asked for moves nothing that did not ask to be moved, and ends nothing.
fn evicts_nothing(cluster: &Cluster, namespace: &str, pod: &str, honest: &Honest<'_>) {
    let launcher = honest.guest.namespace.launcher(HONEST).unwrap();
    let others = honest.guest.namespace.name();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": launcher.name_any(), "namespace": others}});
    let mut asked = review(["", "v1", "pods"], "Eviction", others, &launcher.name_any(), &eviction);
    asked["request"]["kind"] = json!({"group": "policy", "version": "v1", "kind": "Eviction"});
    asked["request"]["subResource"] = json!("eviction");
    let api = addresses(cluster, "virt-api").remove(0);
    let path = "/launcher-eviction-validate".to_owned();
    let requests = [("an eviction".to_owned(), api, 8443, "POST", path, json!({}), asked)];
    let (_, code, text) = ask(cluster, namespace, pod, &requests).remove(0);
    assert!(code == 200 && text.contains("\"allowed\":"), "{code}: {text}");
    let instance: v1::VirtualMachineInstance =
        honest.guest.namespace.wait(HONEST, "the machine", SOON, |_| true).unwrap();
    assert_eq!(instance.status.evacuation_node_name, None);
    let still = honest.guest.namespace.launcher(HONEST).unwrap();
    assert!(still.uid() == launcher.uid() && still.metadata.deletion_timestamp.is_none());
}

#[test]
fn long_a_pod_without_credentials_is_told_so_and_fills_no_daemon() {
    let cluster = Cluster::get().unwrap();
    let (others, own) =
        (cluster.namespace(Security::Restricted).unwrap(), cluster.namespace(Security::Restricted).unwrap());
    let mut honest = Honest::start(&others);
    let client = ClientPod::start(&own, "stranger", "node2", "").unwrap();
    speaks_for_no_user(&cluster, own.name(), client.name(), others.name());
    evicts_nothing(&cluster, own.name(), client.name(), &honest);
    honest.is_unhurt("forged requests");
    fills_no_webhook(&cluster, own.name(), client.name());
    honest.is_unhurt("reviews that are large once they are read");
}
