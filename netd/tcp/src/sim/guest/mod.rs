//! A guest's TCP of our own: small, strict about what it is sent, and with every habit that a stack may have.

mod input;
mod output;

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Close, DOWN, Packet, Plan, Rng, UP, byte, bytes, min_time};
use crate::Seq;
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// What a world needs of a guest.
pub(super) trait Guest {
    fn receive(&mut self, p: &Packet, now: Time);
    fn poll(&mut self, now: Time, out: &mut Vec<Packet>);
    fn poll_at(&self) -> Option<Time>;
    /// Bytes that its application has read.
    fn received(&self) -> u64;
    /// Both directions have ended in order.
    fn is_complete(&self) -> bool;
    /// The connection ended by a RST of the other side.
    fn was_reset(&self) -> bool;
    fn describe(&self) -> String;
}

/// Habits of the stack and its application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) opens: bool,
    pub(super) isn: u32,
    pub(super) mss: Option<u16>,
    pub(super) scale: Option<u8>,
    pub(super) buffer: u64,
    /// Out-of-order segments are kept.
    pub(super) reassembles: bool,
    pub(super) ack_delay: Duration,
    /// Segments of odd lengths.
    pub(super) odd: bool,
    /// What the application reads at once, and how often.
    pub(super) read: (u64, Duration),
    /// What the application writes at once, and how often.
    pub(super) write: (u64, Duration),
    pub(super) stall: Option<(u64, Duration)>,
    /// Takes back window that it gave.
    pub(super) shrinks: bool,
    /// Tells each growth of its window at once, however little it is.
    pub(super) tells_all: bool,
    /// Probes a closed window by a byte, not by an old number.
    pub(super) probes_by_byte: bool,
    /// Bare ACKs carry the number it sends next, also when that was set back.
    pub(super) acks_from_next: bool,
    /// Sends its FIN into a closed window.
    pub(super) eager_fin: bool,
    /// Sends one segment again for each hole (RFC 6582), not everything from there on.
    pub(super) new_reno: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listen,
    SynSent,
    SynReceived,
    Open,
    Dead,
}

const RTO: Duration = Duration::from_millis(250);
const MAX_RTO: Duration = Duration::from_secs(8);

/// The guest. Numbers are counted from the initial ones: the SYN is 0, data starts at 1.
#[derive(Debug)]
pub(super) struct Reference {
    habits: Habits,
    plan: Plan,
    rng: Rng,
    state: State,
    reset: bool,
    una: u64,
    next: u64,
    max: u64,
    limit: u64,
    written: u64,
    scales: bool,
    peer_scale: u8,
    peer_mss: u64,
    dup_acks: u32,
    recover: u64,
    /// The first segment is to be sent again.
    resend: bool,
    recovering: bool,
    irs: Seq,
    expected: u64,
    pending: BTreeMap<u64, Vec<u8>>,
    read: u64,
    edge: u64,
    highest_edge: u64,
    end: Option<u64>,
    end_read: bool,
    unacked_segments: u32,
    ack_now: u32,
    ack_at: Option<Time>,
    rto: Duration,
    rto_at: Option<Time>,
    /// Bare ACKs that told a larger window and nothing else.
    pub(super) window_updates: u32,
    /// Times that nothing happened until the timeout.
    pub(super) timeouts: u32,
    next_read: Time,
    next_write: Time,
    stalled_until: Option<Time>,
    probe: bool,
    /// Answer of a socket that is gone.
    reset_stray: Option<Packet>,
}

impl Reference {
    pub(super) fn new(habits: Habits, plan: Plan, rng: Rng) -> Reference {
        Reference {
            state: if habits.opens { State::SynSent } else { State::Listen },
            habits,
            plan,
            rng,
            reset: false,
            una: 0,
            next: 0,
            max: 0,
            limit: 0,
            written: 0,
            scales: false,
            peer_scale: 0,
            peer_mss: 536,
            dup_acks: 0,
            recover: 0,
            resend: false,
            recovering: false,
            irs: Seq(0),
            expected: 0,
            pending: BTreeMap::new(),
            read: 0,
            edge: 0,
            highest_edge: 0,
            end: None,
            end_read: false,
            unacked_segments: 0,
            ack_now: 0,
            ack_at: None,
            rto: RTO,
            rto_at: None,
            window_updates: 0,
            timeouts: 0,
            next_read: Time::ZERO,
            next_write: Time::ZERO,
            stalled_until: None,
            probe: false,
            reset_stray: None,
        }
    }

    fn seq(&self, at: u64) -> Seq {
        Seq(self.habits.isn).plus(at as u32)
    }

    /// Where a number of the other side lies, near what is expected.
    fn place(&self, seq: Seq) -> i64 {
        self.expected as i64 + i64::from(seq.since(self.irs.plus(self.expected as u32)) as i32)
    }

    fn fin_at(&self) -> Option<u64> {
        let all = self.written == self.plan.up;
        let ready = self.plan.guest_closes == Close::AfterSending || self.end_read;
        (all && ready).then_some(self.plan.up + 1)
    }

    fn queued(&self) -> u64 {
        // The FIN's number is not a byte.
        self.expected.saturating_sub(1).min(self.end.map_or(u64::MAX, |e| e - 1)) - self.read
    }

