//! A user with the role `kubevirt.io:edit` in a namespace, and without any right in another.

use std::thread;

use k8s_openapi::api::core::v1::Event;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config};
use podvirt_api::names::event::UNAUTHORIZED_DATA_VOLUME_CREATE;
use podvirt_e2e::cluster::{Cluster, Namespace, SOON, Security};
use serde_json::{Value, json};

use super::images::{invites_no_image, opens_no_file_of_the_pod, traps};
use super::{HONEST, Honest, addresses, working_set};

/// The API server, on the cluster's network.
const SERVER: &str = "https://192.168.77.100:6443";
/// What virt-controller's memory may grow by under a tenant's objects, in bytes.
const GROWTH_BYTES: u64 = 128 << 20;

/// Presets that the tenant makes, and how many of them at a time.
const PRESETS: usize = 300;
const PRESETS_AT_A_TIME: usize = 4;

/// The kind of what CDI fills.
const DATA_VOLUMES: &str = "datavolumes.cdi.kubevirt.io";

/// The code of an answer, and its text.
pub(super) type Answer = (u16, String);

fn answer_of(answered: kube::Result<String>) -> Answer {
    match answered {
        Ok(text) => (200, text),
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        Err(error) => (0, error.to_string()),
    }
}

/// A client of the API server.
pub(super) struct Tenant<'c> {
    cluster: &'c Cluster,
    client: Client,
    namespace: String,
}

