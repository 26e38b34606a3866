//! The ring on memory that a driver without any care writes.
//!
//! The first bytes place the ring, the rest are steps of the driver (bytes, descriptors, offers) and of the device
//! (pop, complete, publish, give back). What `pop` answers is held against a walk of the same chain through the
//! guest's memory by the rules of VIRTIO 1.2, 2.7, written down a second time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::Bytes;
use crate::ring::{DirtyLog, Iovs, MAX_CHAIN, MemMap, PopError, Ring, RingLayout};

/// Two adjacent regions, a hole, and a third.
const REGIONS: [(u64, usize); 3] = [(0x1_0000, 0x2000), (0x1_2000, 0x1000), (0x1_8000, 0x1000)];
const DESC: u64 = 0x1_0000;
const AVAIL: u64 = 0x1_0400;
const USED: u64 = 0x1_0600;
const STEPS: usize = 400;

/// A chain as the specification has it: readable and writable ranges of guest memory.
type Chain = (Vec<(u64, u64)>, Vec<(u64, u64)>);

struct Bench {
    mem: Arc<GuestMemoryMmap>,
    layout: RingLayout,
    ring: Ring,
    idx: u16,
    in_flight: Vec<u16>,
    next_used: u16,
    published: u16,
    broken: bool,
    readable: Iovs,
    writable: Iovs,
}

/// Runs one input.
pub fn ring(data: &[u8]) {
    let mut b = Bytes::new(data);
    let ranges = REGIONS.map(|(at, len)| (GuestAddress(at), len));
    let mem = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let map = MemMap::new(Arc::clone(&mem)).unwrap();
    let shape = b.u8();
    let start = b.u16();
    let mut layout = RingLayout {
        size: 1 << (shape & 7).min(6),
        desc: DESC,
        avail: AVAIL,
        used: USED,
        next_avail: start,
        next_used: if shape & 0x10 == 0 { start } else { b.u16() },
        event_idx: shape & 8 != 0,
    };
    if shape & 0x20 != 0 {
        // Anywhere.
        layout.size = b.u16();
        layout.desc = u64::from(b.u32());
        layout.avail = b.u64();
        layout.used = u64::from(b.u32());
    }
    if shape & 0x40 != 0 {
        let log = tempfile_of(1);
        map.set_log(Some(DirtyLog::new(log.into(), 0, 1).unwrap()));
    }
    let Ok(ring) = Ring::new(layout, map, eventfd(), Some(eventfd()), None) else { return };
    let next_used = layout.next_used;
    let mut bench = Bench {
        mem,
        layout,
        ring,
        idx: start,
        in_flight: Vec::new(),
        next_used,
        published: next_used,
        broken: false,
        readable: Iovs::new(),
        writable: Iovs::new(),
    };
    bench.put(layout.avail + 2, &start.to_le_bytes());
    for _ in 0..STEPS {
        if b.is_empty() {
            break;
        }
        bench.step(&mut b);
    }
}

fn eventfd() -> OwnedFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap().into()
}

fn tempfile_of(len: u64) -> OwnedFd {
    let fd = nix::sys::memfd::memfd_create("log", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&fd, len.cast_signed()).unwrap();
    fd
}

/// An address: mostly in the regions or close to them.
fn address(b: &mut Bytes<'_>) -> u64 {
    let at = u64::from(b.u16());
    match at >> 14 {
        3 if b.one_in(8) => b.u64(),
        _ => 0x1_0000 + at % 0xa000,
    }
}

impl Bench {
    fn put(&self, at: u64, bytes: &[u8]) {
        // The driver may also miss.
        let _ = self.mem.write(bytes, GuestAddress(at));
    }

