//! Segments for the guest: control segments and the budget for data.

use super::config::WINDOW_SCALE;
use super::conn::{Conn, State};
use super::seq::Seq;
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// A segment without payload.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field, scaled.
    pub window: u16,
    /// Maximum segment size option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub window_scale: Option<u8>,
}

/// How much data may go to the guest now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Bytes of the stream between the start of the socket's receive queue and `seq`: the peek offset.
    pub offset: u32,
    /// Most bytes to send.
    pub len: u32,
    /// Payload bytes of one segment.
    pub mss: u16,
}

impl Conn {
    /// The next control segment to send, none when there is nothing to say.
    pub fn poll(&mut self, now: Time) -> Option<Control> {
        if self.need_rst {
            return Some(self.reset());
        }
        if let Some(seq) = self.stray_rst.take() {
            return Some(self.bare_reset(seq));
        }
        match self.state {
            State::Closed | State::Connecting => return None,
            State::SynSent | State::SynReceived => {
                // In this state the challenge of RFC 5961 is the SYN itself: it holds the acknowledgement.
                let wanted = std::mem::take(&mut self.need_syn) | std::mem::take(&mut self.need_ack);
                return wanted.then(|| self.synchronize(now));
            }
            _ => {}
        }
        if self.fin_at == Some(self.snd_nxt) && self.may_send() {
            // The FIN takes a number of the window like data (RFC 9293 3.4): one outside of it need not be
            // accepted, and would make every ACK after it unacceptable too.
            if self.snd_nxt.since(self.snd_una) < self.snd_wnd {
                return Some(self.finish(now));
            }
            self.block(now);
        }
        if std::mem::take(&mut self.need_probe) {
            // One number before the window: an honest receiver answers with its present ACK and window. Linux
            // probes so; the byte that RFC 9293 3.8.6.1 speaks of would have to be peeked for it.
            return Some(self.control(self.snd_una.minus(1), TcpFlags::ACK));
        }
        let ack = std::mem::take(&mut self.need_ack) || self.repeat_ack > 0;
        self.repeat_ack = self.repeat_ack.saturating_sub(1);
        ack.then(|| self.control(self.acceptable(), TcpFlags::ACK))
    }

    /// The highest number that the guest accepts: a guest that took its window back does not listen to what
    /// lies beyond (RFC 9293 3.8.6 asks the sender to cope).
    fn acceptable(&self) -> Seq {
        self.snd_max.min(self.snd_una.plus(self.snd_wnd))
    }

    fn synchronize(&mut self, now: Time) -> Control {
        let answer = self.state == State::SynReceived;
        self.snd_nxt = self.iss.plus(1);
        if self.snd_max < self.snd_nxt {
            self.snd_max = self.snd_nxt;
            self.rtt.sent(self.snd_nxt, now);
        } else {
            self.retransmits += 1;
            self.rtt.retransmitted();
        }
        self.rto_at = Some(now + self.rtt.timeout());
        let mut c =
            self.control(self.iss, if answer { TcpFlags::SYN.with(TcpFlags::ACK) } else { TcpFlags::SYN });
        c.mss = Some(self.config.mss);
        // RFC 7323 2.2: only answer the option if it was offered; the window of a SYN is not scaled.
        c.window_scale = (!answer || self.rcv_scale > 0).then_some(WINDOW_SCALE);
        let window = self.edge_ready.since(self.rcv_nxt).min(0xffff);
        c.window = window as u16;
        if answer {
            self.edge = self.rcv_nxt.plus(window);
        } else {
            c.ack = Seq(0);
        }
        c
    }

