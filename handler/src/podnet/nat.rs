//! A machine on the pod's network behind the kernel's masquerade: from what the pod has to the steps that are missing. No
//! system calls.
//!
//! ```text
//!   guest ── tap0 ── k6t-eth0 ── routed, translated ── eth0
//!   10.0.2.2         10.0.2.1                          the pod's addresses, which it keeps
//! ```
//!
//! *The bridge* is the guest's gateway: it has the first address of each of the guest's networks, a link-local one that follows from
//! its MAC address, and that MAC address in every pod, since a guest that moves keeps its neighbours in mind. A family that
//! the pod does not have the guest does not get.
//!
//! *Order.* The guest's tap comes up last. A tap that is up therefore says that the rules stand, which nothing else tells.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use podvirt_api::kernel::{BRIDGE, BRIDGE_MAC, Masqueraded, SERVICES, TAP};
use podvirt_api::mac::MacAddr;
use podvirt_api::names::pod::PRIMARY_INTERFACE;

use super::plan::{FILTER_SETTINGS, Kind, State, Step, Unusable, is_missing};
use super::rules::{self, Family};

/// The interfaces that matter.
pub const INTERFACES: [&str; 4] = [PRIMARY_INTERFACE, BRIDGE, TAP, SERVICES];

/// The least MTU of an IPv6 link (RFC 8200, section 5).
const MIN_MTU_V6: u32 = 1280;
/// A pod that takes its router's advertisements keeps doing so when it forwards, if this setting says so.
const ACCEPT_RA: &str = "ipv6/conf/eth0/accept_ra";

/// The settings with the values that they are to have.
pub fn settings() -> Vec<(String, &'static str)> {
    let of = |interface: &str, key: &str, value| {
        let (family, key) = key.split_once('/').unwrap_or(("ipv4", key));
        (format!("{family}/conf/{interface}/{key}"), value)
    };
    let mut settings = vec![
        (ACCEPT_RA.to_owned(), "2"),
        ("ipv4/ip_forward".to_owned(), "1"),
        ("ipv6/conf/all/forwarding".to_owned(), "1"),
        // 127.0.0.1 of the pod leads to the guest.
        of(BRIDGE, "ipv4/route_localnet", "1"),
        // What the guest says of routers is nothing to the pod.
        of(BRIDGE, "ipv6/accept_ra", "0"),
        of(BRIDGE, "ipv6/addr_gen_mode", "1"),
        of(TAP, "ipv6/disable_ipv6", "1"),
        of(SERVICES, "ipv6/disable_ipv6", "1"),
    ];
    settings.extend(FILTER_SETTINGS.map(|(key, value)| (key.to_owned(), value)));
    settings
}

/// The link-local address of an interface with this MAC address (RFC 4291, appendix A).
pub fn link_local(MacAddr(m): MacAddr) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
}

/// The pod's families, with the guest's network in each.
fn families(state: &State, one: &Masqueraded, mtu: u32) -> Vec<(Family, IpNet)> {
    let global = |address: &IpAddr| match address {
        IpAddr::V4(a) => !a.is_link_local(),
        IpAddr::V6(a) => !a.is_unicast_link_local(),
    };
    let own = state.nets.iter().filter(|(name, _)| name == PRIMARY_INTERFACE).map(|(_, net)| net.addr());
    let guests = [IpNet::from(one.guest_v4), IpNet::from(one.guest_v6)].into_iter();
    guests
        .filter(|guest| guest.addr().is_ipv4() || mtu >= MIN_MTU_V6)
        .filter_map(|guest| {
            let same = |address: &IpAddr| address.is_ipv4() == guest.addr().is_ipv4() && global(address);
            own.clone().find(same).map(|pod| (Family::new(guest, pod), guest))
        })
        .collect()
}

/// The steps that are missing until the guest is joined with the pod's network.
///
/// # Errors
/// What is there cannot be used.
pub fn plan(state: &State, one: &Masqueraded) -> Result<Vec<Step>, Unusable> {
    let bare =
        |lacks| Unusable::Bare { name: one.name.clone(), pod_interface: PRIMARY_INTERFACE.into(), lacks };
    let uplink = state.links.get(PRIMARY_INTERFACE).ok_or_else(|| bare("is not there"))?;
    let families = families(state, one, uplink.mtu);
    if families.is_empty() {
        return Err(bare("has no address"));
    }
    let several = one.queues > 1;
    let taken =
        |taken: &str, wanted| Unusable::Taken { name: one.name.clone(), taken: taken.to_owned(), wanted };
    let [bridge, tap, services] = [BRIDGE, TAP, SERVICES].map(|name| state.links.get(name));
    if bridge.is_some_and(|link| link.kind != Kind::Bridge) {
        return Err(taken(BRIDGE, "bridge"));
    }
    for (name, link, several) in [(TAP, tap, several), (SERVICES, services, false)] {
        if link.is_some_and(|link| link.kind != Kind::Tap { several }) {
            let wanted = if several { "tap device of several queues" } else { "tap device of one queue" };
            return Err(taken(name, wanted));
        }
    }

    let mut steps = Vec::new();
    if bridge.is_none() {
        steps.push(Step::Bridge(BRIDGE.to_owned(), BRIDGE_MAC));
    }
    for (name, link, several) in [(TAP, tap, several), (SERVICES, services, false)] {
        if link.is_none() {
            steps.push(Step::Tap(name.to_owned(), several));
        }
    }
    for (key, value) in settings() {
        let wanted = if key == ACCEPT_RA {
            // Only where the pod takes advertisements at all.
            state.settings.get(&key).is_some_and(|known| known == "1")
        } else {
            is_missing(state, &key, value)
        };
        if wanted {
            steps.push(Step::Set(key, value));
        }
    }
    let mut nets: Vec<IpNet> = Vec::new();
    for (family, guest) in &families {
        nets.extend(IpNet::new(family.gateway, guest.prefix_len()).ok());
        if guest.addr().is_ipv6() {
            nets.extend(IpNet::new(link_local(BRIDGE_MAC).into(), 64).ok());
        }
    }
    let has = |net: &IpNet| state.nets.contains(&(BRIDGE.to_owned(), *net));
    steps.extend(nets.into_iter().filter(|net| !has(net)).map(|net| Step::Net(BRIDGE.to_owned(), net)));
    match tap.and_then(|link| link.controller) {
        None => steps.push(Step::Join(TAP.to_owned(), BRIDGE.to_owned())),
        controller if controller != bridge.map(|link| link.index) => {
            return Err(Unusable::Elsewhere { name: one.name.clone(), port: TAP.to_owned() });
        }
        Some(_) => {}
    }
    let all = [(BRIDGE, bridge), (SERVICES, services), (TAP, tap)];
    for (name, _) in all.iter().filter(|(_, link)| link.is_none_or(|link| link.mtu != uplink.mtu)) {
        steps.push(Step::Mtu((*name).to_owned(), uplink.mtu));
    }
    if tap.is_none_or(|link| !link.up) {
        let families: Vec<Family> = families.iter().map(|(family, _)| *family).collect();
        steps.push(Step::Rules(rules::commands(&families, &one.ports, one.proxied)));
    }
    for (name, _) in all.iter().filter(|(_, link)| link.is_none_or(|link| !link.up)) {
        steps.push(Step::Up((*name).to_owned()));
    }
    Ok(steps)
}

#[cfg(test)]
#[path = "nat_tests.rs"]
mod tests;
