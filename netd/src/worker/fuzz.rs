//! A worker with rings of its own, for the fuzz target of frames: one turn of the loop at a time.
//!
//! Nothing here knows how a turn works: commands are queued, the last of which is the end, and the loop runs until
//! it has carried them out.

#![allow(clippy::unwrap_used, reason = "a target says by panicking what went wrong")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::command::{Command, Mailbox, mailbox};
use super::peers::Peers;
use super::source_ports::SourcePorts;
use super::turn::{Parts, RX, TX, Worker};
use crate::config::ports::Ports;
use crate::counters::Counters;
use crate::limits::{Limits, Timeouts};
use crate::net::Link;
use crate::ring::{MemMap, Ring, RingLayout};
use crate::shared::Shared;
use crate::sockets::PeekOffset;
use crate::state::{self, Descriptors, InheritError};
use crate::time::Clock;

const BASE: u64 = 0x10_0000;
const SIZE: u16 = 64;
/// Bytes of one ring's areas, and of one of its buffers.
const AREA: u64 = 0x2000;
const BUFFER: u64 = 0x1000;
const WRITE: u16 = 2;
const NEXT: u16 = 1;

/// A worker and the driver of its rings.
pub(crate) struct Bench {
    worker: Worker,
    mailbox: Mailbox,
    mem: Arc<GuestMemoryMmap>,
    rings: [Option<Ring>; 2],
    /// What the driver has offered and taken back, by ring.
    offered: [u16; 2],
    taken: [u16; 2],
    rx_buffer: u32,
}

fn area(ring: usize) -> u64 {
    BASE + AREA * ring as u64
}

fn buffer(ring: usize, slot: u16) -> u64 {
    BASE + 2 * AREA + BUFFER * (u64::from(SIZE) * ring as u64 + u64::from(slot))
}

fn eventfd() -> OwnedFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap().into()
}

