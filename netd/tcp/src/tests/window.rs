//! The window towards the guest, and acknowledgements.

use super::*;

#[test]
fn a_near_peer_acknowledges_what_the_socket_took() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 1_000));
    assert_eq!(b.poll_all(), [], "the socket's state decides");
    b.on_pod(&near(39_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 1_001)]);
    assert!(!b.conn.wants_pod_state(b.now + Duration::from_secs(9)));
}

#[test]
fn a_far_peer_is_waited_for() {
    let mut b = Bench::opened_with(&syn(), far(40_000, 0, 40_000));
    b.accept(&seg(1, 1, ACK, 1_000));
    b.on_pod(&far(39_000, 0, 40_000));
    assert_eq!(b.poll_all(), []);
    // It is asked for in growing intervals.
    let mut waits = Vec::new();
    for _ in 0..7 {
        waits.push(b.next_deadline().as_millis());
        b.on_pod(&far(39_000, 0, 40_000));
        assert_eq!(b.poll_all(), []);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32]);
    b.on_pod(&far(39_400, 400, 40_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 401)]);
    assert_eq!(b.next_deadline(), millis(1), "it moves: the interval starts over");
    b.on_pod(&far(40_000, 1_000, 40_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 1_001)]);
    assert!(b.next_deadline() > Duration::from_secs(7_000), "nothing left to ask for");
}

#[test]
fn no_count_of_the_kernel_acknowledges_more_than_was_taken() {
    let mut b = Bench::opened_with(&syn(), far(40_000, 0, 40_000));
    b.accept(&seg(1, 1, ACK, 100));
    b.on_pod(&far(40_000, 100_000, 40_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 101)]);
    b.accept(&seg(101, 1, ACK, 100));
    b.on_pod(&far(40_000, 50, 40_000));
    assert_eq!(b.conn.tell().0, g(101), "nor less than before");
}

#[test]
fn a_far_peers_own_window_limits() {
    let mut b = Bench::opened_with(&Segment { window_scale: Some(0), ..syn() }, near(1 << 20));
    b.accept(&seg(1, 1, ACK, 60_000));
    b.on_pod(&far(1 << 20, 60_000, 100_000));
    let (ack, window) = b.conn.tell();
    assert_eq!((ack, u32::from(window) << 8), (g(60_001), 100_000 / 256 * 256));
}

#[test]
fn a_peer_with_hardly_any_window_is_still_given_a_step() {
    let mut b = Bench::opened_with(&Segment { window_scale: Some(0), ..syn() }, far(200, 0, 100));
    b.accept(&seg(1, 1, ACK, 200));
    b.on_pod(&far(40_000, 200, 100));
    assert_eq!(b.poll_all(), [(ACK, 1, 201)]);
    assert_eq!(b.conn.edge, g(201 + 256));
}

#[test]
fn the_right_edge_never_moves_left() {
    for scale in [None, Some(5)] {
        let mut b = Bench::opened_with(&Segment { window_scale: scale, ..syn() }, near(40_000));
        let mut edge = b.conn.edge;
        let mut at = 1;
        for (len, space) in
            [(1, 3_999), (1_000, 2_000), (999, 0), (0, 70_000), (3_333, 4), (7, 90_000), (1, 0)]
        {
            b.accept(&seg(at, 1, ACK, len));
            at += len;
            b.on_pod(&near(space));
            let (ack, window) = b.conn.tell();
            let told = ack.plus(u32::from(window) << b.conn.rcv_scale);
            assert!(told >= edge, "{scale:?}: {len} bytes, {space} free");
            assert_eq!((ack, told), (g(at), b.conn.edge));
            edge = told;
        }
    }
}

/// A count beyond what was accepted is no news; 2^31 beyond, it once drew the edge back.
#[test]
fn a_peer_that_acknowledges_what_was_not_sent_moves_no_edge() {
    for acked in [201, 40_000, (1 << 31) - (1 << 20), 1 << 31, u32::MAX] {
        let mut b = Bench::opened_with(&syn(), near(50_000));
        b.accept(&seg(1, 1, ACK, 200));
        let told = b.conn.edge;
        b.on_pod(&far(0, acked, 1 << 24));
        assert!(b.conn.edge_ready >= told && told >= b.conn.edge, "{acked}");
        b.on_pod(&far(0, acked, 256));
        assert!(b.conn.edge_ready >= told && told >= b.conn.edge, "{acked}");
    }
}

#[test]
fn what_was_not_told_may_shrink() {
    let mut b = Bench::opened_with(&Segment { window_scale: Some(0), ..syn() }, near(20_000));
    b.on_pod(&near(21_000));
    b.on_pod(&near(20_000));
    b.accept(&seg(1, 1, ACK, 10_000));
    b.on_pod(&near(9_000));
    assert_eq!(b.conn.edge_ready, b.conn.edge);
}

#[test]
fn a_full_socket_closes_the_window_and_its_draining_is_told_once_it_is_worth_it() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 40_000));
    b.on_pod(&near(0));
    let c = b.poll().unwrap();
    assert_eq!((c.ack, c.window), (g(40_001), 0));
    // A probe learns nothing new, and no byte of it is taken.
    assert_eq!(b.receive(&seg(40_001, 1, ACK, 1)).take, 0);
    b.receive(&seg(40_000, 1, ACK, 0));
    assert_eq!(b.poll().unwrap().window, 0);
    assert_eq!(b.poll_all(), []);
    b.on_pod(&near(1_459));
    assert_eq!((b.poll_all(), b.conn.tell().1), (vec![], 0), "less than a segment is not told");
    b.on_pod(&near(1_460));
    assert_eq!(b.poll().unwrap().window, 1_460);
    b.on_pod(&near(4_000));
    assert_eq!(b.poll_all(), [], "the guest has something to send into");
    b.on_pod(&near(4_380));
    assert_eq!(b.poll().unwrap().window, 4_380);
}

