//! What was asked of the API server and has not been seen yet.
//!
//! A controller sees the cluster through a cache that lags behind its own requests. Between a request and its
//! echo it would ask again. So each creation and deletion of an object (a machine's pod, a replica set's instance, a
//! pool's VirtualMachine) is noted by the object's UID, and its owner rests until all of its notes are crossed out, or
//! until they are [`LIMIT`] old: an echo can be lost, for one when a watch breaks and the object comes and goes meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an echo is waited for. A watch that is cut off is noticed and made again well within it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Notes of one owner.
#[derive(Debug)]
struct Notes {
    creations: HashSet<String>,
    deletions: HashSet<String>,
    until: Instant,
}

/// Notes of all owners, by their UIDs.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<String, Notes>>);

impl Expectations {
    /// An object was made.
    pub fn expect_creation(&self, owner: &str, object: &str, now: Instant) {
        self.note(owner, now, |notes| notes.creations.insert(object.to_owned()));
    }

    /// An object's deletion was accepted.
    pub fn expect_deletion(&self, owner: &str, object: &str, now: Instant) {
        self.note(owner, now, |notes| notes.deletions.insert(object.to_owned()));
    }

    /// An object was seen in the cache, `deleting` if it has a deletion timestamp.
    pub fn seen(&self, owner: &str, object: &str, deleting: bool) {
        self.cross_out(owner, |notes| {
            notes.creations.remove(object);
            if deleting {
                notes.deletions.remove(object);
            }
        });
    }

    /// An object left the cache.
    pub fn gone(&self, owner: &str, object: &str) {
        self.cross_out(owner, |notes| {
            notes.creations.remove(object);
            notes.deletions.remove(object);
        });
    }

    /// Looks at the owner's objects as the cache has them now: the UID of each, and whether it has a deletion timestamp.
    pub fn look(&self, owner: &str, there: &HashMap<String, bool>) {
        self.cross_out(owner, |notes| {
            notes.creations.retain(|object| !there.contains_key(object));
            notes.deletions.retain(|object| there.get(object) == Some(&false));
        });
    }

    /// The owner itself is gone.
    pub fn forget(&self, owner: &str) {
        self.lock().remove(owner);
    }

    /// How long to wait at most before the owner may be acted on again. `None`: everything was seen.
    pub fn wait(&self, owner: &str, now: Instant) -> Option<Duration> {
        let mut all = self.lock();
        let notes = all.get(owner)?;
        let left = notes.until.saturating_duration_since(now);
        if left.is_zero() {
            tracing::warn!(
                owner,
                creations = notes.creations.len(),
                deletions = notes.deletions.len(),
                "objects were not seen in time"
            );
            all.remove(owner);
            return None;
        }
        Some(left)
    }

    fn note(&self, owner: &str, now: Instant, add: impl FnOnce(&mut Notes) -> bool) {
        let mut all = self.lock();
        let notes = all.entry(owner.to_owned()).or_insert_with(|| Notes {
            creations: HashSet::new(),
            deletions: HashSet::new(),
            until: now + LIMIT,
        });
        add(notes);
        notes.until = now + LIMIT;
    }

    fn cross_out(&self, owner: &str, remove: impl FnOnce(&mut Notes)) {
        let mut all = self.lock();
        if let Some(notes) = all.get_mut(owner) {
            remove(notes);
            if notes.creations.is_empty() && notes.deletions.is_empty() {
                all.remove(owner);
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
    fn a_look_at_the_cache_crosses_out_what_it_shows() {
        let (notes, now) = (Expectations::default(), Instant::now());
        let there = |objects: &[(&str, bool)]| {
            objects.iter().map(|(uid, deleting)| ((*uid).to_owned(), *deleting)).collect::<HashMap<_, _>>()
        };
        notes.expect_creation("m", "new", now);
        for old in ["gone", "going"] {
            notes.expect_deletion("m", old, now);
        }
        notes.look("m", &there(&[("gone", false), ("going", false)]));
        assert!(notes.wait("m", now).is_some());
        notes.look("m", &there(&[("new", false), ("going", false)]));
        assert!(notes.wait("m", now).is_some(), "one is not being deleted yet");
        notes.look("m", &there(&[("new", false), ("going", true)]));
        assert_eq!(notes.wait("m", now), None);
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
