//! How many errors go out: a token bucket (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)).

use crate::time::Time;

/// Parts of a token, one microsecond's worth at one token a second.
const PARTS: u64 = 1_000_000;

/// Lets a number of errors a second through, after silence several at once.
#[derive(Debug)]
pub struct ErrorLimiter {
    per_second: u32,
    burst: u32,
    /// What the bucket holds, in parts.
    level: u64,
    last: Time,
}

impl ErrorLimiter {
    /// A full bucket of `burst` errors that gains `per_second` a second.
    pub fn new(per_second: u32, burst: u32) -> ErrorLimiter {
        ErrorLimiter { per_second, burst, level: u64::from(burst) * PARTS, last: Time::ZERO }
    }

    /// Whether an error could go out now; nothing is counted.
    pub fn would_allow(&self, now: Time) -> bool {
        let elapsed = now.as_micros().saturating_sub(self.last.as_micros());
        self.level.saturating_add(elapsed.saturating_mul(self.per_second.into())) >= PARTS
    }

    /// Whether an error may go out now; if so it is counted.
    pub fn allow(&mut self, now: Time) -> bool {
        let elapsed = now.as_micros().saturating_sub(self.last.as_micros());
        self.last = self.last.max(now);
        let gained = elapsed.saturating_mul(self.per_second.into());
        self.level = self.level.saturating_add(gained).min(u64::from(self.burst) * PARTS);
        let allowed = self.level >= PARTS;
        if allowed {
            self.level -= PARTS;
        }
        allowed
    }
}
