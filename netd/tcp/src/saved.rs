//! A connection as its netd's successor gets it (see netd's module `state`).
//!
//! Every field stands in one of the two lists; a new one that moves is appended to the first. What an older netd did
//! not write is zero or none, so a new field must mean "as before" by that.

use super::config::{Config, POLL_MAX, POLL_MIN};
use super::conn::{Conn, State};
use super::rtt::Rtt;
use super::seq::Seq;
use netd_base::codec::{DecodeError, Field, Reader, fields, variants};
use netd_base::time::Time;

variants!(State as "a connection's state" {
    Connecting = 0, SynReceived = 1, SynSent = 2, Established = 3, FinWait1 = 4, FinWait2 = 5, CloseWait = 6,
    Closing = 7, LastAck = 8, TimeWait = 9, Closed = 10,
});

impl Field for Seq {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u32::take(r).map(Seq)
    }

    fn missing() -> Option<Self> {
        Some(Seq(0))
    }
}

fields!(Rtt { smoothed, timed, backoff });

fields!(Conn {
    state, iss, snd_una, snd_nxt, snd_max, snd_wnd, snd_wnd_max, snd_wl1, snd_wl2, snd_scale, mss, cwnd, fin_at,
    dup_acks, recover, blocked, retransmits, irs, rcv_nxt, acked, ack_ready, edge, edge_ready, space_max, peer_max,
    impatient, rcv_scale, refused, fin_pending, need_syn, need_ack, repeat_ack, need_probe, need_rst, stray_rst,
    consume, rewind, shutdown, abort, rtt, retries, rto_at, poll_at, ack_at, poll_interval, heard_at, probes,
    probed_at, expires, broken, keepalive,
} except {
    config: Config::default(),
    // The retransmission timer knows as well, only later.
    unheard: None,
    // The next loss finds it again.
    ssthresh: u32::MAX,
    // A successor reads the state of each socket first of all.
    read_at: Time::ZERO,
    quiet_until: Time::ZERO,
    peer_rtt: None,
    polled: false,
    // So the interval begins anew, too, as an older netd has it.
    vain_reads: 0,
    // Nothing is saved of a connection whose socket is gone but that it waits in TIME-WAIT.
    end: None,
    apply_keepalive: false,
    // The guest probes again.
    probed: false,
    unanswered: false,
});

/// Largest shift of a window (RFC 7323 2.3).
const MAX_SCALE: u8 = 14;

impl Conn {
    /// Makes a connection that came from another netd a connection of this netd: with this netd's tunables, and with
    /// values that arithmetic can use whatever was written.
    pub fn adopt(&mut self, config: Config) {
        self.mss = self.mss.clamp(64, config.mss.max(64));
        self.config = config;
        self.snd_scale = self.snd_scale.min(MAX_SCALE);
        self.rcv_scale = self.rcv_scale.min(MAX_SCALE);
        self.poll_interval = self.poll_interval.clamp(POLL_MIN, POLL_MAX);
        // Duplicates that stop the guest are three; a burst of hundreds does not help.
        self.repeat_ack = self.repeat_ack.min(super::input::DUP_ACKS);
        // It is counted on.
        self.retransmits = self.retransmits.min(u32::MAX / 2);
        self.rtt.adopt();
        self.adopt_keepalive();
    }
}
