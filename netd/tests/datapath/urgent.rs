//! Urgent data (RFC 9293 3.8.5): every byte arrives where it stands in the stream, and the connection goes on.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use socket2::SockRef;

use crate::bed::{Random, Setup, content, exchange, expect_end, read_exactly, transfer, with_bed};
use crate::tcp::{cases, open};

/// Bytes that are sent at once.
#[derive(Clone, Debug)]
enum Piece {
    Plain(Vec<u8>),
    /// The last one is urgent.
    Urgent(Vec<u8>),
}

use Piece::{Plain, Urgent};

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Plain(bytes) | Urgent(bytes) => bytes,
        }
    }
}

/// Sends pieces, each by itself.
pub(crate) fn send_urgent(mut to: &TcpStream, bytes: &[u8]) {
    let (last, rest) = bytes.split_last().unwrap();
    to.write_all(rest).unwrap();
    assert_eq!(SockRef::from(to).send_out_of_band(&[*last]).unwrap(), 1);
}

fn send(mut to: &TcpStream, pieces: &[Piece]) {
    to.set_nodelay(true).unwrap();
    for piece in pieces {
        match piece {
            Plain(bytes) => to.write_all(bytes).unwrap(),
            Urgent(bytes) => send_urgent(to, bytes),
        }
    }
}

fn flat(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(Piece::bytes).copied().collect()
}

/// Where the mark may stand.
fn shapes() -> Vec<Vec<Piece>> {
    let plain = |text: &str| Plain(text.into());
    let urgent = || Urgent(b"U".into());
    vec![
        vec![plain("AAAAAAAAAA"), urgent(), plain("bcdef")],
        vec![urgent()],
        vec![urgent(), plain("bcdef")],
        vec![plain("abc"), urgent()],
        vec![plain("ab"), urgent(), plain("cd"), urgent(), plain("ef")],
        vec![urgent(), urgent()],
        vec![Plain(content(1, 100_000)), Urgent(content(2, 100_000)), Plain(content(3, 100_000))],
    ]
}

/// Random pieces, some of them urgent.
fn pieces(seed: u64) -> Vec<Piece> {
    let mut random = Random::new(seed);
    let piece = |i| {
        let bytes = content(i, 1 + random.below(20_000) as usize);
        if random.below(3) == 0 { Urgent(bytes) } else { Plain(bytes) }
    };
    (0..300).map(piece).collect()
}

/// Urgent data of peers, with a kernel that keeps peek offsets or as with one that does not.
fn arrives(peek_offset: bool) {
    with_bed(Setup { peek_offset, ..Setup::default() }, |bed| {
        for (family, by) in cases(bed) {
            for pieces in shapes() {
                if pieces.len() < 3 || pieces[0].bytes().len() < 100 {
                    eprintln!("{}, opened by {by:?}, {pieces:?}", family.guest);
                }
                let (guest, client) = open(bed, family, by);
                for _ in 0..3 {
                    send(&client, &pieces);
                    read_exactly(&guest, &flat(&pieces));
                }
                exchange(&guest, &client, 50_000);
                // The last that the peer says.
                let (guest, client) = open(bed, family, by);
                send(&client, &pieces);
                client.shutdown(Shutdown::Write).unwrap();
                read_exactly(&guest, &flat(&pieces));
                expect_end(&guest);
                transfer(&guest, &client, 4, 50_000);
                // The guest has said all.
                let (guest, client) = open(bed, family, by);
                guest.shutdown(Shutdown::Write).unwrap();
                expect_end(&client);
                send(&client, &pieces);
                read_exactly(&guest, &flat(&pieces));
                transfer(&client, &guest, 5, 50_000);
            }
        }
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn urgent_data_arrives_in_its_place() {
    arrives(true);
}

#[test]
fn urgent_data_arrives_in_its_place_where_the_kernel_keeps_no_offset() {
    arrives(false);
}

/// The same of a peer that is ahead of the guest, so that marks wait in the pod's socket.
fn waits(peek_offset: bool) {
    with_bed(Setup { peek_offset, ..Setup::default() }, |bed| {
        for (seed, (family, by)) in (0..).zip(cases(bed)) {
            eprintln!("{}, opened by {by:?}", family.guest);
            let (guest, client) = open(bed, family, by);
            SockRef::from(&guest).set_recv_buffer_size(8 << 10).unwrap();
            let pieces = pieces(seed);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    send(&client, &pieces);
                    client.shutdown(Shutdown::Write).unwrap();
                });
                read_exactly(&guest, &flat(&pieces));
                expect_end(&guest);
            });
            transfer(&guest, &client, 6, 50_000);
        }
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn urgent_data_waits_for_a_slow_guest() {
    waits(true);
}

#[test]
fn urgent_data_waits_for_a_slow_guest_where_the_kernel_keeps_no_offset() {
    waits(false);
}

#[test]
fn what_the_guest_calls_urgent_arrives_in_its_place() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            let (guest, client) = open(bed, family, by);
            for pieces in shapes() {
                send(&guest, &pieces);
                read_exactly(&client, &flat(&pieces));
            }
            exchange(&guest, &client, 50_000);
        }
    });
}