    fn get_u16(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.mem.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn step(&mut self, b: &mut Bytes<'_>) {
        let size = self.layout.size;
        match b.u8() % 16 {
            0 => {
                let (at, len) = (address(b), b.below(33));
                self.put(at, b.take(len));
            }
            1..=3 => {
                let table = if b.one_in(4) { address(b) } else { self.layout.desc };
                let at = table.wrapping_add(16 * u64::from(b.u8()));
                let (addr, len) =
                    (address(b), if b.one_in(6) { b.u32() } else { u32::from(b.u16()) % 0x900 });
                let kind = b.u8();
                let flags = if kind & 0x80 == 0 { u16::from(kind & 7) } else { b.u16() };
                let next = u16::from(b.u8());
                let desc =
                    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
                self.put(at, &desc.concat());
            }
            4..=6 => {
                let head = u16::from(b.u8());
                let head = if head < 0xf0 { head & (size - 1) } else { head };
                self.put(self.layout.avail + 4 + 2 * u64::from(self.idx & (size - 1)), &head.to_le_bytes());
                self.idx = self.idx.wrapping_add(1);
                self.put(self.layout.avail + 2, &self.idx.to_le_bytes());
            }
            7 => {
                self.idx = b.u16();
                self.put(self.layout.avail + 2, &self.idx.to_le_bytes());
            }
            8..=10 => self.pop(),
            11 | 12 => {
                let written = b.u32();
                if !self.in_flight.is_empty() {
                    let head = self.in_flight.remove(b.below(self.in_flight.len()));
                    self.ring.push_used(head, written);
                    self.next_used = self.next_used.wrapping_add(1);
                }
            }
            13 => {
                if self.ring.publish() {
                    self.ring.signal();
                }
                if self.published != self.next_used {
                    assert_eq!(self.get_u16(self.layout.used + 2), self.next_used, "used index");
                }
                self.published = self.next_used;
            }
            14 => {
                let n = u16::from(b.u8());
                let before = self.ring.next_avail();
                self.ring.unpop(n);
                let given = before.wrapping_sub(self.ring.next_avail());
                assert!(given <= n && usize::from(given) <= self.in_flight.len());
                self.in_flight.truncate(self.in_flight.len() - usize::from(given));
            }
            _ => match b.below(4) {
                0 => self.ring.suppress_kicks(),
                1 => {
                    let more = self.ring.request_kicks();
                    let idx = self.get_u16(self.layout.avail + 2);
                    assert_eq!(more, !self.broken && idx != self.ring.next_avail());
                }
                2 => self.payload(b),
                _ if b.one_in(8) => {
                    self.ring.break_down();
                    self.broken = true;
                }
                _ => {}
            },
        }
    }

    fn pop(&mut self) {
        self.readable.clear();
        self.writable.clear();
        let at = self.ring.next_avail();
        let slot = self.layout.avail + 4 + 2 * u64::from(at & (self.layout.size - 1));
        let expected = self.walk(self.get_u16(slot));
        match self.ring.pop(&mut self.readable, &mut self.writable) {
            Ok(None) => {}
            Ok(Some(p)) => {
                assert!(!self.broken, "a broken ring gave a chain");
                assert_eq!(p.head, self.get_u16(slot));
                assert!(p.head < self.layout.size);
                assert_eq!(self.readable.bytes(), p.readable as usize);
                assert_eq!(self.writable.bytes(), p.writable as usize);
                assert_eq!(self.readable.len(), usize::from(p.readable_slices));
                assert_eq!(self.writable.len(), usize::from(p.writable_slices));
                let (readable, writable) = expected.expect("a chain that the specification forbids");
                assert_eq!(self.ranges(&self.readable), join(readable));
                assert_eq!(self.ranges(&self.writable), join(writable));
                self.in_flight.push(p.head);
                assert!(self.in_flight.len() <= usize::from(self.layout.size));
            }
            Err(PopError::Chain { head, .. }) => {
                assert!(self.readable.is_empty() && self.writable.is_empty(), "something stayed appended");
                assert!(expected.is_none(), "a good chain was refused");
                self.in_flight.push(head);
            }
            Err(PopError::Ring(_)) => {
                self.ring.break_down();
                self.broken = true;
                let nothing = self.ring.pop(&mut self.readable, &mut self.writable);
                assert!(matches!(nothing, Ok(None)), "{nothing:?}");
            }
        }
    }

    /// Every slice as guest addresses; all of it must be in guest memory.
    fn ranges(&self, list: &Iovs) -> Vec<(u64, u64)> {
        let place = |s: &libc::iovec| {
            let host = s.iov_base as u64;
            self.mem
                .iter()
                .find_map(|r| {
                    let base = r.get_host_address(vm_memory::MemoryRegionAddress(0)).unwrap() as u64;
                    let offset = host.wrapping_sub(base);
                    let inside = offset < r.len() && s.iov_len as u64 <= r.len() - offset;
                    inside.then(|| (r.start_addr().0 + offset, s.iov_len as u64))
                })
                .expect("a slice outside of guest memory")
        };
        join(list.as_raw().iter().map(place))
    }

    fn payload(&self, b: &mut Bytes<'_>) {
        let (offset, len) = (usize::from(b.u16() % 0x1000), usize::from(b.u16() % 0x1000));
        let mut copy = vec![0; len];
        let n = self.readable.read(0, offset, &mut copy);
        assert_eq!(n, self.readable.bytes().saturating_sub(offset).min(len));
        let pairs = copy[..n].chunks(2).map(|w| u64::from(w[0]) << 8 | w.get(1).map_or(0, |b| u64::from(*b)));
        let sum = self.readable.checksum(0, offset, len, 0);
        // Zero has two forms in one's complement.
        assert_eq!(pairs.sum::<u64>() % 0xffff, u64::from(sum) % 0xffff, "checksum");
        let n = self.writable.write(0, 0, &copy);
        self.ring.mark_written(&self.writable, 0, n);
    }

    /// The chain at `head`, or None where a rule is broken.
    fn walk(&self, head: u16) -> Option<Chain> {
        let (mut table, mut entries, mut index) =
            (self.layout.desc, u64::from(self.layout.size), u64::from(head));
        let (mut seen, mut indirect) = (0, false);
        let mut chain = Chain::default();
        let mut slices = 0;
        loop {
            if index >= entries || seen >= entries {
                return None;
            }
            seen += 1;
            let mut desc = [0; 16];
            self.mem.read_slice(&mut desc, GuestAddress(table + 16 * index)).ok()?;
            let addr = u64::from_le_bytes(*desc.first_chunk().unwrap());
            let len = u64::from(u32::from_le_bytes(desc[8..12].try_into().unwrap()));
            let flags = u16::from_le_bytes([desc[12], desc[13]]);
            if flags & 4 != 0 {
                let fits = len % 16 == 0 && (16..=16 * u64::from(MAX_CHAIN)).contains(&len);
                if indirect || flags & 1 != 0 || !fits || self.pieces(addr, len)? != 1 {
                    return None;
                }
                (table, entries, index, seen, indirect) = (addr, len / 16, 0, 0, true);
                continue;
            }
            let writes = flags & 2 != 0;
            if len == 0 || (!writes && !chain.1.is_empty()) {
                return None;
            }
            slices += self.pieces(addr, len)?;
            if slices > MAX_CHAIN as usize {
                return None;
            }
            if writes { &mut chain.1 } else { &mut chain.0 }.push((addr, len));
            if flags & 1 == 0 {
                return Some(chain);
            }
            index = u64::from(u16::from_le_bytes([desc[14], desc[15]]));
        }
    }

    /// How many regions `[at, at + len)` touches, when all of it is memory.
    fn pieces(&self, at: u64, len: u64) -> Option<usize> {
        let end = at.checked_add(len)?;
        let mut covered = 0;
        let mut n = 0;
        for (start, size) in REGIONS {
            let (low, high) = (at.max(start), end.min(start + size as u64));
            if low < high {
                covered += high - low;
                n += 1;
            }
        }
        (covered == len).then_some(n)
    }
}

/// Ranges as (start, length), neighbours made one: the ring cuts buffers at region boundaries.
fn join(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (at, len) in pieces {
        match joined.last_mut() {
            Some((start, have)) if *start + *have == at => *have += len,
            _ => joined.push((at, len)),
        }
    }
    joined
}
