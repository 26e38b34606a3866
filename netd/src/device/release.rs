//! Connections that are let go of by the helper, batch by batch, on a thread of their own.
//!
//! The guest runs meanwhile and its other flows go on; these are parked ([`crate::worker`]). A helper that does not answer
//! may be starting anew, so it is asked again, for [`GIVE_UP`]; both requests may be made twice. What it refuses, and what
//! it has not let go of by then, ends for the guest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use podvirt_proto::repair::{ACCEPTED, Command};
use tracing::{debug, info, warn};

use super::Arrived;
use crate::counters::Reason;
use crate::repair::{BATCH, Finished, Helper, Outcome, Restored};
use crate::state::Endpoints;
use crate::worker::Handle;

/// How long a helper is waited for that does not answer: longer than its start anew takes.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// How soon it is looked again for room in a socket.
const ROOM: Duration = Duration::from_millis(2);
/// How long a migration waits for the end of the one before.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that is let go of.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) key: Endpoints,
    pub(super) socket: Restored,
    pub(super) accepted: bool,
    /// Nothing goes on with it: once it speaks it is closed, by a RST.
    pub(super) refused: bool,
}

impl From<Arrived> for Work {
    fn from(Arrived { key, socket, accepted, refused }: Arrived) -> Work {
        Work { key, socket, accepted, refused }
    }
}

/// Whether connections are being let go of: at most one thread does.
#[derive(Debug, Default)]
pub(super) struct Releaser(Arc<(Mutex<bool>, Condvar)>);

impl Releaser {
    fn busy(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_busy(&self) -> bool {
        *self.busy()
    }

    /// Waits for the end of what is being done; false when it does not come soon.
    pub(super) fn wait(&self) -> bool {
        let waited = self.0.1.wait_timeout_while(self.busy(), TIMEOUT, |busy| *busy);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Lets go of listeners and connections by `command`.
    pub(super) fn begin(
        &self,
        helper: &Arc<Helper>,
        worker: &Handle,
        command: Command,
        work: Vec<Work>,
        listeners: Vec<OwnedFd>,
    ) {
        *self.busy() = true;
        let done = Done(Releaser(Arc::clone(&self.0)));
        let (helper, worker) = (Arc::clone(helper), worker.clone());
        let keys: Vec<Endpoints> = work.iter().map(|w| w.key).collect();
        let run = {
            let worker = worker.clone();
            move || {
                let _done = done;
                Settling { helper: &helper, worker: &worker, command, until: Instant::now() + GIVE_UP }
                    .run(work, &listeners);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("netd-repair".into()).spawn(run) {
            warn!(%error, "no thread to let connections go on: they end");
            worker.unpark(keys.into_iter().map(|key| (key, false)).collect());
        }
    }
}

/// Tells of the end, however it comes.
struct Done(Releaser);

impl Drop for Done {
    fn drop(&mut self) {
        *self.0.busy() = false;
        self.0.0.1.notify_all();
    }
}

struct Settling<'a> {
    helper: &'a Helper,
    worker: &'a Handle,
    command: Command,
    until: Instant,
}

impl Settling<'_> {
    fn run(&self, work: Vec<Work>, listeners: &[OwnedFd]) {
        let since = Instant::now();
        if self.command == Command::Release {
            // Also without connections, and before all of them: it is the helper's sign to move the address.
            while !self.helper.arrived() && !work.is_empty() && self.goes_on() {
                std::thread::sleep(AGAIN);
            }
        } else {
            // Also without connections and listeners.
            self.helper.stays();
        }
        self.thaw_listeners(listeners);
        let (mut todo, mut unsent) = (VecDeque::from(work), Vec::new());
        let (mut good, mut failed) = (0u64, 0u64);
        while !(todo.is_empty() && unsent.is_empty()) {
            let (ended, answered) = self.batch(&mut todo, &mut unsent);
            let bad = ended.iter().filter(|(_, repaired)| !repaired).count() as u64;
            (good, failed) = (good + ended.len() as u64 - bad, failed + bad);
            if !ended.is_empty() {
                self.worker.unpark(ended);
            }
            if !answered {
                std::thread::sleep(AGAIN);
            } else if todo.is_empty() && !unsent.is_empty() {
                std::thread::sleep(ROOM);
            }
        }
        let counters = self.worker.own_counters();
        counters.drops(Reason::MigrationRelease, failed);
        if self.command == Command::Release {
            counters.migrated_connections_in.add(good);
        }
        let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        info!(command = ?self.command, connections = good, failed, took_us = took, "connections go on");
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Lets the next batch go; what is over with, and whether the helper has answered.
    fn batch(&self, todo: &mut VecDeque<Work>, unsent: &mut Vec<Work>) -> (Vec<(Endpoints, bool)>, bool) {
        let mut ended = Vec::new();
        let mut answered = true;
        let batch: Vec<Work> = todo.drain(..todo.len().min(BATCH)).collect();
        let sockets: Vec<BorrowedFd<'_>> = batch.iter().map(|w| w.socket.socket.as_fd()).collect();
        let flags = |w: &Work| w.socket.flags() | if w.accepted { ACCEPTED } else { 0 };
        let flags: Vec<u8> = batch.iter().map(flags).collect();
        let results = self.helper.call_with(self.command, &sockets, &flags);
        for (result, one) in results.into_iter().zip(batch) {
            match result {
                Outcome::Done if one.refused => {}
                Outcome::Done => unsent.push(one),
                Outcome::Unanswered if self.goes_on() => {
                    answered = false;
                    todo.push_back(one);
                }
                Outcome::Unanswered => ended.push((one.key, false)),
                Outcome::Refused(error) => {
                    debug!(key = ?one.key, command = ?self.command, %error, "connection not let go of");
                    ended.push((one.key, false));
                }
            }
        }
        for mut one in std::mem::take(unsent) {
            match one.socket.finish() {
                Ok(Finished::Later) if self.goes_on() => unsent.push(one),
                Ok(finished) => ended.push((one.key, finished == Finished::Done)),
                Err(error) => {
                    debug!(key = ?one.key, %error, "connection cannot go on");
                    ended.push((one.key, false));
                }
            }
        }
        (ended, answered)
    }

    fn thaw_listeners(&self, listeners: &[OwnedFd]) {
        let mut silent: Vec<&OwnedFd> = listeners.iter().collect();
        while !silent.is_empty() {
            let results = self.helper.call(Command::Thaw, &silent);
            let mut left = Vec::new();
            for (result, listener) in results.into_iter().zip(silent) {
                match result {
                    Outcome::Done => {}
                    Outcome::Unanswered => left.push(listener),
                    Outcome::Refused(error) => warn!(%error, "a listener stays silent"),
                }
            }
            if !left.is_empty() {
                if !self.goes_on() {
                    return warn!(
                        listeners = left.len(),
                        "listeners stay silent: the helper does not let them speak"
                    );
                }
                std::thread::sleep(AGAIN);
            }
            silent = left;
        }
    }
}
