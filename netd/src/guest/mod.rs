//! What the guest finds on its link: a neighbour behind every address, a router, and DHCP servers.
//!
//! [`Services`] is shown every frame that may be for the link itself and answers ARP, neighbour discovery,
//! DHCPv4 and DHCPv6 from the present [`Link`]; what is for a host beyond the link it hands back
//! ([`Handled::NotMine`]) to the translators. It keeps next to nothing: there is one guest with one address
//! in each family, so there is no lease to remember, and a restarted or migrated netd goes on where the
//! former one stopped.
//!
//! The worker calls it, with its own frame buffers: [`Services::link_up`] when the guest's driver starts
//! and whenever a new [`Link`] takes effect, [`Services::poll`] at [`Services::poll_at`]. Frames in and out
//! are complete Ethernet frames without virtio header, their checksums complete.
//!
//! The guest is not trusted: what it sends may be anything, is bounds-checked to the last byte, and an
//! answer is never longer than the request warrants. The DHCP codecs are written by hand for that reason:
//! the messages are flat, and a general decoder recurses into options as deep as the sender likes.

mod arp;
mod dhcp4;
mod dhcp6;
pub(crate) mod frame;
mod name;
mod ndp;
mod ra;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};

use crate::counters::Reason;
use crate::net::Link;
use crate::time::Time;
use crate::wire::MacAddr;
use ra::Advertiser;

/// How many of the guest's source addresses are remembered: enough to show on a status page.
const MAX_SEEN: usize = 16;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It was for the link itself; the answers, if any, have been appended.
    Consumed,
    /// It is for a host beyond the link: the translators' business.
    NotMine,
    /// It was for the link itself and cannot be answered.
    Dropped(Reason),
}

/// The services of the link, for one guest.
#[derive(Debug, Default)]
pub struct Services {
    advertiser: Advertiser,
    guest_mac: Option<MacAddr>,
    seen: Vec<IpAddr>,
}

impl Services {
    /// Services that have not seen the guest yet.
    pub fn new() -> Services {
        Services::default()
    }

    /// Whether datagrams to this destination are for the link's DHCP servers. What goes to the same port of another host is for a server
    /// there: a relay's, or a lease that is renewed behind a tunnel (RFC 2131, section 4.3.6; RFC 8415, section 19).
    pub fn has_port(link: &Link, to: IpAddr, port: u16) -> bool {
        match to {
            IpAddr::V4(to) => {
                let gateway = link.v4.as_ref().is_some_and(|v4| v4.gateway == to);
                port == dhcp4::SERVER_PORT && (to.is_broadcast() || gateway)
            }
            IpAddr::V6(to) => {
                let gateway = link.v6.as_ref().is_some_and(|v6| v6.gateway == to);
                port == dhcp6::SERVER_PORT && (dhcp6::GROUPS.contains(&to) || gateway)
            }
        }
    }

    /// Handles one frame of the guest; answers are appended to `out`, each a complete frame for the guest.
    pub fn handle(&mut self, frame: &[u8], link: &Link, now: Time, out: &mut Vec<Vec<u8>>) -> Handled {
        let Ok(eth) = EthernetFrame::new_checked(frame) else { return Handled::Dropped(Reason::Malformed) };
        let source = MacAddr(eth.src_addr().0);
        match eth.ethertype() {
            EthernetProtocol::Arp => arp::handle(eth.payload(), link, out),
            EthernetProtocol::Ipv4 => ipv4(eth.payload(), link, out),
            EthernetProtocol::Ipv6 => self.ipv6(source, eth.payload(), link, now, out),
            _ => Handled::NotMine,
        }
    }

    /// The guest's driver has started, or `Link` has changed: advertisements follow soon.
    pub fn link_up(&mut self, now: Time) {
        self.advertiser.link_up(now);
    }

    /// When [`Services::poll`] has something to send.
    pub fn poll_at(&self) -> Option<Time> {
        self.advertiser.poll_at()
    }

    /// Appends the unsolicited router advertisement that is due, if one is (RFC 4861 section 6.2.4).
    pub fn poll(&mut self, now: Time, link: &Link, out: &mut Vec<Vec<u8>>) {
        self.advertiser.poll(link, now, out);
    }

    /// Takes note of the station that sent `frame`. Cheap enough for every frame.
    ///
    /// The latest sender wins: a guest that bridges several stations needs [`Link::guest_mac`] configured.
    pub fn learn(&mut self, frame: &[u8]) {
        let Some(mac) = frame.get(6..12).and_then(|m| m.first_chunk::<6>()) else { return };
        let mac = MacAddr(*mac);
        if mac.is_group() || mac == MacAddr([0; 6]) {
            return;
        }
        self.guest_mac = Some(mac);
        let v4 =
            |at: usize| frame.get(at..at + 4).and_then(|a| a.first_chunk::<4>()).map(|a| IpAddr::from(*a));
        let address = match frame.get(12..14) {
            Some([0x08, 0x00]) => v4(26),
            Some([0x08, 0x06]) => v4(28),
            Some([0x86, 0xdd]) => {
                frame.get(22..38).and_then(|a| a.first_chunk::<16>()).map(|a| IpAddr::from(*a))
            }
            _ => None,
        };
        let Some(address) = address.filter(|a| !a.is_unspecified() && !a.is_multicast()) else { return };
        if !self.seen.contains(&address) {
            if self.seen.len() >= MAX_SEEN {
                self.seen.remove(0);
            }
            self.seen.push(address);
        }
    }

