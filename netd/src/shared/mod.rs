//! What the workers of one netd have in common, and nothing else of theirs is reached by two threads.
//!
//! # Theory of operation
//!
//! Each queue pair has a worker of its own with its own flow table (ADR 0006). Five things belong to all of them:
//!
//! | what | written | read |
//! |---|---|---|
//! | [`Directory`]: which worker has a flow | when a flow opens, ends or moves | when a frame belongs to no flow of its worker |
//! | [`Budget`]: how many flows the guest may have | when a flow opens or ends | when a flow opens |
//! | [`Running`]: which pairs can receive | when a ring starts or stops | when the pod opens a flow, when flows move |
//! | [`Backlog`]: what waits in a worker's mailbox | once a batch of passed frames | with it |
//! | clock and keys | never | at will |
//!
//! Whatever else one thread has for another goes through its [`Mailbox`].
//! A packet of a flow that its worker has touches none of them. With one pair the directory is not used at all.
//!
//! # Orders that matter
//!
//! The directory is a hint with one promise: of two workers that claim one flow, one succeeds. It is changed
//! *before* a moving flow is put into the new owner's mailbox; the new owner, asked for the flow before it has
//! come, knows by the directory that it will come. Nothing else relies on an order between these values, so each
//! is as relaxed as its own promise allows. The models of `tests/loom` try all orders of these files' operations.

mod backlog;
mod budget;
mod directory;
mod mailbox;
mod running;
mod sync;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

pub use backlog::Backlog;
pub use budget::{Budget, Side};
pub use directory::Directory;
pub use mailbox::{Inbox, Mailbox, mailbox};
pub use running::Running;

use crate::flow::Key;
use crate::limits::Limits;
use crate::time::{Clock, Time};

/// Bytes of passed frames that may wait in one worker's mailbox: what a few connections have in flight.
const BACKLOG_BYTES: usize = 4 << 20;

/// What all workers have in common.
#[derive(Debug)]
pub struct Shared {
    /// The one clock: a flow that moves takes its deadlines along.
    pub clock: Clock,
    /// Which worker has a flow.
    pub directory: Directory,
    /// How many flows there may be.
    pub budget: Budget,
    /// Which pairs can receive.
    pub running: Running,
    /// What waits for each worker.
    pub backlogs: Vec<Backlog>,
    keys: RandomState,
}

impl Shared {
    /// What `pairs` workers share at the start.
    pub fn new(pairs: usize, limits: &Limits, clock: Clock) -> Shared {
        let now = clock.now();
        Shared {
            clock,
            directory: Directory::new(pairs > 1),
            budget: Budget::new(limits, now),
            running: Running::default(),
            backlogs: (0..pairs).map(|_| Backlog::new(BACKLOG_BYTES)).collect(),
            keys: RandomState::new(),
        }
    }

    /// An initial sequence number: a keyed hash of the tuple plus a clock of 4 microseconds (RFC 9293 3.4.1).
    pub fn initial_sequence(&self, key: &Key, now: Time) -> u32 {
        (self.keys.hash_one(key) as u32).wrapping_add((now.as_micros() / 4) as u32)
    }

    /// The pair that shall have a flow which no worker has so far, among the pairs that run.
    pub fn assign(&self, key: &Key) -> Option<usize> {
        // Not the half that initial sequence numbers show.
        self.running.pick((self.keys.hash_one(key) >> 32) as u32)
    }
}
