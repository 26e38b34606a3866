//! Bodies of the fuzz targets: what the guest, the frontend, a client or an operator can send, as bytes.
//!
//! Each function of this module takes any bytes, lets one part of netd work on them, and panics when that part breaks
//! its contract; most hold the result against a model. They are built for tests and by the feature `fuzzing`, never
//! into the program. The package `podvirt-fuzz` runs them under libFuzzer (`make fuzz`), the tests here run every
//! input of its corpus, and every input that ever failed, under its own name. `docs/development.md` has the rest.
//!
//! Inputs are read by [`Bytes`], which answers zero when they have ended: whatever is cut off an input, it stays one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a target says by panicking what went wrong")]

mod arrival;
mod bytes;
mod config;
mod control;
mod dhcp;
mod fragments;
mod frames;
mod icmp;
mod link;
mod neighbours;
mod parcel;
mod ring;
mod state;
mod tcp;
#[cfg(test)]
mod tests;
mod vhost;

pub use arrival::arrival;
use bytes::Bytes;
pub use config::config;
pub use control::control;
pub use dhcp::{dhcp4, dhcp6};
pub use fragments::fragments;
pub use frames::{frames, nowhere};
pub use icmp::icmp;
pub use neighbours::neighbours;
pub use parcel::parcel;
pub use ring::ring;
pub use state::state;
pub use tcp::tcp;
pub use vhost::vhost;
