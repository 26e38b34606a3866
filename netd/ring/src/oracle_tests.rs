//! Differential tests: this ring against `virtio_queue::Queue`, each on a guest memory of its own that sees the
//! same driver.

use proptest::prelude::*;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::test_driver::*;
use super::*;

fn oracle(driver: &Driver) -> Queue {
    let l = driver.layout;
    let mut q = Queue::new(l.size).unwrap();
    q.try_set_desc_table_address(GuestAddress(l.desc)).unwrap();
    q.try_set_avail_ring_address(GuestAddress(l.avail)).unwrap();
    q.try_set_used_ring_address(GuestAddress(l.used)).unwrap();
    q.set_next_avail(l.next_avail);
    q.set_next_used(l.next_used);
    q.set_event_idx(l.event_idx);
    q.set_ready(true);
    q
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

/// A list's buffers as guest-physical ranges, neighbours joined.
fn ranges(map: &MemMap, list: &Iovs) -> Vec<(u64, u64)> {
    let pieces = list.as_raw().iter().map(|s| {
        (map.guest_address(s.iov_base.cast()).expect("slice outside guest memory"), s.iov_len as u64)
    });
    join(pieces)
}

fn split(descs: &[Descriptor], writable: bool) -> Vec<(u64, u64)> {
    join(
        descs
            .iter()
            .filter(|d| d.is_write_only() == writable)
            .map(|d| (d.addr().raw_value(), u64::from(d.len()))),
    )
}

/// The whole of every region.
fn memory(mem: &GuestMemoryMmap) -> Vec<u8> {
    let mut all = Vec::new();
    for (at, len) in REGIONS {
        let mut bytes = vec![0; len];
        mem.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        all.extend(bytes);
    }
    all
}

#[derive(Clone, Debug)]
enum Op {
    /// Offer a chain: buffers as (place, length), how many of them are readable, where an indirect table begins.
    Offer {
        buffers: Vec<(u64, u32)>,
        readable: usize,
        indirect_from: usize,
    },
    Pop,
    /// Complete one of the chains in flight.
    Push {
        which: usize,
        written: u32,
    },
    Publish,
    Unpop,
    UsedEvent(u16),
    Flags(bool),
    Suppress,
    Request,
}

fn buffer() -> impl Strategy<Value = (u64, u32)> {
    prop_oneof![
        4 => (DATA + 0x4000..DATA + 0xf000, 1u32..3000),
        1 => (0x3_0000u64 - 200..0x3_0000, 1u32..400),
        1 => (0x8_0000u64..0x8_0800, 1u32..0x800),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (prop::collection::vec(buffer(), 1..6), 0usize..6, 0usize..8)
            .prop_map(|(buffers, readable, indirect_from)| Op::Offer { buffers, readable, indirect_from }),
        4 => Just(Op::Pop),
        4 => (any::<usize>(), any::<u32>()).prop_map(|(which, written)| Op::Push { which, written }),
        2 => Just(Op::Publish),
        1 => Just(Op::Unpop),
        2 => (0u16..12).prop_map(Op::UsedEvent),
        1 => any::<bool>().prop_map(Op::Flags),
        1 => Just(Op::Suppress),
        1 => Just(Op::Request),
    ]
}

/// Both sides of the comparison, and what an honest driver remembers.
struct Pair {
    ours: Driver,
    theirs: Driver,
    map: std::sync::Arc<MemMap>,
    ring: Ring,
    queue: Queue,
    free: Vec<u16>,
    /// Heads on their way, oldest first, with the descriptors they occupy.
    offered: std::collections::VecDeque<(u16, Vec<u16>)>,
    /// The chains in flight, each with the position after it.
    popped: Vec<(u16, Vec<u16>, u16)>,
    staged: Vec<u16>,
    tables: u64,
}

impl Pair {
    fn new(size: u16, start: u16, event_idx: bool) -> Pair {
        let (ours, theirs) = (Driver::new(size, start, event_idx), Driver::new(size, start, event_idx));
        let map = ours.map();
        let ring = Ring::new(ours.layout, map.clone(), eventfd(), None, None).unwrap();
        let queue = oracle(&theirs);
        Pair {
            ours,
            theirs,
            map,
            ring,
            queue,
            free: (0..size).collect(),
            offered: Default::default(),
            popped: Vec::new(),
            staged: Vec::new(),
            tables: 0,
        }
    }

    fn offer(&mut self, buffers: &[(u64, u32)], readable: usize, indirect_from: usize) {
        let direct = indirect_from.min(buffers.len());
        let indirect = direct < buffers.len();
        let needed = direct + usize::from(indirect);
        if needed > self.free.len() {
            return;
        }
        let own: Vec<u16> = self.free.split_off(self.free.len() - needed);
        // A table for each chain in flight at most.
        let table = DATA + (self.tables % 64) * 0x80;
        self.tables += 1;
        let write = |i: usize| if i < readable { 0 } else { WRITE };
        for driver in [&mut self.ours, &mut self.theirs] {
            for i in 0..direct {
                let next = own.get(i + 1).copied();
                let flags = write(i) | if next.is_some() { NEXT } else { 0 };
                driver.desc(own[i], buffers[i].0, buffers[i].1, flags, next.unwrap_or(0));
            }
            if indirect {
                let rest = &buffers[direct..];
                driver.desc(own[direct], table, 16 * rest.len() as u32, INDIRECT, 0);
                for (i, &(addr, len)) in rest.iter().enumerate() {
                    let more = if i + 1 < rest.len() { NEXT } else { 0 };
                    driver.desc_at(table, i as u16, addr, len, write(direct + i) | more, i as u16 + 1);
                }
            }
            driver.offer(own[0]);
        }
        self.offered.push_back((own[0], own));
    }

    fn pop(&mut self) {
        let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
        let got = self.ring.pop(&mut readable, &mut writable).unwrap();
        let expected = self.queue.pop_descriptor_chain(&*self.theirs.mem);
        assert_eq!(got.map(|p| p.head), expected.as_ref().map(virtio_queue::DescriptorChain::head_index));
        let (Some(got), Some(chain)) = (got, expected) else { return };
        let descs: Vec<Descriptor> = chain.collect();
        assert_eq!(ranges(&self.map, &readable), split(&descs, false));
        assert_eq!(ranges(&self.map, &writable), split(&descs, true));
        assert_eq!((got.readable as usize, got.writable as usize), (readable.bytes(), writable.bytes()));
        assert_eq!(usize::from(got.readable_slices), readable.len());
        assert_eq!(usize::from(got.writable_slices), writable.len());
        let (head, own) = self.offered.pop_front().expect("popped what was not offered");
        self.popped.push((head, own, self.ring.next_avail()));
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Offer { buffers, readable, indirect_from } => self.offer(buffers, *readable, *indirect_from),
            Op::Pop => self.pop(),
            Op::Push { which, written } => {
                if self.popped.is_empty() {
                    return;
                }
                let (head, own, _) = self.popped.remove(which % self.popped.len());
                self.ring.push_used(head, *written);
                self.queue.add_used(&*self.theirs.mem, head, *written).unwrap();
                self.staged.extend(own);
            }
            Op::Publish => {
                let staged = !self.staged.is_empty();
                let flags = self.ours.get_u16(AVAIL);
                let told = self.ring.publish();
                let expected = self.queue.needs_notification(&*self.theirs.mem).unwrap();
                if self.ours.layout.event_idx {
                    assert_eq!(told, expected);
                } else {
                    assert_eq!(told, staged && flags & 1 == 0);
                }
                self.free.append(&mut self.staged);
                assert_eq!(memory(&self.ours.mem), memory(&self.theirs.mem));
            }
            Op::Unpop => {
                // Only the chain that was popped last may go back, and only while it is in flight.
                if self.popped.last().is_some_and(|(_, _, after)| *after == self.queue.next_avail())
                    && let Some((head, own, _)) = self.popped.pop()
                {
                    self.ring.unpop(1);
                    self.queue.go_to_previous_position();
                    self.offered.push_front((head, own));
                }
            }
            Op::UsedEvent(ahead) => {
                let event = self.queue.next_used().wrapping_add(*ahead).wrapping_sub(4);
                for driver in [&self.ours, &self.theirs] {
                    driver.set_used_event(event);
                }
            }
            Op::Flags(quiet) => {
                for driver in [&self.ours, &self.theirs] {
                    driver.put_u16(AVAIL, u16::from(*quiet));
                }
            }
            Op::Suppress => {
                self.ring.suppress_kicks();
                self.queue.disable_notification(&*self.theirs.mem).unwrap();
            }
            Op::Request => {
                let more = self.ring.request_kicks();
                assert_eq!(more, self.queue.enable_notification(&*self.theirs.mem).unwrap());
            }
        }
        assert_eq!(self.ring.next_avail(), self.queue.next_avail());
    }
}

