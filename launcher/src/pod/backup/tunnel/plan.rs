//! When the launcher dials the exporter, and how often.
//!
//! ```text
//!  dialled ── answered ──> parked ── taken ──> serving ── either end closes ──> gone
//!     │                      │ ends
//!     └── fails: a pause ────┘── a pause, twice as long each time, up to a limit; from the first one again once a stream is parked
//! ```
//!
//! Some streams are parked ahead, so that a request at the exporter finds one; for each that is taken another one is dialled, up to
//! a limit of all. While dialling fails, one stream at a time is tried.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Streams that wait for a request.
const PARKED: usize = 2;
/// All streams.
pub(super) const STREAMS: usize = 16;
/// The first pause after a failure.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The exporter has not answered yet.
    Dialled,
    /// It waits for a request.
    Parked,
    /// A request has it.
    Serving,
}

/// The streams, each known by a `K`, and the failures.
#[derive(Debug)]
pub(super) struct Plan<K> {
    streams: HashMap<K, Stage>,
    failures: u32,
    not_before: Option<Instant>,
}

impl<K> Default for Plan<K> {
    fn default() -> Self {
        Plan { streams: HashMap::new(), failures: 0, not_before: None }
    }
}

impl<K: Eq + Hash> Plan<K> {
    /// How many streams are to be dialled now.
    pub(super) fn due(&self, now: Instant) -> usize {
        if self.not_before.is_some_and(|moment| now < moment) {
            return 0;
        }
        let count = |stage| self.streams.values().filter(|other| **other == stage).count();
        let (dialled, parked) = (count(Stage::Dialled), count(Stage::Parked));
        let wanted = PARKED.saturating_sub(dialled + parked).min(STREAMS.saturating_sub(self.streams.len()));
        match (self.failures, dialled) {
            (0, _) => wanted,
            (_, 0) => wanted.min(1),
            _ => 0,
        }
    }

    /// When to look again although nothing has happened.
    pub(super) fn wakes(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|moment| now < *moment)
    }

    /// A stream is dialled.
    pub(super) fn dials(&mut self, stream: K) {
        self.streams.insert(stream, Stage::Dialled);
    }

    /// A stream is so far. One that has ended already is not known any more.
    pub(super) fn reaches(&mut self, stream: &K, stage: Stage) {
        if let Some(known) = self.streams.get_mut(stream) {
            *known = stage;
            (self.failures, self.not_before) = (0, None);
        }
    }

    /// A stream has ended; `failed`: as none should.
    pub(super) fn ends(&mut self, stream: &K, failed: bool, now: Instant) {
        self.streams.remove(stream);
        if failed {
            let pause = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
            self.not_before = now.checked_add(pause.min(LONGEST));
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// The exporter is another one, which is tried at once.
    pub(super) fn restart(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan with streams so far.
    fn plan(streams: &[(u32, Stage)]) -> Plan<u32> {
        Plan { streams: streams.iter().copied().collect(), ..Plan::default() }
    }

    #[test]
    fn two_streams_wait_and_each_that_is_taken_is_replaced() {
        use Stage::{Dialled, Parked, Serving};
        let now = Instant::now();
        for (streams, due) in [
            (&[][..], 2),
            (&[(1, Dialled)], 1),
            (&[(1, Dialled), (2, Dialled)], 0),
            (&[(1, Parked), (2, Dialled)], 0),
            (&[(1, Parked), (2, Parked)], 0),
            (&[(1, Parked), (2, Serving)], 1),
            (&[(1, Serving), (2, Serving)], 2),
        ] {
            assert_eq!(plan(streams).due(now), due, "{streams:?}");
        }
        let serving = |count: u32| (0..count).map(|n| (n, Serving)).collect::<Vec<_>>();
        assert_eq!(plan(&serving(14)).due(now), 2);
        assert_eq!(plan(&serving(15)).due(now), 1);
        assert_eq!(plan(&serving(16)).due(now), 0);
    }

    #[test]
    fn pauses_grow_up_to_a_limit_and_one_stream_is_tried() {
        let mut plan = Plan::default();
        let mut now = Instant::now();
        plan.dials(1);
        plan.dials(2);
        plan.ends(&1, true, now);
        plan.ends(&2, true, now);
        for millis in [1000, 2000, 4000, 8000, 10_000, 10_000] {
            let moment = plan.wakes(now).unwrap();
            assert_eq!((moment - now).as_millis(), millis);
            assert_eq!(plan.due(now), 0);
            now = moment;
            assert_eq!((plan.due(now), plan.wakes(now)), (1, None));
            plan.dials(3);
            assert_eq!(plan.due(now), 0);
            plan.ends(&3, true, now);
        }
        for _ in 0..100 {
            plan.ends(&3, true, now);
        }
        assert_eq!(plan.wakes(now), Some(now + LONGEST));
        // An exporter that answers is dialled as at first.
        plan.dials(4);
        plan.reaches(&4, Stage::Parked);
        assert_eq!((plan.due(now), plan.wakes(now)), (1, None));
        // One that closes what it has taken is not dialled without a pause.
        plan.ends(&4, true, now);
        assert_eq!((plan.due(now), plan.wakes(now)), (0, Some(now + FIRST)));
        plan.restart();
        assert_eq!(plan.due(now), 2);
    }

    #[test]
    fn a_stream_that_was_used_leaves_no_pause() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.dials(1);
        plan.reaches(&1, Stage::Parked);
        plan.reaches(&1, Stage::Serving);
        plan.ends(&1, false, now);
        assert_eq!((plan.due(now), plan.wakes(now)), (2, None));
        // What is told late of a stream that has ended changes nothing.
        plan.ends(&2, true, now);
        plan.reaches(&1, Stage::Parked);
        assert_eq!(plan.due(now), 0);
    }
}
