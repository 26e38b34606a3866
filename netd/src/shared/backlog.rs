//! How much waits in a mailbox.

use super::sync::{AtomicUsize, Relaxed};

/// Bytes that were passed to a worker and that it has not looked at, with a bound.
///
/// The mailbox itself orders what is sent; this number alone needs no order.
#[derive(Debug)]
pub struct Backlog {
    bytes: AtomicUsize,
    limit: usize,
}

impl Backlog {
    /// An empty one that takes up to `limit` bytes.
    pub fn new(limit: usize) -> Backlog {
        Backlog { bytes: AtomicUsize::new(0), limit }
    }

    /// Whether `bytes` more would be taken now. A guess: others may be faster.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes.load(Relaxed).saturating_add(bytes) <= self.limit
    }

    /// Adds what is about to be sent; false, and nothing added, when that would be too much.
    pub fn add(&self, bytes: usize) -> bool {
        let within = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.bytes.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    /// Takes off what was looked at.
    pub fn done(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}
