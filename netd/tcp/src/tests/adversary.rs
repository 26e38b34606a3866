//! A guest that sends anything at all.

use proptest::prelude::*;

use super::*;

/// A step of the adversary or of the world around it.
#[derive(Clone, Debug)]
enum Step {
    Segment { seq: u32, ack: u32, flags: u8, window: u16, len: u32, near_edges: bool },
    Flush { sent: u32 },
    Pod { space: u32, acked: u32, window: u32, near: bool, micros: u32 },
    Deliver { most: u32 },
    End,
    Broken { queued: u32 },
    Wait { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let number = prop_oneof![0..20u32, 900..1_100u32, any::<u32>()];
    prop_oneof![
        8 => (number.clone(), number, 0..64u8, any::<u16>(), prop_oneof![Just(0), 0..3_000u32, any::<u16>().prop_map(u32::from)], any::<bool>())
            .prop_map(|(seq, ack, flags, window, len, near_edges)| Step::Segment { seq, ack, flags, window, len, near_edges }),
        3 => any::<u32>().prop_map(|sent| Step::Flush { sent }),
        3 => (0..200_000u32, any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>())
            .prop_map(|(space, acked, window, near, micros)| Step::Pod { space, acked, window, near, micros }),
        4 => (1..100_000u32).prop_map(|most| Step::Deliver { most }),
        1 => Just(Step::End),
        1 => (0..3_000u32).prop_map(|queued| Step::Broken { queued }),
        3 => (0..100_000u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

/// The connection with what its invariants need remembered.
struct Victim {
    b: Bench,
    offered: u32,
    taken: u32,
    offset: u32,
    sent: u64,
    consumed: u64,
    told: Option<(Seq, Seq)>,
    ended: bool,
}

impl Victim {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Segment { seq, ack, flags, window, len, near_edges } => {
                self.segment(seq, ack, flags, window, len, near_edges);
            }
            Step::Flush { sent } => self.flush(sent),
            Step::Pod { space, acked, window, near, micros } => {
                self.flush(u32::MAX);
                let rtt = Duration::from_micros(micros.into());
                let pod =
                    PodState { space, acked, peer_window: window >> 1, near, rtt, notifies: space < 1_000 };
                self.b.conn.on_connected(&pod);
                self.b.on_pod(&pod);
            }
            Step::Deliver { most } => self.deliver(most),
            Step::End if self.b.budget().is_some() => {
                self.b.conn.on_eof();
                self.ended = true;
            }
            Step::Broken { queued } => self.b.conn.on_pod_broken(self.offset + queued),
            Step::End => {}
            Step::Wait { millis } => {
                self.b.wait(Duration::from_millis(millis));
                self.b.conn.on_timer(self.b.now);
                assert!(self.b.conn.poll_at().is_none_or(|at| at > self.b.now));
            }
        }
        self.settle();
    }

    fn segment(&mut self, seq: u32, ack: u32, flags: u8, window: u16, len: u32, near_edges: bool) {
        let c = &self.b.conn;
        // Numbers near those in use get further than any others.
        let (seq, ack) = if near_edges {
            let from = [c.rcv_nxt, c.acked, c.edge][seq as usize % 3];
            let to = [c.snd_una, c.snd_nxt, c.snd_max][ack as usize % 3];
            (from.plus(seq % 7).minus(3), to.plus(ack % 5).minus(2))
        } else {
            (g(seq), d(ack))
        };
        let s = Segment {
            seq,
            ack,
            flags: TcpFlags(flags),
            window,
            len,
            mss: Some(window),
            window_scale: Some(flags),
        };
        let input = self.b.receive(&s);
        assert!(input.skip + input.take <= len);
        self.offered += input.take;
        if input.reopen {
            assert_eq!(self.b.state(), State::TimeWait);
        }
    }

    fn flush(&mut self, sent: u32) {
        let sent = sent.min(self.offered);
        self.b.conn.on_flushed(self.offered, sent, self.b.now);
        self.taken += sent;
        self.offered = 0;
    }

    fn deliver(&mut self, most: u32) {
        let Some(budget) = self.b.budget() else { return };
        let c = &self.b.conn;
        assert_eq!(budget.offset, self.offset, "peek offset");
        assert!(budget.len > 0 && budget.mss >= 64);
        let flight = budget.seq.since(c.snd_una) + budget.len;
        assert!(flight <= c.snd_wnd, "beyond the window");
        let most = if self.ended { most } else { most.min(1 << 20) };
        let n = budget.len.min(most);
        self.tell();
        self.b.conn.on_data(n, self.b.now);
        self.offset += n;
        self.sent = self.sent.max(self.consumed + u64::from(self.offset));
    }

    fn tell(&mut self) {
        let (ack, window) = self.b.conn.tell();
        self.told(ack, ack.plus(u32::from(window) << self.b.conn.rcv_scale));
    }

    fn told(&mut self, ack: Seq, edge: Seq) {
        if let Some((last_ack, last_edge)) = self.told {
            assert!(ack >= last_ack && edge >= last_edge, "what was told was taken back");
        }
        self.told = Some((ack, edge));
    }

    fn settle(&mut self) {
        self.flush(u32::MAX);
        if self.b.conn.is_probed() {
            self.b.conn.answer_probe(Some(self.b.now.since(Time::ZERO)));
        }
        for i in 0.. {
            let Some(c) = self.b.poll() else { break };
            assert!(i < 10, "no end of segments");
            if c.flags.has(ACK) && !c.flags.has(RST) {
                let scale = if c.flags.has(SYN) { 0 } else { self.b.conn.rcv_scale };
                self.told(c.ack, c.ack.plus(u32::from(c.window) << scale));
            }
        }
        for command in self.b.commands() {
            match command {
                Command::Consume(n) => {
                    self.consumed += u64::from(n);
                    self.offset = self.offset.saturating_sub(n);
                }
                Command::Rewind => self.offset = 0,
                Command::ShutdownWrite | Command::Abort | Command::Keepalive(_) => {}
            }
        }
        assert!(self.consumed <= self.sent, "consumed what was never sent");
        let c = &self.b.conn;
        if c.synchronized() {
            assert!(c.snd_una <= c.snd_nxt && c.snd_nxt <= c.snd_max);
            assert!(c.acked <= c.ack_ready && c.ack_ready <= c.rcv_nxt && c.rcv_nxt <= c.edge);
            assert!(c.edge <= c.edge_ready || c.guest_closed());
            assert_eq!(c.rcv_nxt.since(c.irs), self.taken.wrapping_add(1 + u32::from(c.guest_closed())));
        }
    }
}

fn attack(by_guest: bool, scale: Option<u8>, steps: &[Step]) {
    let b = if by_guest {
        Bench::connecting(&Segment { window_scale: scale, ..syn() })
    } else {
        let (mut b, _) = Bench::accepted(near(50_000));
        b.receive(&Segment { window_scale: scale, ..seg(0, 1, SYN_ACK, 0) });
        b
    };
    let mut v = Victim { b, offered: 0, taken: 0, offset: 0, sent: 0, consumed: 0, told: None, ended: false };
    for step in steps {
        v.apply(step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn nothing_a_guest_sends_breaks_an_invariant(
        by_guest: bool,
        scale in proptest::option::of(0..15u8),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        attack(by_guest, scale, &steps);
    }
}
