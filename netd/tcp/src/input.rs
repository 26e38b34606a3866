//! Segments of the guest (RFC 9293 section 3.10.7).

use super::conn::{Conn, Segment, State};
use super::ending::End;
use super::seq::Seq;

use netd_base::time::Time;
use netd_wire::TcpFlags;

/// Why a segment, or a part of it, was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The connection is closed.
    NoConnection,
    /// The segment lies outside the window, or cannot be in this state.
    Unacceptable,
    /// Its payload is out of order, and no part of it can be kept.
    OutOfOrder,
    /// There is no room for all of its payload.
    NoRoom,
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Payload bytes to leave out at the start.
    pub skip: u32,
    /// Payload bytes to offer to the pod's socket after these; [`Conn::on_flushed`] must follow.
    pub take: u32,
    /// The segment or a part of it was dropped.
    pub dropped: Option<Refusal>,
    /// The payload is out of order: all of it may be kept ([`super::Hold`]), and is dropped otherwise.
    pub hold: bool,
    /// A new SYN for a connection in TIME-WAIT: forget the old connection and open a new one (RFC 9293 3.6.1).
    pub reopen: bool,
}

impl Input {
    fn dropped(why: Refusal) -> Input {
        Input { dropped: Some(why), ..Input::default() }
    }
}

/// Duplicate ACKs that mean a loss (RFC 5681 3.2).
pub(super) const DUP_ACKS: u8 = 3;
/// The bits that tell a SYN which opens a connection from others.
const OPENING: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK).with(TcpFlags::RST).with(TcpFlags::FIN);
/// Congestion window after a loss, in segments.
const LOSS_SEGMENTS: u32 = 4;

impl Conn {
    /// A segment of the guest arrived.
    pub fn on_segment(&mut self, seg: &Segment, now: Time) -> Input {
        let silent = self.silence(now);
        self.heard_at = now;
        self.probes = 0;
        match self.state {
            State::Connecting => self.while_connecting(seg),
            State::SynSent => self.while_syn_sent(seg, now),
            State::Closed => Input::dropped(Refusal::NoConnection),
            _ if self.is_probe(seg) => {
                self.on_probe(silent);
                Input::default()
            }
            _ => self.while_synchronized(seg, now),
        }
    }

    fn while_connecting(&mut self, seg: &Segment) -> Input {
        if seg.flags.has(TcpFlags::RST) && seg.seq == self.rcv_nxt {
            self.close_by_guest();
        }
        // A SYN that comes again is answered when connect() has ended.
        Input::default()
    }

    /// RFC 9293 3.10.7.3.
    fn while_syn_sent(&mut self, seg: &Segment, now: Time) -> Input {
        let acks = seg.flags.has(TcpFlags::ACK) && self.acks_syn(seg);
        if !acks {
            if seg.flags.has(TcpFlags::ACK) && !seg.flags.has(TcpFlags::RST) {
                // RFC 9293 3.5.1: the guest has an older connection half-open; this ends it.
                self.stray_rst = Some(seg.ack);
            }
            return Input::dropped(Refusal::Unacceptable);
        }
        if seg.flags.has(TcpFlags::RST) {
            self.close_by_guest();
            return Input::default();
        }
        if !seg.flags.has(TcpFlags::SYN) {
            return Input::dropped(Refusal::Unacceptable);
        }
        let ready = self.edge_ready.since(self.rcv_nxt);
        self.learn_syn(seg);
        if seg.window_scale.is_none() {
            self.rcv_scale = 0;
        }
        self.edge_ready = self.rcv_nxt.plus(ready);
        // The SYN told this much; its window was not scaled.
        self.edge = self.rcv_nxt.plus(ready.min(0xffff));
        self.snd_una = seg.ack;
        self.snd_nxt = seg.ack;
        self.rtt.acknowledged(seg.ack, now);
        self.set_window(seg.seq, seg.ack, u32::from(seg.window));
        self.establish();
        self.need_ack = true;
        Input::default()
    }

