//! A work queue by key: each key is worked on by one worker at a time, and never in a hot loop.
//!
//! Triggers say that a key is worth looking at ([`Queue::add`]); a trigger that comes while the key is worked on
//! leads to one more pass afterwards, however many there were. Passes over one key are at least
//! [`SPACING`] apart. A pass that failed is repeated after a delay that doubles from [`FIRST_RETRY`] to
//! [`LAST_RETRY`]; a trigger is not held back by it, since what it tells may be what the pass lacked.
//!
//! There is no clock and no thread in here: `now` is an argument, and the loop that owns the queue sleeps until
//! [`Queue::next_due`].

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Least time between the starts of two passes over one key: what a burst of events costs at most.
pub const SPACING: Duration = Duration::from_millis(50);
/// Delay after the first failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Largest delay after a failure. A user who repairs a cause waits no longer than this.
pub const LAST_RETRY: Duration = Duration::from_secs(30);

/// How a pass over a key ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Nothing to do until something happens.
    Settled,
    /// Look again after this long, whatever happens.
    Again(Duration),
    /// The pass failed.
    Failed,
    /// The key is of no more interest.
    Forget,
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    started: Option<Instant>,
    running: bool,
    failures: u32,
}

/// The queue.
#[derive(Debug)]
pub struct Queue<K> {
    entries: HashMap<K, Entry>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Something happened to `key`.
    pub fn add(&mut self, key: K, now: Instant) {
        let entry = self.entries.entry(key).or_default();
        let due = entry.started.map_or(now, |started| now.max(started + SPACING));
        entry.due = Some(entry.due.map_or(due, |planned| planned.min(due)));
    }

    /// The key that has been due the longest and is not being worked on; it counts as being worked on now.
    pub fn next(&mut self, now: Instant) -> Option<K> {
        let key = self.idle().filter(|(due, _)| *due <= now).min_by_key(|(due, _)| *due)?.1.clone();
        let entry = self.entries.get_mut(&key)?;
        entry.due = None;
        entry.running = true;
        entry.started = Some(now);
        Some(key)
    }

    /// When [`Queue::next`] will have something, unless something happens before.
    pub fn next_due(&self) -> Option<Instant> {
        self.idle().map(|(due, _)| due).min()
    }

    /// The pass over `key` has ended.
    pub fn done(&mut self, key: &K, outcome: Outcome, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = false;
        let planned = match outcome {
            Outcome::Settled => None,
            Outcome::Again(delay) => Some(now + delay),
            Outcome::Failed => Some(now + retry(entry.failures)),
            Outcome::Forget if entry.due.is_none() => {
                self.entries.remove(key);
                return;
            }
            Outcome::Forget => None,
        };
        entry.failures = if outcome == Outcome::Failed { entry.failures.saturating_add(1) } else { 0 };
        let spaced = entry.started.map_or(now, |started| started + SPACING);
        entry.due = match (entry.due, planned.map(|at| at.max(spaced))) {
            (Some(triggered), Some(planned)) => Some(triggered.min(planned)),
            (triggered, planned) => triggered.or(planned),
        };
    }

    /// Number of keys that are due or being worked on.
    pub fn depth(&self, now: Instant) -> usize {
        self.entries.values().filter(|e| e.running || e.due.is_some_and(|due| due <= now)).count()
    }

    fn idle(&self) -> impl Iterator<Item = (Instant, &K)> {
        self.entries.iter().filter(|(_, e)| !e.running).filter_map(|(key, e)| Some((e.due?, key)))
    }
}

/// The delay after `failures` earlier failures in a row.
fn retry(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.min(10)).min(LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_pass_for_many_triggers_and_one_more_for_those_during_it() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        queue.add("a", now);
        assert_eq!(queue.next(now), Some("a"));
        assert_eq!(queue.next(now), None, "one worker a key");
        queue.add("a", now + MS);
        queue.add("a", now + 2 * MS);
        assert_eq!(queue.next(now + SPACING), None);
        queue.done(&"a", Outcome::Settled, now + 3 * MS);
        assert_eq!(queue.next(now + 3 * MS), None, "passes are spaced");
        assert_eq!(queue.next_due(), Some(now + SPACING));
        assert_eq!(queue.next(now + SPACING), Some("a"));
        queue.done(&"a", Outcome::Settled, now + SPACING);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn the_longest_due_key_comes_first() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("late", now + MS);
        queue.add("early", now);
        assert_eq!(queue.next(now + MS), Some("early"));
        assert_eq!(queue.next(now + MS), Some("late"));
        assert_eq!(queue.depth(now + MS), 2);
    }

    #[test]
    fn failures_back_off_and_success_resets_them() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        let mut delays = Vec::new();
        for _ in 0..9 {
            assert_eq!(queue.next(now), Some("a"));
            queue.done(&"a", Outcome::Failed, now);
            let due = queue.next_due().expect("a retry is planned");
            delays.push(due - now);
            now = due;
        }
        assert_eq!(delays[..3], [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4]);
        assert_eq!(delays[8], LAST_RETRY);
        assert_eq!(queue.next(now), Some("a"));
        queue.done(&"a", Outcome::Settled, now);
        queue.add("a", now + SPACING);
        assert_eq!(queue.next(now + SPACING), Some("a"));
        queue.done(&"a", Outcome::Failed, now + SPACING);
        assert_eq!(queue.next_due(), Some(now + SPACING + FIRST_RETRY));
    }

    #[test]
    fn a_trigger_is_not_held_back_by_a_planned_retry() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        assert_eq!(queue.next(now), Some("a"));
        queue.done(&"a", Outcome::Failed, now);
        queue.add("a", now + 100 * MS);
        assert_eq!(queue.next(now + 100 * MS), Some("a"));
    }

    #[test]
    fn a_pass_that_wants_to_run_at_once_is_spaced_as_well() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        assert_eq!(queue.next(now), Some("a"));
        queue.done(&"a", Outcome::Again(Duration::ZERO), now);
        assert_eq!(queue.next_due(), Some(now + SPACING));
    }

    #[test]
    fn a_forgotten_key_comes_back_only_by_a_trigger() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        assert_eq!(queue.next(now), Some("a"));
        queue.add("a", now);
        queue.done(&"a", Outcome::Forget, now);
        assert_eq!(queue.next(now + SPACING), Some("a"), "the trigger during the pass is kept");
        queue.done(&"a", Outcome::Forget, now + SPACING);
        assert!(queue.entries.is_empty());
    }
}
