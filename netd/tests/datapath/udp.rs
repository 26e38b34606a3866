//! UDP: addresses of replies, lengths, fragments, errors.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use netd::config::ports::{PortSpec, Ports};
use netd::control::Control;
use netd::counters::Reason;
use netd::ring::Iovs;
use netd::sys::{self, Message, PmtuDiscovery};
use socket2::SockRef;

use crate::bed::{Bed, Family, Setup, content, eventually, udp, with_bed};

/// Receives one datagram, which must be `expected`; returns its sender.
#[track_caller]
fn receive(socket: &UdpSocket, expected: &[u8]) -> SocketAddr {
    let mut buffer = vec![0; 1 << 16];
    let (n, from) = socket.recv_from(&mut buffer).expect("no datagram came");
    assert_eq!(n, expected.len());
    assert!(&buffer[..n] == expected, "a datagram of {n} bytes differs");
    from
}

#[test]
fn replies_come_from_where_the_request_went() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            // The guest asks.
            let server = bed.client.udp(family.client(5000));
            let guest = bed.guest.udp(family.guest(6000));
            guest.send_to(b"question", family.client(5000)).unwrap();
            let from = receive(&server, b"question");
            assert_eq!(from, family.pod(6000));
            server.send_to(b"answer", from).unwrap();
            assert_eq!(receive(&guest, b"answer"), family.client(5000));
            // The guest is asked, at a port that leads to another one.
            let server = bed.guest.udp(family.any(80));
            let client = bed.client.udp(family.client(5001));
            client.send_to(b"question", family.pod(8080)).unwrap();
            let from = receive(&server, b"question");
            assert_eq!(from, family.client(5001));
            server.send_to(b"answer", from).unwrap();
            assert_eq!(receive(&client, b"answer"), family.pod(8080));
        }
        assert_eq!(bed.netd.counters().udp_flows.get(), 4);
    });
}

#[test]
fn peers_of_one_guest_port_are_told_apart() {
    const PEERS: u16 = 100;
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let server = bed.guest.udp(family.any(7000));
            let peers: Vec<_> = (0..PEERS).map(|i| bed.client.udp(family.client(5000 + i))).collect();
            for round in 0..3 {
                for (i, peer) in (0..).zip(&peers) {
                    peer.send_to(&content(i, 100 + round), family.pod(7000)).unwrap();
                }
                let mut buffer = [0; 2048];
                for _ in 0..PEERS {
                    let (n, from) = server.recv_from(&mut buffer).unwrap();
                    let i = u64::from(from.port() - 5000);
                    assert!(buffer[..n] == content(i, 100 + round), "from {from}");
                    assert_eq!(from.ip(), family.client);
                    server.send_to(&content(1000 + i, 100 + round), from).unwrap();
                }
                for (i, peer) in (0..).zip(&peers) {
                    assert_eq!(receive(peer, &content(1000 + i, 100 + round)), family.pod(7000));
                }
            }
            // One socket of the guest asks all of them, too.
            let guest = bed.guest.udp(family.guest(6001));
            for (i, peer) in (0..).zip(&peers) {
                guest.send_to(&content(i, 50), peer.local_addr().unwrap()).unwrap();
                let from = receive(peer, &content(i, 50));
                assert_eq!(from, family.pod(6001));
                peer.send_to(b"here", from).unwrap();
                assert_eq!(receive(&guest, b"here"), peer.local_addr().unwrap());
            }
        }
    });
}

#[test]
fn datagrams_of_any_length_pass_both_ways() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let server = bed.client.udp(family.client(5000));
            let guest = bed.guest.udp(family.guest(6000));
            for len in [0, 1, 17, 18, 19, 1452, 1453, 1472, 1473, 2000, 2944, 8000, 30_000, 65_507] {
                eprintln!("{family:?}, {len} bytes");
                guest.send_to(&content(10, len), family.client(5000)).unwrap();
                let from = receive(&server, &content(10, len));
                server.send_to(&content(11, len), from).unwrap();
                assert_eq!(receive(&guest, &content(11, len)), family.client(5000));
            }
            // The client begins.
            let server = bed.guest.udp(family.any(7000));
            let client = bed.client.udp(family.client(5001));
            for len in [0, 1472, 1473, 65_507] {
                client.send_to(&content(12, len), family.pod(7000)).unwrap();
                let from = receive(&server, &content(12, len));
                server.send_to(&content(13, len), from).unwrap();
                assert_eq!(receive(&client, &content(13, len)), family.pod(7000));
            }
        }
        assert_eq!(bed.netd.dropped(Reason::Fragment), 0);
        assert_eq!(bed.netd.dropped(Reason::Checksum), 0);
    });
}

