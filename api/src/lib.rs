//! podvirt's API: the `kubevirt.io/v1` types that podvirt carries out, how they are read, defaulted and judged.
//!
//! The way of a manifest is
//!
//! ```text
//! YAML or JSON ── parse ──> checked against the field table ── serde ──> VirtualMachineInstance
//!                               │                                              │
//!                               └── unknown, unsupported, wrong type           ├── set_defaults
//!                                   (all of them, with their full paths)       └── validate (all problems)
//! ```
//!
//! [`fields`] is the one table that says for every field of the upstream type whether podvirt carries it out.
//! A manifest that asks for something podvirt does not do is refused, never silently weakened: the path and the
//! reason stand in a [`Problem`], which has the form of the API server's `StatusCause`.
//!
//! Everything here is a pure function of its input. The types in [`vmi`] hold only fields that are carried
//! out; their names and nesting are upstream's, so that a larger set can grow in place.

#![forbid(unsafe_code)]

#[macro_use]
mod object;

pub mod admission;
pub mod attachment;
pub mod backup;
pub mod bridge;
pub mod budget;
pub mod cdi;
pub mod csi;
pub mod defaults;
pub mod delay;
pub mod duration;
pub mod error;
pub mod export;
pub mod fields;
pub mod gates;
pub mod guest_network;
pub mod hooks;
pub mod instancetype;
pub mod ip;
pub mod kernel;
pub mod kvm;
pub mod mac;
pub mod memory_dump;
pub mod mesh;
pub mod meta;
pub mod migration;
pub mod model;
pub mod names;
pub mod netd;
mod parse;
pub mod patch;
pub mod plugin;
pub mod policy;
pub mod problem;
pub mod quantity;
pub mod resources;
pub mod rotation;
pub mod selector;
pub mod snapshot;
pub mod state;
pub mod storage;
pub mod v1;
pub mod validate;
pub mod verbosity;
pub mod vmi;
pub mod vmi_info;

pub use mac::MacAddr;
pub use meta::ObjectMeta;
pub use parse::ParseError;
pub use problem::{Problem, Problems, Reason};
pub use quantity::Quantity;
pub use vmi::VirtualMachineInstance;

/// API group and version of the types in this crate.
pub const API_VERSION: &str = "kubevirt.io/v1";
