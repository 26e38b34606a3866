//! What the worker does with a connection, in the worker's order.

use std::time::Duration;

use super::pod::{Events, Pod};
use super::{Packet, Rng};
use crate::{Command, Config, Conn, Control, Hold, PodState, Segment, Seq, State};
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// Most payload asked of the socket at once.
pub(super) const READ: u32 = 16 << 10;
const READS_PER_TURN: usize = 4;
const TURNS: usize = 4;

/// The worker's share of one flow.
pub(super) struct Driver {
    pub(super) conn: Option<Conn>,
    config: Config,
    isn: u32,
    opens: bool,
    rng: Rng,
    now: Time,
    readable: bool,
    peer_closed: bool,
    stale: bool,
    ready: bool,
    /// The ring has no buffer until then.
    full_until: Time,
    starving: u64,
    /// What came out of order, if it is kept.
    pub(super) hold: Option<Hold>,
    pub(super) out: Vec<Packet>,
    watch: Watch,
    pub(super) opened: u32,
    /// Times that the socket took less than it was offered.
    pub(super) refusals: u32,
    /// Segments sent again.
    pub(super) retransmits: u32,
    /// Bytes that peeks would have copied if the kernel kept no offset: what is in flight, and what is new behind it.
    pub(super) copied: u64,
    /// Times that the socket's state was read while the connection was open.
    pub(super) state_reads: u32,
}

/// What the guest has been told, in bytes from its initial sequence number.
#[derive(Default)]
struct Watch {
    irs: Seq,
    scale: u8,
    ack: u32,
    edge: u32,
}

impl Driver {
    /// `opens`: the pod accepted the connection.
    pub(super) fn new(config: Config, isn: u32, opens: bool, starving: u64, rng: Rng) -> Driver {
        Driver {
            conn: None,
            config,
            isn,
            opens,
            rng,
            now: Time::ZERO,
            readable: false,
            peer_closed: false,
            stale: false,
            ready: false,
            full_until: Time::ZERO,
            starving,
            hold: Some(Hold::default()),
            out: Vec::new(),
            watch: Watch::default(),
            opened: 0,
            refusals: 0,
            retransmits: 0,
            copied: 0,
            state_reads: 0,
        }
    }

    pub(super) fn never_starve(&mut self) {
        self.starving = 0;
    }

    pub(super) fn is_over(&self) -> bool {
        self.opened > 0 && self.conn.is_none()
    }

    pub(super) fn poll_at(&self) -> Option<Time> {
        let conn = self.conn.as_ref().and_then(Conn::poll_at);
        super::min_time([conn, self.ready.then_some(self.full_until.max(self.now))])
    }

    fn has_room(&self) -> bool {
        self.now >= self.full_until
    }

    /// One turn of the loop.
    pub(super) fn turn(&mut self, now: Time, packets: &[Packet], pod: &mut Pod) {
        self.now = now;
        if self.rng.chance(self.starving) && self.has_room() {
            self.full_until = now + Duration::from_micros(self.rng.range(1, 3_000));
        }
        if self.opens && self.opened == 0 && pod.is_connected() {
            self.open_by_pod(pod);
        }
        if let Some(events) = pod.take_events() {
            self.on_event(events, pod);
        }
        self.on_deadline(pod);
        self.transmit(packets, pod);
        for _ in 0..TURNS {
            if !std::mem::take(&mut self.ready) {
                break;
            }
            if !self.has_room() {
                self.ready = true;
                break;
            }
            self.deliver(pod);
        }
    }

    fn open_by_pod(&mut self, pod: &mut Pod) {
        let mut conn = Conn::open_by_pod(self.config, self.isn, self.now);
        conn.on_accepted(&Self::pod_state(pod));
        self.conn = Some(conn);
        self.opened += 1;
        self.settle(pod);
    }

    fn pod_state(pod: &Pod) -> PodState {
        let free = pod.free() as u32;
        let near = pod.habits.near;
        PodState {
            space: free - free / 8,
            acked: if near { 0 } else { pod.acked as u32 },
            peer_window: if near { u32::MAX >> 1 } else { pod.peer_window() as u32 },
            near,
            rtt: pod.habits.round_trip,
            notifies: !pod.is_writable(),
        }
    }

    fn on_event(&mut self, events: Events, pod: &mut Pod) {
        let Some(conn) = &mut self.conn else { return };
        if conn.state() == State::Connecting {
            conn.on_connected(&Self::pod_state(pod));
        } else if events.broken {
            conn.on_pod_broken(pod.queued());
        }
        self.readable |= events.readable || events.end || events.broken;
        self.peer_closed |= events.end;
        // As of epoll: it tells of room that was asked for, and with whatever else happens that the socket is writable.
        self.stale |= events.writable || conn.may_have_news(self.now);
        self.settle(pod);
    }