impl<'c> Tenant<'c> {
    /// A service account of the namespace with the role, by its own token.
    fn bound_to(namespace: &Namespace<'c>) -> Tenant<'c> {
        namespace.kubectl(&["create", "serviceaccount", "tenant"]).unwrap();
        let account = format!("--serviceaccount={}:tenant", namespace.name());
        namespace
            .kubectl(&["create", "rolebinding", "tenant", "--clusterrole=kubevirt.io:edit", &account])
            .unwrap();
        let token = namespace.kubectl(&["create", "token", "tenant"]).unwrap();
        Tenant::by_token(namespace.cluster(), token.trim(), namespace.name())
    }

    /// An account of the namespace.
    pub(super) fn by_token(cluster: &'c Cluster, token: &str, namespace: &str) -> Tenant<'c> {
        let client = cluster.block_on(async {
            let mut config = Config::new(SERVER.parse().unwrap());
            config.accept_invalid_certs = true;
            config.auth_info.token = Some(token.to_owned().into());
            // What is denied to it is not denied to the daemon whose token it may be.
            config.headers.push((http::header::USER_AGENT, "kubectl".parse().unwrap()));
            Client::try_from(config).unwrap()
        });
        Tenant { cluster, client, namespace: namespace.to_owned() }
    }

    pub(super) fn asks(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header(http::header::CONTENT_TYPE, "application/json").body(body).unwrap();
        answer_of(self.cluster.block_on(async { self.client.request_text(request).await }))
    }

    /// Makes an object in the tenant's namespace.
    pub(super) fn creates(&self, group: &str, resource: &str, object: &Value) -> Answer {
        let path = format!("/apis/{group}/namespaces/{}/{resource}", self.namespace);
        self.asks("POST", &path, object)
    }

    /// The same up to the point at which the object would be stored.
    pub(super) fn would_create(&self, group: &str, resource: &str, object: &Value) -> Answer {
        self.creates(group, &format!("{resource}?dryRun=All"), object)
    }

    /// A request for a subresource of a machine.
    fn subresource(&self, method: &str, namespace: &str, path: &str) -> Answer {
        let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{path}");
        self.asks(method, &path, &Value::Null)
    }
}

/// What the API server says of a webhook that broke off, or did not answer in time.
const UNANSWERED: [&str; 7] = [
    "deadline exceeded",
    "EOF",
    "connection refused",
    "connection reset",
    "no endpoints",
    "imeout",
    "not answered within",
];

/// The object is taken or refused: every webhook has answered.
pub(super) fn is_clear(what: &str, (code, text): &Answer) {
    let start = &text[..text.floor_char_boundary(300)];
    eprintln!("{what}: {code} {start}");
    let unanswered = *code >= 500 && UNANSWERED.iter().any(|words| text.contains(words));
    assert!(*code >= 200 && !unanswered, "{what}: {code}: {start}");
    assert!(text.len() < 4 << 20, "{what}: an answer of {} bytes", text.len());
}

/// The object is refused, for the reason of this field.
pub(super) fn is_refused(what: &str, answer: &Answer, field: &str) {
    is_clear(what, answer);
    assert!(
        answer.0 >= 400 && answer.1.contains(field),
        "{what}: {} without {field}: {}",
        answer.0,
        answer.1
    );
}

/// A machine that is halted, with more in its `spec`, and with this `domain`.
pub(super) fn machine(name: &str, domain: Value, more: &Value) -> Value {
    let mut machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {"runStrategy": "Halted", "template": {"spec": {
            "domain": domain,
            "volumes": [{"name": "root", "containerDisk": {"image": "podvirt/disk-tiny:dev"}}],
        }}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        machine["spec"][field] = value.clone();
    }
    machine
}

/// A machine that is halted, and has a disk by a template with these annotations and this `spec`.
fn machine_by_template(name: &str, copy: &str, annotations: &Value, spec: &Value) -> Value {
    let template = json!({"metadata": {"name": copy, "annotations": annotations}, "spec": spec});
    let domain = json!({"devices": {"disks": [{"name": "data", "disk": {"bus": "virtio"}}]}});
    let mut machine = machine(name, domain, &json!({"dataVolumeTemplates": [template]}));
    let volumes = &mut machine["spec"]["template"]["spec"]["volumes"];
    volumes.as_array_mut().unwrap().push(json!({"name": "data", "dataVolume": {"name": copy}}));
    machine
}

/// So many maps of one member each, in towers of a hundred.
fn towers(maps: usize) -> Value {
    let tower = || (0..100).fold(json!(0), |inner, _| json!({ "": inner }));
    Value::Array((0..maps / 100).map(|_| tower()).collect())
}

/// Machines of another namespace: none of their subresources is the tenant's. The own machine shows that the rest fails for its
/// reason.
fn has_no_machine_of_others(tenant: &Tenant<'_>, others: &str) {
    let made = tenant.creates(
        "kubevirt.io/v1",
        "virtualmachines",
        &machine("own", json!({"devices": {}}), &json!({})),
    );
    assert_eq!(made.0, 200, "{made:?}");
    let own = tenant.subresource("PUT", &tenant.namespace, "virtualmachines/own/stop");
    assert!(own.1.contains("not running"), "{own:?}");
    let instance = |part: &str| format!("virtualmachineinstances/{HONEST}/{part}");
    let vm = |part: &str| format!("virtualmachines/{HONEST}/{part}");
    let gets = [
        "console",
        "vnc",
        "portforward/7777",
        "portforward/7777/tcp",
        "guestosinfo",
        "userlist",
        "filesystemlist",
    ];
    let puts = ["pause", "freeze", "softreboot", "reset", "addvolume", "removevolume"];
    let of_machines = ["start", "stop", "restart", "addvolume", "memorydump"];
    let asked = gets.map(|part| ("GET", instance(part))).into_iter();
    let asked = asked.chain(puts.map(|part| ("PUT", instance(part))));
    for (method, path) in asked.chain(of_machines.map(|part| ("PUT", vm(part)))) {
        let (code, text) = tenant.subresource(method, others, &path);
        assert!(code == 403 && text.contains("tenant"), "{method} {path}: {code}: {text}");
    }
    for resource in ["virtualmachines", "virtualmachineinstances"] {
        let path = format!("/apis/kubevirt.io/v1/namespaces/{others}/{resource}/{HONEST}");
        assert_eq!(tenant.asks("GET", &path, &Value::Null).0, 403, "{path}");
        assert_eq!(tenant.asks("DELETE", &path, &Value::Null).0, 403, "{path}");
    }
}

/// virt-exportproxy goes by the status of an export, which is virt-controller's: the author of an export leads it to no Service.
fn leads_the_proxy_nowhere(tenant: &Tenant<'_>, namespace: &Namespace<'_>) {
    let group = "export.kubevirt.io/v1beta1";
    let lure = json!({
        "apiVersion": group, "kind": "VirtualMachineExport", "metadata": {"name": "lure"},
        "spec": {"source": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "none"}},
        "status": {"phase": "Ready", "serviceName": "lure"},
    });
    let made = tenant.creates(group, "virtualmachineexports", &lure);
    assert_eq!(made.0, 200, "{made:?}");
    let path = format!("/apis/{group}/namespaces/{}/virtualmachineexports/lure/status", tenant.namespace);
    let (code, text) = tenant.asks("PUT", &path, &lure);
    assert!(code == 403 && text.contains("virtualmachineexports/status"), "{code}: {text}");

    let proxy = addresses(tenant.cluster, "virt-exportproxy").remove(0);
    let client = tenant.cluster.block_on(async {
        let mut config = Config::new(format!("https://{proxy}:8443").parse().unwrap());
        config.accept_invalid_certs = true;
        // The answer that is wanted is 503, for which the client would ask again for minutes.
        config.default_retry = false;
        Client::try_from(config).unwrap()
    });
    let path = format!("/api/{group}/namespaces/{}/virtualmachineexports/lure/healthz", tenant.namespace);
    // The proxy hears of a new export in a moment.
    let answered = || {
        let request = http::Request::get(path.as_str()).body(Vec::new())?;
        let answer = answer_of(tenant.cluster.block_on(async { client.request_text(request).await }));
        Ok((answer.0 != 404).then_some(answer))
    };
    let (code, text) = namespace.until("an answer of virt-exportproxy", SOON, answered).unwrap();
    assert!(code == 503 && text.contains("not ready"), "{code}: {text}");
}

/// virt-api itself asks whether the user may, beside the API server: a request as only the API server can make it, for the tenant.
fn is_asked_about(namespace: &Namespace<'_>, others: &str) {
    let cluster = namespace.cluster();
    let (certificate, key) = cluster.front_proxy();
    let server = addresses(cluster, "virt-api").remove(0);
    let client = cluster.block_on(async {
        let mut config = Config::new(format!("https://{server}:8443").parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info.client_certificate = Some(certificate.to_string_lossy().into_owned());
        config.auth_info.client_key = Some(key.to_string_lossy().into_owned());
        Client::try_from(config).unwrap()
    });
    let ask = |user: &str, group: &str| {
        let request = http::Request::get(format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{others}/virtualmachineinstances/{HONEST}/guestosinfo"
        ));
        let request = request.header("X-Remote-User", user).header("X-Remote-Group", group);
        let request = request.body(Vec::new()).unwrap();
        answer_of(cluster.block_on(async { client.request_text(request).await }))
    };
    let account = format!("system:serviceaccount:{}:tenant", namespace.name());
    let (code, text) = ask(&account, "system:authenticated");
    assert!(code == 403 && text.contains("tenant"), "{code}: {text}");
    // An administrator shows that the user is the reason.
    let (code, text) = ask("kubernetes-admin", "system:masters");
    assert!(code > 0 && code != 401 && code != 403, "{code}: {text}");
}

/// DataVolumes, as far as virt-controller has to do with them, where the cluster has no CDI. They go with the value.
struct DataVolumes<'c>(Option<&'c Cluster>);

