//! Facts about ICMP, with etherparse and smoltcp as witnesses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use etherparse::{PacketBuilder, PacketHeaders, SlicedPacket, TransportHeader};
use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet};

use super::*;
use crate::counters::Reason;
use crate::net::{Link, test_link};
use crate::time::Time;

const PEER4: &str = "192.0.2.1";
const PEER6: &str = "2001:db8::1";
const GUEST4: &str = "10.9.0.2";
const GUEST6: &str = "fd00:9::2";

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn at(s: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(s), port)
}

fn udp(v6: bool, payload: &[u8]) -> Vec<u8> {
    let (guest, peer) = if v6 { (GUEST6, PEER6) } else { (GUEST4, PEER4) };
    quote_udp(at(guest, 4000), at(peer, 53), payload).unwrap()
}

fn frame_for(link: &Link, kind: IcmpError, from: &str, original: &[u8]) -> Option<Vec<u8>> {
    error_frame(link, link.guest_mac.unwrap(), kind, ip(from), original)
}

/// Checks an error frame and gives its sender and its ICMP message.
fn open(frame: &[u8]) -> (IpAddr, Vec<u8>) {
    let link = test_link();
    let eth = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!((eth.dst_addr().0, eth.src_addr().0), (link.guest_mac.unwrap().0, link.mac.0));
    if frame[14] >> 4 == 4 {
        let packet = Ipv4Packet::new_checked(eth.payload()).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!((packet.next_header(), packet.hop_limit()), (IpProtocol::Icmp, 64));
        assert_eq!(usize::from(packet.total_len()), eth.payload().len());
        assert!(Icmpv4Packet::new_checked(packet.payload()).unwrap().verify_checksum());
        (packet.src_addr().into(), packet.payload().to_vec())
    } else {
        let packet = Ipv6Packet::new_checked(eth.payload()).unwrap();
        assert_eq!(packet.next_header(), IpProtocol::Icmpv6);
        assert_eq!(packet.total_len(), eth.payload().len());
        let icmp = Icmpv6Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
        (packet.src_addr().into(), packet.payload().to_vec())
    }
}

