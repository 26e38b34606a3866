//! Data to the guest: budget, loss and what is sent again.

use super::*;

/// The peek offset that the kernel keeps, which must be `snd_nxt - snd_una` whenever data is asked for.
#[derive(Default)]
struct Peek(u32);

impl Peek {
    fn obey(&mut self, b: &mut Bench) {
        for c in b.commands() {
            match c {
                Command::Consume(n) => self.0 = self.0.saturating_sub(n),
                Command::Rewind => self.0 = 0,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.0, b.conn.snd_nxt.since(b.conn.snd_una));
    }

    fn send(&mut self, b: &mut Bench, n: u32) {
        b.send(n);
        self.0 += n;
        self.obey(b);
    }
}

#[test]
fn the_budget_is_the_guests_window_and_nothing_less() {
    let mut b = Bench::opened();
    assert_eq!(b.budget(), Some(Budget { seq: d(1), offset: 0, len: 60_000, mss: MSS }));
    b.send(10_000);
    assert_eq!(b.budget(), Some(Budget { seq: d(10_001), offset: 10_000, len: 50_000, mss: MSS }));
    b.send(50_000);
    assert_eq!(b.budget(), None);
    b.receive(&seg(1, 10_001, ACK, 0));
    assert_eq!(b.commands(), [Command::Consume(10_000)]);
    assert_eq!(b.budget(), Some(Budget { seq: d(60_001), offset: 50_000, len: 10_000, mss: MSS }));
}

#[test]
fn the_budget_is_what_may_be_in_flight_where_that_is_less() {
    let mut b = Bench::opened();
    // As at a target whose kernel keeps no peek offset: more is in flight already than may be there.
    b.send(50_000);
    b.conn.adopt(Config { in_flight: 40_000, ..Config::default() });
    assert_eq!(b.budget(), None);
    b.receive(&seg(1, 20_001, ACK, 0));
    assert_eq!(b.budget(), Some(Budget { seq: d(50_001), offset: 30_000, len: 10_000, mss: MSS }));
    b.send(10_000);
    assert_eq!(b.budget(), None);
    b.receive(&seg(1, 60_001, ACK, 0));
    assert_eq!(b.budget(), Some(Budget { seq: d(60_001), offset: 0, len: 40_000, mss: MSS }));
}

#[test]
fn three_duplicates_rewind_once() {
    let mut b = Bench::opened();
    let mut peek = Peek::default();
    peek.send(&mut b, 20_000);
    for _ in 0..2 {
        b.receive(&seg(1, 1, ACK, 0));
        assert_eq!(b.commands(), []);
    }
    b.receive(&seg(1, 1, ACK, 0));
    peek.obey(&mut b);
    assert_eq!(b.budget(), Some(Budget { seq: d(1), offset: 0, len: 10_000, mss: MSS }));
    peek.send(&mut b, 10_000);
    for _ in 0..7 {
        b.receive(&seg(1, 1, ACK, 0));
        assert_eq!(b.commands(), [], "a duplicate of what was sent again is no new loss");
    }
    // The guest kept what came after the hole: it acknowledges more than was sent again.
    b.receive(&seg(1, 20_001, ACK, 0));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(20_001));
    // All was acknowledged: the next loss counts again.
    peek.send(&mut b, 5_000);
    for _ in 0..3 {
        b.receive(&seg(1, 20_001, ACK, 0));
    }
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(20_001));
}

#[test]
fn only_bare_acks_of_outstanding_data_with_the_same_window_are_duplicates() {
    let with_data = seg(1, 1, ACK, 10);
    let with_fin = seg(500, 1, FIN_ACK, 0);
    let with_window = Segment { window: 50_000, ..seg(1, 1, ACK, 0) };
    let other_window = Segment { window: 51_000, ..seg(1, 1, ACK, 0) };
    let mut b = Bench::opened();
    for _ in 0..4 {
        b.receive(&seg(1, 1, ACK, 0));
    }
    b.send(5_000);
    for s in [with_data, with_fin, with_window, other_window, with_window, other_window] {
        b.receive(&s);
        assert_eq!(b.commands(), []);
    }
}

