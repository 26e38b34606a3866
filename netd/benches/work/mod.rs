//! The inner loops that are measured, each as a state and one turn of work on it.
//!
//! `micro.rs` measures their time, `instructions.rs` counts their instructions: both do exactly this.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark that cannot be set up ends")]

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netd::flow::{FlowId, Key, Kind, Table};
use netd::ring::{Iovs, MemMap, Ring, RingLayout};
use netd::time::Time;
use netd::wire::{
    ETH_LEN, Eth, EthIp, Ip, MAX_HEADERS, MacAddr, TcpFlags, TcpHeader, TcpMeta, UdpHeader, VNET_LEN,
    build_tcp, build_udp, fold, sum,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Chains, lookups and so on of one turn.
pub(crate) const TURN: usize = 64;

/// Entries of the ring.
const SIZE: u16 = 256;
const DESC: u64 = 0x1_0000;
const AVAIL: u64 = 0x2_0000;
const USED: u64 = 0x3_0000;
const DATA: u64 = 0x4_0000;
/// Descriptor flag: another one follows.
const NEXT: u16 = 1;

/// A ring whose driver offers chains of one or two descriptors for ever.
pub(crate) struct Rings {
    ring: Ring,
    mem: Arc<GuestMemoryMmap>,
    offered: u16,
    readable: Iovs,
    writable: Iovs,
}

impl Rings {
    /// Chains of `descriptors` buffers.
    pub(crate) fn new(descriptors: u16) -> Rings {
        let mem = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0x1_0000), 0x20_0000)]).unwrap());
        let put = |value: u16, at: u64| mem.write_obj(value.to_le(), GuestAddress(at)).unwrap();
        for index in 0..SIZE {
            let at = DESC + 16 * u64::from(index);
            let more = index % descriptors + 1 < descriptors;
            mem.write_obj((DATA + 2048 * u64::from(index)).to_le(), GuestAddress(at)).unwrap();
            mem.write_obj(1514u32.to_le(), GuestAddress(at + 8)).unwrap();
            put(if more { NEXT } else { 0 }, at + 12);
            put(if more { index + 1 } else { 0 }, at + 14);
            // The heads, again and again.
            put(index * descriptors % SIZE, AVAIL + 4 + 2 * u64::from(index));
        }
        let layout = RingLayout {
            size: SIZE,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            next_avail: 0,
            next_used: 0,
            event_idx: true,
        };
        let kick = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let ring =
            Ring::new(layout, MemMap::new(Arc::clone(&mem)).unwrap(), kick.into(), None, None).unwrap();
        Rings { ring, mem, offered: 0, readable: Iovs::new(), writable: Iovs::new() }
    }

    /// [`TURN`] chains are popped and pushed, and published together.
    pub(crate) fn turn(&mut self) {
        self.offered = self.offered.wrapping_add(TURN as u16);
        self.mem.write_obj(self.offered.to_le(), GuestAddress(AVAIL + 2)).unwrap();
        for _ in 0..TURN {
            self.readable.clear();
            let popped = self.ring.pop(&mut self.readable, &mut self.writable).unwrap().unwrap();
            black_box(&self.readable);
            self.ring.push_used(popped.head, 0);
        }
        black_box(self.ring.publish());
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 9, 0, last])
}

fn ends() -> EthIp {
    EthIp {
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        src: address(1),
        dst: address(2),
        ttl: None,
        class: 0,
    }
}

/// Headers of a TCP frame and of a UDP frame.
pub(crate) struct Frames {
    tcp: [u8; MAX_HEADERS],
    udp: [u8; MAX_HEADERS],
    payload: Vec<u8>,
}

impl Frames {
    /// A segment and a datagram of 1448 bytes.
    pub(crate) fn new() -> Frames {
        let mut frames = Frames { tcp: [0; MAX_HEADERS], udp: [0; MAX_HEADERS], payload: vec![0x5a; 1448] };
        frames.build_tcp();
        frames.build_udp();
        frames
    }

    /// Builds the headers of [`TURN`] segments.
    pub(crate) fn build_tcp(&mut self) {
        let ends = ends();
        for at in 0..TURN {
            let meta = TcpMeta {
                src_port: 80,
                dst_port: 40_000,
                seq: at as u32 * 1448,
                ack: 1,
                flags: TcpFlags(0x10),
                window: 512,
                mss: None,
                window_scale: None,
                payload_len: self.payload.len(),
                gso_size: Some(1448),
            };
            black_box(build_tcp(&mut self.tcp, black_box(&ends), black_box(&meta)));
        }
    }

