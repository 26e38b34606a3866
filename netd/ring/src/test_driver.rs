//! The driver's side of a ring, for tests and the oracle.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{MemMap, Ring, RingLayout};

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// Two adjacent regions, a hole, and a third.
pub(super) const REGIONS: [(u64, usize); 3] =
    [(0x1_0000, 0x2_0000), (0x3_0000, 0x1_0000), (0x8_0000, 0x1000)];
pub(super) const DESC: u64 = 0x1_0000;
pub(super) const AVAIL: u64 = 0x1_8000;
pub(super) const USED: u64 = 0x1_c000;
pub(super) const DATA: u64 = 0x2_0000;

pub(super) fn eventfd() -> OwnedFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap().into()
}

/// What a driver does, without any of a driver's care.
pub(super) struct Driver {
    pub(super) mem: Arc<GuestMemoryMmap>,
    pub(super) layout: RingLayout,
    pub(super) idx: u16,
}

impl Driver {
    pub(super) fn new(size: u16, start: u16, event_idx: bool) -> Driver {
        let ranges: Vec<_> = REGIONS.iter().map(|&(at, len)| (GuestAddress(at), len)).collect();
        let mem = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
        let layout = RingLayout {
            size,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            next_avail: start,
            next_used: start,
            event_idx,
        };
        let driver = Driver { mem, layout, idx: start };
        driver.put_u16(AVAIL + 2, start);
        driver.put_u16(USED + 2, start);
        driver
    }

    pub(super) fn map(&self) -> Arc<MemMap> {
        MemMap::new(Arc::clone(&self.mem)).unwrap()
    }

    pub(super) fn ring(&self) -> Ring {
        Ring::new(self.layout, self.map(), eventfd(), None, None).unwrap()
    }

    pub(super) fn put_u16(&self, at: u64, value: u16) {
        self.mem.write_obj(value.to_le(), GuestAddress(at)).unwrap();
    }

    pub(super) fn get_u16(&self, at: u64) -> u16 {
        u16::from_le(self.mem.read_obj(GuestAddress(at)).unwrap())
    }

    pub(super) fn desc_at(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = table + 16 * u64::from(index);
        self.mem.write_obj(addr.to_le(), GuestAddress(at)).unwrap();
        self.mem.write_obj(len.to_le(), GuestAddress(at + 8)).unwrap();
        self.put_u16(at + 12, flags);
        self.put_u16(at + 14, next);
    }

    pub(super) fn desc(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.desc_at(DESC, index, addr, len, flags, next);
    }

    pub(super) fn offer(&mut self, head: u16) {
        self.put_u16(AVAIL + 4 + 2 * u64::from(self.idx % self.layout.size), head);
        self.idx = self.idx.wrapping_add(1);
        self.put_u16(AVAIL + 2, self.idx);
    }

    pub(super) fn used(&self, counter: u16) -> (u32, u32) {
        let at = USED + 4 + 8 * u64::from(counter % self.layout.size);
        let get = |at| u32::from_le(self.mem.read_obj::<u32>(GuestAddress(at)).unwrap());
        (get(at), get(at + 4))
    }

    pub(super) fn set_used_event(&self, value: u16) {
        self.put_u16(AVAIL + 4 + 2 * u64::from(self.layout.size), value);
    }

    pub(super) fn avail_event(&self) -> u16 {
        self.get_u16(USED + 4 + 8 * u64::from(self.layout.size))
    }
}
