//! Frames whose addresses are not the guest's, or that are not for netd.

use std::io::ErrorKind;
use std::sync::Arc;

use etherparse::PacketBuilder;
use netd::control::Control;
use netd::counters::Reason;
use netd::net::Link;
use netd::wire::MacAddr;

use crate::bed::raw::{CLIENT_V4, CLIENT_V6, GUEST_V4, GUEST_V6};
use crate::bed::{GUEST_MAC, MAC, Pod, Raw, Setup, eventually, with_pod};

/// A station behind the guest.
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 9]);

/// A datagram of the guest to the client between two stations.
fn datagram(from: MacAddr, to: MacAddr) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(from.0, to.0).ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64);
    let mut frame = Vec::new();
    ip.udp(6000, 5000).write(&mut frame, b"hello").unwrap();
    frame
}

/// Waits until `reason` has been counted `count` times.
fn counted(pod: &Pod, reason: Reason, count: u64) {
    eventually(reason.label(), || (pod.netd.dropped(reason) == count).then_some(()));
}

#[test]
fn frames_of_another_source_are_dropped() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let other_mac = [0x52, 0x54, 0, 0, 0, 9];
        let frames = [
            (other_mac, GUEST_V4.octets(), None),
            (GUEST_MAC.0, [10, 9, 0, 3], None),
            (GUEST_MAC.0, CLIENT_V4.octets(), None),
            (GUEST_MAC.0, [127, 0, 0, 1], None),
            (GUEST_MAC.0, [0; 4], Some("fd00:9::3".parse::<std::net::Ipv6Addr>().unwrap())),
            (GUEST_MAC.0, [0; 4], Some("::1".parse().unwrap())),
            (other_mac, [0; 4], Some(GUEST_V6)),
        ];
        let server = pod.client.udp("[::]:5000".parse().unwrap());
        for (count, (mac, v4, v6)) in (0..).zip(frames) {
            let ip = || match v6 {
                None => PacketBuilder::ethernet2(mac, MAC.0).ipv4(v4, CLIENT_V4.octets(), 64),
                Some(v6) => PacketBuilder::ethernet2(mac, MAC.0).ipv6(v6.octets(), CLIENT_V6.octets(), 64),
            };
            let mut frames = [const { Vec::new() }; 3];
            ip().udp(6000, 5000).write(&mut frames[0], b"not me").unwrap();
            ip().tcp(6000, 5000, 1, 1000).syn().write(&mut frames[1], b"").unwrap();
            match v6 {
                None => ip().icmpv4_echo_request(1, 1).write(&mut frames[2], b"").unwrap(),
                Some(_) => ip().icmpv6_echo_request(1, 1).write(&mut frames[2], b"").unwrap(),
            }
            for frame in &frames {
                raw.send(frame);
            }
            let spoofed = 3 * (count + 1);
            eventually("a drop", || (pod.netd.dropped(Reason::Spoofed) == spoofed).then_some(()));
        }
        raw.ping();
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let flows = pod.netd.status().flows;
        assert_eq!(flows, [0, 0, 2], "only the pings have flows");
    });
}

#[test]
fn frames_to_another_station_are_dropped() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        raw.send(&datagram(GUEST_MAC, OTHER));
        counted(pod, Reason::Misdirected, 1);
        assert_eq!(pod.netd.status().flows, [0; 3]);
        raw.send(&datagram(GUEST_MAC, MAC));
        eventually("a flow", || (pod.netd.status().flows == [0, 1, 0]).then_some(()));
        raw.ping();
    });
}

#[test]
fn arp_and_neighbour_advertisements_for_others_are_dropped() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let arp = |mac: MacAddr, ip: [u8; 4]| {
            let ethernet = [&[0xff; 6][..], &GUEST_MAC.0, &[8, 6], &[0, 1, 8, 0, 6, 4, 0, 1]].concat();
            [&ethernet[..], &mac.0, &ip, &[0; 6], &CLIENT_V4.octets()].concat()
        };
        raw.send(&arp(GUEST_MAC, CLIENT_V4.octets()));
        raw.send(&arp(OTHER, GUEST_V4.octets()));
        let mut frame = Vec::new();
        let body = [&CLIENT_V6.octets()[..], &[2, 1], &GUEST_MAC.0].concat();
        PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
            .ipv6(GUEST_V6.octets(), MAC.link_local().octets(), 255)
            .icmpv6_raw(136, 0, [0x20, 0, 0, 0])
            .write(&mut frame, &body)
            .unwrap();
        raw.send(&frame);
        counted(pod, Reason::Spoofed, 3);
        raw.send(&arp(GUEST_MAC, GUEST_V4.octets()));
        raw.ping();
        assert_eq!(pod.netd.dropped(Reason::Spoofed), 3);
    });
}

#[test]
fn without_a_configured_address_the_first_is_kept_until_the_next_frontend() {
    with_pod(Setup::default(), |pod| {
        let learning = Link { guest_mac: None, ..(*pod.netd.status().link).clone() };
        pod.netd.control.set_link(Arc::new(learning));
        let mut raw = Raw::plug(&pod.netd);
        raw.send(&datagram(OTHER, MAC));
        eventually("an address", || (pod.netd.status().guest_mac == Some(OTHER)).then_some(()));
        raw.send(&datagram(GUEST_MAC, MAC));
        counted(pod, Reason::Spoofed, 1);
        assert_eq!(pod.netd.status().guest_mac, Some(OTHER));
        drop(raw);
        eventually("the end", || (!pod.netd.status().frontend_connected).then_some(()));
        let mut raw = Raw::plug(&pod.netd);
        raw.send(&datagram(GUEST_MAC, MAC));
        eventually("an address", || (pod.netd.status().guest_mac == Some(GUEST_MAC)).then_some(()));
        raw.ping();
        assert_eq!(pod.netd.dropped(Reason::Spoofed), 1);
    });
}