    /// Builds the headers of [`TURN`] datagrams.
    pub(crate) fn build_udp(&mut self) {
        let ends = ends();
        for _ in 0..TURN {
            black_box(build_udp(&mut self.udp, black_box(&ends), 53, 40_000, self.payload.len()));
        }
    }

    /// Reads the headers of [`TURN`] segments.
    pub(crate) fn parse_tcp(&self) {
        for _ in 0..TURN {
            let frame = &black_box(&self.tcp)[VNET_LEN..];
            let packet = &frame[ETH_LEN..];
            black_box(Eth::parse(frame).unwrap());
            let ip = Ip::parse(packet, packet.len() + self.payload.len()).unwrap();
            black_box(TcpHeader::parse(&packet[ip.header_len..]).unwrap());
        }
    }

    /// Reads the headers of [`TURN`] datagrams.
    pub(crate) fn parse_udp(&self) {
        for _ in 0..TURN {
            let frame = &black_box(&self.udp)[VNET_LEN..];
            let packet = &frame[ETH_LEN..];
            let total = packet.len() + self.payload.len();
            black_box(Eth::parse(frame).unwrap());
            let ip = Ip::parse(packet, total).unwrap();
            black_box(UdpHeader::parse(&packet[ip.header_len..], total - ip.header_len).unwrap());
        }
    }

    /// The checksum of 1448 bytes, [`TURN`] times.
    pub(crate) fn checksum(&self) {
        for _ in 0..TURN {
            black_box(fold(sum(black_box(&self.payload), 0)));
        }
    }
}

/// A flow table that is as full as it is going to be, in virtual time.
pub(crate) struct Flows {
    table: Table<Box<[u64; 16]>>,
    ids: Vec<FlowId>,
    now: Time,
    at: usize,
}

/// Where a flow's timer is set to: a minimal retransmission timeout ahead.
const AHEAD: Duration = Duration::from_millis(200);
/// What passes between two segments.
const STEP: Duration = Duration::from_micros(2);

fn key(n: usize) -> Key {
    // As many peers as it takes, each with many ports.
    let peer = IpAddr::from([198, 18, (n / 50_000) as u8, 1]);
    Key {
        kind: Kind::Tcp,
        guest: SocketAddr::new(address(2), 443),
        peer: SocketAddr::new(peer, (10_000 + n % 50_000) as u16),
    }
}

/// Of the table's hash: with others each key stands elsewhere, and each count is another.
const SEEDS: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

impl Flows {
    /// So many flows, each with a timer.
    pub(crate) fn new(count: usize) -> Flows {
        let mut table = Table::with_seeds(count as u32 + 1, SEEDS);
        let now = Time::ZERO;
        let ids: Vec<FlowId> = (0..count).map(|n| table.insert(key(n), Box::new([0; 16])).unwrap()).collect();
        for (n, id) in ids.iter().enumerate() {
            table.arm(*id, now + AHEAD + Duration::from_micros(n as u64 % 1000));
        }
        Flows { table, ids, now, at: 0 }
    }

    /// The next number, far from the last one.
    fn next(&mut self) -> usize {
        // Prime to any number of flows that is measured.
        self.at = (self.at + 7_919) % self.ids.len();
        self.at
    }

    /// Looks [`TURN`] flows up by their tuples.
    pub(crate) fn find(&mut self) {
        for _ in 0..TURN {
            let key = key(self.next());
            black_box(self.table.find(black_box(&key)).unwrap());
        }
    }

    /// Ends [`TURN`] flows and opens others in their place.
    pub(crate) fn replace(&mut self) {
        for _ in 0..TURN {
            let n = self.next();
            let (key, flow) = self.table.remove(self.ids[n]).unwrap();
            self.ids[n] = self.table.insert(key, flow).unwrap();
        }
    }

    /// Sets the timers of [`TURN`] flows anew as time goes by, and looks for those that are due.
    pub(crate) fn timers(&mut self) {
        for _ in 0..TURN {
            let n = self.next();
            self.now = self.now + STEP;
            self.table.arm(self.ids[n], self.now + AHEAD);
            while let Some(due) = self.table.due(self.now) {
                black_box(due);
            }
        }
    }
}
