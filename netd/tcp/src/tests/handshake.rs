//! What the SYNs say.

use super::*;

#[test]
fn a_guests_syn_is_answered_only_when_connect_has_ended() {
    let mut b = Bench::connecting(&syn());
    assert_eq!(b.poll_all(), []);
    b.conn.on_connected(&near(40_000));
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    assert_eq!(b.state(), State::SynReceived);
    b.receive(&seg(1, 1, ACK, 0));
    assert_eq!(b.state(), State::Established);
}

#[test]
fn window_scale_is_only_answered_where_it_was_offered() {
    for (offered, answered) in [(None, None), (Some(0), Some(8)), (Some(14), Some(8))] {
        let mut b = Bench::connecting(&Segment { window_scale: offered, ..syn() });
        b.conn.on_connected(&near(1 << 20));
        let c = b.poll().unwrap();
        assert_eq!((c.window_scale, c.mss, c.window), (answered, Some(MSS), 0xffff));
    }
}

#[test]
fn the_guests_window_is_scaled_by_its_own_shift_but_not_in_its_syn() {
    let mut b = Bench::connecting(&Segment { window_scale: Some(3), window: 1_000, ..syn() });
    b.conn.on_connected(&near(40_000));
    b.poll();
    b.receive(&Segment { window: 500, ..seg(1, 1, ACK, 0) });
    assert_eq!(b.budget().unwrap().len, 4_000);
}

#[test]
fn a_shift_beyond_fourteen_is_fourteen() {
    let mut b = Bench::connecting(&Segment { window_scale: Some(255), ..syn() });
    b.conn.on_connected(&near(40_000));
    b.poll();
    b.receive(&Segment { window: 1, ..seg(1, 1, ACK, 0) });
    assert_eq!(b.budget().unwrap().len, 1 << 14);
}

#[test]
fn segments_obey_the_guests_mss_the_link_and_reason() {
    for (named, used) in [(None, 536), (Some(1000), 1000), (Some(9000), MSS), (Some(0), 64), (Some(1), 64)] {
        let mut b = Bench::opened_with(&Segment { mss: named, ..syn() }, near(40_000));
        assert_eq!(b.budget().unwrap().mss, used);
    }
}

#[test]
fn an_accepted_connection_offers_everything_and_uses_what_the_guest_has() {
    let (mut b, c) = Bench::accepted(near(1 << 20));
    assert_eq!((c.flags, c.seq, c.ack), (SYN, d(0), Seq(0)));
    assert_eq!((c.mss, c.window_scale, c.window), (Some(MSS), Some(8), 0xffff));
    b.receive(&Segment { mss: Some(700), ..seg(0, 1, SYN_ACK, 0) });
    assert_eq!(b.state(), State::Established);
    let c = b.poll().unwrap();
    // Without the guest's option the window cannot be said but in bytes.
    assert_eq!((c.flags, c.seq, c.ack, c.window), (ACK, d(1), g(1), 0xffff));
    assert_eq!(b.budget().unwrap(), Budget { seq: d(1), offset: 0, len: 60_000, mss: 700 });
}

#[test]
fn data_that_the_syn_promised_room_for_is_taken_at_once() {
    let (mut b, _) = Bench::accepted(near(30_000));
    b.receive(&Segment { window_scale: Some(7), ..seg(0, 1, SYN_ACK, 0) });
    let input = b.receive(&seg(1, 1, ACK, 30_001));
    assert_eq!((input.skip, input.take), (0, 30_000));
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(100));
    b.poll();
    assert_eq!(b.receive(&seg(1, 1, ACK, 1_000)).take, 100);
}

#[test]
fn a_syn_that_comes_again_is_answered_again() {
    let mut b = Bench::connecting(&syn());
    b.receive(&syn());
    assert_eq!(b.poll_all(), []);
    b.conn.on_connected(&near(40_000));
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    b.receive(&syn());
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
}

#[test]
fn a_different_syn_during_the_handshake_makes_the_guest_reset_it() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    b.poll();
    // The guest has forgotten and tries anew: the answer to the old SYN shows it what is there.
    b.receive(&Segment { seq: g(1_000_000), ..syn() });
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    b.receive(&seg(1, 0, RST, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
}

#[test]
fn an_impossible_acknowledgement_is_reset_and_the_handshake_goes_on() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    b.poll();
    b.receive(&seg(1, 77, ACK, 0));
    let c = b.poll().unwrap();
    assert_eq!((c.flags, c.seq), (RST, d(77)));
    b.receive(&seg(1, 1, ACK, 0));
    assert_eq!(b.state(), State::Established);
    // The same towards a guest that has an older connection half-open.
    let (mut b, _) = Bench::accepted(near(40_000));
    b.receive(&seg(500, 77, ACK, 0));
    let c = b.poll().unwrap();
    assert_eq!((c.flags, c.seq), (RST, d(77)));
    b.receive(&seg(0, 1, SYN_ACK, 0));
    assert_eq!(b.state(), State::Established);
}

#[test]
fn nothing_is_acknowledged_before_the_syn_was_sent() {
    let mut conn = Conn::open_by_pod(Config::default(), NETD_ISN.0, Time::ZERO);
    conn.on_segment(&seg(0, 1, SYN_ACK, 0), Time::ZERO);
    assert_eq!(conn.state(), State::SynSent);
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    b.receive(&seg(1, 1, ACK, 0));
    assert_eq!(b.state(), State::SynReceived);
}

#[test]
fn a_simultaneous_open_ends_established() {
    let (mut b, _) = Bench::accepted(near(40_000));
    b.receive(&syn());
    assert_eq!(b.state(), State::SynSent);
    b.receive(&seg(0, 1, SYN_ACK, 0));
    assert_eq!(b.state(), State::Established);
    assert_eq!(b.poll_all(), [(ACK, 1, 1)]);
}
