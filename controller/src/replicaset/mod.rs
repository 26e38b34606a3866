//! VirtualMachineInstanceReplicaSets: a number of machines from one template, each of which can stand in for another.
//!
//! ```text
//!  each pass:  what the selector finds ── adopt, release ──> own instances
//!              own instances ──┬── active    fewer than spec.replicas: make the rest; more: delete, the unready first
//!                              ├── finished  delete: an active one comes in its place
//!                              └── going     counts no more
//! ```
//!
//! An instance is *active* while it has not ended and is not being deleted, *finished* once it has ended, or its pod is
//! being deleted under it. Names are made by the API server from the template's name, or the replica set's.
//!
//! **Not twice.** What was asked for is noted until the cache shows it ([`crate::expectations`]); until then, the replica
//! set rests. Nothing is done by a replica set that the API server has otherwise by now. A pass makes or deletes [`BURST`]
//! instances at most.
//!
//! **Failures.** What the API server refuses is told by an event of the replica set and by its condition
//! `ReplicaFailure`, and tried again later each time. The condition goes with the first attempt that succeeds.
//!
//! **The end.** The instances belong to the replica set: the garbage collector deletes them after it, and leaves them as
//! orphans where the user asked for that. `paused` ends nothing and makes nothing.
//!
//! [`decide()`] is a pure function of what is seen, [`status()`] of it and of how the attempt went; [`controller`] fetches
//! and carries out.

mod act;
pub mod controller;
pub mod decide;
#[cfg(test)]
mod shell_tests;
mod status;
#[cfg(test)]
mod tests;

pub use controller::{Context, run};
pub use decide::{Action, BURST, Observed, Plan, decide};
pub use status::status;
