//! Sequence numbers (RFC 9293 section 3.4): 32 bits that wrap around.

use std::cmp::Ordering;

/// A sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seq(pub u32);

impl Seq {
    /// Bytes from `earlier` to `self`; meaningful when `self` is not before `earlier`.
    #[inline]
    pub fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The number `n` bytes later.
    #[inline]
    pub fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// The number `n` bytes earlier.
    #[inline]
    pub fn minus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }

    /// The later of the two.
    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self > other { self } else { other }
    }

    /// The earlier of the two.
    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if self < other { self } else { other }
    }
}

/// Order within half the number space, as RFC 9293 3.4 compares.
impl PartialOrd for Seq {
    #[inline]
    fn partial_cmp(&self, other: &Seq) -> Option<Ordering> {
        Some((self.0.wrapping_sub(other.0) as i32).cmp(&0))
    }
}
