//! Interfaces that come and go in the pod that their machine runs in: a controller of dynamic networks attaches it.

use std::net::IpAddr;

use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::names::pod as names;
use podvirt_api::v1::{self, VirtualMachineInstanceMigration as Migration};
use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Namespace, SOON, Security, prepare_dynamic_networks};
use serde_json::{Value, json};

use super::hotplug::{NIC, move_on, patch, required, told, told_by};
use super::moving::Machine;

/// What the pod asks for and what it has, by the names of its interfaces.
const ASKED: &str = "k8s.v1.cni.cncf.io/networks";
const HAS: &str = "k8s.v1.cni.cncf.io/network-status";

/// A network of the standard plugin on the segment, which lets pass the pod's MAC address alone.
fn checking(namespace: &Namespace<'_>) {
    let config = json!({
        "cniVersion": "1.0.0", "name": format!("{}-checking", namespace.name()), "type": "bridge", "bridge": "br1",
        "macspoofchk": true,
    });
    let manifest = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "checking"}, "spec": {"config": config.to_string()},
    });
    namespace.apply(&manifest.to_string()).unwrap();
}

/// A pod on the network `flat`, on this node; its address there.
fn neighbour(namespace: &Namespace<'_>, node: &str) -> IpAddr {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "neighbour", "annotations": {(ASKED): json!([{"name": "flat", "interface": "flat0"}]).to_string()}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "securityContext": {"runAsUser": 107, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "neighbour", "image": "podvirt/tools:dev", "command": ["sleep", "infinity"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    namespace.apply(&manifest.to_string()).unwrap();
    let pod = namespace.wait_pod("neighbour", SOON).unwrap();
    let told: Value = serde_json::from_str(&pod.annotations()[HAS]).unwrap();
    let own = told.as_array().unwrap().iter().find(|told| told["interface"] == "flat0").unwrap();
    own["ips"][0].as_str().unwrap().parse().unwrap()
}

/// Whether the pod asks for the interface, and whether it has it.
fn of_pod(machine: &Machine<'_>) -> (bool, bool) {
    let pod = machine.pod();
    let interface = names::interface(NIC);
    let has = |key: &str| {
        let text = pod.annotations().get(key).map_or("[]", String::as_str);
        let list: Vec<Value> = serde_json::from_str(text).unwrap();
        list.iter().any(|one| one["interface"] == interface.as_str())
    };
    (has(ASKED), has(HAS))
}

