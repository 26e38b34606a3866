use etherparse::PacketBuilder;

use super::*;
use crate::net::test_link;
use crate::wire::ETH_LEN;

const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 9]);

fn guest_mac(link: &Link) -> MacAddr {
    link.guest_mac.unwrap()
}

/// What is said of a packet that `write` builds between two addresses.
fn judge(
    link: &Link,
    from: &str,
    to: &str,
    write: impl FnOnce(etherparse::PacketBuilderStep<etherparse::IpHeaders>, &mut Vec<u8>),
) -> Result<(), Reason> {
    let ethernet = PacketBuilder::ethernet2([2; 6], [2; 6]);
    let ip = match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 255),
        _ => unreachable!("one family"),
    };
    let mut frame = Vec::new();
    write(ip, &mut frame);
    let packet = &frame[ETH_LEN..];
    let ip = Ip::parse(packet, packet.len()).unwrap();
    check_ip(link, &ip, &packet[ip.header_len..])
}

fn udp(link: &Link, from: &str, to: &str, ports: (u16, u16)) -> Result<(), Reason> {
    judge(link, from, to, |ip, frame| ip.udp(ports.0, ports.1).write(frame, b"x").unwrap())
}

fn icmp6(link: &Link, from: &str, kind: u8, body: &[u8]) -> Result<(), Reason> {
    judge(link, from, "ff02::1", |ip, frame| ip.icmpv6_raw(kind, 0, [0; 4]).write(frame, body).unwrap())
}

#[test]
fn only_the_assigned_address_sends_ipv4() {
    let link = test_link();
    assert_eq!(udp(&link, "10.9.0.2", "192.0.2.1", (6000, 53)), Ok(()));
    for other in
        ["10.9.0.3", "10.9.0.1", "127.0.0.1", "0.0.0.0", "169.254.3.4", "224.0.0.1", "255.255.255.255"]
    {
        assert_eq!(udp(&link, other, "192.0.2.1", (6000, 53)), Err(Reason::Spoofed), "{other}");
    }
    let only_v6 = Link { v4: None, ..link };
    assert_eq!(udp(&only_v6, "10.9.0.2", "192.0.2.1", (6000, 53)), Err(Reason::Spoofed));
}

#[test]
fn a_guest_without_an_address_or_with_a_former_one_asks_by_dhcp() {
    let link = test_link();
    for from in ["0.0.0.0", "10.9.0.2", "10.1.2.3"] {
        assert_eq!(udp(&link, from, "255.255.255.255", (68, 67)), Ok(()), "{from}");
    }
    for from in ["127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        assert_eq!(udp(&link, from, "255.255.255.255", (68, 67)), Err(Reason::Spoofed), "{from}");
    }
    assert_eq!(udp(&link, "0.0.0.0", "255.255.255.255", (68, 68)), Err(Reason::Spoofed));
}

#[test]
fn only_the_assigned_and_link_local_addresses_send_ipv6() {
    let link = test_link();
    let router = link.v6.as_ref().unwrap().gateway.to_string();
    for own in ["fd00:9::2", "fe80::1", "fe80::5054:ff:fe11:2233"] {
        assert_eq!(udp(&link, own, "2001:db8::1", (6000, 53)), Ok(()), "{own}");
    }
    for other in ["fd00:9::3", "::", "::1", "::6", "ff02::1", "2001:db8::2", "::ffff:10.9.0.2", &router] {
        assert_eq!(udp(&link, other, "2001:db8::1", (6000, 53)), Err(Reason::Spoofed), "{other}");
    }
}

#[test]
fn a_guest_without_ipv6_still_has_link_local_addresses() {
    let link = Link { v6: None, ..test_link() };
    assert_eq!(icmp6(&link, "fe80::1", 133, &[]), Ok(()));
    assert_eq!(icmp6(&link, "::", 135, &[0; 16]), Ok(()));
    assert_eq!(icmp6(&link, "fd00:9::2", 133, &[]), Err(Reason::Spoofed));
    assert_eq!(icmp6(&link, &link.mac.link_local().to_string(), 133, &[]), Err(Reason::Spoofed));
}

