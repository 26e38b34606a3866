//! FIN in both directions.

use super::*;

/// The peer closes after all was sent; the FIN is sent.
fn peer_closes(b: &mut Bench) {
    b.conn.on_eof();
    assert!(b.conn.at_eof());
    assert_eq!(b.poll().map(|c| c.flags), Some(FIN_ACK));
}

#[test]
fn the_guests_half_close_leaves_the_other_direction_open() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, FIN_ACK, 100));
    assert_eq!((b.state(), b.commands()), (State::CloseWait, vec![Command::ShutdownWrite]));
    assert_eq!(b.poll_all(), [(ACK, 1, 102)]);
    b.send(1_000);
    b.receive(&seg(102, 1_001, ACK, 0));
    assert_eq!(b.commands(), [Command::Consume(1_000)]);
    peer_closes(&mut b);
    assert_eq!(b.state(), State::LastAck);
    b.receive(&seg(102, 1_002, ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::Closed, vec![]));
}

#[test]
fn the_peers_half_close_leaves_the_other_direction_open_and_ends_in_time_wait() {
    let mut b = Bench::opened();
    peer_closes(&mut b);
    assert_eq!(b.state(), State::FinWait1);
    b.receive(&seg(1, 2, ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::FinWait2, vec![]));
    assert_eq!(b.accept(&seg(1, 2, ACK, 500)).take, 500);
    b.accept(&seg(501, 2, FIN_ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::TimeWait, vec![Command::ShutdownWrite]));
    assert!(b.conn.is_done_with_socket() && !b.conn.is_closed());
    assert_eq!(b.poll_all(), [(ACK, 2, 502)]);
    assert_eq!(b.next_deadline(), Config::default().time_wait);
    assert!(b.conn.is_closed());
}

#[test]
fn a_fin_that_acknowledges_ours_goes_straight_to_time_wait() {
    let mut b = Bench::opened();
    peer_closes(&mut b);
    b.accept(&seg(1, 2, FIN_ACK, 0));
    assert_eq!(b.state(), State::TimeWait);
}

#[test]
fn fins_that_cross_meet_in_closing() {
    let mut b = Bench::opened();
    peer_closes(&mut b);
    b.accept(&seg(1, 1, FIN_ACK, 0));
    assert_eq!((b.state(), b.poll_all()), (State::Closing, vec![(ACK, 2, 2)]));
    b.receive(&seg(2, 2, ACK, 0));
    assert_eq!(b.state(), State::TimeWait);
}

fn time_wait() -> Bench {
    let mut b = Bench::opened();
    peer_closes(&mut b);
    b.accept(&seg(1, 2, FIN_ACK, 0));
    assert_eq!(b.poll_all(), [(ACK, 2, 2)]);
    b
}

#[test]
fn time_wait_acknowledges_the_fin_again_and_starts_over() {
    let mut b = time_wait();
    b.wait(Duration::from_secs(50));
    b.accept(&seg(1, 2, FIN_ACK, 0));
    assert_eq!(b.poll_all(), [(ACK, 2, 2)]);
    assert_eq!(b.next_deadline(), Config::default().time_wait);
    assert!(b.conn.is_closed());
}

#[test]
fn time_wait_is_not_prolonged_by_anything_else() {
    let mut b = time_wait();
    b.wait(Duration::from_secs(50));
    b.receive(&seg(2, 2, ACK, 0));
    b.receive(&seg(2, 2, ACK, 100));
    b.receive(&seg(90_000, 2, ACK, 100));
    assert_eq!(b.next_deadline(), Duration::from_secs(10));
}

#[test]
fn time_wait_gives_way_to_a_newer_syn_only() {
    assert!(time_wait().receive(&Segment { seq: g(3), ..syn() }).reopen);
    assert!(time_wait().receive(&Segment { seq: g(900_000), ..syn() }).reopen);
    for (seq, flags) in [(2, SYN), (0, SYN), (3, SYN_ACK), (3, SYN.with(RST)), (3, SYN.with(TcpFlags::FIN))] {
        assert!(
            !time_wait().receive(&Segment { flags, ..seg(seq, 2, flags, 0) }).reopen,
            "{flags:?} at {seq}"
        );
    }
}

#[test]
fn time_wait_ends_by_a_reset() {
    let mut b = time_wait();
    b.receive(&seg(2, 2, RST, 0));
    assert!(b.conn.is_closed());
}

#[test]
fn a_fin_waits_until_the_socket_has_all_data_before_it() {
    let mut b = Bench::opened();
    let input = b.receive(&seg(1, 1, FIN_ACK, 1_000));
    assert_eq!(input.take, 1_000);
    b.conn.on_flushed(1_000, 400, b.now);
    assert_eq!((b.state(), b.commands()), (State::Established, vec![]));
    b.on_pod(&near(5_000));
    assert_eq!(b.poll_all()[0], (ACK, 1, 401));
    b.accept(&seg(401, 1, FIN_ACK, 600));
    assert_eq!((b.state(), b.commands()), (State::CloseWait, vec![Command::ShutdownWrite]));
}

