//! Keepalives of the guest, end to end (RFC 9293 3.8.4).
//!
//! # Theory of operation
//!
//! A program that asks for keepalives wants two things: segments of its connection on the network, so that no address
//! translator or load balancer forgets it, and word of a peer that is gone. netd stands between the two ends, so a
//! probe of the guest goes no further by itself. Its rhythm goes to the pod's socket instead, whose kernel probes the peer
//! as often; and the guest is answered for as long as the peer answers:
//!
//! ```text
//!   a probe of the guest ── at another pace than before ──▶ Command::Keepalive, and an ACK
//!        │
//!        ├── the peer was heard lately ──▶ ACK
//!        └── it was not ──▶ no answer, and Command::Keepalive: the kernel probes the peer at once
//! ```
//!
//! So the guest counts unanswered probes by its own interval and its own number, which netd cannot know, and ends the
//! connection itself when it has had enough. The kernel here is patient and never does so before.
//!
//! A probe has the number before the next one and at most a byte of payload. A probe of a closed window looks the same; a
//! guest that has no window is answered at once, as is one that probes several times a second.

use std::time::Duration;

use super::conn::{Conn, Segment, State};
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// The longest interval that TCP_KEEPIDLE takes (the kernel's MAX_TCP_KEEPIDLE), in seconds.
const MAX_INTERVAL_SECONDS: u32 = 32_767;
/// By how much an interval may come out too short: the probe before it was read late.
const INTERVAL_JITTER: Duration = Duration::from_millis(100);
/// How much longer than one and a half intervals a peer may be silent: the kernel's timers are late, and an answer takes a round trip.
const SILENCE_SLACK: Duration = Duration::from_secs(1);

impl Conn {
    /// Whether the segment asks for an answer and brings nothing.
    pub(super) fn is_probe(&self, seg: &Segment) -> bool {
        let others = TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST);
        self.state != State::SynReceived
            && seg.flags.has(TcpFlags::ACK)
            && seg.flags.0 & others.0 == 0
            && seg.len <= 1
            && seg.seq == self.acked.minus(1)
    }

    /// The guest has probed, after it had been silent for so long.
    pub(super) fn on_probe(&mut self, silent: Duration) {
        let seconds = silent.saturating_add(INTERVAL_JITTER).as_secs();
        if seconds == 0 || self.broken || self.is_done_with_socket() || self.window_is_small() {
            self.need_ack = true;
            return;
        }
        self.probed = true;
        // One that follows an unanswered probe comes by the interval of those.
        if !self.unanswered {
            self.learn_interval(u32::try_from(seconds).unwrap_or(u32::MAX).min(MAX_INTERVAL_SECONDS));
        }
    }

    /// A guest's timer is late by up to an eighth, so the shortest of similar intervals is the one that was asked for.
    fn learn_interval(&mut self, seconds: u32) {
        let longest = self.keepalive + (self.keepalive / 4).max(1);
        if seconds < self.keepalive || seconds > longest || self.keepalive == 0 {
            self.keepalive = seconds;
            self.apply_keepalive = true;
        }
    }

    /// Whether a probe of the guest waits for [`Conn::answer_probe`].
    #[inline]
    pub fn is_probed(&self) -> bool {
        self.probed
    }

    /// The peer has been silent for so long; none where that is not known.
    pub fn answer_probe(&mut self, peer_silent: Option<Duration>) {
        self.probed = false;
        let interval = Duration::from_secs(self.keepalive.into());
        let longest = interval + interval / 2 + SILENCE_SLACK;
        // At a new pace the kernel has not asked the peer yet.
        self.unanswered = !self.apply_keepalive && peer_silent.is_some_and(|silent| silent > longest);
        self.apply_keepalive |= self.unanswered;
        self.need_ack |= !self.unanswered;
    }

    /// The timing for the pod's socket, in seconds, where it has to be set.
    pub(super) fn take_keepalive(&mut self) -> Option<u32> {
        std::mem::take(&mut self.apply_keepalive).then_some(self.keepalive)
    }

    /// Has the timing set in a socket that may be a new one.
    pub(super) fn adopt_keepalive(&mut self) {
        self.keepalive = self.keepalive.min(MAX_INTERVAL_SECONDS);
        self.apply_keepalive = self.keepalive > 0;
    }

    /// How long the guest has been silent.
    pub(super) fn silence(&self, now: Time) -> Duration {
        now.since(self.heard_at)
    }
}