/// Reasons of the events about an object, in the order of their first occurrence.
fn events(namespace: &Namespace<'_>, kind: &str, name: &str) -> Vec<String> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let args = ["get", "events", "--field-selector", &selector, "-o", "jsonpath={.items[*].reason}"];
    namespace.kubectl(&args).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// No migration of the machine was asked for beside these, and it is in the pod that it was in.
fn has_stayed(namespace: &Namespace<'_>, machine: &Machine<'_>, pod: Option<&String>, migrations: usize) {
    assert_eq!(machine.pod().metadata.uid.as_ref(), pod);
    let all =
        namespace.cluster().block_on(namespace.api::<Migration>().list(&ListParams::default())).unwrap();
    assert_eq!(all.items.len(), migrations, "{:?}", all.items);
}

fn plug(namespace: &Namespace<'_>, machine: &mut Machine<'_>, network: &str) {
    let devices = "/spec/template/spec/domain/devices/interfaces/-";
    let network = json!({"name": NIC, "multus": {"networkName": network}});
    patch(
        namespace,
        &json!([
            {"op": "add", "path": "/spec/template/spec/networks/-", "value": network},
            {"op": "add", "path": devices, "value": {"name": NIC, "bridge": {}}},
        ]),
    );
    let there = |i: &v1::VirtualMachineInstance| {
        // A migration would do it as well; it is not to be asked for.
        assert_eq!(required(i), None);
        let condition = i.status.conditions.iter().any(|c| c.r#type.as_str() == "MigrationRequired");
        told_by(i, &["domain", "multus-status"]) && !condition
    };
    let instance = namespace.wait("vm", "the interface in guest and pod", SOON, there).unwrap();
    assert_eq!(of_pod(machine), (true, true));
    let seen = told(&instance).unwrap();
    assert_eq!(seen.pod_interface_name, Some(names::interface(NIC)));
    assert_eq!(seen.info_source.as_deref(), Some("domain, multus-status"), "the guest has no agent");
    assert_eq!((seen.link_state.as_deref(), seen.queue_count), (Some("up"), Some(1)));
    assert_eq!(seen.mac, Some(machine.sh("cat /sys/class/net/eth2/address")));
    // Nothing waits for a start.
    let as_said = |vm: &v1::VirtualMachine| {
        let waits = vm.status.conditions.iter().any(|c| c.r#type.as_str() == "RestartRequired");
        !waits && vm.status.observed_generation == vm.metadata.generation
    };
    namespace.wait("vm", "a machine that is as its template says", SOON, as_said).unwrap();
}

fn unplug(namespace: &Namespace<'_>, machine: &mut Machine<'_>) {
    patch(
        namespace,
        &json!([
            {"op": "test", "path": "/spec/template/spec/domain/devices/interfaces/2/name", "value": NIC},
            {"op": "add", "path": "/spec/template/spec/domain/devices/interfaces/2/state", "value": "absent"},
        ]),
    );
    let gone = |i: &v1::VirtualMachineInstance| {
        assert_eq!(required(i), None);
        told(i).is_none() && i.spec.domain.devices.interfaces.len() == 2 && i.spec.networks.len() == 2
    };
    let instance = namespace.wait("vm", "an instance without the interface", SOON, gone).unwrap();
    assert_eq!(instance.status.interfaces.len(), 2, "{:?}", instance.status.interfaces);
    assert_eq!(machine.sh("ls /sys/class/net | grep -c eth2 || true"), "0");
    assert_eq!(of_pod(machine), (false, false));
    let links = namespace.exec(&machine.pod().name_any(), &["ls", "/sys/class/net"]).unwrap();
    for link in [names::interface(NIC), names::tap(NIC), names::bridge(NIC)] {
        assert!(!links.contains(&link), "{link} in {links}");
    }
    let gone = |vm: &v1::VirtualMachine| {
        let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()).unwrap();
        spec.domain.devices.interfaces.len() == 2 && spec.networks.len() == 2
    };
    namespace.wait("vm", "a template without the interface", SOON, gone).unwrap();
}

#[test]
fn long_an_interface_on_a_bridge_comes_and_goes_in_place() {
    prepare_dynamic_networks().unwrap();
    let cluster = Cluster::get().unwrap();
    let dynamic = cluster.dynamic_networks().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // The guest's own addresses are none of those that are leased.
    let flat = Flat::leasing(&namespace, 66, 9).unwrap();
    checking(&namespace);
    // A pod that has a bridge has what it takes for another one.
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: default, pod: {}}, {name: first, multus: {networkName: flat}}]",
        devices: "interfaces: [{name: default, masquerade: {}}, {name: first, bridge: {}}]",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    let other = if machine.node().name() == "node1" { "node2" } else { "node1" };
    let neighbour = neighbour(&namespace, other);
    let configure = "ip link set eth2 up; ip addr add 172.30.66.99/24 dev eth2";
    let ping = format!("ping -c 3 -W 10 -I eth2 {neighbour}");
    let pod = machine.pod().metadata.uid;
    let (mut macs, mut leases) = (Vec::new(), Vec::new());
    let networks = ["checking", "flat"];
    for network in networks {
        plug(&namespace, &mut machine, network);
        has_stayed(&namespace, &machine, pod.as_ref(), 0);
        machine.sh(configure);
        machine.sh(&ping);
        macs.push(machine.sh("cat /sys/class/net/eth2/address"));
        leases.push(flat.held().unwrap().len());
        unplug(&namespace, &mut machine);
        has_stayed(&namespace, &machine, pod.as_ref(), 0);
        machine.runs_on_one_side();
        // A daemon that starts anew makes its socket anew.
        dynamic.restart_multus().unwrap();
    }
    assert_eq!(macs[0], macs[1], "the address follows from the interface's name");
    assert_eq!(leases[0] + 2, leases[1], "an address of each family");
    let told = events(&namespace, "Pod", &machine.pod().name_any());
    assert!(
        ["AddedInterface", "RemovedInterface"].iter().all(|one| told.iter().any(|o| o == one)),
        "{told:?}"
    );
    let told = events(&namespace, "VirtualMachine", "vm");
    assert!(told.iter().any(|one| one == "InterfacesChanged"), "{told:?}");
    let told = events(&namespace, "VirtualMachineInstance", "vm");
    assert!(!told.iter().any(|one| one == "MigrationRequired"), "{told:?}");

    // What came in place goes along with the machine, and leaves the pod that it moves into.
    plug(&namespace, &mut machine, networks[0]);
    machine.sh(configure);
    move_on(&mut machine);
    machine.sh(&ping);
    let pod = machine.pod().metadata.uid;
    unplug(&namespace, &mut machine);
    has_stayed(&namespace, &machine, pod.as_ref(), 1);
    // There another one comes in place; podvirt-cni knows that the machine has arrived, and has it heard.
    plug(&namespace, &mut machine, networks[1]);
    has_stayed(&namespace, &machine, pod.as_ref(), 1);
    machine.sh(configure);
    machine.sh(&ping);
}

