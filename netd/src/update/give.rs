//! The old netd's side: everything at rest, sent, and let go of, or gone on with.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use podvirt_proto::hold::{self, Message, Wire};

use crate::control::Control;
use crate::device::Backend;
use crate::state::{Fd, Listeners, Named, Origin, Pack, Snapshot, text};
use crate::{steer, vhost, worker};

/// How long the guest may be without its network: sending, and the successor's preparations. What takes longer is
/// given up, and the old netd goes on.
const FROZEN: Duration = Duration::from_secs(5);

/// Everything of a netd that moves.
#[derive(Debug)]
pub struct Giver {
    /// The workers, and the device that they are.
    pub backend: Backend,
    /// The frontend.
    pub vhost: vhost::Mover,
    /// The steering of all ports, if there is one.
    pub steering: Option<steer::Mover>,
    /// Path and listening socket of the control interface.
    pub control: Option<(PathBuf, OwnedFd)>,
    /// Address and listening socket of the metrics.
    pub metrics: Option<(SocketAddr, OwnedFd)>,
    /// How many netds had the state before this netd.
    pub generation: u32,
}

/// What was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Flows.
    pub flows: usize,
    /// Time since everything stood still.
    pub took: Duration,
}

/// Why nothing was handed over. Everything has gone on.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    /// The frontend's connection cannot be moved now.
    #[error(transparent)]
    Frontend(#[from] vhost::RestError),
    /// The successor, or the way to it.
    #[error(transparent)]
    Wire(#[from] hold::Error),
    /// The guest migrates.
    #[error("the guest migrates to or from another machine")]
    Migrating,
    /// There is no worker any more.
    #[error("netd is ending")]
    Ended,
}

/// CLOCK_MONOTONIC in microseconds: the same for all processes of the machine.
pub(super) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

impl Giver {
    /// Gives everything to a successor that has asked for it. Afterwards this process must end without touching
    /// anything: see [`end`].
    ///
    /// # Errors
    /// [`GiveError`]; everything has gone on then.
    pub fn give(&self, wire: Wire) -> Result<Given, GiveError> {
        self.hand_over(wire, |wire| {
            wire.expect(&Message::Ready)?;
            wire.send(&Message::Go)
        })
    }

    /// Gives everything to the hold at `path`. Afterwards this process must end as after [`Giver::give`].
    ///
    /// # Errors
    /// As [`Giver::give`].
    pub fn deposit(&self, path: &Path) -> Result<Given, GiveError> {
        let wire = Wire::connect(path, FROZEN)?;
        wire.send(&Message::Deposit)?;
        self.hand_over(wire, |wire| wire.expect(&Message::Kept))
    }

    fn hand_over(
        &self,
        mut wire: Wire,
        confirm: impl FnOnce(&Wire) -> Result<(), hold::Error>,
    ) -> Result<Given, GiveError> {
        wire.set_timeout(FROZEN);
        let since = Instant::now();
        // In this order: what comes first asks something of what comes after it.
        let steering = self.steering.as_ref().map(steer::Mover::rest);
        let frontend = self.vhost.rest()?;
        if self.backend.is_moving() {
            return Err(GiveError::Migrating);
        }
        let worker = Frozen::new(self.backend.workers())?;
        let flows = self.send(wire, steering.as_ref(), &frontend).and_then(|(wire, flows)| {
            confirm(&wire)?;
            Ok(flows)
        })?;
        // The state belongs to another process now: nothing may go on here any more.
        let _at_rest_for_ever = ManuallyDrop::new((worker, frontend, steering));
        Ok(Given { flows, took: since.elapsed() })
    }

    fn send(
        &self,
        wire: Wire,
        steering: Option<&steer::AtRest<'_>>,
        frontend: &vhost::AtRest<'_>,
    ) -> Result<(Wire, usize), GiveError> {
        let counters = self.backend.workers().counters();
        let mut snapshot = Snapshot {
            origin: Origin {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                generation: self.generation,
                updates: counters.updates.get(),
                frozen_at: monotonic(),
            },
            counters: counters.counted(),
            ..Snapshot::default()
        };
        let mut pack = Pack::new(wire);
        let (listener, connected) = frontend.pack(&mut pack)?;
        snapshot.frontend = connected;
        snapshot.listeners = self.listeners(&mut pack, listener)?;
        snapshot.steering = steering.map(|s| s.pack(&mut pack)).transpose()?;
        let (pack, workers) = self.backend.workers().pack(pack).ok_or(GiveError::Ended)?;
        snapshot.workers = workers?;
        let flows = snapshot.flows();
        Ok((pack.finish(&snapshot)?, flows))
    }

    fn listeners(&self, pack: &mut Pack, vhost_user: Option<(String, Fd)>) -> Result<Listeners, hold::Error> {
        let mut named = Named::after(pack);
        let listeners = Listeners {
            vhost_user,
            control: self.control.as_ref().map(|(path, l)| (text(path), named.name(l.as_fd()))),
            repair: self.backend.helper().map(|(path, l)| (text(path), named.name(l))),
            metrics: self.metrics.as_ref().map(|(address, l)| (*address, named.name(l.as_fd()))),
        };
        pack.add(named.fds())?;
        Ok(listeners)
    }
}

/// Workers that stand still until this is dropped.
struct Frozen<'a>(&'a worker::Handle);

impl<'a> Frozen<'a> {
    fn new(worker: &'a worker::Handle) -> Result<Self, GiveError> {
        if worker.freeze() { Ok(Frozen(worker)) } else { Err(GiveError::Ended) }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

/// Ends this process after everything was handed over: at once, as nothing that would be tidied up is its own any more.
/// The files of the sockets are the successor's, and the sockets themselves stay open there.
#[expect(
    clippy::exit,
    reason = "destructors would remove files and shut sockets down that belong to another process by now"
)]
pub fn end() -> ! {
    std::process::exit(0)
}
