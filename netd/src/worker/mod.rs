//! The workers: each one thread that owns a pair of rings, flows and their sockets.
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
//! Kicks are suppressed while the loop runs and asked for before it sleeps, not before it naps (see `pace`) nor while it
//! spins (see `spin`); the kick descriptors are edge-triggered and never read. If the receive ring has no buffer left, data waits in the sockets, and the
//! flows that have some wait in `receive::Queues` for the guest's next kick on that ring.
//!
//! There is a worker for each queue pair that may be had, whether the guest uses it or not. A worker's variables
//! are its own: other threads, other workers among them, reach it by a mailbox and an eventfd, and [`Handle`] makes
//! one of them all. What they have in common stands in [`crate::shared`]; how frames and flows go from one to
//! another, in [`peers`]. Worker 0 also has the listeners and the link's services.
//!
//! # Parts
//!
//! A worker's variables stand in parts, each with the files that may touch what is private to it:
//!
//! | part | what it is | where |
//! |---|---|---|
//! | `tx` | the transmit ring and its present batch | `transmit` |
//! | `receiveq`, `queues`, `in_hand` | the receive ring, what has something for it, and what was received for it already | `receive` |
//! | `listening`, `carriers` | listeners, whether they are silent, and the sockets that they share with flows | `listening` |
//! | `flows`, `over`, `hold_budget`, `echoes` | the flows and what they share | `flows`, `stream`, `datagrams`, `echo`, `connect`, `evict` |
//! | `guest`, `slow` | what is known of the guest, its services, fragments and errors | `guest`, `slow` |
//! | `peers` | the other workers | `peers` |
//! | `met` | the flows that the latest turns had something of | `spin` |
//! | in `tx` and `receiveq` | headers of drivers that know the legacy interface alone | `legacy` |
//! | `refusals` | what the log and clients were told of flows that were refused | `refusals` |
//! | `life` | whether the worker runs, stands still or ends | `life`, `freeze`, `requests` |
//!
//! Errors of one flow end that flow. A ring that the driver broke is disabled and reported by VRING_ERR; the flows
//! and the other rings stay.

mod command;
mod connect;
mod datagrams;
mod echo;
mod evict;
mod flows;
mod freeze;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod guest;
mod handle;
mod held;
mod legacy;
mod life;
mod listening;
mod pace;
mod parked;
mod peers;
mod receive;
mod refusals;
mod requests;
mod room;
mod slow;
mod source_ports;
mod spin;
mod stream;
mod transmit;
mod turn;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use handle::Handle;
use tokio::sync::watch;

use crate::config::ports::Ports;
use crate::control::RefusedFlows;
use crate::counters::Counters;
use crate::limits::{Limits, MAX_QUEUE_PAIRS, Timeouts};
use crate::net::Link;
use crate::port::PortRule;
use crate::shared::Shared;
use crate::sockets;
use crate::state::{self, Descriptors, InheritError};
use crate::time::{Clock, Time};

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
    /// What the configuration says of all ports: those that are reserved are not bound for the guest's datagrams either.
    pub port_spec: Ports,
    /// Whether the guest is asked on which of them it listens, as far as they are TCP; the others are refused.
    pub ask_guest: bool,
    /// Counters of worker 0, which others may write to as well; the other workers have their own.
    pub counters: Arc<Counters>,
    /// Queue pairs, and so workers: at least 1, at most [`MAX_QUEUE_PAIRS`].
    pub pairs: usize,
    /// Whether the kernel keeps offsets of peeks where it can (SO_PEEK_OFF); false: netd does as where it cannot.
    pub peek_offset: bool,
    /// Whether workers may look for what comes next before they sleep.
    pub spins: bool,
    /// What another netd's workers had: these go on with it once they are thawed.
    pub inherited: Option<Inherited>,
}

/// What the workers of another netd had when they stood still.
#[derive(Debug)]
pub struct Inherited {
    /// By their queue pair.
    pub workers: Vec<state::Worker>,
    /// How long ago that was.
    pub ago: Duration,
    /// Where their sockets are.
    pub fds: Descriptors,
}

