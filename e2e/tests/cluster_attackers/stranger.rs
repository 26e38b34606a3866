//! A pod without a token and without a certificate, which reaches podvirt's daemons by the cluster's network.
//!
//! It does not know the paths at which the API server asks the webhooks. Where it sends reviews to these nevertheless, it has learned
//! them from an error of the API server's, as a user may: the test reads them from the webhook configurations.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::Api;
use podvirt_api::v1;
use podvirt_e2e::cluster::{ClientPod, Cluster, SOON, Security};
use serde_json::{Value, json};

use super::{HONEST, Honest, PODVIRT, addresses};

/// Maps in a review that is as large as virt-api takes it, by the number of its items.
const MAPS: usize = 290_000;

/// Longest time until a review at a path that is not registered is refused, in seconds: virt-api reads its CA once a second.
const REFUSAL_SECONDS: f64 = 5.0;

/// A request: what it is, where it goes, and what it says.
type Request = (String, String, u16, &'static str, String, Value, Value);
/// What it is, the code of the answer, or 0 for a connection that broke, the answer's start, and the seconds until it came.
type Answer = (String, u16, String, f64);

/// Sends requests from the pod, all at once.
fn send(cluster: &Cluster, namespace: &str, pod: &str, requests: &[Request]) -> Vec<Answer> {
    let lines: Vec<String> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
    let script = include_str!("send.py");
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
const MIGRATIONS: [&str; 3] = ["kubevirt.io", "v1", "virtualmachineinstancemigrations"];
/// The webhook that says whether a new migration's machine is there.
const MIGRATION_WEBHOOK: &str = "migration-create-validator.kubevirt.io";
const KUBEVIRT_WEBHOOK: &str = "kubevirt-validator.kubevirt.io";

/// The path of a webhook, as pods can guess it.
fn plain(registered: &str) -> String {
    registered.rsplit_once('/').unwrap().0.to_owned()
}

/// A review at a path that is not registered is refused before it is read: whatever it asks of others, and however long it is.
fn is_told_nothing(cluster: &Cluster, namespace: &str, pod: &str, others: &str) {
    let migration = json!({"metadata": {"name": "m", "namespace": others}, "spec": {"vmiName": HONEST}});
    let migration = review(MIGRATIONS, "VirtualMachineInstanceMigration", others, "m", &migration);
    let blocks = json!({"metadata": {"name": "kubevirt", "namespace": PODVIRT},
        "spec": {"uninstallStrategy": "BlockUninstallIfWorkloadsExist"}});
    let mut deletion = review(KUBEVIRTS, "KubeVirt", PODVIRT, "kubevirt", &Value::Null);
    deletion["request"]["operation"] = json!("DELETE");
    deletion["request"]["oldObject"] = blocks;
    let registered = cluster.webhook_path(MIGRATION_WEBHOOK).unwrap();
    let api = (addresses(cluster, "virt-api").remove(0), 8443);
    let operator = service(cluster, "kubevirt-operator-webhook");
    let kubevirt = plain(&cluster.webhook_path(KUBEVIRT_WEBHOOK).unwrap());
    let wrong = "0".repeat(64);
    let requests: Vec<Request> = [
        (&api, plain(&registered), migration.clone()),
        (&api, format!("{}/{wrong}", plain(&registered)), migration.clone()),
        (&api, "/virtualmachineinstances-mutate".to_owned(), json!(MAPS)),
        (&api, format!("/virtualmachineinstances-mutate/{wrong}"), json!(MAPS)),
        (&operator, kubevirt.clone(), deletion.clone()),
        (&operator, format!("{kubevirt}/{wrong}"), deletion),
    ]
    .into_iter()
    .map(|((address, port), path, body)| {
        (path.clone(), address.clone(), *port, "POST", path, json!({}), body)
    })
    .collect();
    for (what, code, text, seconds) in send(cluster, namespace, pod, &requests) {
        eprintln!("{what}: {code} after {seconds} s");
        assert!(code == 404 && text.contains("\"Status\""), "{what}: {code}: {text}");
        assert!(!text.contains(HONEST) && !text.contains("VirtualMachine"), "{what}: {text}");
        assert!(seconds < REFUSAL_SECONDS, "{what}: after {seconds} s");
    }

    // What it would be told.
    let (address, port) = api;
    let request = ("a migration".to_owned(), address, port, "POST", registered, json!({}), migration);
    let (what, code, text, _) = send(cluster, namespace, pod, &[request]).remove(0);
    assert!(code == 200 && text.contains("\"allowed\":"), "{what}: {code}: {text}");
    assert!(!text.contains("does not exist"), "{what}: {text}");
}

/// Reviews that become hundreds of megabytes once they are read, and patches that double, at the paths that are registered: all are
/// answered, by a status.
fn fills_no_webhook(cluster: &Cluster, namespace: &str, pod: &str) {
    let mut requests: Vec<Request> = Vec::new();
    for api in addresses(cluster, "virt-api") {
        for webhook in [
            "virtualmachineinstances-mutator.kubevirt.io",
            "virtualmachineinstances-create-validator.kubevirt.io",
            "virtualmachines-mutator.kubevirt.io",
        ] {
            let what = format!("{webhook} of {api}");
            let path = cluster.webhook_path(webhook).unwrap();
            requests.push((what, api.clone(), 8443, "POST", path, json!({}), json!(MAPS)));
        }
    }
    let (operator, port) = service(cluster, "kubevirt-operator-webhook");
    let path = cluster.webhook_path(KUBEVIRT_WEBHOOK).unwrap();
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
    for (what, code, text, _) in send(cluster, namespace, pod, &requests) {
        let start = &text[..text.floor_char_boundary(200)];
        eprintln!("{what}: {code} {start}");
        // 503: it may try again, since others are served.
        let is_bounded = code == 200 || ((400..500).contains(&code) && code != 404) || code == 503;
        assert!(is_bounded, "{what}: {code}: {start}");
        assert!(!what.starts_with("patches") || text.contains("\"allowed\":false"), "{what}: {start}");
    }
}

/// A client that names a user by the API server's headers and shows no certificate is not known: 401.
fn speaks_for_no_user(cluster: &Cluster, namespace: &str, pod: &str, others: &str) {
    let base = format!("/apis/subresources.kubevirt.io/v1/namespaces/{others}");
    let all = "/apis/subresources.kubevirt.io/v1/nodevirtualmachineinstances?labelSelector=kubevirt.io%2FnodeName%3Dnode1";
    let forbidden = [
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
        .flat_map(|headers| forbidden.iter().map(move |(method, path)| (method, path, headers.clone())))
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
    for (what, code, text, _) in send(cluster, namespace, pod, &requests) {
        assert_eq!(code, 401, "{what}: {text}");
    }
}

/// An eviction that the API server has not been asked for moves nothing that did not ask to be moved, and ends nothing.
fn evicts_nothing(cluster: &Cluster, namespace: &str, pod: &str, honest: &Honest<'_>) {
    let launcher = honest.guest.namespace.launcher(HONEST).unwrap();
    let others = honest.guest.namespace.name();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": launcher.name_any(), "namespace": others}});
    let mut forged = review(["", "v1", "pods"], "Eviction", others, &launcher.name_any(), &eviction);
    forged["request"]["kind"] = json!({"group": "policy", "version": "v1", "kind": "Eviction"});
    forged["request"]["subResource"] = json!("eviction");
    let api = addresses(cluster, "virt-api").remove(0);
    let path = cluster.webhook_path("virt-launcher-eviction-interceptor.kubevirt.io").unwrap();
    let requests = [("an eviction".to_owned(), api, 8443, "POST", path, json!({}), forged)];
    let (_, code, text, _) = send(cluster, namespace, pod, &requests).remove(0);
    assert!(code == 200 && text.contains("\"allowed\":"), "{code}: {text}");
    let instance: v1::VirtualMachineInstance =
        honest.guest.namespace.wait(HONEST, "the machine", SOON, |_| true).unwrap();
    assert_eq!(instance.status.evacuation_node_name, None);
    let still = honest.guest.namespace.launcher(HONEST).unwrap();
    assert!(still.uid() == launcher.uid() && still.metadata.deletion_timestamp.is_none());
}

#[test]
fn a_pod_without_credentials_is_told_so_and_fills_no_daemon() {
    let cluster = Cluster::get().unwrap();
    let (others, own) =
        (cluster.namespace(Security::Restricted).unwrap(), cluster.namespace(Security::Restricted).unwrap());
    let mut honest = Honest::start(&others);
    let client = ClientPod::start(&own, "stranger", "node2", "").unwrap();
    speaks_for_no_user(&cluster, own.name(), client.name(), others.name());
    is_told_nothing(&cluster, own.name(), client.name(), others.name());
    evicts_nothing(&cluster, own.name(), client.name(), &honest);
    honest.is_unhurt("forged requests");
    fills_no_webhook(&cluster, own.name(), client.name());
    honest.is_unhurt("reviews that are large once they are read");
}
