//! Delays between attempts.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// The delay after `failures` earlier failures in a row: `first`, doubled by each, up to `limit`.
#[must_use]
pub fn doubled(first: Duration, limit: Duration, failures: u32) -> Duration {
    first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(limit)
}

/// A delay drawn at random, from half of the [`doubled`] one to all of it, so that clients that failed together do not meet again.
#[must_use]
pub fn drawn(first: Duration, limit: Duration, failures: u32) -> Duration {
    share(doubled(first, limit, failures), RandomState::new().hash_one(failures))
}

/// From half of `longest` to all of it.
fn share(longest: Duration, random: u64) -> Duration {
    let half = longest / 2;
    half + Duration::from_micros(
        random % (u64::try_from(half.as_micros()).unwrap_or(u64::MAX).saturating_add(1)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(20);
    const LIMIT: Duration = Duration::from_millis(500);

    #[test]
    fn a_long_row_of_failures_does_not_overflow() {
        assert_eq!(doubled(FIRST, LIMIT, 31), LIMIT);
        assert_eq!(doubled(FIRST, LIMIT, u32::MAX), LIMIT);
    }

    #[test]
    fn drawn_delays_grow_and_differ() {
        let range =
            |failures| [0, 10_000].map(|random| share(doubled(FIRST, LIMIT, failures), random).as_millis());
        assert_eq!(range(0), [10, 20]);
        assert_eq!(range(3)[0], 80);
        assert_eq!(range(12)[0], 250);
        let all: std::collections::BTreeSet<Duration> = (0..50).map(|_| drawn(FIRST, LIMIT, 9)).collect();
        assert!(all.len() > 1 && all.iter().all(|delay| (LIMIT / 2..=LIMIT).contains(delay)), "{all:?}");
    }
}