/// The ACK of the handshake again, with another window.
fn repeated(window: u16) -> Segment {
    Segment { window, ..seg(1, 1, ACK, 0) }
}

#[test]
fn a_window_that_grows_with_each_ack_tells_of_no_loss() {
    let mut b = Bench::opened();
    b.send(20_000);
    for window in 60_001..60_100 {
        b.receive(&repeated(window));
        assert_eq!(b.commands(), [], "an ACK with a window of {window}");
    }
    // All of it was still believed.
    assert_eq!(b.budget(), Some(Budget { seq: d(20_001), offset: 20_000, len: 40_099, mss: MSS }));
    assert_eq!(b.conn.retransmits(), 0);
}

#[test]
fn a_window_between_duplicates_neither_counts_nor_takes_from_the_count() {
    let mut b = Bench::opened();
    b.send(20_000);
    for window in [60_000, 60_000, 62_000] {
        b.receive(&repeated(window));
        assert_eq!(b.commands(), [], "an ACK with a window of {window}");
    }
    b.receive(&repeated(62_000));
    assert_eq!(b.commands(), [Command::Rewind]);
    assert_eq!(b.budget().unwrap().seq, d(1));
}

#[test]
fn a_guest_that_dropped_data_and_closed_its_window_gets_it_again_when_the_window_opens() {
    let mut b = Bench::opened();
    b.send(20_000);
    // Short of memory it drops every segment and says so each time.
    for _ in 0..8 {
        b.receive(&repeated(0));
    }
    assert_eq!(b.commands(), [Command::Rewind], "once");
    assert_eq!(b.budget(), None);
    b.receive(&repeated(30_000));
    assert_eq!(b.budget().map(|budget| (budget.seq, budget.offset)), Some((d(1), 0)));
}

#[test]
fn a_loss_halves_the_flight_and_each_round_trip_adds_a_segment() {
    let mut b = Bench::opened();
    b.send(40_000);
    for _ in 0..3 {
        b.receive(&seg(1, 1, ACK, 0));
    }
    assert_eq!(b.budget().unwrap().len, 20_000);
    b.send(20_000);
    b.receive(&seg(1, 20_001, ACK, 0));
    assert_eq!(b.budget().unwrap().len, 20_000 + u32::from(MSS));
    // A timeout starts from little and doubles it until it is where the loss was.
    b.next_deadline();
    let mut sent = 20_001;
    for segments in [4, 8] {
        let window = segments * u32::from(MSS);
        assert_eq!(b.budget().unwrap().len, window);
        b.send(window);
        sent += window;
        b.receive(&seg(1, sent, ACK, 0));
    }
    let window = 16 * u32::from(MSS);
    assert_eq!(b.budget().unwrap().len, window);
    b.send(window);
    b.receive(&seg(1, sent + window, ACK, 0));
    assert_eq!(b.budget().unwrap().len, window + u32::from(MSS));
}

#[test]
fn a_partial_acknowledgement_after_a_rewind_keeps_the_offset_right() {
    let mut b = Bench::opened();
    let mut peek = Peek::default();
    peek.send(&mut b, 10_000);
    b.next_deadline();
    peek.obey(&mut b);
    peek.send(&mut b, 2_000);
    // Before the rewind was carried out an old acknowledgement arrives.
    b.receive(&seg(1, 6_001, ACK, 0));
    peek.obey(&mut b);
    assert_eq!(b.conn.snd_nxt, d(6_001));
    peek.send(&mut b, 3_000);
    b.receive(&seg(1, 7_001, ACK, 0));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().offset, 2_000);
}

#[test]
fn an_acknowledgement_between_a_timeout_and_its_rewind_is_consumed_first() {
    let mut b = Bench::opened();
    b.send(10_000);
    b.next_deadline();
    b.receive(&seg(1, 4_001, ACK, 0));
    assert_eq!(b.commands(), [Command::Consume(4_000), Command::Rewind]);
    assert_eq!(b.budget().unwrap(), Budget { seq: d(4_001), offset: 0, len: 6_840, mss: MSS });
}

