//! What is for the link itself, and what only looks like it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, Ipv4Header, PacketBuilder};
use netd::counters::Reason;

use crate::bed::raw::{CLIENT_V4, GUEST_V4, GUEST_V6};
use crate::bed::{GUEST_MAC, MAC, Pod, Raw, Setup, TIMEOUT, eventually, with_pod};
use frontend_double::HEADER;

/// How much was dropped for any reason.
fn dropped(pod: &Pod) -> u64 {
    Reason::ALL.iter().map(|reason| pod.netd.dropped(*reason)).sum()
}

/// A datagram of the guest from a port of its own.
fn datagram(from: u16, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0);
    let ip = match to.ip() {
        IpAddr::V4(to) => ethernet.ipv4(GUEST_V4.octets(), to.octets(), 64),
        IpAddr::V6(to) => ethernet.ipv6(GUEST_V6.octets(), to.octets(), 64),
    };
    let mut frame = Vec::new();
    ip.udp(from, to.port()).write(&mut frame, payload).unwrap();
    frame
}

#[test]
fn membership_of_groups_is_taken_without_a_word() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        // IGMPv3, a report without a group (RFC 3376, section 4.2).
        let report = [0x22, 0, 0xdd, 0xff, 0, 0, 0, 0];
        for from in [GUEST_V4.octets(), [0; 4]] {
            let mut ip = Ipv4Header::new(8, 1, IpNumber::IGMP, from, [224, 0, 0, 22]).unwrap();
            ip.header_checksum = ip.calc_header_checksum();
            let ethernet = [&[1, 0, 0x5e, 0, 0, 22][..], &GUEST_MAC.0, &[8, 0]].concat();
            raw.send(&[&ethernet[..], &ip.to_bytes()[..], &report].concat());
        }
        raw.ping();
        assert_eq!(dropped(pod), 0);
        assert_eq!(pod.netd.counters().icmp_errors_to_guest.get(), 0);
    });
}

#[test]
fn datagrams_to_dhcp_servers_of_other_hosts_are_carried() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        // Beyond the gateway, which is the link's own server.
        let far = pod.far(1500);
        for at in ["192.0.2.2:67", "[2001:db8::2]:547"] {
            let at: SocketAddr = at.parse().unwrap();
            let server = far.udp(at);
            // From a relay, and from a client.
            for from in [at.port(), at.port() + 1] {
                raw.send(&datagram(from, at, b"relayed"));
                let mut buffer = [0; 16];
                let (n, peer) = server.recv_from(&mut buffer).expect("it did not come");
                assert_eq!((&buffer[..n], peer.port()), (&b"relayed"[..], from));
            }
        }
        assert_eq!(dropped(pod), 0);
    });
}

/// The frame with a tag of 802.1Q.
fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
}

#[test]
fn a_tag_of_a_priority_alone_is_passed_over() {
    // A priority of seven, and VLAN 5.
    const PRIORITY: u16 = 7 << 13;
    const VLAN: u16 = 5;
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let server = pod.client.udp((CLIENT_V4, 5000).into());
        let receive = || {
            let mut buffer = [0; 16];
            let n = server.recv(&mut buffer).expect("it did not come");
            buffer[..n].to_vec()
        };
        let frame = datagram(6000, (CLIENT_V4, 5000).into(), b"hello");
        raw.send(&tagged(&frame, PRIORITY));
        assert_eq!(receive(), b"hello");
        // The device is to complete the checksum, whose place is counted with the tag.
        let mut partial = datagram(6000, (CLIENT_V4, 5000).into(), b"partial");
        let at = 14 + 20;
        let length = (partial.len() - at) as u16;
        let words = [GUEST_V4.octets(), CLIENT_V4.octets()].concat();
        let words = words.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum = words.sum::<u32>() + 17 + u32::from(length);
        let sum = (sum & 0xffff) + (sum >> 16);
        partial[at + 6..at + 8].copy_from_slice(&(sum as u16).to_be_bytes());
        let mut header = [0; HEADER];
        header[0] = 1;
        header[6..8].copy_from_slice(&(at as u16 + 4).to_le_bytes());
        header[8..10].copy_from_slice(&6u16.to_le_bytes());
        raw.send_raw(&[&header[..], &tagged(&partial, PRIORITY)].concat());
        assert_eq!(receive(), b"partial");
        // ARP, which answers without a tag.
        let arp = [
            &[0xff; 6][..],
            &GUEST_MAC.0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &GUEST_MAC.0,
            &GUEST_V4.octets(),
            &[0; 6],
            &CLIENT_V4.octets(),
        ]
        .concat();
        raw.send(&tagged(&arp, PRIORITY));
        while raw.double.recv(TIMEOUT).unwrap().expect("no answer came")[HEADER + 12..HEADER + 14] != [8, 6] {
        }
        assert_eq!(dropped(pod), 0);
        raw.send(&tagged(&frame, VLAN));
        eventually("a drop", || (pod.netd.dropped(Reason::UnknownProtocol) == 1).then_some(()));
        raw.send(&tagged(&tagged(&frame, PRIORITY), PRIORITY));
        eventually("a drop", || (pod.netd.dropped(Reason::UnknownProtocol) == 2).then_some(()));
        // What ends in the tag.
        raw.send(&tagged(&frame, PRIORITY)[..15]);
        eventually("a drop", || (pod.netd.dropped(Reason::Malformed) == 1).then_some(()));
        assert!(pod.netd.status().frontend_connected);
    });
}
