//! What the rings of one connection share: memory, features, log and the sink. A change of any of them has every ring
//! evaluated anew ([`HookVring`]).
//!
//! Locks: the group's is never held while the sink is called.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use vhost_user_backend::VringT;
use vm_memory::GuestAddressSpace;

use super::vring::{HookVring, Memory};
use super::{RingSink, feature};
use crate::ring::{DirtyLog, MemMap, RingError};

thread_local! {
    /// The group of the daemon that is being made: the crate creates rings by `VringT::new`, which has no room for
    /// a context. See [`RingGroup::owning_new_rings`].
    pub(super) static MAKING: RefCell<Option<Arc<RingGroup>>> = const { RefCell::new(None) };
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the rings of one connection share.
pub(super) struct RingGroup {
    pub(super) sink: Arc<dyn RingSink>,
    alarm: Arc<EventFd>,
    pub(super) shared: Mutex<Shared>,
    pub(super) vrings: Mutex<Vec<HookVring>>,
}

#[derive(Default)]
pub(super) struct Shared {
    /// False until the connection is known to be the frontend's, and after its end.
    pub(super) armed: bool,
    /// The accepted features; none after a reset.
    pub(super) features: Option<u64>,
    pub(super) map: Option<Arc<MemMap>>,
    /// Counts the maps, so that a ring knows on which one it runs.
    pub(super) map_serial: u64,
    log: Option<Arc<DirtyLog>>,
    /// The log that is in use, and how often that has changed.
    logging: Option<Arc<DirtyLog>>,
    pub(super) log_serial: u64,
}

impl Shared {
    /// Puts the log on the map, or takes it off, as `LOG_ALL` says. Rings that run are to be evaluated then: they are
    /// stopped and started, so that nothing is marked any more in a log that the frontend has read for the last time,
    /// and what was written without being marked was written before the frontend hears that it is logged.
    fn apply_log(&mut self) {
        let on = self.features.is_some_and(|f| f & feature::LOG_ALL != 0);
        let log = self.log.clone().filter(|_| on);
        let same = match (&log, &self.logging) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (new, old) => new.is_none() && old.is_none(),
        };
        self.log_serial += u64::from(!same);
        if let Some(map) = &self.map {
            map.set_log(log.clone());
        }
        self.logging = log;
    }
}

impl RingGroup {
    pub(super) fn new(sink: Arc<dyn RingSink>) -> io::Result<Arc<RingGroup>> {
        let alarm = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        Ok(Arc::new(RingGroup { sink, alarm, shared: Mutex::default(), vrings: Mutex::default() }))
    }

    /// Readable once the frontend has taken memory away that it shared.
    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// Runs `make` so that the rings created in it, on this thread and in the order of their numbers, belong to
    /// this group.
    pub(super) fn owning_new_rings<T>(self: &Arc<RingGroup>, make: impl FnOnce() -> T) -> T {
        MAKING.with(|making| making.replace(Some(Arc::clone(self))));
        let made = make();
        MAKING.with(|making| making.replace(None));
        made
    }

    /// What rings are given to.
    pub(super) fn sink(&self) -> &Arc<dyn RingSink> {
        &self.sink
    }

    /// Whether a ring runs.
    pub(super) fn runs(&self) -> bool {
        let vrings = lock(&self.vrings).clone();
        vrings.iter().any(HookVring::runs)
    }

    /// From now on rings may run.
    pub(super) fn arm(&self) {
        lock(&self.shared).armed = true;
        self.evaluate();
    }

    /// Stops every ring and answers where each stands. Nothing may be changed until [`RingGroup::resume`].
    pub(super) fn pause(&self) -> Vec<u16> {
        let vrings = lock(&self.vrings).clone();
        let position = |vring: &HookVring| {
            vring.pause();
            vring.queue_next_avail()
        };
        vrings.iter().map(position).collect()
    }

    /// Starts the rings again that [`RingGroup::pause`] has stopped.
    pub(super) fn resume(&self) {
        self.evaluate();
    }

    /// Stops all rings and lets go of everything. The group is of no use afterwards.
    pub(super) fn close(&self) {
        let vrings = std::mem::take(&mut *lock(&self.vrings));
        *lock(&self.shared) = Shared::default();
        for vring in vrings {
            vring.evaluate();
        }
    }

    pub(super) fn set_features(&self, features: u64) {
        {
            let mut shared = lock(&self.shared);
            shared.features = Some(features);
            shared.apply_log();
        }
        self.sink.set_features(features);
        self.evaluate();
    }

    /// Forgets the features: no ring runs until new ones are accepted.
    pub(super) fn reset(&self) {
        {
            let mut shared = lock(&self.shared);
            shared.features = None;
            shared.apply_log();
        }
        self.evaluate();
    }

    pub(super) fn set_log(&self, log: Arc<DirtyLog>) -> Result<(), RingError> {
        log.guard(&self.alarm)?;
        {
            let mut shared = lock(&self.shared);
            shared.log = Some(log);
            shared.apply_log();
        }
        self.evaluate();
        Ok(())
    }

    /// Moves the rings to new memory. The old map is let go when the last ring and the last list of slices on it
    /// are gone.
    pub(super) fn update_memory(&self, memory: &Memory) -> Result<(), RingError> {
        let map = MemMap::new(memory.memory().into_inner())?;
        map.guard(&self.alarm)?;
        let vrings = lock(&self.vrings).clone();
        for vring in &vrings {
            vring.pause();
        }
        {
            let mut shared = lock(&self.shared);
            shared.map = Some(map);
            shared.map_serial += 1;
            shared.apply_log();
        }
        self.evaluate();
        Ok(())
    }

    /// Takes ring `index` out of service until it gets good addresses.
    pub(super) fn bad_ring(&self, index: usize) {
        let vring = lock(&self.vrings).get(index).cloned();
        if let Some(vring) = vring {
            vring.bad_address();
        }
    }

    fn evaluate(&self) {
        let vrings = lock(&self.vrings).clone();
        for vring in vrings {
            vring.evaluate();
        }
    }
}
