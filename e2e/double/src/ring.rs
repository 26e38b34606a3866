//! The driver's side of a split virtqueue (VIRTIO 1.2, 2.7).
//!
//! Buffers are offered by [`DriverRing::add`] and made visible by [`DriverRing::publish`]; completions come back by
//! [`DriverRing::next_used`]. Beside this honest way there are raw ones: take a descriptor out of the ring's hands
//! ([`DriverRing::reserve`]), write anything into it, offer any number as a head, set the index to anything.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vmm_sys_util::eventfd::EventFd;

use crate::sys::GuestMem;

/// Descriptor flag: another one follows.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes this buffer.
pub const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// `avail.flags`: no interrupts, please.
const NO_INTERRUPT: u16 = 1;
/// `used.flags`: no kicks, please.
const NO_NOTIFY: u16 = 1;

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest-physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The descriptor that follows.
    pub next: u16,
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The chain's head, as the device wrote it.
    pub head: u32,
    /// Bytes that the device wrote.
    pub len: u32,
    /// What [`DriverRing::add`] was given; none for a raw chain, or for a head that was not offered.
    pub token: Option<u32>,
}

/// The driver's side of one ring.
#[derive(Debug)]
pub struct DriverRing {
    mem: Arc<GuestMem>,
    size: u16,
    event_idx: bool,
    desc: u64,
    avail: u64,
    used: u64,
    tables: u64,
    free: Vec<u16>,
    /// By head: the token and the descriptors of the chain that is on its way.
    chains: Vec<Option<(u32, Vec<u16>)>>,
    next_avail: u16,
    /// What the device was told last.
    published: u16,
    next_used: u16,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) err: EventFd,
}

/// Entries of the indirect table that each head has.
const TABLE: usize = 64;

fn up(at: u64) -> u64 {
    at.next_multiple_of(0x1000)
}

impl DriverRing {
    /// The bytes of guest memory that a ring of `size` entries takes.
    pub(crate) fn bytes(size: u16) -> u64 {
        let n = u64::from(size);
        up(16 * n) + up(6 + 2 * n) + up(6 + 8 * n) + up(16 * n * TABLE as u64)
    }

    pub(crate) fn new(
        mem: Arc<GuestMem>,
        at: u64,
        size: u16,
        event_idx: bool,
    ) -> std::io::Result<DriverRing> {
        let n = u64::from(size);
        let avail = at + up(16 * n);
        let used = avail + up(6 + 2 * n);
        let event = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        Ok(DriverRing {
            mem,
            size,
            event_idx,
            desc: at,
            avail,
            used,
            tables: used + up(6 + 8 * n),
            free: (0..size).rev().collect(),
            chains: (0..size).map(|_| None).collect(),
            next_avail: 0,
            published: 0,
            next_used: 0,
            kick: event()?,
            call: event()?,
            err: event()?,
        })
    }