#[test]
fn neighbour_discovery_speaks_for_the_guest_only() {
    let link = test_link();
    let target = |a: &str| a.parse::<std::net::Ipv6Addr>().unwrap().octets();
    // A solicitation may ask for any address; one from the unspecified address looks for a duplicate.
    for from in ["fd00:9::2", "fe80::1", "::"] {
        assert_eq!(icmp6(&link, from, 135, &target("fd00:9::77")), Ok(()), "{from}");
    }
    assert_eq!(icmp6(&link, "fd00:9::3", 135, &target("fd00:9::77")), Err(Reason::Spoofed));
    for own in ["fd00:9::2", "fe80::1"] {
        assert_eq!(icmp6(&link, "fd00:9::2", 136, &target(own)), Ok(()), "{own}");
    }
    let router = link.v6.as_ref().unwrap().gateway.to_string();
    for other in ["fd00:9::1", "2001:db8::1", &router] {
        assert_eq!(icmp6(&link, "fe80::1", 136, &target(other)), Err(Reason::Spoofed), "{other}");
    }
    assert_eq!(icmp6(&link, "fe80::1", 136, &[]), Err(Reason::Spoofed), "cut short");
}

#[test]
fn frames_come_from_the_guest_and_go_to_netd_or_a_group() {
    let link = test_link();
    let guest = guest_mac(&link);
    let eth = |src, dst| Eth { src, dst, ethertype: 0x0800 };
    for (src, dst, expected) in [
        (guest, link.mac, Ok(())),
        (guest, MacAddr::BROADCAST, Ok(())),
        (guest, MacAddr([0x33, 0x33, 0, 0, 0, 1]), Ok(())),
        (guest, OTHER, Err(Reason::Misdirected)),
        (guest, guest, Err(Reason::Misdirected)),
        (OTHER, link.mac, Err(Reason::Spoofed)),
        (link.mac, link.mac, Err(Reason::Spoofed)),
        (MacAddr::BROADCAST, link.mac, Err(Reason::Malformed)),
    ] {
        assert_eq!(check_ethernet(&link, Some(guest), &eth(src, dst)), expected, "{src} to {dst}");
    }
    assert_eq!(check_ethernet(&link, None, &eth(OTHER, link.mac)), Ok(()), "not known yet");
}

#[test]
fn arp_speaks_for_the_guest_only() {
    let link = test_link();
    let guest = guest_mac(&link);
    let packet = |mac: MacAddr, ip: [u8; 4]| [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac.0, &ip, &[0; 10]].concat();
    assert_eq!(check_arp(&link, guest, &packet(guest, [10, 9, 0, 2])), Ok(()));
    assert_eq!(check_arp(&link, guest, &packet(guest, [0; 4])), Ok(()), "a probe");
    assert_eq!(check_arp(&link, guest, &packet(OTHER, [10, 9, 0, 2])), Err(Reason::Spoofed));
    assert_eq!(check_arp(&link, guest, &packet(guest, [10, 9, 0, 1])), Err(Reason::Spoofed));
    assert_eq!(check_arp(&link, guest, &[0; 17]), Err(Reason::Malformed));
}

#[test]
fn what_stands_in_a_later_fragment_is_no_advertisement() {
    let link = test_link();
    let fragment = |offset: u16, more: bool| {
        let word = (offset & 0xfff8) | u16::from(more);
        let header = [&[58, 0][..], &word.to_be_bytes(), &[0, 0, 0, 7]].concat();
        // What begins as an advertisement for an address of another host.
        let piece = [&[NEIGHBOR_ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0][..], &[0xfd; 16]].concat();
        let mut packet = vec![0x60, 0, 0, 0, 0, (header.len() + piece.len()) as u8, 44, 64];
        packet.extend("fd00:9::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend("fd00:9::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend([header, piece].concat());
        let ip = Ip::parse(&packet, packet.len()).unwrap();
        check_ip(&link, &ip, &packet[ip.header_len..])
    };
    assert_eq!([fragment(1232, true), fragment(1232, false), fragment(0, true)], [Ok(()); 3]);
    assert_eq!(icmp6(&link, "fd00:9::2", NEIGHBOR_ADVERTISEMENT, &[0xfd; 16]), Err(Reason::Spoofed));
}