#[test]
fn an_end_found_after_a_rewind_is_where_the_stream_ends() {
    let mut b = Bench::opened();
    b.send(3_000);
    b.next_deadline();
    b.commands();
    b.send(3_000);
    b.conn.on_eof();
    assert_eq!(b.poll_all(), [(FIN_ACK, 3_001, 1)]);
}

#[test]
fn the_timeout_follows_the_round_trip_and_doubles() {
    let mut b = Bench::opened();
    b.send(1_000);
    b.wait(millis(100));
    b.receive(&seg(1, 1_001, ACK, 0));
    b.commands();
    b.send(1_000);
    // The handshake took no time at all, so this sample is all deviation: srtt 12.5 ms, rttvar 25 ms.
    assert_eq!(b.next_deadline(), millis(200), "not below 200 ms");
    b.commands();
    b.send(1_000);
    assert_eq!(b.next_deadline(), millis(400));
    // Karn: what was sent twice tells no round trip.
    b.commands();
    b.send(1_000);
    b.wait(millis(50_000));
    b.receive(&seg(1, 2_001, ACK, 0));
    b.commands();
    b.send(1_000);
    assert_eq!(b.next_deadline(), millis(200));
}

#[test]
fn a_guest_that_answers_nothing_is_given_up() {
    let mut b = Bench::opened();
    b.send(1_000);
    for i in 0..9 {
        assert!(b.next_deadline() <= Duration::from_secs(60), "{i}");
        assert_eq!(b.commands(), [Command::Rewind]);
        b.send(1_000);
    }
    b.next_deadline();
    assert_eq!((b.commands(), b.poll_all()), (vec![Command::Abort], vec![(RST_ACK, 1_001, 1)]));
}

#[test]
fn a_second_gibibyte_without_a_loss_does_not_blunt_the_first_one() {
    let mut b = Bench::opened_with(&Segment { window_scale: Some(14), ..syn() }, near(40_000));
    let mut at = 1u32;
    for _ in 0..(3u64 << 30) / (8 << 20) {
        b.send(8 << 20);
        at = at.wrapping_add(8 << 20);
        b.receive(&Segment { ack: d(at), ..seg(1, 1, ACK, 0) });
        b.commands();
    }
    b.send(1_000);
    for _ in 0..3 {
        b.receive(&Segment { ack: d(at), ..seg(1, 1, ACK, 0) });
    }
    assert_eq!(b.commands(), [Command::Rewind]);
}

#[test]
fn what_is_sent_stays_below_the_most_that_is_kept_peeked() {
    let mut b = Bench::opened_with(&Segment { window_scale: Some(14), ..syn() }, near(40_000));
    assert_eq!(b.budget().unwrap().len, 8 << 20);
    b.send(8 << 20);
    assert_eq!(b.budget(), None);
}

#[test]
fn no_small_segment_goes_into_a_small_window_while_more_is_on_its_way() {
    let mut b = Bench::opened();
    b.send(59_000);
    assert_eq!(b.budget(), None, "1000 bytes of window, 59000 in flight");
    b.receive(&seg(1, 59_001, ACK, 0));
    assert!(b.budget().is_some());
    // A guest whose whole window is small gets half of it.
    let mut b = Bench::opened_with(&Segment { window: 1_000, ..syn() }, near(40_000));
    b.receive(&Segment { window: 1_000, ..seg(1, 1, ACK, 0) });
    b.conn.snd_wnd_max = 1_000;
    b.send(500);
    assert_eq!(b.budget().unwrap().len, 500);
    b.send(100);
    assert_eq!(b.budget(), None);
}

