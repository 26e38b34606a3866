//! One split virtqueue: pop, push, publish, and when the driver and the device notify each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::bell::Bell;
use super::desc::{DESC_BYTES, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc};
use super::{Area, ChainError, Iovs, MemMap, PopError, RingError};

/// The most entries a ring may have (VIRTIO 1.2, 2.7).
pub const MAX_SIZE: u16 = 32768;
/// The most buffers one chain may have: what a vectored system call takes.
pub const MAX_CHAIN: u32 = libc::UIO_MAXIOV as u32;

/// `avail.flags`: the driver wants no interrupts (VIRTIO 1.2, 2.7.7).
const AVAIL_NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device wants no kicks (VIRTIO 1.2, 2.7.10).
const USED_NO_NOTIFY: u16 = 1;

/// Where a ring lies and where it stands. Addresses are guest-physical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Number of entries, a power of two.
    pub size: u16,
    /// Descriptor table, 16 bytes an entry.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
    /// The next entry of the available ring to read.
    pub next_avail: u16,
    /// The next entry of the used ring to write.
    pub next_used: u16,
    /// Whether `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
}

/// One chain taken from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Popped {
    /// Its head, to be given back by [`Ring::push_used`].
    pub head: u16,
    /// Bytes that the device may read.
    pub readable: u32,
    /// Bytes that the device may write.
    pub writable: u32,
    /// Slices appended to the readable list.
    pub readable_slices: u16,
    /// Slices appended to the writable list.
    pub writable_slices: u16,
}

/// The device side of a split virtqueue.
///
/// The owner that gives a ring up (stop, memory change) must have completed or [given back](Ring::unpop) every chain it
/// popped: a split ring has no other way to say which chains are still owed.
#[derive(Debug)]
pub struct Ring {
    mask: u16,
    event_idx: bool,
    desc: *const u8,
    avail: *const u8,
    used: *mut u8,
    used_gpa: u64,
    next_avail: u16,
    /// The driver's index when it was last looked at.
    avail_seen: u16,
    next_used: u16,
    /// What `used.idx` says.
    published: u16,
    in_flight: u16,
    broken: bool,
    /// See [`Ring::set_disabled`].
    disabled: bool,
    hint: usize,
    mem: Arc<MemMap>,
    kick: OwnedFd,
    call: Option<Bell>,
    err: Option<Bell>,
}

// SAFETY: the pointers lead into the mapping that `mem` holds, which may be accessed from any thread; a Ring is
// used through `&mut` or for system calls only.
unsafe impl Send for Ring {}

