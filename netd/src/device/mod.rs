//! The state of the device in a migration: as in a live update, without descriptors.
//!
//! # Theory of operation
//!
//! The frontend asks the netd at the source for its state when the guest has stopped ([`Device::save`]) and gives it to
//! the netd at the target before the guest goes on ([`Device::load`]). The stream is that of a live update
//! ([`crate::state::stream`]). Descriptors do not leave a machine, so the records of flows name *sockets*, which are described by
//! records of their own (`Socket`) in front of them and are made anew at the target, one behind the other: neither side
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
//! moved, whatever came for it would be answered by a RST otherwise. Its listeners are silent from before the state is
//! saved: a peer that connects tries again, and comes to the target. At the target connections are silent until the guest runs.
//! Then the helper hears so at once, for the address to move ([`release`]), and releases them one batch after the other,
//! while everything else goes on already; so it is where a migration has failed.
//!
//! Workers stand still in all but the first of these. What the target had before belongs to a guest that has not run
//! there, and is dropped. A flow whose socket cannot be made at the target ends there: a connection by a RST that the
//! guest gets once it runs, datagram flows without a word.
//!
//! The stream is input from another machine: it is bounded in every direction, and nothing that stands in it can do more
//! than fail the migration, which leaves the guest at the source.

mod backend;
mod load;
mod pipe;
mod release;
mod save;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use podvirt_proto::descriptors::reserve;
use podvirt_proto::repair::{Command, ENDS};
use tracing::{debug, info, warn};

use crate::counters::Reason;
use crate::repair::{Helper, Restored, Window};
use crate::state::stream::tag;
use crate::state::{Endpoints, StateError};
use crate::worker::Handle;
pub use backend::Backend;
use pipe::Pipe;
use release::{Releaser, Work};

/// Where the guest is, as far as is known here.
#[derive(Debug, Default)]
enum Stand {
    /// Here.
    #[default]
    Here,
    /// Its state was given away; these connections went along.
    Saved(Saved),
    /// Its state was given away, and its frontend is gone. These listeners are silent.
    Left(Vec<OwnedFd>),
    /// Its state has come; these connections do not speak yet.
    Loaded(Vec<Arrived>),
}

/// What went along.
#[derive(Debug, Default)]
struct Saved {
    /// Connections.
    moved: Vec<Still>,
    /// Connections that are, or may be, frozen and did not go along.
    left: Vec<Still>,
    /// How many end here, and why.
    stay: Vec<(Reason, u64)>,
    /// Listeners, which are silent.
    listeners: Vec<OwnedFd>,
}

/// A connection that is, or may be, frozen.
#[derive(Debug)]
struct Still {
    /// The ends of its flow.
    key: Endpoints,
    socket: OwnedFd,
    /// The windows that its socket had, if it was taken apart.
    window: Option<Window>,
}

impl Saved {
    fn keys(&self) -> HashSet<Endpoints> {
        self.moved.iter().map(|still| still.key).collect()
    }
}

/// A connection that has come.
#[derive(Debug)]
struct Arrived {
    key: Endpoints,
    socket: Restored,
    /// Its pod accepted it.
    accepted: bool,
    /// It ends here: the guest may not have it.
    refused: bool,
}

/// What a netd knows of its guest's migration.
#[derive(Debug, Default)]
pub(crate) struct Device {
    stand: Mutex<Stand>,
    helper: OnceLock<Arc<Helper>>,
    releaser: Releaser,
}

