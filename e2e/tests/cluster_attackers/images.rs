//! Images that a user brings: in a container disk, as a hook sidecar, and by annotations that an injector of sidecars reads.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_api::gates::SIDECAR;
use podvirt_api::names::annotation::HOOK_SIDECARS;
use podvirt_api::v1;
use podvirt_e2e::artefacts::image;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON};
use serde_json::{Value, json};

use super::PODVIRT;
use super::tenant::{Tenant, is_clear, is_refused, machine};

const GROUP: &str = "kubevirt.io/v1";
/// By this annotation Istio's injector takes the image of its proxy from the pod.
const PROXY_IMAGE: &str = "sidecar.istio.io/proxyImage";
/// An annotation without a meaning, which each pod gets from its machine.
const PLAIN: &str = "example.com/owner";

/// The container disk's image whose qcow2 disks have `/etc/passwd` as backing file and as data file.
pub(super) fn traps() -> PathBuf {
    image("disk-traps").unwrap()
}

/// An instance with these disks and volumes, which no node has a place for if it is parked.
fn instance(name: &str, annotations: &Value, disks: &Value, volumes: &Value, is_parked: bool) -> Value {
    let place = if is_parked { json!({"parked": "here"}) } else { json!({}) };
    json!({
        "apiVersion": GROUP, "kind": "VirtualMachineInstance", "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "nodeSelector": place, "volumes": volumes,
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": disks}},
        },
    })
}

/// What an instance's condition says of its start.
fn trouble(instance: &v1::VirtualMachineInstance) -> String {
    let conditions = instance.status.conditions.iter().filter(|c| c.r#type.as_str() == "Synchronized");
    conditions.filter_map(|condition| condition.message.as_deref()).collect()
}

/// QEMU opens no file of the pod that a container disk names, be it as its backing file or as its data file.
pub(super) fn opens_no_file_of_the_pod(tenant: &Tenant<'_>, namespace: &Namespace<'_>) {
    let names = ["backing", "data"];
    for name in names {
        let disks = json!([{"name": "trap", "disk": {"bus": "virtio"}}]);
        let source = json!({"image": "podvirt/disk-traps:dev", "path": format!("/{name}/disk.qcow2")});
        let volumes = json!([{"name": "trap", "containerDisk": source}]);
        let trap = instance(name, &json!({}), &disks, &volumes, false);
        let made = tenant.creates(GROUP, "virtualmachineinstances", &trap);
        assert_eq!(made.0, 200, "{name}: {made:?}");
    }
    for name in names {
        let is_judged = |instance: &v1::VirtualMachineInstance| {
            let phase = instance.status.phase.as_ref();
            let came = phase.is_some_and(|p| ["Running", "Succeeded", "Failed"].contains(&p.as_str()));
            came || trouble(instance).contains("another file")
        };
        let what = format!("{name}: a refusal, or a machine that runs");
        let instance = namespace.wait(name, &what, BOOT, is_judged).unwrap();
        let said = trouble(&instance);
        eprintln!("{name}: {said}");
        assert!(
            said.contains("refers to another file, which is not allowed"),
            "{name}: {:?}: {said:?}",
            instance.status.phase
        );
    }
    let [first, second] = names;
    namespace.kubectl(&["delete", "vmi", first, second, "--wait=false"]).unwrap();
}

/// The cluster with its feature gate for hook sidecars closed, until this is dropped.
struct Closed<'c> {
    cluster: &'c Cluster,
    gates: Vec<String>,
}