#[test]
fn a_burst_arrives_in_order() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let server = bed.client.udp(family.client(5000));
            let guest = bed.guest.udp(family.guest(6000));
            // What waits for a neighbour may be overtaken in the guest itself.
            guest.send_to(b"first", family.client(5000)).unwrap();
            let from = receive(&server, b"first");
            for i in 0..100 {
                guest.send_to(&content(i, 300), family.client(5000)).unwrap();
            }
            for i in 0..100 {
                receive(&server, &content(i, 300));
            }
            for i in 0..100 {
                server.send_to(&content(i, 400), from).unwrap();
            }
            for i in 0..100 {
                receive(&guest, &content(i, 400));
            }
        }
    });
}

/// Sends one message that is cut into datagrams of `size` bytes.
fn send_run(socket: &UdpSocket, to: SocketAddr, data: Vec<u8>, size: u16) {
    let payload = Iovs::from_owned(data);
    let message = Message {
        payload: &payload,
        first: 0,
        slices: payload.len(),
        segment: Some(size),
        to: Some(to),
        from: None,
    };
    let sent = sys::send_messages(socket.as_fd(), false, std::iter::once(message)).unwrap();
    assert_eq!(sent, 1);
}

#[test]
fn runs_of_datagrams_come_apart_as_they_were_sent() {
    // Datagrams, their size, and the size of the last one.
    const RUNS: [(usize, usize, usize); 5] =
        [(2, 1, 1), (64, 100, 37), (44, 1400, 1), (10, 1452, 1452), (3, 1000, 999)];
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            // A flow of a listener and one with a socket of its own.
            let server = bed.guest.udp(family.any(7000));
            let client = bed.client.udp(family.client(5001));
            let guest = bed.guest.udp(family.guest(6000));
            let other = bed.client.udp(family.client(5000));
            guest.send_to(b"first", family.client(5000)).unwrap();
            let own = receive(&other, b"first");
            for (n, (count, size, last)) in (0..).zip(RUNS) {
                eprintln!("{family:?}: {count} of {size}, the last {last}");
                let data = content(n, (count - 1) * size + last);
                let ways = [(&client, family.pod(7000), &server, 5001), (&other, own, &guest, 5000)];
                for (from, to, at, port) in ways {
                    send_run(from, to, data.clone(), size as u16);
                    for datagram in data.chunks(size) {
                        assert_eq!(receive(at, datagram), family.client(port));
                    }
                    // Back, as a burst of the guest, with a datagram of another size in between.
                    let (back, pod) = (family.client(port), to);
                    for datagram in data.chunks(size) {
                        at.send_to(datagram, back).unwrap();
                    }
                    at.send_to(&content(77, 5), back).unwrap();
                    at.send_to(&content(78, 0), back).unwrap();
                    at.send_to(&content(79, size), back).unwrap();
                    for datagram in data.chunks(size) {
                        assert_eq!(receive(from, datagram), pod);
                    }
                    receive(from, &content(77, 5));
                    receive(from, &content(78, 0));
                    receive(from, &content(79, size));
                }
            }
        }
        assert_eq!(bed.netd.counters().udp_flows.get(), 4);
        assert_eq!(bed.netd.dropped(Reason::UdpSend), 0);
    });
}

#[test]
fn runs_that_are_larger_than_the_path_are_fragmented() {
    with_bed(Setup::default(), |bed| {
        let far = bed.far(1300);
        bed.pod.ip(
            "route add 192.0.2.0/24 via 10.9.0.1 mtu 1300\nroute add 2001:db8::/64 via fd00:9::1 mtu 1300\n",
        );
        let peers = ["192.0.2.2:5000", "[2001:db8::2]:5000"].map(|a| a.parse::<SocketAddr>().unwrap());
        for (family, to) in bed.families().into_iter().zip(peers) {
            let server = far.udp(to);
            let guest = bed.guest.udp(family.guest(6000));
            sys::set_pmtu_discovery(guest.as_fd(), family.guest, PmtuDiscovery::Dont).unwrap();
            guest.send_to(b"first", to).unwrap();
            receive(&server, b"first");
            // IPv6 datagrams are never fragmented on the way: the guest's own would be, once it knows.
            let size = if family.guest.is_ipv4() { 1400 } else { 1200 };
            for i in 0..20 {
                guest.send_to(&content(i, size), to).unwrap();
            }
            for i in 0..20 {
                receive(&server, &content(i, size));
            }
        }
        assert_eq!(bed.netd.dropped(Reason::UdpSend), 0);
    });
}

