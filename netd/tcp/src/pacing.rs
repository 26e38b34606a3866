//! When the socket's state is read.
//!
//! # Theory of operation
//!
//! The kernel does not tell when a peer has acknowledged something: it has to be asked, which is two system calls. A near peer
//! counts as having acknowledged what the socket took ([`super::Config::ack_queued_rtt`]), so each batch asks. A far peer's
//! acknowledgement cannot be there before a round trip has passed, and what a stream gets of them within one is spread over it.
//! So for a far peer no batch asks, and the reads follow the round trip:
//!
//! ```text
//!   batch, nothing unacknowledged before it ──▶ the shortest round trip and POLL_MIN later
//!   a read found some, not all              ──▶ a quarter of the round trip later, POLL_MIN at least, POLL_MAX at most
//!   a read found nothing                    ──▶ the interval doubles, up to POLL_MAX
//!   PROMPT_READS of them found nothing      ──▶ it doubles on, up to STALLED_POLL_MAX
//!   the guest has little window left        ──▶ POLL_MIN after the last read, as each byte of window may set it going;
//!                                               this interval doubles, too, when reads find nothing
//!   data came from the peer                 ──▶ at once, if the last read is a quarter of the round trip ago
//! ```
//!
//! A quarter is what a guest does not notice: one that may send more than the path holds has window for it, and the
//! acknowledgements that it counts come in lumps, as from any receiver that merges segments. The kernel's smallest round trip
//! is used and not the mean, which a full queue on the way makes long: a read that comes early costs little, a late one costs
//! the guest time. The socket's room changes with the same acknowledgements, so nothing else asks for it.
//!
//! A connection that stands still costs next to nothing, however many there are. A near peer's socket is read only for its room;
//! where that is gone epoll tells when it is back, and nothing is read meanwhile. A far peer that has acknowledged nothing for a
//! second is read more and more rarely: what comes after a long rest is found late by no more than the rest was long, and by
//! two seconds at most.

use std::time::Duration;

use super::config::{ACK_DELAY, INITIAL_RTO, POLL_MAX, POLL_MIN, PROMPT_READS, STALLED_POLL_MAX};
use super::conn::Conn;
use netd_base::time::Time;

/// Reads in a round trip of a far peer.
const READS: u32 = 4;

impl Conn {
    /// Whether the worker should read the socket's state now and call [`Conn::on_pod`].
    pub fn wants_pod_state(&self, now: Time) -> bool {
        self.poll_at.is_some_and(|at| at <= now)
    }

    /// Whether to read it because something came from the peer, which has an acknowledgement with it.
    pub fn may_have_news(&self, now: Time) -> bool {
        let due = self.quiet_until.max(self.read_at + self.pace());
        self.peer_rtt.is_some() && !self.guest_closed() && self.ack_ready < self.rcv_nxt && due <= now
    }

    /// The time between two reads of which the first found something.
    fn pace(&self) -> Duration {
        (self.peer_rtt.unwrap_or_default() / READS).clamp(POLL_MIN, POLL_MAX)
    }

    fn interval(&self) -> Duration {
        if self.is_pressed() { self.poll_interval } else { self.poll_interval.max(self.pace()) }
    }

    /// The guest has used most of its window.
    fn is_pressed(&self) -> bool {
        let left = self.edge.since(self.rcv_nxt);
        left < self.worthwhile().max(self.edge.since(self.acked) / READS)
    }

    /// Whether an acknowledgement that is held back would only wait: nothing goes to the guest now, and the next read is not
    /// near.
    pub(super) fn nothing_follows(&self) -> bool {
        self.polled && self.ack_ready > self.acked && self.interval() > ACK_DELAY
    }

    /// The socket took `n` bytes, all that it was offered.
    pub(super) fn expect_ack(&mut self, n: u32, now: Time) {
        let Some(rtt) = self.peer_rtt.filter(|_| !self.guest_closed()) else { return };
        if self.ack_ready.plus(n) == self.rcv_nxt {
            // A guest that hears nothing for longer sends again.
            self.quiet_until = now + rtt.min(INITIAL_RTO);
        }
        let next = if self.is_pressed() { self.read_at + POLL_MIN } else { now + self.interval() };
        let next = self.not_in_vain(next);
        self.poll_at = Some(self.poll_at.map_or(next, |planned| planned.min(next)));
    }

    /// The first time from `at` on at which a read may find something, with what the ends take to answer.
    fn not_in_vain(&self, at: Time) -> Time {
        at.max(self.quiet_until + POLL_MIN)
    }

    /// The state was read; `progress`: the peer has acknowledged more; `notified`: the worker is told of room.
    pub(super) fn plan_read(&mut self, progress: bool, notified: bool, now: Time) {
        self.read_at = now;
        self.polled = false;
        if progress || self.poll_at.is_none() {
            (self.poll_interval, self.vain_reads) = (POLL_MIN, 0);
        }
        let small = self.window_is_small() && !notified;
        let waiting = !self.guest_closed() && (self.ack_ready < self.rcv_nxt || small);
        self.poll_at = waiting.then(|| self.not_in_vain(now + self.interval()));
    }

    /// The deadline for a read has come. Whether it is read or not, the next one is later, and later again after each that
    /// finds nothing.
    pub(super) fn put_off_read(&mut self, now: Time) {
        self.vain_reads = self.vain_reads.saturating_add(1);
        let longest = if self.vain_reads > PROMPT_READS { STALLED_POLL_MAX } else { POLL_MAX };
        self.poll_interval = (self.poll_interval * 2).min(longest);
        self.poll_at = Some(self.not_in_vain(now + self.interval()));
        self.polled = true;
    }
}
