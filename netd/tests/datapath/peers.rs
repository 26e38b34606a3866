//! Ports with many peers: they share a socket, whether the guest or a peer begins.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use netd::config::ports::{PortSpec, Ports};
use netd::control::Control;
use netd::counters::Reason;
use netd::sockets::SteeredSockets;
use netd::sys;
use socket2::{Domain, Protocol, Socket, Type};

use crate::bed::{Bed, Family, Setup, TIMEOUT, eventually, udp, with_bed};
use crate::migration::ttl;

/// Peers of a port that has one socket for all of them.
const PEERS: u16 = 5000;
/// Descriptors that come and go while a test asks something.
const SLACK: usize = 40;

fn pairs(pairs: usize) -> Setup {
    Setup { pairs, ..Setup::default() }
}

/// Descriptors of this process, which is netd's as well.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Has netd serve a socket to which every port could be steered; its own port.
fn steer(bed: &Bed) -> u16 {
    let sockets = bed.pod.run(|| SteeredSockets::open(false, true)).unwrap();
    let port = sockets.udp.as_ref().unwrap().local_addr().unwrap().as_socket().unwrap().port();
    bed.netd.control.steer(sockets);
    port
}

/// A peer asks the guest and is answered from where it has asked.
pub(crate) fn ask(server: &UdpSocket, peer: &UdpSocket, to: SocketAddr, what: &[u8]) {
    let mut buffer = [0; 64];
    // A connected socket takes the answer from there alone.
    peer.connect(to).unwrap();
    peer.send(what).unwrap();
    let (n, from) = server.recv_from(&mut buffer).expect("the guest was not asked");
    assert_eq!((&buffer[..n], from), (what, peer.local_addr().unwrap()));
    server.send_to(what, from).unwrap();
    let n = peer.recv(&mut buffer).expect("no answer came");
    assert_eq!(&buffer[..n], what);
}

/// So many peers, one after the other, ask a port of the pod that leads to `server`.
fn ask_one_by_one(bed: &Bed, family: Family, server: &UdpSocket, port: u16, peers: u16) {
    let before = descriptors();
    for i in 0..peers {
        let peer = bed.client.udp(family.client(10_000 + i));
        ask(server, &peer, family.pod(port), &i.to_be_bytes());
    }
    let after = descriptors();
    assert!(after < before + SLACK, "{peers} peers: {before} descriptors became {after}");
}

#[test]
fn the_peers_of_a_steered_port_share_a_socket() {
    for count in [1, 2] {
        with_bed(pairs(count), |bed| {
            let port = steer(bed);
            for (family, peers) in bed.families().into_iter().zip([PEERS, 200]) {
                let server = bed.guest.udp(family.any(port));
                ask_one_by_one(bed, family, &server, port, peers);
            }
            assert_eq!(bed.netd.counters().udp_flows.get(), u64::from(PEERS) + 200);
            assert_eq!(bed.netd.dropped(Reason::SocketLimit), 0);
        });
    }
}

