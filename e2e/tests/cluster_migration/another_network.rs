//! Another NetworkAttachmentDefinition for an interface of a machine that runs: the pod that it moves into is attached to it.

use podvirt_api::v1;
use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Namespace, SOON, Security, Segment};
use serde_json::{Value, json};

use super::hotplug::{NIC, move_on, patch, required, told, told_by};
use super::moving::Machine;

/// Name of the second network.
const OTHER: &str = "other";

/// A network of podvirt-cni on a segment of its own.
fn other(namespace: &Namespace<'_>, segment: &Segment<'_>, subnet: u8, ipam: bool) {
    let net = format!("172.30.{subnet}.0/24");
    let own = format!("172.30.{subnet}.250");
    let mut config = json!({
        "cniVersion": "1.0.0", "name": format!("{}-other", namespace.name()), "type": "podvirt-cni",
        "bridge": segment.bridge(), "capabilities": {"mac": true},
    });
    if ipam {
        config["ipam"] = json!({"ranges": [[{"subnet": net, "exclude": [format!("{own}/32")]}]]});
    }
    let manifest = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": OTHER}, "spec": {"config": config.to_string()},
    });
    namespace.apply(&manifest.to_string()).unwrap();
    segment.join(&format!("{own}/24")).unwrap();
}

/// The networks by name of interface, as Multus has attached the machine's pod to them.
fn attached(machine: &Machine<'_>) -> Vec<String> {
    let pod = machine.pod();
    let text = &pod.metadata.annotations.as_ref().unwrap()["k8s.v1.cni.cncf.io/network-status"];
    let list: Vec<Value> = serde_json::from_str(text).unwrap();
    let beside = list.iter().filter(|told| told["default"] != true);
    beside.map(|told| told["name"].as_str().unwrap().to_owned()).collect()
}

/// Moves a machine from the segment of all tests to another one. `configure` gives the guest its addresses, before and after.
fn takes_another(binding: &str, subnets: [u8; 2], id: u8, configure: [&str; 2]) {
    let cluster = Cluster::get().unwrap();
    let segment = cluster.segment(id).unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut flat = Flat::new(&namespace, subnets[0]).unwrap();
    flat.join().unwrap();
    other(&namespace, &segment, subnets[1], binding == "passtBinding");
    let devices =
        format!("interfaces: [{{name: default, masquerade: {{}}}}, {{name: {NIC}, {binding}: {{}}}}]");
    let spec =
        format!("networks: [{{name: default, pod: {{}}}}, {{name: {NIC}, multus: {{networkName: flat}}}}]");
    let manifest = Manifest { name: "vm", spec: &spec, devices: &devices, ..Default::default() };
    let mut machine = Machine::start(&namespace, &manifest);
    let former = format!("172.30.{}.250", subnets[0]);
    let new = format!("172.30.{}.250", subnets[1]);
    let reaches = |machine: &mut Machine<'_>, address: &str| {
        let said =
            machine.sh(&format!("ping -c 3 -W 3 -I eth1 {address} >/dev/null 2>&1 && echo yes || echo no"));
        said == "yes"
    };
    let device =
        "cat /sys/class/net/eth1/address /sys/class/net/eth1/ifindex; readlink -f /sys/class/net/eth1/device";
    let card = machine.sh(device);
    machine.sh(configure[0]);
    assert!(reaches(&mut machine, &former), "{}", namespace.report());
    assert!(!reaches(&mut machine, &new), "the segments are one");
    let name = namespace.name().to_owned();
    assert_eq!(attached(&machine), [format!("{name}/flat")]);

    let path = "/spec/template/spec/networks/1/multus/networkName";
    patch(&namespace, &json!([{"op": "replace", "path": path, "value": OTHER}]));
    let due = |i: &v1::VirtualMachineInstance| {
        required(i)
            .is_some_and(|said| said.contains(&format!("attached to {name}/flat, not to {name}/{OTHER}")))
    };
    namespace.wait("vm", "a migration to be due for the network", SOON, due).unwrap();
    assert!(reaches(&mut machine, &former), "until it moves nothing changes");
    move_on(&mut machine);
    let there =
        |i: &v1::VirtualMachineInstance| told_by(i, &["domain", "multus-status"]) && required(i).is_none();
    let instance = namespace.wait("vm", "the interface in guest and pod", SOON, there).unwrap();
    assert_eq!(attached(&machine), [format!("{name}/{OTHER}")]);
    assert_eq!(machine.sh(device), card, "the device stays");
    machine.sh(configure[1]);
    assert!(reaches(&mut machine, &new), "{}", namespace.report());
    assert!(!reaches(&mut machine, &former), "it is on the former segment still");
    let mac = card.lines().next().map(str::to_owned);
    assert_eq!(told(&instance).unwrap().mac, mac);
    // Nothing waits for a start.
    let as_said = |vm: &v1::VirtualMachine| {
        let waits = vm.status.conditions.iter().any(|c| c.r#type.as_str() == "RestartRequired");
        !waits && vm.status.observed_generation == vm.metadata.generation
    };
    namespace.wait("vm", "a machine that is as its template says", SOON, as_said).unwrap();
}

#[test]
fn long_another_network_is_taken_by_a_move() {
    // Its addresses are the guest's own affair: it has one on each network from the start.
    let configure = "ip link set eth1 up; ip addr flush dev eth1; ip addr add 172.30.67.9/24 dev eth1; ip addr add 172.30.68.9/24 dev eth1";
    takes_another("bridge", [67, 68], 77, [configure; 2]);
}

#[test]
fn long_another_network_is_taken_by_a_move_by_netd() {
    let configure = "ip link set eth1 up; ip addr flush dev eth1; udhcpc -i eth1 -n -q -t 8 -T 1 -s /etc/udhcpc.sh >/dev/null 2>&1";
    takes_another("passtBinding", [69, 70], 78, [configure; 2]);
}
