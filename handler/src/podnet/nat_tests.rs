use std::collections::BTreeMap;

use super::super::plan::Link;
use super::super::pretended::{carry_out, filtered, is_filter_set, link};
use super::*;

fn one(queues: u64) -> Masqueraded {
    Masqueraded {
        index: 0,
        name: "default".into(),
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
        queues,
        guest_v4: "10.0.2.2/24".parse().unwrap(),
        guest_v6: "fd10:0:2::2/120".parse().unwrap(),
        ports: Vec::new(),
        proxied: false,
    }
}

/// As a plugin of the network leaves it.
fn fresh() -> State {
    let uplink = Link { mtu: 1400, up: true, addresses: true, ..link(2, Kind::Other) };
    let nets = ["10.1.0.7/24", "fd00:1::7/64", "fe80::7/64"];
    State {
        links: BTreeMap::from([("eth0".to_owned(), uplink)]),
        settings: filtered(&[("ipv6/conf/all/forwarding", "0"), ("ipv4/ip_forward", "0"), (ACCEPT_RA, "1")]),
        nets: nets.map(|net| ("eth0".to_owned(), net.parse().unwrap())).into(),
        ..State::default()
    }
}

#[test]
fn a_fresh_pod_gets_everything_and_the_guests_tap_comes_up_last() {
    let steps = plan(&fresh(), &one(2)).unwrap();
    let name = str::to_owned;
    assert_eq!(steps[0], Step::Bridge(name("k6t-eth0"), MacAddr([2, 0, 0, 0, 0, 0])));
    assert_eq!(steps[1..3], [Step::Tap(name("tap0"), true), Step::Tap(name("dhcp0"), false)]);
    for (key, value) in settings() {
        assert!(steps.contains(&Step::Set(key.clone(), value)), "{key}: {steps:?}");
    }
    let nets: Vec<_> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Net(bridge, net) if bridge == "k6t-eth0" => Some(net.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(nets, ["10.0.2.1/24", "fd10:0:2::1/120", "fe80::ff:fe00:0/64"]);
    assert!(steps.contains(&Step::Mtu(name("tap0"), 1400)));
    let last: Vec<_> = steps[steps.len() - 4..].iter().collect();
    assert!(
        matches!(last[0], Step::Rules(rules) if rules.contains("10.0.2.2") && rules.contains("fd10:0:2::2"))
    );
    assert_eq!(
        last[1..],
        ["k6t-eth0", "dhcp0", "tap0"].map(|name| Step::Up(name.into())).iter().collect::<Vec<_>>()
    );
}

#[test]
fn a_process_that_died_at_any_step_is_followed_by_one_that_does_the_rest() {
    let all = plan(&fresh(), &one(1)).unwrap();
    let ruled = all.iter().position(|step| matches!(step, Step::Rules(_))).unwrap();
    for done in 0..=all.len() {
        let mut state = fresh();
        all[..done].iter().for_each(|step| carry_out(&mut state, step));
        let rest = plan(&state, &one(1)).unwrap();
        assert!(
            done > ruled || rest.iter().any(|step| matches!(step, Step::Rules(_))),
            "after {done}: {rest:?}"
        );
        rest.iter().for_each(|step| carry_out(&mut state, step));
        assert_eq!(plan(&state, &one(1)), Ok(vec![]), "after {done} steps: {rest:?}");
        assert!(state.links["tap0"].up, "after {done} steps");
    }
}

#[test]
fn the_guest_has_the_families_that_the_pod_has() {
    let told = |kept: fn(&IpNet) -> bool| {
        let mut state = fresh();
        state.nets.retain(|(_, net)| kept(net));
        plan(&state, &one(1)).map(|steps| format!("{steps:?}"))
    };
    let v4 = told(|net| net.addr().is_ipv4()).unwrap();
    assert!(v4.contains("10.0.2.1") && !v4.contains("fd10:0:2::1") && !v4.contains("fe80"), "{v4}");
    let v6 = told(|net| net.addr().is_ipv6()).unwrap();
    assert!(v6.contains("fd10:0:2::1") && !v6.contains("10.0.2.1"), "{v6}");
    let link_local = told(|net| net.to_string().starts_with("fe80")).unwrap_err().to_string();
    assert_eq!(link_local, "interface default: the pod's interface eth0 has no address");
    // IPv6 takes an MTU of 1280.
    let mut small = fresh();
    small.links.get_mut("eth0").unwrap().mtu = 1200;
    let steps = format!("{:?}", plan(&small, &one(1)).unwrap());
    assert!(!steps.contains("fd10:0:2::1"), "{steps}");
}

#[test]
fn a_pod_that_takes_no_advertisements_takes_none_after() {
    let mut state = fresh();
    state.settings.insert(ACCEPT_RA.to_owned(), "0".to_owned());
    let set = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::Set(key, _) if key == ACCEPT_RA));
    assert!(!set(&plan(&state, &one(1)).unwrap()));
    state.settings.remove(ACCEPT_RA);
    assert!(!set(&plan(&state, &one(1)).unwrap()));
}

#[test]
fn a_node_without_br_netfilter_is_asked_for_none_of_it() {
    let mut state = fresh();
    assert!(is_filter_set(&plan(&state, &one(1)).unwrap()));
    state.settings.retain(|key, _| !key.starts_with("bridge/"));
    assert!(!is_filter_set(&plan(&state, &one(1)).unwrap()));
}

#[test]
fn what_cannot_be_used_is_told() {
    let told = |change: fn(&mut State)| {
        let mut state = fresh();
        let steps = plan(&state, &one(1)).unwrap();
        steps.iter().for_each(|step| carry_out(&mut state, step));
        change(&mut state);
        plan(&state, &one(1)).unwrap_err().to_string()
    };
    let missing = told(|state| {
        state.links.remove("eth0");
    });
    assert_eq!(missing, "interface default: the pod's interface eth0 is not there");
    let taken = told(|state| state.links.get_mut("k6t-eth0").unwrap().kind = Kind::Other);
    assert!(taken.contains("k6t-eth0 already, which is no bridge"), "{taken}");
    let queues = told(|state| state.links.get_mut("tap0").unwrap().kind = Kind::Tap { several: true });
    assert!(queues.contains("tap0 already, which is no tap device of one queue"), "{queues}");
    let elsewhere = told(|state| state.links.get_mut("tap0").unwrap().controller = Some(9));
    assert_eq!(elsewhere, "interface default: tap0 is a port of another bridge already");
}
