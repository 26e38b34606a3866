//! VirtualMachineRestores: a VirtualMachine as one of its snapshots has it, in its own place or as a new one.
//!
//! ```text
//!  Begin ── Adopt (finalizer, owner) ── is the target off? ── is the snapshot ready? ── Hold (status.restoreInProgress)
//!    ── Note (status.restores) ── Claims, from VolumeSnapshots ── Mark (for DataVolumes) ── DataVolumes ── Machine ── Settle
//! ```
//!
//! Each pass of [`decide()`] finds the next of these from what is there, and the shell does it; what an earlier pass, or a
//! virt-controller that is gone, has done is found and not done again. Names follow from the restore's UID, or from
//! `volumeRestorePolicy`; a claim, and the machine at last, bear the restore in an annotation.
//!
//! **The target** has to be off. `targetReadinessPolicy` says what becomes of a restore whose target runs: it waits for 5 minutes
//! and fails (the default), waits for ever, fails at once, or stops the machine. From Hold to Settle the machine is not
//! started, by neither a user nor its run strategy. A machine that exists and is not what the snapshot is of is never written
//! over.
//!
//! **Claims** are made beside those of the machine, which stay, but for the policy InPlace, by which each is deleted and made anew
//! under its own name. A claim of the name that something else has made is never taken. A storage class that waits for a pod
//! leaves the claim to the machine's next start.
//!
//! **Machine** is the one write that turns the target over: it has the stored specification with the new claims, and the restore's
//! annotation. What comes after it only tidies up: owners of claims, DataVolumes and revisions, DataVolumes that the machine
//! names no more.
//!
//! **Failures** are told in the conditions Progressing and Ready and by an event, and tried again, later each time. Only a target
//! that was not off in time is final (condition Failure).

mod act;
mod claim;
mod controller;
mod decide;
mod machine;
pub(crate) mod names;
mod queue;
mod settle;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;

pub(crate) use claim::of_backup;
pub use controller::{Context, run};
pub(crate) use decide::is_kept;
pub use decide::{Next, Observed, decide};
pub use queue::cache;
