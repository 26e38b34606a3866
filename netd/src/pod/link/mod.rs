//! The link that a guest gets, from the configuration and the facts about its pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, PrefixLenError};

use super::{PodFacts, ResolvConf};
use crate::config::value::is_hostname;
use crate::config::{Config, MAX_MTU, MIN_MTU};
use crate::net::{Link, LinkV4, LinkV6, Mode};
use crate::wire::MacAddr;

/// The least MTU of an IPv6 link (RFC 8200, section 5).
const MIN_MTU_V6: u16 = 1280;
/// The gateway of a guest whose pod has none and whose prefix has no room for one; link-local addresses are
/// never routed (RFC 3927, section 2.7), and pods with an off-link gateway usually have this very one.
const OFF_LINK_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// In its place when the pod itself has that address.
const OTHER_OFF_LINK_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 2);

/// More routes than this are not for one interface of a pod.
const MAX_ROUTES: usize = 64;

/// Why facts and configuration give no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No global address.
    #[error("interface '{interface}' has neither a global IPv4 nor a global IPv6 address")]
    NoAddress {
        /// The pod's interface.
        interface: String,
    },
    /// Only IPv6, and an MTU that is too small for it.
    #[error("an MTU of {mtu} bytes is too small: IPv6, which is all this pod has, needs {MIN_MTU_V6}")]
    MtuTooSmall {
        /// MTU in bytes.
        mtu: u16,
    },
    /// An address of `loopback` is taken.
    #[error("{field}: '{address}' is not allowed; it is the guest's own address")]
    LoopbackTaken {
        /// Field of the configuration.
        field: &'static str,
        /// Its value.
        address: IpAddr,
    },
}

/// A link, and what the guest is not given though it is configured or usual, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The link.
    pub link: Link,
    /// What is missing from it and why.
    pub notes: Vec<String>,
}

impl Built {
    /// Tells the notes.
    pub(super) fn log(&self) {
        for note in &self.notes {
            tracing::warn!("what the guest does not get: {note}");
        }
    }
}

/// Builds the guest's link.
///
/// The address families are the pod's, in masquerade mode too: the guest shall not believe in a family in
/// which nothing can be reached.
///
/// # Errors
///
/// [`LinkError`] when no guest could work with the result.
pub fn build_link(config: &Config, pod: &PodFacts, resolv: &ResolvConf) -> Result<Built, LinkError> {
    let mut notes = Vec::new();
    let mac = config.mac.unwrap_or_else(|| own_mac(config.guest.mac, pod.mac));
    let mtu = config.mtu.unwrap_or_else(|| u16::try_from(pod.mtu).unwrap_or(MAX_MTU).max(MIN_MTU));
    let v4 = link_v4(config, pod, &mut notes)?;
    let mut v6 = link_v6(config, pod, mac, &mut notes)?;
    if v4.is_none() && v6.is_none() {
        return Err(LinkError::NoAddress { interface: pod.interface.clone() });
    }
    if mtu < MIN_MTU_V6 && v6.is_some() {
        if v4.is_none() {
            return Err(LinkError::MtuTooSmall { mtu });
        }
        notes.push(format!("no IPv6: an MTU of {mtu} is too small, {MIN_MTU_V6} are needed"));
        v6 = None;
    }
    let (hostname, fqdn) = names(config, pod);
    let mut link = Link {
        mode: config.mode,
        mac,
        guest_mac: config.guest.mac,
        mtu,
        v4,
        v6,
        dns: Vec::new(),
        search: config.guest.search.clone().unwrap_or_else(|| resolv.search.clone()),
        hostname,
        fqdn,
        dhcp_options: config.guest.dhcp_options.clone(),
        local: local(config, pod),
        egress: config.egress.clone(),
    };
    link.dns = match &config.guest.dns {
        Some(dns) => dns.clone(),
        None => resolvers(&link, resolv, &mut notes),
    };
    Ok(Built { link, notes })
}

