//! What happens at the limits, and to frames for forbidden destinations.

use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;

use etherparse::PacketBuilder;
use netd::control::Control as _;
use netd::counters::Reason;
use netd::limits::Limits;

use crate::bed::raw::{CLIENT_V4, GUEST_V4, GUEST_V6};
use crate::bed::{
    GUEST_MAC, MAC, Raw, Setup, assert_refused_late, eventually, exchange, expect_end, udp, with_bed,
    with_pod,
};

fn limited(limits: Limits) -> Setup {
    Setup { limits, ..Setup::default() }
}

#[test]
fn a_full_flow_table_refuses_by_reset() {
    with_bed(limited(Limits { flows: 4, ..Limits::default() }), |bed| {
        let [v4, v6] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        let inbound = bed.guest.listen(v4.any(7000));
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push((bed.guest.connect(v4.client(7000)).unwrap(), server.accept().0));
            open.push((bed.client.connect(v4.pod(7000)).unwrap(), inbound.accept().0));
        }
        assert_eq!(bed.netd.status().flows, [4, 0, 0]);
        for family in [v4, v6] {
            let error = bed.guest.connect(family.client(7000)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            assert_refused_late(bed.client.connect(family.pod(7000)));
        }
        assert_eq!(bed.netd.dropped(Reason::FlowLimit), 4);
        let refused = || Some(*bed.netd.control.refused().borrow()).filter(|refused| refused.count > 0);
        assert_eq!(eventually("word of it", refused).limit, 4);
        // Datagrams as well.
        bed.guest.udp(v4.guest(6000)).send_to(b"hello", v4.client(5000)).unwrap();
        eventually("a drop", || (bed.netd.dropped(Reason::FlowLimit) == 5).then_some(()));
        // Those that are open go on.
        for (a, b) in &open {
            exchange(a, b, 10_000);
        }
    });
}

/// The first of the ports that peers flood.
const FIRST_UDP: u16 = 7100;
/// More short flows of datagrams than the table has places.
const MANY: u16 = 500;

#[test]
fn a_guest_that_asks_many_names_is_answered_and_can_still_connect() {
    with_bed(limited(Limits { flows: 64, ..Limits::default() }), |bed| {
        let [v4, _] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        let resolver = bed.client.udp(v4.client(53));
        let connect = || (bed.guest.connect(v4.client(7000)).unwrap(), server.accept().0);
        let before: Vec<_> = (0..8).map(|_| connect()).collect();
        let mut buffer = [0; 64];
        let mut names = Vec::new();
        for i in 0..MANY {
            let guest = bed.guest.udp(v4.guest(10_000 + i));
            guest.send_to(&i.to_be_bytes(), v4.client(53)).unwrap();
            let (n, from) = resolver.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], i.to_be_bytes());
            resolver.send_to(&buffer[..n], from).unwrap();
            assert_eq!(guest.recv(&mut buffer).unwrap(), 2);
            names.push(guest);
        }
        let after: Vec<_> = (0..8).map(|_| connect()).collect();
        for (guest, client) in before.iter().chain(&after) {
            exchange(guest, client, 10_000);
        }
        let counters = bed.netd.counters();
        assert_eq!(counters.dropped(Reason::FlowLimit), 0);
        // At most 48 places are for datagrams.
        assert!(bed.netd.status().flows[1] <= 48 && counters.datagram_flows_evicted.get() > 0);
    });
}

#[test]
fn a_server_in_the_guest_answers_more_peers_than_the_table_has_places() {
    with_bed(limited(Limits { flows: 64, ..Limits::default() }), |bed| {
        for family in bed.families() {
            let server = bed.guest.udp(family.any(7000));
            let mut buffer = [0; 64];
            for i in 0..MANY {
                let client = bed.client.udp(family.client(10_000 + i));
                client.send_to(&i.to_be_bytes(), family.pod(7000)).unwrap();
                let (n, from) = server.recv_from(&mut buffer).unwrap();
                server.send_to(&buffer[..n], from).unwrap();
                assert_eq!(client.recv(&mut buffer).unwrap(), 2);
                assert_eq!(buffer[..2], i.to_be_bytes());
            }
            // Connections find their places.
            let listener = bed.guest.listen(family.any(7000));
            let open: Vec<_> = (0..8)
                .map(|_| (bed.client.connect(family.pod(7000)).unwrap(), listener.accept().0))
                .collect();
            for (client, guest) in &open {
                exchange(client, guest, 10_000);
            }
        }
        assert_eq!(bed.netd.dropped(Reason::FlowLimit), 0);
    });
}

