//! Facts about neighbour and router discovery, and what no frame whatsoever may do.

use std::net::Ipv6Addr;
use std::time::Duration;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
    NdiscRouterFlags, RawHardwareAddress,
};

use super::frame::{self, MacPair};
use super::{Handled, Services};
use crate::counters::Reason;
use crate::net::{Link, Route, test_link};
use crate::time::Time;
use crate::wire::MacAddr;

const GUEST_LL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe11, 0x2233);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

fn a(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}

fn group_of(target: Ipv6Addr) -> Ipv6Addr {
    let o = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

/// A frame of the guest with an ICMPv6 message.
fn icmp(from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let link = test_link();
    let ends = MacPair { from: link.guest_mac.unwrap(), to: link.mac };
    frame::icmp6(ends, (from, to), hop_limit, message.to_vec()).unwrap()
}

fn solicitation(target: Ipv6Addr, lladdr: bool) -> Vec<u8> {
    let mut ns = vec![135, 0, 0, 0, 0, 0, 0, 0];
    ns.extend_from_slice(&target.octets());
    if lladdr {
        ns.extend_from_slice(&[1, 1, 0x52, 0x54, 0, 0x11, 0x22, 0x33]);
    }
    ns
}

fn handle(link: &Link, frame: &[u8]) -> (Handled, Vec<Vec<u8>>) {
    let mut out = vec![];
    let handled = Services::new().handle(frame, link, Time::ZERO, &mut out);
    (handled, out)
}

/// Checks an ICMPv6 frame of netd's and gives its addresses and the message.
fn open(frame: &[u8]) -> (MacAddr, Ipv6Addr, Ipv6Addr, Vec<u8>) {
    let eth = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(MacAddr(eth.src_addr().0), test_link().mac);
    let ip = Ipv6Packet::new_checked(eth.payload()).unwrap();
    assert_eq!((ip.version(), ip.next_header(), ip.hop_limit()), (6, IpProtocol::Icmpv6, 255));
    assert_eq!(ip.total_len(), eth.payload().len());
    let message = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    assert!(message.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
    (MacAddr(eth.dst_addr().0), ip.src_addr(), ip.dst_addr(), ip.payload().to_vec())
}

/// Options as (type, bytes after type and length).
fn options(message: &[u8], header: usize) -> Vec<(u8, Vec<u8>)> {
    let mut rest = &message[header..];
    let mut found = vec![];
    while !rest.is_empty() {
        let len = usize::from(rest[1]) * 8;
        found.push((rest[0], rest[2..len].to_vec()));
        rest = &rest[len..];
    }
    found
}

#[test]
fn every_neighbour_is_netd_but_the_guest_itself() {
    let mut link = test_link();
    let via = Some(a("fe80::77"));
    link.v6.as_mut().unwrap().routes = vec![Route { to: "fd00:1::/32".parse().unwrap(), via }];
    let gateway = link.v6.as_ref().unwrap().gateway;
    let guest = a("fd00:9::2");
    for (from, target, answered) in [
        (GUEST_LL, gateway, true),
        (guest, a("fd00:9::99"), true),
        (guest, a("2001:db8::1"), true),
        (guest, a("fe80::77"), true),
        (guest, guest, false),
        (GUEST_LL, guest, false),
        (GUEST_LL, GUEST_LL, false),
        (GUEST_LL, a("fe80::1234"), false),
        (Ipv6Addr::UNSPECIFIED, guest, false),
        (Ipv6Addr::UNSPECIFIED, GUEST_LL, false),
        (Ipv6Addr::UNSPECIFIED, a("fd00:9::99"), false),
        (Ipv6Addr::UNSPECIFIED, gateway, true),
    ] {
        let probe = from.is_unspecified();
        let ns = solicitation(target, !probe);
        let (handled, out) = handle(&link, &icmp(from, group_of(target), 255, &ns));
        assert_eq!((handled, out.len()), (Handled::Consumed, usize::from(answered)), "{from} asks {target}");
        let Some(na) = out.first() else { continue };
        let (mac, source, to, message) = open(na);
        let icmp = Icmpv6Packet::new_checked(&message[..]).unwrap();
        let Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })) =
            Icmpv6Repr::parse(&source, &to, &icmp, &ChecksumCapabilities::default())
        else {
            panic!("not an advertisement: {message:?}")
        };
        assert_eq!((source, target_addr), (target, target));
        assert_eq!(lladdr, Some(RawHardwareAddress::from_bytes(&link.mac.0)));
        let mut expected = NdiscNeighborFlags::OVERRIDE;
        expected.set(NdiscNeighborFlags::SOLICITED, !probe);
        expected.set(NdiscNeighborFlags::ROUTER, target == gateway);
        assert_eq!(flags, expected, "{target}");
        let all_nodes = (MacAddr([0x33, 0x33, 0, 0, 0, 1]), a("ff02::1"));
        assert_eq!((mac, to), if probe { all_nodes } else { (link.guest_mac.unwrap(), from) });
    }
}