impl Device {
    fn stand(&self) -> MutexGuard<'_, Stand> {
        self.stand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stand of a guest that is here and whose connections all go on.
    ///
    /// # Errors
    /// Some are still being repaired after a migration, or another one has begun.
    fn idle_stand(&self) -> Result<MutexGuard<'_, Stand>, StateError> {
        if !self.releaser.wait() {
            return Err(StateError::Busy);
        }
        let stand = self.stand();
        if matches!(*stand, Stand::Here) { Ok(stand) } else { Err(StateError::Twice) }
    }

    /// Connections are repaired by this helper. The first one stays.
    pub(crate) fn repair_by(&self, helper: Helper) {
        // There is one for each vhost-user socket, of which a netd has one.
        let _ = self.helper.set(Arc::new(helper));
    }

    /// Path and listener of the helper.
    pub(crate) fn helper(&self) -> Option<(&Path, BorrowedFd<'_>)> {
        self.helper.get().map(|helper| helper.listener())
    }

    /// The helper, if it is there.
    fn present(&self) -> Option<&Arc<Helper>> {
        self.helper.get().filter(|helper| helper.is_there())
    }

    /// The guest's memory is being copied: it will move soon.
    pub(crate) fn copying(&self, worker: &Handle) {
        self.prepare(worker);
    }

    /// Makes room for the descriptors of all connections, each of which has two while it moves, as long as the guest does not wait
    /// for it.
    fn prepare(&self, worker: &Handle) {
        if let Err(error) = reserve(2 * u64::from(worker.most_flows())) {
            debug!(%error, "no room for descriptors made beforehand");
        }
    }

    /// Whether the workers stand still for a migration, or connections are being repaired after one.
    pub(crate) fn is_moving(&self) -> bool {
        !matches!(*self.stand(), Stand::Here) || self.releaser.is_busy()
    }

    /// Stops the workers and writes what they have. Afterwards they stand still.
    ///
    /// # Errors
    /// [`StateError`]; the workers go on then.
    pub(crate) fn save(&self, worker: &Handle, to: File) -> Result<(), StateError> {
        let saved = self.try_save(worker, to);
        let counters = worker.own_counters();
        if saved.is_ok() { &counters.migrations_out } else { &counters.migrations_failed }.add(1);
        saved
    }

    fn try_save(&self, worker: &Handle, to: File) -> Result<(), StateError> {
        let since = Instant::now();
        let mut stand = self.idle_stand()?;
        let helper = self.present();
        // What has come is read by workers that do not stand still yet; what comes from here on follows the guest.
        if let Some(helper) = helper {
            helper.leaves();
        }
        // Before the workers stand still: no new connection comes, and those that have come are accepted.
        let listeners = helper.map(|helper| silence(helper, worker)).unwrap_or_default();
        worker.keep_datagrams();
        let written = if worker.freeze() {
            worker.accept_waiting();
            let way = Pipe::new(to).map_err(StateError::from).map_err(save::Failed::from);
            way.and_then(|to| save::write(worker, to, helper.map(Arc::as_ref)))
        } else {
            Err(StateError::Ended.into())
        };
        match written {
            Ok(saved) => {
                let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                info!(connections = saved.moved.len(), took_us = took, "the state was given away");
                *stand = Stand::Saved(Saved { listeners, ..saved });
                Ok(())
            }
            Err(save::Failed { error, frozen }) => {
                self.stay(worker, frozen, listeners);
                Err(error)
            }
        }
    }

    /// Goes on here, with connections that are frozen.
    fn stay(&self, worker: &Handle, frozen: Vec<Still>, listeners: Vec<OwnedFd>) {
        let work = |Still { key, socket, window }| {
            let socket = Restored::stayed(socket, window);
            Work { key, socket, accepted: false, refused: false }
        };
        let work: Vec<Work> = frozen.into_iter().map(work).collect();
        self.release(worker, Command::Thaw, work, listeners);
    }

    /// Lets the workers go on, and the connections once the helper has let go of them.
    fn release(&self, worker: &Handle, command: Command, work: Vec<Work>, listeners: Vec<OwnedFd>) {
        if command == Command::Thaw {
            worker.park(work.iter().map(|w| w.key).collect());
        }
        let helper = self.helper.get();
        match helper {
            Some(helper) => self.releaser.begin(helper, worker, command, work, listeners),
            // Nothing was frozen without one.
            None if work.is_empty() => {}
            None => worker.unpark(work.into_iter().map(|w| (w.key, false)).collect()),
        }
        worker.thaw();
    }

    /// Reads what the workers of another netd had and gives it to these, which stand still afterwards.
    ///
    /// # Errors
    /// [`StateError`]; the workers have nothing then and go on.
    pub(crate) fn load(&self, worker: &Handle, from: File) -> Result<(), StateError> {
        let loaded = self.try_load(worker, from);
        let counters = worker.own_counters();
        if loaded.is_ok() { &counters.migrations_in } else { &counters.migrations_failed }.add(1);
        loaded
    }

    fn try_load(&self, worker: &Handle, from: File) -> Result<(), StateError> {
        let since = Instant::now();
        let mut stand = self.idle_stand()?;
        let helper = self.present().map(Arc::as_ref);
        let load::Read { workers, fds, arrived, failed, denied } =
            load::read(Pipe::new(from)?, helper, worker.most_flows(), worker.reserved())?;
        if !worker.freeze() {
            return Err(StateError::Ended);
        }
        match worker.load_workers(workers, fds) {
            Ok(refused) => {
                worker.own_counters().drops(Reason::MigrationTarget, failed);
                worker.own_counters().drops(Reason::Denied, denied);
                let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                let (connections, ended) = (arrived.len(), refused.len());
                info!(connections, failed, refused = ended, took_us = took, "a state has come");
                let refused: HashSet<Endpoints> = refused.into_iter().collect();
                let mut arrived = arrived;
                arrived.iter_mut().for_each(|a| a.refused = refused.contains(&a.key));
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
            Stand::Here => {}
            Stand::Left(listeners) => self.stay(worker, Vec::new(), listeners),
            Stand::Saved(Saved { mut moved, left, listeners, .. }) => {
                worker.own_counters().migrations_undone.add(1);
                moved.extend(left);
                self.stay(worker, moved, listeners);
            }
            Stand::Loaded(arrived) => {
                let work = arrived.into_iter().map(Work::from).collect();
                self.release(worker, Command::Release, work, Vec::new());
            }
        }
    }

    /// The frontend is gone.
    pub(crate) fn frontend_left(&self, worker: &Handle) {
        let mut stand = self.stand();
        match std::mem::take(&mut *stand) {
            Stand::Here => {}
            Stand::Saved(saved) => {
                let counters = worker.own_counters();
                counters.migrated_connections_out.add(saved.moved.len() as u64);
                for (reason, count) in &saved.stay {
                    counters.drops(*reason, *count);
                }
                self.let_end(&saved.left);
                worker.abandon(saved.keys());
                *stand = Stand::Left(saved.listeners);
            }
            Stand::Left(listeners) => *stand = Stand::Left(listeners),
            Stand::Loaded(_) => {
                worker.abandon(HashSet::new());
                worker.thaw();
            }
        }
    }

    /// Has the helper let go of connections that end: a socket in repair mode says nothing to its peer.
    fn let_end(&self, connections: &[Still]) {
        let sockets: Vec<BorrowedFd<'_>> = connections.iter().map(|still| still.socket.as_fd()).collect();
        let Some(helper) = self.helper.get().filter(|_| !sockets.is_empty()) else { return };
        let flags = vec![ENDS; sockets.len()];
        let results = helper.call_with(Command::Thaw, &sockets, &flags);
        let left = results.iter().filter(|r| !r.is_done()).count();
        if left > 0 {
            warn!(left, "connections that do not migrate cannot be reset");
        }
    }

    /// Another frontend has come: what stood still for one that is gone does so no longer.
    pub(crate) fn frontend_came(&self, worker: &Handle) {
        // A helper is there already: the frontend may come with a guest.
        if self.helper.get().is_some_and(|helper| helper.is_met()) {
            self.prepare(worker);
        }
        let mut stand = self.stand();
        if let Stand::Left(listeners) = &mut *stand {
            let listeners = std::mem::take(listeners);
            *stand = Stand::Here;
            worker.abandon(HashSet::new());
            self.stay(worker, Vec::new(), listeners);
        }
    }
}

