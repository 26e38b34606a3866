//! Addresses by IPAMClaims, the standard's objects for those that outlive a pod.
//!
//! A cluster with KubeVirt has them made and named by a controller of their own (kubevirt-ipam-controller). The test stands
//! in for it and does what it does: a claim for the machine's network, `VM.NETWORK`, owned by the VirtualMachine and kept by
//! a finalizer, that names the network and no interface; and a webhook that names it in the launchers' pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Flat, Manifest, Namespace, SOON, Security, Webhook};
use serde_json::{Value, json};

use super::hotplug::move_on;
use super::moving::Machine;

/// The claim of the machine `vm` for its network `flat`.
const CLAIM: &str = "vm.flat";
/// The finalizer of the controller that the test stands in for.
const THEIRS: &str = "kubevirt.io/persistent-ipam";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// What the guest does for its addresses.
const CONFIGURE: &str =
    "ip link set eth1 up; udhcpc -i eth1 -n -q -t 8 -T 1 -s /etc/udhcpc.sh >/dev/null 2>&1";

/// The kind IPAMClaim, until this is dropped.
struct Kind<'c>(&'c Cluster);

impl<'c> Kind<'c> {
    fn new(cluster: &'c Cluster) -> Kind<'c> {
        let text = json!({"type": "string"});
        let schema = json!({
            "type": "object",
            "properties": {
                "spec": {"type": "object", "required": ["interface", "network"],
                    "properties": {"interface": text, "network": text}},
                "status": {"type": "object", "properties": {"ips": {"type": "array", "items": text}}},
            },
        });
        let kind = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "ipamclaims.k8s.cni.cncf.io"},
            "spec": {
                "group": "k8s.cni.cncf.io", "scope": "Namespaced",
                "names": {"plural": "ipamclaims", "singular": "ipamclaim", "kind": "IPAMClaim"},
                "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema}}],
            },
        });
        cluster.kubectl_with(&["apply", "-f", "-"], &kind.to_string()).unwrap();
        let kind = Kind(cluster);
        let args = ["wait", "--for=condition=Established", "--timeout=30s", "crd/ipamclaims.k8s.cni.cncf.io"];
        cluster.kubectl(&args).unwrap();
        kind
    }
}

impl Drop for Kind<'_> {
    fn drop(&mut self) {
        let args = ["delete", "crd", "ipamclaims.k8s.cni.cncf.io", "--ignore-not-found", "--timeout=30s"];
        drop(self.0.kubectl(&args));
    }
}

/// The machine's claim. What fails before it is gone leaves nothing that would keep the namespace.
struct Claim<'n>(&'n Namespace<'n>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let freed = json!({"metadata": {"finalizers": null}}).to_string();
        drop(self.0.kubectl(&["patch", "ipamclaim", CLAIM, "--type=merge", "-p", &freed]));
    }
}

/// Names the machine's claim in its pods, for the network `flat`.
fn name_claim(pod: &mut Value) {
    let annotations = &mut pod["metadata"]["annotations"];
    let Some(machine) = annotations["kubevirt.io/domain"].as_str().map(str::to_owned) else { return };
    let Some(text) = annotations[NETWORKS].as_str() else { return };
    let mut list: Vec<Value> = serde_json::from_str(text).unwrap();
    for element in list.iter_mut().filter(|element| element["name"] == "flat") {
        element["ipam-claim-reference"] = format!("{machine}.flat").into();
    }
    annotations[NETWORKS] = Value::from(list).to_string().into();
}

/// Makes the machine's claim.
fn make_claim<'n>(namespace: &'n Namespace<'n>) -> Claim<'n> {
    let vm = namespace.wait("vm", "the machine", SOON, |_: &v1::VirtualMachine| true).unwrap();
    let claim = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": {
            "name": CLAIM, "finalizers": [THEIRS], "labels": {"kubevirt.io/vm": "vm"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": vm.uid().unwrap(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"network": namespace.name(), "interface": ""},
    });
    namespace.apply(&claim.to_string()).unwrap();
    Claim(namespace)
}

