//! Several queue pairs: flows stay on theirs, are found from others, move, and outlive a pair that is taken away.

use std::net::UdpSocket;
use std::time::Duration;

use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
use frontend_double::{Double, HEADER, Options, RX, TX};
use netd::counters::Reason;
use netd::limits::Limits;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{
    Bed, Family, GUEST_MAC, MAC, Pod, Setup, TIMEOUT, content, eventually, exchange, transfer, with_bed,
    with_pod,
};

fn pairs(pairs: usize) -> Setup {
    Setup { pairs, ..Setup::default() }
}

/// A guest with two pairs, driven by hand.
fn plug(pod: &Pod) -> Double {
    pod.netd.plug(&Options { pairs: 2, ..Options::default() })
}

/// A frame in which the guest sends a datagram to port 5000 of the client.
pub(crate) fn datagram(from: u16, payload: &[u8]) -> Vec<u8> {
    datagram_to(from, 5000, payload)
}

/// The same to another port.
pub(crate) fn datagram_to(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
        .udp(from, to)
        .write(&mut frame, payload)
        .unwrap();
    frame
}

/// The next datagram that comes by a pair, within `timeout`.
pub(crate) fn received(double: &mut Double, pair: usize, timeout: Duration) -> Option<Vec<u8>> {
    while let Some(frame) = double.pairs()[pair].recv(timeout).unwrap() {
        let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
        if let Some(TransportHeader::Udp(_)) = packet.transport {
            // Padding of a short frame is not payload.
            let Some(etherparse::NetHeaders::Ipv4(ip, _)) = packet.net else { continue };
            let len = usize::from(ip.total_len) - 28;
            return Some(packet.payload.slice()[..len].to_vec());
        }
    }
    None
}

/// Has the client answer and expects the answer on `pair`.
fn answer(double: &mut Double, pair: usize, client: &UdpSocket, to: std::net::SocketAddr, what: &[u8]) {
    client.send_to(what, to).unwrap();
    let got = received(double, pair, TIMEOUT).expect("no answer came by that pair");
    assert!(got == what, "another answer came");
}

#[test]
fn a_flow_is_answered_on_the_pair_that_first_carried_it() {
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        assert_eq!(pod.netd.status().running_rings, [0, 1, 2, 3]);
        let client = pod.client.udp(pod.families()[0].client(5000));
        let mut buffer = [0; 2048];
        for pair in [0, 1] {
            assert!(double.pairs()[pair].send(&datagram(6000 + pair as u16, b"hello")).unwrap());
            let (n, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"hello");
            answer(&mut double, pair, &client, from, b"welcome");
        }
        assert!(received(&mut double, 0, Duration::ZERO).is_none());
        let counters = pod.netd.counters();
        assert_eq!((counters.udp_flows.get(), counters.pair_frames_passed.get()), (2, 0));
        assert_eq!(pod.netd.status().flows, [0, 2, 0]);
    });
}

#[test]
fn a_flow_that_keeps_coming_by_another_pair_moves_there_in_order() {
    const DATAGRAMS: u32 = 200;
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        let client = pod.client.udp(pod.families()[0].client(5000));
        let mut buffer = [0; 2048];
        assert!(double.pairs()[1].send(&datagram(6000, b"first")).unwrap());
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        // One of them is passed on, by the same socket, and answered where the flow is at home.
        assert!(double.pairs()[0].send(&datagram(6000, b"second")).unwrap());
        let (n, again) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], again), (&b"second"[..], from));
        answer(&mut double, 1, &client, from, b"still here");
        for i in 0..DATAGRAMS {
            let frame = datagram(6000, &i.to_be_bytes());
            eventually("room in the ring", || double.pairs()[0].send(&frame).unwrap().then_some(()));
        }
        for i in 0..DATAGRAMS {
            let (n, again) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..n], again),
                (&i.to_be_bytes()[..], from),
                "not in order, or by another flow"
            );
        }
        let counters = pod.netd.counters();
        assert_eq!((counters.udp_flows.get(), counters.pair_flows_moved.get()), (1, 1));
        answer(&mut double, 0, &client, from, b"moved");
        assert!(received(&mut double, 1, Duration::ZERO).is_none());
        assert_eq!(pod.netd.dropped(Reason::PairBacklog), 0);
    });
}

