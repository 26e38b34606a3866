//! Guest memory as host pointers: one immutable snapshot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use nix::sys::eventfd::EventFd;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress};

use super::fault::Guard;
use super::log::DirtyLog;
use super::{ChainError, RingError, fault};

/// One mapped region.
#[derive(Clone, Copy, Debug)]
struct Region {
    gpa: u64,
    len: u64,
    host: *mut u8,
}

/// Immutable snapshot of guest memory with translated host pointers; keeps the mapping alive.
///
/// Only the dirty log changes during its life.
#[derive(Debug)]
pub struct MemMap {
    /// Sorted by guest-physical address, without overlaps.
    regions: Vec<Region>,
    logging: AtomicBool,
    log: ArcSwapOption<DirtyLog>,
    /// Before `_mem`: an entry ends before its mapping does.
    guards: OnceLock<Vec<Guard>>,
    /// Owns the mappings that `regions` points into.
    _mem: Arc<GuestMemoryMmap>,
}

// SAFETY: the pointers lead into shared mappings that live as long as `_mem`; they are never turned into
// references, and `MemMap` itself does not dereference them.
unsafe impl Send for MemMap {}
// SAFETY: as above; the only mutable state is an atomic and an ArcSwap.
unsafe impl Sync for MemMap {}

impl MemMap {
    /// Takes a snapshot of `mem`.
    ///
    /// # Errors
    /// [`RingError::Memory`] when a region has no host address.
    pub fn new(mem: Arc<GuestMemoryMmap>) -> Result<Arc<MemMap>, RingError> {
        let mut regions = Vec::with_capacity(mem.num_regions());
        for region in mem.iter() {
            let host = region.get_host_address(MemoryRegionAddress(0)).map_err(RingError::Memory)?;
            regions.push(Region { gpa: region.start_addr().raw_value(), len: region.len(), host });
        }
        regions.sort_by_key(|r| r.gpa);
        Ok(Arc::new(MemMap {
            regions,
            logging: AtomicBool::new(false),
            log: ArcSwapOption::empty(),
            guards: OnceLock::new(),
            _mem: mem,
        }))
    }

    /// Makes a SIGBUS in this memory raise `alarm` instead of ending the process: see [`super::fault`]. The first alarm
    /// stays.
    ///
    /// # Errors
    /// [`RingError::Guard`].
    pub fn guard(&self, alarm: &Arc<EventFd>) -> Result<(), RingError> {
        let guards = self.regions.iter().map(|r| fault::guard(r.host, r.len as usize, alarm));
        let guards = guards.collect::<Result<Vec<Guard>, _>>().map_err(RingError::Guard)?;
        let _ = self.guards.set(guards);
        Ok(())
    }

    /// Whether the frontend has taken memory away that is guarded here.
    pub fn is_lost(&self) -> bool {
        self.guards.get().is_some_and(|guards| guards.iter().any(Guard::is_lost))
    }

    /// The host address of `[gpa, gpa + len)` when that lies inside one region. `hint` is the caller's memory of
    /// the region that answered last.
    pub(crate) fn translate(&self, gpa: u64, len: u64, hint: &mut usize) -> Option<*mut u8> {
        let (region, offset) = self.find(gpa, hint)?;
        if len > region.len - offset {
            return None;
        }
        // SAFETY: offset is below region.len, the length of the mapping that starts at region.host.
        Some(unsafe { region.host.add(offset as usize) })
    }

    /// Cuts `[gpa, gpa + len)` at region boundaries and hands each piece to `piece`.
    pub(crate) fn pieces(
        &self,
        gpa: u64,
        len: u32,
        hint: &mut usize,
        mut piece: impl FnMut(*mut u8, usize),
    ) -> Result<(), ChainError> {
        let refused = ChainError::Unmapped { addr: gpa, len };
        let (mut at, mut left) = (gpa, u64::from(len));
        while left > 0 {
            let (region, offset) = self.find(at, hint).ok_or(refused)?;
            let n = left.min(region.len - offset);
            // SAFETY: offset is below region.len, the length of the mapping that starts at region.host.
            piece(unsafe { region.host.add(offset as usize) }, n as usize);
            left -= n;
            if left > 0 {
                at = at.checked_add(n).ok_or(refused)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn find(&self, gpa: u64, hint: &mut usize) -> Option<(&Region, u64)> {
        if let Some(region) = self.regions.get(*hint) {
            let offset = gpa.wrapping_sub(region.gpa);
            if offset < region.len {
                return Some((region, offset));
            }
        }
        let index = self.regions.partition_point(|r| r.gpa <= gpa).checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = gpa - region.gpa;
        if offset >= region.len {
            return None;
        }
        *hint = index;
        Some((region, offset))
    }

    /// The guest-physical address behind a host address.
    pub(crate) fn guest_address(&self, host: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = (host as u64).wrapping_sub(r.host as u64);
            (offset < r.len).then(|| r.gpa + offset)
        })
    }

    /// Starts, changes or (with `None`) ends dirty logging.
    pub fn set_log(&self, log: Option<Arc<DirtyLog>>) {
        let on = log.is_some();
        self.log.store(log);
        self.logging.store(on, Ordering::SeqCst);
    }

    /// Whether a dirty log is set.
    #[inline]
    pub fn logging(&self) -> bool {
        self.logging.load(Ordering::Relaxed)
    }

    /// Marks the pages of `[gpa, gpa + len)` dirty; does nothing unless a log is set.
    ///
    /// Call it after the bytes were written.
    #[inline]
    pub fn mark_dirty(&self, gpa: u64, len: u64) {
        if self.logging() {
            self.mark(gpa, len);
        }
    }

    #[cold]
    fn mark(&self, gpa: u64, len: u64) {
        if let Some(log) = self.log.load().as_ref() {
            log.mark(gpa, len);
        }
    }
}
