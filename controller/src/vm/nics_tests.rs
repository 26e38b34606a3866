use podvirt_api::v1::VirtualMachineInstance;
use serde_json::{Value, json};

use super::super::instance::{TEMPLATE_DIGEST, is_outdated, render};
use super::*;

fn nic(name: &str, binding: &str, more: Value) -> Value {
    let mut nic = json!({"name": name, binding: {}});
    json_patch::merge(&mut nic, &more);
    nic
}

fn network(name: &str, nad: &str) -> Value {
    json!({"name": name, "multus": {"networkName": nad}})
}

/// A machine with the pod's network and these interfaces, each on a network of its name.
fn machine(nics: Vec<Value>, nads: &[(&str, &str)]) -> VirtualMachine {
    let interfaces = [vec![nic("default", "masquerade", json!({}))], nics].concat();
    let networks: Vec<Value> = std::iter::once(json!({"name": "default", "pod": {}}))
        .chain(nads.iter().map(|(name, nad)| network(name, nad)))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m"},
        "spec": {"template": {"spec": {"networks": networks, "domain": {"devices": {"interfaces": interfaces}}}}},
    }))
    .unwrap()
}

fn running(vm: &VirtualMachine) -> VirtualMachineInstance {
    let mut vmi = render(vm, false);
    vmi.metadata.uid = Some("i".into());
    vmi.status.phase = Some(Phase::Running);
    told(&mut vmi);
    vmi
}

/// The status has every interface that the specification has.
fn told(vmi: &mut VirtualMachineInstance) {
    let names = vmi.spec.domain.devices.interfaces.iter().map(|i| json!({"name": i.name}));
    vmi.status.interfaces = serde_json::from_value(names.collect()).unwrap();
}

/// Carries a change out.
fn take(vmi: &mut VirtualMachineInstance, change: Change) {
    vmi.spec.domain.devices.interfaces = change.interfaces;
    vmi.spec.networks = change.networks;
    if let Some(digest) = change.digest {
        vmi.metadata.annotations.as_mut().unwrap().insert(TEMPLATE_DIGEST.into(), digest);
    }
}

fn names(vmi: &VirtualMachineInstance) -> Vec<&str> {
    vmi.spec.domain.devices.interfaces.iter().map(|i| i.name.as_str()).collect()
}

#[test]
fn an_interface_is_appended_and_the_instance_is_not_outdated() {
    let mut vmi = running(&machine(vec![], &[]));
    for binding in ["bridge", "passtBinding"] {
        let (name, mac) = (format!("n-{binding}"), "02:00:00:00:00:07");
        let mut nics = vec![nic(&name, binding, json!({"macAddress": mac}))];
        if binding == "passtBinding" {
            nics.push(nic("n-bridge", "bridge", json!({"macAddress": mac})));
        }
        let nads = [("n-bridge", "blue"), ("n-passtBinding", "red")];
        let vm = machine(nics, &nads[..if binding == "bridge" { 1 } else { 2 }]);
        assert!(!is_outdated(&vm, &vmi), "no restart is asked for before it is plugged");
        let change = of_instance(&vm, &vmi).unwrap();
        assert_eq!(change.message, format!("{name} is plugged"));
        take(&mut vmi, change);
        assert!(!is_outdated(&vm, &vmi));
        assert_eq!(of_instance(&vm, &vmi), None);
    }
    // The order is that of their coming: a pod's netds are counted by it.
    assert_eq!(names(&vmi), ["default", "n-bridge", "n-passtBinding"]);
    let macs: Vec<_> = vmi.spec.domain.devices.interfaces.iter().map(|i| i.mac_address.clone()).collect();
    assert_eq!(macs[1].as_deref(), Some("02:00:00:00:00:07"));
}

#[test]
fn an_interface_without_an_address_gets_the_one_of_the_next_start() {
    let vm = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    let mut vmi = running(&machine(vec![], &[]));
    let change = of_instance(&vm, &vmi).unwrap();
    take(&mut vmi, change);
    assert_eq!(vmi.spec.domain.devices.interfaces[1], render(&vm, false).spec.domain.devices.interfaces[1]);
}

#[test]
fn what_cannot_be_plugged_waits_for_the_next_start() {
    let vmi = running(&machine(vec![], &[]));
    for (binding, network) in [
        ("sriov", network("n", "blue")),
        ("masquerade", network("n", "blue")),
        ("bridge", json!({"name": "n", "multus": {"networkName": "blue", "default": true}})),
        ("passtBinding", json!({"name": "n", "pod": {}})),
    ] {
        let mut vm = machine(vec![nic("n", binding, json!({}))], &[]);
        let spec = vm.spec.template.as_mut().unwrap().spec.as_mut().unwrap();
        spec.networks.push(serde_json::from_value(network).unwrap());
        assert_eq!(of_instance(&vm, &vmi), None, "{binding}");
        assert!(is_outdated(&vm, &vmi), "{binding}");
    }
    // Nor a card of conventional PCI, for which there is no free slot; one of PCI Express is plugged.
    for (model, plugged) in
        [("rtl8139", false), ("e1000", false), ("e1000e", true), ("igb", true), ("", true)]
    {
        let vm = machine(vec![nic("n", "bridge", json!({"model": model}))], &[("n", "blue")]);
        assert_eq!(of_instance(&vm, &vmi).is_some(), plugged, "{model}");
        assert_eq!(is_outdated(&vm, &vmi), !plugged, "{model}");
    }
    // Neither does one that the template loses without having said so.
    let vm = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    let (vmi, without) = (running(&vm), machine(vec![], &[]));
    assert_eq!(of_instance(&without, &vmi), None);
    assert!(is_outdated(&without, &vmi));
}

