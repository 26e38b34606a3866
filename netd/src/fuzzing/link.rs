//! The link of every target, and what all frames for the guest have in common.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::{Link, LinkV4, LinkV6, Mode};
use crate::wire::{ETH_LEN, ETHERTYPE_ARP, Eth, Ip, MacAddr, fold, protocol, pseudo_header, sum};

pub(super) const GUEST_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x11, 0x22, 0x33]);
pub(super) const NETD_MAC: MacAddr = MacAddr([2, 0, 0x5e, 0x10, 0, 1]);
pub(super) const GUEST4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(super) const GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Leads to 127.0.0.1.
pub(super) const LOOP4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);
/// Leads to ::1.
pub(super) const LOOP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, 1);

/// A link with both families; `learned`: no address of the guest is configured.
pub(super) fn link(learned: bool) -> Link {
    Link {
        mode: Mode::Passthrough,
        mac: NETD_MAC,
        guest_mac: (!learned).then_some(GUEST_MAC),
        mtu: 1500,
        v4: Some(LinkV4 {
            guest: GUEST4,
            prefix_len: 24,
            gateway: GATEWAY4,
            pod: GUEST4,
            default_route: true,
            routes: Vec::new(),
            loopback: Some(LOOP4),
        }),
        v6: Some(LinkV6 {
            guest: GUEST6,
            prefix_len: 64,
            gateway: NETD_MAC.link_local(),
            pod: GUEST6,
            default_route: true,
            routes: Vec::new(),
            loopback: Some(LOOP6),
        }),
        dns: vec![Ipv4Addr::new(10, 96, 0, 10).into(), Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 10).into()],
        search: vec!["default.svc.cluster.local".into(), "cluster.local".into()],
        hostname: Some("vm1".into()),
        fqdn: Some("vm1.example.org".into()),
        dhcp_options: Vec::new(),
        local: Vec::new(),
        egress: std::sync::Arc::default(),
    }
}

/// A frame for the guest: from netd, to a guest, lengths and checksums right. Returns its IP header.
pub(super) fn check_frame(frame: &[u8]) -> Option<Ip> {
    let eth = Eth::parse(frame).expect("frame without a header");
    assert_eq!(eth.src, NETD_MAC, "a frame that is not from netd");
    if eth.ethertype == ETHERTYPE_ARP {
        assert!(frame.len() >= ETH_LEN + 28, "short ARP");
        return None;
    }
    let packet = &frame[ETH_LEN..];
    let ip = Ip::parse(packet, packet.len()).expect("a packet that netd itself would refuse");
    assert_eq!(ip.src.is_ipv4(), ip.dst.is_ipv4());
    if ip.fragment.is_some() {
        return Some(ip);
    }
    let payload = &packet[ip.header_len..ip.header_len + ip.payload_len];
    let pseudo = match ip.protocol {
        protocol::ICMP => 0,
        protocol::UDP | protocol::TCP | protocol::ICMPV6 => {
            pseudo_header(ip.src, ip.dst, ip.protocol, payload.len())
        }
        _ => return Some(ip),
    };
    assert_eq!(fold(sum(payload, pseudo)), 0xffff, "wrong checksum in a frame for the guest");
    Some(ip)
}

/// The addresses that frames are made of.
pub(super) fn addresses(v6: bool) -> Vec<IpAddr> {
    if v6 {
        let more = ["fd00::1", "fe80::1", "ff02::1", "ff02::1:2", "::1", "::", "::ffff:10.9.0.1"];
        let own = [GUEST6.into(), NETD_MAC.link_local().into(), GUEST_MAC.link_local().into(), LOOP6.into()];
        own.into_iter().chain(more.iter().map(|a| a.parse().unwrap())).collect()
    } else {
        let more = ["198.51.100.7", "255.255.255.255", "224.0.0.1", "127.0.0.1", "0.0.0.0", "10.9.0.255"];
        let own = [GUEST4.into(), GATEWAY4.into(), LOOP4.into()];
        own.into_iter().chain(more.iter().map(|a| a.parse().unwrap())).collect()
    }
}
