//! UDP flows: those that share a socket of a port go along, and the target has one socket for them as well; so does what has come
//! for the guest and it has not got yet.

use std::net::UdpSocket;

use super::helper::{Fault, Helper};
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

/// Datagrams of each peer that come while the guest stands still.
const MEANWHILE: u32 = 40;

/// A flow that a peer has opened to port 7000 and one that the guest has opened, of each family: the guest's end and the peer's.
fn both_ways(place: &Place) -> Vec<(UdpSocket, UdpSocket)> {
    let of = |family: Family| {
        let (served, asks) = (place.guest.udp(family.guest(7000)), place.world.udp(family.client(20_000)));
        ask(&served, &asks, family.pod(7000), b"first");
        asks.connect(family.pod(7000)).unwrap();
        let (speaks, hears) = (place.guest.udp(family.guest(FROM)), place.world.udp(family.client(20_001)));
        speaks.send_to(b"first", family.client(20_001)).unwrap();
        let (_, from) = hears.recv_from(&mut [0; 64]).unwrap();
        hears.connect(from).unwrap();
        [(served, asks), (speaks, hears)]
    };
    families().into_iter().flat_map(of).collect()
}

fn send_meanwhile(flows: &[(UdpSocket, UdpSocket)]) {
    for number in 0..MEANWHILE {
        // Of several lengths, one that needs padding and one that had to be fragmented among them.
        let length = [4, 100, 1400, 4000][number as usize % 4];
        let mut payload = vec![7; length];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        flows.iter().for_each(|(_, peer)| assert_eq!(peer.send(&payload).unwrap(), length));
    }
}

fn assert_got(flows: &[(UdpSocket, UdpSocket)]) {
    let mut buffer = [0; 5000];
    for (guest, _) in flows {
        for number in 0..MEANWHILE {
            let n = guest.recv(&mut buffer).expect("a datagram is lost");
            assert_eq!(
                (n, &buffer[..4]),
                ([4, 100, 1400, 4000][number as usize % 4], &number.to_be_bytes()[..])
            );
            assert!(buffer[4..n].iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn datagrams_that_come_while_the_guest_stands_still_go_along() {
    with_place_of(Ports::Forwarded, |place| {
        let flows = both_ways(place);
        for _ in 0..2 {
            let positions = place.stop_guest();
            send_meanwhile(&flows);
            let target = place.target();
            let helper = Helper::serve(&target.vhost_user(), Fault::None, place.activation(1 - place.at));
            let moved = place.carry_over(&positions, target, Some(helper));
            assert_got(&flows);
            place.end(moved);
        }
    });
}

#[test]
fn datagrams_that_come_while_the_guest_stands_still_are_its_own_where_it_stays() {
    with_place_of(Ports::Forwarded, |place| {
        let flows = both_ways(place);
        let positions = place.stop_guest();
        send_meanwhile(&flows);
        place.pump.double().unwrap().save().unwrap();
        place.go_on(&positions);
        assert_got(&flows);
    });
}