    /// The same ring in another memory, which has the same contents.
    pub(crate) fn set_mem(&mut self, mem: &Arc<GuestMem>) {
        self.mem = Arc::clone(mem);
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Guest-physical addresses of the descriptor table, the available ring and the used ring.
    pub fn areas(&self) -> (u64, u64, u64) {
        (self.desc, self.avail, self.used)
    }

    /// Descriptors that are not in use.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Chains that were offered and have not come back.
    pub fn in_flight(&self) -> u16 {
        self.next_avail.wrapping_sub(self.next_used)
    }

    /// What the used ring's index says.
    pub fn used_idx(&self) -> u16 {
        self.mem.load_u16(self.used + 2, Ordering::Acquire)
    }

    /// Offers a chain of direct descriptors: address, length, whether the device writes. Not yet visible. `None`
    /// when too few descriptors are free.
    pub fn add(&mut self, buffers: &[(u64, u32, bool)], token: u32) -> Option<u16> {
        if buffers.is_empty() || buffers.len() > self.free.len() {
            return None;
        }
        let mut own = self.free.split_off(self.free.len() - buffers.len());
        own.reverse();
        for (i, &(addr, len, write)) in buffers.iter().enumerate() {
            let next = own.get(i + 1).copied();
            let flags = if next.is_some() { NEXT } else { 0 } | if write { WRITE } else { 0 };
            self.write_descriptor(own[i], Descriptor { addr, len, flags, next: next.unwrap_or(0) });
        }
        Some(self.enter(own, token))
    }

    /// As [`DriverRing::add`], by an indirect table of up to 64 entries.
    pub fn add_indirect(&mut self, buffers: &[(u64, u32, bool)], token: u32) -> Option<u16> {
        if buffers.is_empty() || buffers.len() > TABLE {
            return None;
        }
        let head = self.free.pop()?;
        let table = self.tables + u64::from(head) * 16 * TABLE as u64;
        for (i, &(addr, len, write)) in buffers.iter().enumerate() {
            let more = i + 1 < buffers.len();
            let flags = if more { NEXT } else { 0 } | if write { WRITE } else { 0 };
            let at = table + 16 * i as u64;
            self.write_descriptor_at(at, Descriptor { addr, len, flags, next: i as u16 + 1 });
        }
        let len = 16 * buffers.len() as u32;
        self.write_descriptor(head, Descriptor { addr: table, len, flags: INDIRECT, next: 0 });
        Some(self.enter(vec![head], token))
    }

    fn enter(&mut self, own: Vec<u16>, token: u32) -> u16 {
        let head = own[0];
        self.offer(head);
        self.chains[usize::from(head)] = Some((token, own));
        head
    }

    /// Puts a number into the available ring. Not yet visible.
    fn offer(&mut self, head: u16) {
        let slot = u64::from(self.next_avail % self.size);
        self.mem.store_u16(self.avail + 4 + 2 * slot, head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Makes everything offered visible and kicks the device if it wants that; whether it was kicked.
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return false;
        }
        self.mem.store_u16(self.avail + 2, new, Ordering::Release);
        self.published = new;
        // The index is visible before the device's wish is read.
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self.mem.load_u16(self.used + 4 + 8 * u64::from(self.size), Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.mem.load_u16(self.used, Ordering::Relaxed) & NO_NOTIFY == 0
        };
        if wanted {
            self.kick_now();
        }
        wanted
    }

    /// Kicks the device, wanted or not.
    pub fn kick_now(&self) {
        // Fails only when the counter is full: the device is kicked then.
        let _ = self.kick.write(1);
    }

    /// Completions that wait to be taken.
    pub fn waiting(&self) -> u16 {
        self.used_idx().wrapping_sub(self.next_used)
    }

    /// The completion `ahead` places after the next one, without taking it.
    pub fn peek(&self, ahead: u16) -> Option<Used> {
        if ahead >= self.waiting() {
            return None;
        }
        let slot = u64::from(self.next_used.wrapping_add(ahead) % self.size);
        let mut element = [0u8; 8];
        self.mem.read(self.used + 4 + 8 * slot, &mut element);
        let [a, b, c, d, e, f, g, h] = element;
        let (head, len) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let chain = self.chains.get(head as usize).and_then(Option::as_ref);
        Some(Used { head, len, token: chain.map(|(token, _)| *token) })
    }

    /// Takes the next completion and frees its descriptors.
    pub fn next_used(&mut self) -> Option<Used> {
        let used = self.peek(0)?;
        self.next_used = self.next_used.wrapping_add(1);
        if let Some((_, own)) = self.chains.get_mut(used.head as usize).and_then(Option::take) {
            self.free.extend(own);
        }
        Some(used)
    }

    /// Asks for an interrupt at the next completion; true when one is there already.
    pub fn request_interrupts(&mut self) -> bool {
        if self.event_idx {
            let at = self.avail + 4 + 2 * u64::from(self.size);
            self.mem.store_u16(at, self.next_used, Ordering::Relaxed);
        } else {
            self.mem.store_u16(self.avail, 0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.waiting() > 0
    }

    /// Asks for no interrupts.
    pub fn suppress_interrupts(&mut self) {
        if self.event_idx {
            // Behind the device: it never passes this again before the index wraps around.
            let at = self.avail + 4 + 2 * u64::from(self.size);
            self.mem.store_u16(at, self.next_used.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.mem.store_u16(self.avail, NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Whether the device has interrupted since the last call.
    pub fn interrupted(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Whether the backend has reported the ring as broken since the last call.
    pub fn broken(&self) -> bool {
        self.err.read().is_ok()
    }

    /// Takes a descriptor out of the ring's own use, for raw chains.
    pub fn reserve(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Writes one entry of the descriptor table.
    pub fn write_descriptor(&self, index: u16, descriptor: Descriptor) {
        self.write_descriptor_at(self.desc + 16 * u64::from(index), descriptor);
    }

    /// Writes a descriptor anywhere in guest memory, as for an indirect table.
    pub fn write_descriptor_at(&self, at: u64, descriptor: Descriptor) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&descriptor.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&descriptor.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&descriptor.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&descriptor.next.to_le_bytes());
        self.mem.write(at, &bytes);
    }

    /// Offers any number as the head of a chain. Visible after [`DriverRing::publish`].
    pub fn offer_raw(&mut self, head: u16) {
        self.offer(head);
    }

    /// Writes the available ring's index, whatever it should be.
    pub fn set_avail_idx(&mut self, idx: u16) {
        self.mem.store_u16(self.avail + 2, idx, Ordering::Release);
    }
}
