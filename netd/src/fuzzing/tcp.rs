//! One TCP connection between a guest without manners and a socket with moods, against a model.
//!
//! An input is a sequence of segments, states of the socket, reads and passing time. The model keeps what both ends
//! know: how much the socket took and its peer acknowledged, how far it was peeked, what the guest was told and what it
//! allowed. At every step: no acknowledgement of what the pod does not have, neither acknowledgement nor window edge
//! goes back, nothing beyond the guest's window, the peek offset is where the connection believes it, states move
//! along RFC 9293 3.3.2, and a deadline that was served is in the future.

use std::time::Duration;

use super::Bytes;
use crate::tcp::{Command, Config, Conn, Control, PodState, Segment, Seq, State};
use crate::time::Time;
use crate::wire::TcpFlags;

const STEPS: usize = 500;
/// Segments that one step may cause.
const CONTROLS: usize = 8;

struct Model {
    conn: Conn,
    now: Time,
    state: State,
    /// The numbers of both SYNs; the guest's is not known before it has sent one.
    iss: Seq,
    irs: Option<Seq>,

    /// Bytes taken from segments and not yet offered to the socket; what the socket has of the stream before them.
    gathered: u32,
    queued: u32,
    guest_fin: bool,
    pod: PodState,
    /// What may be acknowledged by what the socket has said, in bytes of the stream.
    may_ack: u32,
    told: Option<(Seq, Seq)>,
    rcv_scale: u8,

    /// Of the peer's stream: bytes the guest has, bytes peeked beyond them, the most ever sent, and all there are.
    consumed: u32,
    offset: u32,
    sent_max: u32,
    end: Option<u32>,
    fin_sent: bool,
    snd_scale: u8,
    guest_edge: Option<Seq>,
    socket: bool,
    shut: bool,
}

/// Runs one input.
pub fn tcp(data: &[u8]) {
    let mut b = Bytes::new(data);
    let shape = b.u8();
    let config = Config {
        mss: if shape & 2 == 0 { 1460 } else { b.u16().max(64) },
        time_wait: Duration::from_secs(60),
        ..Config::default()
    };
    // Both numbers cross zero, or not.
    let (iss, irs) = if shape & 4 == 0 { (u32::MAX - 100, u32::MAX - 50) } else { (b.u32(), b.u32()) };
    let (iss, irs) = (Seq(iss), Seq(irs));
    let now = Time::from_millis(1000);
    let (near, rtt) = (shape & 8 == 0, Duration::from_millis(if shape & 16 == 0 { 0 } else { 20 }));
    let pod = PodState { space: 64 << 10, acked: 0, peer_window: 1 << 20, near, rtt, notifies: false };
    let mut m;
    if shape & 1 == 0 {
        let syn = Segment {
            seq: irs,
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: b.u16(),
            len: 0,
            ..options(&mut b)
        };
        m = Model::new(Conn::open_by_guest(config, iss.0, &syn, now), iss, pod, now);
        m.learn(&syn);
    } else {
        let mut conn = Conn::open_by_pod(config, iss.0, now);
        conn.on_accepted(&pod);
        m = Model::new(conn, iss, pod, now);
        m.rcv_scale = 8;
    }
    for _ in 0..STEPS {
        if b.is_empty() || !m.step(&mut b, irs) {
            break;
        }
    }
}

fn options(b: &mut Bytes<'_>) -> Segment {
    let kind = b.u8();
    Segment {
        seq: Seq(0),
        ack: Seq(0),
        flags: TcpFlags(0),
        window: 0,
        len: 0,
        mss: (kind & 1 != 0).then(|| b.u16()),
        window_scale: (kind & 2 != 0).then_some(kind >> 4),
    }
}

impl Model {
    fn new(conn: Conn, iss: Seq, pod: PodState, now: Time) -> Model {
        Model {
            state: conn.state(),
            conn,
            now,
            iss,
            irs: None,
            gathered: 0,
            queued: 0,
            guest_fin: false,
            pod,
            may_ack: 0,
            told: None,
            rcv_scale: 0,
            consumed: 0,
            offset: 0,
            sent_max: 0,
            end: None,
            fin_sent: false,
            snd_scale: 0,
            guest_edge: None,
            socket: true,
            shut: false,
        }
    }