/// What comes of a state, for the fuzz target.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) struct Arrivals {
    pub(crate) workers: Vec<crate::state::Worker>,
    pub(crate) fds: crate::state::Descriptors,
    /// Connections that were put together, and whether they were released.
    pub(crate) connections: Vec<(Endpoints, bool)>,
}

/// Reads a state, makes its sockets and releases its connections, for the fuzz target.
///
/// # Errors
/// [`StateError`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_arrivals(stream: &[u8], helper: Option<&Helper>) -> Result<Arrivals, StateError> {
    use crate::config::ports::Reserved;
    use crate::repair::Finished;
    const FLOWS: u32 = 100;
    let load::Read { workers, fds, arrived, .. } = load::read(stream, helper, FLOWS, &Reserved::presets())?;
    let release = |mut a: Arrived| {
        let asked = helper.map(|h| h.call(Command::Release, &[&a.socket.socket]));
        let released = asked.is_some_and(|r| r.iter().all(crate::repair::Outcome::is_done));
        (a.key, released && a.socket.finish().is_ok_and(|f| f == Finished::Done))
    };
    let connections = arrived.into_iter().map(release).collect();
    Ok(Arrivals { workers, fds, connections })
}

/// Has the helper silence the listeners, and answers those that are.
fn silence(helper: &Helper, worker: &Handle) -> Vec<OwnedFd> {
    let listeners = worker.listeners();
    let results = helper.call(Command::Freeze, &listeners);
    let of = listeners.len();
    let silent: Vec<OwnedFd> =
        listeners.into_iter().zip(results).filter(|(_, r)| r.is_done()).map(|(l, _)| l).collect();
    if silent.len() < of {
        warn!(
            silent = silent.len(),
            of, "peers that connect to other listeners during the migration are reset"
        );
    }
    silent
}