#[test]
fn a_second_hole_in_one_window_waits_for_the_first_to_be_filled() {
    let mut b = Bench::opened();
    b.send(20_000);
    for _ in 0..3 {
        b.receive(&seg(1, 1, ACK, 0));
    }
    assert_eq!(b.commands(), [Command::Rewind]);
    b.send(10_000);
    // RFC 6582 3.2: what is sent again makes duplicates that mean nothing until `recover` is reached.
    b.receive(&seg(1, 5_001, ACK, 0));
    for _ in 0..3 {
        b.receive(&seg(1, 5_001, ACK, 0));
    }
    assert_eq!(b.commands(), [Command::Consume(5_000)]);
}

#[test]
fn a_long_round_trip_makes_a_long_timeout() {
    let mut b = Bench::connecting(&syn());
    b.conn.on_connected(&near(40_000));
    b.poll();
    b.wait(millis(400));
    b.receive(&seg(1, 1, ACK, 0));
    b.send(1_000);
    b.wait(millis(400));
    b.receive(&seg(1, 1_001, ACK, 0));
    b.send(1_000);
    // RFC 6298 2.2, 2.3: SRTT 400 ms, RTTVAR 200 ms and then 150 ms.
    assert_eq!(b.next_deadline(), millis(1_000));
}

#[test]
fn what_was_sent_twice_tells_no_round_trip() {
    let mut b = Bench::opened();
    b.send(1_000);
    for _ in 0..3 {
        b.receive(&seg(1, 1, ACK, 0));
    }
    b.commands();
    b.send(1_000);
    b.wait(millis(1_000));
    b.receive(&seg(1, 1_001, ACK, 0));
    b.send(1_000);
    assert_eq!(b.next_deadline(), millis(200), "a sample of a second would make it 1125 ms");
}

/// The guest's ACK of netd's number `ack` with this window.
fn told(ack: u32, window: u16) -> Segment {
    Segment { window, ..seg(1, ack, ACK, 0) }
}

#[test]
fn what_a_guest_without_memory_dropped_goes_again_as_soon_as_it_reads() {
    let mut b = Bench::opened();
    let mut peek = Peek::default();
    peek.send(&mut b, 30_000);
    // Linux drops what its socket has no memory for and says so by a window of zero (RFC 9293 3.8.6 asks to cope).
    b.receive(&told(10_001, 0));
    peek.obey(&mut b);
    assert_eq!(b.budget(), None);
    b.wait(millis(1));
    b.receive(&told(10_001, 40_000));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap(), Budget { seq: d(10_001), offset: 0, len: 20_000 / 2, mss: MSS });
    // Half of it, as after any loss, and a segment more each round trip.
    peek.send(&mut b, 10_000);
    b.receive(&told(20_001, 40_000));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(20_001));
    assert_eq!(b.budget().unwrap().len, 10_000 + u32::from(MSS));
}

#[test]
fn a_window_that_was_filled_and_opens_again_loses_nothing() {
    let mut b = Bench::opened();
    let mut peek = Peek::default();
    peek.send(&mut b, 30_000);
    b.receive(&told(30_001, 0));
    b.receive(&told(30_001, 40_000));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(30_001));
    // Closed over data that was kept after all: the acknowledgement says so before the window opens.
    peek.send(&mut b, 5_000);
    b.receive(&told(31_001, 0));
    b.receive(&told(35_001, 0));
    b.receive(&told(35_001, 40_000));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(35_001));
    assert_eq!(b.conn.retransmits(), 0);
}

#[test]
fn a_guest_that_drops_twice_is_sent_twice() {
    let mut b = Bench::opened();
    let mut peek = Peek::default();
    peek.send(&mut b, 30_000);
    for _ in 0..2 {
        b.receive(&told(1, 0));
        b.receive(&told(1, 40_000));
        peek.obey(&mut b);
        assert_eq!(b.budget().unwrap().seq, d(1));
        peek.send(&mut b, 5_000);
    }
    // A closed window that is told again of what was sent before does not send it a third time.
    b.receive(&told(5_001, 0));
    b.receive(&told(5_001, 40_000));
    peek.obey(&mut b);
    assert_eq!(b.budget().unwrap().seq, d(5_001));
}
