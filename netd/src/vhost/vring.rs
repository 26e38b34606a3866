//! One ring as the frontend sets it up, and its evaluation after every change.
//!
//! The crate's own `VringMutex` keeps the numbers; [`HookVring`] wraps it, because every change arrives as a call
//! and the last one that makes the ring complete may be any of them. What it shares with other rings is in its
//! [`RingGroup`].
//!
//! Locks: a ring's state is locked while the sink is called, the group's never, and the inner ring's never (the
//! sink waits for the worker). The worker calls nothing in here.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::{error, warn};
use vhost_user_backend::{VringMutex, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::{Error as QueueError, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use super::group::{MAKING, RingGroup, lock};
use crate::ring::{Bell, MemMap, Ring, RingError, RingLayout};

pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

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
    /// See [`super::group::Shared`].
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
    /// Whether the sink has its ring.
    pub(super) fn runs(&self) -> bool {
        lock(&self.state).running.is_some()
    }

    /// Compares what should run with what runs.
    pub(super) fn evaluate(&self) {
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
    pub(super) fn pause(&self) {
        let mut state = lock(&self.state);
        if state.running.take().is_some() {
            self.halt();
        }
    }

    pub(super) fn bad_address(&self) {
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
