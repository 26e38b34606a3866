//! Time as the translators see it: a number that only grows, handed in by whoever runs them.
//!
//! Protocol code never reads a clock. The worker takes one [`Time`] from [`Clock::now`] at each turn of its
//! loop and lends it to everything below; tests invent their own and run in virtual time.

use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// A moment, in microseconds since the clock's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);

    /// The moment `micros` microseconds after the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Time(micros)
    }

    /// The moment `millis` milliseconds after the clock's start.
    pub const fn from_millis(millis: u64) -> Self {
        Time(millis * 1000)
    }

    /// Microseconds since the clock's start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
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
pub struct Clock(Instant);

impl Clock {
    /// Starts a clock at [`Time::ZERO`].
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Clock(Instant::now())
    }

    /// The time since the clock was started.
    pub fn now(&self) -> Time {
        Time::ZERO + self.0.elapsed()
    }
}