#[test]
fn an_error_of_a_peer_that_began_reaches_the_guest() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let server = bed.guest.udp(family.any(7000));
            let client = bed.client.udp(family.client(5001));
            client.send_to(b"hello", family.pod(7000)).unwrap();
            assert_eq!(receive(&server, b"hello"), family.client(5001));
            drop(client);
            server.connect(family.client(5001)).unwrap();
            for _ in 0..3 {
                server.send(b"still there?").unwrap();
                let error = server.recv(&mut [0; 16]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            }
            // The listener and its other peers are none the worse for it.
            drop(server);
            let server = bed.guest.udp(family.any(7000));
            let other = bed.client.udp(family.client(5002));
            other.send_to(b"hello", family.pod(7000)).unwrap();
            assert_eq!(receive(&server, b"hello"), family.client(5002));
            server.send_to(b"welcome", family.client(5002)).unwrap();
            assert_eq!(receive(&other, b"welcome"), family.pod(7000));
        }
    });
}

#[test]
fn a_guest_answers_from_the_address_that_was_asked_even_if_the_port_is_closed_meanwhile() {
    with_bed(Setup::default(), |bed| {
        bed.pod.ip("addr add 10.9.0.7/24 dev eth0\n");
        let [v4, _] = bed.families();
        let server = bed.guest.udp(v4.any(7000));
        let client = bed.client.udp(v4.client(5001));
        let alias: SocketAddr = "10.9.0.7:7000".parse().unwrap();
        client.send_to(b"question", alias).unwrap();
        let from = receive(&server, b"question");
        server.send_to(b"answer", from).unwrap();
        assert_eq!(receive(&client, b"answer"), alias);
        client.send_to(b"question", v4.pod(7000)).unwrap();
        receive(&server, b"question");
        server.send_to(b"answer", from).unwrap();
        assert_eq!(receive(&client, b"answer"), v4.pod(7000));
        assert_eq!(bed.netd.counters().udp_flows.get(), 1);
        // From now on the guest speaks first, by a socket of the flow's own.
        bed.netd.control.remove_ports(vec![udp(7000, 7000)]);
        server.send_to(b"by the way", from).unwrap();
        assert_eq!(receive(&client, b"by the way"), v4.pod(7000));
        client.send_to(b"thanks", v4.pod(7000)).unwrap();
        assert_eq!(receive(&server, b"thanks"), from);
    });
}

#[test]
fn a_closed_port_is_an_error_at_the_guest() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let guest = bed.guest.udp(family.guest(6000));
            guest.connect(family.client(9)).unwrap();
            for _ in 0..3 {
                guest.send(b"question").unwrap();
                let error = guest.recv(&mut [0; 16]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            }
            // It opens, and the same flow works.
            let server = bed.client.udp(family.client(9));
            guest.send(b"now?").unwrap();
            let from = receive(&server, b"now?");
            server.send_to(b"yes", from).unwrap();
            assert_eq!(receive(&guest, b"yes"), family.client(9));
        }
        assert!(bed.netd.counters().icmp_errors_to_guest.get() >= 6);
    });
}

#[test]
fn an_unreachable_destination_is_an_error_at_the_guest() {
    with_bed(Setup::default(), |bed| {
        bed.pod.ip("route del default via 10.9.0.1\nroute del default via fd00:9::1\n");
        for (family, to) in bed.families().into_iter().zip(["198.51.100.1:80", "[2001:db8:1::1]:80"]) {
            let guest = bed.guest.udp(family.guest(6000));
            guest.connect(to.parse::<SocketAddr>().unwrap()).unwrap();
            sys::set_recv_error(guest.as_fd(), family.guest).unwrap();
            guest.send(b"question").unwrap();
            let error = guest.recv(&mut [0; 16]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
        }
    });
}

#[test]
fn errors_of_routers_reach_the_guest_with_their_address() {
    with_bed(Setup::default(), |bed| {
        let far = bed.far(1300);
        let peers = ["192.0.2.2:5000", "[2001:db8::2]:5000"].map(|a| a.parse::<SocketAddr>().unwrap());
        for (family, to) in bed.families().into_iter().zip(peers) {
            let server = far.udp(to);
            let guest = bed.guest.udp(family.guest(6000));
            guest.connect(to).unwrap();
            sys::set_recv_error(guest.as_fd(), family.guest).unwrap();
            let error = || {
                // Waits for the error.
                guest.recv(&mut [0; 16]).unwrap_err();
                eventually("an error", || sys::recv_error(guest.as_fd()).unwrap())
            };
            // The path is narrower than the guest's link (RFC 1191, RFC 8201).
            guest.send(&content(1, 1400)).unwrap();
            let e = error();
            assert_eq!((e.errno.cast_signed(), e.info), (libc::EMSGSIZE, 1300), "{e:?}");
            // The guest has learned: now it fragments.
            guest.send(&content(1, 1400)).unwrap();
            receive(&server, &content(1, 1400));
            // One hop only.
            sys::set_ttl(guest.as_fd(), family.guest, 1).unwrap();
            guest.send(b"not far").unwrap();
            let e = error();
            assert_eq!(e.errno.cast_signed(), libc::EHOSTUNREACH, "{e:?}");
            let kind = if family.guest.is_ipv4() { 11 } else { 3 };
            assert_eq!((e.icmp_type, e.icmp_code, e.offender), (kind, 0, Some(family.client)), "{e:?}");
            // Two are enough; and the answer's way is counted.
            sys::set_ttl(guest.as_fd(), family.guest, 2).unwrap();
            guest.send(b"far").unwrap();
            let from = receive(&server, b"far");
            assert_eq!(from, family.pod(6000));
            server.send_to(b"well done", from).unwrap();
            receive(&guest, b"well done");
        }
    });
}

#[test]
fn a_datagram_to_a_closed_port_of_the_guest_does_no_harm() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let client = bed.client.udp(family.client(5000));
            client.send_to(b"question", family.pod(7000)).unwrap();
            let counters = bed.netd.counters();
            let before = counters.guest_tx_frames.get();
            // The guest's own kernel answers by an ICMP error, which netd takes.
            eventually("the guest's answer", || (counters.guest_tx_frames.get() > before).then_some(()));
            let server = bed.guest.udp(family.any(7000));
            assert!(SockRef::from(&client).take_error().unwrap().is_none());
            client.send_to(b"now?", family.pod(7000)).unwrap();
            assert_eq!(receive(&server, b"now?"), family.client(5000));
        }
    });
}

