//! VirtualMachinePools: VirtualMachines from one template, each with a number in its name and a life of its own.
//!
//! ```text
//!  own VMs ──┬── one fails to start for long ──> delete it                  (autohealing)
//!            ├── fewer than spec.replicas ─────> make <pool>-<index>        (scale-out)
//!            ├── more ─────────────────────────> delete as the policy says  (scale-in)
//!            └── as many ──┬── a VM of an older template ──> write the template into it
//!                          ├── its instance is older ──────> delete that: the VM starts anew
//!                          └── nothing is left to change ──> delete revisions that nothing names
//! ```
//!
//! A pass does one of these stages; what it changes calls for the next pass. A VM that is being deleted counts until it is
//! gone: its name, and so its index, is free from then on, and the lowest free index is taken first.
//!
//! **Revisions.** The template that a VM or an instance was made from is told by the label
//! `kubevirt.io/vm-pool-revision-name`: the name of a ControllerRevision, `<pool>-<generation>`, which holds the pool's
//! specification of that generation. A VM is outdated when its revision has another template than the pool. An instance is
//! when its revision has another one than its VM's; one that has the same gets the newer label, and runs on.
//!
//! **Updates** go from the pool to its VMs at once. From a VM to its instance they go by a restart, as far as
//! `maxUnavailable` allows (`proactive`, the default); with the VM's next start (`opportunistic`); or nothing is updated at all
//! (`unmanaged`). A VM that is not ready is restarted beside that count: it has no clients.
//!
//! **Owners.** The VMs and the revisions belong to the pool, and the garbage collector deletes them after it. Unlike upstream's,
//! podvirt's pool puts no finalizer on itself and its VMs: it has no state of theirs to preserve.
//!
//! Everything else is as with replica sets ([`crate::replicaset`]): expectations, the look at the API server before something is
//! done, failures.

mod act;
mod choose;
pub mod controller;
pub mod decide;
mod heal;
mod machine;
pub mod revision;
#[cfg(test)]
mod shell_tests;
mod status;
#[cfg(test)]
mod tests;
mod update;

pub use controller::{Context, run};
pub use decide::{Action, Observed, Plan, Stage, decide};
