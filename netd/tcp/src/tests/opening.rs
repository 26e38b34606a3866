//! Connections that do not come about.

use super::*;

#[test]
fn a_refused_connect_becomes_a_reset_that_the_guest_believes() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_refused();
    let c = b.poll().unwrap();
    // RFC 9293 3.10.7.3: in SYN-SENT a RST counts if it acknowledges the SYN.
    assert_eq!((c.flags, c.seq, c.ack), (RST_ACK, Seq(0), g(1)));
    assert!(b.conn.is_closed());
}

#[test]
fn a_guest_that_refuses_resets_the_peer() {
    let (mut b, _) = Bench::accepted(near(40_000));
    b.receive(&seg(0, 5, RST_ACK, 0));
    assert_eq!(b.state(), State::SynSent);
    b.receive(&seg(0, 1, RST, 0));
    assert_eq!(b.state(), State::SynSent);
    b.receive(&seg(0, 1, RST_ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
    assert_eq!(b.poll_all(), []);
}

#[test]
fn a_guest_that_gives_up_while_connecting_ends_it() {
    let mut b = Bench::connecting(&syn());
    b.receive(&seg(1, 0, RST, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
}

#[test]
fn syns_are_sent_again_with_doubled_seconds_until_both_ends_are_reset() {
    let (mut b, _) = Bench::accepted(near(40_000));
    for seconds in [1, 2, 4, 8, 16, 32] {
        assert_eq!(b.next_deadline(), Duration::from_secs(seconds));
        assert_eq!(b.poll_all(), [(SYN, 0, 0u32.wrapping_sub(GUEST_ISN.0))]);
    }
    b.next_deadline();
    assert_eq!(b.poll().unwrap().flags, RST_ACK);
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
    assert_eq!(b.conn.retransmits(), 6);
}

#[test]
fn syn_acks_are_sent_again_until_both_ends_are_reset() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    for _ in 0..6 {
        b.next_deadline();
        assert_eq!(b.poll_all(), [(SYN_ACK, 0, 1)]);
    }
    b.next_deadline();
    assert_eq!(b.poll_all(), [(RST_ACK, 1, 1)]);
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![Command::Abort]));
}

#[test]
fn a_connect_without_end_is_given_up() {
    let mut b = Bench::connecting(&syn());
    assert_eq!(b.next_deadline(), Config::default().handshake);
    assert_eq!((b.poll().unwrap().flags, b.commands()), (RST_ACK, vec![Command::Abort]));
}

#[test]
fn a_syn_that_cannot_be_written_is_tried_each_second_and_then_forgotten() {
    let mut conn = Conn::open_by_pod(Config::default(), NETD_ISN.0, Time::ZERO);
    conn.on_accepted(&near(40_000));
    let mut b = Bench { conn, now: Time::ZERO };
    for _ in 0..129 {
        assert_eq!(b.next_deadline(), Duration::from_secs(1));
    }
    assert_eq!(b.state(), State::SynSent);
    b.next_deadline();
    // The guest never heard of it, so it is not told either.
    assert_eq!((b.state(), b.poll_all(), b.commands()), (State::Closed, vec![], vec![Command::Abort]));
}

#[test]
fn a_peer_that_leaves_before_the_guest_heard_of_it_leaves_nothing_behind() {
    let mut conn = Conn::open_by_pod(Config::default(), NETD_ISN.0, Time::ZERO);
    conn.on_pod_error();
    assert!(conn.is_closed());
    let (mut b, _) = Bench::accepted(near(40_000));
    b.conn.on_pod_error();
    assert_eq!(b.poll().unwrap().flags, RST_ACK);
}
