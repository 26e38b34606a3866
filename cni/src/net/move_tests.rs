//! A machine's move between two pods, in real network namespaces.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use super::bed::{PodNet, attachment, network, on_node};
use super::tests::{make, v4, v6};
use super::{activate, announce_again, attach, depart, silence, silent_interfaces};
use crate::config::Network;

/// How long what has to happen is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// The pods of a machine and of its peer on one network.
fn staying() -> (PodNet, PodNet, Network) {
    let (source, peer, network) = (PodNet::new(), PodNet::new(), network(&json!({})));
    make(&network, &peer, "peer", 10, false).unwrap();
    make(&network, &source, "source", 9, false).unwrap();
    (source, peer, network)
}

/// The pods of a machine that moves, the target silent, and of its peer, on one network.
fn moving() -> (PodNet, PodNet, PodNet, Network) {
    let (source, peer, network) = staying();
    let target = PodNet::new();
    make(&network, &target, "target", 9, true).unwrap();
    (source, target, peer, network)
}

#[test]
fn an_address_moves_from_the_source_to_the_target() {
    on_node(|| {
        let (source, target, peer, network) = moving();
        for address in [v4(9), v6(9)] {
            // Both are there, and only the source answers.
            let silent = target.serve(address, "target");
            let server = source.serve(address, "source");
            assert_eq!(peer.ask(address), "source");
            server.join().unwrap();
            drop(silent);
        }
        // The order of a switch-over: the source's address goes on to exist, silently, while the target's begins to speak.
        assert_eq!(depart(&source.0, &[v4(9)], || ()).unwrap().silent, [""; 0], "the other address stays");
        assert!(!source.enter(|| silence::is_silent("net1")).unwrap());
        assert_eq!(depart(&source.0, &[v4(9), v6(9)], || ()).unwrap().silent, ["net1"]);
        activate(&target.0, "net1", None).unwrap();
        assert!(source.enter(|| silence::is_silent("net1")).unwrap());
        // The sender does not hear that nothing goes out.
        let lost = source.enter(|| {
            let socket = UdpSocket::bind((v4(9), 0)).unwrap();
            // Otherwise the kernel keeps it to itself.
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4RecvErr, &true).unwrap();
            socket.send_to(b"x", (v4(10), 9)).map(drop)
        });
        assert!(lost.is_ok(), "{lost:?}");
        attach::remove(&attachment("source"), &network, Some(&source.0)).unwrap();
        for address in [v4(9), v6(9)] {
            assert_eq!(peer.ask(address), "target");
        }
    });
}

#[test]
fn what_comes_to_the_source_meanwhile_reaches_the_target() {
    on_node(|| {
        let (source, target, peer, _) = moving();
        let bound = |pod: &PodNet, address| {
            let socket = pod.enter(|| UdpSocket::bind((address, 7)).unwrap());
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket
        };
        let both = [v4(9), v6(9)].map(|at| (at, bound(&source, at), bound(&target, at)));
        let asks = [v4(10), v6(10)].map(|at| bound(&peer, at));
        let mut buffer = [0; 16];
        for ((at, here, _), ask) in both.iter().zip(&asks) {
            ask.send_to(b"before", (*at, 7)).unwrap();
            assert_eq!(here.recv(&mut buffer).unwrap(), 6, "the peer knows the way");
        }

        let departed = depart(&source.0, &[v4(9), v6(9)], || ()).unwrap();
        let over = Arc::new(EventFd::new().unwrap());
        let ended = over.clone();
        let sending = std::thread::spawn(move || departed.kept.unwrap().send_on(ended.as_fd()).unwrap());
        for ((at, ..), ask) in both.iter().zip(&asks) {
            ask.send_to(b"meanwhile", (*at, 7)).unwrap();
        }
        let server = target.serve(v4(9), "target");
        let client = peer.enter(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let begun = socket.connect(&SocketAddr::new(v4(9), 80).into());
            assert_eq!(begun.unwrap_err().raw_os_error(), Some(nix::libc::EINPROGRESS));
            socket.set_nonblocking(false).unwrap();
            TcpStream::from(socket)
        });
        activate(&target.0, "net1", None).unwrap();
        for ((_, here, there), ask) in both.iter().zip(&asks) {
            let (length, from) = there.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"meanwhile");
            there.send_to(b"answer", from).unwrap();
            assert_eq!(ask.recv(&mut buffer).unwrap(), 6, "the switch knows the peer");
            here.set_nonblocking(true).unwrap();
            assert!(here.recv(&mut buffer).is_err(), "the source has taken nothing");
        }
        server.join().unwrap();
        drop(client);
        over.write(1).unwrap();
        let fate = sending.join().unwrap();
        assert!(fate.sent >= 3 && fate.lost == 0, "{fate:?}");
    });
}