impl Ring {
    /// Prepares a ring at `layout` in `mem`.
    ///
    /// `kick` is signalled by the driver, `call` signals the driver (an eventfd, a pipe or a socket), `err` tells
    /// the frontend that the ring is broken.
    ///
    /// # Errors
    /// When the size, an alignment or an address is wrong, or a descriptor cannot be prepared.
    pub fn new(
        layout: RingLayout,
        mem: Arc<MemMap>,
        kick: OwnedFd,
        call: Option<OwnedFd>,
        err: Option<OwnedFd>,
    ) -> Result<Ring, RingError> {
        let size = layout.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(RingError::Size(size));
        }
        let n = u64::from(size);
        let mut hint = 0;
        let mut area = |area, addr: u64, align: u64, len: u64| {
            if !addr.is_multiple_of(align) {
                return Err(RingError::Misaligned { area, addr });
            }
            let host = mem.translate(addr, len, &mut hint).ok_or(RingError::Unmapped { area, addr, len })?;
            // Mappings begin at page boundaries, but a region may begin anywhere in guest-physical space.
            if (host as u64).is_multiple_of(align) {
                Ok(host)
            } else {
                Err(RingError::Misaligned { area, addr })
            }
        };
        // Alignments and sizes: VIRTIO 1.2, 2.7; the event fields are part of the areas in any case.
        let desc = area(Area::Descriptors, layout.desc, 16, 16 * n)?;
        let avail = area(Area::Available, layout.avail, 2, 6 + 2 * n)?;
        let used = area(Area::Used, layout.used, 4, 6 + 8 * n)?;
        let bell = |fd: Option<OwnedFd>| fd.map(Bell::new).transpose().map_err(RingError::Descriptor);
        let (call, err) = (bell(call)?, bell(err)?);
        Ok(Ring {
            mask: size - 1,
            event_idx: layout.event_idx,
            desc,
            avail,
            used,
            used_gpa: layout.used,
            next_avail: layout.next_avail,
            avail_seen: layout.next_avail,
            next_used: layout.next_used,
            published: layout.next_used,
            in_flight: 0,
            broken: false,
            disabled: false,
            hint,
            mem,
            kick,
            call,
            err,
        })
    }

    /// The descriptor that becomes readable when the driver kicks.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The next entry of the available ring to read.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// The number of entries.
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// Takes the next chain and appends its slices; `None` when the ring is empty.
    ///
    /// # Errors
    /// See [`PopError`]. On an error nothing stays appended.
    #[inline]
    pub fn pop(&mut self, readable: &mut Iovs, writable: &mut Iovs) -> Result<Option<Popped>, PopError> {
        if self.avail_seen == self.next_avail {
            if self.broken {
                return Ok(None);
            }
            // Acquire: what the driver wrote before it moved the index is visible now.
            let idx = self.avail_u16(2).load(Ordering::Acquire);
            let idx = u16::from_le(idx);
            if idx == self.next_avail {
                return Ok(None);
            }
            if idx.wrapping_sub(self.next_avail) > self.size() {
                let (from, size) = (self.next_avail, self.size());
                return Err(PopError::Ring(RingError::AvailJump { from, to: idx, size }));
            }
            self.avail_seen = idx;
        }
        if self.in_flight > self.mask {
            return Err(PopError::Ring(RingError::Overrun(self.size())));
        }
        let slot = usize::from(self.next_avail & self.mask);
        let head = u16::from_le(self.avail_u16(4 + 2 * slot).load(Ordering::Relaxed));
        if head > self.mask {
            return Err(PopError::Ring(RingError::Head(head)));
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.in_flight += 1;

        let (had_readable, had_writable) = (readable.len(), writable.len());
        match self.walk(head, readable, writable) {
            Ok(popped) => {
                if popped.readable_slices > 0 {
                    readable.hold_guest(&self.mem);
                }
                if popped.writable_slices > 0 {
                    writable.hold_guest(&self.mem);
                }
                Ok(Some(popped))
            }
            Err(reason) => {
                readable.truncate(had_readable);
                writable.truncate(had_writable);
                Err(PopError::Chain { head, reason })
            }
        }
    }

    /// Walks the chain at `head`. The caller makes the lists hold the memory, or cuts them back.
    #[inline]
    fn walk(&mut self, head: u16, readable: &mut Iovs, writable: &mut Iovs) -> Result<Popped, ChainError> {
        let mut table = self.desc;
        let mut entries = u32::from(self.mask) + 1;
        let mut indirect = false;
        let mut index = head;
        let mut seen = 0u32;
        let (mut read_bytes, mut write_bytes) = (0u64, 0u64);
        let (mut read_slices, mut write_slices) = (0u32, 0u32);
        loop {
            if u32::from(index) >= entries {
                return Err(ChainError::Next(index));
            }
            if seen >= entries {
                return Err(ChainError::Loop);
            }
            seen += 1;
            // SAFETY: index is below the number of entries of the translated table.
            let Desc { addr, len, flags, next } = unsafe { Desc::read(table, index) };
            if flags & DESC_INDIRECT != 0 {
                // VIRTIO 1.2, 2.7.5.3: the WRITE flag of this descriptor is ignored.
                if indirect {
                    return Err(ChainError::IndirectNested);
                }
                if flags & DESC_NEXT != 0 {
                    return Err(ChainError::IndirectNext);
                }
                if len == 0 || len % DESC_BYTES != 0 {
                    return Err(ChainError::IndirectLength(len));
                }
                if len / DESC_BYTES > MAX_CHAIN {
                    return Err(ChainError::TooLong);
                }
                table = self
                    .mem
                    .translate(addr, u64::from(len), &mut self.hint)
                    .ok_or(ChainError::Unmapped { addr, len })?;
                entries = len / DESC_BYTES;
                (indirect, index, seen) = (true, 0, 0);
                continue;
            }
            if len == 0 {
                return Err(ChainError::Empty);
            }
            let (list, slices) = if flags & DESC_WRITE != 0 {
                write_bytes += u64::from(len);
                (&mut *writable, &mut write_slices)
            } else {
                if write_slices > 0 {
                    return Err(ChainError::Order);
                }
                read_bytes += u64::from(len);
                (&mut *readable, &mut read_slices)
            };
            if let Some(host) = self.mem.translate(addr, u64::from(len), &mut self.hint) {
                list.push(host, len as usize);
                *slices += 1;
            } else {
                self.mem.pieces(addr, len, &mut self.hint, |ptr, n| {
                    list.push(ptr, n);
                    *slices += 1;
                })?;
            }
            if read_slices + write_slices > MAX_CHAIN {
                return Err(ChainError::TooLong);
            }
            if flags & DESC_NEXT == 0 {
                break;
            }
            index = next;
        }
        // VIRTIO 1.2, 2.7.4.2: a chain has at most 2^32 bytes in all.
        if read_bytes + write_bytes > u64::from(u32::MAX) {
            return Err(ChainError::TooLong);
        }
        Ok(Popped {
            head,
            readable: read_bytes as u32,
            writable: write_bytes as u32,
            readable_slices: read_slices as u16,
            writable_slices: write_slices as u16,
        })
    }

    /// Gives back the last `chains` chains that were popped and not completed: they will be popped again.
    pub fn unpop(&mut self, chains: u16) {
        let chains = chains.min(self.in_flight);
        self.next_avail = self.next_avail.wrapping_sub(chains);
        self.in_flight -= chains;
        if self.broken {
            self.avail_seen = self.next_avail;
        }
    }

    /// Completes the chain `head`, into which `written` bytes were written. The driver sees it after
    /// [`Ring::publish`].
    #[inline]
    pub fn push_used(&mut self, head: u16, written: u32) {
        let slot = usize::from(self.next_used & self.mask);
        let element = [u32::from(head).to_le(), written.to_le()];
        // SAFETY: the used ring has one 8-byte element for each slot, after 4 bytes of header, 4-aligned.
        unsafe { self.used.add(4 + 8 * slot).cast::<[u32; 2]>().write_volatile(element) };
        self.next_used = self.next_used.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Makes all staged completions visible by one store of `used.idx`; true when the driver wants an interrupt
    /// for them, which the caller then owes ([`Ring::signal`]).
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        // Release: the elements are visible before the index is.
        self.used_u16(2).store(new.to_le(), Ordering::Release);
        self.published = new;
        if self.mem.logging() {
            self.log_used(old, new);
        }
        self.asks_for(old)
    }

    /// Whether the driver wants an interrupt for the last `chains` completions that were published. It says so of
    /// completions that it has not seen: it may have seen them since [`Ring::publish`] told that it does.
    #[must_use]
    pub fn wants_interrupt(&self, chains: usize) -> bool {
        let chains = u16::try_from(chains).unwrap_or(u16::MAX).min(self.size());
        self.asks_for(self.published.wrapping_sub(chains))
    }

    /// Whether the driver asks for an interrupt for what was completed after `old`.
    #[inline]
    fn asks_for(&self, old: u16) -> bool {
        // The index is visible before the driver's wish is read (VIRTIO 1.2, 2.7.7.1); the driver has the
        // mirror image of this barrier.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.avail_u16(4 + 2 * (usize::from(self.mask) + 1)).load(Ordering::Relaxed);
            crossed(u16::from_le(event), old, self.published)
        } else {
            u16::from_le(self.avail_u16(0).load(Ordering::Relaxed)) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// Interrupts the driver: 8 bytes to the call descriptor. A full descriptor already signals, and is left alone.
    pub fn signal(&self) {
        if let Some(call) = &self.call {
            // It fails where the frontend is gone or has not read yet: nothing to do in either case.
            let _ = call.ring();
        }
    }

    /// As [`Ring::signal`], for a thread that no other thread [interrupts](crate::Thread).
    pub fn signal_aside(&self) {
        if let Some(call) = &self.call {
            let _ = call.ring_aside();
        }
    }

    /// Asks the driver not to kick. With `EVENT_IDX` there is nothing to do: a driver kicks once and then waits
    /// for [`Ring::request_kicks`].
    pub fn suppress_kicks(&mut self) {
        if !self.event_idx {
            self.used_u16(0).store(USED_NO_NOTIFY.to_le(), Ordering::Relaxed);
            self.mem.mark_dirty(self.used_gpa, 2);
        }
    }

    /// Asks the driver to kick at the next chain; true when one is there already, for which no kick may come.
    pub fn request_kicks(&mut self) -> bool {
        let idx = self.request_kick_at(self.next_avail);
        !self.broken && idx != self.next_avail
    }

    /// Asks the driver to kick at the next chain behind those that were looked at: what was [given back](Ring::unpop)
    /// is known and not enough. True when more came meanwhile, for which no kick may come; it counts as looked at.
    pub fn request_more(&mut self) -> bool {
        let seen = self.avail_seen;
        let idx = self.request_kick_at(seen);
        if self.broken || idx == seen {
            return false;
        }
        // An index that jumped is found by the next pop, which reads it once it knows of no chain.
        let jumped = idx.wrapping_sub(self.next_avail) > self.size();
        self.avail_seen = if jumped { self.next_avail } else { idx };
        true
    }

    /// Asks for a kick when the chain at `position` is offered; the driver's index after that.
    fn request_kick_at(&mut self, position: u16) -> u16 {
        if self.event_idx {
            let offset = 4 + 8 * (usize::from(self.mask) + 1);
            self.used_u16(offset).store(position.to_le(), Ordering::Relaxed);
            self.mem.mark_dirty(self.used_gpa + offset as u64, 2);
        } else {
            self.used_u16(0).store(0, Ordering::Relaxed);
            self.mem.mark_dirty(self.used_gpa, 2);
        }
        // The wish is visible before the index is read again (VIRTIO 1.2, 2.7.10.1).
        fence(Ordering::SeqCst);
        // Acquire: as in pop.
        u16::from_le(self.avail_u16(2).load(Ordering::Acquire))
    }

    /// Marks a transmit ring that the driver has taken out of use: its chains are completed, and nothing of them is
    /// carried (vhost-user, Ring states).
    pub fn set_disabled(&mut self) {
        self.disabled = true;
    }

    /// Whether the ring is one whose chains are only completed.
    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Tells the frontend that the ring is broken. From now on it is empty: nothing is popped and no kicks matter,
    /// while chains in flight can still be completed. Only a restart by the frontend mends it.
    pub fn break_down(&mut self) {
        self.broken = true;
        self.avail_seen = self.next_avail;
        if let Some(err) = &self.err {
            let _ = err.ring();
        }
    }

    /// Marks the pages of the first `len` bytes of `iovs` from slice `first_slice` on as written, when the dirty
    /// log is on. To be called after the bytes were written.
    #[inline]
    pub fn mark_written(&self, iovs: &Iovs, first_slice: usize, len: usize) {
        if self.mem.logging() {
            self.log_payload(iovs, first_slice, len);
        }
    }

    #[cold]
    fn log_payload(&self, iovs: &Iovs, first_slice: usize, len: usize) {
        let mut left = len;
        for slice in iovs.as_raw().get(first_slice..).unwrap_or_default() {
            if left == 0 {
                break;
            }
            let n = left.min(slice.iov_len);
            // A slice never spans two regions.
            if let Some(gpa) = self.mem.guest_address(slice.iov_base.cast()) {
                self.mem.mark_dirty(gpa, n as u64);
            }
            left -= n;
        }
    }

    /// Marks `used.idx` and the elements from counter `old` to `new`, in at most two runs.
    #[cold]
    fn log_used(&self, old: u16, new: u16) {
        self.mem.mark_dirty(self.used_gpa, 4);
        let count = u64::from(new.wrapping_sub(old)).min(u64::from(self.mask) + 1);
        let first = u64::from(old & self.mask);
        let to_end = count.min(u64::from(self.mask) + 1 - first);
        self.mem.mark_dirty(self.used_gpa + 4 + 8 * first, 8 * to_end);
        self.mem.mark_dirty(self.used_gpa + 4, 8 * (count - to_end));
    }

    /// A 16-bit field of the available ring. `offset` is even and at most 4 + 2 * size.
    #[inline]
    fn avail_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: the area is 2-aligned, has 6 + 2 * size bytes and lives as long as self.mem. Only the driver
        // writes it, and atomics tolerate that.
        unsafe { AtomicU16::from_ptr(self.avail.cast_mut().add(offset).cast()) }
    }

    /// A 16-bit field of the used ring. `offset` is 0, 2 or 4 + 8 * size.
    #[inline]
    fn used_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: the area is 4-aligned, has 6 + 8 * size bytes and lives as long as self.mem.
        unsafe { AtomicU16::from_ptr(self.used.add(offset).cast()) }
    }
}

/// Whether the step from `old` to `new` passed `event` (VIRTIO 1.2, 2.7.7.1 and 2.7.10).
fn crossed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