impl Inherited {
    /// The clock that goes on where theirs stood.
    fn clock(&self) -> Clock {
        let then = self.workers.first().map_or(Time::ZERO, |w| w.state.now);
        Clock::resume(then + self.ago)
    }
}

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// epoll, an eventfd or the thread cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What was inherited cannot be gone on with.
    #[error(transparent)]
    Inherit(#[from] InheritError),
}

/// Starts the workers, each on a thread of its own, and opens the listeners.
///
/// # Errors
/// [`SpawnError`]. A port that cannot be opened is no error: see
/// [`crate::control::Control::ports`].
pub fn spawn(settings: Settings) -> Result<Handle, SpawnError> {
    let Settings {
        limits,
        timeouts,
        link,
        ports,
        port_spec,
        ask_guest,
        counters,
        pairs,
        peek_offset,
        spins,
        inherited,
    } = settings;
    let pairs = pairs.clamp(1, MAX_QUEUE_PAIRS);
    let (mailboxes, inboxes): (Vec<_>, Vec<_>) =
        (0..pairs).map(|_| command::mailbox()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let mailboxes: Arc<[_]> = mailboxes.into();
    // All have one clock, and an heir's goes on where it stood.
    let clock = inherited.as_ref().map_or_else(Clock::new, Inherited::clock);
    let source_ports = source_ports::SourcePorts::of_pod(&port_spec);
    let shared = Arc::new(Shared::new(pairs, &limits, clock));
    let peek = if peek_offset { sockets::PeekOffset::probe() } else { sockets::PeekOffset::NONE };
    let reserved = Arc::new(port_spec.reserved.clone());
    let carriers = Arc::new(listening::carriers::Carriers::new(port_spec));
    let refused = watch::Sender::new(RefusedFlows { limit: limits.flows, count: 0 });
    let mut all = vec![counters];
    all.resize_with(pairs, Arc::default);
    let mut workers = Vec::with_capacity(pairs);
    for (index, inbox) in inboxes.into_iter().enumerate() {
        let peers = peers::Peers::new(index, shared.clone(), mailboxes.clone());
        let counters = all[index].clone();
        let (link, carriers) = (link.clone(), carriers.clone());
        let (asks, source_ports, refused) = (ask_guest, source_ports.clone(), refused.clone());
        let parts = turn::Parts {
            limits,
            timeouts,
            link,
            asks,
            counters,
            peek,
            spins,
            peers,
            carriers,
            source_ports,
            refused,
        };
        workers.push(turn::Worker::new(parts, inbox)?);
    }
    if let Some(Inherited { workers: states, mut fds, .. }) = inherited {
        if states.len() > pairs {
            return Err(InheritError::Pairs { have: states.len(), pairs }.into());
        }
        // Those that have no flow to go on with stand still as well.
        for (worker, state) in workers.iter_mut().zip(state::Worker::for_each_pair(states)) {
            worker.inherit(state, &mut fds)?;
        }
        carriers.close_unused();
    }
    if let Some(first) = workers.first_mut() {
        first.add_ports(&ports);
    }
    let mut threads = Vec::with_capacity(pairs);
    for (index, mut worker) in workers.into_iter().enumerate() {
        let end = End(mailboxes.clone());
        let span = tracing::Span::current();
        let run = move || {
            let _named = span.entered();
            if let Some(mailbox) = end.0.get(index) {
                mailbox.is_mine();
            }
            let _end = end;
            worker.run();
        };
        // Names as ps shows them, which cuts them to 15 bytes.
        let name = if pairs == 1 { "netd-worker".into() } else { format!("netd-worker-{index}") };
        threads.push(thread::Builder::new().name(name).spawn(run)?);
    }
    Ok(Handle::new(mailboxes, all.into(), threads, refused.subscribe(), reserved))
}

/// Takes the other workers along when one ends, however it does, and those that run when not all can be started.
struct End(Arc<[command::Mailbox]>);

impl Drop for End {
    fn drop(&mut self) {
        handle::shutdown(&self.0);
    }
}
