//! Which worker has a flow.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::PoisonError;

use super::sync::{Mutex, MutexGuard};
use crate::flow::Key;

/// Parts with a lock each: enough that two workers seldom want the same one.
const SHARDS: usize = 64;

/// The owners of all flows.
///
/// Keys are kept as 64-bit fingerprints by a secret hash: 16 bytes a flow instead of 80. Should two flows of
/// one guest ever have the same one (a chance of 2⁻³⁷ with 16,384 flows), the second is refused.
///
/// A directory of a single worker keeps nothing and takes no lock.
#[derive(Debug)]
pub struct Directory {
    secret: RandomState,
    /// Empty where there is only one worker.
    shards: Vec<Mutex<Shard>>,
}

type Shard = HashMap<u64, u8, BuildHasherDefault<Fingerprint>>;

/// A fingerprint is a hash already.
#[derive(Debug, Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl Directory {
    /// An empty directory; `several`: of more than one worker.
    pub fn new(several: bool) -> Directory {
        let shards = if several { SHARDS } else { 0 };
        Directory { secret: RandomState::new(), shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, key: &Key) -> Option<(MutexGuard<'_, Shard>, u64)> {
        if self.shards.is_empty() {
            return None;
        }
        let fingerprint = self.secret.hash_one(key);
        // The table in the shard uses the top and the bottom bits.
        let shard = self.shards.get((fingerprint >> 32) as usize % SHARDS)?;
        Some((shard.lock().unwrap_or_else(PoisonError::into_inner), fingerprint))
    }

    /// Makes `pair` the owner of a flow that has none.
    ///
    /// # Errors
    /// The worker that owns it, if one does.
    pub fn claim(&self, key: &Key, pair: usize) -> Result<(), usize> {
        let Some((mut shard, fingerprint)) = self.shard(key) else { return Ok(()) };
        match shard.entry(fingerprint) {
            Entry::Occupied(e) => Err(usize::from(*e.get())),
            Entry::Vacant(e) => {
                e.insert(pair as u8);
                Ok(())
            }
        }
    }

    /// The pair that owns a flow. The owner may have changed before the caller has read the answer.
    pub fn owner(&self, key: &Key) -> Option<usize> {
        let (shard, fingerprint) = self.shard(key)?;
        shard.get(&fingerprint).map(|pair| usize::from(*pair))
    }

    /// Gives a flow of the caller to `pair`. To be called before the flow is sent there.
    pub fn hand_over(&self, key: &Key, pair: usize) {
        if let Some((mut shard, fingerprint)) = self.shard(key) {
            shard.insert(fingerprint, pair as u8);
        }
    }

    /// Forgets a flow of the caller.
    pub fn release(&self, key: &Key) {
        if let Some((mut shard, fingerprint)) = self.shard(key) {
            shard.remove(&fingerprint);
        }
    }
}
