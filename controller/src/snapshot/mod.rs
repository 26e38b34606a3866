//! VirtualMachineSnapshots: what a VirtualMachine is, and what its claims hold, at one moment.
//!
//! ```text
//!  VirtualMachineSnapshot ── holds its source ──> VirtualMachine   status.snapshotInProgress and a finalizer
//!        │                                             │
//!        └── VirtualMachineSnapshotContent <── its specification, and each claim's
//!                  │
//!                  └── VolumeSnapshot of each claim ── the CSI driver
//! ```
//!
//! **A snapshot** ([`decide()`]): the source is held first, so that it neither goes nor changes its volumes. A source whose claims
//! are missing, not filled, or used by other pods while the machine is off, is waited for, and so is a cluster without
//! VolumeSnapshots. Then the content is made. Once the content has its time, the snapshot has succeeded and lets go of its
//! source; it is ready to use when the drivers say so of every VolumeSnapshot. Volumes without a VolumeSnapshotClass are left
//! out, and told in `status.snapshotVolumes`.
//!
//! **A content** ([`content::decide()`]): the VolumeSnapshots are taken together.
//!
//! ```text
//!  nothing taken ── freeze (a guest with an agent that is not paused) ── all VolumeSnapshots made ──> waits
//!  waits ── each has its time ── thaw ──> status.creationTime ── each is ready ──> status.readyToUse
//!    any refused: thaw, delete what was made, tell, again after 5 s       snapshot ends: thaw, finalizer away
//! ```
//!
//! The guest's freeze has the snapshot's own time limit, so that it ends though no virt-controller should be there to end it.
//!
//! **Failures.** A snapshot that is not taken within `failureDeadline` has failed: the guest is thawed, the content is deleted as it
//! is not ready, the source is let go. An error on the way is told in `status.error` and in the condition Progressing, and tried
//! again. `deletionPolicy: Retain` keeps a content that is ready; without its snapshot nothing more becomes of it than that
//! VolumeSnapshots that went are told.
//!
//! **Not twice, not lost.** Every name follows from the snapshot's UID: what an earlier pass, or a virt-controller that is gone,
//! has made is found. The first three states are pure functions of what is there; the shells are [`controller`] and [`contents`].

mod agent;
mod content;
mod contents;
mod controller;
mod decide;
#[cfg(test)]
mod shell_tests;
mod source;
mod status;
mod stored;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use agent::{path, put, stop};
pub use controller::{Context, run};
pub use decide::{Action, Observed, Plan, decide};
pub use source::Source;
pub(crate) use source::is_filled;
pub(crate) use stored::copy_revision;
pub use view::{Snapshots, Writers};
