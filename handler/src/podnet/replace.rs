//! A machine that takes the pod's place on the pod's network, by the binding `bridge`: from what the pod has to the steps
//! that are missing. No system calls.
//!
//! ```text
//!   guest ── tap0 ── k6t-eth0 ── eth0 ── the pod's network
//!   the pod's IPv4 and MAC address       eth0-pod: what eth0 had, for the launcher to read
//! ```
//!
//! The guest is joined with the network as with one of Multus ([`super::plan`]). Before that, what the pod's interface has is
//! copied to an interface of no network, [`KEPT`], a bridge without ports: IPv4 addresses, routes, MTU, and the MAC address that the guest is to have. From
//! there the launcher tells it to the guest by DHCP, in this process's life and in the next: nothing is remembered elsewhere.
//!
//! *Order.* As long as `eth0` has its addresses, whatever is missing on [`KEPT`] is copied; they are taken off only when
//! nothing is. The guest's tap comes up last, as behind masquerade.
//!
//! IPv6 is not for the guest, as upstream: the router that would have to be told is another one than who tells.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use podvirt_api::bridge::Bridged;
use podvirt_api::kernel::{BRIDGE, KEPT, Replaced, SERVICES, TAP};
use podvirt_api::mac::MacAddr;
use podvirt_api::names::pod::PRIMARY_INTERFACE;

use super::plan::{self, Kind, State, Step, Unusable};
use super::rules;

/// The interfaces that matter.
pub const INTERFACES: [&str; 5] = [PRIMARY_INTERFACE, KEPT, BRIDGE, TAP, SERVICES];
/// What a copied route has above the metric of the one that it is copied from: both are there for a while.
const ABOVE: u32 = 1 << 20;

/// An IPv4 route of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Where to.
    pub to: Ipv4Net,
    /// The next hop, none when it is on the link.
    pub via: Option<Ipv4Addr>,
    /// Its metric.
    pub metric: u32,
}

/// The machine's interface, and the MAC address that its manifest gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The interface.
    pub one: Replaced,
    /// None: that of the pod's interface.
    pub mac: Option<MacAddr>,
}

fn bridged(wanted: &Wanted, mac: MacAddr) -> Bridged {
    Bridged {
        index: wanted.one.index,
        name: wanted.one.name.clone(),
        pod_interface: PRIMARY_INTERFACE.to_owned(),
        bridge: BRIDGE.to_owned(),
        tap: TAP.to_owned(),
        mac,
        queues: wanted.one.queues,
    }
}

/// The settings with the values that they are to have.
pub fn settings(wanted: &Wanted) -> Vec<(String, &'static str)> {
    let mut settings = own_settings();
    settings.extend(plan::settings(&bridged(wanted, MacAddr([0; 6]))));
    settings
}

fn own_settings() -> Vec<(String, &'static str)> {
    [KEPT, SERVICES].map(|name| (format!("ipv6/conf/{name}/disable_ipv6"), "1")).into()
}

/// The steps that are missing until the guest has the pod's place.
///
/// # Errors
/// What is there cannot be used.
pub fn plan(state: &State, wanted: &Wanted) -> Result<Vec<Step>, Unusable> {
    let name = || wanted.one.name.clone();
    let bare = |lacks| Unusable::Bare { name: name(), pod_interface: PRIMARY_INTERFACE.into(), lacks };
    let uplink = state.links.get(PRIMARY_INTERFACE).ok_or_else(|| bare("is not there"))?;
    let kept = state.links.get(KEPT);
    let services = state.links.get(SERVICES);
    for (taken, link, kind, wanted) in [
        (KEPT, kept, Kind::Bridge, "bridge"),
        (SERVICES, services, Kind::Tap { several: false }, "tap device of one queue"),
    ] {
        if link.is_some_and(|link| link.kind != kind) {
            return Err(Unusable::Taken { name: name(), taken: taken.to_owned(), wanted });
        }
    }
    let v4 = |interface: &str| {
        let own = state.nets.iter().filter(|(name, _)| name == interface);
        own.filter(|(_, net)| matches!(net.addr(), IpAddr::V4(a) if !a.is_link_local()))
            .map(|(_, net)| *net)
            .collect::<Vec<IpNet>>()
    };
    let (given, copied) = (v4(PRIMARY_INTERFACE), v4(KEPT));
    let Some(mac) = kept.and_then(|link| link.mac).or(wanted.mac).or(uplink.mac) else {
        return Err(bare("has no MAC address"));
    };
    if given.is_empty() && copied.is_empty() {
        return Err(bare("has no IPv4 address"));
    }

    let mut steps = Vec::new();
    if kept.is_none() {
        steps.push(Step::Bridge(KEPT.to_owned(), mac));
    }
    if kept.is_none_or(|link| link.mtu != uplink.mtu) {
        steps.push(Step::Mtu(KEPT.to_owned(), uplink.mtu));
    }
    if services.is_none() {
        steps.push(Step::Tap(SERVICES.to_owned(), false));
    }
    // A kernel without IPv6 has none of these.
    let has_ipv6 = state.settings.keys().any(|key| key.starts_with("ipv6/"));
    for (key, value) in own_settings() {
        if state.settings.get(&key).map_or(has_ipv6, |known| known != value) {
            steps.push(Step::Set(key, value));
        }
    }
    let missing = given.iter().filter(|net| !copied.contains(net));
    steps.extend(missing.map(|net| Step::Net(KEPT.to_owned(), *net)));
    if kept.is_none_or(|link| !link.up) {
        // Before that it has no routes.
        steps.push(Step::Up(KEPT.to_owned()));
    }
    if !given.is_empty() {
        steps.extend(ways(state, &given).into_iter().map(|way| Step::Way(KEPT.to_owned(), way)));
    }
    if services.is_none_or(|link| link.mtu != uplink.mtu) {
        steps.push(Step::Mtu(SERVICES.to_owned(), uplink.mtu));
    }

    let mut joined = plan::plan(state, &bridged(wanted, mac))?;
    let first_up = joined.iter().position(|step| matches!(step, Step::Up(_))).unwrap_or(joined.len());
    let ups = joined.split_off(first_up);
    steps.extend(joined);
    if state.links.get(TAP).is_none_or(|link| !link.up) {
        steps.push(Step::Rules(rules::dhcp_commands()));
    }
    if services.is_none_or(|link| !link.up) {
        steps.push(Step::Up(SERVICES.to_owned()));
    }
    // The tap last: when it is up, the rules stand.
    let (tap, others): (Vec<Step>, Vec<Step>) =
        ups.into_iter().partition(|step| matches!(step, Step::Up(name) if name == TAP));
    steps.extend(others.into_iter().chain(tap));
    Ok(steps)
}

/// Routes of the pod's interface that are not copied yet; those without a next hop first, by which the others are reached.
fn ways(state: &State, given: &[IpNet]) -> Vec<Way> {
    let of = |interface: &str| -> Vec<Way> {
        state.ways.iter().filter(|(name, _)| name == interface).map(|(_, way)| *way).collect()
    };
    let copied = of(KEPT);
    // What an address brings with it, the kernel makes of the copied address as well.
    let own = |way: &Way| way.via.is_none() && given.iter().any(|net| IpNet::from(way.to) == net.trunc());
    let wanted = of(PRIMARY_INTERFACE).into_iter().filter(|way| !own(way));
    let wanted = wanted.map(|way| Way { metric: way.metric.saturating_add(ABOVE), ..way });
    let mut missing: Vec<Way> = wanted.filter(|way| !copied.contains(way)).collect();
    missing.sort_by_key(|way| (way.via.is_some(), *way));
    missing
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;
