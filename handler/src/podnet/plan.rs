//! From what a network namespace has to the steps that are missing. No system calls.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podvirt_api::bridge::Bridged;
use podvirt_api::mac::MacAddr;

use super::replace::Way;

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bridge.
    Bridge,
    /// A tap device, with several queues or one.
    Tap {
        /// Whether it has several.
        several: bool,
    },
    /// A macvlan interface that has its parent to itself.
    Passthru,
    /// A macvlan or ipvlan interface: frames to another address than its own do not reach it.
    Filtered,
    /// Any other.
    Other,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// What it is.
    pub kind: Kind,
    /// Its MAC address.
    pub mac: Option<MacAddr>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// The bridge that it is a port of.
    pub controller: Option<u32>,
    /// Whether the bridge learns from it; none where it is no port.
    pub learns: Option<bool>,
    /// Whether it has addresses, other than those which IPv6 makes by itself.
    pub addresses: bool,
}

/// What a namespace has of one interface of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its interfaces by name.
    pub links: BTreeMap<String, Link>,
    /// Settings that matter and their values; what the kernel does not have is not there.
    pub settings: BTreeMap<String, String>,
    /// Addresses of its interfaces, by the interface's name.
    pub nets: BTreeSet<(String, IpNet)>,
    /// IPv4 routes of its interfaces, by the interface's name.
    pub ways: BTreeSet<(String, Way)>,
}

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a bridge with this MAC address.
    Bridge(String, MacAddr),
    /// Make a tap device, with several queues or one.
    Tap(String, bool),
    /// Write a setting, below `/proc/sys/net`.
    Set(String, &'static str),
    /// Remove the addresses of an interface.
    Bare(String),
    /// Take an interface down.
    Down(String),
    /// Give an interface another MAC address.
    Address(String, MacAddr),
    /// Set an interface's MTU.
    Mtu(String, u32),
    /// Make an interface a port of a bridge.
    Join(String, String),
    /// Have a bridge learn nothing from a port.
    Unlearn(String),
    /// Lead packets out by an interface.
    Way(String, Way),
    /// Give an interface an IP address.
    Net(String, IpNet),
    /// Have nftables carry these commands out.
    Rules(String),
    /// Take an interface up.
    Up(String),
}

/// What is there cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Multus has made no interface.
    #[error("interface {name}: the pod has no interface {pod_interface}; Multus makes it")]
    Missing {
        /// The machine's interface.
        name: String,
        /// The pod's.
        pod_interface: String,
    },
    /// The pod has no network of its own.
    #[error("interface {name}: the pod's interface {pod_interface} {lacks}")]
    Bare {
        /// The machine's interface.
        name: String,
        /// The pod's.
        pod_interface: String,
        /// What is missing.
        lacks: &'static str,
    },
    /// The network gives the pod an interface that cannot carry another host's frames.
    #[error(
        "interface {name}: the pod's interface {pod_interface} is a macvlan or ipvlan, which takes frames to its own \
         address only; the binding bridge works on networks of bridges, VLANs, whole devices and macvlan in mode passthru"
    )]
    Filtered {
        /// The machine's interface.
        name: String,
        /// The pod's.
        pod_interface: String,
    },
    /// A name is taken by something else.
    #[error("interface {name}: the pod has an interface {taken} already, which is no {wanted}")]
    Taken {
        /// The machine's interface.
        name: String,
        /// The name that is taken.
        taken: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The pod's interface is a port of something else.
    #[error("interface {name}: {port} is a port of another bridge already")]
    Elsewhere {
        /// The machine's interface.
        name: String,
        /// The port.
        port: String,
    },
}

/// Settings of the bridge, by which nothing that comes in by it is for the pod: it has no IPv6, answers ARP for addresses
/// of its own only, of which it has none, and takes no packet whose sender is not behind it by a route.
pub const BRIDGE_SETTINGS: [(&str, &str, &str); 3] =
    [("ipv6", "disable_ipv6", "1"), ("ipv4", "arp_ignore", "1"), ("ipv4", "rp_filter", "1")];