    fn establish(&mut self) {
        self.state = State::Established;
        self.need_syn = false;
        self.rto_at = None;
        self.retries = 0;
        self.expires = None;
    }

    /// Whether the segment acknowledges the SYN that was sent, and nothing else.
    fn acks_syn(&self, seg: &Segment) -> bool {
        seg.ack == self.iss.plus(1) && seg.ack == self.snd_max
    }

    fn while_synchronized(&mut self, seg: &Segment, now: Time) -> Input {
        let opens = seg.flags.0 & OPENING.0 == TcpFlags::SYN.0;
        if self.state == State::TimeWait && opens && seg.seq > self.rcv_nxt {
            return Input { reopen: true, ..Input::default() };
        }
        let occupied =
            seg.len + u32::from(seg.flags.has(TcpFlags::FIN)) + u32::from(seg.flags.has(TcpFlags::SYN));
        let last = seg.seq.plus(occupied);
        // RFC 9293 3.10.7.4, first: acceptability. The right edge itself is allowed, as a guest that has filled
        // the window acknowledges from there. The left edge is what the guest knows: `rcv_nxt` may be ahead of
        // it by what the peer has not acknowledged.
        if seg.seq > self.edge.max(self.rcv_nxt) || last < self.acked {
            if seg.flags.has(TcpFlags::SYN) && self.state == State::SynReceived && seg.seq == self.irs {
                self.need_syn = true;
            } else if !seg.flags.has(TcpFlags::RST) {
                self.need_ack = true;
            }
            return Input::dropped(Refusal::Unacceptable);
        }
        if seg.flags.has(TcpFlags::RST) {
            // RFC 5961 3.2: exactly the next number resets; one inside the window is challenged. What answers
            // a challenge, or data for a socket that is gone, has the number that the guest was told.
            if seg.seq == self.rcv_nxt || seg.seq == self.acked {
                self.close_by_guest();
            } else {
                self.need_ack = true;
            }
            return Input::default();
        }
        if seg.flags.has(TcpFlags::SYN) {
            // RFC 5961 4.2: challenge; but a SYN that comes again was simply not answered yet.
            if self.state == State::SynReceived && seg.seq == self.irs {
                self.need_syn = true;
            } else {
                self.need_ack = true;
            }
            return Input::dropped(Refusal::Unacceptable);
        }
        if !seg.flags.has(TcpFlags::ACK) {
            return Input::dropped(Refusal::Unacceptable);
        }
        if self.state == State::SynReceived {
            if !self.acks_syn(seg) {
                // RFC 9293 3.10.7.4, fifth: a RST with the number acknowledged; the handshake goes on.
                self.stray_rst = Some(seg.ack);
                return Input::dropped(Refusal::Unacceptable);
            }
            self.snd_una = seg.ack;
            self.snd_nxt = seg.ack;
            self.rtt.acknowledged(seg.ack, now);
            self.establish();
            self.set_window(seg.seq, seg.ack, u32::from(seg.window) << self.snd_scale);
        }
        if let Some(reason) = self.on_ack(seg, now) {
            return Input::dropped(reason);
        }
        self.on_payload(seg, now)
    }

