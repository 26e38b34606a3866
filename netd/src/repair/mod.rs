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
//!  PAUSE: what was on its way out is out              sequence numbers, bind, connect (no packet), options, clock
//!  options, windows, clock, queues                    received bytes, sent bytes, windows
//!  how much was never sent, once more  ── record ──>  … until the guest runs …
//!  … stands still until the address has moved …       helper: conntrack entry, repair off (a window probe)
//!                                                     the bytes that were never sent, as ordinary data
//! ```
//!
//! Three traps have their cures in that order. A socket in repair mode still receives and acknowledges: the filter comes
//! first. Queued bytes may still leave after the mode was turned on, and a restored socket that takes bytes for unsent
//! which the peer has hangs: hence the pause, and of two counts the smaller. The first packet of a connection that the pod
//! accepted looks like a new one to connection tracking: the entry is made before the mode ends.
//!
//! A socket that is closed in repair mode says nothing to its peer: neither side can end a connection that the other has.

mod classify;
mod client;
mod connection;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use classify::{Local, Verdict, classify, sockets_of_namespace};
pub use client::Helper;
pub(crate) use client::Outcome;
pub(crate) use connection::{Connection, Finished, QUEUE, Restored};

/// How long a frozen socket may still send what it had queued.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// Sockets in one message to the helper: so many that a message more costs nothing, so few that the work after it begins
/// soon, and that neither side runs out of descriptors.
pub(crate) const BATCH: usize = 128;
