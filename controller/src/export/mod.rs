//! VirtualMachineExports: disks and manifests of machines, served for download for a limited time; and backups that are read from an
//! endpoint ([`backup`]).
//!
//! ```text
//!  VirtualMachineExport ── source ──> claim | VirtualMachine | VirtualMachineSnapshot | VirtualMachineBackup
//!        │                                └── claims; of a snapshot, claims that are made of its VolumeSnapshots; of a backup, none
//!        ├── Service ──────────┐
//!        ├── Secret (token)    │
//!        ├── ConfigMap (what manifests are made of)
//!        └── exporter pod <────┘  mounts all of them, serves by HTTPS ── Secret (its certificate; the pod is its owner)
//! ```
//!
//! **A pass** ([`decide()`]): what the source is comes first ([`source::Seen`]): which claims it has, whether they are filled,
//! and whether they are in use.
//!
//! ```text
//!  not there, or not filled, or in use ── no pod; a pod that is there is deleted ──> Pending
//!  has nothing to export ──> Skipped
//!  available ── token, pod ── the pod waits for its certificate, which is made for it ── ready ──> Ready, with links
//!  pod has ended, or certificates live otherwise than when it was made ── deleted, made anew
//!  ttlExpirationTime reached ── the export is deleted, and all of the above with it
//! ```
//!
//! The pod ends by itself before its certificate does (`DEADLINE` in its environment), and is made anew with another one.
//!
//! **Not twice, not lost.** All names follow from the export's, but for the certificate's, which stands in the pod. What an
//! earlier pass has made, or a virt-controller that is gone, is found by them; an export that is gone takes what it owns along.

mod act;
mod authority;
mod backup;
#[cfg(test)]
mod backup_tests;
mod controller;
mod decide;
mod external;
mod manifest;
#[cfg(test)]
mod manifest_tests;
mod pod;
mod source;
mod status;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use act::{gone, make};
pub use backup::Offered;
pub use controller::{Context, run};
pub use decide::{Action, Observed, Plan, decide};
pub(crate) use view::Identity;
pub use view::{Exports, Writers};
