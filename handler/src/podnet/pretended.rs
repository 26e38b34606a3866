//! A pod's network namespace that tests pretend: its state changes by a step as the kernel's does.

use podvirt_api::bridge::Bridged;
use podvirt_api::mac::MacAddr;

use super::plan::{FILTER_SETTINGS, Kind, Link, State, Step};

/// The guest's MAC address.
pub(super) const GUEST: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 9]);

/// An interface that is bound by a bridge.
pub(super) fn one(queues: u64) -> Bridged {
    Bridged {
        index: 1,
        name: "blue".into(),
        pod_interface: "pod1".into(),
        bridge: "k6t-1".into(),
        tap: "tap1".into(),
        kept: "kept1".into(),
        services: "dhcp1".into(),
        mac: Some(GUEST),
        queues,
        is_told: true,
    }
}

/// A link as it is made: down and bare.
pub(super) fn link(index: u32, kind: Kind) -> Link {
    let mac = Some(MacAddr([2, 0, 0, 0, 1, u8::try_from(index).unwrap()]));
    Link { index, kind, mac, mtu: 1500, up: false, controller: None, learns: None, addresses: false }
}

/// Settings as the kernel makes them, with those of `br_netfilter` beside them.
pub(super) fn filtered(settings: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let filter = FILTER_SETTINGS.map(|(key, _)| (key, "1"));
    settings.iter().chain(&filter).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Whether any of these steps is about `br_netfilter`.
pub(super) fn is_filter_set(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::Set(key, _) if key.starts_with("bridge/")))
}

/// Carries a step out on the state.
pub(super) fn carry_out(state: &mut State, step: &Step) {
    let index = u32::try_from(state.links.len()).unwrap() + 2;
    match step.clone() {
        Step::Bridge(name, mac) => {
            state.links.insert(name, Link { mac: Some(mac), ..link(index, Kind::Bridge) });
        }
        Step::Tap(name, several) => drop(state.links.insert(name, link(index, Kind::Tap { several }))),
        Step::Set(key, value) => drop(state.settings.insert(key, value.into())),
        Step::Mtu(name, mtu) => state.links.get_mut(&name).unwrap().mtu = mtu,
        Step::Join(name, bridge) => {
            let controller = Some(state.links[&bridge].index);
            let port = state.links.get_mut(&name).unwrap();
            (port.controller, port.learns) = (controller, Some(true));
        }
        Step::Unlearn(name) => state.links.get_mut(&name).unwrap().learns = Some(false),
        Step::Bare(name) => {
            state.links.get_mut(&name).unwrap().addresses = false;
            state.nets.retain(|(of, _)| *of != name);
            state.ways.retain(|(of, _)| *of != name);
        }
        Step::Address(name, mac) => state.links.get_mut(&name).unwrap().mac = Some(mac),
        Step::Down(name) => state.links.get_mut(&name).unwrap().up = false,
        Step::Net(name, net) => drop(state.nets.insert((name, net))),
        Step::Way(name, way) => {
            assert!(state.links[&name].up, "an interface that is down has no routes");
            state.ways.insert((name, way));
        }
        Step::Rules(_) => {}
        Step::Up(name) => state.links.get_mut(&name).unwrap().up = true,
    }
}