#[test]
fn nothing_is_written_while_the_instance_does_not_run_or_moves() {
    let vm = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    let vmi = running(&machine(vec![], &[]));
    assert!(of_instance(&vm, &vmi).is_some());
    for status in [
        json!({"phase": "Scheduled"}),
        json!({"phase": "Succeeded"}),
        json!({"phase": "Running", "migrationState": {"migrationUid": "u", "targetPod": "p"}}),
    ] {
        let mut other = vmi.clone();
        other.status = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(of_instance(&vm, &other), None, "{status}");
        assert!(!is_outdated(&vm, &other), "{status}");
    }
}

#[test]
fn a_restart_that_is_due_stays_due_when_an_interface_comes() {
    let mut vmi = running(&machine(vec![], &[]));
    let mut vm = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    vm.spec.template.as_mut().unwrap().spec.as_mut().unwrap().hostname = Some("other".into());
    assert!(is_outdated(&vm, &vmi));
    let change = of_instance(&vm, &vmi).unwrap();
    take(&mut vmi, change);
    assert_eq!(names(&vmi), ["default", "blue"]);
    assert!(is_outdated(&vm, &vmi));
}

#[test]
fn an_unplugged_interface_goes_from_instance_and_template_once_the_status_has_it_no_more() {
    let absent = json!({"state": "absent"});
    let vm = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    let mut vmi = running(&vm);
    let vm = machine(vec![nic("blue", "bridge", absent)], &[("blue", "blue")]);
    let change = of_instance(&vm, &vmi).unwrap();
    take(&mut vmi, change);
    assert!(vmi.spec.domain.devices.interfaces[1].is_absent());
    assert_eq!(
        (of_instance(&vm, &vmi), of_template(&vm, Some(&vmi))),
        (None, None),
        "the guest has it still"
    );
    assert!(!is_outdated(&vm, &vmi));

    // Plugged again too early: first it goes.
    let back = machine(vec![nic("blue", "bridge", json!({}))], &[("blue", "blue")]);
    assert_eq!(of_instance(&back, &vmi), None);

    vmi.status.interfaces.pop();
    let change = of_instance(&vm, &vmi).unwrap();
    take(&mut vmi, change);
    assert_eq!((names(&vmi), vmi.spec.networks.len()), (vec!["default"], 1));
    assert!(!is_outdated(&vm, &vmi));
    let change = of_template(&vm, Some(&vmi)).unwrap();
    assert_eq!((change.interfaces.len(), change.networks.len()), (1, 1));
    assert!(!is_outdated(&machine(vec![], &[]), &vmi));
    // A machine that does not run, too; and a start does not wait for that.
    assert!(of_template(&vm, None).is_some());
    assert_eq!(names(&render(&vm, false)), ["default"]);
    assert!(!is_outdated(&vm, &render(&vm, false)));
    // It comes again.
    let change = of_instance(&back, &vmi).unwrap();
    assert_eq!(change.message, "blue is plugged");
}

#[test]
fn an_interface_that_is_gone_keeps_its_place_before_one_of_netds() {
    let absent = json!({"state": "absent"});
    let nads = [("a", "x"), ("b", "x"), ("c", "x")];
    for (binding, left) in
        [("passtBinding", &["default", "a", "b", "c"][..]), ("bridge", &["default", "b", "c"][..])]
    {
        let nics = |state: Value| {
            vec![nic("a", "bridge", state), nic("b", "bridge", json!({})), nic("c", binding, json!({}))]
        };
        let mut vmi = running(&machine(nics(json!({})), &nads));
        let vm = machine(nics(absent.clone()), &nads);
        let change = of_instance(&vm, &vmi).unwrap();
        take(&mut vmi, change);
        vmi.status.interfaces.retain(|told| told.name.as_deref() != Some("a"));
        if let Some(change) = of_instance(&vm, &vmi) {
            take(&mut vmi, change);
        }
        assert_eq!(names(&vmi), left);
        assert_eq!(of_instance(&vm, &vmi), None, "and that is all");
    }
}

#[test]
fn another_network_is_the_running_instances() {
    let vm = |nad| machine(vec![nic("blue", "bridge", json!({}))], &[("blue", nad)]);
    let mut vmi = running(&vm("one"));
    assert!(!is_outdated(&vm("two"), &vmi));
    let change = of_instance(&vm("two"), &vmi).unwrap();
    assert_eq!(change.message, "blue changes to the network two");
    take(&mut vmi, change);
    assert_eq!(vmi.spec.networks[1].multus.as_ref().unwrap().network_name, "two");
    assert!(!is_outdated(&vm("two"), &vmi));
    assert_eq!(of_instance(&vm("two"), &vmi), None);
    assert!(of_instance(&vm("one"), &vmi).is_some(), "and back");
}

#[test]
fn another_network_of_a_device_waits_for_the_next_start() {
    let vm = |nad| {
        let nics = vec![nic("blue", "bridge", json!({})), nic("fast", "sriov", json!({}))];
        machine(nics, &[("blue", "one"), ("fast", nad)])
    };
    let vmi = running(&vm("one"));
    assert!(!is_outdated(&vm("one"), &vmi));
    assert_eq!(of_instance(&vm("two"), &vmi), None);
    assert!(is_outdated(&vm("two"), &vmi));
}
