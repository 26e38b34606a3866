//! Neighbour discovery (RFC 4861) as the only router and the only other station of the link.
//!
//! Router solicitations are answered by [`super::ra`]. Neighbour solicitations are answered with netd's own
//! Ethernet address for every address netd leads to, except the guest's. Of the link-local addresses only the
//! router's (and those that routes name as next hop) exist: netd carries no link-local traffic, and stations
//! bridged inside the guest must be able to find each other without netd claiming their addresses.
//!
//! Duplicate address detection (RFC 4862 section 5.4) of any address netd does not itself hold is met with
//! silence: the address is free as far as the link is concerned.

use std::net::Ipv6Addr;

use smoltcp::wire::{Icmpv6Message, Icmpv6Packet, Ipv6Packet};

use super::Handled;
use super::frame::{self, MacPair};
use super::ra::Advertiser;
use crate::counters::Reason;
use crate::net::{Link, LinkV6};
use crate::time::Time;
use crate::wire::MacAddr;

/// All nodes of the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Hop limit that proves a packet did not pass a router (RFC 4861 section 7.1.1).
pub(super) const HOP_LIMIT: u8 = 255;

/// Option types (RFC 4861 section 4.6).
pub(super) const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

/// Flags of a neighbour advertisement (RFC 4861 section 4.4).
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Bytes in front of the options of a router and of a neighbour solicitation.
const RS_HEADER: usize = 8;
const NS_HEADER: usize = 24;

/// Handles one ICMPv6 packet of the guest if it belongs to neighbour or listener discovery.
pub(super) fn handle(
    source: MacAddr,
    ip: &Ipv6Packet<&[u8]>,
    link: &Link,
    now: Time,
    advertiser: &mut Advertiser,
    out: &mut Vec<Vec<u8>>,
) -> Handled {
    let payload = ip.payload();
    let Some(&kind) = payload.first() else { return Handled::Dropped(Reason::Malformed) };
    let kind = Icmpv6Message::from(kind);
    match kind {
        Icmpv6Message::RouterSolicit | Icmpv6Message::NeighborSolicit => {}
        // The guest is neither a router nor does anything depend on what it advertises.
        Icmpv6Message::RouterAdvert
        | Icmpv6Message::NeighborAdvert
        | Icmpv6Message::Redirect
        | Icmpv6Message::MldQuery
        | Icmpv6Message::MldReport
        // Report and Done of MLDv1 (RFC 2710).
        | Icmpv6Message::Unknown(131 | 132) => return Handled::Consumed,
        _ => return Handled::NotMine,
    }
    let Ok(icmp) = Icmpv6Packet::new_checked(payload) else { return Handled::Dropped(Reason::Malformed) };
    if !icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()) {
        return Handled::Dropped(Reason::Checksum);
    }
    // RFC 4861 sections 6.1.1 and 7.1.1: hop limit 255, code 0.
    if ip.hop_limit() != HOP_LIMIT || icmp.msg_code() != 0 {
        return Handled::Dropped(Reason::Malformed);
    }
    let Some(v6) = &link.v6 else { return Handled::Consumed };
    let done = if kind == Icmpv6Message::RouterSolicit {
        router_solicit(source, ip, link, v6, now, advertiser, out)
    } else {
        neighbor_solicit(source, ip, link, v6, out)
    };
    if done.is_some() { Handled::Consumed } else { Handled::Dropped(Reason::Malformed) }
}

/// None when the solicitation is not valid (RFC 4861 section 6.1.1).
fn router_solicit(
    source: MacAddr,
    ip: &Ipv6Packet<&[u8]>,
    link: &Link,
    v6: &LinkV6,
    now: Time,
    advertiser: &mut Advertiser,
    out: &mut Vec<Vec<u8>>,
) -> Option<()> {
    let lladdr = source_link_layer(ip.payload().get(RS_HEADER..)?)?;
    let from = ip.src_addr();
    if from.is_unspecified() {
        if lladdr.is_some() {
            return None;
        }
        advertiser.solicited_from_unspecified(link, v6, now, out);
    } else {
        let to = lladdr.filter(|m| !m.is_group()).unwrap_or(source);
        advertiser.answer(link, v6, to, from, out);
    }
    Some(())
}

