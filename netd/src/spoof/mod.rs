//! Anti-spoofing: a frame must come from the guest's addresses and go to netd's or to a group.
//!
//! What is the guest's, in both modes:
//!
//! | | addresses |
//! |---|---|
//! | Ethernet | the configured one; without one the first that is seen after a frontend connects |
//! | IPv4 | the one that DHCP assigns ([`LinkV4::guest`](crate::net::LinkV4::guest)); 0.0.0.0 for what a host without an address says: DHCP, ARP probes (RFC 5227) and IGMP (RFC 3376, section 4.2.13) |
//! | IPv6 | the one that DHCPv6 assigns; every link-local address but the router's, since a guest makes them as it likes (RFC 4862, RFC 7217); `::` for ICMPv6 (duplicate address detection, router solicitation, listener reports) |
//!
//! There are no other IPv6 addresses of the guest: the prefix that netd announces never has the autonomous flag,
//! so no guest makes temporary or SLAAC addresses of it.
//!
//! A DHCPv4 client may speak from an address that is no longer its own: it asks to keep it (RFC 2131, section
//! 4.4.5), and only an answer tells it better. That is the one exception; the answer goes to the guest alone.

use std::net::{IpAddr, Ipv4Addr};

use crate::counters::Reason;
use crate::net::Link;
use crate::wire::{Eth, Ip, MacAddr, protocol};

/// UDP port of DHCPv4 servers (RFC 2131, section 4.1).
const DHCP_SERVER: u16 = 67;
/// IGMP's protocol number.
const IGMP: u8 = 2;
/// Neighbour advertisement (RFC 4861, section 4.4) and where it has its target.
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// The first and the last type of neighbour discovery (RFC 4861, section 4).
const ROUTER_SOLICITATION: u8 = 133;
const REDIRECT: u8 = 137;
const TARGET: std::ops::Range<usize> = 8..24;
/// Where an ARP packet has its sender's Ethernet and IPv4 address (RFC 826).
const ARP_SENDER_MAC: std::ops::Range<usize> = 8..14;
const ARP_SENDER_IP: std::ops::Range<usize> = 14..18;

/// Whether `address` is one of the guest's.
pub fn owns(link: &Link, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => link.v4.as_ref().is_some_and(|l| l.guest == a),
        // A guest makes link-local addresses also where it gets no other.
        IpAddr::V6(a) => match &link.v6 {
            Some(l) => l.guest == a || (a.is_unicast_link_local() && l.gateway != a),
            None => a.is_unicast_link_local() && link.mac.link_local() != a,
        },
    }
}

/// Judges the Ethernet header; `guest` is the guest's address, if it is known.
///
/// # Errors
/// [`Reason::Malformed`] for a group as source (IEEE 802.3), [`Reason::Spoofed`] for another station than the
/// guest, [`Reason::Misdirected`] for a frame to another station than netd.
pub fn check_ethernet(link: &Link, guest: Option<MacAddr>, eth: &Eth) -> Result<(), Reason> {
    if eth.src.is_group() {
        return Err(Reason::Malformed);
    }
    if eth.src == link.mac || guest.is_some_and(|mac| mac != eth.src) {
        return Err(Reason::Spoofed);
    }
    if eth.dst != link.mac && !eth.dst.is_group() {
        return Err(Reason::Misdirected);
    }
    Ok(())
}

/// Judges the source of an IP packet; `transport` is the start of its payload. What a fragment carries is judged when its packet is
/// whole: [`is_neighbour_discovery`].
///
/// # Errors
/// [`Reason::Spoofed`].
#[inline]
pub fn check_ip(link: &Link, ip: &Ip, transport: &[u8]) -> Result<(), Reason> {
    let assigned = match (ip.src, &link.v4, &link.v6) {
        (IpAddr::V4(a), Some(l), _) => a == l.guest,
        (IpAddr::V6(a), _, Some(l)) => a == l.guest,
        _ => false,
    };
    // Nearly every packet leaves here; only ICMPv6 has an address of the guest's inside.
    if assigned && ip.protocol != protocol::ICMPV6 {
        return Ok(());
    }
    if (assigned || is_guests_otherwise(link, ip, transport)) && advertises_own(link, ip, transport) {
        return Ok(());
    }
    Err(Reason::Spoofed)
}

/// Whether the source is the guest's although it is not the assigned address.
fn is_guests_otherwise(link: &Link, ip: &Ip, transport: &[u8]) -> bool {
    match ip.src {
        IpAddr::V4(src) => {
            let dhcp = ip.protocol == protocol::UDP
                && ip.fragment.is_none()
                && transport.get(2..4) == Some(&DHCP_SERVER.to_be_bytes());
            let group = ip.protocol == IGMP && src.is_unspecified();
            (dhcp && !src.is_loopback() && !src.is_multicast() && !src.is_broadcast()) || group
        }
        IpAddr::V6(src) if src.is_unspecified() => ip.protocol == protocol::ICMPV6 && ip.fragment.is_none(),
        src @ IpAddr::V6(_) => owns(link, src),
    }
}

/// Whether a packet is neighbour discovery, which is never fragmented and is ignored where it is (RFC 6980, section 5).
pub fn is_neighbour_discovery(ip: &Ip, transport: &[u8]) -> bool {
    let kinds = ROUTER_SOLICITATION..=REDIRECT;
    ip.protocol == protocol::ICMPV6 && transport.first().is_some_and(|kind| kinds.contains(kind))
}

/// False for a neighbour advertisement of an address that is not the guest's.
fn advertises_own(link: &Link, ip: &Ip, transport: &[u8]) -> bool {
    // In a fragment anything may stand there (RFC 8200, section 4.5).
    let is_whole = ip.fragment.is_none();
    if !is_whole || ip.protocol != protocol::ICMPV6 || transport.first() != Some(&NEIGHBOR_ADVERTISEMENT) {
        return true;
    }
    let target = transport.get(TARGET).and_then(|t| t.first_chunk::<16>());
    target.is_some_and(|t| owns(link, IpAddr::from(*t)))
}

/// Judges the sender of an ARP packet that came from the station `from`.
///
/// # Errors
/// [`Reason::Malformed`] when the packet has no sender, [`Reason::Spoofed`] when that is not the guest.
pub fn check_arp(link: &Link, from: MacAddr, packet: &[u8]) -> Result<(), Reason> {
    let mac = packet.get(ARP_SENDER_MAC).and_then(|m| m.first_chunk::<6>()).ok_or(Reason::Malformed)?;
    let ip = packet.get(ARP_SENDER_IP).and_then(|a| a.first_chunk::<4>()).ok_or(Reason::Malformed)?;
    let ip = Ipv4Addr::from(*ip);
    let known = ip.is_unspecified() || owns(link, ip.into());
    if MacAddr(*mac) == from && known { Ok(()) } else { Err(Reason::Spoofed) }
}

#[cfg(test)]
mod tests;
