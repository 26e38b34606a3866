//! Rules of the state machine, one by one. Both initial numbers lie just below the wrap, so that all cross it.

mod adversary;
mod closing;
mod handshake;
mod keepalive;
mod opening;
mod pacing;
mod reset;
mod sending;
mod timers;
mod window;

use std::time::Duration;

use super::{Budget, Command, Config, Conn, Control, Input, PodState, Segment, Seq, State};
use netd_base::time::Time;
use netd_wire::TcpFlags;

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;
const RST: TcpFlags = TcpFlags::RST;
const FIN_ACK: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);
const SYN_ACK: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK);
const RST_ACK: TcpFlags = TcpFlags::RST.with(TcpFlags::ACK);

const GUEST_ISN: Seq = Seq(u32::MAX - 7);
const NETD_ISN: Seq = Seq(u32::MAX - 3);
const MSS: u16 = 1460;

/// The guest's number `n`; its SYN is 0.
fn g(n: u32) -> Seq {
    GUEST_ISN.plus(n)
}

/// netd's number `n`; its SYN is 0.
fn d(n: u32) -> Seq {
    NETD_ISN.plus(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn near(space: u32) -> PodState {
    PodState { space, acked: 0, peer_window: u32::MAX >> 1, near: true, rtt: Duration::ZERO, notifies: false }
}

fn far(space: u32, acked: u32, peer_window: u32) -> PodState {
    PodState { space, acked, peer_window, near: false, rtt: Duration::ZERO, notifies: false }
}

/// A segment of the guest that acknowledges all up to netd's number `ack`, with a window of 60,000 bytes.
fn seg(seq: u32, ack: u32, flags: TcpFlags, len: u32) -> Segment {
    Segment { seq: g(seq), ack: d(ack), flags, window: 60_000, len, mss: None, window_scale: None }
}

fn syn() -> Segment {
    Segment { ack: Seq(0), mss: Some(MSS), ..seg(0, 0, SYN, 0) }
}

/// A connection and its clock.
struct Bench {
    conn: Conn,
    now: Time,
}

impl Bench {
    /// The guest's SYN has arrived; connect() is under way.
    fn connecting(syn: &Segment) -> Bench {
        let now = Time::from_millis(1_000);
        let conn = Conn::open_by_guest(Config::default(), NETD_ISN.0, syn, now);
        Bench { conn, now }
    }

    /// The guest opened and is established: both next numbers are 1. No window scale.
    fn opened() -> Bench {
        Bench::opened_with(&syn(), near(40_000))
    }

    fn opened_with(syn: &Segment, pod: PodState) -> Bench {
        let mut b = Bench::connecting(syn);
        b.conn.on_connected(&pod);
        assert_eq!(b.poll().map(|c| c.flags), Some(SYN_ACK));
        b.receive(&seg(1, 1, ACK, 0));
        assert_eq!(b.conn.state(), State::Established);
        assert_eq!(b.poll_all(), []);
        b
    }

    /// The pod accepted: its SYN has gone to the guest.
    fn accepted(pod: PodState) -> (Bench, Control) {
        let now = Time::from_millis(1_000);
        let mut conn = Conn::open_by_pod(Config::default(), NETD_ISN.0, now);
        conn.on_accepted(&pod);
        let mut b = Bench { conn, now };
        let c = b.poll().expect("a SYN");
        (b, c)
    }

    fn receive(&mut self, s: &Segment) -> Input {
        self.conn.on_segment(s, self.now)
    }

    /// Receives a segment whose payload the socket takes whole.
    fn accept(&mut self, s: &Segment) -> Input {
        let input = self.receive(s);
        self.conn.on_flushed(input.take, input.take, self.now);
        input
    }

    fn poll(&mut self) -> Option<Control> {
        self.conn.poll(self.now)
    }

    /// Flags, sequence number and acknowledgement of all that is to be sent, from the initial ones.
    fn poll_all(&mut self) -> Vec<(TcpFlags, u32, u32)> {
        let mut all = Vec::new();
        while let Some(c) = self.poll() {
            all.push((c.flags, c.seq.since(NETD_ISN), c.ack.since(GUEST_ISN)));
            assert!(all.len() < 10, "no end of segments");
        }
        all
    }

    fn commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.conn.command()).collect()
    }

    fn budget(&mut self) -> Option<Budget> {
        self.conn.budget(self.now)
    }

    /// Sends `n` bytes of data.
    fn send(&mut self, n: u32) {
        let budget = self.budget().expect("a budget");
        assert!(budget.len >= n, "{budget:?}");
        self.conn.on_data(n, self.now);
    }

    fn wait(&mut self, d: Duration) {
        self.now = self.now + d;
    }

    /// Goes to the next deadline and serves it.
    fn next_deadline(&mut self) -> Duration {
        let at = self.conn.poll_at().expect("a deadline");
        let waited = at.since(self.now);
        self.now = if at > self.now { at } else { self.now };
        self.conn.on_timer(self.now);
        assert!(self.conn.poll_at().is_none_or(|next| next > self.now), "{:?}", self.conn);
        waited
    }

    fn on_pod(&mut self, pod: &PodState) {
        self.conn.on_pod(pod, self.now);
    }

    fn state(&self) -> State {
        self.conn.state()
    }
}