/// One descriptor of a hostile table: mostly plausible, each field sometimes wild.
fn hostile_desc() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![
        6 => DATA..DATA + 0x800,
        1 => Just(DESC),
        1 => 0x2_ff00u64..0x3_0100,
        1 => 0x3_ff00u64..0x4_0100,
        1 => any::<u64>(),
    ];
    let len =
        prop_oneof![6 => 1u32..200, 2 => (1u32..8).prop_map(|n| n * 16), 1 => Just(0), 1 => any::<u32>()];
    let flags = prop_oneof![3 => Just(0u16), 4 => Just(NEXT), 2 => Just(WRITE), 2 => Just(NEXT | WRITE),
        2 => Just(INDIRECT), 1 => any::<u16>()];
    let next = prop_oneof![8 => 0u16..8, 1 => any::<u16>()];
    (addr, len, flags, next)
}

fn in_memory(mem: &GuestMemoryMmap, d: &Descriptor) -> bool {
    let len = u64::from(d.len());
    d.addr().raw_value().checked_add(len).is_some() && mem.check_range(d.addr(), d.len() as usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn honest_drivers_see_the_same_from_both(
        size in prop::sample::select(vec![1u16, 2, 8, 16]),
        start in prop_oneof![Just(0u16), 0xfff0u16..=0xffff, any::<u16>()],
        event_idx: bool,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(size, start, event_idx);
        for op in &ops {
            pair.run(op);
        }
    }

    #[test]
    fn hostile_tables_are_accepted_or_refused_as_documented(
        direct in prop::collection::vec(hostile_desc(), 8),
        indirect in prop::collection::vec(hostile_desc(), 8),
        head in prop_oneof![8 => 0u16..8, 1 => any::<u16>()],
    ) {
        let (mut ours, mut theirs) = (Driver::new(8, 0, false), Driver::new(8, 0, false));
        for driver in [&mut ours, &mut theirs] {
            for (i, &(addr, len, flags, next)) in direct.iter().enumerate() {
                driver.desc(i as u16, addr, len, flags, next);
            }
            for (i, &(addr, len, flags, next)) in indirect.iter().enumerate() {
                driver.desc_at(DATA, i as u16, addr, len, flags, next);
            }
            driver.offer(head);
        }
        let map = ours.map();
        let mut ring = Ring::new(ours.layout, map.clone(), eventfd(), None, None).unwrap();
        let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
        let got = ring.pop(&mut readable, &mut writable);

        let mem = &*theirs.mem;
        let chain = oracle(&theirs).pop_descriptor_chain(mem).unwrap();
        prop_assert_eq!(chain.head_index(), head);
        let descs: Vec<Descriptor> = chain.collect();
        // A chain whose last descriptor promises another one was cut short by the oracle.
        let whole = descs.last().is_some_and(|d| !d.has_next());
        match got {
            Ok(None) => prop_assert!(false, "a chain was there"),
            Ok(Some(_)) => {
                prop_assert!(whole);
                prop_assert_eq!(ranges(&map, &readable), split(&descs, false));
                prop_assert_eq!(ranges(&map, &writable), split(&descs, true));
            }
            Err(PopError::Ring(RingError::Head(h))) => prop_assert!(h >= 8 && descs.is_empty()),
            Err(PopError::Ring(e)) => prop_assert!(false, "{}", e),
            Err(PopError::Chain { reason, .. }) => {
                prop_assert!(readable.is_empty() && writable.is_empty());
                match reason {
                    ChainError::Next(_)
                    | ChainError::Loop
                    | ChainError::IndirectLength(_)
                    | ChainError::IndirectNested => prop_assert!(!whole, "{}", reason),
                    ChainError::Empty => prop_assert!(descs.iter().any(|d| d.len() == 0)),
                    ChainError::Order => {
                        prop_assert!(descs.windows(2).any(|w| w[0].is_write_only() && !w[1].is_write_only()));
                    }
                    ChainError::IndirectNext => {
                        prop_assert!(direct.iter().any(|d| d.2 & (INDIRECT | NEXT) == INDIRECT | NEXT));
                    }
                    // Either a buffer, or a table that is not inside one region.
                    ChainError::Unmapped { addr, len } => {
                        let buffer = descs.iter().any(|d| !in_memory(mem, d));
                        let table = direct.iter().any(|d| d.2 & INDIRECT != 0 && (d.0, d.1) == (addr, len));
                        prop_assert!(buffer || table || !whole);
                    }
                    ChainError::TooLong => {
                        let table = direct.iter().any(|d| d.2 & INDIRECT != 0 && d.1 / 16 > MAX_CHAIN);
                        prop_assert!(table || descs.iter().map(|d| u64::from(d.len())).sum::<u64>() > 1 << 32);
                    }
                }
            }
        }
    }

    #[test]
    fn no_bytes_in_guest_memory_do_harm(bytes in prop::collection::vec(any::<u8>(), 512), idx: u16) {
        let driver = Driver::new(8, 0, true);
        driver.mem.write_slice(&bytes[..128], GuestAddress(DESC)).unwrap();
        driver.mem.write_slice(&bytes[128..150], GuestAddress(AVAIL)).unwrap();
        driver.mem.write_slice(&bytes[150..], GuestAddress(DATA)).unwrap();
        driver.put_u16(AVAIL + 2, idx % 9);
        let mut ring = driver.ring();
        let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
        for _ in 0..20 {
            match ring.pop(&mut readable, &mut writable) {
                Ok(None) | Err(PopError::Ring(_)) => break,
                Ok(Some(p)) => ring.push_used(p.head, p.writable),
                Err(PopError::Chain { head, .. }) => ring.push_used(head, 0),
            }
            ring.publish();
            ring.request_kicks();
        }
    }
}
