//! The connection's one deadline and what happens at it.

use super::config::{KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, MAX_RETRIES, MAX_SYN_RETRIES, ORPHAN_SILENCE};
use super::conn::{Conn, State};
use netd_base::time::Time;

impl Conn {
    /// When [`Conn::on_timer`] wants to be called next.
    pub fn poll_at(&self) -> Option<Time> {
        // A RST waits for nothing but a receive buffer.
        if self.need_rst || self.is_closed() {
            return None;
        }
        [self.rto_at, self.ack_at, self.poll_at, self.expires, self.keepalive_at(), self.orphan_at()]
            .into_iter()
            .flatten()
            .min()
    }

    fn keepalive_at(&self) -> Option<Time> {
        let alive = self.synchronized() && self.state != State::TimeWait;
        // Counted from the last probe: a guest that was stopped for hours has all of them before it.
        let next = match self.probes {
            0 => self.heard_at + self.config.keepalive,
            _ => self.probed_at + KEEPALIVE_INTERVAL,
        };
        alive.then_some(next)
    }

    /// When a guest is asked that has closed, and whose peer has not. A program that has closed one direction only answers, for as long as
    /// it likes. A kernel whose program has left the socket soon forgets it: it answers by a RST, which frees both ends. A
    /// guest that says nothing at all is given up no sooner than any other.
    fn orphan_at(&self) -> Option<Time> {
        let asked = self.heard_at.max(self.probed_at);
        (self.state == State::CloseWait && self.probes == 0).then_some(asked + ORPHAN_SILENCE)
    }

    /// A deadline may have passed.
    ///
    /// Afterwards [`Conn::poll_at`] is later than `now`, whatever else happens.
    pub fn on_timer(&mut self, now: Time) {
        if self.need_rst || self.is_closed() {
            return;
        }
        if self.wants_pod_state(now) {
            self.put_off_read(now);
        }
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_at = None;
            self.need_ack = true;
        }
        if self.expires.is_some_and(|at| at <= now) {
            self.expires = None;
            self.on_expired();
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.rto_at = None;
            self.on_rto(now);
        }
        if self.keepalive_at().is_some_and(|at| at <= now) {
            if self.probes >= KEEPALIVE_PROBES {
                self.abort();
            } else {
                self.probes += 1;
                self.probed_at = now;
                self.need_probe = true;
            }
        }
        if self.orphan_at().is_some_and(|at| at <= now) {
            self.probed_at = now;
            self.need_probe = true;
        }
    }

    fn on_expired(&mut self) {
        match self.state {
            State::TimeWait => self.state = State::Closed,
            State::Connecting | State::SynReceived | State::SynSent => self.abort(),
            _ => {}
        }
    }

    fn on_rto(&mut self, now: Time) {
        let limit = if self.synchronized() { MAX_RETRIES } else { MAX_SYN_RETRIES };
        match self.state {
            // The SYN could not be written yet: no receive buffer, or the guest's address is not known.
            State::SynSent if self.snd_max == self.iss => {
                self.rto_at = Some(now + self.rtt.timeout());
                self.need_syn = true;
            }
            State::SynSent | State::SynReceived => {
                if self.retries >= limit {
                    self.abort();
                } else {
                    self.retries += 1;
                    self.rtt.timed_out();
                    self.need_syn = true;
                    self.rto_at = Some(now + self.rtt.timeout());
                }
            }
            _ if !self.synchronized() => {}
            _ if self.snd_una == self.snd_max && !self.blocked => {}
            _ if self.retries >= limit => self.abort(),
            // Nothing in flight: the guest's window is closed. Probing goes on for as long as the guest answers
            // (RFC 9293 3.8.6.1), which sets `retries` back.
            _ if self.snd_una == self.snd_max => {
                self.retries += 1;
                self.rtt.timed_out();
                self.need_probe = true;
                self.rto_at = Some(now + self.rtt.timeout());
            }
            _ => {
                self.retries += 1;
                self.rtt.timed_out();
                // RFC 5681 3.1: the threshold stays where the first loss put it, the window begins anew.
                let threshold = self.recover.map(|_| self.ssthresh);
                self.go_back();
                self.ssthresh = threshold.unwrap_or(self.ssthresh);
                self.cwnd = self.loss_window();
                self.dup_acks = 0;
                // A closed window stops what goes again, too: it is asked for instead.
                self.need_probe = self.snd_wnd == 0;
                self.rto_at = Some(now + self.rtt.timeout());
            }
        }
    }
}
