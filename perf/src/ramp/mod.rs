//! Streams in which nothing can be lost, doubled or changed without being seen: ramps.
//!
//! A ramp is a sequence of 64-bit words, each made from its place in the stream, so that a reader that finds another
//! byte than the one it expects also finds where in the stream it is: bytes lost are told from bytes doubled, and the
//! rest of the stream is still compared. Each direction of each connection has a seed of its own: bytes that came from
//! another stream are wrong ones.
//!
//! Both ends of a measurement have this code, the client's beside the runner and the guest's in the agent; [`End`] is one
//! end of a connection.

mod end;
mod role;

pub use end::{End, Outcome, Stop};
pub use role::{Reading, Role, Sending};

/// Odd, so that its multiples differ; each word shares no bytes with its neighbours.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a word.
const WORD: u64 = 8;
/// A stream is shorter: a place beyond it is none.
const LONGEST: u64 = 1 << 44;

/// The bytes of a ramp from `at` on.
pub fn fill(seed: u64, at: u64, bytes: &mut [u8]) {
    let mut at = at;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = ((at / WORD).wrapping_mul(STEP) ^ seed).to_le_bytes();
        let skip = (at % WORD) as usize;
        let n = rest.len().min(word.len() - skip);
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&word[skip..skip + n]);
        at += n as u64;
        rest = later;
    }
}

/// Compares what comes with what is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checker {
    seed: u64,
    /// The place of the next byte.
    pub at: u64,
    /// Bytes that were left out.
    pub lost: u64,
    /// Bytes that came again.
    pub doubled: u64,
    /// Bytes that are at no place of the stream.
    pub wrong: u64,
    expected: Vec<u8>,
}

impl Checker {
    /// At the beginning of a stream.
    pub fn new(seed: u64) -> Checker {
        Checker { seed, ..Checker::default() }
    }

    /// Takes the bytes that came next.
    pub fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.expected.resize(bytes.len(), 0);
            fill(self.seed, self.at, &mut self.expected);
            let same = bytes.iter().zip(&self.expected).take_while(|(a, b)| a == b).count();
            self.at += same as u64;
            bytes = bytes.get(same..).unwrap_or_default();
            if bytes.is_empty() {
                return;
            }
            let Some((skip, place)) = self.place(bytes) else {
                // Wherever the stream goes on shows with the next ones.
                self.wrong += bytes.len() as u64;
                self.at += bytes.len() as u64;
                return;
            };
            // The first bytes may be the rest of a word, or wrong ones.
            let start = place.checked_sub(skip as u64).filter(|start| {
                self.expected.resize(skip, 0);
                fill(self.seed, *start, &mut self.expected);
                bytes.starts_with(&self.expected)
            });
            let start = start.unwrap_or_else(|| {
                self.wrong += skip as u64;
                self.at += skip as u64;
                bytes = bytes.get(skip..).unwrap_or_default();
                place
            });
            self.lost += start.saturating_sub(self.at);
            self.doubled += self.at.saturating_sub(start);
            self.at = start;
        }
    }

    /// The first two words in a row, by how many bytes come before them and where in the stream the first one is.
    fn place(&self, bytes: &[u8]) -> Option<(usize, u64)> {
        // The inverse of an odd number, modulo 2^64, by Newton's iteration.
        let inverse = (0..6).fold(STEP, |x, _| x.wrapping_mul(2u64.wrapping_sub(STEP.wrapping_mul(x))));
        let number = |at: usize| {
            let word = bytes.get(at..)?.first_chunk::<8>()?;
            Some((u64::from_le_bytes(*word) ^ self.seed).wrapping_mul(inverse))
        };
        (0..WORD as usize).find_map(|skip| {
            let (first, second) = (number(skip)?, number(skip + WORD as usize)?);
            (first < LONGEST && second == first + 1).then(|| (skip, first * WORD))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ramp(seed: u64, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(seed, at, &mut bytes);
        bytes
    }

    #[test]
    fn other_seeds_are_other_streams() {
        assert_ne!(ramp(1, 0, 64), ramp(2, 0, 64));
        let mut checker = Checker::new(1);
        checker.take(&ramp(2, 0, 64));
        assert!(checker.wrong + checker.lost + checker.doubled > 0);
    }

    proptest! {
        #[test]
        fn a_stream_is_the_same_however_it_is_cut(cuts in prop::collection::vec(1..200usize, 1..20), seed: u64) {
            let (mut at, mut checker) = (0, Checker::new(seed));
            for cut in cuts {
                checker.take(&ramp(seed, at, cut));
                at += cut as u64;
            }
            prop_assert_eq!((checker.at, checker.lost, checker.doubled, checker.wrong), (at, 0, 0, 0));
        }

        #[test]
        fn what_is_left_out_or_comes_again_is_counted(before in 0..5000u64, jump in -4000..4000i64, seed: u64) {
            let to = before.saturating_add_signed(jump);
            let mut checker = Checker::new(seed);
            checker.take(&ramp(seed, 0, before as usize));
            checker.take(&ramp(seed, to, 3000));
            let (lost, doubled) = (to.saturating_sub(before), before.saturating_sub(to));
            prop_assert_eq!((checker.lost, checker.doubled, checker.wrong), (lost, doubled, 0));
            prop_assert_eq!(checker.at, to + 3000);
        }

        #[test]
        fn a_changed_byte_does_not_go_unseen(at in 0..4000usize, flip in 1..=255u8) {
            let mut bytes = ramp(7, 0, 4096);
            bytes[at] ^= flip;
            let mut checker = Checker::new(7);
            checker.take(&bytes);
            checker.take(&ramp(7, 4096, 4096));
            prop_assert!(checker.wrong + checker.lost + checker.doubled > 0);
        }
    }
}