    /// The Ethernet address from which the guest last sent.
    pub fn guest_mac(&self) -> Option<MacAddr> {
        self.guest_mac
    }

    /// What a former netd had learned of the guest.
    pub fn restore(&mut self, guest_mac: Option<MacAddr>, mut seen: Vec<IpAddr>) {
        seen.truncate(MAX_SEEN);
        self.guest_mac = guest_mac;
        self.seen = seen;
    }

    /// Where to send frames for the guest: the configured Ethernet address, else the learned one.
    pub fn destination(&self, link: &Link) -> Option<MacAddr> {
        link.guest_mac.or(self.guest_mac)
    }

    /// The source addresses the guest has used, the latest few, oldest first.
    pub fn seen(&self) -> &[IpAddr] {
        &self.seen
    }

    /// Asks the guest for its Ethernet address, by ARP and neighbour solicitation. The answers are for
    /// [`Services::learn`]; a caller that has traffic for a guest that has not spoken yet calls this, and not too
    /// often.
    pub fn solicit(link: &Link, out: &mut Vec<Vec<u8>>) {
        out.extend(link.v4.as_ref().map(|v4| arp::solicit(link, v4)));
        out.extend(link.v6.as_ref().and_then(|v6| ndp::solicit(link, v6)));
    }

    fn ipv6(
        &mut self,
        source: MacAddr,
        payload: &[u8],
        link: &Link,
        now: Time,
        out: &mut Vec<Vec<u8>>,
    ) -> Handled {
        let next = payload.get(6).map(|p| IpProtocol::from(*p));
        // The bulk of the traffic leaves here.
        if !matches!(next, Some(IpProtocol::Icmpv6 | IpProtocol::Udp | IpProtocol::HopByHop)) {
            return Handled::NotMine;
        }
        let Ok(ip) = Ipv6Packet::new_checked(payload) else { return Handled::Dropped(Reason::Malformed) };
        if ip.version() != 6 {
            return Handled::Dropped(Reason::Malformed);
        }
        match ip.next_header() {
            IpProtocol::Icmpv6 => ndp::handle(source, &ip, link, now, &mut self.advertiser, out),
            IpProtocol::Udp => udp6(source, &ip, link, out),
            IpProtocol::HopByHop if is_listener_report(ip.payload()) => Handled::Consumed,
            _ => Handled::NotMine,
        }
    }
}

/// Whether a hop-by-hop header is followed by multicast listener discovery (RFC 3810 section 5).
fn is_listener_report(payload: &[u8]) -> bool {
    let (Some(&next), Some(&len)) = (payload.first(), payload.get(1)) else { return false };
    let kind = payload.get((usize::from(len) + 1) * 8);
    IpProtocol::from(next) == IpProtocol::Icmpv6 && matches!(kind, Some(130 | 131 | 132 | 143))
}

fn ipv4(payload: &[u8], link: &Link, out: &mut Vec<Vec<u8>>) -> Handled {
    if payload.get(9).map(|p| IpProtocol::from(*p)) != Some(IpProtocol::Udp) {
        return Handled::NotMine;
    }
    let Ok(ip) = Ipv4Packet::new_checked(payload) else { return Handled::Dropped(Reason::Malformed) };
    if ip.version() != 4 {
        return Handled::Dropped(Reason::Malformed);
    }
    if ip.frag_offset() != 0 || ip.more_frags() {
        return Handled::NotMine;
    }
    let Ok(udp) = UdpPacket::new_checked(ip.payload()) else { return Handled::Dropped(Reason::Malformed) };
    // Renewals come to the server's address.
    if !Services::has_port(link, ip.dst_addr().into(), udp.dst_port()) {
        return Handled::NotMine;
    }
    if !ip.verify_checksum() || !udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()) {
        return Handled::Dropped(Reason::Checksum);
    }
    dhcp4::handle(udp.payload(), link, out)
}

fn udp6(source: MacAddr, ip: &Ipv6Packet<&[u8]>, link: &Link, out: &mut Vec<Vec<u8>>) -> Handled {
    let to = ip.dst_addr();
    let multicast = dhcp6::GROUPS.contains(&to);
    let Ok(udp) = UdpPacket::new_checked(ip.payload()) else { return Handled::Dropped(Reason::Malformed) };
    if !Services::has_port(link, to.into(), udp.dst_port()) {
        return Handled::NotMine;
    }
    // RFC 8200 section 8.1: over IPv6 a checksum of zero is no checksum at all.
    if udp.checksum() == 0 || !udp.verify_checksum(&ip.src_addr().into(), &to.into()) {
        return Handled::Dropped(Reason::Checksum);
    }
    let from = dhcp6::From { mac: source, address: ip.src_addr(), multicast };
    dhcp6::handle(udp.payload(), from, link, out)
}
