//! TCP connections that move to another machine, by TCP_REPAIR.
//!
//! # Theory of operation
//!
//! The kernel lets a socket be taken apart and put together again: sequence numbers, both queues, the options agreed on,
//! windows and clock. Only the mode itself takes a privilege, so the node's helper turns it on and off
//! ([`podvirt_proto::repair`]) and everything else is done here.
//!
//! ```text
//!  source                                             target
//!  helper: drop-all filter, then repair on            socket; helper: repair on
//!  windows; the peer's is closed from then on         sequence numbers, bind, connect (no packet), options, clock
//!  options, clock, queues, how much was never sent    received bytes, sent bytes, windows
//!                                      ── record ──>  … until the guest runs …
//!  … stands still until the address has moved …       helper: conntrack entry, repair off (a window probe)
//!                                                     the bytes that were never sent, as ordinary data
//! ```
//!
//! Three traps have their cures in that order. A socket in repair mode still receives and acknowledges: the filter comes
//! first. Queued bytes may still leave after the mode was turned on, and a restored socket that takes bytes for unsent
//! which the peer has hangs: before they are counted, the kernel is told that the peer's window is closed. The first
//! packet of a connection that the pod accepted looks like a new one to connection tracking: the entry is made before the
//! mode ends.
//!
//! A socket that is closed in repair mode says nothing to its peer: neither side can end a connection that the other has.

mod classify;
mod client;
mod connection;
mod restored;
#[cfg(test)]
mod tests;

pub(crate) use crate::sys::repair::Window;
pub(crate) use classify::{Local, Verdict, classify, sockets_of_namespace};
pub use client::Helper;
pub(crate) use client::Outcome;
pub(crate) use connection::{Apart, Connection, QUEUE, Room};
pub(crate) use restored::{Finished, Restored};

/// Sockets in one message to the helper: so many that a message more costs nothing, so few that the work after it begins
/// soon, and that neither side runs out of descriptors.
pub(crate) const BATCH: usize = 128;
