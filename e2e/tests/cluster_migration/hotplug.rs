//! Interfaces that come and go while their machine runs, and take it to another pod where that has to be.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::names::pod as names;
use podvirt_api::v1;
use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Namespace, SOON, Security};
use serde_json::json;

use super::moving::Machine;

/// The interface that comes and goes.
pub(crate) const NIC: &str = "segment";

pub(crate) fn told(
    instance: &v1::VirtualMachineInstance,
) -> Option<&v1::VirtualMachineInstanceNetworkInterface> {
    instance.status.interfaces.iter().find(|i| i.name.as_deref() == Some(NIC))
}

/// Whether all these sources tell of the interface.
pub(crate) fn told_by(instance: &v1::VirtualMachineInstance, sources: &[&str]) -> bool {
    let known = told(instance).and_then(|told| told.info_source.clone()).unwrap_or_default();
    sources.iter().all(|source| known.split(", ").any(|word| word == *source))
}

pub(crate) fn required(instance: &v1::VirtualMachineInstance) -> Option<String> {
    let conditions = &instance.status.conditions;
    let found = conditions.iter().find(|c| c.r#type.as_str() == "MigrationRequired" && c.status == "True")?;
    found.message.clone()
}

pub(crate) fn patch(namespace: &Namespace<'_>, patch: &serde_json::Value) {
    namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch.to_string()]).unwrap();
}

/// Plugs the interface, by the machine's template, and moves the machine into a pod that has it.
fn plug(namespace: &Namespace<'_>, machine: &mut Machine<'_>, binding: &str) {
    let devices = "/spec/template/spec/domain/devices/interfaces/-";
    let network = json!({"name": NIC, "multus": {"networkName": "flat"}});
    patch(
        namespace,
        &json!([
            {"op": "add", "path": "/spec/template/spec/networks/-", "value": network},
            {"op": "add", "path": devices, "value": {"name": NIC, binding: {}}},
        ]),
    );
    let due = |i: &v1::VirtualMachineInstance| required(i).is_some_and(|said| said.contains(NIC));
    namespace.wait("vm", "a migration to be due for the interface", SOON, due).unwrap();
    move_on(machine);
    let there =
        |i: &v1::VirtualMachineInstance| told_by(i, &["domain", "multus-status"]) && required(i).is_none();
    namespace.wait("vm", "the interface in guest and pod", SOON, there).unwrap();
    // Nothing waits for a start.
    let as_said = |vm: &v1::VirtualMachine| {
        let waits = vm.status.conditions.iter().any(|c| c.r#type.as_str() == "RestartRequired");
        !waits && vm.status.observed_generation == vm.metadata.generation
    };
    namespace.wait("vm", "a machine that is as its template says", SOON, as_said).unwrap();
}

pub(crate) fn move_on(machine: &mut Machine<'_>) {
    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
}

/// Unplugs it: the guest loses it at once, the pod by a migration, and then nothing speaks of it any more.
fn unplug(namespace: &Namespace<'_>, machine: &mut Machine<'_>) {
    patch(
        namespace,
        &json!([
            {"op": "test", "path": "/spec/template/spec/domain/devices/interfaces/1/name", "value": NIC},
            {"op": "add", "path": "/spec/template/spec/domain/devices/interfaces/1/state", "value": "absent"},
        ]),
    );
    namespace
        .until("a guest without the interface", SOON, || {
            Ok((machine.sh("ls /sys/class/net | grep -c eth1 || true") == "0").then_some(()))
        })
        .unwrap();
    let due = |i: &v1::VirtualMachineInstance| {
        !told_by(i, &["domain"]) && required(i).is_some_and(|said| said.contains(NIC))
    };
    namespace.wait("vm", "a migration to be due", SOON, due).unwrap();
    // What was made in the pod is gone before the pod is.
    let pod = machine.pod().name_any();
    let links = namespace.exec(&pod, &["ls", "/sys/class/net"]).unwrap();
    assert!(!links.contains(&names::tap(NIC)) && !links.contains(&names::bridge(NIC)), "{links}");
    move_on(machine);
    let gone = |i: &v1::VirtualMachineInstance| {
        told(i).is_none() && i.spec.domain.devices.interfaces.len() == 1 && i.spec.networks.len() == 1
    };
    namespace.wait("vm", "an instance without the interface", SOON, gone).unwrap();
    let gone = |vm: &v1::VirtualMachine| {
        let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()).unwrap();
        spec.domain.devices.interfaces.len() == 1 && spec.networks.len() == 1
    };
    namespace.wait("vm", "a template without the interface", SOON, gone).unwrap();
    let pod: Pod = machine.pod();
    assert!(!pod.annotations().contains_key("k8s.v1.cni.cncf.io/networks"), "{:?}", pod.annotations());
}

/// Plugs an interface, speaks by it, moves, unplugs it, and all of it again.
fn comes_and_goes(binding: &str, subnet: u8, configure: &str) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut flat = Flat::new(&namespace, subnet).unwrap();
    flat.join().unwrap();
    let devices = "interfaces: [{name: default, masquerade: {}}]";
    let mut machine = Machine::start(&namespace, &Manifest { name: "vm", devices, ..Default::default() });
    let none = flat.held().unwrap();
    let ping = format!("ping -c 3 -W 10 -I eth1 172.30.{subnet}.250");
    let (mut macs, mut leases) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        plug(&namespace, &mut machine, binding);
        let mac = machine.sh("cat /sys/class/net/eth1/address");
        let instance = machine.instance();
        assert_eq!(told(&instance).unwrap().mac.as_ref(), Some(&mac));
        assert_eq!(told(&instance).unwrap().pod_interface_name, Some(names::interface(NIC)));
        macs.push(mac);
        machine.sh(configure);
        machine.sh(&ping);
        // It moves as one that was there from the start does.
        move_on(&mut machine);
        machine.sh(&ping);
        unplug(&namespace, &mut machine);
        leases.push(flat.held().unwrap());
    }
    assert_eq!(macs[0], macs[1], "the address follows from the interface's name");
    // A lease is the machine's, not the interface's: it comes again with it, and is the only one.
    assert_eq!((leases[0].len(), &leases[0]), (2, &leases[1]));
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    flat.wait_freed(&none).unwrap();
}

#[test]
fn long_an_interface_on_a_bridge_comes_and_goes_while_the_machine_runs() {
    let configure = "ip link set eth1 up; ip addr add 172.30.64.9/24 dev eth1";
    comes_and_goes("bridge", 64, configure);
}

#[test]
fn long_an_interface_of_netds_comes_and_goes_while_the_machine_runs() {
    let configure = "ip link set eth1 up; udhcpc -i eth1 -n -q -t 8 -T 1 -s /etc/udhcpc.sh >/dev/null 2>&1";
    comes_and_goes("passtBinding", 65, configure);
}
