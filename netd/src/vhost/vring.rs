//! One ring as the frontend sets it up, and its evaluation after every change.
//!
//! The crate's own `VringMutex` keeps the numbers; [`HookVring`] wraps it, because every change arrives as a call
//! and the last one that makes the ring complete may be any of them. [`RingGroup`] is what the rings of one connection
//! share: memory, features, log and the sink.
//!
//! Locks: a ring's state is locked while the sink is called, the group's never, and the inner ring's never (the
//! sink waits for the worker). The worker calls nothing in here.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::{error, warn};
use vhost_user_backend::{VringMutex, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::{Error as QueueError, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use super::{RingSink, feature};
use crate::ring::{Bell, DirtyLog, MemMap, Ring, RingError, RingLayout};

pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

thread_local! {
    /// The group of the daemon that is being made: the crate creates rings by `VringT::new`, which has no room for
    /// a context. See [`RingGroup::owning_new_rings`].
    static MAKING: RefCell<Option<Arc<RingGroup>>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the rings of one connection share.
pub(super) struct RingGroup {
    sink: Arc<dyn RingSink>,
    alarm: Arc<EventFd>,
    shared: Mutex<Shared>,
    vrings: Mutex<Vec<HookVring>>,
}

#[derive(Default)]
struct Shared {
    /// False until the connection is known to be the frontend's, and after its end.
    armed: bool,
    /// The accepted features; none after a reset.
    features: Option<u64>,
    map: Option<Arc<MemMap>>,
    /// Counts the maps, so that a ring knows on which one it runs.
    map_serial: u64,
    log: Option<Arc<DirtyLog>>,
    /// The log that is in use, and how often that has changed.
    logging: Option<Arc<DirtyLog>>,
    log_serial: u64,
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
        vrings.iter().any(|v| lock(&v.state).running.is_some())
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
            vring.inner.queue_next_avail()
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

/// Everything that a running ring depends on; a ring whose setup no longer equals it is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setup {
    size: u16,
    desc: u64,
    avail: u64,
    used: u64,
    event_idx: bool,
    /// Counts changes of the descriptors.
    descriptors: u64,
    map_serial: u64,
    /// See [`Shared::apply_log`].
    log_serial: u64,
    /// The driver has taken the ring out of use: what is in it is thrown away.
    disabled: bool,
}

#[derive(Default)]
struct State {
    running: Option<Setup>,
    /// A setup that could not be started; it is not tried again.
    failed: Option<Setup>,
    bad_address: bool,
    /// It has run, enabled, since it was last stopped.
    was_enabled: bool,
    descriptors: u64,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
}

/// A `VringT` that starts and stops its ring on the sink.
#[derive(Clone)]
pub(super) struct HookVring {
    inner: VringMutex<Memory>,
    memory: Memory,
    group: Arc<RingGroup>,
    index: usize,
    state: Arc<Mutex<State>>,
}

impl HookVring {
    /// Compares what should run with what runs.
    fn evaluate(&self) {
        let mut state = lock(&self.state);
        let (wanted, map) = self.wanted(&mut state);
        if state.running == wanted {
            return;
        }
        if state.running.take().is_some() {
            self.halt();
        }
        let (Some(setup), Some(map)) = (wanted, map) else { return };
        if state.failed == Some(setup) {
            return;
        }
        match self.make(&setup, map, &state) {
            Ok(mut ring) => {
                if setup.disabled {
                    ring.set_disabled();
                }
                // Interrupts may have been lost with the frontend, the backend or the call descriptor before this
                // one. A spurious one does no harm.
                ring.signal_aside();
                state.running = Some(setup);
                self.group.sink.start(self.index, ring);
            }
            Err(e) => {
                error!(ring = self.index, error = %e, "ring cannot be started");
                state.failed = Some(setup);
                report(&state);
            }
        }
    }

    fn wanted(&self, state: &mut State) -> (Option<Setup>, Option<Arc<MemMap>>) {
        let shared = lock(&self.group.shared);
        let inner = self.inner.get_ref();
        let queue = inner.get_queue();
        if !queue.ready() || shared.features.is_none() {
            state.was_enabled = false;
        }
        // vhost-user, Ring states: a disabled receive ring gets nothing, what a disabled transmit ring holds is
        // thrown away. One that was never enabled may be about to be: a frontend that reconnects has frames in it.
        let disabled = !inner.is_enabled();
        let discards = disabled && state.was_enabled && self.index % 2 == 1;
        let runs = shared.armed
            && shared.features.is_some()
            && shared.map.is_some()
            && !state.bad_address
            && state.kick.is_some()
            && queue.ready()
            && (!disabled || discards);
        state.was_enabled |= runs;
        let setup = runs.then(|| Setup {
            size: queue.size(),
            desc: queue.desc_table(),
            avail: queue.avail_ring(),
            used: queue.used_ring(),
            event_idx: queue.event_idx_enabled(),
            descriptors: state.descriptors,
            map_serial: shared.map_serial,
            log_serial: shared.log_serial,
            disabled,
        });
        (setup, shared.map.clone())
    }

    fn make(&self, setup: &Setup, map: Arc<MemMap>, state: &State) -> Result<Ring, RingError> {
        let clone = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let kick = clone(&state.kick).map_err(RingError::Descriptor)?;
        let kick = kick.ok_or_else(|| RingError::Descriptor(io::ErrorKind::NotFound.into()))?;
        let call = clone(&state.call).map_err(RingError::Descriptor)?;
        let err = clone(&state.err).map_err(RingError::Descriptor)?;
        // The ring's place in the used ring is what the driver can see there; SET_VRING_BASE speaks of the
        // available ring only.
        let next_used = self
            .memory
            .memory()
            .load::<u16>(GuestAddress(setup.used.wrapping_add(2)), Ordering::Acquire)
            .map_or(0, u16::from_le);
        let layout = RingLayout {
            size: setup.size,
            desc: setup.desc,
            avail: setup.avail,
            used: setup.used,
            next_avail: self.inner.queue_next_avail(),
            next_used,
            event_idx: setup.event_idx,
        };
        Ring::new(layout, map, kick, call, err)
    }

    /// Takes the ring back from the sink and keeps its position.
    fn halt(&self) {
        match self.group.sink.stop(self.index) {
            Some(mut ring) => {
                if ring.publish() {
                    ring.signal_aside();
                }
                self.inner.set_queue_next_avail(ring.next_avail());
            }
            None => warn!(ring = self.index, "stopped ring did not come back: its position is lost"),
        }
    }

    /// Stops the ring; the next evaluation starts it again.
    fn pause(&self) {
        let mut state = lock(&self.state);
        if state.running.take().is_some() {
            self.halt();
        }
    }

    fn bad_address(&self) {
        let mut state = lock(&self.state);
        state.bad_address = true;
        report(&state);
        drop(state);
        self.evaluate();
    }

    /// Changes one of the descriptors, of which the inner ring gets a copy.
    fn set_fd(
        &self,
        file: Option<File>,
        slot: impl Fn(&mut State) -> &mut Option<OwnedFd>,
        inner: impl Fn(&VringMutex<Memory>, Option<File>),
    ) {
        let copy = file.as_ref().map(File::try_clone).transpose().unwrap_or_else(|e| {
            error!(ring = self.index, error = %e, "descriptor of a ring cannot be kept");
            None
        });
        {
            let mut state = lock(&self.state);
            *slot(&mut state) = copy.map(OwnedFd::from);
            state.descriptors += 1;
        }
        inner(&self.inner, file);
        self.evaluate();
    }
}

/// Tells the frontend that the ring is out of order. Never waits: a full descriptor says so already.
fn report(state: &State) {
    if let Some(err) = &state.err
        && let Err(e) = err.try_clone().and_then(Bell::new).and_then(|bell| Ok(bell.ring_aside()?))
        && e.kind() != io::ErrorKind::WouldBlock
    {
        warn!(error = %e, "error descriptor of a ring cannot be written");
    }
}

impl<'a> VringStateGuard<'a, Memory> for HookVring {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl<'a> VringStateMutGuard<'a, Memory> for HookVring {
    type G = MutexGuard<'a, VringState<Memory>>;
}

impl VringT<Memory> for HookVring {
    fn new(mem: Memory, max_queue_size: u16) -> Result<Self, QueueError> {
        let group = MAKING.with(|making| making.borrow().clone()).ok_or(QueueError::QueueNotReady)?;
        let mut vrings = lock(&group.vrings);
        let vring = HookVring {
            inner: VringMutex::new(mem.clone(), max_queue_size)?,
            memory: mem,
            group: Arc::clone(&group),
            index: vrings.len(),
            state: Arc::default(),
        };
        vrings.push(vring.clone());
        drop(vrings);
        Ok(vring)
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.inner.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.inner.get_mut()
    }

    fn add_used(&self, desc_index: u16, len: u32) -> Result<(), QueueError> {
        self.inner.add_used(desc_index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.inner.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, QueueError> {
        self.inner.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), QueueError> {
        self.inner.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, QueueError> {
        self.inner.needs_notification()
    }

    fn set_enabled(&self, enabled: bool) {
        self.inner.set_enabled(enabled);
        self.evaluate();
    }

    fn set_queue_info(&self, desc_table: u64, avail_ring: u64, used_ring: u64) -> Result<(), QueueError> {
        let set = self.inner.set_queue_info(desc_table, avail_ring, used_ring);
        // An error would end the connection, and with it the other ring.
        if let Err(e) = set {
            error!(ring = self.index, error = %e, "bad ring address");
            self.bad_address();
        } else {
            lock(&self.state).bad_address = false;
            self.evaluate();
        }
        Ok(())
    }

    fn queue_next_avail(&self) -> u16 {
        self.inner.queue_next_avail()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.pause();
        self.inner.set_queue_next_avail(base);
        self.evaluate();
    }

    fn set_queue_next_used(&self, idx: u16) {
        self.inner.set_queue_next_used(idx);
    }

    fn queue_used_idx(&self) -> Result<u16, QueueError> {
        // An error would end the connection; a ring that is not in memory fails when it is started.
        Ok(self.inner.queue_used_idx().unwrap_or(0))
    }

    fn set_queue_size(&self, num: u16) {
        self.inner.set_queue_size(num);
        self.evaluate();
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.inner.set_queue_event_idx(enabled);
        self.evaluate();
    }

    fn set_queue_ready(&self, ready: bool) {
        self.inner.set_queue_ready(ready);
        self.evaluate();
    }

    fn set_kick(&self, file: Option<File>) {
        self.set_fd(file, |s| &mut s.kick, VringMutex::set_kick);
    }

    fn read_kick(&self) -> io::Result<bool> {
        self.inner.read_kick()
    }

    fn set_call(&self, file: Option<File>) {
        self.set_fd(file, |s| &mut s.call, VringMutex::set_call);
    }

    fn set_err(&self, file: Option<File>) {
        self.set_fd(file, |s| &mut s.err, VringMutex::set_err);
    }
}
