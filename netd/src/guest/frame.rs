//! Builds complete Ethernet frames for the guest around a payload: headers, lengths and checksums.
//!
//! Everything that netd itself says to the guest (not what it translates) is made here. These frames are
//! rare, so each is a fresh vector.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet, UdpPacket,
};

use crate::wire::MacAddr;

/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET: usize = 14;
/// Length of an IPv4 header without options in bytes.
pub(crate) const IPV4: usize = 20;
/// Length of the fixed IPv6 header in bytes.
pub(crate) const IPV6: usize = 40;
/// Length of a UDP header in bytes.
pub(crate) const UDP: usize = 8;

/// TTL and hop limit of what netd sends: the recommended default of RFC 1700.
pub(crate) const TTL: u8 = 64;

/// The Ethernet addresses of a frame on the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MacPair {
    /// Source address: netd's.
    pub(crate) from: MacAddr,
    /// Destination address: the guest's or a group.
    pub(crate) to: MacAddr,
}

/// A frame of `len` payload bytes, all zero, with its Ethernet header written.
pub(crate) fn ethernet(ends: MacPair, protocol: EthernetProtocol, len: usize) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET + len];
    let mut eth = EthernetFrame::new_unchecked(&mut frame[..]);
    eth.set_src_addr(EthernetAddress(ends.from.0));
    eth.set_dst_addr(EthernetAddress(ends.to.0));
    eth.set_ethertype(protocol);
    frame
}

/// A frame with an IPv4 packet of the given payload; none if it is longer than IPv4 can carry.
pub(crate) fn ipv4(
    ends: MacPair,
    addresses: (Ipv4Addr, Ipv4Addr),
    protocol: IpProtocol,
    ttl: u8,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let total = u16::try_from(IPV4 + payload.len()).ok()?;
    let mut frame = ethernet(ends, EthernetProtocol::Ipv4, usize::from(total));
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_total_len(total);
    // An atomic datagram (RFC 6864 section 4.1): never fragmented, so its identification may be anything.
    ip.set_dont_frag(true);
    ip.set_hop_limit(ttl);
    ip.set_next_header(protocol);
    ip.set_src_addr(addresses.0);
    ip.set_dst_addr(addresses.1);
    ip.fill_checksum();
    ip.payload_mut().copy_from_slice(payload);
    Some(frame)
}

/// A frame with an IPv6 packet of the given payload; none if it is longer than IPv6 can carry.
pub(crate) fn ipv6(
    ends: MacPair,
    addresses: (Ipv6Addr, Ipv6Addr),
    protocol: IpProtocol,
    hop_limit: u8,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let len = u16::try_from(payload.len()).ok()?;
    let mut frame = ethernet(ends, EthernetProtocol::Ipv6, IPV6 + payload.len());
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[ETHERNET..]);
    ip.set_version(6);
    ip.set_payload_len(len);
    ip.set_next_header(protocol);
    ip.set_hop_limit(hop_limit);
    ip.set_src_addr(addresses.0);
    ip.set_dst_addr(addresses.1);
    ip.payload_mut().copy_from_slice(payload);
    Some(frame)
}

/// A UDP datagram with its header; the checksum is still zero.
fn udp(ports: (u16, u16), payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(UDP + payload.len()).ok()?;
    let mut datagram = vec![0; usize::from(len)];
    let mut udp = UdpPacket::new_unchecked(&mut datagram[..]);
    udp.set_src_port(ports.0);
    udp.set_dst_port(ports.1);
    udp.set_len(len);
    udp.payload_mut().copy_from_slice(payload);
    Some(datagram)
}

/// A frame with a UDP datagram over IPv4.
pub(crate) fn udp4(ends: MacPair, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Option<Vec<u8>> {
    let mut datagram = udp((from.port(), to.port()), payload)?;
    UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&(*from.ip()).into(), &(*to.ip()).into());
    ipv4(ends, (*from.ip(), *to.ip()), IpProtocol::Udp, TTL, &datagram)
}

/// A frame with a UDP datagram over IPv6.
pub(crate) fn udp6(ends: MacPair, from: SocketAddrV6, to: SocketAddrV6, payload: &[u8]) -> Option<Vec<u8>> {
    let mut datagram = udp((from.port(), to.port()), payload)?;
    UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&(*from.ip()).into(), &(*to.ip()).into());
    ipv6(ends, (*from.ip(), *to.ip()), IpProtocol::Udp, TTL, &datagram)
}

/// A frame with an ICMPv4 message, whose checksum is filled in. `message` holds at least its 4-byte header.
pub(crate) fn icmp4(
    ends: MacPair,
    addresses: (Ipv4Addr, Ipv4Addr),
    ttl: u8,
    mut message: Vec<u8>,
) -> Option<Vec<u8>> {
    if message.len() < 4 {
        return None;
    }
    Icmpv4Packet::new_unchecked(&mut message[..]).fill_checksum();
    ipv4(ends, addresses, IpProtocol::Icmp, ttl, &message)
}

/// A frame with an ICMPv6 message, whose checksum is filled in. `message` holds at least its 4-byte header.
pub(crate) fn icmp6(
    ends: MacPair,
    addresses: (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    mut message: Vec<u8>,
) -> Option<Vec<u8>> {
    if message.len() < 4 {
        return None;
    }
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&addresses.0, &addresses.1);
    ipv6(ends, addresses, IpProtocol::Icmpv6, hop_limit, &message)
}

/// The Ethernet group address of an IPv6 group (RFC 2464 section 7).
pub(crate) fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let o = group.octets();
    MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]])
}