    /// The guest's SYN was taken.
    fn learn(&mut self, syn: &Segment) {
        self.irs = Some(syn.seq);
        self.snd_scale = syn.window_scale.unwrap_or(0).min(14);
        self.rcv_scale = if syn.window_scale.is_some() { 8 } else { 0 };
    }

    fn una(&self) -> Seq {
        self.iss.plus(1).plus(self.consumed)
    }

    fn snd_max(&self) -> Seq {
        self.iss.plus(1).plus(self.sent_max).plus(u32::from(self.fin_sent))
    }

    /// One step; false when the connection is no more.
    fn step(&mut self, b: &mut Bytes<'_>, irs: Seq) -> bool {
        let action = b.u8() % 12;
        if action > 3 {
            // As the worker does: what segments have caused is carried out before anything else happens.
            self.settle(b);
        }
        match action {
            0..=3 => {
                let segment = self.segment(b, irs);
                if !self.receive(&segment) {
                    return false;
                }
                // Several segments are gathered before they are offered.
                if b.one_in(4) {
                    return true;
                }
            }
            4 => {
                match b.u8() % 4 {
                    0 => self.now = self.now + Duration::from_micros(u64::from(b.u16())),
                    1 => self.now = self.now + Duration::from_millis(u64::from(b.u16())),
                    _ => self.now = self.conn.poll_at().map_or(self.now, |at| self.now.max(at)),
                }
                if self.conn.poll_at().is_some_and(|at| at <= self.now) {
                    self.conn.on_timer(self.now);
                    self.moved();
                    assert!(self.conn.poll_at().is_none_or(|at| at > self.now), "late: {:?}", self.conn);
                }
            }
            5 | 6 => self.pod_state(b),
            7 | 8 => self.deliver(b),
            9 if self.state == State::Connecting => {
                if b.one_in(8) {
                    self.conn.on_refused();
                } else {
                    self.conn.on_connected(&self.pod);
                }
                self.moved();
            }
            10 if b.one_in(16) && self.socket => {
                self.conn.on_pod_broken(u32::from(b.u16()));
                self.moved();
            }
            11 if b.one_in(32) => {
                self.conn.abort();
                self.moved();
            }
            _ => {}
        }
        self.settle(b);
        self.state != State::Closed
    }

    fn segment(&mut self, b: &mut Bytes<'_>, irs: Seq) -> Segment {
        let kind = b.u8();
        let next = self.irs.unwrap_or(irs).plus(1).plus(self.queued).plus(self.gathered);
        let next = next.plus(u32::from(self.guest_fin));
        let told = self.told.unwrap_or((next, next));
        let seq = match kind & 7 {
            0..=3 => next,
            4 => told.0,
            5 => told.1,
            6 => irs,
            _ => next.plus(b.u16().cast_signed() as u32),
        };
        let ack = match kind >> 3 & 7 {
            0..=2 => self.snd_max(),
            3 => self.una(),
            4 => self.una().plus(u32::from(b.u16())).min(self.snd_max()),
            5 => self.iss.plus(1),
            6 => self.snd_max().plus(b.u8().cast_signed() as u32),
            _ => Seq(b.u32()),
        };
        let bits = b.u8();
        let flags = match bits & 7 {
            0..=4 => TcpFlags::ACK,
            5 => TcpFlags::ACK.with(TcpFlags::FIN),
            6 if self.irs.is_none() => TcpFlags::ACK.with(TcpFlags::SYN),
            6 => TcpFlags::SYN,
            _ => TcpFlags(bits >> 3),
        };
        let len = match kind >> 6 {
            0 => 0,
            1 => 1448,
            2 => u32::from(b.u8()),
            _ => u32::from(b.u16()),
        };
        let window = if bits & 0x80 == 0 { 0xffff } else { b.u16() };
        let rest = if flags.has(TcpFlags::SYN) { options(b) } else { options(&mut Bytes::new(&[])) };
        Segment { seq, ack, flags, window, len, ..rest }
    }

