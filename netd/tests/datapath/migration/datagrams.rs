//! UDP flows that share a socket of a port: they go along, and the target has one socket for them as well.

use std::net::UdpSocket;

use super::place::{STEERED, families};
use super::{Place, Ports};
use crate::bed::{Family, eventually, with_place_of};
use crate::peers::ask;

/// Peers of each port: more than those of which each has a socket of its own.
const PEERS: u16 = 40;
/// The guest's port from which it speaks first.
const FROM: u16 = 6000;

/// The sockets of the world's peers, whose ports begin at `first`.
fn peers(place: &Place, family: Family, first: u16) -> Vec<UdpSocket> {
    (0..PEERS).map(|i| place.world.udp(family.client(first + i))).collect()
}

/// The guest's port and its peers of one family.
struct Conversations {
    family: Family,
    guest: UdpSocket,
    peers: Vec<UdpSocket>,
}

impl Conversations {
    /// The guest says something to each peer, whichever began, and the peer sees it come from the same port of the pod
    /// and answers.
    fn guest_speaks(&self, port: u16, what: &[u8]) {
        let mut buffer = [0; 64];
        for peer in &self.peers {
            let at = peer.local_addr().unwrap();
            self.guest.send_to(what, at).unwrap();
            let (n, from) = peer.recv_from(&mut buffer).expect("nothing came of the guest");
            assert_eq!((&buffer[..n], from), (what, self.family.pod(port)));
            let answer = at.port().to_be_bytes();
            peer.send_to(&answer, from).unwrap();
            let (n, from) = self.guest.recv_from(&mut buffer).expect("no answer came");
            assert_eq!((&buffer[..n], from), (&answer[..], at));
        }
    }

    /// Each peer asks a port of the pod and is answered from there.
    fn peers_ask(&self, port: u16, what: &[u8]) {
        for peer in &self.peers {
            ask(&self.guest, peer, self.family.pod(port), what);
        }
    }
}

/// The peers of a port of the guest that speaks first, and those of a port of the pod.
fn flows_that_share_a_socket_go_along(ports: Ports, port: u16) {
    with_place_of(ports, move |place| {
        let conversations = |place: &Place, from: u16, first: u16| {
            families().map(|family| Conversations {
                family,
                guest: place.guest.udp(family.guest(from)),
                peers: peers(place, family, first),
            })
        };
        let begun_here = conversations(place, FROM, 20_000);
        let begun_there = conversations(place, port, 30_000);
        begun_here.iter().for_each(|c| c.guest_speaks(FROM, b"first"));
        begun_there.iter().for_each(|c| c.peers_ask(port, b"first"));
        let all = u64::from(PEERS) * 4;
        assert_eq!(place.process.counter("udp_flows"), all);
        let sockets = place.process.descriptors();
        for round in 0..2 {
            let moved = place.migrate();
            assert_eq!(u64::from(place.process.status().udp_flows), all, "round {round}");
            place.end(moved);
            // Either side may be the first to speak after the move.
            for c in &begun_here {
                c.guest_speaks(FROM, b"again");
                c.peers_ask(FROM, b"and again");
            }
            for c in &begun_there {
                c.guest_speaks(port, b"again");
                c.peers_ask(port, b"and again");
            }
            assert_eq!(place.process.counter("udp_flows"), 0, "flows were opened anew in round {round}");
            for reason in ["denied", "no_connection", "socket_limit"] {
                assert_eq!(place.process.dropped(reason), 0, "{reason} in round {round}");
            }
            eventually("as many sockets as before", || {
                (place.process.descriptors().abs_diff(sockets) < usize::from(PEERS) / 2).then_some(())
            });
        }
    });
}

#[test]
fn the_peers_of_a_steered_port_and_of_a_guests_port_go_along_with_their_shared_sockets() {
    flows_that_share_a_socket_go_along(Ports::Steered, STEERED);
}

#[test]
fn the_peers_of_a_forwarded_port_go_along_to_the_listener_of_the_target() {
    flows_that_share_a_socket_go_along(Ports::Forwarded, 7000);
}
