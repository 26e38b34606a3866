//! The harness of the end-to-end tests.
//!
//! A test is a pod without Kubernetes: [`Net`] makes its network, [`Pod`] runs its containers by the script
//! `e2e/sandbox` (the confinement of a restricted pod), [`Backend`] starts the network backend under test or its
//! oracle, and [`Guest`] boots a Linux on it, under QEMU or as User Mode Linux. The guest is driven by its serial
//! [`Console`]; the peer is the test itself, whose sockets are made inside the client's network namespace with
//! [`Netns::enter`].
//!
//! Tests of the whole system run on a real Kubernetes, the [`cluster`] of two nodes.
//!
//! Everything ends when its value is dropped, and with `e2e/jail` around the test runner everything ends when the
//! runner does, however it ends. What a failed test's processes printed goes to the test's output.

pub mod artefacts;
mod backend;
mod bed;
pub mod cluster;
mod guest;
pub mod log_line;
#[cfg(test)]
mod matrix;
mod net;
mod netctl;
pub mod peer;
mod pod;
mod privilege;
mod process;
mod qmp;
mod traffic;
mod update;

pub use backend::{Backend, BackendOptions, RunningBackend};
pub use bed::{Bed, Family, PEER, PORT};
pub use guest::{Boot, Guest, Vhost, uml_command, uml_container};
pub use net::{Net, NetOptions, Netns};
pub use netctl::Netctl;
pub use pod::{Pod, Sandbox};
pub use podvirt_bed_tools::wait::until;
pub use podvirt_bed_tools::{Console, Output};
pub use privilege::Privilege;
pub use process::Process;
pub use qmp::Qmp;
pub use update::{Bulk, Idle};
