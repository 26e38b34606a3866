//! The guest's packets as they were, rebuilt for quotation.
//!
//! A flow does not keep what it has sent. What a guest looks at in a quotation is known without that:
//! addresses, protocol, ports or identifier, for TCP a sequence number within its window. Fields no host can
//! know (TTL, identification) have usual values.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, IpRepr, TcpPacket, UdpPacket,
};

use crate::guest::frame::{TTL, UDP};

/// Length of a TCP header without options in bytes.
const TCP: usize = 20;

/// A UDP datagram of the guest to `peer`; none if the families differ or it is too long.
pub fn quote_udp(guest: SocketAddr, peer: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(UDP + payload.len()).ok()?;
    packet(guest.ip(), peer.ip(), IpProtocol::Udp, len, |buffer| {
        let mut udp = UdpPacket::new_unchecked(buffer);
        udp.set_src_port(guest.port());
        udp.set_dst_port(peer.port());
        udp.set_len(len);
        udp.payload_mut().copy_from_slice(payload);
        udp.fill_checksum(&guest.ip().into(), &peer.ip().into());
    })
}

/// A TCP SYN of the guest to `peer` with its sequence number; none if the families differ. Guests ignore an
/// error whose sequence number is not one they wait for (RFC 5927 section 4.1).
pub fn quote_tcp_syn(guest: SocketAddr, peer: SocketAddr, sequence: u32) -> Option<Vec<u8>> {
    packet(guest.ip(), peer.ip(), IpProtocol::Tcp, TCP as u16, |buffer| {
        let mut tcp = TcpPacket::new_unchecked(buffer);
        tcp.set_src_port(guest.port());
        tcp.set_dst_port(peer.port());
        tcp.set_seq_number(smoltcp::wire::TcpSeqNumber(sequence.cast_signed()));
        tcp.set_header_len(TCP as u8);
        tcp.set_syn(true);
        tcp.set_window_len(u16::MAX);
        tcp.fill_checksum(&guest.ip().into(), &peer.ip().into());
    })
}

/// An echo request of the guest to `peer`; none if the families differ or it is too long.
pub fn quote_echo(guest: IpAddr, peer: IpAddr, id: u16, sequence: u16, payload: &[u8]) -> Option<Vec<u8>> {
    echo_message(guest, peer, id, sequence, payload, true)
}

/// A packet with an echo request or reply.
pub(super) fn echo_message(
    from: IpAddr,
    to: IpAddr,
    ident: u16,
    seq_no: u16,
    data: &[u8],
    request: bool,
) -> Option<Vec<u8>> {
    let len = u16::try_from(8 + data.len()).ok()?;
    let checksums = ChecksumCapabilities::default();
    match (from, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => packet(from, to, IpProtocol::Icmp, len, |buffer| {
            let repr = if request {
                Icmpv4Repr::EchoRequest { ident, seq_no, data }
            } else {
                Icmpv4Repr::EchoReply { ident, seq_no, data }
            };
            repr.emit(&mut Icmpv4Packet::new_unchecked(buffer), &checksums);
        }),
        (IpAddr::V6(from6), IpAddr::V6(to6)) => packet(from, to, IpProtocol::Icmpv6, len, |buffer| {
            let repr = if request {
                Icmpv6Repr::EchoRequest { ident, seq_no, data }
            } else {
                Icmpv6Repr::EchoReply { ident, seq_no, data }
            };
            repr.emit(&from6, &to6, &mut Icmpv6Packet::new_unchecked(buffer), &checksums);
        }),
        _ => None,
    }
}

/// An IP packet with `len` bytes behind its header, which `fill` writes.
fn packet(
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    len: u16,
    fill: impl FnOnce(&mut [u8]),
) -> Option<Vec<u8>> {
    if from.is_ipv4() != to.is_ipv4() {
        return None;
    }
    let repr = IpRepr::new(from.into(), to.into(), protocol, usize::from(len), TTL);
    let total = repr.buffer_len();
    // The length field of IPv4 counts the header.
    if from.is_ipv4() && total > usize::from(u16::MAX) {
        return None;
    }
    let mut packet = vec![0; total];
    repr.emit(&mut packet[..], &ChecksumCapabilities::default());
    fill(packet.get_mut(repr.header_len()..)?);
    Some(packet)
}
