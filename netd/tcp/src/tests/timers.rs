//! Persist and keepalive.

use super::*;

fn closed_window() -> Bench {
    let mut b = Bench::opened();
    b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
    assert_eq!(b.budget(), None);
    b
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_guest_answers() {
    let mut b = closed_window();
    let mut last = Duration::ZERO;
    for _ in 0..50 {
        let waited = b.next_deadline();
        assert!(waited >= last && waited <= Duration::from_secs(60));
        last = waited;
        assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
        b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
        assert_eq!((b.budget(), b.commands()), (None, vec![]));
    }
    assert_eq!(last, Duration::from_secs(60));
    b.receive(&seg(1, 1, ACK, 0));
    assert!(b.budget().is_some());
}

#[test]
fn a_guest_that_does_not_answer_probes_is_given_up() {
    let mut b = closed_window();
    for _ in 0..9 {
        b.next_deadline();
        assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
    }
    b.next_deadline();
    assert_eq!((b.poll_all(), b.commands()), (vec![(RST_ACK, 1, 1)], vec![Command::Abort]));
}

#[test]
fn what_is_sent_after_the_window_opened_has_a_timeout_of_its_own() {
    let mut b = closed_window();
    for _ in 0..5 {
        b.next_deadline();
        b.poll_all();
        b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
    }
    b.receive(&seg(1, 1, ACK, 0));
    b.send(1_000);
    assert_eq!(b.next_deadline(), millis(200));
    assert_eq!(b.commands(), [Command::Rewind]);
}

#[test]
fn a_window_taken_back_under_data_is_probed_and_not_the_end() {
    let mut b = Bench::opened();
    b.send(5_000);
    b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
    for _ in 0..50 {
        b.next_deadline();
        b.commands();
        assert_eq!(b.budget(), None);
        assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
        b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
    }
    b.receive(&seg(1, 1, ACK, 0));
    b.commands();
    assert_eq!(b.budget().unwrap().seq, d(1));
    b.send(5_000);
    assert_eq!(b.next_deadline(), millis(200));
}

#[test]
fn an_open_window_without_data_needs_no_timer() {
    let mut b = Bench::opened();
    assert_eq!(b.next_deadline(), Config::default().keepalive);
}

#[test]
fn a_silent_guest_is_probed_and_given_up() {
    let mut b = Bench::opened();
    assert_eq!(b.next_deadline(), Config::default().keepalive);
    assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
    for _ in 0..8 {
        assert_eq!(b.next_deadline(), Duration::from_secs(75));
        assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
    }
    assert_eq!(b.next_deadline(), Duration::from_secs(75));
    assert_eq!((b.poll_all(), b.commands()), (vec![(RST_ACK, 1, 1)], vec![Command::Abort]));
}

#[test]
fn any_answer_starts_the_silence_anew() {
    let mut b = Bench::opened();
    b.next_deadline();
    b.poll_all();
    b.receive(&seg(1, 1, ACK, 0));
    assert_eq!(b.next_deadline(), Config::default().keepalive);
}

#[test]
fn a_guest_that_was_stopped_for_a_day_is_probed_before_it_is_given_up() {
    let mut b = Bench::opened();
    b.wait(Duration::from_secs(86_400));
    b.conn.on_timer(b.now);
    assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
    assert_eq!(b.next_deadline(), Duration::from_secs(75));
    assert_eq!(b.state(), State::Established);
}

/// The guest has closed, and its FIN was passed on.
fn half_closed() -> Bench {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, FIN_ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::CloseWait, vec![Command::ShutdownWrite]));
    b.poll_all();
    b
}

#[test]
fn a_guest_whose_program_has_left_the_socket_frees_it_within_minutes() {
    let mut b = half_closed();
    let mut waited = b.next_deadline();
    assert_eq!(b.poll_all(), [(ACK, 0, 2)]);
    // Its kernel remembers the socket for now.
    b.receive(&seg(2, 1, ACK, 0));
    waited += b.next_deadline();
    assert_eq!(b.poll_all(), [(ACK, 0, 2)]);
    b.receive(&seg(2, 1, RST, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
    assert!(waited <= Duration::from_secs(120), "{waited:?}");
}

#[test]
fn a_guest_that_still_reads_keeps_its_half_of_the_connection_for_hours() {
    let mut b = half_closed();
    let mut hours = Duration::ZERO;
    while hours < Duration::from_secs(5 * 3_600) {
        hours += b.next_deadline();
        assert_eq!(b.poll_all(), [(ACK, 0, 2)]);
        b.receive(&seg(2, 1, ACK, 0));
    }
    assert_eq!((b.state(), b.commands()), (State::CloseWait, vec![]));
    b.send(1_000);
}

#[test]
fn a_guest_that_has_closed_and_is_stopped_is_given_up_no_sooner_than_any_other() {
    let mut b = half_closed();
    let mut waited = Duration::ZERO;
    while b.state() == State::CloseWait {
        waited += b.next_deadline();
        b.poll_all();
        assert!(waited < Duration::from_secs(10_000));
    }
    assert_eq!(waited, Config::default().keepalive + Duration::from_secs(9 * 75));
}

#[test]
fn no_deadline_is_left_in_the_past_when_the_socket_says_nothing() {
    let mut b = Bench::opened_with(&syn(), far(40_000, 0, 40_000));
    b.accept(&seg(1, 1, ACK, 1_000));
    b.on_pod(&far(39_000, 0, 40_000));
    for _ in 0..20 {
        b.next_deadline();
        assert!(b.conn.poll_at().unwrap() > b.now);
    }
}
