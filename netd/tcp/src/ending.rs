//! How a connection ends that is not closed by both ends in order.
//!
//! # Theory of operation
//!
//! The guest's RST goes to the peer at once: what the guest has sent before is of no use to a peer that hears of an abort.
//! The peer's RST is different. The kernel keeps what came before it in the socket's receive queue, and on a plain network
//! those segments have reached the guest before the RST. A server that answers early and closes (413, a line of SMTP, a TLS
//! alert) relies on that. So a socket that breaks with bytes that the guest was not sent yet is *broken*: nothing goes to it
//! any more, reads go on, and the RST follows the last byte. How long that may take is bounded by the guest's window and by
//! the limits of retransmission, as for any data.
//!
//! ```text
//!   on_pod_broken ── nothing left ──────────────────────▶ on_pod_error: RST to the guest
//!        └────────── bytes left ──▶ broken ── on_eof ───▶ on_pod_error
//! ```

use super::conn::{Conn, State};

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both ends have closed, and each has heard so.
    InOrder,
    /// By a RST of either side, or of netd's own.
    Reset,
}

impl Conn {
    /// How it has ended; none for one that is open, and for one that was never answered.
    #[inline]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Ends the connection by a RST, which one side sends or has sent.
    pub(super) fn end_by_reset(&mut self) {
        if !matches!(self.state, State::Connecting | State::SynSent) {
            self.end.get_or_insert(End::Reset);
        }
        self.state = State::Closed;
    }

    /// The pod's connect() failed in a way that the guest learns by a RST.
    pub fn on_refused(&mut self) {
        if self.state == State::Connecting {
            self.need_rst = true;
            self.expires = None;
        }
    }

    /// The pod's socket broke: it was reset by the peer, or timed out. Its receive queue has `queued` bytes, those included
    /// that the guest was sent and has not acknowledged.
    pub fn on_pod_broken(&mut self, queued: u32) {
        let in_flight = if self.is_opening() { 0 } else { self.snd_nxt.since(self.snd_una) };
        if self.may_deliver() && queued > in_flight {
            self.broken = true;
            // The socket has no news of acknowledgements or room any more.
            self.poll_at = None;
            self.refused = false;
        } else {
            self.on_pod_error();
        }
    }

    /// Whether bytes of the peer may still go to the guest, now or once the guest has answered.
    fn may_deliver(&self) -> bool {
        let answered = match self.state {
            State::SynSent => self.snd_max > self.iss,
            State::SynReceived => true,
            _ => self.may_send(),
        };
        answered && self.fin_at.is_none() && !self.need_rst
    }

    /// The pod's socket broke, and the guest has all that came before: the guest gets a RST.
    pub fn on_pod_error(&mut self) {
        let unheard = self.state == State::SynSent && self.snd_max == self.iss;
        if unheard || matches!(self.state, State::TimeWait | State::Closed) {
            // The guest knows nothing of it, or nothing that a RST could change.
            self.state = State::Closed;
        } else {
            self.need_rst = true;
        }
    }

    /// Whether the socket is broken and still has bytes for the guest: nothing may be sent by it.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The worker ends the connection for reasons of its own: RST to both ends.
    pub fn abort(&mut self) {
        self.abort = true;
        self.on_pod_error();
    }

    /// The guest reset the connection: the peer gets a RST, the guest nothing.
    pub(super) fn close_by_guest(&mut self) {
        self.abort = true;
        self.end_by_reset();
    }
}