    fn on_deadline(&mut self, pod: &mut Pod) {
        let Some(conn) = self.conn.as_mut().filter(|c| c.poll_at().is_some_and(|at| at <= self.now)) else {
            return;
        };
        self.stale |= conn.wants_pod_state(self.now);
        conn.on_timer(self.now);
        assert!(conn.poll_at().is_none_or(|at| at > self.now), "deadline left in the past: {conn:?}");
        self.settle(pod);
    }

    fn transmit(&mut self, packets: &[Packet], pod: &mut Pod) {
        let mut gathered = Vec::new();
        for p in packets {
            let segment = Segment {
                seq: p.seq,
                ack: p.ack,
                flags: p.flags,
                window: p.window,
                len: p.payload.len() as u32,
                mss: p.mss,
                window_scale: p.scale,
            };
            let input = match &mut self.conn {
                Some(conn) => conn.on_segment(&segment, self.now),
                None => {
                    self.on_stray(p, &segment, pod);
                    continue;
                }
            };
            if input.reopen {
                self.conn = None;
                self.on_stray(p, &segment, pod);
                continue;
            }
            let (skip, take) = (input.skip as usize, input.take as usize);
            gathered.extend_from_slice(&p.payload[skip..skip + take]);
            if let Some(hold) = self.hold.as_mut().filter(|h| input.hold && h.wants(p.seq, p.payload.len())) {
                hold.keep(p.seq, p.payload.clone());
            }
            if let Some((conn, hold)) = self.conn.as_mut().zip(self.hold.as_mut()).filter(|_| take > 0) {
                while let Some((seq, payload)) = hold.take(conn.next_from_guest()) {
                    let input = conn.on_held(seq, payload.len() as u32, self.now);
                    let (skip, take) = (input.skip as usize, input.take as usize);
                    gathered.extend_from_slice(&payload[skip..skip + take]);
                }
            }
            if self.rng.chance(10) {
                self.flush(&mut gathered, pod);
            }
        }
        self.flush(&mut gathered, pod);
        if !packets.is_empty() {
            self.settle(pod);
        }
    }

    fn flush(&mut self, gathered: &mut Vec<u8>, pod: &mut Pod) {
        let Some(conn) = self.conn.as_mut().filter(|_| pod.open && !gathered.is_empty()) else { return };
        let sent = if pod.died { 0 } else { pod.send(gathered) };
        if pod.died {
            conn.on_pod_broken(pod.queued());
            self.readable = true;
        }
        self.stale |= pod.habits.near || sent < gathered.len();
        self.refusals += u32::from(sent < gathered.len());
        conn.on_flushed(gathered.len() as u32, sent as u32, self.now);
        gathered.clear();
    }

    fn on_stray(&mut self, p: &Packet, segment: &Segment, pod: &mut Pod) {
        if p.has(TcpFlags::RST) {
            return;
        }
        if p.has(TcpFlags::SYN) && !p.has(TcpFlags::ACK) && !self.opens && self.opened == 0 {
            self.conn = Some(Conn::open_by_guest(self.config, self.isn, segment, self.now));
            self.opened += 1;
            pod.connect(self.now);
            return;
        }
        let (seq, ack, flags) = if p.has(TcpFlags::ACK) {
            (p.ack, Seq(0), TcpFlags::RST)
        } else {
            (Seq(0), p.seq.plus(p.occupied()), TcpFlags::RST.with(TcpFlags::ACK))
        };
        self.out.push(Packet { seq, ack, flags, window: 0, mss: None, scale: None, payload: Vec::new() });
    }

    fn settle(&mut self, pod: &mut Pod) {
        let Some(conn) = &mut self.conn else { return };
        conn.on_flushed(0, 0, self.now);
        let due = std::mem::take(&mut self.stale) || conn.wants_pod_state(self.now);
        if due && pod.open && !conn.is_done_with_socket() {
            self.state_reads += 1;
            conn.on_pod(&Self::pod_state(pod), self.now);
            if !pod.is_writable() {
                pod.ask_writable();
            }
        }
        if conn.is_probed() {
            conn.answer_probe(Some(Duration::ZERO));
        }
        self.send_controls(pod);
        let Some(conn) = &mut self.conn else { return };
        while let Some(command) = conn.command() {
            match command {
                _ if !pod.open => {}
                Command::Consume(n) => pod.consume(u64::from(n)),
                Command::Rewind => {
                    pod.rewind();
                    self.readable = true;
                }
                Command::ShutdownWrite => pod.shutdown(),
                Command::Abort => pod.abort(),
                Command::Keepalive(seconds) => assert!(seconds > 0),
            }
        }
        Self::check_queues(conn, pod);
        self.retransmits = conn.retransmits();
        if conn.is_done_with_socket() {
            pod.close();
        }
        if conn.is_closed() {
            self.conn = None;
            self.ready = false;
            return;
        }
        if self.readable && conn.budget(self.now).is_some() {
            self.ready = true;
        }
    }

