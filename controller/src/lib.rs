//! virt-controller: what keeps the cluster's objects as their specifications say.
//!
//! | module | keeps |
//! |---|---|
//! | [`work`] | all of these together, over one watch of each kind |
//! | [`vm`] | VirtualMachines: starts and stops their instances |
//! | [`vmi`] | VirtualMachineInstances and their launcher pods |
//! | [`migration`] | VirtualMachineInstanceMigrations: target pods, phases, limits |
//! | [`drain`] | machines that are to leave their node, and the budgets that protect them |
//! | [`node`] | nodes that fall silent, and the machines on them |
//! | [`replicaset`] | replica sets, and the machines that they make |
//! | [`pool`] | pools, and the VirtualMachines that they make |
//! | [`data`] | DataVolumes that machines name |
//! | [`snapshot`] | snapshots of VirtualMachines and their contents |
//! | [`restore`] | VirtualMachines that return to a snapshot |
//! | [`clone`] | VirtualMachines that become what others are |
//! | [`backup`] | copies of running machines' disks, and from where on the next ones copy |
//! | [`export`] | disks of machines, served for download |
//! | [`storage`] | claims, and how snapshots of them are taken |
//! | [`template`] | the launcher pod of a machine, as a pure function |
//! | [`settings`] | the cluster's configuration |
//! | [`watch`] | watches that do not end at an unreadable object |
//! | [`metrics`] | counters |
//! | [`objects`] | series of what the caches hold |

#![forbid(unsafe_code)]

mod attachments;
pub mod attempt;
pub mod backup;
mod claim;
pub mod clone;
pub mod data;
pub mod drain;
pub mod expectations;
pub mod export;
mod failure;
mod index;
pub mod kept;
pub mod limits;
pub mod metrics;
pub mod migration;
pub mod node;
pub mod objects;
pub mod pool;
pub mod replicaset;
pub mod restore;
pub mod settings;
pub mod snapshot;
pub mod storage;
pub mod template;
pub mod vm;
pub mod vmi;
pub mod watch;
pub mod work;
