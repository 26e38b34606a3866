//! The worker: one thread that owns the rings, the flows and their sockets.
//!
//! # Theory of operation
//!
//! A turn of the loop starts when epoll says that something happened, and ends when everything that can be
//! done without waiting is done:
//!
//! 1. events only set marks: a flow has data, a flow's socket takes data again, the guest kicked;
//! 2. commands of the mailbox are carried out (rings come and go, status is asked for);
//! 3. deadlines that have passed are handed to their flows;
//! 4. the transmit ring is drained in batches: frames are parsed in place, payloads are gathered per flow, one
//!    sendmsg or sendmmsg per flow carries them, then the chains are given back and the guest gets one
//!    acknowledgement per connection;
//! 5. flows with data fill the receive ring in turn, a bounded number of bytes each;
//! 6. each ring is published once and the guest interrupted once.
//!
//! Kicks are suppressed while the loop runs and asked for before it sleeps; the kick descriptors are
//! edge-triggered and never read. If the receive ring has no buffer left, data waits in the sockets, and the
//! flows that have some wait in `Worker::ready` for the guest's next kick on that ring.
//!
//! Nothing here is shared: other threads reach the worker by [`Handle`], whose calls go through a mailbox and
//! an eventfd. Errors of one flow end that flow. A ring that the driver broke is disabled and reported by
//! VRING_ERR; the flows and the other ring stay.

mod command;
mod connect;
mod datagrams;
mod deliver;
mod echo;
mod gather;
mod handle;
mod listen;
mod payload;
mod port;
mod requests;
mod slow;
mod sockets;
mod stream;
mod transmit;
mod turn;

use std::io;
use std::sync::Arc;
use std::thread;

pub use handle::Handle;
pub use sockets::SteeredSockets;

use crate::config::{Limits, Timeouts};
use crate::counters::Counters;
use crate::ctl::PortRule;
use crate::net::Link;

/// What a worker needs to start.
#[derive(Debug)]
pub struct Settings {
    /// Limits of the flow table and of reassembly.
    pub limits: Limits,
    /// When flows end.
    pub timeouts: Timeouts,
    /// First snapshot of the link.
    pub link: Arc<Link>,
    /// Ports to open.
    pub ports: Vec<PortRule>,
    /// Counters to write to.
    pub counters: Arc<Counters>,
}

/// Starts a worker on a thread of its own and opens the listeners.
///
/// # Errors
/// When epoll, an eventfd or the thread cannot be made. A port that cannot be opened is no error: see
/// [`crate::ctl::Control::ports`].
pub fn spawn(settings: Settings) -> io::Result<Handle> {
    let (mailbox, inbox) = command::mailbox()?;
    let counters = settings.counters.clone();
    let mut worker = turn::Worker::new(settings, inbox)?;
    let thread = thread::Builder::new().name("netd-worker".into()).spawn(move || worker.run())?;
    Ok(Handle::new(mailbox, counters, thread))
}