#[test]
fn a_guest_asks_as_many_names_at_once_while_peers_fill_the_table() {
    // One port has more flows than its share, or each of several has less.
    for ports in [1, 8] {
        let rules = (FIRST_UDP..FIRST_UDP + ports).map(|port| udp(port, port)).collect();
        let setup = Setup { ports: rules, ..limited(Limits { flows: 64, ..Limits::default() }) };
        with_bed(setup, move |bed| {
            let [v4, _] = bed.families();
            let resolver = bed.client.udp(v4.client(53));
            // What the guest has before the flood is all that it would keep.
            let own = bed.guest.udp(v4.guest(9000));
            own.send_to(b"before", v4.client(53)).unwrap();
            let mut buffer = [0; 64];
            resolver.recv_from(&mut buffer).unwrap();
            let servers: Vec<_> = (0..ports).map(|n| bed.guest.udp(v4.any(FIRST_UDP + n))).collect();
            let flood = |from: u16| {
                for i in from..from + 100 {
                    let to = i % ports;
                    let peer = bed.client.udp(v4.client(10_000 + i));
                    peer.send_to(&i.to_be_bytes(), v4.pod(FIRST_UDP + to)).unwrap();
                    servers[usize::from(to)].recv_from(&mut [0; 64]).unwrap();
                }
            };
            flood(0);
            assert_eq!(bed.netd.status().flows[1], 48);
            // As many at once as half of the places, and the flood goes on between question and answer.
            let guests: Vec<_> = (0..23).map(|i| bed.guest.udp(v4.guest(20_000 + i))).collect();
            for guest in &guests {
                guest.send_to(b"name?", v4.client(53)).unwrap();
            }
            let asked: Vec<_> = guests.iter().map(|_| resolver.recv_from(&mut buffer).unwrap().1).collect();
            flood(1000);
            for from in asked {
                resolver.send_to(b"address", from).unwrap();
            }
            for guest in &guests {
                assert_eq!(guest.recv(&mut buffer).expect("no answer"), 7);
            }
            assert_eq!(bed.netd.dropped(Reason::FlowLimit), 0);
        });
    }
}

#[test]
fn a_flow_that_ends_makes_room() {
    let mut setup = limited(Limits { flows: 1, ..Limits::default() });
    setup.timeouts.tcp_time_wait = std::time::Duration::from_millis(10);
    with_bed(setup, |bed| {
        let [v4, _] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        for _ in 0..5 {
            let guest = bed.guest.connect(v4.client(7000)).unwrap();
            exchange(&guest, &server.accept().0, 10_000);
            drop(guest);
            eventually("an empty table", || (bed.netd.status().flows == [0; 3]).then_some(()));
        }
    });
}

#[test]
fn a_connection_in_time_wait_makes_room_in_a_full_table() {
    // TIME-WAIT lasts a minute, longer than any test waits.
    with_bed(limited(Limits { flows: 1, ..Limits::default() }), |bed| {
        let [v4, _] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        for _ in 0..5 {
            // Refused only until the end of the one before has gone both ways.
            let guest = eventually("a connection", || bed.guest.connect(v4.client(7000)).ok());
            let client = server.accept().0;
            exchange(&guest, &client, 10_000);
            drop(client);
            expect_end(&guest);
        }
    });
}

/// A SYN of the guest to the client's port 7000.
fn syn(from: u16) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0).ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64);
    let mut frame = Vec::new();
    ip.tcp(from, 7000, 1, u16::MAX).syn().write(&mut frame, &[]).unwrap();
    frame
}

#[test]
fn a_connection_that_the_guest_does_not_complete_makes_room() {
    with_pod(limited(Limits { flows: 64, ..Limits::default() }), |pod| {
        let listener = pod.client.listen(pod.families()[0].client(7000));
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        let mut accepted = Vec::new();
        for from in 10_000..10_000 + MANY {
            raw.send(&syn(from));
            // Those of before are sent again in between.
            let answer = loop {
                let (tcp, _) = raw.expect_tcp();
                if tcp.destination_port == from {
                    break tcp;
                }
            };
            assert!(answer.syn && answer.ack, "{from}: {answer:?}");
            accepted.push(listener.accept().0);
        }
        // Their peers do not wait for a guest that never comes.
        let error = accepted[0].read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let counters = pod.netd.counters();
        assert_eq!(counters.dropped(Reason::FlowLimit), 0);
        // Fewer than they are, the pings keep their places.
        assert_eq!(counters.datagram_flows_evicted.get(), 0);
        let [connections, _, pings] = pod.netd.status().flows;
        assert!(pings > 0 && counters.tcp_openings_evicted.get() + u64::from(connections) >= u64::from(MANY));
    });
}

#[test]
fn too_many_new_flows_a_second_are_refused() {
    let limits = Limits { new_flows_per_second: 1, new_flows_burst: 3, ..Limits::default() };
    with_bed(limited(limits), |bed| {
        let [v4, _] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        let mut open = Vec::new();
        let mut refused = 0;
        for _ in 0..20 {
            match bed.guest.connect(v4.client(7000)) {
                Ok(guest) => open.push((guest, server.accept().0)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{e}");
                    refused += 1;
                }
            }
        }
        assert!(open.len() >= 3, "the burst is allowed");
        assert!(refused > 0, "the rate is not");
        assert_eq!(bed.netd.dropped(Reason::FlowRate), refused);
    });
}

#[test]
fn frames_to_forbidden_destinations_are_dropped() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let v4 = pod.pod.udp("0.0.0.0:5000".parse().unwrap());
        let destinations = [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "239.1.2.3",
            "10.9.0.2",
            "::1",
            "::",
            "ff02::1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:10.9.0.1",
            "fd00:9::2",
        ];
        for (count, to) in (1..).zip(destinations) {
            let ethernet = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0);
            let ip = match to.parse().unwrap() {
                IpAddr::V4(to) => ethernet.ipv4(GUEST_V4.octets(), to.octets(), 64),
                IpAddr::V6(to) => ethernet.ipv6(GUEST_V6.octets(), to.octets(), 64),
            };
            let mut frame = Vec::new();
            ip.udp(6000, 5000).write(&mut frame, b"hello").unwrap();
            raw.send(&frame);
            eventually(to, || (pod.netd.dropped(Reason::Denied) == count).then_some(()));
        }
        raw.ping();
        v4.set_nonblocking(true).unwrap();
        assert_eq!(v4.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}
