//! Interfaces that come and go while the machine runs.

use podvirt_proto::domain::Interface;
use serde_json::json;

use super::*;

/// A running machine with `blue` on a network of Multus, in this state; its status has it by these sources, and the guest has
/// devices of these names.
fn pass(state: &str, sources: &str, devices: &[&str]) -> Pass {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    pass.vmi.spec.domain.devices.interfaces = serde_json::from_value(json!([
        {"name": "default", "passtBinding": {}}, {"name": "blue", "bridge": {}, "state": state},
    ]))
    .unwrap();
    pass.vmi.spec.networks = serde_json::from_value(json!([
        {"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}},
    ]))
    .unwrap();
    let blue = json!({"name": "blue", "infoSource": sources, "podInterfaceName": "podblue"});
    let told = if sources.is_empty() { vec![] } else { vec![blue] };
    pass.vmi.status.interfaces = serde_json::from_value(told.into()).unwrap();
    let device =
        |name: &&str| Interface { name: (*name).into(), info_source: "domain".into(), ..Default::default() };
    pass.domain.as_mut().unwrap().interfaces = devices.iter().map(device).collect();
    pass
}

#[test]
fn a_handler_that_comes_new_sees_what_is_to_be_plugged_and_unplugged() {
    for (state, sources, devices, due) in [
        ("up", "multus-status", &["default"][..], true),
        ("up", "", &["default"], false),
        ("up", "domain, multus-status", &["default", "blue"], false),
        ("absent", "domain, multus-status", &["default", "blue"], true),
        ("absent", "multus-status", &["default"], false),
    ] {
        let pass = pass(state, sources, devices);
        let sync = due.then(|| Action::Sync(spec_hash(&pass.vmi)));
        assert_eq!(pass.decide().action, sync, "{state} {sources} {devices:?}");
    }
}

#[test]
fn the_launcher_hears_of_a_network_that_the_pod_was_attached_to() {
    let mut before = pass("up", "", &["default"]);
    before.memory.synced = Some(spec_hash(&before.vmi));
    assert_eq!(before.decide().action, None);
    let mut after = pass("up", "multus-status", &["default"]);
    after.memory.synced = before.memory.synced;
    assert_eq!(after.decide().action, Some(Action::Sync(spec_hash(&after.vmi))));
    // What the guest tells of it is no reason to tell the launcher.
    let plugged = pass("up", "domain, guest-agent, multus-status", &["default", "blue"]);
    assert_eq!(spec_hash(&plugged.vmi), spec_hash(&after.vmi));
}

#[test]
fn the_status_keeps_what_the_pod_has_and_the_guest_has_not() {
    let told = |sources: &str| {
        let status = pass("absent", sources, &["default"]).decide().status;
        let told = status.interfaces.into_iter();
        told.map(|t| (t.name.unwrap_or_default(), t.info_source.unwrap_or_default())).collect::<Vec<_>>()
    };
    let own = ("default".to_owned(), "domain".to_owned());
    let blue = ("blue".to_owned(), "multus-status".to_owned());
    assert_eq!(told("domain, multus-status"), [own.clone(), blue]);
    assert_eq!(told("domain"), [own], "neither has it");
}

#[test]
fn the_interface_on_the_pods_own_network_comes_first() {
    let mut pass = pass("up", "domain, multus-status", &["blue", "default"]);
    let own = Interface {
        interface_name: "docker0".into(),
        info_source: "guest-agent".into(),
        ..Default::default()
    };
    pass.domain.as_mut().unwrap().interfaces.insert(0, own);
    let status = pass.decide().status;
    let names = status.interfaces.iter().map(|told| (told.name.as_deref(), told.info_source.as_deref()));
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            (Some("default"), Some("domain")),
            (None, Some("guest-agent")),
            (Some("blue"), Some("domain, multus-status")),
        ]
    );
}
