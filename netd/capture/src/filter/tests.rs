use super::*;
use crate::Direction::{Inbound, Outbound};

/// TCP from the guest 10.0.2.2:40000 to 192.0.2.1:443.
fn tcp4() -> Headers {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 2, 2], [192, 0, 2, 1], 64)
        .tcp(40_000, 443, 1, 1000)
        .syn();
    headers(|out| builder.write(out, &[]).unwrap())
}

/// UDP to the guest fd00::2:5353 from 2001:db8::1:53.
fn udp6() -> Headers {
    let address = |a: &str| a.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv6(address("2001:db8::1"), address("fd00::2"), 64)
        .udp(53, 5353);
    headers(|out| builder.write(out, b"answer").unwrap())
}

fn ping() -> Headers {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 2, 2], [192, 0, 2, 1], 64)
        .icmpv4_echo_request(1, 1);
    headers(|out| builder.write(out, &[0; 100]).unwrap())
}

fn arp() -> Headers {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 2, 10, 0, 2, 2, 0, 0, 0, 0, 0, 0, 10, 0, 2, 1]);
    Headers::parse(&frame, frame.len())
}

fn headers(write: impl FnOnce(&mut Vec<u8>)) -> Headers {
    let mut frame = Vec::new();
    write(&mut frame);
    Headers::parse(&frame, frame.len())
}

/// Which of the four frames an expression lets through: t, u, p and a.
fn matched(text: &str) -> String {
    let filter: Filter = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let all =
        [('t', tcp4(), Outbound), ('u', udp6(), Inbound), ('p', ping(), Outbound), ('a', arp(), Outbound)];
    all.into_iter().filter(|(_, h, d)| filter.matches(h, *d)).map(|(name, ..)| name).collect()
}

#[test]
fn primitives_match_what_pcap_filter_says() {
    for (text, expected) in [
        ("", "tupa"),
        ("  ", "tupa"),
        ("ip", "tp"),
        ("ip6", "u"),
        ("arp", "a"),
        ("tcp", "t"),
        ("udp", "u"),
        ("icmp", "p"),
        ("icmp6", ""),
        ("host 10.0.2.2", "tpa"),
        ("10.0.2.1", "a"),
        ("src host 10.0.2.2", "tpa"),
        ("dst 192.0.2.1", "tp"),
        ("src or dst host 192.0.2.1", "tp"),
        ("src and dst net 0.0.0.0/0", "tpa"),
        ("arp host 10.0.2.1", "a"),
        ("ip host 10.0.2.2", "tp"),
        ("ip6 src host 2001:db8::1", "u"),
        ("net 192.0.2.0/24", "tp"),
        ("net 2001:db8::/32", "u"),
        ("net 10.0.2.2", "tpa"),
        ("port 443", "t"),
        ("src port 443", ""),
        ("port 443 or 53", "tu"),
        ("udp port 443", ""),
        ("tcp dst port 443", "t"),
        ("portrange 440-450", "t"),
        ("udp portrange 0-65535", "u"),
        ("ether host 02:00:00:00:00:01", "tup"),
        ("ether src 02:00:00:00:00:01", "u"),
        ("ether broadcast", "a"),
        ("multicast", "a"),
        ("inbound", "u"),
        ("outbound", "tpa"),
        ("less 60", "ta"),
        ("greater 100", "p"),
        ("ip proto 1", "p"),
        ("ip6 proto \\udp", "u"),
        ("proto tcp", "t"),
        ("tcp[tcpflags] & (tcp-syn|tcp-rst) != 0", "t"),
        ("tcp[tcpflags] & tcp-ack != 0", ""),
        ("tcp[13] == 0x02", "t"),
        ("tcp[tcpflags]=tcp-syn", "t"),
    ] {
        assert_eq!(matched(text), expected, "{text}");
    }
}

#[test]
fn operators_have_the_rank_that_tcpdump_gives_them() {
    // Equal rank from the left: (icmp or tcp) and port 443.
    assert_eq!(matched("icmp or tcp and port 443"), "t");
    assert_eq!(matched("icmp or (tcp and port 443)"), "tp");
    assert_eq!(matched("not tcp and ip"), "p");
    assert_eq!(matched("!(tcp || udp) && !arp"), "p");
    assert_eq!(matched("not not tcp"), "t");
    // An identifier by itself has the qualifiers before it, through a negation as well.
    assert_eq!(matched("dst port 443 and not 53"), "t");
    assert_eq!(matched("src host 10.0.2.2 and not 192.0.2.1"), "tpa");
}

#[test]
fn what_is_not_understood_is_told_with_its_place() {
    for (text, part) in [
        ("hots 10.0.0.1", "column 1: 'hots' is not allowed; host, net,"),
        ("host example.org", "column 6: 'example.org' is not allowed; an IP address (names"),
        ("host", "column 5: an IP address (names are not looked up) is missing"),
        ("port http", "column 6: 'http' is not allowed; a port from 0 to 65535"),
        ("port 65536", "'65536' is not allowed"),
        ("net 10.0.0.1/8", "column 5: '10.0.0.1/8' has bits beyond its length; 10.0.0.0/8 has not"),
        ("net 10", "a network such as 10.0.0.0/8"),
        ("portrange 9-8", "a range of ports"),
        ("tcp host 10.0.0.1", "host and net go with ip"),
        ("icmp host 10.0.0.1", "'icmp and host ...'"),
        ("ip port 80", "port goes with tcp or udp"),
        ("ip host ::1", "an IPv4 address is"),
        ("ether", "host, src, dst"),
        ("tcp and", "column 8: a primitive"),
        ("tcp udp", "column 5: 'udp' is not expected"),
        ("(tcp", "column 5: ')', and, or or is missing"),
        ("tcp)", "column 4: there is no '('"),
        ("tcp[0] = 1", "column 5: '0' is not allowed; tcpflags is"),
        ("tcp[tcpflags] & tcp-foo != 0", "'tcp-foo' is not allowed; tcp-syn"),
        ("host 10.0.0.1 %", "column 15: the character '%'"),
        ("port ä", "column 6: the character 'ä'"),
        ("vlan 3", "'vlan' is not allowed"),
        ("less x", "a number of bytes"),
    ] {
        let error = text.parse::<Filter>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn expressions_are_bounded() {
    assert!("(".repeat(5000).parse::<Filter>().unwrap_err().to_string().contains("at most 4096"));
    assert!("(".repeat(100).parse::<Filter>().unwrap_err().to_string().contains("at most 64 levels"));
    assert!("not ".repeat(100).parse::<Filter>().is_err());
    let chain = vec!["tcp"; 580].join(" or ");
    assert_eq!(matched(&chain), "t");
}

#[test]
fn a_later_fragment_has_no_ports_and_a_torn_frame_no_addresses() {
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 2, 2], [192, 0, 2, 1], 64)
        .udp(1, 2)
        .write(&mut frame, &[1; 8])
        .unwrap();
    frame[14 + 7] = 1;
    let h = Headers::parse(&frame, frame.len());
    assert_eq!((h.protocol, h.ports), (Some(17), None));
    for len in 0..frame.len() {
        let h = Headers::parse(&frame[..len], len);
        assert_eq!(h.ip.is_some(), len >= 34, "{len}");
    }
}

proptest::proptest! {
    #[test]
    fn no_expression_and_no_frame_makes_it_panic(text in "[ -~]{0,60}", frame in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
        if let Ok(filter) = text.parse::<Filter>() {
            filter.matches(&Headers::parse(&frame, frame.len()), Inbound);
        }
    }
}