/// Settings of the bridge's ports.
pub const PORT_SETTINGS: [(&str, &str, &str); 1] = [("ipv6", "disable_ipv6", "1")];
/// Settings of the namespace by which the packet filter leaves alone what passes its bridges. Where the node has loaded the module
/// `br_netfilter`, each network namespace has these files (Linux 5.3 and later), with the value 1: the rules of the pod would judge frames
/// of the guest's networks, and IPv6 datagrams that come in fragments would be put together on the bridge and not be
/// taken apart again for a path that is narrower than the pod's link.
pub const FILTER_SETTINGS: [(&str, &str); 3] = [
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
    ("bridge/bridge-nf-call-arptables", "0"),
];

/// Whether a setting has still to be made. One that is not there is of an interface that is still to be made, unless the kernel has
/// nothing of its kind.
pub fn is_missing(state: &State, key: &str, value: &str) -> bool {
    match state.settings.get(key) {
        Some(known) => known != value,
        None if key.starts_with("bridge/") => false,
        None => key.starts_with("ipv4/") || state.settings.keys().any(|key| key.starts_with("ipv6/")),
    }
}

/// The settings of `one` with the values that they are to have.
pub fn settings(one: &Bridged) -> Vec<(String, &'static str)> {
    let of = |interface: &str, (family, key, value): (&str, &str, &'static str)| {
        (format!("{family}/conf/{interface}/{key}"), value)
    };
    let ports = [&one.pod_interface, &one.tap];
    let ports = ports.into_iter().flat_map(|port| PORT_SETTINGS.map(|setting| of(port, setting)));
    let filter = FILTER_SETTINGS.map(|(key, value)| (key.to_owned(), value));
    ports.chain(BRIDGE_SETTINGS.map(|setting| of(&one.bridge, setting))).chain(filter).collect()
}

