//! Time as the translators see it: a number that only grows, handed in by their caller.
//!
//! Protocol code never reads a clock. The worker takes one [`Time`] from [`Clock::now`] at each turn of its
//! loop and lends it to everything below; tests invent their own and run in virtual time.

use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// A moment, in microseconds since the clock's start.
///
/// The number is kept plus one, so that an `Option<Time>` is no larger than a `Time`: each flow has many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Default for Time {
    fn default() -> Self {
        Time::ZERO
    }
}

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(NonZeroU64::MIN);

    /// The moment `micros` microseconds after the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Time(NonZeroU64::MIN.saturating_add(micros))
    }

    /// The moment `millis` milliseconds after the clock's start.
    pub const fn from_millis(millis: u64) -> Self {
        Time::from_micros(millis * 1000)
    }

    /// Microseconds since the clock's start.
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// The time from `earlier` to `self`, zero if `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

/// The one place that reads the machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    since: Instant,
    then: Time,
}

impl Clock {
    /// Starts a clock at [`Time::ZERO`].
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Clock::resume(Time::ZERO)
    }

    /// Starts a clock that shows `now`: deadlines of another one, which showed that, come up when they would have.
    pub fn resume(now: Time) -> Self {
        Clock { since: Instant::now(), then: now }
    }

    /// The time that it shows.
    pub fn now(&self) -> Time {
        self.then + self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_durations_add_up() {
        let t = Time::from_millis(5) + Duration::from_micros(7);
        assert_eq!((t.as_micros(), Time::ZERO.as_micros(), Time::default()), (5007, 0, Time::ZERO));
        assert_eq!(t - Time::from_millis(5), Duration::from_micros(7));
        assert_eq!(Time::ZERO.since(t), Duration::ZERO);
        assert!(t < t + Duration::MAX && t + Duration::MAX == Time::from_micros(u64::MAX));
    }

    #[test]
    fn a_moment_that_may_not_be_is_no_larger() {
        assert_eq!(size_of::<Option<Time>>(), size_of::<Time>());
    }
}