impl<'c> DataVolumes<'c> {
    fn new(cluster: &'c Cluster) -> DataVolumes<'c> {
        if cluster.kubectl(&["get", "crd", DATA_VOLUMES]).is_ok() {
            return DataVolumes(None);
        }
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": DATA_VOLUMES},
            "spec": {
                "group": "cdi.kubevirt.io", "scope": "Namespaced",
                "names": {"kind": "DataVolume", "plural": "datavolumes", "singular": "datavolume"},
                "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        });
        cluster.kubectl_with(&["create", "-f", "-"], &definition.to_string()).unwrap();
        let this = DataVolumes(Some(cluster));
        let established =
            ["wait", "--for=condition=Established", "--timeout=30s", &format!("crd/{DATA_VOLUMES}")];
        cluster.kubectl(&established).unwrap();
        this
    }
}

impl Drop for DataVolumes<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "crd", DATA_VOLUMES, "--timeout=30s"];
        drop(self.0.map(|cluster| cluster.kubectl(&delete)));
    }
}

/// A claim of another namespace is copied by no machine whose account may not read it, whatever its annotations say.
fn copies_no_claim_of_others(tenant: &Tenant<'_>, namespace: &Namespace<'_>, others: &str) {
    // CDI takes a DataVolume with one of these annotations for one that is filled already.
    let marks = [("static", "checkStaticVolume"), ("filled", "prePopulated")];
    let spec = json!({
        "source": {"pvc": {"namespace": others, "name": "disk"}},
        "storage": {"resources": {"requests": {"storage": "1Mi"}}},
    });
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume"));
    let cluster = namespace.cluster();
    let copies: Api<DynamicObject> = Api::namespaced_with(cluster.client(), namespace.name(), &kind);
    let events: Api<Event> = Api::namespaced(cluster.client(), namespace.name());
    for (name, mark) in marks {
        let copy = format!("loot-{name}");
        let annotations = json!({ format!("cdi.kubevirt.io/storage.{mark}"): copy });
        let thief = machine_by_template(name, &copy, &annotations, &spec);
        let answer = tenant.creates("kubevirt.io/v1", "virtualmachines", &thief);
        is_clear(mark, &answer);
        if answer.0 >= 400 {
            continue;
        }
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let judged = || {
            let made = cluster.block_on(copies.get_opt(&copy))?;
            let found = cluster.block_on(events.list(&about))?.items;
            let refused =
                found.iter().any(|event| event.reason.as_deref() == Some(UNAUTHORIZED_DATA_VOLUME_CREATE));
            Ok((made.is_some() || refused).then_some(made))
        };
        let what = format!("{mark}: a DataVolume or a refusal");
        if let Some(made) = namespace.until(&what, SOON, judged).unwrap() {
            assert_ne!(made.data["spec"]["source"]["pvc"]["namespace"], others, "{mark}: {made:?}");
        }
    }
}