#[test]
fn solicitations_are_validated() {
    let link = test_link();
    let gateway = link.v6.as_ref().unwrap().gateway;
    let good = solicitation(gateway, true);
    let probe = solicitation(gateway, false);
    let group = group_of(gateway);
    let any = Ipv6Addr::UNSPECIFIED;
    let mut code = good.clone();
    code[1] = 1;
    let mut empty_option = good.clone();
    empty_option[25] = 0;
    let mut long_option = good.clone();
    long_option[25] = 2;
    let malformed = Handled::Dropped(Reason::Malformed);
    for (why, frame) in [
        ("hop limit", icmp(GUEST_LL, group, 254, &good)),
        ("code", icmp(GUEST_LL, group, 255, &code)),
        ("length", icmp(GUEST_LL, group, 255, &good[..23])),
        ("length", icmp(GUEST_LL, group, 255, &good[..7])),
        ("an option of no length", icmp(GUEST_LL, group, 255, &empty_option)),
        ("an option too long", icmp(GUEST_LL, group, 255, &long_option)),
        ("half an option", icmp(GUEST_LL, group, 255, &good[..28])),
        ("a group as target", icmp(GUEST_LL, group, 255, &solicitation(a("ff02::1"), true))),
        ("a probe to a unicast address", icmp(any, gateway, 255, &probe)),
        ("a probe with an Ethernet address", icmp(any, group, 255, &good)),
        ("a solicitation from the unspecified address with an Ethernet address", {
            icmp(any, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1])
        }),
        ("a short router solicitation", icmp(GUEST_LL, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0])),
    ] {
        assert_eq!(handle(&link, &frame), (malformed, vec![]), "{why}");
    }
    let mut frame = icmp(GUEST_LL, group, 255, &good);
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(handle(&link, &frame), (Handled::Dropped(Reason::Checksum), vec![]));
}

#[test]
fn a_router_solicitation_is_answered_with_all_the_guest_needs() {
    let mut link = test_link();
    link.v6.as_mut().unwrap().routes = vec![
        Route { to: "2001:db8:7::/48".parse().unwrap(), via: Some(a("fe80::9")) },
        Route { to: "2001:db8:8::1/128".parse().unwrap(), via: Some(a("fe80::9")) },
        Route { to: "fd00:77::/64".parse().unwrap(), via: None },
        Route { to: "::/0".parse().unwrap(), via: Some(a("fe80::9")) },
    ];
    let rs = [133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0x52, 0x54, 0, 0x11, 0x22, 0x33];
    let (handled, out) = handle(&link, &icmp(GUEST_LL, ALL_ROUTERS, 255, &rs));
    assert_eq!((handled, out.len()), (Handled::Consumed, 1));
    let (mac, from, to, ra) = open(&out[0]);
    assert_eq!((mac, from, to), (link.guest_mac.unwrap(), link.v6.as_ref().unwrap().gateway, GUEST_LL));
    let packet = Icmpv6Packet::new_checked(&ra[..]).unwrap();
    assert_eq!(packet.current_hop_limit(), 64);
    assert_eq!(packet.router_flags(), NdiscRouterFlags::MANAGED | NdiscRouterFlags::OTHER);
    assert_eq!(packet.router_lifetime().secs(), 1800);
    let life = [0, 0, 7, 8];
    let prefix = |net: &str| {
        // The prefix is on the link (L) and not for addresses (no A): those come from DHCPv6.
        [&[64, 0x80], &life[..], &life, &[0; 4], &a(net).octets()].concat()
    };
    let mut names = b"\x07default\x03svc\x07cluster\x05local\x00\x03svc\x07cluster\x05local\x00".to_vec();
    names.resize(48, 0);
    let expected = vec![
        (1, link.mac.0.to_vec()),
        (5, vec![0, 0, 0, 0, 5, 220]),
        (3, prefix("fd00:9::")),
        (3, prefix("fd00:77::")),
        (25, [&[0, 0], &life[..], &a("fd00:96::a").octets()].concat()),
        (31, [&[0, 0], &life[..], &names].concat()),
        (24, [&[48, 0], &life[..], &a("2001:db8:7::").octets()[..8]].concat()),
        (24, [&[128, 0], &life[..], &a("2001:db8:8::1").octets()].concat()),
    ];
    assert_eq!(options(&ra, 16), expected);
}