#[test]
fn a_fin_beyond_the_window_comes_again() {
    let mut b = Bench::opened_with(&syn(), near(100));
    let input = b.accept(&seg(1, 1, FIN_ACK, 200));
    assert_eq!((input.take, b.state()), (100, State::Established));
    b.on_pod(&near(100));
    b.poll_all();
    b.accept(&seg(101, 1, FIN_ACK, 100));
    assert_eq!(b.state(), State::CloseWait);
}

#[test]
fn a_fin_out_of_order_is_not_kept() {
    let mut b = Bench::opened();
    b.accept(&seg(500, 1, FIN_ACK, 0));
    assert_eq!((b.state(), b.poll_all()), (State::Established, vec![(ACK, 1, 1)]));
}

#[test]
fn data_behind_the_guests_fin_is_not_taken() {
    let mut b = Bench::opened();
    b.receive(&seg(1, 1, FIN_ACK, 10));
    assert_eq!(b.receive(&seg(12, 1, ACK, 10)).take, 0);
    b.conn.on_flushed(10, 10, b.now);
    assert_eq!(b.receive(&seg(12, 1, ACK, 10)).take, 0);
    assert_eq!(b.conn.rcv_nxt, g(12));
}

#[test]
fn our_fin_is_sent_again_until_the_guest_is_given_up() {
    let mut b = Bench::opened();
    peer_closes(&mut b);
    for _ in 0..9 {
        b.next_deadline();
        b.commands();
        assert_eq!(b.poll_all(), [(FIN_ACK, 1, 1)]);
    }
    b.next_deadline();
    assert_eq!((b.poll_all(), b.commands()), (vec![(RST_ACK, 2, 1)], vec![Command::Abort]));
}

#[test]
fn our_fin_waits_for_a_closed_window_and_for_its_opening() {
    let mut b = Bench::opened();
    b.receive(&Segment { window: 0, ..seg(1, 1, ACK, 0) });
    b.conn.on_eof();
    assert_eq!(b.poll_all(), []);
    // The window is asked for; ACKs keep the number that the guest accepts.
    b.next_deadline();
    assert_eq!(b.poll_all(), [(ACK, 0, 1)]);
    b.accept(&Segment { window: 0, ..seg(1, 1, ACK, 10) });
    b.on_pod(&near(30_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 11)]);
    b.receive(&Segment { window: 1, ..seg(11, 1, ACK, 0) });
    assert_eq!(b.poll_all(), [(FIN_ACK, 1, 11)]);
}

#[test]
fn a_loss_before_the_fin_sends_the_data_and_the_fin_again() {
    let mut b = Bench::opened();
    b.send(3_000);
    peer_closes(&mut b);
    b.next_deadline();
    assert_eq!(b.commands(), [Command::Rewind]);
    assert!(!b.conn.at_eof());
    assert_eq!(b.poll_all(), [], "the data first");
    assert_eq!(b.budget(), Some(Budget { seq: d(1), offset: 0, len: 3_000, mss: MSS }));
    b.conn.on_data(2_000, b.now);
    // The rest is less than a segment, but all there is: nothing to wait for.
    assert_eq!(b.budget(), Some(Budget { seq: d(2_001), offset: 2_000, len: 1_000, mss: MSS }));
    b.conn.on_data(1_000, b.now);
    assert_eq!((b.budget(), b.poll_all()), (None, vec![(FIN_ACK, 3_001, 1)]));
    b.receive(&seg(1, 3_002, ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::FinWait2, vec![Command::Consume(3_000)]));
}

#[test]
fn the_end_of_the_stream_is_no_silly_segment() {
    let mut b = Bench::opened();
    b.send(3_000);
    b.receive(&Segment { window: 3_100, ..seg(1, 1, ACK, 0) });
    peer_closes(&mut b);
    b.next_deadline();
    b.commands();
    b.send(2_000);
    assert_eq!(b.budget().map(|b| b.len), Some(1_000));
}

#[test]
fn a_fin_that_ends_the_batch_of_its_data_is_passed_on_once() {
    let mut b = Bench::opened();
    assert_eq!(b.receive(&seg(1, 1, ACK, 100)).take, 100);
    assert_eq!(b.receive(&seg(101, 1, FIN_ACK, 0)).take, 0);
    b.conn.on_flushed(100, 100, b.now);
    b.accept(&seg(101, 1, FIN_ACK, 0));
    assert_eq!((b.state(), b.commands()), (State::CloseWait, vec![Command::ShutdownWrite]));
}