/// Presets of a few hundred bytes that agree, and then an instance that agrees with none of them by a value of a megabyte.
fn fills_virt_api_by_presets(tenant: &Tenant<'_>) {
    let preset = |n: usize| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset", "metadata": {"name": format!("p-{n}")},
            "spec": {"selector": {"matchLabels": {"preset": "all"}}, "domain": {"cpu": {"model": "a"}, "devices": {}}}})
    };
    let makes = |first: usize| {
        for n in (first..PRESETS).step_by(PRESETS_AT_A_TIME) {
            let answer = tenant.creates("kubevirt.io/v1", "virtualmachineinstancepresets", &preset(n));
            if answer.0 != 200 {
                is_clear("a preset", &answer);
                break;
            }
        }
    };
    let makes = &makes;
    thread::scope(|scope| {
        for first in 0..PRESETS_AT_A_TIME {
            scope.spawn(move || makes(first));
        }
    });
    let instance = |name: &str, model: String| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "labels": {"preset": "all"}}, "spec": {"domain": {"cpu": {"model": model}, "devices": {}}}})
    };
    for name in ["large-1", "large-2"] {
        let large =
            tenant.creates("kubevirt.io/v1", "virtualmachineinstances", &instance(name, "m".repeat(1 << 20)));
        is_clear("an instance with a model of a megabyte", &large);
    }
    // And a preset that is large itself.
    let mut large = preset(1000);
    large["spec"]["domain"]["cpu"]["model"] = json!("m".repeat(1 << 20));
    is_clear(
        "a preset of a megabyte",
        &tenant.creates("kubevirt.io/v1", "virtualmachineinstancepresets", &large),
    );
}

