use std::sync::Arc;

use podvirt_api::error::chain;
use podvirt_proto::domain::Status;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::migration::fake::Fake;
use super::super::shared::Identity;
use super::*;
use crate::hypervisor::Hypervisor;
use crate::life::runner::View;

fn nic(name: &str, binding: &str, more: &Value) -> Value {
    let mut nic = json!({"name": name, binding: {}, "macAddress": format!("02:00:00:00:00:0{}", name.len())});
    nic.as_object_mut()
        .unwrap()
        .extend(more.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    nic
}

fn machine(nics: Vec<Value>) -> VirtualMachineInstance {
    let interfaces = [vec![nic("default", "masquerade", &Value::Null)], nics].concat();
    let networks: Vec<Value> = interfaces
        .iter()
        .map(|i| match i["name"].as_str() {
            Some("default") => json!({"name": "default", "pod": {}}),
            name => json!({"name": name, "multus": {"networkName": "net"}}),
        })
        .collect();
    let mut vmi = VirtualMachineInstance::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {"networks": networks, "domain": {"devices": {"interfaces": interfaces}}},
    }))
    .unwrap();
    podvirt_api::defaults::set_defaults(&mut vmi);
    vmi
}

/// A launcher whose machine runs, and was made from `vmi`.
fn launcher(vmi: &VirtualMachineInstance) -> (Arc<Shared>, Arc<Fake>) {
    let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
    let (fake, _) = Fake::new(Status::Running);
    let known = manifest_interfaces(vmi, &BTreeMap::new());
    *fake.interfaces.lock().unwrap() = known.iter().map(|one| alias_of(&one.name)).collect();
    let hypervisor: Arc<dyn Hypervisor> = fake.clone();
    shared.view.send_replace(View { running: true, hypervisor: Some(hypervisor), ..View::default() });
    shared.facts.send_modify(|facts| facts.interfaces = known);
    (shared, fake)
}

/// Names of the interfaces that the report has.
fn told(shared: &Shared) -> Vec<String> {
    let facts = shared.facts.borrow();
    facts.interfaces.iter().filter(|one| !one.unplugged).map(|one| one.name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_unplugged_interface_goes_once_the_guest_has_let_go_of_it() {
    let absent = json!({"state": "absent"});
    for left in [machine(vec![nic("blue", "bridge", &absent)]), machine(vec![])] {
        let (shared, fake) = launcher(&machine(vec![nic("blue", "bridge", &Value::Null)]));
        *fake.clings.lock().unwrap() = true;
        let error = change(&shared, &left).await.unwrap_err();
        assert_eq!(chain(&error), "interface blue: the guest has not let go of it within 15 s");
        assert_eq!(told(&shared), ["default", "blue"]);
        *fake.clings.lock().unwrap() = false;
        change(&shared, &left).await.unwrap();
        assert_eq!(told(&shared), ["default"]);
        assert_eq!(*fake.interfaces.lock().unwrap(), ["ua-default"]);
        change(&shared, &left).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_guest_has_let_go_of_meanwhile_is_not_asked_for_again() {
    let (shared, fake) = launcher(&machine(vec![nic("blue", "bridge", &Value::Null)]));
    *fake.clings.lock().unwrap() = true;
    let absent = machine(vec![nic("blue", "bridge", &json!({"state": "absent"}))]);
    change(&shared, &absent).await.unwrap_err();
    fake.interfaces.lock().unwrap().pop();
    change(&shared, &absent).await.unwrap();
    assert_eq!(told(&shared), ["default"]);
}

#[tokio::test]
async fn a_bridge_waits_for_its_tap_and_a_netd_for_another_pod() {
    let (shared, fake) = launcher(&machine(vec![]));
    let more =
        machine(vec![nic("blue", "bridge", &Value::Null), nic("redder", "passtBinding", &Value::Null)]);
    change(&shared, &more).await.unwrap();
    assert_eq!((told(&shared), fake.plugged.lock().unwrap().len()), (vec!["default".to_owned()], 0));
}

#[tokio::test]
async fn a_machine_that_came_gets_what_its_new_pod_has_for_it() {
    let vmi = machine(vec![nic("red", "passtBinding", &json!({"state": "down"}))]);
    let (shared, fake) = launcher(&vmi);
    // It has not got there what its specification has by now.
    fake.interfaces.lock().unwrap().pop();
    arrived(&shared).await;
    assert_eq!(told(&shared), ["default"]);
    change(&shared, &vmi).await.unwrap();
    assert_eq!(told(&shared), ["default", "red"]);
    let plugged = fake.plugged.lock().unwrap().clone();
    assert_eq!(plugged.len(), 1);
    for part in
        ["/netd/n1.sock", "<link state=\"down\"/>", "address=\"02:00:00:00:00:03\"", "name=\"ua-red\""]
    {
        assert!(plugged[0].contains(part), "{part}: {}", plugged[0]);
    }
    change(&shared, &vmi).await.unwrap();
    assert_eq!(fake.plugged.lock().unwrap().len(), 1, "once");
    // One of that name with another address is not what the pod's netd serves.
    shared.facts.send_modify(|facts| facts.interfaces[1].unplugged = true);
    let other = machine(vec![nic("red", "passtBinding", &json!({"macAddress": "02:00:00:00:00:99"}))]);
    change(&shared, &other).await.unwrap();
    assert_eq!(told(&shared), ["default"]);
}

#[test]
fn a_machine_leaves_with_what_it_is_to_have() {
    let domain = |names: &[&str]| {
        let interfaces: String = names
            .iter()
            .map(|n| format!("<interface type='ethernet'><alias name='ua-{n}'/></interface>"))
            .collect();
        Domain::from_xml(&format!(
            "<domain type='kvm'><name>x</name><devices>{interfaces}</devices></domain>"
        ))
        .unwrap()
    };
    let vmi = |interfaces: Value| {
        serde_json::from_value(json!({"metadata": {"name": "x"},
            "spec": {"domain": {"devices": {"interfaces": interfaces}}}}))
        .unwrap()
    };
    let both = vmi(json!([{"name": "a"}, {"name": "b"}]));
    may_leave(&domain(&["a"]), &both).expect("the rest comes there");
    let absent = vmi(json!([{"name": "a"}, {"name": "b", "state": "absent"}]));
    may_leave(&domain(&["a"]), &absent).unwrap();
    let error = may_leave(&domain(&["a", "b"]), &absent).unwrap_err();
    assert_eq!(chain(&error), "interface b: it is unplugged, and the guest has not let go of it yet");
    assert!(may_leave(&domain(&["a", "b"]), &vmi(json!([{"name": "a"}]))).is_err());
}

#[tokio::test]
async fn a_device_of_the_node_neither_comes_nor_goes() {
    let with = machine(vec![nic("fast", "sriov", &Value::Null)]);
    let (shared, fake) = launcher(&with);
    assert!(shared.facts.borrow().interfaces[1].foreign);
    // libvirt's interfaces do not have it.
    fake.interfaces.lock().unwrap().retain(|alias| *alias != alias_of("fast"));
    arrived(&shared).await;
    change(&shared, &with).await.unwrap();
    assert_eq!(told(&shared), ["default", "fast"]);
    let (shared, _) = launcher(&machine(vec![]));
    change(&shared, &with).await.unwrap();
    assert_eq!(told(&shared), ["default"], "it is for the next start");
}