#[test]
fn what_the_pod_opens_is_spread_over_the_pairs_that_run() {
    with_pod(pairs(4), |pod| {
        // A frontend with fewer pairs than are on offer.
        let mut double = plug(pod);
        assert_eq!(pod.netd.status().running_rings, [0, 1, 2, 3]);
        let syns = |double: &mut Double, pair: usize| {
            let mut ports = std::collections::HashSet::new();
            while let Some(frame) = double.pairs()[pair].recv(Duration::ZERO).unwrap() {
                let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
                if let Some(TransportHeader::Tcp(tcp)) = packet.transport {
                    assert!(tcp.syn);
                    ports.insert(tcp.source_port);
                }
            }
            ports
        };
        let v4 = pod.families()[0];
        let open: Vec<_> = (0..32).map(|_| pod.client.connect(v4.pod(7000)).unwrap()).collect();
        let mut seen = [std::collections::HashSet::new(), std::collections::HashSet::new()];
        eventually("a SYN for each connection", || {
            for (pair, seen) in seen.iter_mut().enumerate() {
                seen.extend(syns(&mut double, pair));
            }
            (seen[0].len() + seen[1].len() == open.len()).then_some(())
        });
        assert!(!seen[0].is_empty() && !seen[1].is_empty(), "all by one pair: {seen:?}");
        // Datagrams of new peers, too; each is delivered once.
        let peers: Vec<_> = (0..32).map(|i| pod.client.udp(v4.client(9000 + i))).collect();
        for (i, peer) in peers.iter().enumerate() {
            peer.send_to(&[i as u8], v4.pod(7000)).unwrap();
        }
        let mut by = [Vec::new(), Vec::new()];
        eventually("each datagram", || {
            for (pair, by) in by.iter_mut().enumerate() {
                by.extend(received(&mut double, pair, Duration::ZERO).into_iter().flatten());
            }
            (by[0].len() + by[1].len() == peers.len()).then_some(())
        });
        assert!(!by[0].is_empty() && !by[1].is_empty(), "all by one pair: {by:?}");
        let mut all: Vec<u8> = by.concat();
        all.sort_unstable();
        assert_eq!(all, (0..32).collect::<Vec<u8>>());
        assert_eq!(pod.netd.status().flows, [32, 32, 0]);
    });
}

#[test]
fn flows_of_a_pair_that_is_disabled_go_on_by_another() {
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        let client = pod.client.udp(pod.families()[0].client(5000));
        let mut buffer = [0; 2048];
        let mut peers = Vec::new();
        for port in 6000..6010 {
            assert!(double.pairs()[1].send(&datagram(port, b"hello")).unwrap());
            peers.push(client.recv_from(&mut buffer).unwrap().1);
        }
        // What was sent before is carried, what comes afterwards is thrown away and completed.
        assert!(double.pairs()[1].send(&datagram(6000, b"last")).unwrap());
        double.enable(1, false).unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap().0, 4);
        assert!(double.pairs()[1].send(&datagram(6000, b"too late")).unwrap());
        eventually("the frame is thrown away", || {
            (pod.netd.dropped(Reason::RingDisabled) == 1).then_some(())
        });
        let sent = double.pairs()[1].ring(TX);
        eventually("the frame is completed", || (sent.waiting() == sent.in_flight()).then_some(()));
        assert_eq!(pod.netd.status().running_rings, [0, 1]);
        for (i, peer) in peers.iter().enumerate() {
            answer(&mut double, 0, &client, *peer, &[i as u8]);
        }
        assert_eq!(pod.netd.counters().pair_flows_moved.get(), 10);
        // The guest's new flows are on the other one alone, and come back with the pair.
        assert!(double.pairs()[0].send(&datagram(6000, b"again")).unwrap());
        assert_eq!(client.recv_from(&mut buffer).unwrap().1, peers[0]);
        double.enable(1, true).unwrap();
        assert!(double.pairs()[1].send(&datagram(6020, b"new")).unwrap());
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        answer(&mut double, 1, &client, from, b"here");
        assert_eq!(pod.netd.counters().udp_flows.get(), 11);
    });
}