/// Objects that cost more to read than to write: lists of which each member is compared with each, maps of one member, patches that
/// double what they have made, filters that are large once they are compiled.
fn costs_more_than_it_sends(tenant: &Tenant<'_>) {
    let features: Vec<Value> = (0..60_000).map(|n| json!({"name": n.to_string()})).collect();
    let domain = json!({"cpu": {"features": features}, "devices": {}});
    let many = tenant.creates("kubevirt.io/v1", "virtualmachines", &machine("features", domain, &json!({})));
    is_clear("60,000 features", &many);

    let names: Vec<Value> =
        (0..12_000).map(|n| json!({"name": n.to_string(), "emptyDisk": {"capacity": "1Mi"}})).collect();
    let disks: Vec<Value> = (0..12_000).map(|n| json!({"name": n.to_string(), "disk": {}})).collect();
    let mut object = machine("disks", json!({"devices": {"disks": disks}}), &json!({}));
    object["spec"]["template"]["spec"]["volumes"] = json!(names);
    is_clear("12,000 disks", &tenant.creates("kubevirt.io/v1", "virtualmachines", &object));

    let before = working_set(tenant.cluster, "virt-controller");
    for n in 0..8 {
        let mut spec =
            json!({"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Mi"}}}});
        spec["x"] = towers(50_000);
        let object = machine_by_template(&format!("towers-{n}"), &format!("towers-{n}"), &json!({}), &spec);
        is_clear("50,000 maps in a template", &tenant.creates("kubevirt.io/v1", "virtualmachines", &object));
    }
    let after = working_set(tenant.cluster, "virt-controller");
    assert!(after < before + GROWTH_BYTES, "virt-controllers have grown from {before} to {after} bytes");

    let restore = |name: &str, doublings: usize| {
        let mut patches = vec![r#"{"op":"add","path":"/spec/a","value":[0]}"#.to_owned()];
        patches.resize(doublings + 1, r#"{"op":"copy","from":"/spec/a","path":"/spec/a/-"}"#.to_owned());
        json!({"apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineRestore", "metadata": {"name": name},
            "spec": {"target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}, "virtualMachineSnapshotName": "s",
                "patches": patches}})
    };
    // The first is harmless where it is taken.
    for doublings in [1, 40] {
        let answer = tenant.creates(
            "snapshot.kubevirt.io/v1beta1",
            "virtualmachinerestores",
            &restore("r", doublings),
        );
        is_refused(&format!("a restore with {doublings} doublings"), &answer, "spec.patches");
    }
    for (count, filter) in [(5000, r"\w{300}".to_owned()), (1, format!("{}*", "f".repeat(64 << 10)))] {
        let clone = json!({"apiVersion": "clone.kubevirt.io/v1beta1", "kind": "VirtualMachineClone", "metadata": {"name": "c"},
            "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "own"}, "labelFilters": vec![filter; count]}});
        let answer = tenant.creates("clone.kubevirt.io/v1beta1", "virtualmachineclones", &clone);
        is_refused(&format!("a clone with {count} large filters"), &answer, "spec.labels");
    }
}

#[test]
fn a_tenant_has_its_own_namespace_and_no_more() {
    // Made before this process is on the cluster's network.
    let traps = traps();
    let cluster = Cluster::get().unwrap();
    cluster.load(&traps).unwrap();
    let (others, own) =
        (cluster.namespace(Security::Restricted).unwrap(), cluster.namespace(Security::Restricted).unwrap());
    // virt-controller looks for a kind that was not there each 20 s.
    let _data_volumes = DataVolumes::new(&cluster);
    let mut honest = Honest::start(&others);
    let tenant = Tenant::bound_to(&own);
    // It makes the machine `own`, which others of the attacks name.
    has_no_machine_of_others(&tenant, others.name());
    is_asked_about(&own, others.name());
    honest.is_unhurt("machines of others");
    let (tenant, own, foreign) = (&tenant, &own, others.name());
    honest.stands_beside(vec![
        ("claims of others", Box::new(|| copies_no_claim_of_others(tenant, own, foreign))),
        ("an export that leads the proxy", Box::new(|| leads_the_proxy_nowhere(tenant, own))),
        ("disks that name a file of the pod", Box::new(|| opens_no_file_of_the_pod(tenant, own))),
        ("images for the pods of machines", Box::new(|| invites_no_image(tenant, own))),
        // One after the other: each review has the time that the API server gives it, on processors that others use as well.
        (
            "objects that cost more than they are",
            Box::new(|| {
                costs_more_than_it_sends(tenant);
                fills_virt_api_by_presets(tenant);
            }),
        ),
    ]);
}
