//! ICMP: what is said about packets of the guest, and echo.
//!
//! The quoted packet may be anything, as may the error that the pod's kernel reports. What comes out must be a frame
//! that a guest takes: right checksums, from an address of the link, with a quotation that is the packet's start.

use std::net::{IpAddr, SocketAddr};

use super::Bytes;
use super::link::{GUEST_MAC, addresses, check_frame, link};
use crate::counters::Reason;
use crate::icmp::{
    EchoReply, IcmpError, echo_reply_frame, error_frame, parse_echo, quote_echo, quote_tcp_syn, quote_udp,
};
use crate::wire::{ETH_LEN, Ip, fold, protocol, sum};

/// Bytes of an ICMP error in front of the quotation.
const HEADER: usize = 8;

/// Runs one input.
pub fn icmp(data: &[u8]) {
    let mut b = Bytes::new(data);
    let shape = b.u8();
    let mut link = link(false);
    link.mtu = 68 + b.u16() % 0xff00;
    let v6 = shape & 1 != 0;
    let (guest, peer) = (b.pick(&addresses(v6)), b.pick(&addresses(v6 ^ (shape & 0x70 == 0x70))));
    let from = b.pick(&addresses(v6 ^ (shape & 0x0e == 0x0e)));
    let error = error(&mut b);
    let (id, number) = (b.u16(), b.u16());
    let original = match b.u8() % 4 {
        0 => quote_udp(SocketAddr::new(guest, id), SocketAddr::new(peer, number), b.rest()),
        1 => quote_tcp_syn(SocketAddr::new(guest, id), SocketAddr::new(peer, number), b.u32()),
        2 => echo(guest, peer, (id, number), &mut b),
        _ => Some(any_packet(&mut b)),
    };
    let Some(original) = original else { return };
    if let Some(frame) = error_frame(&link, GUEST_MAC, error, from, &original) {
        let ip = check_frame(&frame).expect("an error over IP");
        assert!(!ip.src.is_multicast() && !ip.src.is_unspecified(), "an error from {}", ip.src);
        assert!(frame.len() - ETH_LEN <= if ip.src.is_ipv4() { 576 } else { 1280 });
        let message = &frame[ETH_LEN + ip.header_len..];
        let expected = if ip.src.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
        assert_eq!(ip.protocol, expected);
        assert!(original.starts_with(&message[HEADER..]), "not the guest's packet");
        assert!(!message[HEADER..].is_empty());
        // An error about an error never (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
        let again = error_frame(&link, GUEST_MAC, error, from, &frame[ETH_LEN..]);
        assert!(again.is_none(), "an error about an error");
    }
    if let Ok(request) = parse_echo(&original) {
        let payload = original.get(request.payload.clone()).expect("a payload inside of its packet");
        let EchoReply { from, guest, .. } = EchoReply {
            from: request.dst,
            guest: request.src,
            id: request.id,
            sequence: request.sequence,
            payload,
            ttl: request.ttl,
            class: 0xb8,
        };
        let reply = EchoReply { from, guest, id, sequence: number, payload, ttl: request.ttl, class: 0xb8 };
        if let Some(frame) = echo_reply_frame(&link, GUEST_MAC, &reply) {
            check_frame(&frame);
            assert!(frame.ends_with(payload));
            assert_eq!(parse_echo(&frame[ETH_LEN..]), Err(Reason::UnknownProtocol), "a reply is no request");
        }
    }
}

fn error(b: &mut Bytes<'_>) -> IcmpError {
    let (kind, code, info) = (b.u8(), b.u8(), b.u32());
    let fixed = [
        IcmpError::HostUnreachable,
        IcmpError::NetUnreachable,
        IcmpError::PortUnreachable,
        IcmpError::AdminProhibited,
        IcmpError::ProtocolUnreachable,
        IcmpError::TimeExceeded,
        IcmpError::FragmentTimeExceeded,
        IcmpError::FragmentationNeeded { mtu: info },
        IcmpError::Raw { kind, code, info },
    ];
    let reported = IcmpError::from_extended(i32::from(b.u8()), b.u8() % 5, kind, code, info);
    reported.unwrap_or_else(|| b.pick(&fixed))
}

fn echo(guest: IpAddr, peer: IpAddr, ids: (u16, u16), b: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let twist = b.u16();
    let packet = quote_echo(guest, peer, ids.0, ids.1, b.rest())?;
    let request = parse_echo(&packet).expect("an echo request of our own");
    assert_eq!((request.id, request.sequence), ids);
    assert_eq!((request.src, request.dst), (guest, peer));
    let mut packet = packet;
    if twist & 0x8000 != 0 {
        let at = usize::from(twist & 0xff) % packet.len();
        packet[at] ^= 1 << (twist >> 8 & 7);
    }
    Some(packet)
}

/// Any bytes, often with a good IPv4 header checksum.
fn any_packet(b: &mut Bytes<'_>) -> Vec<u8> {
    let seal = b.u8() & 1 == 0;
    let mut packet = b.rest().to_vec();
    let len = packet.first().map_or(0, |b| usize::from(b & 15) * 4);
    if seal && len >= 20 && packet.len() >= len {
        packet[10..12].fill(0);
        let sum = !fold(sum(&packet[..len], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let _ = Ip::parse(&packet, packet.len());
    packet
}