#[test]
fn flows_of_a_pair_that_comes_back_soon_after_the_first_stay_with_it() {
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        let client = pod.client.udp(pod.families()[0].client(5000));
        assert!(double.pairs()[1].send(&datagram(6000, b"hello")).unwrap());
        let (_, from) = client.recv_from(&mut [0; 64]).unwrap();
        for pair in [0, 1] {
            double.enable(pair, false).unwrap();
        }
        for pair in [0, 1] {
            // As a frontend that gets no processor between the two.
            std::thread::sleep(Duration::from_millis(100));
            double.enable(pair, true).unwrap();
        }
        answer(&mut double, 1, &client, from, b"here");
        assert_eq!(pod.netd.counters().pair_flows_moved.get(), 0);
    });
}

#[test]
fn without_any_pair_flows_wait_for_the_first_that_comes_back() {
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        let client = pod.client.udp(pod.families()[0].client(5000));
        assert!(double.pairs()[1].send(&datagram(6000, b"hello")).unwrap());
        let (_, from) = client.recv_from(&mut [0; 64]).unwrap();
        double.enable(0, false).unwrap();
        double.enable(1, false).unwrap();
        client.send_to(b"question", from).unwrap();
        double.enable(0, true).unwrap();
        assert_eq!(received(&mut double, 0, TIMEOUT).as_deref(), Some(&b"question"[..]));
    });
}

#[test]
fn a_pair_without_buffers_does_not_keep_new_peers_from_the_others() {
    with_pod(pairs(2), |pod| {
        let mut double = pod.netd.plug(&Options { pairs: 2, queue_size: 16, ..Options::default() });
        let v4 = pod.families()[0];
        // Half of them are the first pair's, which has buffers for 16 and gets no others.
        let peers: Vec<_> = (0..128).map(|i| pod.client.udp(v4.client(9000 + i))).collect();
        for peer in &peers {
            peer.send_to(b"hello", v4.pod(7000)).unwrap();
        }
        eventually("a flow for each peer", || {
            while received(&mut double, 1, Duration::ZERO).is_some() {}
            // One may have come between bind() and connect() of a socket of the first pair, and waits there.
            (pod.netd.status().flows[1] >= 120).then_some(())
        });
        assert!(pod.netd.dropped(Reason::NoRxBuffer) > 0);
    });
}

#[test]
fn the_limit_of_flows_is_the_guests_and_not_a_pairs() {
    let limits = Limits { flows: 10, ..Limits::default() };
    with_pod(Setup { limits, ..pairs(2) }, |pod| {
        let mut double = plug(pod);
        let _client = pod.client.udp(pod.families()[0].client(5000));
        for port in 6000..6030 {
            assert!(double.pairs()[usize::from(port % 2)].send(&datagram(port, b"hello")).unwrap());
        }
        // A worker makes room by flows of its own; one that has none refuses.
        let refused =
            || pod.netd.dropped(Reason::FlowLimit) + pod.netd.counters().datagram_flows_evicted.get();
        eventually("what exceeds the limit", || (refused() == 20).then_some(()));
        assert_eq!(pod.netd.status().flows, [0, 10, 0]);
    });
}

#[test]
fn a_pair_that_the_driver_breaks_takes_nothing_along() {
    with_pod(pairs(2), |pod| {
        let mut double = plug(pod);
        let client = pod.client.udp(pod.families()[0].client(5000));
        let mut buffer = [0; 64];
        assert!(double.pairs()[1].send(&datagram(6000, b"hello")).unwrap());
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        // More available entries than the ring has.
        for ring in [RX, TX] {
            let ring = double.pairs()[1].ring(ring);
            let jump = ring.used_idx().wrapping_add(1000);
            ring.set_avail_idx(jump);
            ring.kick_now();
        }
        // When the receive buffers that it knows of are used up netd looks for more.
        for _ in 0..double.pairs()[1].ring(RX).size() + 10 {
            client.send_to(b"one", from).unwrap();
        }
        eventually("both rings reported", || (pod.netd.counters().ring_errors.get() == 2).then_some(()));
        // The flow's socket may be full of what waits, so a single datagram would be lost.
        let mut got = Vec::new();
        while got != b"two" {
            client.send_to(b"two", from).unwrap();
            got = received(&mut double, 0, TIMEOUT).expect("nothing came by the other pair");
        }
        assert_eq!(pod.netd.status().running_rings, [0, 1]);
        assert!(double.pairs()[0].send(&datagram(6000, b"again")).unwrap());
        assert_eq!(client.recv_from(&mut buffer).unwrap().1, from);
    });
}

