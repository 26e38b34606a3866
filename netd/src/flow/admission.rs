//! How fast new flows may come: a token bucket.

use crate::time::Time;

/// Allows a burst of new flows and then a steady rate of them.
#[derive(Debug)]
pub struct Admission {
    /// Tokens a second; zero: no limit.
    rate: u32,
    burst: u32,
    /// Tokens in millionths.
    level: u64,
    filled: Time,
}

/// Fractions of a token that are counted.
const SCALE: u64 = 1_000_000;

impl Admission {
    /// A full bucket of `burst` that refills by `rate` a second; a rate of zero allows everything.
    pub fn new(rate: u32, burst: u32, now: Time) -> Self {
        let burst = burst.max(1);
        Admission { rate, burst, level: u64::from(burst) * SCALE, filled: now }
    }

    /// Whether one more flow may be opened now.
    pub fn admit(&mut self, now: Time) -> bool {
        if self.rate == 0 {
            return true;
        }
        let elapsed = u64::try_from(now.since(self.filled).as_micros()).unwrap_or(u64::MAX);
        self.filled = now;
        let full = u64::from(self.burst) * SCALE;
        self.level = self.level.saturating_add(elapsed.saturating_mul(u64::from(self.rate))).min(full);
        let admitted = self.level >= SCALE;
        if admitted {
            self.level -= SCALE;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate() {
        let mut a = Admission::new(10, 3, Time::ZERO);
        assert_eq!((0..5).filter(|_| a.admit(Time::ZERO)).count(), 3);
        assert!(!a.admit(Time::from_millis(99)));
        assert!(a.admit(Time::from_millis(100)));
        assert!(!a.admit(Time::from_millis(100)));
        assert_eq!((0..50).filter(|_| a.admit(Time::from_millis(60_000))).count(), 3);
    }

    #[test]
    fn rate_zero_is_no_limit() {
        let mut a = Admission::new(0, 0, Time::ZERO);
        assert!((0..1000).all(|_| a.admit(Time::ZERO)));
    }
}