    /// The connection and the socket agree on where both streams are.
    fn check_queues(conn: &Conn, pod: &Pod) {
        if !conn.synchronized() || !pod.open || pod.died {
            return;
        }
        let fin = u32::from(conn.fin_at.is_some_and(|fin| conn.snd_nxt > fin));
        if conn.fin_at.is_none_or(|fin| conn.snd_una <= fin) {
            let flight = conn.snd_nxt.since(conn.snd_una) - fin;
            assert_eq!(u64::from(flight), pod.offset, "peek offset: {conn:?}");
            assert_eq!(conn.snd_una.since(conn.iss), pod.base as u32 + 1);
        }
        let end = u32::from(conn.guest_closed());
        assert_eq!(conn.rcv_nxt.since(conn.irs), pod.sent as u32 + 1 + end);
        assert!(conn.snd_max >= conn.snd_nxt && conn.snd_nxt >= conn.snd_una);
        assert!(conn.ack_ready <= conn.rcv_nxt && conn.acked <= conn.ack_ready && conn.edge >= conn.rcv_nxt);
    }

    fn send_controls(&mut self, pod: &Pod) {
        loop {
            if !self.has_room() {
                self.ready = true;
                return;
            }
            let Some(conn) = &mut self.conn else { return };
            let Some(c) = conn.poll(self.now) else { return };
            if pod.died && !conn.abort && c.flags.has(TcpFlags::RST.with(TcpFlags::ACK)) {
                assert!(pod.is_drained(), "reset before what came first: {conn:?}");
            }
            let Control { seq, ack, flags, window, mss, window_scale } = c;
            self.emit(Packet { seq, ack, flags, window, mss, scale: window_scale, payload: Vec::new() }, pod);
        }
    }

    fn deliver(&mut self, pod: &mut Pod) {
        self.settle(pod);
        let mut again = false;
        for _ in 0..READS_PER_TURN {
            again = self.deliver_once(pod);
            if !again {
                break;
            }
        }
        self.settle(pod);
        self.ready |= again && self.conn.is_some();
    }

    fn deliver_once(&mut self, pod: &mut Pod) -> bool {
        let room = self.has_room();
        let Some(conn) = self.conn.as_mut().filter(|_| self.readable && pod.open) else { return false };
        let Some(budget) = conn.budget(self.now) else { return false };
        if !room {
            return true;
        }
        assert!(budget.len > 0 && budget.mss > 0);
        assert_eq!(u64::from(budget.offset), pod.offset);
        let want = budget.len.min(READ) as usize;
        match pod.peek(want) {
            None => {
                self.readable = false;
                false
            }
            Some(data) if data.is_empty() => {
                conn.on_eof();
                self.readable = false;
                false
            }
            Some(data) => {
                self.copied += u64::from(budget.offset) + data.len() as u64;
                let (ack, window) = conn.tell();
                conn.on_data(data.len() as u32, self.now);
                if data.len() < want {
                    self.readable = self.peer_closed || conn.is_broken();
                }
                let mut seq = budget.seq;
                for payload in data.chunks(usize::from(budget.mss)) {
                    let flags = TcpFlags::ACK;
                    let len = payload.len() as u32;
                    let p =
                        Packet { seq, ack, flags, window, mss: None, scale: None, payload: payload.to_vec() };
                    self.emit(p, pod);
                    seq = seq.plus(len);
                }
                self.readable
            }
        }
    }

    /// Checks and sends a segment.
    fn emit(&mut self, p: Packet, pod: &Pod) {
        let w = &mut self.watch;
        if let Some(conn) = &self.conn {
            (w.irs, w.scale) = (conn.irs, conn.rcv_scale);
        }
        let syn = p.has(TcpFlags::SYN);
        if p.has(TcpFlags::ACK) && !p.has(TcpFlags::RST) {
            let ack = p.ack.since(w.irs);
            let edge = ack + (u32::from(p.window) << if syn { 0 } else { w.scale });
            assert!(ack >= w.ack, "acknowledgement went back");
            assert!(edge >= w.edge, "the window's edge went back from {} to {edge}", w.edge);
            let closed = self.conn.as_ref().is_none_or(Conn::guest_closed);
            // With its FIN all that the guest sent counts as delivered: the kernel sees to it.
            let queued = if pod.habits.near || closed { pod.sent } else { pod.acked } as u32;
            assert!(ack <= queued + 1 + u32::from(closed), "acknowledged what the pod does not have");
            (w.ack, w.edge) = (ack, edge);
        } else if syn {
            w.edge = 1 + u32::from(p.window);
            w.ack = 0;
        }
        self.out.push(p);
    }
}