/// The error, its eight bytes without checksum over IPv4 and over IPv6 (RFC 792, RFC 4443).
#[test]
fn every_error_has_its_type_and_code_in_both_families() {
    let link = test_link();
    let mtu = IcmpError::FragmentationNeeded { mtu: 1400 };
    for (kind, v4, v6) in [
        (IcmpError::NetUnreachable, [3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
        (IcmpError::HostUnreachable, [3, 1, 0, 0, 0, 0], [1, 3, 0, 0, 0, 0]),
        (IcmpError::ProtocolUnreachable, [3, 2, 0, 0, 0, 0], [4, 1, 0, 0, 0, 6]),
        (IcmpError::PortUnreachable, [3, 3, 0, 0, 0, 0], [1, 4, 0, 0, 0, 0]),
        (IcmpError::AdminProhibited, [3, 13, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]),
        (mtu, [3, 4, 0, 0, 5, 120], [2, 0, 0, 0, 5, 120]),
        (IcmpError::TimeExceeded, [11, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]),
        (IcmpError::FragmentTimeExceeded, [11, 1, 0, 0, 0, 0], [3, 1, 0, 0, 0, 0]),
    ] {
        for (expected, peer, is_v6) in [(v4, PEER4, false), (v6, PEER6, true)] {
            let original = udp(is_v6, b"payload");
            let (from, message) = open(&frame_for(&link, kind, peer, &original).unwrap());
            assert_eq!(from, ip(peer));
            assert_eq!([&message[..2], &message[4..8]].concat(), expected, "{kind:?}");
            assert_eq!(message[8..], original);
        }
    }
}

#[test]
fn raw_errors_pass_but_nothing_that_steers_the_guest() {
    let link = test_link();
    let raw = |kind, code, info| IcmpError::Raw { kind, code, info };
    for (is_v6, peer, kinds) in [(false, PEER4, vec![3, 11, 12]), (true, PEER6, vec![1, 2, 3, 4])] {
        for kind in 0..=255 {
            let frame = frame_for(&link, raw(kind, 7, 0x0102_0304), peer, &udp(is_v6, b""));
            assert_eq!(frame.is_some(), kinds.contains(&kind), "type {kind}");
            let Some(frame) = frame else { continue };
            let (_, message) = open(&frame);
            assert_eq!((message[0], message[1], &message[4..8]), (kind, 7, &[1, 2, 3, 4][..]));
        }
    }
}

#[test]
fn an_mtu_below_the_minimum_is_raised_to_it() {
    let link = test_link();
    for (given, v4, v6) in [(0, 68, 1280), (1000, 1000, 1280), (100_000, 65535, 100_000)] {
        for (expected, peer, is_v6) in [(v4, PEER4, false), (v6, PEER6, true)] {
            let frame =
                frame_for(&link, IcmpError::FragmentationNeeded { mtu: given }, peer, &udp(is_v6, b""));
            assert_eq!(open(&frame.unwrap()).1[4..8], u32::to_be_bytes(expected));
        }
    }
}

#[test]
fn quotations_end_where_every_link_carries_them() {
    let link = test_link();
    for (is_v6, peer, size) in [(false, PEER4, 576), (true, PEER6, 1280)] {
        let original = udp(is_v6, &[7; 4000]);
        let frame = frame_for(&link, IcmpError::PortUnreachable, peer, &original).unwrap();
        assert_eq!(frame.len(), 14 + size);
        let (_, message) = open(&frame);
        assert_eq!(message[8..], original[..message.len() - 8]);
        // The packet itself may be cut short behind eight bytes.
        let header = if is_v6 { 40 } else { 20 };
        let (_, message) =
            open(&frame_for(&link, IcmpError::PortUnreachable, peer, &original[..header + 8]).unwrap());
        assert_eq!(message.len(), 8 + header + 8);
        assert!(frame_for(&link, IcmpError::PortUnreachable, peer, &original[..header - 1]).is_none());
    }
    let small = Link { mtu: 256, ..link };
    assert_eq!(frame_for(&small, IcmpError::TimeExceeded, PEER4, &udp(false, &[7; 999])).unwrap().len(), 270);
}

#[test]
fn offenders_the_guest_cannot_know_become_the_gateway() {
    let link = test_link();
    let (v4, v6) = (link.v4.as_ref().unwrap(), link.v6.as_ref().unwrap());
    for (from, is_v6, seen) in [
        ("127.0.0.6", false, IpAddr::from(v4.gateway)),
        ("0.0.0.0", false, v4.gateway.into()),
        ("224.0.0.1", false, v4.gateway.into()),
        (GUEST4, false, v4.gateway.into()),
        ("::1", false, v4.gateway.into()),
        ("198.51.100.7", false, ip("198.51.100.7")),
        ("::1", true, v6.gateway.into()),
        (GUEST6, true, v6.gateway.into()),
        (PEER4, true, v6.gateway.into()),
        ("2001:db8:9::1", true, ip("2001:db8:9::1")),
    ] {
        let frame = frame_for(&link, IcmpError::TimeExceeded, from, &udp(is_v6, b"")).unwrap();
        assert_eq!(open(&frame).0, seen, "{from}");
    }
}

fn packet(from: &str, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![];
    match (ip(from), ip(to)) {
        (IpAddr::V4(f), IpAddr::V4(t)) => PacketBuilder::ipv4(f.octets(), t.octets(), 64)
            .write(&mut p, etherparse::IpNumber(protocol), payload)
            .unwrap(),
        (IpAddr::V6(f), IpAddr::V6(t)) => PacketBuilder::ipv6(f.octets(), t.octets(), 64)
            .write(&mut p, etherparse::IpNumber(protocol), payload)
            .unwrap(),
        _ => panic!("families differ"),
    }
    p
}

#[test]
fn no_error_is_sent_where_the_rules_forbid_it() {
    let link = test_link();
    let unreachable = IcmpError::HostUnreachable;
    for (why, original) in [
        ("an error", packet(GUEST4, PEER4, 1, &[3, 1, 0, 0, 0, 0, 0, 0])),
        ("a redirect", packet(GUEST4, PEER4, 1, &[5, 1, 0, 0, 0, 0, 0, 0])),
        ("nothing of ICMP", packet(GUEST4, PEER4, 1, &[])),
        ("to a group", packet(GUEST4, "224.0.0.1", 17, &[0; 8])),
        ("to all", packet(GUEST4, "255.255.255.255", 17, &[0; 8])),
        ("to the subnet", packet(GUEST4, "10.9.0.255", 17, &[0; 8])),
        ("from the unspecified address", packet("0.0.0.0", PEER4, 17, &[0; 8])),
        ("from a group", packet("224.0.0.1", PEER4, 17, &[0; 8])),
        ("from loopback", packet("127.0.0.1", PEER4, 17, &[0; 8])),
        ("an error", packet(GUEST6, PEER6, 58, &[1, 0, 0, 0, 0, 0, 0, 0])),
        ("an unknown error", packet(GUEST6, PEER6, 58, &[100, 0, 0, 0, 0, 0, 0, 0])),
        ("a redirect", packet(GUEST6, PEER6, 58, &[137, 0, 0, 0, 0, 0, 0, 0])),
        ("an error behind options", packet(GUEST6, PEER6, 60, &[58, 0, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0])),
        ("a later fragment", packet(GUEST6, PEER6, 44, &[17, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0])),
        ("to a group", packet(GUEST6, "ff02::1", 17, &[0; 8])),
        ("from the unspecified address", packet("::", PEER6, 17, &[0; 8])),
        ("half a header", packet(GUEST6, PEER6, 60, &[58])),
        ("nothing", vec![]),
    ] {
        assert_eq!(frame_for(&link, unreachable, PEER4, &original), None, "{why}");
    }
    let mut later = packet(GUEST4, PEER4, 17, &[0; 8]);
    later[6..8].copy_from_slice(&[0, 1]);
    Ipv4Packet::new_unchecked(&mut later[..]).fill_checksum();
    assert_eq!(frame_for(&link, unreachable, PEER4, &later), None);
    for fine in [
        packet(GUEST4, PEER4, 1, &[8, 0, 0, 0, 0, 0, 0, 0]),
        packet(GUEST6, PEER6, 58, &[128, 0, 0, 0, 0, 0, 0, 0]),
        packet(GUEST6, PEER6, 44, &[17, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
    ] {
        assert!(frame_for(&link, unreachable, PEER4, &fine).is_some());
    }
    let group = packet(GUEST6, "ff0e::1", 17, &[0; 8]);
    assert!(frame_for(&link, IcmpError::FragmentationNeeded { mtu: 1300 }, PEER6, &group).is_some());
}

/// errno, origin, type, code, info of the kernel, and what they mean.
#[test]
fn the_kernels_reports_are_understood() {
    use IcmpError::*;
    let (local, v4, v6) = (1, 2, 3);
    let none = (libc::EIO, 0, 0, 0, 0);
    for (report, expected) in [
        ((libc::EMSGSIZE, local, 0, 0, 1300), Some(FragmentationNeeded { mtu: 1300 })),
        ((libc::ECONNREFUSED, local, 0, 0, 0), Some(PortUnreachable)),
        ((libc::EHOSTUNREACH, local, 0, 0, 0), Some(HostUnreachable)),
        ((libc::ENETUNREACH, local, 0, 0, 0), Some(NetUnreachable)),
        ((libc::EPERM, local, 0, 0, 0), Some(AdminProhibited)),
        ((libc::ENOBUFS, local, 0, 0, 0), None),
        ((libc::ENETUNREACH, v4, 3, 0, 0), Some(NetUnreachable)),
        ((libc::EHOSTUNREACH, v4, 3, 1, 0), Some(HostUnreachable)),
        ((libc::ENOPROTOOPT, v4, 3, 2, 0), Some(ProtocolUnreachable)),
        ((libc::ECONNREFUSED, v4, 3, 3, 0), Some(PortUnreachable)),
        ((libc::EMSGSIZE, v4, 3, 4, 1400), Some(FragmentationNeeded { mtu: 1400 })),
        ((libc::EHOSTUNREACH, v4, 3, 13, 0), Some(AdminProhibited)),
        ((libc::EHOSTUNREACH, v4, 3, 10, 9), Some(Raw { kind: 3, code: 10, info: 0 })),
        ((libc::EHOSTUNREACH, v4, 11, 0, 0), Some(TimeExceeded)),
        ((libc::EHOSTUNREACH, v4, 11, 1, 0), Some(FragmentTimeExceeded)),
        ((libc::EPROTO, v4, 12, 0, 20), Some(Raw { kind: 12, code: 0, info: 20 << 24 })),
        ((0, v4, 5, 0, 0), None),
        ((0, v4, 4, 0, 0), None),
        ((libc::ENETUNREACH, v6, 1, 0, 0), Some(NetUnreachable)),
        ((libc::EACCES, v6, 1, 1, 0), Some(AdminProhibited)),
        ((libc::EHOSTUNREACH, v6, 1, 3, 0), Some(HostUnreachable)),
        ((libc::ECONNREFUSED, v6, 1, 4, 0), Some(PortUnreachable)),
        ((libc::EACCES, v6, 1, 5, 0), Some(Raw { kind: 1, code: 5, info: 0 })),
        ((libc::EMSGSIZE, v6, 2, 0, 1280), Some(FragmentationNeeded { mtu: 1280 })),
        ((libc::EHOSTUNREACH, v6, 3, 0, 0), Some(TimeExceeded)),
        ((libc::EHOSTUNREACH, v6, 3, 1, 0), Some(FragmentTimeExceeded)),
        ((libc::EPROTO, v6, 4, 1, 40), Some(Raw { kind: 4, code: 1, info: 40 })),
        ((0, v6, 137, 0, 0), None),
        (none, None),
    ] {
        let (errno, origin, kind, code, info) = report;
        assert_eq!(IcmpError::from_extended(errno, origin, kind, code, info), expected, "{report:?}");
    }
}

#[test]
fn quoted_packets_are_what_the_guest_sent() {
    for (guest, peer) in [(GUEST4, PEER4), (GUEST6, PEER6)] {
        let quoted = quote_udp(at(guest, 4000), at(peer, 53), b"query").unwrap();
        let p = PacketHeaders::from_ip_slice(&quoted).unwrap();
        let Some(TransportHeader::Udp(u)) = p.transport else { panic!("not UDP") };
        assert_eq!((u.source_port, u.destination_port, p.payload.slice()), (4000, 53, &b"query"[..]));
        let sum = match p.net.as_ref().unwrap() {
            etherparse::NetHeaders::Ipv4(h, _) => u.calc_checksum_ipv4(h, b"query"),
            etherparse::NetHeaders::Ipv6(h, _) => u.calc_checksum_ipv6(h, b"query"),
            etherparse::NetHeaders::Arp(_) => panic!("not IP"),
        };
        assert_eq!(u.checksum, sum.unwrap());

        let quoted = quote_tcp_syn(at(guest, 4000), at(peer, 443), 0xdead_beef).unwrap();
        let p = PacketHeaders::from_ip_slice(&quoted).unwrap();
        let Some(TransportHeader::Tcp(t)) = p.transport else { panic!("not TCP") };
        assert_eq!((t.source_port, t.destination_port, t.sequence_number), (4000, 443, 0xdead_beef));
        assert!(t.syn && !t.ack && !t.rst);

        let quoted = quote_echo(ip(guest), ip(peer), 7, 9, b"ping").unwrap();
        let request = parse_echo(&quoted).unwrap();
        assert_eq!((request.src, request.dst), (ip(guest), ip(peer)));
        assert_eq!((request.id, request.sequence), (7, 9));
        assert_eq!(&quoted[request.payload], b"ping");
    }
    assert_eq!(quote_udp(at(GUEST4, 1), at(PEER6, 2), b""), None);
    assert_eq!(quote_tcp_syn(at(GUEST6, 1), at(PEER4, 2), 0), None);
    assert_eq!(quote_echo(ip(GUEST4), ip(PEER6), 1, 1, b""), None);
    assert_eq!(quote_udp(at(GUEST4, 1), at(PEER4, 2), &[0; 65_508]), None);
    assert_eq!(quote_udp(at(GUEST6, 1), at(PEER6, 2), &[0; 65_528]), None);
}

#[test]
fn echo_requests_are_told_from_all_else() {
    let good4 = quote_echo(ip(GUEST4), ip(PEER4), 1, 2, b"data").unwrap();
    let good6 = quote_echo(ip(GUEST6), ip(PEER6), 1, 2, b"data").unwrap();
    let padded = [&good4[..], &[0; 14]].concat();
    assert_eq!(parse_echo(&padded).unwrap().payload, 28..32, "padding is not payload");
    for good in [&good4, &good6] {
        let mut broken = good.clone();
        *broken.last_mut().unwrap() ^= 1;
        assert_eq!(parse_echo(&broken), Err(Reason::Checksum));
        for len in 0..good.len() {
            assert_eq!(parse_echo(&good[..len]), Err(Reason::Malformed), "{len}");
        }
    }
    let unknown = Err(Reason::UnknownProtocol);
    assert_eq!(parse_echo(&packet(GUEST4, PEER4, 1, &[0, 0, 0, 0, 0, 0, 0, 0])), unknown);
    assert_eq!(parse_echo(&packet(GUEST4, PEER4, 58, &[128, 0, 0, 0, 0, 0, 0, 0])), unknown);
    assert_eq!(parse_echo(&packet(GUEST6, PEER6, 1, &[8, 0, 0, 0, 0, 0, 0, 0])), unknown);
    assert_eq!(parse_echo(&packet(GUEST6, PEER6, 58, &[129, 0, 0, 0, 0, 0, 0, 0])), unknown);
    assert_eq!(parse_echo(&udp(false, b"")), unknown);
    let fragment = packet(GUEST6, PEER6, 44, &[58, 0, 0, 1, 0, 0, 0, 1, 128, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse_echo(&fragment), Err(Reason::Fragment));
}

#[test]
fn replies_keep_identifier_sequence_payload_and_ttl() {
    let link = test_link();
    for (guest, peer) in [(GUEST4, PEER4), (GUEST6, PEER6)] {
        let reply = EchoReply {
            from: ip(peer),
            guest: ip(guest),
            id: 0x1234,
            sequence: 9,
            payload: b"data",
            ttl: 57,
            class: 0xb9,
        };
        let frame = echo_reply_frame(&link, link.guest_mac.unwrap(), &reply).unwrap();
        let class = if ip(peer).is_ipv4() { frame[15] } else { (frame[14] << 4) | (frame[15] >> 4) };
        assert_eq!(class, 0xb9);
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let message = sliced.transport.unwrap();
        match (sliced.net.unwrap(), message) {
            (etherparse::NetSlice::Ipv4(n), etherparse::TransportSlice::Icmpv4(m)) => {
                let h = n.header();
                assert_eq!((IpAddr::from(h.source_addr()), h.ttl()), (ip(peer), 57));
                assert_eq!(IpAddr::from(h.destination_addr()), ip(guest));
                assert_eq!(h.header_checksum(), h.to_header().calc_header_checksum());
                let etherparse::Icmpv4Type::EchoReply(e) = m.icmp_type() else { panic!("no reply") };
                assert_eq!((e.id, e.seq, m.payload()), (0x1234, 9, &b"data"[..]));
                assert!(Icmpv4Packet::new_checked(m.slice()).unwrap().verify_checksum());
            }
            (etherparse::NetSlice::Ipv6(n), etherparse::TransportSlice::Icmpv6(m)) => {
                let h = n.header();
                assert_eq!((IpAddr::from(h.source_addr()), h.hop_limit()), (ip(peer), 57));
                let etherparse::Icmpv6Type::EchoReply(e) = m.icmp_type() else { panic!("no reply") };
                assert_eq!((e.id, e.seq, m.payload()), (0x1234, 9, &b"data"[..]));
                assert!(m.is_checksum_valid(h.source(), h.destination()));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn errors_are_limited_to_a_rate_after_a_burst() {
    let mut limiter = ErrorLimiter::new(10, 5);
    let allowed = |l: &mut ErrorLimiter, now| (0..100).filter(|_| l.allow(now)).count();
    let start = Time::from_millis(1_000_000);
    assert_eq!(allowed(&mut limiter, start), 5);
    assert_eq!(allowed(&mut limiter, start + Duration::from_millis(99)), 0);
    assert_eq!(allowed(&mut limiter, start + Duration::from_millis(100)), 1);
    assert_eq!(allowed(&mut limiter, start), 0, "time never runs backwards");
    assert_eq!(allowed(&mut limiter, start + Duration::from_secs(3600)), 5);
    let hour = (0..3_600_000u64)
        .step_by(7)
        .filter(|ms| limiter.allow(start + Duration::from_secs(4000) + Duration::from_millis(*ms)));
    let hour = hour.count();
    assert!((36_000..=36_005).contains(&hour), "{hour}");
    assert!(!ErrorLimiter::new(0, 0).allow(start));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_packet_whatsoever_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>(), ext in 0..6usize,
        kind in any::<u8>(), code in any::<u8>(), info in any::<u32>(),
    ) {
        let link = test_link();
        if let Some(b) = bytes.first_mut() {
            *b = if v6 { 0x60 } else { 0x45 };
        }
        if v6 && bytes.len() > 40 {
            bytes[4] = 0;
            bytes[6] = [0, 43, 44, 60, 58, 17][ext];
        }
        if !v6 && bytes.len() > 20 {
            bytes[9] = [1, 17, 6][ext % 3];
            Ipv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
        }
        let _ = parse_echo(&bytes);
        for from in [PEER4, PEER6] {
            let kind = IcmpError::Raw { kind: kind % 16, code, info };
            if let Some(frame) = frame_for(&link, kind, from, &bytes) {
                prop_assert!(frame.len() <= 14 + 1280);
                prop_assert!(SlicedPacket::from_ethernet(&frame).is_ok());
            }
        }
    }

    #[test]
    fn echo_goes_through_unchanged(
        payload in prop::collection::vec(any::<u8>(), 0..3000),
        id in any::<u16>(),
        seq in any::<u16>(),
        v6 in any::<bool>(),
    ) {
        let (guest, peer) = if v6 { (GUEST6, PEER6) } else { (GUEST4, PEER4) };
        let packet = quote_echo(ip(guest), ip(peer), id, seq, &payload).unwrap();
        let request = parse_echo(&packet).unwrap();
        prop_assert_eq!((request.id, request.sequence), (id, seq));
        prop_assert_eq!(&packet[request.payload], &payload[..]);
    }
}
