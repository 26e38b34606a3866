//! Changes that are decided by what was read, and decided anew where the object has changed meanwhile.
//!
//! Several clients may change a machine at once, and the controllers write its status. At each conflict one writer has won; the
//! others read again after a pause. Pauses grow, and are drawn at random, so that those who lost together do not meet again.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// How often a decision is made, the first time included: more than clients that plug disks at once.
pub(crate) const MAX_ATTEMPTS: usize = 12;
/// Longest pause behind the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause behind any.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Waits before the next attempt; `attempt` counts those that were made, from 0.
pub(crate) async fn pause(attempt: usize) {
    tokio::time::sleep(drawn(attempt, RandomState::new().hash_one(attempt))).await;
}

/// A pause from half of what it is at most to all of it.
fn drawn(attempt: usize, random: u64) -> Duration {
    let longest =
        podvirt_daemon::backoff::delay(FIRST_PAUSE, MAX_PAUSE, u32::try_from(attempt).unwrap_or(u32::MAX));
    let half = longest / 2;
    half + Duration::from_micros(random % (u64::try_from(half.as_micros()).unwrap_or(u64::MAX) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let range = |attempt: usize| (drawn(attempt, 0).as_millis(), drawn(attempt, 10_000).as_millis());
        assert_eq!(range(0), (10, 20));
        assert_eq!(drawn(3, 0).as_millis(), 80);
        assert_eq!(drawn(MAX_ATTEMPTS, 0).as_millis(), 250);
        assert!(drawn(usize::MAX, u64::MAX) <= MAX_PAUSE);
    }
}
