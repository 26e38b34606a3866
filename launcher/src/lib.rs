//! virt-launcher: runs one virtual machine in one pod, through libvirt.
//!
//! The way from a manifest to a machine, by module:
//!
//! ```text
//!   podvirt_api ──> standalone ──> media     disks, kernel, cloud-init
//!                       │    ├───> domain    manifest -> libvirt's XML (pure)
//!                       │    ├───> netd      manifest -> netd's configuration (pure)
//!                       │    └───> process   virtlogd, libvirtd, netd; duties of process 1
//!                       └──> life            state machine of the machine's life, and its runner
//!                              └──> hypervisor   libvirt behind a trait
//! ```
//!
//! In a pod [`pod`] stands in the place of `standalone`, and [`run_netd`] is the container beside it.
//! [`probe`] and [`virt_probe`] are run there by the kubelet, to ask the guest, and [`virt_freezer`] by tools that back volumes up.
//! What process 1 does for a service [`mesh`] comes last.
//! [`capabilities`] is run once on each node, ahead of virt-handler, and [`attach`] in a pod of its own, for volumes that are plugged
//! while a machine runs. libvirt starts QEMU by way of [`emulator`].

pub mod accelerator;
pub mod attach;
mod beneath;
pub mod capabilities;
pub mod cli;
pub mod console;
pub mod console_log;
pub mod domain;
pub mod downward;
pub mod emulator;
pub mod fdset;
pub mod hooks;
pub mod hypervisor;
pub mod life;
pub mod log;
pub mod media;
pub mod mesh;
pub mod netd;
pub mod pod;
pub mod probe;
pub mod process;
pub mod program;
pub mod run_netd;
pub mod rundir;
pub mod standalone;
pub mod virt_freezer;
pub mod virt_probe;
mod xml_tree;