    fn receive(&mut self, segment: &Segment) -> bool {
        let before = self.state;
        let input = self.conn.on_segment(segment, self.now);
        if before == State::SynSent && self.conn.state() == State::Established {
            self.learn(segment);
        }
        self.moved();
        assert!(input.skip + input.take <= segment.len, "more than the segment has: {input:?}");
        if input.take > 0 {
            let next =
                self.irs.expect("no payload before a SYN").plus(1).plus(self.queued).plus(self.gathered);
            assert_eq!(segment.seq.plus(input.skip), next, "a hole or a repetition in the stream: {input:?}");
            assert!(!self.guest_fin, "payload behind the FIN");
            if let Some((_, edge)) = self.told {
                assert!(next.plus(input.take) <= edge, "beyond the window that was told: {input:?}");
            }
        }
        self.gathered += input.take;
        // The most that the guest ever allowed. What it says of numbers that were never sent does not count.
        if segment.flags.has(TcpFlags::ACK) && segment.ack >= self.una() && segment.ack <= self.snd_max() {
            let scale = if segment.flags.has(TcpFlags::SYN) { 0 } else { self.snd_scale };
            let edge = segment.ack.plus(u32::from(segment.window) << scale);
            self.guest_edge = Some(self.guest_edge.map_or(edge, |old| old.max(edge)));
        }
        !input.reopen
    }

    /// Offers what was gathered to the socket, which takes all of it or less.
    fn flush(&mut self, b: &mut Bytes<'_>) {
        if self.gathered > 0 {
            let offered = std::mem::take(&mut self.gathered);
            let takes = if !self.socket {
                0
            } else if b.one_in(8) {
                u32::from(b.u16())
            } else {
                offered
            };
            let sent = takes.min(offered);
            self.queued = self.queued.wrapping_add(sent);
            self.on_flushed(offered, sent);
        }
    }

    fn on_flushed(&mut self, offered: u32, sent: u32) {
        let before = self.state;
        self.conn.on_flushed(offered, sent, self.now);
        let closed = [State::CloseWait, State::Closing, State::TimeWait];
        self.guest_fin |= before != self.conn.state() && closed.contains(&self.conn.state());
        self.moved();
    }

    fn pod_state(&mut self, b: &mut Bytes<'_>) {
        let kind = b.u8();
        if kind & 1 != 0 {
            self.pod.space = u32::from(b.u16()) << (kind >> 1 & 7);
        }
        if kind & 0x10 != 0 {
            self.pod.peer_window = u32::from(b.u16()) << (kind >> 5);
        }
        // The peer acknowledges no more than it was sent, and never less than before.
        let left = self.queued.wrapping_sub(self.pod.acked);
        self.pod.acked = self.pod.acked.wrapping_add(left.min(u32::from(b.u16())));
        if self.state == State::Connecting || !self.socket || self.conn.is_done_with_socket() {
            return;
        }
        self.conn.on_pod(&self.pod, self.now);
        self.moved();
        self.may_ack = self.may_ack.max(if self.pod.near { self.queued } else { self.pod.acked });
    }

    fn deliver(&mut self, b: &mut Bytes<'_>) {
        if !self.socket {
            return;
        }
        let Some(budget) = self.conn.budget(self.now) else { return };
        let at = self.consumed.wrapping_add(self.offset);
        assert_eq!(budget.offset, self.offset, "peek offset: {:?}", self.conn);
        assert_eq!(budget.seq, self.iss.plus(1).plus(at));
        assert!(budget.len > 0 && budget.mss > 0, "{budget:?}");
        let end = budget.seq.plus(budget.len);
        assert!(self.guest_edge.is_some_and(|edge| end <= edge), "beyond the guest's window: {budget:?}");
        let n = u32::from(b.u16()) << (b.u8() & 7);
        // What was sent once is still in the socket.
        let again = self.sent_max.wrapping_sub(at);
        if n == 0 && again == 0 {
            self.end = Some(self.end.unwrap_or(at));
            self.conn.on_eof();
        } else {
            let left = self.end.map_or(u32::MAX, |end| end.wrapping_sub(at));
            assert!(self.end.is_none() || budget.len <= left, "beyond the end: {budget:?}");
            let n = n.max(1).min(budget.len);
            let (ack, window) = self.conn.tell();
            self.check_told(ack, window, self.rcv_scale);
            self.conn.on_data(n, self.now);
            self.offset += n;
            self.sent_max = self.sent_max.max(self.consumed.wrapping_add(self.offset));
        }
        self.moved();
    }

