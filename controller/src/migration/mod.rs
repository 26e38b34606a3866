//! VirtualMachineInstanceMigrations: from the request to a machine on another node.
//!
//! ```text
//!  ""  ─> Pending ─> Scheduling ─> Scheduled ─> PreparingTarget ─> TargetReady ─> Running ─> Succeeded | Failed
//!           │ its turn  │ compute     │ handed      │ target's        │ source's     │ the nodes say
//!           │ comes,    │ runs on     │ to the      │ handler         │ handler      │ how it ended
//!           │ pod made  │ a node      │ nodes       │ listens         │ started      │
//! ```
//!
//! Up to `Scheduled` everything is the controller's: nothing but an extra pod exists, and any trouble ends the
//! migration without the machine noticing. The **hand-over** is one write of the machine: the label with the target's
//! node and a new `status.migrationState`. From then on the phases only repeat what the two virt-handlers write there,
//! and the controller writes the machine in four cases: an abort is asked for; the target pod is lost; no virt-handler prepares
//! the target in time; a machine that moved has left the node it was to leave. Each write carries the resource version
//! that was seen, so a start by the source's handler and an end by the controller exclude each other.
//!
//! **Turns.** [`queue`] lets waiting migrations start, the most urgent and oldest first, while fewer than
//! `parallelMigrationsPerCluster` run in all and `parallelOutboundMigrationsPerNode` from the machine's node. Every
//! reconciliation finds the same in the same queue; what was let start and is not in the cache yet is remembered.
//!
//! **One target pod.** Its name follows from the migration's UID, so it cannot be made twice. It is this controller's
//! until the machine runs in it, and is deleted when the migration fails. The finalizer keeps the migration until
//! then.
//!
//! **Memory.** Five ended migrations of a machine are kept; those of a machine that is gone are deleted.
//!
//! **Shape.** [`decide()`] is a pure function of what is seen; [`controller`] fetches and carries out.

mod act;
pub mod admit;
mod blocked;
mod claims;
pub mod controller;
pub mod decide;
mod handed_over;
mod host_model;
mod images;
mod kept;
pub mod others;
mod policy;
mod queue;
#[cfg(test)]
mod shell_tests;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use blocked::is_held_up;
pub use controller::{Context, run};
pub use decide::{Action, Decision, Observed, decide};
pub use kept::Claims;