#[test]
fn a_socket_smaller_than_a_segment_is_told_by_halves() {
    let mut b = Bench::opened_with(&syn(), near(1_000));
    b.on_pod(&near(1_000));
    b.accept(&seg(1, 1, ACK, 1_000));
    b.on_pod(&near(0));
    assert_eq!(b.poll().unwrap().window, 0);
    b.on_pod(&near(499));
    assert_eq!(b.poll_all(), []);
    b.on_pod(&near(500));
    assert_eq!(b.poll().unwrap().window, 500);
}

#[test]
fn little_room_that_does_not_grow_is_told_in_the_end() {
    let mut b = Bench::opened();
    b.on_pod(&near(40_000));
    b.accept(&seg(1, 1, ACK, 40_000));
    b.on_pod(&near(0));
    assert_eq!(b.poll().unwrap().window, 0);
    let mut waited = Duration::ZERO;
    while b.poll_all().is_empty() {
        waited += b.next_deadline();
        b.on_pod(&near(300));
        assert!(waited < millis(200), "the guest must not wait longer");
    }
    assert_eq!(b.conn.edge, g(40_301));
}

#[test]
fn an_ack_that_tells_nothing_new_is_not_sent() {
    // Without scaling the header cannot say more than 65535, however much there is.
    let mut b = Bench::opened_with(&syn(), far(1 << 20, 0, 1 << 20));
    b.accept(&seg(1, 1, ACK, 60_000));
    for _ in 0..5 {
        b.on_pod(&far(1 << 20, 0, 1 << 20));
        assert_eq!(b.poll_all(), []);
    }
}

#[test]
fn payload_beyond_the_window_is_cut() {
    let mut b = Bench::opened_with(&syn(), near(1_000));
    let input = b.receive(&seg(1, 1, ACK, 1_200));
    assert_eq!((input.skip, input.take), (0, 1_000));
    assert!(input.dropped.is_some());
}

#[test]
fn payload_that_overlaps_what_is_there_is_cut() {
    let mut b = Bench::opened();
    b.accept(&seg(1, 1, ACK, 100));
    let input = b.accept(&seg(51, 1, ACK, 100));
    assert_eq!((input.skip, input.take), (50, 50));
    let input = b.accept(&seg(1, 1, ACK, 150));
    assert_eq!((input.skip, input.take), (150, 0));
}

#[test]
fn each_segment_out_of_order_is_a_duplicate_ack_of_its_own() {
    let mut b = Bench::opened();
    for i in 0..5 {
        assert_eq!(b.receive(&seg(1_001 + i * 100, 1, ACK, 100)).take, 0);
    }
    assert_eq!(b.poll_all(), [(ACK, 1, 1); 3], "three mean a loss; more say no more");
}

#[test]
fn a_short_send_rolls_back_and_asks_again_when_there_is_room() {
    let mut b = Bench::opened();
    assert_eq!(b.receive(&seg(1, 1, ACK, 1_460)).take, 1_460);
    assert_eq!(b.receive(&seg(1_461, 1, ACK, 1_460)).take, 1_460);
    b.conn.on_flushed(2_920, 2_000, b.now);
    b.on_pod(&near(0));
    assert_eq!(b.poll_all(), [(ACK, 1, 2_001)]);
    b.on_pod(&near(100));
    assert_eq!(b.poll_all(), []);
    b.on_pod(&near(20_000));
    assert_eq!(b.poll_all(), [(ACK, 1, 2_001); 3]);
    let input = b.accept(&seg(1_461, 1, ACK, 1_460));
    assert_eq!((input.skip, input.take), (540, 920));
}

#[test]
fn a_refused_batch_acknowledges_nothing() {
    let mut b = Bench::opened();
    b.receive(&seg(1, 1, ACK, 1_460));
    b.conn.on_flushed(1_460, 0, b.now);
    b.on_pod(&near(0));
    assert_eq!(b.poll_all(), [(ACK, 1, 1)]);
}

#[test]
fn acks_stay_within_a_window_that_the_guest_took_back() {
    let mut b = Bench::opened();
    b.send(10_000);
    b.accept(&Segment { window: 2_000, ..seg(1, 1, ACK, 10) });
    b.on_pod(&near(30_000));
    assert_eq!(b.poll_all(), [(ACK, 2_001, 11)]);
}

#[test]
fn a_guest_that_sends_from_an_earlier_number_is_still_believed_its_window() {
    let mut b = Bench::opened();
    b.send(10_000);
    b.accept(&seg(1, 1, ACK, 1_000));
    b.receive(&seg(1_001, 1, ACK, 0));
    // It sends again from 1: the number is older, the acknowledgement is newer.
    b.receive(&Segment { window: 300, ..seg(1, 10_001, ACK, 100) });
    assert_eq!(b.budget().unwrap().len, 300);
    // Neither number is newer: the window is of the past.
    b.receive(&Segment { window: 9_000, ..seg(1, 5_001, ACK, 1_000) });
    assert_eq!(b.budget().unwrap().len, 300);
}
