//! VirtualMachineClones: a new VirtualMachine that is what another one is, or was when a snapshot of it was taken.
//!
//! ```text
//!                      ┌── source: a machine ── snapshot made ──┐
//!  "" ─────────────────┤                                        ├── SnapshotInProgress ── it is ready ──> RestoreInProgress
//!                      └── source: a snapshot ─────────────────-┘
//!  RestoreInProgress ── restore made, with patches ── it is complete ──> CreatingTargetVM ── the machine is there ──> Succeeded
//!  Succeeded ── the claims are bound: the restore, and the snapshot that was made, are deleted
//! ```
//!
//! The clone does nothing to disks itself: a snapshot and a restore that it owns do, under names that follow from its UID. What
//! is to be otherwise in the new machine (addresses, serial number, UUID, filtered labels and annotations, the user's patches)
//! goes into the restore as JSON patches ([`patches`]).
//!
//! A source that is not there, or has a volume of which no snapshot can be taken, is waited for. A snapshot that lacks a volume, or
//! has failed or gone, and a restore that has failed, end the clone: Failed. A clone that has succeeded goes with its machine.
//!
//! [`decide()`] is a pure function of what is there; the shell is [`controller`].

mod controller;
mod decide;
mod make;
mod patches;
#[cfg(test)]
mod tests;

pub use controller::{Context, run};
pub use decide::{Action, Observed, Plan, decide};