/// Connections opened by each side, and exchanges on all of them at once.
fn load(bed: &Bed, each: usize, len: usize, meanwhile: impl FnOnce()) {
    let open: Vec<_> = bed.families().into_iter().flat_map(|family| connections(bed, family, each)).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> =
            open.iter().map(|(guest, client)| scope.spawn(|| exchange(guest, client, len))).collect();
        meanwhile();
        for exchange in running {
            exchange.join().unwrap();
        }
    });
}

type Ends = (std::net::TcpStream, std::net::TcpStream);

fn connections(bed: &Bed, family: Family, each: usize) -> Vec<Ends> {
    let at_client = bed.client.listen(family.client(7000));
    let at_guest = bed.guest.listen(family.any(7000));
    let mut open = Vec::new();
    for _ in 0..each {
        let out = bed.guest.connect(family.client(7000)).unwrap();
        open.push((out, at_client.accept().0));
        let into = bed.client.connect(family.pod(7000)).unwrap();
        open.push((at_guest.accept().0, into));
    }
    open
}

#[test]
fn content_passes_unchanged_on_several_pairs() {
    for count in [2, 4] {
        with_bed(pairs(count), |bed| {
            load(bed, 4, 1 << 20, || {});
            let server = bed.client.udp(bed.families()[0].client(5000));
            let guest = bed.guest.udp(bed.families()[0].guest(6000));
            let mut buffer = vec![0; 1 << 16];
            for len in [1, 1400, 9000, 65_507] {
                guest.send_to(&content(1, len), bed.families()[0].client(5000)).unwrap();
                let (n, from) = server.recv_from(&mut buffer).unwrap();
                assert!(buffer[..n] == content(1, len), "{len} bytes");
                server.send_to(&content(2, len), from).unwrap();
                let n = guest.recv(&mut buffer).unwrap();
                assert!(buffer[..n] == content(2, len), "{len} bytes");
            }
            assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
        });
    }
}

#[test]
fn connections_move_for_ever_and_lose_nothing() {
    with_bed(pairs(2), |bed| {
        let pump = bed.pump.as_mut().unwrap();
        pump.cross().unwrap();
        load(bed, 2, 4 << 20, || {});
        let counters = bed.netd.counters();
        eprintln!(
            "passed {}, moved {}, sent again {}",
            counters.pair_frames_passed.get(),
            counters.pair_flows_moved.get(),
            counters.tcp_retransmits.get()
        );
        assert!(counters.pair_flows_moved.get() > 0);
        assert_eq!(counters.tcp_resets.get(), 0);
        assert_eq!(bed.netd.dropped(Reason::NoConnection), 0);
    });
}

#[test]
fn connections_outlive_pairs_that_come_and_go_under_load() {
    with_bed(pairs(2), |bed| {
        let mut pump = bed.pump.take().unwrap();
        load(bed, 2, 4 << 20, || {
            for round in 1..6u64 {
                let moved = || bed.netd.counters().tcp_bytes_to_guest.get();
                eventually("a part of the data", || (moved() > round << 21).then_some(()));
                pump.enable(1, round % 2 == 0).unwrap();
            }
        });
        let counters = bed.netd.counters();
        eprintln!("moved {}, sent again {}", counters.pair_flows_moved.get(), counters.tcp_retransmits.get());
        assert_eq!(counters.tcp_resets.get(), 0);
        bed.pump = Some(pump);
        // And afterwards all is as it was.
        let family = bed.families()[0];
        for (guest, client) in connections(bed, family, 1) {
            transfer(&guest, &client, 1, 100_000);
            transfer(&client, &guest, 2, 100_000);
        }
    });
}