#[test]
fn a_reserved_port_of_the_pod_is_left_to_the_program_that_has_it() {
    // Of Istio's presets.
    const RESERVED: u16 = 15_053;
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let guest = bed.guest.udp(family.guest(RESERVED));
            // More peers than have sockets of their own.
            for port in 5000..5020 {
                let server = bed.client.udp(family.client(port));
                guest.send_to(b"question", family.client(port)).unwrap();
                let from = receive(&server, b"question");
                assert_ne!(from, family.pod(RESERVED));
                server.send_to(b"answer", from).unwrap();
                assert_eq!(receive(&guest, b"answer"), family.client(port));
            }
            // A proxy that starts now, and shares its port with no socket.
            bed.pod.udp(family.any(RESERVED));
        }
    });
}

/// A server answers from another port than it was asked at, and goes on from there.
fn answers_from_elsewhere(bed: &Bed, family: Family) {
    let guest = bed.guest.udp(family.guest(6000));
    let server = bed.client.udp(family.client(69));
    guest.send_to(b"read", family.client(69)).unwrap();
    let at = receive(&server, b"read");
    assert_eq!(at, family.pod(6000));
    let transfer = bed.client.udp(family.client(40_001));
    for block in 0..3 {
        transfer.send_to(&content(block, 516), at).unwrap();
        assert_eq!(receive(&guest, &content(block, 516)), family.client(40_001));
        guest.send_to(b"ack", family.client(40_001)).unwrap();
        assert_eq!(receive(&transfer, b"ack"), at);
    }
    // The one that was asked is heard as before.
    server.send_to(b"bye", at).unwrap();
    assert_eq!(receive(&guest, b"bye"), family.client(69));
}

#[test]
fn an_answer_from_another_port_reaches_the_guest() {
    for pairs in [1, 2] {
        with_bed(Setup { pairs, ..Setup::default() }, |bed| {
            for family in bed.families() {
                answers_from_elsewhere(bed, family);
                // From a port of the guest that speaks to more peers than have sockets of their own.
                let guest = bed.guest.udp(family.guest(6001));
                let servers: Vec<_> = (5000..5020).map(|port| bed.client.udp(family.client(port))).collect();
                for server in &servers {
                    guest.send_to(b"read", server.local_addr().unwrap()).unwrap();
                    receive(server, b"read");
                }
                let other = bed.client.udp(family.client(40_002));
                other.send_to(b"data", family.pod(6001)).unwrap();
                assert_eq!(receive(&guest, b"data"), family.client(40_002));
            }
        });
    }
}

#[test]
fn where_ports_are_listed_only_hosts_that_were_asked_may_answer_from_another_port() {
    let port_spec = Ports { udp: PortSpec::default(), ..Ports::default() };
    with_bed(Setup { port_spec, ..Setup::default() }, |bed| {
        let other = bed.far(1500);
        for (family, far) in bed.families().into_iter().zip(["192.0.2.2:5000", "[2001:db8::2]:5000"]) {
            answers_from_elsewhere(bed, family);
            // A host that the guest has not spoken to.
            let guest = bed.guest.udp(family.guest(6002));
            let server = bed.client.udp(family.client(5000));
            guest.send_to(b"read", family.client(5000)).unwrap();
            let at = receive(&server, b"read");
            let denied = bed.netd.dropped(Reason::Denied);
            other.udp(far.parse().unwrap()).send_to(b"hello", at).unwrap();
            eventually("a drop", || (bed.netd.dropped(Reason::Denied) == denied + 1).then_some(()));
        }
    });
}