/// The addresses by which the pod reaches itself. Sockets of the one interface reach no address of another: what has the
/// same address on the interface's network is something else.
fn local(config: &Config, pod: &PodFacts) -> Vec<IpAddr> {
    let others = pod.others.iter().filter(|_| !config.bind_interface);
    let mut all: Vec<IpAddr> = pod.own.iter().chain(others).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The routes that the guest is told of.
fn told<T: Clone>(routes: &[T], notes: &mut Vec<String>) -> Vec<T> {
    if routes.len() > MAX_ROUTES {
        notes.push(format!("routes: the first {MAX_ROUTES} of {} only", routes.len()));
    }
    routes.iter().take(MAX_ROUTES).cloned().collect()
}

/// The guest's host name and qualified name. A pod's name that is qualified is both.
fn names(config: &Config, pod: &PodFacts) -> (Option<String>, Option<String>) {
    let of_pod = pod.hostname.as_deref().filter(|h| is_hostname(h) && *h != "localhost");
    let short = of_pod.and_then(|h| h.split('.').next()).map(str::to_owned);
    let qualified = of_pod.filter(|h| h.contains('.')).map(str::to_owned);
    match &config.guest.hostname {
        // The pod's qualified name does not belong to a guest that is called otherwise.
        Some(name) => (Some(name.clone()), config.guest.fqdn.clone()),
        None => (short, config.guest.fqdn.clone().or(qualified)),
    }
}

/// A locally administered address that stays the same as long as the guest's is configured, and otherwise as
/// long as the pod's does: guests keep it in their neighbour tables, and the IPv6 router's address is made of it.
fn own_mac(guest: Option<MacAddr>, pod: Option<MacAddr>) -> MacAddr {
    let seed = guest.or(pod).unwrap_or(MacAddr([0; 6]));
    // FNV-1a over 64 bits spreads the seed, so that neither the guest's nor the pod's own address comes out
    // and addresses that were given out in a row do not collide.
    let hash = seed
        .0
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
    let [a, b, c, d, e, ..] = (hash ^ (hash >> 40)).to_le_bytes();
    let mac = MacAddr([0x02, a, b, c, d, e]);
    if Some(mac) == guest || Some(mac) == pod { MacAddr([0x02, a, b, c, d, !e]) } else { mac }
}

fn link_v4(config: &Config, pod: &PodFacts, notes: &mut Vec<String>) -> Result<Option<LinkV4>, LinkError> {
    let Some(facts) = &pod.v4 else { return Ok(None) };
    let default_route = facts.default_route || !config.bind_interface;
    let link = match config.mode {
        Mode::Passthrough => LinkV4 {
            guest: facts.address,
            prefix_len: facts.prefix_len,
            gateway: facts
                .gateway
                .filter(|g| *g != facts.address && !g.is_unspecified())
                .unwrap_or_else(|| fallback_gateway(facts.address, facts.prefix_len)),
            pod: facts.address,
            default_route,
            routes: told(&facts.routes, notes),
            loopback: config.loopback.v4,
        },
        Mode::Masquerade => LinkV4 {
            guest: config.masquerade.guest_v4,
            prefix_len: config.masquerade.prefix_v4,
            gateway: config.masquerade.gateway_v4,
            pod: facts.address,
            default_route,
            routes: Vec::new(),
            loopback: config.loopback.v4,
        },
    };
    if link.loopback == Some(link.guest) {
        let address = link.guest.into();
        return Err(LinkError::LoopbackTaken { field: "loopback.ipv4", address });
    }
    Ok(Some(link))
}

/// The gateway of a pod that has none: another address of its prefix, the first that is free, or one outside.
fn fallback_gateway(pod: Ipv4Addr, prefix_len: u8) -> Ipv4Addr {
    let inside = Ipv4Net::new(pod, prefix_len).ok().and_then(|net| net.hosts().find(|a| *a != pod));
    let outside = if pod == OFF_LINK_GATEWAY { OTHER_OFF_LINK_GATEWAY } else { OFF_LINK_GATEWAY };
    inside.unwrap_or(outside)
}

fn link_v6(
    config: &Config,
    pod: &PodFacts,
    mac: MacAddr,
    notes: &mut Vec<String>,
) -> Result<Option<LinkV6>, LinkError> {
    let Some(facts) = &pod.v6 else { return Ok(None) };
    let (guest, prefix_len, routes) = match config.mode {
        Mode::Passthrough => (facts.address, facts.prefix_len, told(&facts.routes, notes)),
        Mode::Masquerade => (config.masquerade.guest_v6, config.masquerade.prefix_v6, Vec::new()),
    };
    let loopback: Option<Ipv6Addr> = config.loopback.v6;
    if loopback == Some(guest) {
        return Err(LinkError::LoopbackTaken { field: "loopback.ipv6", address: guest.into() });
    }
    // The router's address is link-local, whatever the pod's router has (RFC 4861, section 4.2).
    let gateway = mac.link_local();
    let default_route = facts.default_route || !config.bind_interface;
    Ok(Some(LinkV6 { guest, prefix_len, gateway, pod: facts.address, default_route, routes, loopback }))
}

/// The pod's resolvers as the guest can reach them.
fn resolvers(link: &Link, resolv: &ResolvConf, notes: &mut Vec<String>) -> Vec<IpAddr> {
    let mut out: Vec<IpAddr> = Vec::new();
    for address in &resolv.nameservers {
        match resolver(link, *address) {
            Ok(a) if out.contains(&a) => {}
            Ok(a) => out.push(a),
            Err(why) => notes.push(format!("resolver {address}: {why}")),
        }
    }
    if out.is_empty() {
        notes.push("no resolver is left".to_owned());
    }
    out
}

fn resolver(link: &Link, address: IpAddr) -> Result<IpAddr, &'static str> {
    if address == IpAddr::from(Ipv4Addr::LOCALHOST) || address == IpAddr::from(Ipv6Addr::LOCALHOST) {
        let opened = match address {
            IpAddr::V4(_) => link.v4.as_ref().and_then(|l| l.loopback).map(IpAddr::from),
            IpAddr::V6(_) => link.v6.as_ref().and_then(|l| l.loopback).map(IpAddr::from),
        };
        return opened.ok_or("it is on the pod's loopback, which is closed to the guest");
    }
    if !is_routed(link, address) {
        return Err("no route by this interface leads there");
    }
    if address.is_loopback() {
        return Err("it is on the pod's loopback, of which the guest can reach 127.0.0.1 and ::1 at most");
    }
    if link.guest_address(address).is_none() {
        return Err("the guest has no address of its family");
    }
    link.destination_for_pod(address).ok_or("the guest may not reach that address")
}

/// Whether the guest is told of a way to `address`.
fn is_routed(link: &Link, address: IpAddr) -> bool {
    let within = |net: Result<IpNet, PrefixLenError>| net.is_ok_and(|net| net.contains(&address));
    let v4 = link.v4.as_ref().filter(|_| address.is_ipv4()).is_none_or(|l| {
        l.default_route
            || within(IpNet::new(l.guest.into(), l.prefix_len))
            || l.routes.iter().any(|r| within(Ok(r.to.into())))
    });
    let v6 = link.v6.as_ref().filter(|_| address.is_ipv6()).is_none_or(|l| {
        l.default_route
            || within(IpNet::new(l.guest.into(), l.prefix_len))
            || l.routes.iter().any(|r| within(Ok(r.to.into())))
    });
    v4 && v6
}

#[cfg(test)]
mod tests;
