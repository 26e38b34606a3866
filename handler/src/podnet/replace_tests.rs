use std::collections::BTreeMap;

use super::super::plan::Link;
use super::super::pretended::{carry_out, filtered, link};
use super::*;
use podvirt_api::mac::MacAddr;

const OWN: MacAddr = MacAddr([0x0a, 0, 0, 0, 0, 7]);

fn wanted() -> Bridged {
    Bridged {
        index: 0,
        name: "default".into(),
        pod_interface: "eth0".into(),
        bridge: "k6t-eth0".into(),
        tap: "tap0".into(),
        kept: "eth0-pod".into(),
        services: "dhcp0".into(),
        mac: None,
        queues: 1,
        is_told: true,
    }
}

fn way(to: &str, via: Option<&str>, metric: u32) -> Way {
    Way { to: to.parse().unwrap(), via: via.map(|via| via.parse().unwrap()), metric }
}

/// As a plugin leaves it whose gateway is off the link.
fn fresh() -> State {
    let uplink = Link { mac: Some(OWN), mtu: 1400, up: true, addresses: true, ..link(2, Kind::Other) };
    let ways = [way("169.254.1.1/32", None, 0), way("0.0.0.0/0", Some("169.254.1.1"), 0)];
    State {
        links: BTreeMap::from([("eth0".to_owned(), uplink)]),
        settings: filtered(&[("ipv6/conf/eth0/disable_ipv6", "0")]),
        nets: ["10.1.0.7/32", "fd00:1::7/64"].map(|net| ("eth0".to_owned(), net.parse().unwrap())).into(),
        ways: ways.map(|way| ("eth0".to_owned(), way)).into(),
    }
}

#[test]
fn a_plugins_guest_is_told_nothing() {
    let plugins = Bridged { is_told: false, ..wanted() };
    let (told, untold) = (plan(&fresh(), &wanted()).unwrap(), plan(&fresh(), &plugins).unwrap());
    let teller = |step: &Step| match step {
        Step::Tap(name, _) | Step::Mtu(name, _) | Step::Up(name) => name == "dhcp0",
        Step::Set(key, _) => key.contains("/dhcp0/"),
        Step::Rules(_) => true,
        _ => false,
    };
    assert!(told.iter().any(teller) && !untold.iter().any(teller), "{untold:?}");
    let others: Vec<Step> = told.into_iter().filter(|step| !teller(step)).collect();
    assert_eq!(untold, others, "all else is the same");
}

#[test]
fn what_the_pod_had_is_kept_before_it_is_taken_off() {
    let steps = plan(&fresh(), &wanted()).unwrap();
    let place = |wanted: &Step| {
        steps.iter().position(|step| step == wanted).unwrap_or_else(|| panic!("{wanted:?}: {steps:?}"))
    };
    let kept = || "eth0-pod".to_owned();
    assert_eq!(steps[..2], [Step::Bridge(kept(), OWN), Step::Mtu(kept(), 1400)]);
    let bare = place(&Step::Bare("eth0".into()));
    let up = place(&Step::Up(kept()));
    let link_route = place(&Step::Way(kept(), way("169.254.1.1/32", None, ABOVE)));
    let default = place(&Step::Way(kept(), way("0.0.0.0/0", Some("169.254.1.1"), ABOVE)));
    assert!(place(&Step::Net(kept(), "10.1.0.7/32".parse().unwrap())) < up);
    assert!(up < link_route && link_route < default && default < bare, "{steps:?}");
    assert!(!steps.iter().any(|step| matches!(step, Step::Net(_, net) if net.addr().is_ipv6())));
    // The guest has the pod's MAC address, so the pod has another one.
    assert!(
        steps.iter().any(|step| matches!(step, Step::Address(name, mac) if name == "eth0" && *mac != OWN))
    );
    assert_eq!(steps.last(), Some(&Step::Up("tap0".into())));
    let rules =
        steps.iter().position(|step| matches!(step, Step::Rules(rules) if rules.contains("udp dport 67")));
    assert!(rules.is_some_and(|rules| rules < steps.len() - 1), "{steps:?}");
}

#[test]
fn a_process_that_died_at_any_step_is_followed_by_one_that_does_the_rest() {
    for given in [None, Some(MacAddr([2, 0, 0, 0, 0, 9]))] {
        let wanted = Bridged { mac: given, ..wanted() };
        let all = plan(&fresh(), &wanted).unwrap();
        for done in 0..=all.len() {
            let mut state = fresh();
            all[..done].iter().for_each(|step| carry_out(&mut state, step));
            let rest = plan(&state, &wanted).unwrap();
            rest.iter().for_each(|step| carry_out(&mut state, step));
            assert_eq!(plan(&state, &wanted), Ok(vec![]), "after {done} steps: {rest:?}");
            let kept = &state.links["eth0-pod"];
            assert_eq!((kept.mac, kept.mtu), (Some(given.unwrap_or(OWN)), 1400), "after {done} steps");
            let ways = state.ways.iter().filter(|(name, _)| name == "eth0-pod").count();
            let nets = state.nets.iter().filter(|(name, _)| name == "eth0-pod").count();
            assert_eq!((ways, nets), (2, 1), "after {done} steps: {rest:?}");
            assert!(state.links["tap0"].up && state.links["eth0"].mac != kept.mac, "after {done} steps");
        }
    }
}

#[test]
fn what_an_address_brings_with_it_is_not_copied() {
    let mut state = fresh();
    state.nets = [("eth0".to_owned(), "10.1.0.7/24".parse().unwrap())].into();
    state.ways = [way("10.1.0.0/24", None, 0), way("0.0.0.0/0", Some("10.1.0.1"), 100)]
        .map(|way| ("eth0".to_owned(), way))
        .into();
    let steps = plan(&state, &wanted()).unwrap();
    let ways: Vec<_> = steps.iter().filter(|step| matches!(step, Step::Way(..))).collect();
    assert_eq!(ways, [&Step::Way("eth0-pod".into(), way("0.0.0.0/0", Some("10.1.0.1"), ABOVE + 100))]);
}

#[test]
fn what_cannot_be_used_is_told() {
    let told = |change: fn(&mut State)| {
        let mut state = fresh();
        change(&mut state);
        plan(&state, &wanted()).unwrap_err().to_string()
    };
    assert_eq!(
        told(|state| {
            state.links.remove("eth0");
        }),
        "interface default: the pod's interface eth0 is not there"
    );
    assert_eq!(
        told(|state| state.nets.retain(|(_, net)| net.addr().is_ipv6())),
        "interface default: the pod's interface eth0 has no IPv4 address"
    );
    let filtered = told(|state| state.links.get_mut("eth0").unwrap().kind = Kind::Filtered);
    assert!(filtered.contains("is a macvlan or ipvlan"), "{filtered}");
}