    /// What the worker does after everything: the FIN goes through, segments go out, commands are carried out.
    fn settle(&mut self, b: &mut Bytes<'_>) {
        self.flush(b);
        self.on_flushed(0, 0);
        if self.conn.is_probed() {
            self.conn.answer_probe(b.one_in(2).then(|| Duration::from_millis(b.u16().into())));
        }
        for n in 0.. {
            assert!(n < CONTROLS, "no end of segments: {:?}", self.conn);
            let Some(c) = self.conn.poll(self.now) else { break };
            self.check_control(&c);
            self.moved();
        }
        while let Some(command) = self.conn.command() {
            match command {
                // No socket is left to shut down or to consume from.
                _ if !self.socket => {}
                Command::Consume(n) => {
                    self.consumed = self.consumed.wrapping_add(n);
                    self.offset = self.offset.saturating_sub(n);
                    assert!(self.consumed <= self.sent_max, "consumed what was not sent: {:?}", self.conn);
                }
                Command::Rewind => self.offset = 0,
                Command::ShutdownWrite => {
                    assert!(self.guest_fin && !self.shut, "a shutdown without a FIN, or a second one");
                    self.shut = true;
                }
                Command::Abort => self.socket = false,
                Command::Keepalive(seconds) => {
                    assert!((1..=32_767).contains(&seconds), "the kernel takes no {seconds}");
                }
            }
        }
        self.socket &= !self.conn.is_done_with_socket();
    }

    fn check_control(&mut self, c: &Control) {
        if c.flags.has(TcpFlags::RST) {
            return;
        }
        if c.flags.has(TcpFlags::SYN) {
            assert_eq!(c.seq, self.iss);
            assert!(c.mss.is_some_and(|mss| mss > 0));
            if c.flags.has(TcpFlags::ACK) {
                self.check_told(c.ack, c.window, 0);
            }
            return;
        }
        if c.flags.has(TcpFlags::FIN) {
            let end = self.end.expect("a FIN before the peer's");
            assert_eq!(c.seq, self.iss.plus(1).plus(end), "a FIN that is not behind the data");
            self.fin_sent = true;
        }
        let low = self.iss.plus(self.consumed);
        assert!(c.seq >= low && c.seq <= self.snd_max(), "sequence number of {c:?}: {:?}", self.conn);
        self.check_told(c.ack, c.window, self.rcv_scale);
    }

    /// The guest is told this acknowledgement and window.
    fn check_told(&mut self, ack: Seq, window: u16, scale: u8) {
        let irs = self.irs.expect("nothing is acknowledged before the guest's SYN");
        let edge = ack.plus(u32::from(window) << scale);
        if let Some((old_ack, old_edge)) = self.told {
            assert!(
                ack >= old_ack,
                "the acknowledgement went back from {old_ack:?} to {ack:?}: {:?}",
                self.conn
            );
            assert!(edge >= old_edge, "the edge went back from {old_edge:?} to {edge:?}: {:?}", self.conn);
        }
        // With its FIN all that the guest sent counts as delivered: the kernel sees to it.
        let stream = if self.guest_fin { self.queued.wrapping_add(1) } else { self.may_ack };
        assert!(ack <= irs.plus(1).plus(stream), "acknowledged what the pod does not have: {:?}", self.conn);
        self.told = Some((ack, edge));
    }

    /// The state moved by one step of RFC 9293 3.3.2, or stayed.
    fn moved(&mut self) {
        use State::{
            CloseWait, Closed, Closing, Connecting, Established, FinWait1, FinWait2, LastAck, SynReceived,
            SynSent, TimeWait,
        };
        let (from, to) = (self.state, self.conn.state());
        let allowed: &[State] = match from {
            Connecting => &[SynReceived],
            SynReceived | SynSent => &[Established],
            Established => &[FinWait1, CloseWait],
            FinWait1 => &[FinWait2, Closing],
            FinWait2 | Closing => &[TimeWait],
            CloseWait => &[LastAck],
            LastAck | TimeWait | Closed => &[],
        };
        let ends = to == Closed;
        assert!(from == to || ends || allowed.contains(&to), "from {from:?} to {to:?}");
        self.state = to;
    }
}
