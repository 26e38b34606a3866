//! Growing delays, one count per object.
//!
//! A failure doubles the object's delay up to a limit; a success forgets the object, so that the memory holds
//! only what fails now. No jitter: the objects fail at different times anyway.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podvirt_api::delay::doubled;

/// The counts of failures of a controller's objects.
#[derive(Debug)]
pub struct Backoff<K> {
    first: Duration,
    limit: Duration,
    failures: Mutex<HashMap<K, u32>>,
}

impl<K: Eq + Hash> Backoff<K> {
    /// Delays of `first`, twice that, and so on up to `limit`.
    pub fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, failures: Mutex::default() }
    }

    /// Counts a failure of `key` and returns how long to wait before the next attempt.
    pub fn failed(&self, key: K) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key).or_default();
        let delay = doubled(self.first, self.limit, *count);
        *count = count.saturating_add(1);
        delay
    }

    /// Forgets `key`: it succeeded, or it is gone.
    pub fn forget(&self, key: &K) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Number of objects that failed last.
    pub fn failing(&self) -> usize {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl<K: Eq + Hash> Default for Backoff<K> {
    /// From 100 ms, which a conflict needs to settle, to 5 minutes, after which a repaired cluster is noticed.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(300))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_are_forgotten_on_success() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let delays: Vec<_> = (0..5).map(|_| backoff.failed("a").as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.failed("b").as_secs(), 1);
        backoff.forget(&"a");
        assert_eq!(backoff.failing(), 1);
        assert_eq!(backoff.failed("a").as_secs(), 1);
    }
}
