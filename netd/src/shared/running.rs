//! Which pairs can receive.

use super::sync::{AtomicU32, Relaxed};

/// The pairs whose receive ring runs, as a set. A hint: a ring may stop before the answer is used, and then what
/// was sent to its worker moves on.
#[derive(Debug, Default)]
pub struct Running(AtomicU32);

impl Running {
    /// Puts a pair (below 32) in or takes it out.
    pub fn set(&self, pair: usize, runs: bool) {
        let bit = 1 << pair;
        if runs {
            self.0.fetch_or(bit, Relaxed);
        } else {
            self.0.fetch_and(!bit, Relaxed);
        }
    }

    /// Whether a pair runs.
    pub fn has(&self, pair: usize) -> bool {
        self.0.load(Relaxed) & (1 << pair) != 0
    }

    /// Whether any pair other than `pair` runs.
    pub fn others(&self, pair: usize) -> bool {
        self.0.load(Relaxed) & !(1 << pair) != 0
    }

    /// One of those that run, the same one for the same `hash` as long as the set stays.
    pub fn pick(&self, hash: u32) -> Option<usize> {
        let mut left = self.0.load(Relaxed);
        let skip = hash.checked_rem(left.count_ones())?;
        for _ in 0..skip {
            left &= left - 1;
        }
        Some(left.trailing_zeros() as usize)
    }
}
