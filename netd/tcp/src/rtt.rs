//! Round-trip time towards the guest and the retransmission timeout (RFC 6298).

use std::time::Duration;

use super::config::{INITIAL_RTO, MAX_RTO, MIN_RTO};
use super::seq::Seq;
use netd_base::time::Time;

/// Estimator with one segment timed at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    /// Smoothed round trip and its variation in microseconds; none before the first sample.
    pub(super) smoothed: Option<(u32, u32)>,
    /// The byte whose acknowledgement ends the sample, and when it was sent.
    pub(super) timed: Option<(Seq, Time)>,
    /// Doublings since the last progress.
    pub(super) backoff: u8,
}

impl Rtt {
    /// Bytes up to `end` were sent for the first time.
    pub(super) fn sent(&mut self, end: Seq, now: Time) {
        self.timed.get_or_insert((end, now));
    }

    /// Something is sent again: Karn's algorithm forbids the sample (RFC 6298 section 3).
    pub(super) fn retransmitted(&mut self) {
        self.timed = None;
    }

    /// The guest acknowledged up to `ack`.
    pub(super) fn acknowledged(&mut self, ack: Seq, now: Time) {
        self.restart();
        let Some((end, at)) = self.timed else { return };
        if ack < end {
            return;
        }
        self.timed = None;
        let sample = u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX / 4).min(u32::MAX / 4);
        self.smoothed = Some(match self.smoothed {
            // RFC 6298 2.2 and 2.3 with alpha = 1/8, beta = 1/4.
            None => (sample, sample / 2),
            Some((srtt, var)) => {
                ((srtt - srtt / 8) + sample / 8, (var - var / 4) + srtt.abs_diff(sample) / 4)
            }
        });
    }

    /// The guest answers again: the timeout is not doubled any longer.
    pub(super) fn restart(&mut self) {
        self.backoff = 0;
    }

    /// The timeout ran out.
    pub(super) fn timed_out(&mut self) {
        self.timed = None;
        self.backoff = self.backoff.saturating_add(1).min(16);
    }

    /// The smoothed round trip; none before the first sample.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|(srtt, _)| Duration::from_micros(srtt.into()))
    }

    /// Brings values of another netd into the bounds of this netd's arithmetic.
    pub(super) fn adopt(&mut self) {
        self.backoff = self.backoff.min(16);
        self.smoothed = self.smoothed.map(|(srtt, var)| (srtt.min(u32::MAX / 4), var.min(u32::MAX / 4)));
    }

    /// The present timeout.
    pub(super) fn timeout(&self) -> Duration {
        let base = match self.smoothed {
            None => INITIAL_RTO,
            Some((srtt, var)) => Duration::from_micros(u64::from(srtt) + 4 * u64::from(var)).max(MIN_RTO),
        };
        base.saturating_mul(1 << self.backoff).min(MAX_RTO)
    }
}