#[test]
fn the_announcement_is_noticed_in_a_flood() {
    on_node(|| {
        let (source, target, peer, _) = moving();
        let here = source.enter(|| UdpSocket::bind((v4(9), 7)).unwrap());
        let ask = peer.enter(|| UdpSocket::bind((v4(10), 7)).unwrap());
        ask.send_to(b"before", (v4(9), 7)).unwrap();
        here.recv(&mut [0; 16]).unwrap();
        let flooding = Arc::new(AtomicU64::new(0));
        let floods = Arc::downgrade(&flooding);
        let flood = std::thread::spawn(move || {
            while let Some(sent) = floods.upgrade() {
                // The peer's own queue may be full.
                let done = ask.send_to(b"meanwhile", (v4(9), 7));
                sent.fetch_add(u64::from(done.is_ok()), Relaxed);
            }
        });
        let departed = depart(&source.0, &[v4(9), v6(9)], || ()).unwrap();
        // Without this the address may have moved before the flooding thread sends its next datagram.
        let (before, deadline) = (flooding.load(Relaxed), Instant::now() + LIMIT);
        while flooding.load(Relaxed) < before + 10 {
            assert!(Instant::now() < deadline, "the flood does not flow");
            std::thread::yield_now();
        }
        // It is never raised: the loop ends by what it hears.
        let over = EventFd::new().unwrap();
        let sending = std::thread::spawn(move || departed.kept.unwrap().send_on(over.as_fd()).unwrap());
        let activated = activate(&target.0, "net1", None).unwrap();
        while !sending.is_finished() {
            // The kernel's buffer may have no room for an announcement.
            announce_again(&target.0, "net1", &activated).unwrap();
        }
        let fate = sending.join().unwrap();
        assert!(fate.sent > 0, "{fate:?}");
        drop(flooding);
        flood.join().unwrap();
    });
}

#[test]
fn frames_for_a_machine_that_stays_go_nowhere() {
    on_node(|| {
        let (source, peer, _) = staying();
        let here = source.enter(|| UdpSocket::bind((v4(9), 7)).unwrap());
        let ask = peer.enter(|| UdpSocket::bind((v4(10), 7)).unwrap());
        ask.send_to(b"before", (v4(9), 7)).unwrap();
        here.recv(&mut [0; 16]).unwrap();
        let departed = depart(&source.0, &[v4(9), v6(9)], || ()).unwrap();
        ask.send_to(b"meanwhile", (v4(9), 7)).unwrap();
        activate(&source.0, "net1", None).unwrap();
        let over = EventFd::new().unwrap();
        over.write(1).unwrap();
        let fate = departed.kept.unwrap().send_on(over.as_fd()).unwrap();
        assert_eq!((fate.sent, fate.lost), (0, 1));
    });
}

#[test]
fn a_source_that_stays_is_heard_again() {
    on_node(|| {
        let (source, peer, _) = staying();
        for _ in 0..2 {
            for _ in 0..2 {
                assert_eq!(depart(&source.0, &[v4(9), v6(9)], || ()).unwrap().silent, ["net1"]);
            }
            assert_eq!(silent_interfaces(&source.0).unwrap(), ["net1"]);
            assert!(activate(&source.0, "net1", None).unwrap().was_silent);
            for address in [v4(9), v6(9)] {
                let server = source.serve(address, "source");
                assert_eq!(peer.ask(address), "source");
                server.join().unwrap();
            }
        }
    });
}