/// The steps that are missing until the guest is joined with its network.
///
/// # Errors
/// What is there cannot be used.
pub fn plan(state: &State, one: &Bridged) -> Result<Vec<Step>, Unusable> {
    let Bridged { name, pod_interface, bridge, tap, queues, .. } = one;
    let missing = || Unusable::Missing { name: name.clone(), pod_interface: pod_interface.clone() };
    let port = state.links.get(pod_interface).ok_or_else(missing)?;
    let unknown = || Unusable::Bare {
        name: name.clone(),
        pod_interface: pod_interface.clone(),
        lacks: "has no MAC address",
    };
    let mac = &one.mac.ok_or_else(unknown)?;
    if port.kind == Kind::Filtered {
        return Err(Unusable::Filtered { name: name.clone(), pod_interface: pod_interface.clone() });
    }
    let several = *queues > 1;
    let taken = |taken: &str, wanted| Unusable::Taken { name: name.clone(), taken: taken.to_owned(), wanted };
    let made = state.links.get(bridge);
    if made.is_some_and(|link| link.kind != Kind::Bridge) {
        return Err(taken(bridge, "bridge"));
    }
    let opened = state.links.get(tap);
    if opened.is_some_and(|link| link.kind != Kind::Tap { several }) {
        let wanted = if several { "tap device of several queues" } else { "tap device of one queue" };
        return Err(taken(tap, wanted));
    }

    let mut steps = Vec::new();
    if made.is_none() {
        // Said, or it would change with the ports.
        steps.push(Step::Bridge(
            bridge.clone(),
            MacAddr::derived(&["bridge", pod_interface, &mac.to_string()]),
        ));
    }
    if opened.is_none() {
        steps.push(Step::Tap(tap.clone(), several));
    }
    // Before anything is up. A new interface has its settings as soon as it is there, unless the kernel has no IPv6.
    let settings = settings(one).into_iter().filter(|(key, value)| is_missing(state, key, value));
    steps.extend(settings.map(|(key, value)| Step::Set(key, value)));
    if port.addresses {
        steps.push(Step::Bare(pod_interface.clone()));
    }
    let moves = port.mac == Some(*mac);
    if moves {
        // Not every driver takes another address while it is up.
        let other = MacAddr::derived(&["pod", pod_interface, &mac.to_string()]);
        steps.extend([Step::Down(pod_interface.clone()), Step::Address(pod_interface.clone(), other)]);
    }
    let bridge_index = made.map(|link| link.index);
    for (name_of, link) in [(pod_interface, Some(port)), (tap, opened)] {
        let controller = link.and_then(|link| link.controller);
        if controller.is_some() && controller != bridge_index {
            return Err(Unusable::Elsewhere { name: name.clone(), port: name_of.clone() });
        }
        if link.is_none_or(|link| link.mtu != port.mtu) {
            steps.push(Step::Mtu(name_of.clone(), port.mtu));
        }
        if controller.is_none() {
            steps.push(Step::Join(name_of.clone(), bridge.clone()));
        }
        if link.is_none_or(|link| link.learns != Some(false)) {
            steps.push(Step::Unlearn(name_of.clone()));
        }
    }
    if made.is_none_or(|link| link.mtu != port.mtu) {
        steps.push(Step::Mtu(bridge.clone(), port.mtu));
    }
    let up = |link: Option<&Link>| link.is_some_and(|link| link.up);
    let down = [(bridge, !up(made)), (tap, !up(opened)), (pod_interface, moves || !port.up)];
    steps.extend(down.into_iter().filter(|(_, down)| *down).map(|(name, _)| Step::Up(name.clone())));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::super::pretended::{GUEST, carry_out, filtered, is_filter_set, link, one};
    use super::*;

    /// As Multus leaves it.
    fn fresh() -> State {
        let port = Link { mac: Some(GUEST), mtu: 1400, addresses: true, up: true, ..link(2, Kind::Other) };
        State {
            links: [("pod1".to_owned(), port)].into(),
            settings: filtered(&[("ipv6/conf/pod1/disable_ipv6", "0")]),
            ..State::default()
        }
    }

    fn complete() -> State {
        let port = |index, kind| Link {
            controller: Some(3),
            learns: Some(false),
            mtu: 1400,
            up: true,
            ..link(index, kind)
        };
        let links = [
            ("pod1".to_owned(), port(2, Kind::Other)),
            ("k6t-1".to_owned(), Link { mtu: 1400, up: true, ..link(3, Kind::Bridge) }),
            ("tap1".to_owned(), port(4, Kind::Tap { several: false })),
        ];
        let settings = settings(&one(1)).into_iter().map(|(key, value)| (key, value.to_owned()));
        State { links: links.into(), settings: settings.collect(), ..State::default() }
    }

    #[test]
    fn a_fresh_pod_gets_everything_and_interfaces_come_up_last() {
        let steps = plan(&fresh(), &one(2)).unwrap();
        let place = |wanted: &Step| {
            steps.iter().position(|step| step == wanted).unwrap_or_else(|| panic!("{wanted:?}: {steps:?}"))
        };
        let name = |name: &str| name.to_owned();
        assert!(matches!(&steps[0], Step::Bridge(bridge, _) if bridge == "k6t-1"));
        assert_eq!(steps[1], Step::Tap(name("tap1"), true));
        for (key, value) in settings(&one(2)) {
            place(&Step::Set(key, value));
        }
        place(&Step::Bare(name("pod1")));
        let down = place(&Step::Down(name("pod1")));
        let Some(Step::Address(_, other)) = steps.get(down + 1) else { panic!("{steps:?}") };
        assert!(*other != GUEST && other.is_usable());
        for port in ["pod1", "tap1"] {
            assert!(place(&Step::Join(name(port), name("k6t-1"))) > down);
            assert!(place(&Step::Unlearn(name(port))) > place(&Step::Join(name(port), name("k6t-1"))));
        }
        assert!(!steps.contains(&Step::Mtu(name("pod1"), 1400)), "it is where the MTU comes from");
        place(&Step::Mtu(name("tap1"), 1400));
        place(&Step::Mtu(name("k6t-1"), 1400));
        let ups: Vec<_> = steps[steps.len() - 3..].iter().map(|step| matches!(step, Step::Up(_))).collect();
        assert_eq!(ups, [true; 3]);
    }

    #[test]
    fn with_everything_there_nothing_is_done() {
        assert_eq!(plan(&complete(), &one(1)), Ok(vec![]));
    }

    #[test]
    fn a_process_that_died_at_any_step_is_followed_by_one_that_does_the_rest() {
        let all = plan(&fresh(), &one(1)).unwrap();
        for done in 0..=all.len() {
            let mut state = fresh();
            all[..done].iter().for_each(|step| carry_out(&mut state, step));
            let rest = plan(&state, &one(1)).unwrap();
            rest.iter().for_each(|step| carry_out(&mut state, step));
            assert_eq!(plan(&state, &one(1)), Ok(vec![]), "after {done} steps: {rest:?}");
            let port = &state.links["pod1"];
            assert!(port.up && !port.addresses && port.mac != Some(GUEST), "after {done} steps: {rest:?}");
        }
    }

    #[test]
    fn a_kernel_without_ipv6_is_asked_for_none_of_it() {
        let mut state = fresh();
        state.settings.clear();
        let steps = plan(&state, &one(1)).unwrap();
        let set =
            |prefix: &str| steps.iter().any(|s| matches!(s, Step::Set(key, _) if key.starts_with(prefix)));
        assert!(!set("ipv6/") && set("ipv4/"));
    }

    #[test]
    fn a_node_without_br_netfilter_is_asked_for_none_of_it() {
        let mut state = fresh();
        assert!(is_filter_set(&plan(&state, &one(1)).unwrap()));
        state.settings.retain(|key, _| !key.starts_with("bridge/"));
        assert!(!is_filter_set(&plan(&state, &one(1)).unwrap()));
        // The module is loaded when all else stands.
        let mut state = complete();
        state.settings.extend(filtered(&[]));
        let steps = plan(&state, &one(1)).unwrap();
        assert_eq!(steps, FILTER_SETTINGS.map(|(key, value)| Step::Set(key.into(), value)));
    }

    #[test]
    fn another_address_of_the_pods_interface_stays() {
        let mut state = fresh();
        state.links.get_mut("pod1").unwrap().mac = Some(MacAddr([2, 0, 0, 0, 0, 8]));
        let steps = plan(&state, &one(1)).unwrap();
        assert!(!steps.iter().any(|step| matches!(step, Step::Address(..) | Step::Down(_))), "{steps:?}");
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let told = |change: fn(&mut State)| {
            let mut state = complete();
            change(&mut state);
            plan(&state, &one(1)).unwrap_err().to_string()
        };
        let missing = told(|state| {
            state.links.remove("pod1");
        });
        assert_eq!(missing, "interface blue: the pod has no interface pod1; Multus makes it");
        let filtered = told(|state| state.links.get_mut("pod1").unwrap().kind = Kind::Filtered);
        assert!(filtered.starts_with("interface blue: the pod's interface pod1 is a macvlan"), "{filtered}");
        let taken = told(|state| state.links.get_mut("k6t-1").unwrap().kind = Kind::Other);
        assert!(taken.contains("k6t-1 already, which is no bridge"), "{taken}");
        let queues = told(|state| state.links.get_mut("tap1").unwrap().kind = Kind::Tap { several: true });
        assert!(queues.contains("tap1 already, which is no tap device of one queue"), "{queues}");
        let elsewhere = told(|state| state.links.get_mut("pod1").unwrap().controller = Some(9));
        assert_eq!(elsewhere, "interface blue: pod1 is a port of another bridge already");
    }
}
