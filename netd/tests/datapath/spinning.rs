//! A worker that spins while datagrams go back and forth, and what it owes the guest when they end.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use etherparse::PacketBuilder;
use frontend_double::{HEADER, TX};

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{GUEST_MAC, MAC, Raw, Setup, TIMEOUT, eventually, with_pod};

/// The client's port and the guest's.
const PORT: u16 = 5000;
/// What both send.
const WORD: &[u8] = b"a word of the dialogue";
/// Dialogues.
const ROUNDS: u32 = 20;

fn say(raw: &mut Raw) {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
        .udp(PORT, PORT)
        .write(&mut frame, WORD)
        .unwrap();
    raw.send(&frame);
}

/// The guest sends a datagram and the client answers.
fn exchange(raw: &mut Raw, client: &UdpSocket) {
    say(raw);
    let mut buffer = [0; 64];
    let (_, from) = client.recv_from(&mut buffer).unwrap();
    client.send_to(WORD, from).unwrap();
    while !raw.double.recv(TIMEOUT).unwrap().expect("no answer came")[HEADER..].ends_with(WORD) {}
}

#[test]
fn a_dialogues_last_datagram_is_given_back_with_an_interrupt() {
    with_pod(Setup::default(), |pod| {
        let client = pod.client.udp(SocketAddr::from((CLIENT_V4, PORT)));
        let mut raw = Raw::plug(&pod.netd);
        let spins = || pod.netd.counters().spins_found.get();
        let deadline = Instant::now() + TIMEOUT;
        for _ in 0..ROUNDS {
            // Without a pause: a wait that is too long ends a dialogue.
            let before = spins();
            while spins() == before {
                assert!(Instant::now() < deadline, "the worker never spins");
                exchange(&mut raw, &client);
            }
            raw.double.reclaim();
            let ring = raw.double.ring(TX);
            ring.interrupted();
            ring.request_interrupts();
            say(&mut raw);
            let mut buffer = [0; 64];
            client.recv_from(&mut buffer).unwrap();
            let ring = raw.double.ring(TX);
            eventually("the interrupt", || ring.interrupted().then_some(()));
            assert!(ring.waiting() > 0, "an interrupt for nothing");
        }
    });
}
