//! A flow that floods does not starve another: what the other waits for is counted in frames, not in time.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
use frontend_double::HEADER;
use netd::counters::Reason;
use netd::limits::Limits;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{GUEST_MAC, MAC, Pod, Raw, Setup, TIMEOUT, eventually, with_pod};

/// Datagrams that a flow gives the guest before the next has its turn: 4 reads of 32 at most, and as many of 64.
const TURN: usize = 4 * 64;

fn datagram(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0).ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64);
    let mut frame = Vec::new();
    ip.udp(from, to).write(&mut frame, payload).unwrap();
    frame
}

/// The port of the guest that the next datagram is for.
fn next_port(raw: &mut Raw) -> u16 {
    loop {
        let frame = raw.double.recv(TIMEOUT).unwrap().expect("nothing came");
        let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
        if let Some(TransportHeader::Udp(header)) = packet.transport {
            return header.destination_port;
        }
    }
}

/// A server of the client, and the address under which it knows the guest's flow from `port`.
fn flow(pod: &Pod, raw: &mut Raw, port: u16, server: u16) -> (UdpSocket, SocketAddr) {
    let [v4, _] = pod.families();
    let socket = pod.client.udp(v4.client(server));
    raw.send(&datagram(port, server, b"hello"));
    let (_, from) = socket.recv_from(&mut [0; 16]).unwrap();
    (socket, from)
}

fn limited(flows: u32) -> Setup {
    Setup { limits: Limits { flows, ..Limits::default() }, ..Setup::default() }
}

#[test]
fn a_datagram_waits_behind_one_turn_of_each_flood() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let floods: Vec<_> = (0..3).map(|i| flow(pod, &mut raw, 6000 + i, 5000 + i)).collect();
        let small = flow(pod, &mut raw, 6100, 5100);
        // Without a guest everything waits in the sockets.
        drop(raw);
        eventually("the end", || (!pod.netd.status().frontend_connected).then_some(()));
        for (socket, guest) in &floods {
            for _ in 0..4 * TURN {
                socket.send_to(&[0; 64], guest).unwrap();
            }
        }
        small.0.send_to(b"small", small.1).unwrap();
        let mut raw = Raw::plug(&pod.netd);
        let before = (0..).take_while(|_| next_port(&mut raw) != 6100).count();
        assert!(before <= floods.len() * TURN, "it waited behind {before} datagrams");
    });
}

#[test]
fn a_flow_goes_on_while_the_guest_opens_others_without_end() {
    with_pod(limited(64), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let (server, guest) = flow(pod, &mut raw, 6100, 5100);
        for round in 0..50_u16 {
            for i in 0..100 {
                raw.send(&datagram(10_000 + round * 100 + i, 9, b"flood"));
            }
            raw.send(&datagram(6100, 5100, b"question"));
            assert_eq!(server.recv_from(&mut [0; 16]).unwrap(), (8, guest));
            server.send_to(b"answer", guest).unwrap();
            // No server answers the flood, so the answer is the first datagram.
            assert_eq!(next_port(&mut raw), 6100);
        }
        let counters = pod.netd.counters();
        let gone = counters.datagram_flows_evicted.get() + pod.netd.dropped(Reason::FlowRate);
        assert!(gone > 4000, "{gone}");
        assert_eq!(pod.netd.status().flows, [0, 48, 0], "a quarter is left to connections");
    });
}

#[test]
fn a_guest_that_opens_flows_without_end_stays_within_reach() {
    with_pod(limited(64), |pod| {
        let [v4, _] = pod.families();
        let mut raw = Raw::plug(&pod.netd);
        for i in 0..500 {
            let ip = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0).ipv4(GUEST_V4.octets(), [10, 9, 0, 99], 64);
            let mut frame = Vec::new();
            ip.tcp(10_000 + i, 9, 1, 1000).syn().write(&mut frame, &[]).unwrap();
            raw.send(&frame);
        }
        let gone = || pod.netd.counters().tcp_openings_evicted.get();
        eventually("a full table", || (gone() == 444).then_some(()));
        assert_eq!(pod.netd.dropped(Reason::FlowLimit), 0);
        let client = pod.client.udp(v4.client(0));
        client.send_to(b"is a guest up?", v4.pod(7000)).unwrap();
        assert_eq!(next_port(&mut raw), 7000);
    });
}

#[test]
fn peers_that_flood_a_port_do_not_keep_the_guest_from_speaking() {
    with_pod(limited(64), |pod| {
        let [v4, _] = pod.families();
        let mut raw = Raw::plug(&pod.netd);
        let clients: Vec<_> = (0..200).map(|_| pod.client.udp(v4.client(0))).collect();
        for client in &clients {
            client.send_to(b"me, too", v4.pod(7000)).unwrap();
        }
        let gone = || pod.netd.counters().datagram_flows_evicted.get();
        eventually("a full table", || (gone() == 152).then_some(()));
        let (server, guest) = flow(pod, &mut raw, 6100, 5100);
        server.send_to(b"answer", guest).unwrap();
        while next_port(&mut raw) != 6100 {}
    });
}

#[test]
fn peers_that_flood_a_port_take_no_places_from_those_of_another() {
    with_pod(limited(128), |pod| {
        let [v4, _] = pod.families();
        let mut raw = Raw::plug(&pod.netd);
        let ask = |port: u16, clients: &[UdpSocket], raw: &mut Raw| {
            for client in clients {
                client.send_to(b"hello", v4.pod(port)).unwrap();
                assert_eq!(next_port(raw), if port == 8080 { 80 } else { port });
            }
        };
        let clients = |n: u16| (0..n).map(|_| pod.client.udp(v4.client(0))).collect::<Vec<_>>();
        let flows = || pod.netd.counters().udp_flows.get();
        let few = clients(20);
        ask(8080, &few, &mut raw);
        for _ in 0..3 {
            ask(7000, &clients(150), &mut raw);
            let before = flows();
            ask(8080, &few, &mut raw);
            assert_eq!(flows(), before, "flows of the other port went");
        }
        // Peers of other ports find places while there are too many of the one.
        let more = clients(40);
        ask(8080, &more, &mut raw);
        ask(7000, &clients(150), &mut raw);
        let before = flows();
        ask(8080, &more[..1], &mut raw);
        ask(8080, &few, &mut raw);
        assert_eq!(flows() - before, 0);
    });
}

#[test]
fn a_port_is_served_while_another_is_flooded() {
    with_pod(limited(2000), |pod| {
        let [v4, _] = pod.families();
        let mut raw = Raw::plug(&pod.netd);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut open = std::collections::VecDeque::new();
                    while !done.load(Ordering::Relaxed) {
                        // Refused ones count as well.
                        open.extend(pod.client.connect(v4.pod(7000)).ok());
                        if open.len() > 100 {
                            open.pop_front();
                        }
                    }
                });
            }
            eventually("a flood", || (pod.netd.status().flows[0] > 100).then_some(()));
            let client = scope.spawn(|| pod.client.connect(v4.pod(7001)).unwrap());
            // A SYN for the small port comes, whatever the flood does.
            while raw.expect_tcp().0.destination_port != 7001 {}
            done.store(true, Ordering::Relaxed);
            client.join().unwrap();
        });
    });
}