#[test]
fn the_peers_of_a_forwarded_port_share_a_socket_on_several_pairs() {
    with_bed(pairs(2), |bed| {
        for family in bed.families() {
            let server = bed.guest.udp(family.any(80));
            ask_one_by_one(bed, family, &server, 8080, 1000);
        }
        // Flows that lose their port have sockets of their own then, with whichever pair they are.
        let [v4, _] = bed.families();
        let server = bed.guest.udp(v4.any(7000));
        let peers: Vec<_> = (0..20).map(|i| bed.client.udp(v4.client(20_000 + i))).collect();
        for peer in &peers {
            ask(&server, peer, v4.pod(7000), b"before");
        }
        bed.netd.control.remove_ports(vec![udp(7000, 7000)]);
        for peer in &peers {
            server.send_to(b"after", peer.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 16];
            let n = peer.recv(&mut buffer).expect("the flow did not go on");
            assert_eq!(&buffer[..n], b"after");
            ask(&server, peer, v4.pod(7000), b"again");
        }
        // No other peer reaches the guest.
        let other = bed.client.udp(v4.client(30_000));
        other.connect(v4.pod(7000)).unwrap();
        let refused = eventually("a refusal", || match other.send(b"hello") {
            Ok(_) => other.take_error().unwrap(),
            Err(error) => Some(error),
        });
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_guest_that_speaks_to_many_from_one_port_has_few_sockets_and_all_answers() {
    for count in [1, 2] {
        let port_spec = Ports { udp: PortSpec::default(), ..Ports::default() };
        with_bed(Setup { port_spec, ..pairs(count) }, |bed| {
            let far = bed.far(1500);
            for (family, stranger) in bed.families().into_iter().zip(["192.0.2.2:5000", "[2001:db8::2]:5000"])
            {
                let guest = bed.guest.udp(family.guest(6000));
                let peers: Vec<_> = (0..300).map(|i| bed.client.udp(family.client(20_000 + i))).collect();
                let before = descriptors();
                let mut buffer = [0; 64];
                for round in [b"first", b"again"] {
                    for peer in &peers {
                        let at = peer.local_addr().unwrap();
                        guest.send_to(round, at).unwrap();
                        let (n, from) = peer.recv_from(&mut buffer).unwrap();
                        assert_eq!((&buffer[..n], from), (&round[..], family.pod(6000)));
                        peer.send_to(&at.port().to_be_bytes(), from).unwrap();
                        let (n, from) = guest.recv_from(&mut buffer).unwrap();
                        assert_eq!((&buffer[..n], from), (&at.port().to_be_bytes()[..], at));
                    }
                }
                let after = descriptors();
                assert!(after < before + SLACK, "{before} descriptors became {after}");
                // A host to which the guest has not spoken does not reach it.
                let denied = bed.netd.dropped(Reason::Denied);
                let stranger = far.udp(stranger.parse().unwrap());
                stranger.send_to(b"hello", family.pod(6000)).unwrap();
                eventually("the drop", || (bed.netd.dropped(Reason::Denied) > denied).then_some(()));
                // One of the many has gone, and the guest is told which.
                let gone = peers.last().unwrap().local_addr().unwrap();
                drop(peers);
                sys::set_recv_error(guest.as_fd(), family.guest).unwrap();
                guest.send_to(b"still there?", gone).unwrap();
                guest.recv(&mut buffer).unwrap_err();
                let error = eventually("an error", || sys::recv_error(guest.as_fd()).unwrap());
                assert_eq!(error.errno.cast_signed(), libc::ECONNREFUSED, "{error:?}");
                assert_eq!(error.destination, Some(gone), "{error:?}");
            }
        });
    }
}

#[test]
fn each_peer_of_a_shared_socket_gets_the_time_to_live_that_the_guest_chose() {
    for count in [1, 2] {
        with_bed(pairs(count), |bed| {
            let port = steer(bed);
            let [v4, _] = bed.families();
            let raw = bed.client.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap());
            raw.set_read_timeout(Some(TIMEOUT)).unwrap();
            // The second one: more peers than have sockets of their own.
            for (from, peers_begin) in [(port, true), (6000, false)] {
                let guest = bed.guest.udp(v4.guest(from));
                let peers: Vec<_> = (0..40).map(|i| bed.client.udp(v4.client(20_000 + i))).collect();
                if peers_begin {
                    peers.iter().for_each(|peer| ask(&guest, peer, v4.pod(port), b"hello"));
                }
                for (wanted, peer) in (7..).zip(&peers) {
                    guest.set_ttl(wanted).unwrap();
                    let to = peer.local_addr().unwrap();
                    guest.send_to(b"how far", to).unwrap();
                    let sent =
                        |packet: &[u8]| packet[2..4] == to.port().to_be_bytes() && packet[8..] == *b"how far";
                    assert_eq!(u32::from(ttl(&raw, sent)), wanted, "{to}");
                }
            }
        });
    }
}

#[test]
fn an_error_of_a_steered_ports_peer_reaches_the_guest() {
    for count in [1, 2] {
        with_bed(pairs(count), |bed| {
            let port = steer(bed);
            for family in bed.families() {
                let server = bed.guest.udp(family.any(port));
                let peers: Vec<_> = (0..3).map(|i| bed.client.udp(family.client(20_000 + i))).collect();
                for peer in &peers {
                    ask(&server, peer, family.pod(port), b"hello");
                }
                drop(peers);
                for i in 0..3 {
                    server.connect(family.client(20_000 + i)).unwrap();
                    server.send(b"still there?").unwrap();
                    let error = server.recv(&mut [0; 16]).unwrap_err();
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
                }
            }
        });
    }
}
