//! When the state of a far peer's socket is read.

use super::*;

/// The socket of a peer 20 ms away.
fn pod(space: u32, acked: u32) -> PodState {
    PodState { rtt: millis(20), ..far(space, acked, 40_000) }
}

fn opened() -> Bench {
    Bench::opened_with(&syn(), pod(40_000, 0))
}

/// One that is not young any more, so that an acknowledgement may be held back: 20,000 bytes are acknowledged.
fn grown() -> Bench {
    let mut b = opened();
    send(&mut b, 1, 20_000);
    b.next_deadline();
    b.on_pod(&pod(40_000, 20_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 20_001)]);
    b
}

/// The socket takes bytes of the guest's, from the `seq`th on; whether its state is wanted at once.
fn send(b: &mut Bench, seq: u32, len: u32) -> bool {
    b.accept(&seg(seq, 1, ACK, len));
    b.conn.wants_pod_state(b.now)
}

#[test]
fn the_first_read_is_a_round_trip_after_the_first_byte() {
    let mut b = grown();
    assert!(!send(&mut b, 20_001, 1_000));
    // More of the same burst changes nothing.
    b.wait(millis(1));
    assert!(!send(&mut b, 21_001, 1_000));
    assert_eq!(b.next_deadline(), millis(20));
    b.on_pod(&pod(40_000, 22_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 22_001)], "nothing else goes to the guest that could carry it");
    assert!(b.next_deadline() > Duration::from_secs(7_000), "nothing left to ask for");
}

#[test]
fn further_reads_are_a_quarter_of_it_apart_and_rarer_while_nothing_changes() {
    let mut b = opened();
    send(&mut b, 1, 3_000);
    b.next_deadline();
    b.on_pod(&pod(38_000, 1_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 1_001)]);
    let mut waits = Vec::new();
    for _ in 0..8 {
        waits.push(b.next_deadline().as_millis());
        b.on_pod(&pod(38_000, 1_000));
        b.poll_all();
    }
    assert_eq!(waits, [5, 5, 5, 8, 16, 32, 32, 32]);
    b.on_pod(&pod(39_000, 2_000));
    b.poll_all();
    assert_eq!(b.next_deadline(), millis(5), "it moves: the interval starts over");
}

#[test]
fn a_guest_with_little_window_is_not_kept_waiting() {
    let mut b = opened();
    send(&mut b, 1, 20_000);
    b.next_deadline();
    b.on_pod(&pod(25_000, 5_000));
    b.poll_all();
    assert!(!send(&mut b, 20_001, 10_000), "it was read just now");
    b.wait(millis(1));
    assert!(send(&mut b, 30_001, 6_000), "a byte of window more may set it going");
    b.on_pod(&pod(5_000, 5_000));
    b.poll_all();
    assert_eq!(b.next_deadline(), millis(1));
}

#[test]
fn what_comes_from_the_peer_has_an_acknowledgement_with_it() {
    let mut b = grown();
    assert!(!b.conn.may_have_news(b.now), "nothing is waited for");
    send(&mut b, 20_001, 1_000);
    b.wait(millis(19));
    assert!(!b.conn.may_have_news(b.now), "it was under way before");
    b.wait(millis(1));
    assert!(b.conn.may_have_news(b.now));
    b.on_pod(&pod(40_000, 21_000));
    assert_eq!(b.poll_all(), [], "the data that came will carry it");
    send(&mut b, 21_001, 1_000);
    assert!(!b.conn.may_have_news(b.now));
}

#[test]
fn a_round_trip_that_is_not_known_or_out_of_reason_keeps_no_guest_waiting() {
    for (rtt, wait) in [(Duration::ZERO, millis(1)), (Duration::from_secs(4_000), millis(1_001))] {
        let mut b = Bench::opened_with(&syn(), PodState { rtt, ..pod(40_000, 0) });
        send(&mut b, 1, 1_000);
        assert_eq!(b.next_deadline(), wait);
    }
}

/// Reads of the state, whatever it is, until so much time has passed.
fn reads_within(b: &mut Bench, time: Duration, pod: &PodState) -> u32 {
    let (end, mut reads) = (b.now + time, 0);
    while b.conn.poll_at().is_some_and(|at| at <= end) {
        b.next_deadline();
        if b.conn.wants_pod_state(b.now) || b.conn.polled {
            reads += 1;
            b.on_pod(pod);
        }
        b.poll_all();
    }
    b.now = end;
    reads
}

#[test]
fn a_far_peer_that_stands_still_is_read_less_and_less_and_found_when_it_goes_on() {
    let mut b = grown();
    send(&mut b, 20_001, 5_000);
    let second = reads_within(&mut b, Duration::from_secs(1), &pod(35_000, 20_000));
    assert!((20..=40).contains(&second), "{second} reads in the first second");
    let minute = reads_within(&mut b, Duration::from_secs(60), &pod(35_000, 20_000));
    assert!((25..=60).contains(&minute), "{minute} reads in a minute");
    // Whenever it goes on, it is found by the next read.
    assert!(b.conn.poll_at().unwrap().since(b.now) <= Duration::from_secs(2));
    b.next_deadline();
    b.on_pod(&pod(36_000, 21_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 21_001)]);
    assert_eq!(b.next_deadline(), millis(5), "it moves: the interval starts over");
}

#[test]
fn a_near_peer_whose_buffer_is_full_is_not_read_until_epoll_tells_of_room() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 40_000));
    b.on_pod(&PodState { notifies: true, ..near(0) });
    b.poll_all();
    assert_eq!(reads_within(&mut b, Duration::from_secs(3_600), &near(0)), 0);
    b.on_pod(&near(20_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 40_001)]);
    assert_eq!(b.conn.edge, g(60_001));
}
