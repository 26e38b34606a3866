//! RST, and SYN where none belongs (RFC 5961).

use super::*;

#[test]
fn only_the_exact_number_resets() {
    for (at, expected) in [
        (1, (State::Closed, vec![])),
        (2, (State::Established, vec![(ACK, 1, 1)])),
        (40_001, (State::Established, vec![(ACK, 1, 1)])),
        (40_002, (State::Established, vec![])),
        (0, (State::Established, vec![])),
    ] {
        let mut b = Bench::opened();
        b.receive(&seg(at, 1, RST, 0));
        assert_eq!((b.state(), b.poll_all()), expected, "RST at {at}");
    }
}

#[test]
fn a_reset_goes_through_to_the_peer_and_the_guest_hears_nothing() {
    let mut b = Bench::opened();
    b.receive(&seg(1, 1, RST_ACK, 0));
    assert_eq!((b.commands(), b.poll_all()), (vec![Command::Abort], vec![]));
}

#[test]
fn a_guest_without_the_socket_resets_by_the_number_it_was_told() {
    let mut b = Bench::opened_with(&syn(), far(40_000, 0, 40_000));
    b.accept(&seg(1, 1, ACK, 500));
    b.on_pod(&far(39_500, 0, 40_000));
    // The guest's process died; data is answered by the acknowledgement it carried.
    b.receive(&seg(1, 0, RST, 0));
    assert_eq!(b.state(), State::Closed);
}

#[test]
fn a_socket_error_resets_the_guest_where_it_is() {
    let mut b = Bench::opened();
    b.send(1_000);
    b.conn.on_pod_error();
    assert_eq!(b.budget(), None);
    assert_eq!(b.conn.poll_at(), None, "nothing to wait for but a receive buffer");
    assert_eq!(b.poll_all(), [(RST_ACK, 1_001, 1)]);
    assert!(b.conn.is_closed());
}

#[test]
fn what_came_before_the_peers_reset_goes_before_it() {
    let mut b = Bench::opened();
    b.send(1_000);
    b.conn.on_pod_broken(4_000);
    assert_eq!((b.state(), b.poll_all()), (State::Established, vec![]));
    // The guest sends on: nothing of it is taken, or acknowledged.
    assert_eq!(b.receive(&seg(1, 1, ACK, 500)).take, 500);
    b.conn.on_flushed(500, 0, b.now);
    assert_eq!(b.poll_all(), [(ACK, 1_001, 1)]);
    b.on_pod(&near(40_000));
    assert_eq!(b.poll_all(), []);
    b.send(3_000);
    b.conn.on_eof();
    assert_eq!(b.poll_all(), [(RST_ACK, 4_001, 1)]);
    assert!(b.conn.is_closed());
}

#[test]
fn a_peers_reset_waits_for_the_guests_window_only_with_bytes_behind_it() {
    for (queued, waits) in [(1_001, true), (1_000, false)] {
        let mut b = Bench::opened();
        b.send(1_000);
        b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
        b.conn.on_pod_broken(queued);
        assert_eq!(b.budget(), None);
        let reset = b.poll_all().iter().any(|(flags, ..)| *flags == RST_ACK);
        assert_eq!(reset, !waits, "{queued} bytes in the queue");
        if waits {
            b.next_deadline();
            assert_eq!(b.poll_all(), [(ACK, 0, 1)], "a guest with a closed window is probed");
            b.receive(&seg(1, 1_001, ACK, 0));
            b.send(1);
            b.conn.on_eof();
            assert_eq!(b.poll_all(), [(RST_ACK, 1_002, 1)]);
        }
    }
}

#[test]
fn a_peer_that_greets_and_resets_before_the_guest_has_answered_is_heard() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    b.conn.on_pod_broken(20);
    assert_eq!((b.budget(), b.poll_all()), (None, vec![]));
    b.receive(&seg(1, 1, ACK, 0));
    b.send(20);
    b.conn.on_eof();
    assert_eq!(b.poll_all(), [(RST_ACK, 21, 1)]);
}

#[test]
fn the_workers_abort_reaches_both_ends() {
    let mut b = Bench::opened();
    b.conn.abort();
    assert_eq!((b.poll_all(), b.commands()), (vec![(RST_ACK, 1, 1)], vec![Command::Abort]));
}

#[test]
fn a_syn_in_a_synchronized_state_is_challenged() {
    for at in [0, 1, 5_000, 90_000] {
        let mut b = Bench::opened();
        b.receive(&Segment { seq: g(at), ..syn() });
        assert_eq!((b.state(), b.poll_all()), (State::Established, vec![(ACK, 1, 1)]), "SYN at {at}");
    }
}

#[test]
fn an_acknowledgement_of_the_future_or_the_far_past_is_challenged() {
    let mut b = Bench::opened();
    b.send(100);
    for ack in [102, 0u32.wrapping_sub(60_000)] {
        assert_eq!(b.receive(&seg(1, ack, ACK, 10)).take, 0);
        assert_eq!(b.poll_all(), [(ACK, 101, 1)]);
    }
    assert_eq!(b.receive(&seg(1, 101, ACK, 10)).take, 10);
}

#[test]
fn a_segment_outside_the_window_is_answered_by_where_it_is() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 1_000));
    b.on_pod(&near(39_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 1_001)]);
    for (at, len) in [(0, 0), (1, 500), (40_002, 10), (1_000, 0)] {
        assert_eq!(b.receive(&seg(at, 1, ACK, len)).take, 0);
        assert_eq!(b.poll_all(), [(ACK, 1, 1_001)], "{len} bytes at {at}");
    }
}

#[test]
fn a_segment_without_ack_is_dropped_silently() {
    let mut b = Bench::opened();
    assert_eq!(b.receive(&seg(1, 1, TcpFlags::PSH, 10)).take, 0);
    assert_eq!(b.poll_all(), []);
}