    /// RFC 9293 3.10.7.4, fifth: the acknowledgement and the window.
    fn on_ack(&mut self, seg: &Segment, now: Time) -> Option<Refusal> {
        // RFC 5961 5.2.
        if seg.ack > self.snd_max || seg.ack < self.snd_una.minus(self.snd_wnd_max) {
            self.need_ack = true;
            return Some(Refusal::Unacceptable);
        }
        let window = u32::from(seg.window) << self.snd_scale;
        let progress = seg.ack > self.snd_una;
        if self.snd_wnd == 0 {
            // RFC 9293 3.8.6.1: a guest that answers probes may keep its window closed for as long as it likes.
            self.retries = 0;
        }
        if progress {
            self.on_progress(seg.ack, now);
        // RFC 5681 section 2. Linux, which finds losses by SACK where it can, takes two ACKs otherwise: one that takes
        // window back for a duplicate, and one that closes the window, again too, for none. Here the first is believed
        // (RFC 9293 3.8.6), and of the second three say that what is in flight was dropped.
        } else if seg.ack == self.snd_una
            && self.snd_una < self.snd_max
            && seg.len == 0
            && window == self.snd_wnd
            && !seg.flags.has(TcpFlags::FIN)
        {
            self.dup_acks = self.dup_acks.saturating_add(1);
            if self.dup_acks == DUP_ACKS && self.recover.is_none() {
                self.go_back();
            }
        }
        // An acknowledgement of new data is the newest whatever its sequence number: a guest that sends again
        // from an earlier one would not be believed otherwise.
        let newer =
            progress || self.snd_wl1 < seg.seq || (self.snd_wl1 == seg.seq && self.snd_wl2 <= seg.ack);
        if newer && seg.ack >= self.snd_una {
            if window == 0 && seg.ack < self.snd_nxt {
                self.unheard = Some(self.snd_nxt);
            }
            if window > self.snd_wnd {
                self.on_window_growth();
            }
            self.set_window(seg.seq, seg.ack, window);
        }
        None
    }

    /// The guest's window grew: what was held back may go, and probing ends.
    fn on_window_growth(&mut self) {
        self.blocked = false;
        if self.snd_wnd == 0 {
            self.rtt.restart();
        }
        // The window was closed over data in flight. An honest receiver, such as Linux, does that when it runs out of
        // memory before it runs out of window. What came meanwhile is lost, and nothing after it will say so by
        // duplicate ACKs.
        if self.unheard.take().is_some_and(|end| self.snd_una < end) && self.snd_una < self.snd_nxt {
            self.go_back();
        }
    }

