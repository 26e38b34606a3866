//! Which slot a key is in: an open-addressed hash table that never grows.
//!
//! Its size is settled by the most flows there may be, so no insertion ever stops the datapath to move the others.
//! An entry is eight bytes, hash and slot; the keys themselves are in the slots. Memory that no entry has touched is
//! the kernel's zero page. The hash is keyed: a peer that chooses ports and addresses cannot make keys collide.

use std::hash::{BuildHasher, RandomState};

use super::packed::Packed;

/// A bucket: the hash in the upper half, the slot's index plus one in the lower; zero when it is empty.
type Bucket = u64;

#[derive(Debug)]
pub(super) struct Index {
    buckets: Vec<Bucket>,
    mask: usize,
    seeds: [u64; 4],
    len: usize,
}

impl Index {
    /// An empty index for at most `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        let random = RandomState::new();
        Index::with_seeds(limit, std::array::from_fn(|i| random.hash_one(i)))
    }

    /// As [`Index::new`], with a hash that is keyed by `seeds`.
    pub(super) fn with_seeds(limit: usize, seeds: [u64; 4]) -> Self {
        // Three quarters full at most: a search looks at two or three buckets.
        let buckets = (limit.saturating_mul(4) / 3 + 1).next_power_of_two();
        // Odd, so that no product with them loses bits.
        Index { buckets: vec![0; buckets], mask: buckets - 1, seeds: seeds.map(|seed| seed | 1), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The keyed hash of `key`.
    #[inline]
    pub(super) fn hash(&self, key: &Packed) -> u32 {
        let [a, b, c, d] = self.seeds;
        let Packed { guest, peer, rest } = key;
        let h = mix(guest[0] ^ a, guest[1] ^ rest ^ b);
        let h = mix(h ^ peer[0] ^ c, peer[1] ^ d);
        // One product alone keeps ports or addresses in a row in a row, of whatever stride the seeds give: for some seeds they
        // would fill neighbouring buckets. So neither ports nor addresses enter the last one.
        mix(h, a.rotate_left(32) ^ d) as u32
    }

    /// The slot that `is` says yes to, of those with this hash.
    #[inline]
    pub(super) fn find(&self, hash: u32, is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, is).map(|at| slot_of(self.buckets[at]))
    }

    fn position(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut at = hash as usize & self.mask;
        // There is always an empty bucket.
        while self.buckets[at] != 0 {
            let bucket = self.buckets[at];
            if hash_of(bucket) == hash && is(slot_of(bucket)) {
                return Some(at);
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// Takes in a slot. The caller keeps to the limit.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        let mut at = hash as usize & self.mask;
        while self.buckets[at] != 0 {
            at = (at + 1) & self.mask;
        }
        self.buckets[at] = u64::from(hash) << 32 | u64::from(slot + 1);
        self.len += 1;
    }

    /// Takes out a slot.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mut hole) = self.position(hash, |s| s == slot) else { return };
        self.len -= 1;
        // What stands behind the hole and would not be found across it moves into it.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let bucket = self.buckets[at];
            if bucket == 0 {
                break;
            }
            let home = hash_of(bucket) as usize & self.mask;
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                self.buckets[hole] = bucket;
                hole = at;
            }
        }
        self.buckets[hole] = 0;
    }

    /// Of each entry, how many buckets its search looks at.
    #[cfg(test)]
    pub(super) fn search_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let entries = self.buckets.iter().enumerate().filter(|(_, bucket)| **bucket != 0);
        entries.map(|(at, bucket)| (at.wrapping_sub(hash_of(*bucket) as usize) & self.mask) + 1)
    }
}

fn hash_of(bucket: Bucket) -> u32 {
    (bucket >> 32) as u32
}

fn slot_of(bucket: Bucket) -> u32 {
    (bucket as u32).wrapping_sub(1)
}

/// Both halves of the product, one upon the other: every bit of the result depends on all bits of both.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
