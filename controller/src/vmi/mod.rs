//! VirtualMachineInstances and their launcher pods.
//!
//! ```text
//!  ""  ──> Pending ──────> Scheduling ──────> Scheduled ──> Running ──> Succeeded | Failed
//!            │  claims there,  │  compute runs    │ └────── virt-handler's ──────┘
//!            │  pod made       │  on a node       │
//!            │                 └──────────────────┴─── pod ended or gone ────────> Failed
//!            └── claim missing, pod refused, image missing, no node: waits, and a condition says why
//! ```
//!
//! One launcher pod is made for a machine in its whole life. It is never made again: a pod that is lost takes
//! the machine with it, and it is for the owner of the machine to make another. From `Scheduled` on the phase
//! is virt-handler's, which knows the guest; the controller ends a machine only where the handler cannot: the
//! pod is gone, or it ended and the handler has not said how for [`HANDOVER_GRACE`].
//!
//! **One pod.** The pod's name follows from the machine's UID, so of two controllers that make it, by whatever
//! accident, the API server refuses one. Expectations only spare the requests that a cache that lags would
//! cause. Only pods whose controlling owner is, or was, this very machine (by UID) are looked at. That there is no pod
//! ends a machine only when the API server has none of that name: the watch shows pods with the launcher's label.
//!
//! **Migrations.** A machine that migrates has a second pod, which the controller of migrations makes and, when it
//! fails, deletes. The machine's own pod is the one that its status names: the source until `status.nodeName` is the
//! target's. From then on the source is one pod too many, and goes.
//!
//! **Deletion.** The finalizer keeps the machine until no launcher pod is left: what runs is always visible. And how it
//! ended is: where a guest has run, the final phase is seen before the machine goes, see [`ends`].
//!
//! **Shape.** [`decide()`] is a pure function of what is seen; [`controller`] fetches and carries out. The status
//! is written first, with the resource version that was seen. A decision from an old copy of the machine is
//! refused there, before it does anything.

mod act;
mod backup_hooks;
pub mod claims;
pub mod controller;
mod create;
pub mod data;
pub mod decide;
pub mod ends;
mod follow;
pub(crate) mod hotplug;
pub mod migratable;
mod nics;
pub(crate) mod observe;
pub mod pods;
#[cfg(test)]
mod shell_tests;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub mod view;

pub use controller::{Context, run};
pub use decide::{Action, Decision, HANDOVER_GRACE, Note, Observed, decide};
pub use view::{Change, View};
