//! The state of the device in a migration: as in a live update, without descriptors.
//!
//! # Theory of operation
//!
//! The frontend asks the netd at the source for its state when the guest has stopped ([`Device::save`]) and gives it to
//! the netd at the target before the guest goes on ([`Device::load`]). The stream is that of a live update
//! ([`super::stream`]). Descriptors do not leave a machine, so the records of flows name *sockets*, which are described by
//! records of their own ([`Socket`]) in front of them and are made anew at the target, one behind the other: neither side
//! has more than one of those records in memory.
//!
//! ```text
//!  source: Here ── save ──> Saved ── the guest runs here again ──> Here: as if nothing had been
//!                             └──── the frontend leaves ────> Left: connections that did not move are reset
//!  target: Here ── load ──> Loaded ── the guest runs here ────> Here
//!                             └──── the frontend leaves ────> Here, without any of it
//! ```
//!
//! TCP connections go along where a helper is there to repair them ([`crate::repair`]) and their peer is not in the pod
//! itself. At the source they stay frozen, and their sockets open, for as long as the process lives: until the address has
//! moved, whatever came for it would be answered by a RST otherwise. At the target they are silent until the guest runs.
//!
//! Workers stand still in all but the first of these. What the target had before belongs to a guest that has not run
//! there, and is dropped. A flow whose socket cannot be made at the target ends there: a connection by a RST that the
//! guest gets once it runs, datagram flows without a word.
//!
//! The stream is input from another machine: it is bounded in every direction, and nothing that stands in it can do more
//! than fail the migration, which leaves the guest at the source.

mod load;
mod pipe;
mod save;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use podvirt_proto::hold;
use podvirt_proto::repair::{ACCEPTED, Command};
use tracing::{error, info};

use super::codec::DecodeError;
use super::stream::tag;
use crate::repair::{Helper, Restored};
use crate::worker::{Handle, InheritError};
use pipe::Pipe;