    fn on_progress(&mut self, ack: Seq, now: Time) {
        let fin_acked = self.fin_at.is_some_and(|fin| ack > fin);
        let bytes =
            ack.since(self.snd_una) - u32::from(fin_acked && self.snd_una <= self.fin_at.unwrap_or(ack));
        self.consume = self.consume.saturating_add(bytes);
        self.snd_una = ack;
        // After a rewind the guest may acknowledge what was sent before it. Consuming lowers the peek offset,
        // but not below zero, so it agrees with snd_nxt again.
        self.snd_nxt = self.snd_nxt.max(ack);
        self.dup_acks = 0;
        if self.recover.is_some_and(|end| ack >= end) {
            self.recover = None;
        }
        self.retries = 0;
        self.blocked = false;
        self.cwnd = self.cwnd.saturating_add(self.growth(bytes));
        self.rtt.acknowledged(ack, now);
        self.rto_at = (self.snd_una < self.snd_max).then(|| now + self.rtt.timeout());
        if fin_acked {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => self.enter_time_wait(now),
                State::LastAck => (self.state, self.end) = (State::Closed, Some(End::InOrder)),
                _ => {}
            }
        }
    }

    /// By how much the congestion window grows for `bytes` acknowledged (RFC 5681 3.1).
    fn growth(&self, bytes: u32) -> u32 {
        if self.cwnd < self.ssthresh {
            return bytes;
        }
        let share = u64::from(self.mss) * u64::from(bytes) / u64::from(self.cwnd.max(1));
        u32::try_from(share).unwrap_or(u32::MAX).max(1)
    }

    /// The least that the congestion window is.
    pub(super) fn loss_window(&self) -> u32 {
        LOSS_SEGMENTS * u32::from(self.mss)
    }

    /// Sends again from the first unacknowledged byte, half of what was in flight at once.
    pub(super) fn go_back(&mut self) {
        let flight = self.snd_nxt.since(self.snd_una);
        self.recover = Some(self.snd_max);
        self.snd_nxt = self.snd_una;
        self.cwnd = (flight / 2).max(self.loss_window());
        self.ssthresh = self.cwnd;
        self.rewind = true;
        self.blocked = false;
        self.rtt.retransmitted();
    }

    /// RFC 9293 3.10.7.4, seventh and eighth: payload and FIN.
    fn on_payload(&mut self, seg: &Segment, now: Time) -> Input {
        let fin = seg.flags.has(TcpFlags::FIN);
        if seg.len == 0 && !fin {
            return Input::default();
        }
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) || self.fin_pending {
            self.need_ack = true;
            if fin && self.state == State::TimeWait {
                // RFC 9293 3.10.7.4, eighth: the FIN came again, so its acknowledgement was lost.
                self.expires = Some(now + self.config.time_wait);
            }
            return Input::default();
        }
        if seg.seq > self.rcv_nxt {
            // A large frame stands for as many segments as the guest counts, each of which is answered.
            let segments = seg.len.div_ceil(u32::from(self.config.mss)).clamp(1, u32::from(DUP_ACKS));
            self.repeat_ack = (self.repeat_ack + segments as u8).min(DUP_ACKS);
            let hold = seg.len > 0 && seg.seq.plus(seg.len) <= self.edge;
            return Input { hold, ..Input::dropped(Refusal::OutOfOrder) };
        }
        let skip = self.rcv_nxt.since(seg.seq).min(seg.len);
        let room = self.edge.since(self.rcv_nxt);
        let take = (seg.len - skip).min(room);
        let whole = skip + take == seg.len;
        self.rcv_nxt = self.rcv_nxt.plus(take);
        self.fin_pending = fin && whole && seg.seq.plus(seg.len) == self.rcv_nxt;
        if take == 0 && !self.fin_pending {
            self.need_ack = true;
        }
        Input { skip, take, dropped: (!whole).then_some(Refusal::NoRoom), ..Input::default() }
    }

    /// The number of the guest's next byte.
    #[inline]
    pub fn next_from_guest(&self) -> Seq {
        self.rcv_nxt
    }

    /// Payload that was kept out of order has been reached by the stream: what to send on of it.
    pub fn on_held(&mut self, seq: Seq, len: u32, now: Time) -> Input {
        if self.fin_pending || self.need_rst {
            return Input::default();
        }
        // RFC 5681 4.2: filling a gap is told at once.
        self.need_ack = true;
        let flags = TcpFlags::ACK;
        let (ack, window) = (self.snd_una, 0);
        self.on_payload(&Segment { seq, ack, flags, window, len, mss: None, window_scale: None }, now)
    }

    /// Of the `offered` payload bytes since the last call the socket took `sent`.
    pub fn on_flushed(&mut self, offered: u32, sent: u32, now: Time) {
        let fin = std::mem::take(&mut self.fin_pending);
        if sent < offered {
            self.rcv_nxt = self.rcv_nxt.minus(offered - sent);
            self.need_ack = true;
            self.refused = true;
            return;
        }
        if sent > 0 {
            self.expect_ack(sent, now);
        }
        if fin {
            self.rcv_nxt = self.rcv_nxt.plus(1);
            self.ack_ready = self.rcv_nxt;
            self.edge_ready = self.edge_ready.max(self.rcv_nxt);
            self.edge = self.edge.max(self.rcv_nxt);
            self.shutdown = true;
            self.need_ack = true;
            self.poll_at = None;
            match self.state {
                State::Established => self.state = State::CloseWait,
                State::FinWait1 => self.state = State::Closing,
                State::FinWait2 => self.enter_time_wait(now),
                _ => {}
            }
        }
    }

    fn enter_time_wait(&mut self, now: Time) {
        (self.state, self.end) = (State::TimeWait, Some(End::InOrder));
        self.rto_at = None;
        self.poll_at = None;
        self.expires = Some(now + self.config.time_wait);
    }
}
