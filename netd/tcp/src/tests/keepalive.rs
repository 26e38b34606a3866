//! Keepalives of the guest.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The guest probes `after` its last segment, by so many bytes; the peer has been silent for `silent` by then. Whether the guest is
/// answered, and what is asked of the socket.
fn probe(b: &mut Bench, after: Duration, len: u32, silent: Duration) -> (bool, Vec<Command>) {
    b.wait(after);
    let input = b.receive(&seg(0, 1, ACK, len));
    assert_eq!(input, Input::default(), "it is no drop");
    if b.conn.is_probed() {
        b.conn.answer_probe(Some(silent));
    }
    let answer = b.poll_all();
    assert!(answer.is_empty() || answer == [(ACK, 1, 1)], "{answer:?}");
    (!answer.is_empty(), b.commands())
}

#[test]
fn the_first_probe_carries_its_interval_to_the_socket_and_further_ones_nothing() {
    for len in [0, 1] {
        let mut b = Bench::opened();
        let late = millis(5_200);
        assert_eq!(probe(&mut b, late, len, late), (true, vec![Command::Keepalive(5)]));
        for _ in 0..100 {
            assert_eq!(probe(&mut b, late, len, late), (true, vec![]));
        }
        assert_eq!(probe(&mut b, 60 * SECOND, len, 5 * SECOND), (true, vec![Command::Keepalive(60)]));
    }
}

#[test]
fn a_late_timer_of_the_guest_is_no_other_pace() {
    let mut b = Bench::opened();
    probe(&mut b, millis(61_900), 0, SECOND);
    assert_eq!(probe(&mut b, millis(60_400), 0, SECOND), (true, vec![Command::Keepalive(60)]));
    for late in [0, 7_000, 1_000, 4_000] {
        assert_eq!(probe(&mut b, millis(60_000 + late), 0, SECOND), (true, vec![]));
    }
    assert!(!probe(&mut b, millis(61_000), 0, 200 * SECOND).0);
}

#[test]
fn a_guest_is_not_answered_for_a_peer_that_is_silent_and_is_again_when_it_speaks() {
    let mut b = Bench::opened();
    probe(&mut b, 10 * SECOND, 0, 10 * SECOND);
    assert_eq!(probe(&mut b, 10 * SECOND, 0, 15 * SECOND), (true, vec![]), "it may be on its way");
    // The guest asks by another interval from here on, and the peer is asked each time.
    assert_eq!(probe(&mut b, 10 * SECOND, 0, 25 * SECOND), (false, vec![Command::Keepalive(10)]));
    assert_eq!(probe(&mut b, 3 * SECOND, 0, 28 * SECOND), (false, vec![Command::Keepalive(10)]));
    assert_eq!(probe(&mut b, 3 * SECOND, 0, SECOND), (true, vec![]));
    assert_eq!(probe(&mut b, 10 * SECOND, 0, 10 * SECOND), (true, vec![]));
}

#[test]
fn at_a_new_pace_the_peer_is_asked_before_its_silence_counts() {
    let mut b = Bench::opened();
    assert_eq!(probe(&mut b, 2 * SECOND, 0, 7_000 * SECOND), (true, vec![Command::Keepalive(2)]));
    assert!(!probe(&mut b, 2 * SECOND, 0, 7_002 * SECOND).0);
}

#[test]
fn a_guest_that_gives_its_peer_up_resets_it() {
    let mut b = Bench::opened();
    probe(&mut b, 5 * SECOND, 0, 5 * SECOND);
    for silent in [15, 20, 25] {
        assert!(!probe(&mut b, 5 * SECOND, 0, silent * SECOND).0);
    }
    b.receive(&seg(1, 1, RST_ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
}

#[test]
fn a_flood_of_probes_and_one_of_a_closed_window_ask_nothing_of_the_socket() {
    let mut b = Bench::opened();
    for _ in 0..10 {
        assert_eq!(probe(&mut b, millis(100), 0, 100 * SECOND), (true, vec![]));
    }
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 40_000));
    b.on_pod(&near(0));
    b.poll_all();
    b.wait(5 * SECOND);
    assert_eq!(b.receive(&seg(40_000, 1, ACK, 0)), Input::default());
    assert_eq!((b.poll_all(), b.commands()), (vec![(ACK, 1, 40_001)], vec![]));
}

#[test]
fn a_successor_sets_the_interval_again() {
    use netd_base::codec::{Field, Reader};
    let mut b = Bench::opened();
    probe(&mut b, 30 * SECOND, 0, SECOND);
    let mut bytes = Vec::new();
    b.conn.put(&mut bytes);
    let mut conn = Conn::take(&mut Reader::new(&bytes)).unwrap();
    conn.adopt(Config::default());
    assert_eq!(conn.command(), Some(Command::Keepalive(30)));
    assert_eq!(conn.command(), None);
}
