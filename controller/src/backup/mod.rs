//! VirtualMachineBackups and VirtualMachineBackupTrackers: copies of a running machine's disks on a claim, whole or what has changed
//! since the last one ([`podvirt_api::backup`]). In pull mode they are read from an endpoint instead ([`pull`]).
//!
//! # Theory of operation: a backup
//!
//! The phase of a backup is in its conditions; each pass takes one step.
//!
//! ```text
//!  phase         conditions                            step
//!  Initializing  Initializing=True Progressing=False   what is missing is waited for, and told
//!                                                      -> finalizer -> the target's claim in utilityVolumes -> the launcher has the
//!                                                      directory -> the instance is held: backupStatus {name, start} -> subresource: Start
//!        │
//!        v
//!  Running       Progressing=True Done=False, a type   includedVolumes as the instance tells them; a deleted backup: Abort, once
//!        │                                             the instance tells that it is complete -> the tracker gets the checkpoint
//!        v                                             -> the claim leaves the instance, and its status tells of it no more
//!  Ended         Progressing=False Done=False          the outcome is the reason of Progressing, and an event; backupStatus leaves
//!        │                                             the instance
//!        v
//!  Done          Progressing=False Done=True           a deleted backup loses its finalizer
//! ```
//!
//! **Not twice, not lost.** Ended is a phase of its own, so that the outcome is stored before what it was read from is removed.
//! The start time of a backup is its creation time: with the name it tells the backup from an earlier one of the same name. A
//! pass that has begun the backup and could not write so finds that the instance tells of volumes already.
//!
//! **One at a time.** The instance's `backupStatus` names the backup that holds it; a second backup of the machine waits. What a
//! backup has left that is not there any more is removed ([`orphan`]).
//!
//! **Migrations.** A machine that is held does not migrate, and one that migrates is not held. A machine that is to leave its node goes
//! first: a backup of it that runs is aborted, and one that has not begun takes its claim out of the instance and waits.
//!
//! **What fails.** A target that is a block device, and a mode that is neither Push nor Pull, end the backup; so does a deletion before it
//! runs, and an instance that goes, stops, or loses its `backupStatus` while the backup runs. A Start that virt-api or the
//! launcher refuses is told in the conditions and tried again, later each time.
//!
//! # Theory of operation: a tracker
//!
//! libvirt knows the checkpoint of a tracker from the backup that made it, until the machine's next libvirt. The annotation
//! [`DEFINED_FOR`](podvirt_api::names::annotation::DEFINED_FOR) says for which instance on which node it was defined last.
//!
//! ```text
//!  the machine's changes are not tracked             the checkpoint is removed, with an event
//!  the annotation names another instance or node     checkpointRedefinitionRequired: true
//!  ... and the instance runs, its disks with overlays   subresource redefine-checkpoint
//!        done                                        the annotation names the instance and its node, the flag goes
//!        refused: the bitmap is gone (422)           flag and checkpoint are removed, with an event; the next backup is full
//!        another error                               tried again, later each time
//! ```
//!
//! A machine that migrates is left alone until the migration has ended. A backup with a tracker waits while its checkpoint is to be
//! redefined.
//!
//! [`decide()`] and [`tracker::decide()`] are pure functions of what is there; the shells are [`controller`] and [`trackers`].

mod act;
mod controller;
mod decide;
#[cfg(test)]
mod fixtures;
mod instance;
mod orphan;
mod plan;
mod pull;
#[cfg(test)]
mod shell_tests;
mod status;
#[cfg(test)]
mod tests;
pub mod tracker;
#[cfg(test)]
mod tracker_tests;
mod trackers;

pub use controller::{Context, cache, run};
pub use decide::{Observed, decide};
pub use plan::{Action, Note, Plan};