impl Bench {
    /// `small` is how much smaller than usual the receive buffers are.
    pub(crate) fn new(link: Link, features: u64, small: u8) -> Bench {
        let (mailbox, inbox) = mailbox().unwrap();
        let limits = Limits { flows: 32, fragment_datagrams: 4, fragment_bytes: 20_000, ..Limits::default() };
        let mailboxes: Arc<[Mailbox]> = Arc::new([mailbox.clone()]);
        let parts = Parts {
            limits,
            timeouts: Timeouts::default(),
            link: Arc::new(link),
            asks: false,
            source_ports: SourcePorts::of_pod(&Ports::default()),
            refused: Default::default(),
            counters: Arc::new(Counters::default()),
            peek: PeekOffset::probe(),
            spins: false,
            carriers: Arc::default(),
            peers: Peers::new(0, Arc::new(Shared::new(1, &limits, Clock::new())), mailboxes),
        };
        let worker = Worker::new(parts, inbox).unwrap();
        let bytes = 2 * AREA + 2 * u64::from(SIZE) * BUFFER;
        let mem = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), bytes as usize)]).unwrap());
        let map = MemMap::new(Arc::clone(&mem)).unwrap();
        let ring = |index: usize| {
            let layout = RingLayout {
                size: SIZE,
                desc: area(index),
                avail: area(index) + 0x1000,
                used: area(index) + 0x1800,
                next_avail: 0,
                next_used: 0,
                event_idx: features & crate::vhost::feature::EVENT_IDX != 0,
            };
            Some(Ring::new(layout, Arc::clone(&map), eventfd(), Some(eventfd()), None).unwrap())
        };
        let rings = [ring(RX), ring(TX)];
        let rx_buffer = BUFFER as u32 >> small.min(5);
        let mut bench = Bench { worker, mailbox, mem, rings, offered: [0; 2], taken: [0; 2], rx_buffer };
        for slot in 0..SIZE {
            bench.receive_into(slot);
        }
        bench.mailbox.send(Command::Connected(true));
        bench.mailbox.send(Command::Features(features));
        bench
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.mem.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn u16_at(&self, at: u64) -> u16 {
        self.mem.read_obj::<u16>(GuestAddress(at)).unwrap()
    }

    fn desc(&self, ring: usize, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let desc = [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(area(ring) + 16 * u64::from(index), &desc.concat());
    }

    fn expose(&mut self, ring: usize, head: u16) {
        let idx = self.offered[ring];
        self.put(area(ring) + 0x1004 + 2 * u64::from(idx % SIZE), &head.to_le_bytes());
        self.offered[ring] = idx.wrapping_add(1);
        self.put(area(ring) + 0x1002, &self.offered[ring].to_le_bytes());
    }

    fn receive_into(&mut self, slot: u16) {
        self.desc(RX, slot, buffer(RX, slot), self.rx_buffer, WRITE, 0);
        self.expose(RX, slot);
    }

    /// Puts a frame into the transmit ring, in pieces that end at `cuts`.
    pub(crate) fn offer(&mut self, frame: &[u8], cuts: &[usize]) {
        // Everything was completed in the turn before: the table is free from here on.
        let first = self.offered[TX].wrapping_mul(4) % SIZE;
        let frame = &frame[..frame.len().min(BUFFER as usize)];
        let mut ends: Vec<usize> = cuts.iter().copied().filter(|c| *c > 0 && *c < frame.len()).collect();
        ends.push(frame.len());
        ends.sort_unstable();
        ends.dedup();
        let at = buffer(TX, first);
        self.put(at, frame);
        let mut start = 0;
        for (i, end) in ends.iter().enumerate() {
            let more = i + 1 < ends.len();
            let index = first + i as u16;
            let flags = if more { NEXT } else { 0 };
            self.desc(TX, index, at + start as u64, (end - start) as u32, flags, index + 1);
            start = *end;
        }
        self.expose(TX, first);
    }

    /// Puts a frame into the transmit ring whose pieces all lie at the same place: a chain as long as the ring.
    #[cfg(test)]
    fn offer_again_and_again(&mut self, frame: &[u8]) {
        let at = buffer(TX, 0);
        self.put(at, frame);
        for index in 0..SIZE {
            let flags = if index + 1 < SIZE { NEXT } else { 0 };
            self.desc(TX, index, at, BUFFER as u32, flags, index + 1);
        }
        self.expose(TX, 0);
    }

    /// One turn of the loop.
    pub(crate) fn turn(&mut self) {
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if let Some(ring) = ring.take() {
                let (reply, _) = sync_channel(1);
                self.mailbox.send(Command::StartRing { index, ring: Box::new(ring), reply });
            }
        }
        self.mailbox.send(Command::Shutdown);
        self.worker.life.running = true;
        self.worker.run();
        // What the guest offered was given back, whatever it was.
        let used = self.u16_at(area(TX) + 0x1802);
        assert_eq!(used, self.offered[TX], "frames of the guest were kept");
        self.taken[TX] = used;
    }

    /// Takes over what a worker of another machine had, and goes on with its connections.
    ///
    /// # Errors
    /// The worker cannot go on with it, and has nothing then.
    pub(crate) fn load(
        &mut self,
        state: state::Worker,
        fds: Descriptors,
        connections: Vec<(state::Endpoints, bool)>,
    ) -> Result<(), InheritError> {
        let (freeze, _) = sync_channel(1);
        let (reply, answer) = sync_channel(1);
        self.mailbox.send(Command::Freeze(freeze));
        let clock = Clock::resume(state.state.now);
        self.mailbox.send(Command::Load(Box::new(state), clock, fds, reply));
        self.mailbox.send(Command::Unpark(Arc::new(connections)));
        self.mailbox.send(Command::Thaw);
        self.mailbox.send(Command::Shutdown);
        self.worker.life.running = true;
        self.worker.run();
        let (_, loaded) = answer.try_recv().unwrap();
        if loaded.is_err() {
            let (abandoned, _) = sync_channel(1);
            self.mailbox.send(Command::Abandon(Arc::default(), abandoned));
        }
        loaded.map(drop)
    }

    /// Takes what the guest has received: frames with their virtio headers.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        let used = self.u16_at(area(RX) + 0x1802);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        let mut left = 0;
        while self.taken[RX] != used {
            let element = area(RX) + 0x1804 + 8 * u64::from(self.taken[RX] % SIZE);
            let slot = self.u16_at(element);
            let len = self.mem.read_obj::<u32>(GuestAddress(element + 4)).unwrap();
            assert!(slot < SIZE && len <= self.rx_buffer, "{len} bytes in buffer {slot}");
            let mut bytes = vec![0; len as usize];
            self.mem.read_slice(&mut bytes, GuestAddress(buffer(RX, slot))).unwrap();
            if left == 0 {
                left = u16::from_le_bytes([bytes[10], bytes[11]]);
                assert!(left > 0, "a frame in no buffers");
                frames.push(Vec::new());
            }
            frames.last_mut().unwrap().extend(bytes);
            left -= 1;
            self.taken[RX] = self.taken[RX].wrapping_add(1);
            self.receive_into(slot);
        }
        assert_eq!(left, 0, "a frame without its end");
        frames
    }

    /// Stops both rings as a frontend does.
    pub(crate) fn end(mut self) {
        if self.rings.iter().any(Option::is_some) {
            return;
        }
        let mut answers = Vec::new();
        for index in [RX, TX] {
            let (reply, answer) = sync_channel(1);
            self.mailbox.send(Command::StopRing { index, reply });
            answers.push(answer);
        }
        self.mailbox.send(Command::Connected(false));
        self.mailbox.send(Command::Shutdown);
        self.worker.life.running = true;
        self.worker.run();
        for (answer, offered) in answers.iter().zip(self.offered) {
            // The driver broke no rule: the ring is still there.
            let ring = answer.try_recv().unwrap().expect("a ring was lost");
            assert!(
                ring.next_avail().wrapping_sub(offered) == 0
                    || offered.wrapping_sub(ring.next_avail()) <= SIZE
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use etherparse::PacketBuilder;

    use super::super::flows::Flow;
    use super::super::receive::Origin;
    use super::*;
    use crate::counters::Reason;
    use crate::flow::{FlowId, Key, Kind};
    use crate::port::{PortRule, Proto};
    use crate::ring::Iovs;
    use crate::shared::Side;
    use crate::wire::VNET_LEN;

    #[test]
    fn a_frame_longer_than_any_packet_is_refused_before_it_is_copied() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        let arp = [[0; 12].as_slice(), &[0xff; 6], &[2, 0, 0, 0, 0, 1], &[0x08, 0x06]].concat();
        bench.offer_again_and_again(&arp);
        bench.turn();
        let counters = &bench.worker.counters;
        assert_eq!(counters.dropped(Reason::TooLarge), 1);
        assert_eq!((counters.guest_tx_frames.get(), counters.guest_tx_bytes.get()), (0, 0));
        bench.end();
    }

    /// A rule that leads a port of the pod to the guest's DNS server.
    fn to_dns() -> PortRule {
        let free = UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        PortRule { proto: Proto::Udp, pod: free, guest: 53 }
    }

    fn at(address: &str, port: u16) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), port)
    }

    /// Opens the flow of the peer that has the port `n`.
    fn open(worker: &mut Worker, rule: PortRule, n: u16) -> FlowId {
        open_to(worker, rule, n, at("192.0.2.1", n))
    }

    /// The same, where the peer is another one for the pod than for the guest.
    fn open_to(worker: &mut Worker, rule: PortRule, n: u16, pod_peer: SocketAddr) -> FlowId {
        let (guest, peer) = (at("10.9.0.2", rule.guest), at("192.0.2.1", n));
        let key = Key { kind: Kind::Udp, guest, peer };
        worker.open_udp_shared(key, None, rule, pod_peer).unwrap_or_else(|_| panic!("flow {n}"))
    }

    #[test]
    fn a_flow_that_is_used_becomes_the_newest_and_leaves_early_once_it_is_answered() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        let worker = &mut bench.worker;
        let rule = to_dns();
        let (first, second) = (open(worker, rule, 1), open(worker, rule, 2));
        let oldest = |worker: &Worker| worker.flows.oldest_datagrams(Side::Peer, false, false);
        assert_eq!(oldest(worker), Some(first));
        let uses = |worker: &mut Worker, by_guest: bool| {
            let Some(Flow::Udp(f)) = worker.flows.get_mut(first) else { panic!("no flow") };
            let used = if by_guest { f.life.on_guest(worker.now) } else { f.life.on_pod(worker.now) };
            worker.note_use(first, used);
        };
        worker.now = worker.now + std::time::Duration::from_secs(1);
        uses(worker, false);
        assert_eq!(oldest(worker), Some(second));
        uses(worker, true);
        let early = worker.now + Timeouts::default().udp_exchange;
        assert_eq!(worker.flows.next_deadline(), Some(early), "the question is answered");
        worker.now = worker.now + std::time::Duration::from_secs(2);
        uses(worker, false);
        assert_eq!(worker.flows.oldest_datagrams(Side::Peer, true, false), Some(first), "a conversation");
        assert_eq!(oldest(worker), Some(second));
    }

    #[test]
    fn what_makes_room_is_the_oldest_flow_of_the_first_sort_that_there_is() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        let worker = &mut bench.worker;
        let rule = to_dns();
        let (short, sustained) = (open(worker, rule, 1), open(worker, rule, 2));
        worker.now = worker.now + std::time::Duration::from_secs(3);
        let Some(Flow::Udp(f)) = worker.flows.get_mut(sustained) else { panic!("no flow") };
        f.life.on_pod(worker.now);
        let used = f.life.on_guest(worker.now);
        worker.note_use(sustained, used);
        // For datagrams or a connection, of a peer or of the guest.
        let goes = |worker: &Worker| {
            [(Side::Peer, true), (Side::Peer, false), (Side::Guest, true), (Side::Guest, false)]
                .map(|(side, datagrams)| worker.oldest_for(side, datagrams))
        };
        assert_eq!(goes(worker), [Some(short); 4]);
        worker.flows.remove(short);
        assert_eq!(goes(worker), [Some(sustained), Some(sustained), Some(sustained), None]);
    }

    #[test]
    fn what_the_guest_has_sent_by_a_flow_goes_out_before_the_flow_makes_room() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        let worker = &mut bench.worker;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let rule = to_dns();
        let first = open_to(worker, rule, 1, socket.local_addr().unwrap());
        let mut frame = vec![0; VNET_LEN];
        PacketBuilder::ethernet2([0x52, 0x54, 0, 0x11, 0x22, 0x33], [2, 0, 0x5e, 0x10, 0, 1])
            .ipv4([10, 9, 0, 2], [192, 0, 2, 1], 64)
            .udp(53, 1)
            .write(&mut frame, b"answer")
            .unwrap();
        let bytes = frame.len();
        worker.on_frame(&Iovs::from_owned(frame), 0, bytes).unwrap();
        assert_eq!(worker.tx.gathers.slices_of(first), Some(1), "it waits for the rest of its batch");
        for n in 2..100 {
            open(worker, rule, n);
        }
        assert!(worker.flows.get(first).is_none(), "the table has 32 places");
        let mut buffer = [0; 16];
        let received = socket.recv(&mut buffer).expect("the datagram was sent");
        assert_eq!(&buffer[..received], b"answer");
        assert_eq!(worker.tx.gathers.slices_of(first), None);
    }

    #[test]
    fn ports_that_come_and_go_while_the_guest_takes_nothing_do_not_stay_in_the_queue() {
        for pairs in [1, 2] {
            let mut bench = Bench::new(crate::net::test_link(), 0, 0);
            let worker = &mut bench.worker;
            let mailboxes: Arc<[Mailbox]> = std::iter::repeat_n(bench.mailbox.clone(), pairs).collect();
            let shared = Shared::new(pairs, &Limits::default(), Clock::new());
            worker.peers = Peers::new(0, Arc::new(shared), mailboxes);
            worker.receiveq.starved = true;
            let rule = to_dns();
            let flow = open(worker, rule, 1);
            worker.make_ready(flow);
            for _ in 0..2000 {
                worker.add_ports(&[rule]);
                // Something has come for it.
                worker.on_listener(0);
                worker.remove_ports(&[rule]);
            }
            worker.add_ports(&[rule]);
            worker.on_listener(0);
            let [ready, heard] = worker.queues.both();
            let queue = if pairs == 1 { ready } else { heard };
            let listeners = queue.iter().filter(|origin| matches!(origin, Origin::Listener(0))).count();
            assert!((1..1100).contains(&listeners), "{listeners} entries for one port, {pairs} pairs");
        }
    }

    #[test]
    fn what_ends_while_the_guest_takes_nothing_does_not_stay_in_the_queue() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        let worker = &mut bench.worker;
        worker.receiveq.starved = true;
        let rule = to_dns();
        let open = |worker: &mut Worker, n: u16| {
            let id = open(worker, rule, n);
            worker.make_ready(id);
            id
        };
        let first = open(worker, 1);
        for n in 2..8000 {
            let id = open(worker, n);
            worker.flows.remove(id);
        }
        let last = open(worker, 8000);
        let [ready, _] = worker.queues.both();
        assert!(ready.len() < 2000, "{} entries for two flows", ready.len());
        let left: Vec<_> = ready
            .iter()
            .filter_map(|origin| match *origin {
                Origin::Flow(id) => worker.flows.get(id).map(|_| id),
                Origin::Listener(_) | Origin::Outlet(_) => None,
            })
            .collect();
        assert_eq!(left, [first, last], "those that wait do so in their order");
    }

    #[test]
    fn a_full_mailbox_does_not_hold_up_the_turn() {
        let mut bench = Bench::new(crate::net::test_link(), 0, 0);
        (0..1000).for_each(|_| assert!(bench.mailbox.send(Command::PairsChanged)));
        bench.turn();
        let turns = bench.worker.counters.wakeups.get();
        assert!((1000 / 64..100).contains(&turns), "{turns} turns");
        bench.end();
    }
}