    fn finish(&mut self, now: Time) -> Control {
        let c = self.control(self.snd_nxt, TcpFlags::FIN.with(TcpFlags::ACK));
        self.need_ack = false;
        self.advance(1, now);
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {}
        }
        c
    }

    fn reset(&mut self) -> Control {
        self.need_rst = false;
        let seq = match self.state {
            State::Connecting => Seq(0),
            State::SynSent | State::SynReceived => self.snd_max,
            _ => self.acceptable(),
        };
        let c = self.control(seq, TcpFlags::RST.with(TcpFlags::ACK));
        self.end_by_reset();
        c
    }

    /// A RST for a connection that the guest has and netd has not (RFC 9293 3.10.7.1).
    fn bare_reset(&self, seq: Seq) -> Control {
        Control { seq, ack: Seq(0), flags: TcpFlags::RST, window: 0, mss: None, window_scale: None }
    }

    /// A segment with the present acknowledgement and window; both count as told.
    fn control(&mut self, seq: Seq, flags: TcpFlags) -> Control {
        let (ack, window) = self.tell();
        Control { seq, ack, flags, window, mss: None, window_scale: None }
    }

    /// The acknowledgement number and window field of the next segment.
    pub fn tell(&mut self) -> (Seq, u16) {
        self.need_ack = false;
        self.ack_at = None;
        let (ack, field) = self.offer();
        self.acked = ack;
        self.edge = self.edge.max(ack.plus(u32::from(field) << self.rcv_scale));
        // Rounding up may have promised a little more than there is.
        self.edge_ready = self.edge_ready.max(self.edge);
        (ack, field)
    }

    /// What [`Conn::tell`] would say.
    pub(super) fn offer(&self) -> (Seq, u16) {
        let ack = self.ack_ready;
        // RFC 9293 3.8.6.2.2: the edge stays where it is until it can move by a worthwhile amount.
        let grown = self.impatient || self.edge_ready.since(self.edge) >= self.worthwhile();
        let edge = if grown { self.edge_ready } else { self.edge };
        // Round up to a step where the old edge is not one: the edge never moves left (RFC 9293 3.8.6).
        let step = (1 << self.rcv_scale) - 1;
        let promised = (self.edge.since(ack).saturating_add(step)) >> self.rcv_scale;
        let field = (edge.since(ack) >> self.rcv_scale).max(promised);
        (ack, u16::try_from(field).unwrap_or(u16::MAX))
    }

    pub(super) fn may_send(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck
        )
    }

    /// How much may be peeked from the socket and sent now; None when the window is closed or everything was
    /// sent. The caller has, or believes it has, data waiting: a closed window starts the persist timer.
    pub fn budget(&mut self, now: Time) -> Option<Budget> {
        if !self.may_send() || self.need_rst {
            return None;
        }
        let flight = self.snd_nxt.since(self.snd_una);
        let window = self.snd_wnd.min(self.cwnd).min(self.config.in_flight);
        let room = window.saturating_sub(flight);
        let rest = match self.fin_at {
            None => u32::MAX,
            Some(fin) if fin > self.snd_nxt => fin.since(self.snd_nxt),
            Some(_) => return None,
        };
        // RFC 9293 3.8.6.2.1: no small segments into a small window while more is to come.
        let silly = room < rest && room < u32::from(self.mss) && flight > 0 && room < self.snd_wnd_max / 2;
        if room == 0 || silly {
            self.block(now);
            return None;
        }
        let len = room.min(rest);
        Some(Budget { seq: self.snd_nxt, offset: flight, len, mss: self.mss })
    }

    /// Something waits for the guest's window: the persist timer runs where no other does (RFC 9293 3.8.6.1).
    fn block(&mut self, now: Time) {
        self.blocked = true;
        if self.rto_at.is_none() {
            self.rto_at = Some(now + self.rtt.timeout());
        }
    }

    /// `n` bytes of the budget were sent.
    pub fn on_data(&mut self, n: u32, now: Time) {
        self.blocked = false;
        self.advance(n, now);
    }

    /// The peer has closed, or broken the connection: the stream ends at `snd_nxt`, everything before it was sent.
    pub fn on_eof(&mut self) {
        if self.broken {
            self.on_pod_error();
        } else if self.fin_at.is_none() {
            self.fin_at = Some(self.snd_nxt);
        }
    }

    /// The stream is known to end.
    #[inline]
    pub fn at_eof(&self) -> bool {
        self.fin_at.is_some_and(|fin| fin <= self.snd_nxt)
    }

    /// Moves over `n` numbers, retransmitted ones included.
    fn advance(&mut self, n: u32, now: Time) {
        let idle = self.snd_nxt == self.snd_una;
        let end = self.snd_nxt.plus(n);
        if end > self.snd_max {
            self.rtt.sent(end, now);
            self.snd_max = end;
        } else {
            self.retransmits += 1;
        }
        self.snd_nxt = end;
        // RFC 6298 5.1; a deadline that is there although nothing was in flight belongs to what was before.
        if idle || self.rto_at.is_none() {
            self.rto_at = Some(now + self.rtt.timeout());
        }
    }
}