/// Why a state cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Who is asked has no state.
    #[error("this device has no state that could be transferred")]
    Unsupported,
    /// It was saved or loaded already, and the guest has not run here since.
    #[error("the state was saved or loaded already")]
    Twice,
    /// There is no worker any more.
    #[error("netd is ending")]
    Ended,
    /// The way to the frontend, or a socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Sockets cannot be copied.
    #[error("the flows' sockets cannot be taken")]
    Pack(#[from] hold::Error),
    /// What came is not understood.
    #[error("the state is not understood")]
    Decode(#[from] DecodeError),
    /// What came is too large.
    #[error("the state has {what} {have}; at most {allowed} is allowed")]
    TooLarge {
        /// What of it.
        what: &'static str,
        /// How much.
        have: u64,
        /// How much may be.
        allowed: u64,
    },
    /// The workers cannot go on with it.
    #[error("the state cannot be gone on with")]
    Inherit(#[from] InheritError),
}

/// The ends of a flow: the guest's, and the peer as the guest sees it.
pub(crate) type Ends = (SocketAddr, SocketAddr);

/// Where the guest is, as far as is known here.
#[derive(Debug, Default)]
enum Stand {
    /// Here.
    #[default]
    Here,
    /// Its state was given away; these connections went along.
    Saved(Saved),
    /// Its state was given away, and its frontend is gone.
    Left,
    /// Its state has come; these connections do not speak yet.
    Loaded(Vec<Arrived>),
}

/// What went along.
#[derive(Debug, Default)]
struct Saved {
    /// Connections, by the ends of their flows.
    moved: HashSet<Ends>,
    /// Their sockets.
    frozen: Vec<OwnedFd>,
}

/// A connection that has come.
#[derive(Debug)]
struct Arrived {
    socket: Restored,
    /// Its pod accepted it.
    accepted: bool,
}

/// What a netd knows of its guest's migration.
#[derive(Debug, Default)]
pub(crate) struct Device {
    stand: Mutex<Stand>,
    helper: OnceLock<Helper>,
}

impl Device {
    fn stand(&self) -> MutexGuard<'_, Stand> {
        self.stand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections are repaired by this helper. The first one stays.
    pub(crate) fn repair_by(&self, helper: Helper) {
        // There is one for each vhost-user socket, of which a netd has one.
        let _ = self.helper.set(helper);
    }

    /// Path and listener of the helper.
    pub(crate) fn helper(&self) -> Option<(&Path, BorrowedFd<'_>)> {
        self.helper.get().map(Helper::listener)
    }

    /// Who repairs connections, if anybody is there.
    fn present(&self) -> Option<&Helper> {
        self.helper.get().filter(|helper| helper.is_there())
    }

    /// Whether the workers stand still for a migration.
    pub(crate) fn is_moving(&self) -> bool {
        !matches!(*self.stand(), Stand::Here)
    }

    /// Stops the workers and writes what they have. Afterwards they stand still.
    ///
    /// # Errors
    /// [`StateError`]; the workers go on then.
    pub(crate) fn save(&self, worker: &Handle, to: File) -> Result<(), StateError> {
        let mut stand = self.stand();
        if !matches!(*stand, Stand::Here) {
            return Err(StateError::Twice);
        }
        if !worker.freeze() {
            return Err(StateError::Ended);
        }
        let written =
            Pipe::new(to).map_err(StateError::from).and_then(|to| save::write(worker, to, self.present()));
        match written {
            Ok(saved) => {
                *stand = Stand::Saved(saved);
                Ok(())
            }
            Err(error) => {
                worker.thaw();
                Err(error)
            }
        }
    }

    /// Reads what the workers of another netd had and gives it to these, which stand still afterwards.
    ///
    /// # Errors
    /// [`StateError`]; the workers have nothing then and go on.
    pub(crate) fn load(&self, worker: &Handle, from: File) -> Result<(), StateError> {
        let mut stand = self.stand();
        if !matches!(*stand, Stand::Here) {
            return Err(StateError::Twice);
        }
        let load::Read { workers, fds, arrived } = load::read(Pipe::new(from)?, self.present())?;
        if !worker.freeze() {
            return Err(StateError::Ended);
        }
        match worker.load_workers(workers, fds) {
            Ok(()) => {
                *stand = Stand::Loaded(arrived);
                Ok(())
            }
            Err(error) => {
                worker.abandon(HashSet::new());
                worker.thaw();
                Err(error)
            }
        }
    }

    /// The guest is about to run here.
    pub(crate) fn resume(&self, worker: &Handle) {
        let mut stand = self.stand();
        match std::mem::take(&mut *stand) {
            Stand::Here => return,
            Stand::Left => {}
            Stand::Saved(Saved { frozen, .. }) => {
                if let Some(helper) = self.helper.get() {
                    thaw(helper, &frozen);
                }
            }
            Stand::Loaded(arrived) => {
                if let Some(helper) = self.helper.get() {
                    release(helper, arrived);
                }
            }
        }
        worker.thaw();
    }

    /// The frontend is gone.
    pub(crate) fn frontend_left(&self, worker: &Handle) {
        let mut stand = self.stand();
        match std::mem::take(&mut *stand) {
            Stand::Here => {}
            Stand::Saved(saved) => {
                worker.abandon(saved.moved);
                *stand = Stand::Left;
            }
            Stand::Left => *stand = Stand::Left,
            Stand::Loaded(_) => {
                worker.abandon(HashSet::new());
                worker.thaw();
            }
        }
    }

    /// Another frontend has come: what stood still for one that is gone does so no longer.
    pub(crate) fn frontend_came(&self, worker: &Handle) {
        let mut stand = self.stand();
        if matches!(*stand, Stand::Left) {
            *stand = Stand::Here;
            worker.abandon(HashSet::new());
            worker.thaw();
        }
    }
}

/// Lets connections go on here after all.
fn thaw(helper: &Helper, frozen: &[OwnedFd]) {
    let failed = helper.call(Command::Thaw, frozen, 0).into_iter().filter(Result::is_err).count();
    if failed > 0 {
        error!(failed, of = frozen.len(), "connections stay frozen: the helper does not let them go on");
    }
}

/// Lets connections that have come speak, and sends what they have for their peers.
fn release(helper: &Helper, arrived: Vec<Arrived>) {
    let (accepted, opened): (Vec<_>, Vec<_>) = arrived.into_iter().partition(|a| a.accepted);
    let (mut good, mut failed) = (0usize, 0usize);
    for (flags, arrived) in [(ACCEPTED, accepted), (0, opened)] {
        let sockets: Vec<&OwnedFd> = arrived.iter().map(|a| &a.socket.socket).collect();
        let results = helper.call(Command::Release, &sockets, flags);
        for (result, one) in results.into_iter().zip(arrived) {
            let finished =
                result.map_err(|e| io::Error::other(e.to_string())).and_then(|()| one.socket.finish());
            match finished {
                Ok(()) => good += 1,
                Err(error) => {
                    failed += 1;
                    tracing::debug!(%error, "a connection that has come cannot go on");
                }
            }
        }
    }
    info!(connections = good, failed, "connections go on at this machine");
}