impl<'c> Closed<'c> {
    /// Closes it, and waits until virt-api and virt-controller go by that.
    fn new(namespace: &Namespace<'c>) -> Closed<'c> {
        let cluster = namespace.cluster();
        let path = "jsonpath={.spec.configuration.developerConfiguration.featureGates}";
        let text = cluster.kubectl(&["-n", PODVIRT, "get", "kubevirt", "kubevirt", "-o", path]).unwrap();
        let gates: Vec<String> = serde_json::from_str(&text).unwrap();
        let others: Vec<String> = gates.iter().filter(|gate| *gate != SIDECAR).cloned().collect();
        assert!(others.len() < gates.len(), "the gate is closed: {gates:?}");
        let closed = Closed { cluster, gates };
        let version: u64 = closed.set(&others).unwrap().trim().parse().unwrap();

        let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
        let params = ListParams::default().labels("kubevirt.io in (virt-api, virt-controller)");
        for pod in cluster.block_on(async { pods.list(&params).await }).unwrap().items {
            let name = pod.name_any();
            let path = format!("/api/v1/namespaces/{PODVIRT}/pods/https:{name}:8443/proxy/healthz");
            let goes_by = || {
                let said: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path])?)?;
                let seen: u64 = said["config-resource-version"].as_str().unwrap_or_default().parse()?;
                Ok((seen >= version).then_some(()))
            };
            namespace.until(&format!("{name} goes by version {version}"), SOON, goes_by).unwrap();
        }
        closed
    }

    /// Opens these gates and no others; the version of the configuration that says so.
    fn set(&self, gates: &[String]) -> anyhow::Result<String> {
        let configuration = json!({"developerConfiguration": {"featureGates": gates}});
        let patch = json!({"spec": {"configuration": configuration}}).to_string();
        let object = ["-n", PODVIRT, "patch", "kubevirt", "kubevirt", "--type=merge", "-p", &patch];
        self.cluster.kubectl(&[&object[..], &["-o", "jsonpath={.metadata.resourceVersion}"]].concat())
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.set(&self.gates) {
            eprintln!("the feature gate Sidecar stays closed: {error:#}");
        }
    }
}

/// Objects that ask for a hook sidecar, each by the annotation of an instance to come, with their resources.
fn hooked() -> [(&'static str, Value); 3] {
    let wish = json!({ HOOK_SIDECARS: json!([{"image": "registry/own:1"}]).to_string() });
    let alone = instance("hooked", &wish, &json!([]), &json!([]), false);
    let mut vm = machine("hooked", json!({"devices": {}}), &json!({}));
    vm["spec"]["template"]["metadata"] = json!({"annotations": wish});
    let labels = json!({"set": "hooked"});
    let set = json!({
        "apiVersion": GROUP, "kind": "VirtualMachineInstanceReplicaSet", "metadata": {"name": "hooked"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": wish}, "spec": alone["spec"]},
        },
    });
    [("virtualmachineinstances", alone), ("virtualmachines", vm), ("virtualmachineinstancereplicasets", set)]
}

/// The annotations of the pod of a machine that tells an injector of an own image.
fn inherited(tenant: &Tenant<'_>, namespace: &Namespace<'_>, name: &str) -> Vec<String> {
    let annotations = json!({PROXY_IMAGE: "registry/own:1", PLAIN: "tenant"});
    let parked = instance(name, &annotations, &json!([]), &json!([]), true);
    let made = tenant.creates(GROUP, "virtualmachineinstances", &parked);
    assert_eq!(made.0, 200, "{name}: {made:?}");
    let pod = || Ok(namespace.launcher(name).ok());
    let pod = namespace.until(&format!("the pod of {name}"), SOON, pod).unwrap();
    let keys: Vec<String> = pod.annotations().keys().cloned().collect();
    assert!(keys.iter().any(|key| key == PLAIN), "{name}: {keys:?}");
    keys
}

/// With the gate closed no image of a user's comes into the pod of a machine: not as a hook sidecar, nor by an injector. With the gate
/// open it does, which shows that the gate is the reason.
pub(super) fn invites_no_image(tenant: &Tenant<'_>, namespace: &Namespace<'_>) {
    let has_image = |keys: &[String]| keys.iter().any(|key| key == PROXY_IMAGE);
    for (resource, object) in hooked() {
        let answer = tenant.would_create(GROUP, resource, &object);
        is_clear(resource, &answer);
        assert_eq!(answer.0, 200, "{resource}, the gate is open: {answer:?}");
    }
    let keys = inherited(tenant, namespace, "gate-open");
    assert!(has_image(&keys), "the gate is open: {keys:?}");

    let _closed = Closed::new(namespace);
    for (resource, object) in hooked() {
        let answer = tenant.would_create(GROUP, resource, &object);
        is_refused(&format!("{resource} with a hook sidecar"), &answer, HOOK_SIDECARS);
    }
    let keys = inherited(tenant, namespace, "gate-closed");
    assert!(!has_image(&keys), "the gate is closed: {keys:?}");
    namespace.kubectl(&["delete", "vmi", "gate-open", "gate-closed", "--wait=false"]).unwrap();
}