    fn scale(&self) -> u8 {
        self.habits.scale.filter(|_| self.scales).unwrap_or(0)
    }

    fn on_syn(&mut self, p: &Packet) {
        self.irs = p.seq;
        self.expected = 1;
        assert_eq!(p.has(TcpFlags::ACK), self.habits.opens);
        // RFC 7323 2.2: both ends offer it or neither uses it.
        self.scales = p.scale.is_some() && self.habits.scale.is_some();
        assert!(p.scale.is_none() || !self.habits.opens || self.scales, "window scale was not offered");
        self.peer_scale = p.scale.filter(|_| self.scales).unwrap_or(0);
        self.peer_mss = u64::from(p.mss.unwrap_or(536));
    }

    fn die(&mut self) {
        self.state = State::Dead;
        self.rto_at = None;
        self.ack_at = None;
    }
}

impl Guest for Reference {
    fn receive(&mut self, p: &Packet, now: Time) {
        match self.state {
            State::Dead => {
                if !p.has(TcpFlags::RST) {
                    self.reset_stray = Some(stray_reset(p));
                }
                return;
            }
            State::Listen => {
                if p.has(TcpFlags::SYN) {
                    self.on_syn(p);
                    self.state = State::SynReceived;
                    self.ack_now = 1;
                }
                return;
            }
            State::SynSent => {
                if p.has(TcpFlags::RST) {
                    self.reset = true;
                    return self.die();
                }
                if !p.has(TcpFlags::SYN) {
                    return;
                }
                self.on_syn(p);
                self.state = State::Open;
                self.edge = self.expected + self.habits.buffer.min(0xffff);
                self.highest_edge = self.edge;
                self.ack_now = 1;
                self.on_ack(p, now);
                return;
            }
            State::SynReceived | State::Open => {}
        }
        if p.has(TcpFlags::RST) {
            if self.is_past_reset() {
                // TIME-WAIT: nothing is lost any more.
                return;
            }
            if self.place(p.seq) == self.expected as i64 {
                self.reset = true;
                self.die();
            } else {
                self.ack_now += 1;
            }
            return;
        }
        if p.has(TcpFlags::SYN) {
            self.ack_now = self.ack_now.max(1);
            return;
        }
        if self.state == State::SynReceived && self.una == 0 && p.ack == self.seq(1) {
            self.state = State::Open;
        }
        self.on_ack(p, now);
        self.on_payload(p, now);
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Packet>) {
        if self.state == State::Dead {
            out.extend(self.reset_stray.take());
            return;
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.rto_at = None;
            self.rto = (self.rto * 2).min(MAX_RTO);
            self.timeouts += 1;
            self.next = self.una;
            self.recovering = false;
            self.probe = true;
        }
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_at = None;
            self.ack_now = self.ack_now.max(1);
        }
        match self.state {
            State::SynSent | State::SynReceived => {
                if self.next == 0 || std::mem::take(&mut self.ack_now) > 0 {
                    let p = self.syn();
                    out.push(p);
                    self.next = 1;
                    self.max = self.max.max(1);
                    self.rto_at = Some(now + self.rto);
                }
                return;
            }
            State::Open => {}
            _ => return,
        }
        self.run_application(now);
        if self.plan.guest_resets_at.is_some_and(|at| self.read >= at) {
            let p = self.packet(self.max, TcpFlags::RST.with(TcpFlags::ACK), Vec::new());
            out.push(p);
            return self.die();
        }
        let before = out.len();
        self.send_data(now, out);
        // What was sent told the acknowledgement; repeated ones go by themselves.
        let owed = std::mem::take(&mut self.ack_now);
        let told = u32::from(out.len() > before && owed == 1);
        for _ in told..owed {
            let at = if self.habits.acks_from_next { self.next } else { self.max };
            let p = self.packet(at, TcpFlags::ACK, Vec::new());
            out.push(p);
        }
    }

    fn poll_at(&self) -> Option<Time> {
        if self.state == State::Dead {
            return self.reset_stray.is_some().then_some(Time::ZERO);
        }
        let open = self.state == State::Open;
        let start = self.state == State::SynSent && self.next == 0;
        min_time([
            self.rto_at,
            self.ack_at,
            (open && self.queued() > 0).then_some(self.next_read),
            (open && self.written < self.plan.up).then_some(self.next_write),
            start.then_some(Time::ZERO),
        ])
    }

    fn received(&self) -> u64 {
        self.read
    }

    fn is_complete(&self) -> bool {
        self.state == State::Open && self.end_read && self.una == self.plan.up + 2
    }

    fn was_reset(&self) -> bool {
        self.reset
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// RFC 9293 3.10.7.1: a socket that is gone answers by a RST.
fn stray_reset(p: &Packet) -> Packet {
    let (seq, ack, flags) = if p.has(TcpFlags::ACK) {
        (p.ack, Seq(0), TcpFlags::RST)
    } else {
        (Seq(0), p.seq.plus(p.occupied()), TcpFlags::RST.with(TcpFlags::ACK))
    };
    Packet { seq, ack, flags, window: 0, mss: None, scale: None, payload: Vec::new() }
}
