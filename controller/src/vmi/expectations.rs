//! What was asked of the API server and has not been seen yet.
//!
//! A controller sees the cluster through a cache that lags behind its own requests. Between a request and its
//! echo it would ask again. So each creation and deletion of a pod is noted by the pod's UID, and the machine
//! rests until all of its notes are crossed out, or until they are [`LIMIT`] old: an echo can be lost, for one
//! when a watch breaks and the pod comes and goes meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an echo is waited for. A watch that is cut off is noticed and made again well within it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Notes of one machine.
#[derive(Debug)]
struct Notes {
    creations: HashSet<String>,
    deletions: HashSet<String>,
    until: Instant,
}

/// Notes of all machines, by their UIDs.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<String, Notes>>);

impl Expectations {
    /// A pod was made.
    pub fn expect_creation(&self, machine: &str, pod: &str, now: Instant) {
        self.note(machine, now, |notes| notes.creations.insert(pod.to_owned()));
    }

    /// A pod's deletion was accepted.
    pub fn expect_deletion(&self, machine: &str, pod: &str, now: Instant) {
        self.note(machine, now, |notes| notes.deletions.insert(pod.to_owned()));
    }

    /// A pod was seen in the cache, `deleting` if it has a deletion timestamp.
    pub fn seen(&self, machine: &str, pod: &str, deleting: bool) {
        self.cross_out(machine, |notes| {
            notes.creations.remove(pod);
            if deleting {
                notes.deletions.remove(pod);
            }
        });
    }

    /// A pod left the cache.
    pub fn gone(&self, machine: &str, pod: &str) {
        self.cross_out(machine, |notes| {
            notes.creations.remove(pod);
            notes.deletions.remove(pod);
        });
    }

    /// The machine itself is gone.
    pub fn forget(&self, machine: &str) {
        self.lock().remove(machine);
    }

    /// How long to wait at most before the machine may be acted on again. `None`: everything was seen.
    pub fn wait(&self, machine: &str, now: Instant) -> Option<Duration> {
        let mut all = self.lock();
        let notes = all.get(machine)?;
        let left = notes.until.saturating_duration_since(now);
        if left.is_zero() {
            tracing::warn!(
                machine,
                creations = notes.creations.len(),
                deletions = notes.deletions.len(),
                "pods were not seen in time"
            );
            all.remove(machine);
            return None;
        }
        Some(left)
    }

    fn note(&self, machine: &str, now: Instant, add: impl FnOnce(&mut Notes) -> bool) {
        let mut all = self.lock();
        let notes = all.entry(machine.to_owned()).or_insert_with(|| Notes {
            creations: HashSet::new(),
            deletions: HashSet::new(),
            until: now + LIMIT,
        });
        add(notes);
        notes.until = now + LIMIT;
    }

    fn cross_out(&self, machine: &str, remove: impl FnOnce(&mut Notes)) {
        let mut all = self.lock();
        if let Some(notes) = all.get_mut(machine) {
            remove(notes);
            if notes.creations.is_empty() && notes.deletions.is_empty() {
                all.remove(machine);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Notes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_rests_until_its_pod_is_seen() {
        let (notes, now) = (Expectations::default(), Instant::now());
        assert_eq!(notes.wait("m", now), None);
        notes.expect_creation("m", "p", now);
        assert_eq!(notes.wait("m", now), Some(LIMIT));
        assert_eq!(notes.wait("other", now), None);
        notes.seen("m", "q", false);
        assert!(notes.wait("m", now).is_some(), "another pod");
        notes.seen("m", "p", false);
        assert_eq!(notes.wait("m", now), None);
    }

    #[test]
    fn a_deletion_is_seen_by_its_timestamp_or_its_end() {
        let (notes, now) = (Expectations::default(), Instant::now());
        notes.expect_deletion("m", "p", now);
        notes.seen("m", "p", false);
        assert!(notes.wait("m", now).is_some());
        notes.seen("m", "p", true);
        assert_eq!(notes.wait("m", now), None);
        notes.expect_creation("m", "q", now);
        notes.expect_deletion("m", "q", now);
        notes.gone("m", "q");
        assert_eq!(notes.wait("m", now), None, "it came and went unseen");
    }

    #[test]
    fn an_echo_that_is_lost_is_not_waited_for_forever() {
        let (notes, now) = (Expectations::default(), Instant::now());
        notes.expect_creation("m", "p", now);
        assert_eq!(notes.wait("m", now + LIMIT / 2), Some(LIMIT / 2));
        assert_eq!(notes.wait("m", now + LIMIT), None);
        assert_eq!(notes.wait("m", now), None, "and then it is forgotten");
    }

    #[test]
    fn a_machine_that_is_gone_leaves_nothing() {
        let (notes, now) = (Expectations::default(), Instant::now());
        notes.expect_creation("m", "p", now);
        notes.forget("m");
        assert!(notes.lock().is_empty());
    }
}