/// None when the solicitation is not valid (RFC 4861 section 7.1.1).
fn neighbor_solicit(
    source: MacAddr,
    ip: &Ipv6Packet<&[u8]>,
    link: &Link,
    v6: &LinkV6,
    out: &mut Vec<Vec<u8>>,
) -> Option<()> {
    let payload = ip.payload();
    let target = Ipv6Addr::from(*payload.get(8..NS_HEADER)?.first_chunk::<16>()?);
    let lladdr = source_link_layer(payload.get(NS_HEADER..)?)?;
    if target.is_multicast() {
        return None;
    }
    let from = ip.src_addr();
    let probe = from.is_unspecified();
    if probe && (lladdr.is_some() || ip.dst_addr() != solicited_node(target)) {
        return None;
    }
    if from.is_multicast() {
        return None;
    }
    let answered = if probe { holds(v6, target) } else { target != from && reaches(v6, target) };
    if !answered {
        return Some(());
    }
    // RFC 4861 section 7.2.4: a probe has no address to answer to, so all nodes hear it, without the S flag.
    let (to, mac, solicited) = if probe {
        (ALL_NODES, frame::multicast_mac(ALL_NODES), 0)
    } else {
        (from, lladdr.filter(|m| !m.is_group()).unwrap_or(source), SOLICITED)
    };
    // Without the R flag on the router's own address the guest would remove it from its default routers.
    // The O flag is a proxy's to leave out (7.2.8) where the true owner may answer too; here no other host
    // ever will, and it makes the guest take a new Ethernet address of netd at once.
    let router = if target == v6.gateway { ROUTER } else { 0 };
    let mut na =
        vec![u8::from(Icmpv6Message::NeighborAdvert), 0, 0, 0, router | solicited | OVERRIDE, 0, 0, 0];
    na.extend_from_slice(&target.octets());
    push_link_layer(&mut na, TARGET_LINK_LAYER, link.mac);
    out.extend(frame::icmp6(MacPair { from: link.mac, to: mac }, (target, to), HOP_LIMIT, na));
    Some(())
}

/// A solicitation for the guest's own address, so that its answer tells the guest's Ethernet address.
pub(super) fn solicit(link: &Link, v6: &LinkV6) -> Option<Vec<u8>> {
    let to = solicited_node(v6.guest);
    let mut ns = vec![u8::from(Icmpv6Message::NeighborSolicit), 0, 0, 0, 0, 0, 0, 0];
    ns.extend_from_slice(&v6.guest.octets());
    push_link_layer(&mut ns, SOURCE_LINK_LAYER, link.mac);
    frame::icmp6(MacPair { from: link.mac, to: frame::multicast_mac(to) }, (v6.gateway, to), HOP_LIMIT, ns)
}

/// Appends a link-layer address option (RFC 4861 section 4.6.1).
pub(super) fn push_link_layer(message: &mut Vec<u8>, kind: u8, mac: MacAddr) {
    message.extend_from_slice(&[kind, 1]);
    message.extend_from_slice(&mac.0);
}

/// The source link-layer address among the options; the outer value is none if they are broken.
fn source_link_layer(mut options: &[u8]) -> Option<Option<MacAddr>> {
    let mut found = None;
    while !options.is_empty() {
        let (&kind, &units) = (options.first()?, options.get(1)?);
        // A length of zero is never valid (RFC 4861 section 4.6).
        let len = usize::from(units).checked_mul(8).filter(|l| *l > 0)?;
        let option = options.get(..len)?;
        if kind == SOURCE_LINK_LAYER && len == 8 {
            found = option.get(2..8).and_then(|m| m.first_chunk::<6>()).map(|m| MacAddr(*m));
        }
        options = options.get(len..)?;
    }
    Some(found)
}

/// The solicited-node group of an address (RFC 4291 section 2.7.1).
fn solicited_node(a: Ipv6Addr) -> Ipv6Addr {
    let o = a.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

/// Whether `target` is an address that netd itself takes on the link.
fn holds(v6: &LinkV6, target: Ipv6Addr) -> bool {
    target != v6.guest && (target == v6.gateway || v6.loopback == Some(target))
}

/// Whether netd answers for `target` to a guest that has an address.
fn reaches(v6: &LinkV6, target: Ipv6Addr) -> bool {
    if target.is_unicast_link_local() {
        return holds(v6, target) || v6.routes.iter().any(|r| r.via == Some(target));
    }
    target != v6.guest && !target.is_unspecified() && !target.is_loopback()
}
