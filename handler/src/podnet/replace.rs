//! A machine that is to have the address which a network's plugin has given the pod, by the binding `bridge`: from what the pod
//! has to the steps that are missing. No system calls.
//!
//! ```text
//!   guest ── tap0 ── k6t-eth0 ── eth0 ── the pod's network
//!   the pod's IPv4 and MAC address       eth0-pod: what eth0 had, for the launcher to read
//!
//!   guest ── tap<hash> ── k6t-<hash> ── pod<hash> ── a network of Multus with `ipam`
//!   the IPv4 address of pod<hash>        kept<hash>: what pod<hash> had
//! ```
//!
//! On the pod's own network the guest takes the pod's place. On a network of Multus it is joined as on one that gives no
//! address ([`super::plan`]). Before that, what the pod's interface has is
//! copied to an interface of no network, [`Bridged::kept`], a bridge without ports: IPv4 addresses, routes, MTU, and the MAC address
//! that the guest is to have. From there the launcher tells it to the guest by DHCP, in this process's life and in the next:
//! nothing is remembered elsewhere. Whether a guest is told is seen by that interface's being there.
//!
//! *Order.* As long as the pod's interface has its addresses, whatever is missing on the kept one is copied; they are taken off
//! only when nothing is. The guest's tap comes up last, as behind masquerade.
//!
//! A guest that is joined so by a network binding plugin is told nothing, and has no tap device for that: its DHCP is the
//! network's, or its plugin's.
//!
//! IPv6 is not for the guest, as upstream: the launcher would have to tell the guest of a router other than itself.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use podvirt_api::bridge::Bridged;

use super::plan::{self, Kind, State, Step, Unusable};
use super::rules;

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

/// The interfaces that matter.
pub fn interfaces(one: &Bridged) -> [&str; 5] {
    [&one.pod_interface, &one.kept, &one.bridge, &one.tap, &one.services]
}

/// The settings with the values that they are to have.
pub fn settings(one: &Bridged) -> Vec<(String, &'static str)> {
    let mut settings = own_settings(one);
    settings.extend(plan::settings(one));
    settings
}

fn own_settings(one: &Bridged) -> Vec<(String, &'static str)> {
    let made = [Some(&one.kept), one.is_told.then_some(&one.services)].into_iter().flatten();
    made.map(|name| (format!("ipv6/conf/{name}/disable_ipv6"), "1")).collect()
}

/// The IPv4 addresses of an interface that a host of its network has given it.
fn given(state: &State, interface: &str) -> Vec<IpNet> {
    let own = state.nets.iter().filter(|(name, _)| name == interface);
    own.filter(|(_, net)| matches!(net.addr(), IpAddr::V4(a) if !a.is_link_local()))
        .map(|(_, net)| *net)
        .collect()
}

/// Whether the pod has an address for the guest, or keeps one.
pub fn is_addressed(state: &State, one: &Bridged) -> bool {
    [&one.pod_interface, &one.kept].into_iter().any(|name| !given(state, name).is_empty())
}

/// The steps that are missing until the guest has the pod's address.
///
/// # Errors
/// What is there cannot be used.
pub fn plan(state: &State, one: &Bridged) -> Result<Vec<Step>, Unusable> {
    let Bridged { name, pod_interface, kept, services, tap, .. } = one;
    let bare = |lacks| Unusable::Bare { name: name.clone(), pod_interface: pod_interface.clone(), lacks };
    let uplink = state.links.get(pod_interface).ok_or_else(|| bare("is not there"))?;
    let keeper = state.links.get(kept);
    let teller = state.links.get(services);
    let is_told = one.is_told;
    for (taken, link, kind, wanted) in [
        (kept, keeper, Kind::Bridge, "bridge"),
        (services, teller, Kind::Tap { several: false }, "tap device of one queue"),
    ] {
        if link.is_some_and(|link| link.kind != kind) {
            return Err(Unusable::Taken { name: name.clone(), taken: taken.clone(), wanted });
        }
    }
    let (given, copied) = (given(state, pod_interface), given(state, kept));
    let Some(mac) = keeper.and_then(|link| link.mac).or(one.mac).or(uplink.mac) else {
        return Err(bare("has no MAC address"));
    };
    if given.is_empty() && copied.is_empty() {
        return Err(bare("has no IPv4 address"));
    }

    let mut steps = Vec::new();
    if keeper.is_none() {
        steps.push(Step::Bridge(kept.clone(), mac));
    }
    if keeper.is_none_or(|link| link.mtu != uplink.mtu) {
        steps.push(Step::Mtu(kept.clone(), uplink.mtu));
    }
    if teller.is_none() && is_told {
        steps.push(Step::Tap(services.clone(), false));
    }
    let own = own_settings(one).into_iter().filter(|(key, value)| plan::is_missing(state, key, value));
    steps.extend(own.map(|(key, value)| Step::Set(key, value)));
    let missing = given.iter().filter(|net| !copied.contains(net));
    steps.extend(missing.map(|net| Step::Net(kept.clone(), *net)));
    if keeper.is_none_or(|link| !link.up) {
        // Before that it has no routes.
        steps.push(Step::Up(kept.clone()));
    }
    if !given.is_empty() {
        steps.extend(ways(state, one, &given).into_iter().map(|way| Step::Way(kept.clone(), way)));
    }
    if is_told && teller.is_none_or(|link| link.mtu != uplink.mtu) {
        steps.push(Step::Mtu(services.clone(), uplink.mtu));
    }

    let mut joined = plan::plan(state, &Bridged { mac: Some(mac), ..one.clone() })?;
    let first_up = joined.iter().position(|step| matches!(step, Step::Up(_))).unwrap_or(joined.len());
    let ups = joined.split_off(first_up);
    steps.extend(joined);
    if is_told && state.links.get(tap).is_none_or(|link| !link.up) {
        steps.push(Step::Rules(rules::dhcp_commands(tap, services)));
    }
    if is_told && teller.is_none_or(|link| !link.up) {
        steps.push(Step::Up(services.clone()));
    }
    // The tap last: when it is up, the rules stand.
    let (tap, others): (Vec<Step>, Vec<Step>) =
        ups.into_iter().partition(|step| matches!(step, Step::Up(name) if name == tap));
    steps.extend(others.into_iter().chain(tap));
    Ok(steps)
}

/// Routes of the pod's interface that are not copied yet; those without a next hop first, by which the others are reached.
fn ways(state: &State, one: &Bridged, given: &[IpNet]) -> Vec<Way> {
    let of = |interface: &str| -> Vec<Way> {
        state.ways.iter().filter(|(name, _)| name == interface).map(|(_, way)| *way).collect()
    };
    let copied = of(&one.kept);
    // What an address brings with it, the kernel makes of the copied address as well.
    let own = |way: &Way| way.via.is_none() && given.iter().any(|net| IpNet::from(way.to) == net.trunc());
    let wanted = of(&one.pod_interface).into_iter().filter(|way| !own(way));
    let wanted = wanted.map(|way| Way { metric: way.metric.saturating_add(ABOVE), ..way });
    let mut missing: Vec<Way> = wanted.filter(|way| !copied.contains(way)).collect();
    missing.sort_by_key(|way| (way.via.is_some(), *way));
    missing
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;