/// Interfaces beyond the machine's first two, in one change of its template.
fn plug_all(namespace: &Namespace<'_>, names: &[String]) {
    let device = |name: &String| {
        let path = "/spec/template/spec/domain/devices/interfaces/-";
        json!({"op": "add", "path": path, "value": {"name": name, "bridge": {}}})
    };
    let network = |name: &String| {
        let value = json!({"name": name, "multus": {"networkName": "checking"}});
        json!({"op": "add", "path": "/spec/template/spec/networks/-", "value": value})
    };
    let all: Vec<Value> = names.iter().map(network).chain(names.iter().map(device)).collect();
    patch(namespace, &Value::from(all));
}

#[test]
fn long_as_many_interfaces_come_in_place_as_the_machine_has_ports_for() {
    prepare_dynamic_networks().unwrap();
    let cluster = Cluster::get().unwrap();
    let _dynamic = cluster.dynamic_networks().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    checking(&namespace);
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: default, pod: {}}, {name: first, multus: {networkName: checking}}]",
        devices: "interfaces: [{name: default, masquerade: {}}, {name: first, bridge: {}}]",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    let pod = machine.pod().metadata.uid;
    let name = |number| format!("more{number}");
    let is_there = |instance: &v1::VirtualMachineInstance, name: &str| {
        let told = instance.status.interfaces.iter().find(|told| told.name.as_deref() == Some(name));
        told.is_some_and(|told| told.info_source.as_deref() == Some("domain, multus-status"))
    };
    let four: Vec<String> = (1..=4).map(name).collect();
    plug_all(&namespace, &four);
    let all = |i: &v1::VirtualMachineInstance| four.iter().all(|name| is_there(i, name));
    namespace.wait("vm", "four interfaces in guest and pod", SOON, all).unwrap();
    assert_eq!(machine.sh("ls -d /sys/class/net/eth* | wc -l"), "6");
    has_stayed(&namespace, &machine, pod.as_ref(), 0);

    // One more is the pod's, and the reason why the guest does not get it is told.
    plug_all(&namespace, &[name(5)]);
    let said = "interface more5: ";
    let why = "the machine has no free PCI port left: 4 devices can be plugged while it runs";
    let refused = |i: &v1::VirtualMachineInstance| {
        let told = |c: &v1::VirtualMachineInstanceCondition| {
            let message = c.message.as_deref().unwrap_or_default();
            c.r#type.as_str() == "Synchronized"
                && c.status == "False"
                && message.contains(said)
                && message.contains(why)
        };
        i.status.conditions.iter().any(told)
    };
    namespace.wait("vm", "a word on the fifth", SOON, refused).unwrap();
    let told = events(&namespace, "VirtualMachineInstance", "vm");
    assert!(told.iter().any(|one| one == "SyncFailed"), "{told:?}");
    assert_eq!(machine.sh("ls -d /sys/class/net/eth* | wc -l"), "6");
    machine.goes_on();
}