/// The addresses that the claim has, without the lengths of their prefixes.
fn claimed(namespace: &Namespace<'_>) -> BTreeSet<String> {
    let text = namespace.kubectl(&["get", "ipamclaim", CLAIM, "-o", "json"]).unwrap();
    let claim: Value = serde_json::from_str(&text).unwrap();
    let ips = claim["status"]["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip.as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

/// The machine's pod names the claim and has its addresses, and the guest has them and reaches a neighbour.
fn has(namespace: &Namespace<'_>, flat: &Flat<'_>, machine: &mut Machine<'_>, addresses: &BTreeSet<String>) {
    assert_eq!(claimed(namespace), *addresses);
    assert_eq!(flat.held().unwrap(), *addresses);
    assert!(flat.objects("addressleases").unwrap().is_empty(), "the claim is in their place");
    let pod: Pod = machine.pod();
    assert!(pod.annotations()[NETWORKS].contains(CLAIM), "{:?}", pod.annotations());
    let told: Vec<Value> =
        serde_json::from_str(&pod.annotations()["k8s.v1.cni.cncf.io/network-status"]).unwrap();
    let own = told.iter().find(|told| told["default"] != true).unwrap();
    let ips = own["ips"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap().to_owned());
    assert_eq!(ips.collect::<BTreeSet<_>>(), *addresses);
    let own = machine.sh("ip -o -4 addr show dev eth1 | awk '{print $4}' | cut -d/ -f1");
    assert!(addresses.contains(&own), "{own}: {addresses:?}");
    machine.sh(&format!("ping -c 3 -W 10 -I eth1 {}", flat.addresses()[0]));
}

fn keeps_its_addresses(binding: &str, subnet: u8) {
    let cluster = Cluster::get().unwrap();
    let _kind = Kind::new(&cluster);
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _webhook = Webhook::start(&namespace, &["CREATE", "UPDATE"], name_claim).unwrap();
    let mut flat = Flat::new(&namespace, subnet).unwrap();
    flat.join().unwrap();
    let none = flat.held().unwrap();
    let devices =
        format!("interfaces: [{{name: default, masquerade: {{}}}}, {{name: flat, {binding}: {{}}}}]");
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: default, pod: {}}, {name: flat, multus: {networkName: flat}}]",
        devices: &devices,
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    // The pod's network waits for it.
    let _claim = make_claim(&namespace);
    let mut machine = Machine::started(&namespace, "vm");
    let addresses = claimed(&namespace);
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    machine.sh(CONFIGURE);
    has(&namespace, &flat, &mut machine, &addresses);

    move_on(&mut machine);
    has(&namespace, &flat, &mut machine, &addresses);

    let before = machine.instance().uid();
    namespace.virtctl(&["stop", "vm"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", BOOT).unwrap();
    assert_eq!(claimed(&namespace), addresses, "a machine that is off has them still");
    namespace.virtctl(&["start", "vm"]).unwrap();
    let mut machine = Machine::started(&namespace, "vm");
    assert_ne!(machine.instance().uid(), before);
    machine.sh(CONFIGURE);
    has(&namespace, &flat, &mut machine, &addresses);

    // The claim goes with the machine, once both that keep it have let go of it, and with the claim its addresses.
    namespace.kubectl(&["delete", "vm", "vm", "--timeout=120s"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachine>("vm", BOOT).unwrap();
    let let_go = || {
        let text = namespace.kubectl(&["get", "ipamclaim", CLAIM, "-o", "json"])?;
        let claim: Value = serde_json::from_str(&text)?;
        let kept = claim["metadata"]["finalizers"].as_array().unwrap();
        let place = kept.iter().position(|finalizer| finalizer == THEIRS).unwrap();
        let path = format!("/metadata/finalizers/{place}");
        let patch = json!([{"op": "test", "path": path, "value": THEIRS}, {"op": "remove", "path": path}])
            .to_string();
        // When podvirt-cni's collector takes its finalizer away, the place of the test's finalizer in the list changes.
        Ok(namespace.kubectl(&["patch", "ipamclaim", CLAIM, "--type=json", "-p", &patch]).ok().map(drop))
    };
    namespace.until("a claim that its controller has let go of", SOON, let_go).unwrap();
    flat.wait_freed(&none).unwrap();
    let gone = || {
        let left = namespace.kubectl(&["get", "ipamclaims", "-o", "name"])?;
        Ok(left.trim().is_empty().then_some(()))
    };
    namespace.until("a namespace without claims", SOON, gone).unwrap();
}

#[test]
fn long_an_ipam_claim_keeps_the_addresses_of_a_machine() {
    keeps_its_addresses("passtBinding", 71);
}

#[test]
fn long_an_ipam_claim_keeps_the_addresses_of_a_machine_on_a_bridge() {
    keeps_its_addresses("bridge", 72);
}
