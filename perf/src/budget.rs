//! The time that a measurement may take: what is left out when it runs short, and what may be done again.
//!
//! The first round of everything is always begun, unless the time is up altogether: without it a figure would be missing.
//! Of further rounds one is left out that would not end in time, judged by what it took before. Runs that were disturbed
//! are done again as long as that takes a small part of the time.

use std::collections::BTreeMap;
use std::time::Duration;

/// The part of the time that may be spent on doing things again.
const AGAIN: u32 = 8;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    limit: Duration,
    /// What each setup took the last time, with all of its peers.
    took: BTreeMap<String, Duration>,
    again: Duration,
}

impl Budget {
    /// A measurement that may take so long.
    pub(crate) fn new(limit: Duration) -> Budget {
        Budget { limit, took: BTreeMap::new(), again: Duration::ZERO }
    }

    /// Whether a round of a setup can be begun after `elapsed`.
    pub(crate) fn fits(&self, setup: &str, elapsed: Duration) -> bool {
        elapsed + self.took.get(setup).copied().unwrap_or_default() <= self.limit
    }

    /// A round of a setup took so long.
    pub(crate) fn took(&mut self, setup: String, time: Duration) {
        self.took.insert(setup, time);
    }

    /// How long these rounds will take, if all of them have been there before.
    pub(crate) fn left(&self, setups: impl IntoIterator<Item = String>) -> Option<Duration> {
        setups.into_iter().map(|setup| self.took.get(&setup).copied()).sum()
    }

    /// Takes the time for doing something again, if there is any.
    pub(crate) fn again(&mut self, time: Duration) -> bool {
        let allowed = self.again + time <= self.limit / AGAIN;
        if allowed {
            self.again += time;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    #[test]
    fn a_round_that_would_end_too_late_is_left_out() {
        let mut budget = Budget::new(minutes(40));
        assert!(budget.fits("a", minutes(40)) && !budget.fits("a", minutes(41)));
        budget.took("a".into(), minutes(5));
        assert!(budget.fits("a", minutes(35)) && !budget.fits("a", minutes(36)));
        assert!(budget.fits("b", minutes(36)));
    }

    #[test]
    fn what_is_left_is_known_when_everything_has_been_there() {
        let mut budget = Budget::new(minutes(40));
        budget.took("a".into(), minutes(5));
        assert_eq!(budget.left(["a".into(), "b".into()]), None);
        budget.took("b".into(), minutes(2));
        assert_eq!(budget.left(["a".into(), "b".into(), "b".into()]), Some(minutes(9)));
        assert_eq!(budget.left([]), Some(Duration::ZERO));
    }

    #[test]
    fn an_eighth_of_the_time_may_go_to_doing_things_again() {
        let mut budget = Budget::new(minutes(40));
        assert!(budget.again(minutes(3)));
        assert!(!budget.again(minutes(3)));
        assert!(budget.again(minutes(2)));
        assert!(!budget.again(Duration::from_secs(1)));
    }
}