#[test]
fn a_single_address_has_no_prefix_on_the_link() {
    let mut link = test_link();
    link.v6.as_mut().unwrap().prefix_len = 128;
    link.dns.clear();
    link.search.clear();
    let (_, out) = handle(&link, &icmp(GUEST_LL, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0]));
    let (_, _, _, ra) = open(&out[0]);
    let kinds: Vec<u8> = options(&ra, 16).into_iter().map(|(k, _)| k).collect();
    assert_eq!(kinds, [1, 5]);
}

#[test]
fn an_advertisement_fits_every_link_however_much_there_is_to_tell() {
    let mut link = test_link();
    link.search = (0..100).map(|i| format!("subdomain-number-{i:03}.example.org")).collect();
    link.dns = (0..100).map(|i| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, i).into()).collect();
    let (_, out) = handle(&link, &icmp(GUEST_LL, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0]));
    assert!(out[0].len() <= 14 + 1280);
    let (_, _, _, ra) = open(&out[0]);
    let kinds: Vec<u8> = options(&ra, 16).into_iter().map(|(k, _)| k).collect();
    assert_eq!(kinds, [1, 5, 3, 25, 31]);
}

#[test]
fn unsolicited_advertisements_keep_their_intervals() {
    let link = test_link();
    let mut services = Services::new();
    assert_eq!(services.poll_at(), None);
    let mut now = Time::from_millis(5000);
    services.link_up(now);
    let mut sent = vec![];
    for _ in 0..40 {
        now = services.poll_at().unwrap();
        let mut out = vec![];
        services.poll(now, &link, &mut out);
        assert_eq!(out.len(), 1);
        let (mac, _, to, _) = open(&out[0]);
        assert_eq!((mac, to), (MacAddr([0x33, 0x33, 0, 0, 0, 1]), a("ff02::1")));
        services.poll(now, &link, &mut out);
        assert_eq!(out.len(), 1, "once is enough");
        sent.push(now);
    }
    assert_eq!(sent[0], Time::from_millis(5000));
    for (i, pair) in sent.windows(2).enumerate() {
        let gap = pair[1].since(pair[0]);
        let allowed = if i < 3 { 3..=16 } else { 200..=600 };
        assert!(allowed.contains(&gap.as_secs()), "{i}: {gap:?}");
    }
}

#[test]
fn solicitations_without_an_address_get_one_advertisement_in_three_seconds() {
    let link = test_link();
    let mut services = Services::new();
    let mut out = vec![];
    let rs = icmp(Ipv6Addr::UNSPECIFIED, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
    let start = Time::from_millis(1000);
    for i in 0..100 {
        let now = start + Duration::from_millis(i);
        assert_eq!(services.handle(&rs, &link, now, &mut out), Handled::Consumed);
    }
    assert_eq!(out.len(), 1);
    assert_eq!(services.poll_at(), Some(start + Duration::from_secs(3)));
    services.poll(start + Duration::from_secs(3), &link, &mut out);
    assert_eq!(out.len(), 2);
}

#[test]
fn what_is_gone_is_withdrawn() {
    let mut link = test_link();
    let mut services = Services::new();
    let mut out = vec![];
    services.link_up(Time::ZERO);
    services.poll(Time::ZERO, &link, &mut out);
    link.v6.as_mut().unwrap().guest = a("fd00:a::2");
    link.dns = vec!["fd00:96::b".parse().unwrap()];
    services.link_up(Time::from_millis(1));
    let mut lifetimes = vec![];
    for _ in 0..4 {
        let now = services.poll_at().unwrap();
        out.clear();
        services.poll(now, &link, &mut out);
        let (_, _, _, ra) = open(&out[0]);
        let found: Vec<(u8, u8)> = options(&ra, 16)
            .into_iter()
            .filter(|(k, _)| [3, 25].contains(k))
            .map(|(k, v)| (k, v[5]))
            .collect();
        lifetimes.push(found);
    }
    let (kept, gone) = ([(3, 8), (25, 8)], [(3, 0), (25, 0)]);
    let both = [kept, gone].concat();
    assert_eq!(lifetimes, [both.clone(), both.clone(), both, kept.to_vec()]);
}

#[test]
fn without_ipv6_netd_does_not_answer() {
    let link = Link { v6: None, ..test_link() };
    let rs = icmp(GUEST_LL, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(handle(&link, &rs), (Handled::Consumed, vec![]));
    let mut services = Services::new();
    let mut out = vec![];
    services.link_up(Time::ZERO);
    services.poll(Time::ZERO, &link, &mut out);
    assert_eq!((out.len(), services.poll_at()), (0, None));
}

#[test]
fn group_membership_is_taken_silently_and_echo_is_not_ours() {
    let link = test_link();
    let gateway = link.v6.as_ref().unwrap().gateway;
    let ends = MacPair { from: link.guest_mac.unwrap(), to: link.mac };
    let report = [58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0];
    let mld = frame::ipv6(ends, (GUEST_LL, a("ff02::16")), IpProtocol::HopByHop, 1, &report).unwrap();
    assert_eq!(handle(&link, &mld), (Handled::Consumed, vec![]));
    let na = icmp(GUEST_LL, gateway, 255, &[136, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(handle(&link, &na), (Handled::Consumed, vec![]));
    let echo = icmp(GUEST_LL, gateway, 64, &[128, 0, 0, 0, 0, 1, 0, 1]);
    assert_eq!(handle(&link, &echo), (Handled::NotMine, vec![]));
}

#[test]
fn the_guest_is_known_by_what_it_sends() {
    let mut services = Services::new();
    let link = test_link();
    assert_eq!(services.guest_mac(), None);
    services.learn(&icmp(GUEST_LL, ALL_ROUTERS, 255, &[133, 0, 0, 0, 0, 0, 0, 0]));
    services.learn(&[0xff; 60]);
    services.learn(&[]);
    assert_eq!(services.guest_mac(), link.guest_mac);
    assert_eq!(services.seen(), [std::net::IpAddr::from(GUEST_LL)]);
    for i in 0..100 {
        services.learn(&icmp(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i), ALL_ROUTERS, 255, &[133, 0, 0, 0]));
    }
    assert_eq!(services.seen().len(), 16);
    assert_eq!(services.seen().last(), Some(&a("fd00::63").into()));
}

#[test]
fn a_silent_guest_can_be_asked_for_its_address() {
    let link = test_link();
    let mut out = vec![];
    Services::solicit(&link, &mut out);
    assert_eq!(out.len(), 2);
    assert_eq!(out[0][..6], [0xff; 6]);
    assert_eq!(out[0][38..42], [10, 9, 0, 2]);
    let (mac, from, to, ns) = open(&out[1]);
    assert_eq!(mac, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
    assert_eq!((from, to), (link.v6.as_ref().unwrap().gateway, a("ff02::1:ff00:2")));
    assert_eq!(ns[8..24], a("fd00:9::2").octets());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_whatsoever_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..4usize) {
        let link = test_link();
        let mut frame = bytes;
        // Let most of them through the first doors.
        if frame.len() > 24 && kind < 3 {
            let ethertype = [[0x08, 0x06], [0x08, 0x00], [0x86, 0xdd]][kind];
            frame[12..14].copy_from_slice(&ethertype);
            frame[14] = [0, 0x45, 0x60][kind];
            if kind > 0 && frame[16] & 1 == 0 {
                frame[if kind == 1 { 23 } else { 20 }] = if kind == 1 { 17 } else { 58 };
            }
        }
        let mut services = Services::new();
        let mut out = vec![];
        services.learn(&frame);
        services.handle(&frame, &link, Time::ZERO, &mut out);
        prop_assert!(out.len() <= 1);
    }

    #[test]
    fn no_options_whatsoever_panic(
        message in prop::collection::vec(any::<u8>(), 0..600),
        kind in 0..3usize,
        unspecified in any::<bool>(),
    ) {
        let link = test_link();
        let ends = MacPair { from: link.guest_mac.unwrap(), to: link.mac };
        let from = if unspecified { Ipv6Addr::UNSPECIFIED } else { GUEST_LL };
        let mut message = message;
        let frame = if kind == 0 {
            // A DHCPv4 message with random options behind a valid header.
            let mut dhcp = vec![0; 240];
            dhcp[..3].copy_from_slice(&[1, 1, 6]);
            dhcp[28..34].copy_from_slice(&link.guest_mac.unwrap().0);
            dhcp[236..].copy_from_slice(&[99, 130, 83, 99]);
            dhcp.append(&mut message);
            let (from, to) = ("0.0.0.0:68".parse().unwrap(), "255.255.255.255:67".parse().unwrap());
            frame::udp4(ends, from, to, &dhcp)
        } else {
            if message.len() > 2 {
                message[..2].copy_from_slice(&[132 + u8::try_from(kind).unwrap(), 0]);
            }
            frame::icmp6(ends, (from, ALL_ROUTERS), 255, message)
        };
        let mut out = vec![];
        if let Some(frame) = frame {
            Services::new().handle(&frame, &link, Time::ZERO, &mut out);
        }
        for answer in &out {
            prop_assert!(answer.len() <= 14 + 1500);
            prop_assert!(etherparse::SlicedPacket::from_ethernet(answer).is_ok());
        }
    }
}
