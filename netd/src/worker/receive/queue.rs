//! The receiveq (VIRTIO 1.2, 5.1.2): the ring by which the guest gets frames, and frames into it.

use std::collections::VecDeque;
use std::sync::Arc;

use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_MRG_RXBUF,
};

use crate::counters::{Counters, Reason};
use crate::net::Link;
use crate::ring::{Iovs, PopError, Ring};
use crate::tap::{Direction, Taps};
use crate::wire::{EthIp, MacAddr, VNET_LEN, VnetHeader, fold, sum};
use crate::worker::legacy::LegacyHeader;

/// Frames that netd makes itself and that wait for a receive buffer.
const MAX_WAITING: usize = 256;
/// Bytes of datagrams that are kept for a guest that leaves: beyond this they are lost, as in a full ring.
const MOST_KEPT: usize = 4 << 20;
/// Smallest Ethernet frame without its checksum (IEEE 802.3): shorter ones are padded.
const MIN_FRAME: usize = 60;

/// The receive ring has no buffer for the frame.
#[derive(Debug)]
pub(in crate::worker) struct Full;

/// A chain popped from the receive ring.
pub(in crate::worker) struct Chain {
    pub(in crate::worker) head: u16,
    pub(in crate::worker) bytes: usize,
}

/// A frame planned over popped chains.
pub(in crate::worker) struct Frame {
    pub(in crate::worker) first_chain: usize,
    pub(in crate::worker) chains: usize,
    pub(in crate::worker) first_slice: usize,
    /// Payload bytes it can take.
    pub(in crate::worker) room: usize,
}

/// Whether buffers were found for a frame.
enum Planned {
    Fits,
    /// There are none at present.
    Full,
    /// The next one is too small, and the guest takes no frame in several.
    TooSmall,
    /// The whole ring is free, and not enough.
    WholeRing,
}

/// The addresses and ports of a TCP frame, which its headers need besides the connection.
pub(in crate::worker) struct FrameAddresses {
    pub(in crate::worker) at: EthIp,
    pub(in crate::worker) src_port: u16,
    pub(in crate::worker) dst_port: u16,
}

/// The receiveq, and what is needed to fill it.
pub(in crate::worker) struct ReceiveQueue {
    pub(in crate::worker) rx: Option<Ring>,
    /// A ring that the driver broke, until the worker watches it no more.
    pub(in crate::worker) broken: Option<Ring>,
    pub(in crate::worker) link: Arc<Link>,
    /// The guest's Ethernet address, once it is known.
    pub(in crate::worker) guest_mac: Option<MacAddr>,
    /// Something waits for a receive buffer.
    pub(in crate::worker) starved: bool,
    pub(in crate::worker) counters: Arc<Counters>,
    pub(in crate::worker) mergeable: bool,
    /// What lengthens the driver's headers; none: they have all fields.
    legacy: Option<LegacyHeader>,
    checksum: bool,
    pub(in crate::worker) tso4: bool,
    pub(in crate::worker) tso6: bool,
    pub(in crate::worker) unpublished: bool,
    /// Bytes given to the guest in this turn.
    pub(in crate::worker) moved: usize,
    /// The taps by which operators watch the frames; see [`crate::tap`].
    pub(in crate::worker) taps: Option<Box<Taps>>,
    waiting: VecDeque<Vec<u8>>,
    /// The guest leaves: datagrams wait with the other frames while there is no ring.
    keeps: bool,
    /// Bytes of those that do.
    kept: usize,
    // Scratch of one operation, kept for its capacity.
    pub(in crate::worker) chains: Vec<Chain>,
    pub(in crate::worker) frames: Vec<Frame>,
    pub(in crate::worker) slices: Iovs,
    pub(in crate::worker) room: Iovs,
    none: Iovs,
}

impl ReceiveQueue {
    pub(in crate::worker) fn new(link: Arc<Link>, counters: Arc<Counters>) -> Self {
        ReceiveQueue {
            rx: None,
            broken: None,
            guest_mac: link.guest_mac,
            link,
            starved: false,
            counters,
            mergeable: false,
            legacy: None,
            checksum: false,
            tso4: false,
            tso6: false,
            unpublished: false,
            moved: 0,
            taps: None,
            waiting: VecDeque::new(),
            keeps: false,
            kept: 0,
            chains: Vec::new(),
            frames: Vec::new(),
            slices: Iovs::new(),
            room: Iovs::new(),
            none: Iovs::new(),
        }
    }

    /// Features that the driver acknowledged.
    pub(in crate::worker) fn set_features(&mut self, features: u64) {
        let has = |bit: u32| features & (1 << bit) != 0;
        self.mergeable = has(VIRTIO_NET_F_MRG_RXBUF);
        self.legacy = LegacyHeader::for_features(features);
        self.checksum = has(VIRTIO_NET_F_GUEST_CSUM);
        self.tso4 = self.checksum && has(VIRTIO_NET_F_GUEST_TSO4);
        self.tso6 = self.checksum && has(VIRTIO_NET_F_GUEST_TSO6);
    }

    /// The ends of a flow's frames; None while the guest's Ethernet address is not known.
    pub(in crate::worker) fn ends(&self, key: &crate::flow::Key, ttl: Option<u8>) -> Option<FrameAddresses> {
        let dst_mac = self.guest_mac?;
        let (src, dst) = (key.peer.ip(), key.guest.ip());
        let at = EthIp { dst_mac, src_mac: self.link.mac, src, dst, ttl, class: 0 };
        Some(FrameAddresses { at, src_port: key.peer.port(), dst_port: key.guest.port() })
    }

    /// Pops one chain onto the scratch lists; false when the ring is empty or broken.
    pub(in crate::worker) fn pop(&mut self) -> bool {
        let Some(ring) = self.rx.as_mut() else { return false };
        loop {
            let popped = match &mut self.legacy {
                Some(legacy) => ring.pop(&mut self.none, legacy.chain()),
                None => ring.pop(&mut self.none, &mut self.slices),
            };
            match popped {
                Ok(Some(p)) => {
                    self.none.clear();
                    let added = self.legacy.as_mut().map_or(0, |legacy| legacy.lengthen(&mut self.slices));
                    self.chains.push(Chain { head: p.head, bytes: p.writable as usize + added });
                    return true;
                }
                Ok(None) => return false,
                Err(PopError::Chain { head, .. }) if self.chains.is_empty() => {
                    self.counters.count_drop(Reason::BadChain);
                    ring.push_used(head, 0);
                    self.unpublished = true;
                }
                // In the middle of a frame the bad chain cannot be completed before those in front of it: what
                // was popped is given back first, and the next attempt meets the bad chain alone.
                Err(PopError::Chain { .. }) => {
                    ring.unpop(1);
                    return false;
                }
                Err(PopError::Ring(error)) => {
                    tracing::warn!(%error, "receive ring disabled");
                    self.counters.ring_errors.add(1);
                    ring.break_down();
                    self.broken = self.rx.take();
                    return false;
                }
            }
        }
    }

    pub(in crate::worker) fn begin(&mut self) {
        self.chains.clear();
        self.frames.clear();
        self.slices.clear();
        self.room.clear();
    }

    /// Gives the popped chains from the `keep`th on back to the ring.
    pub(in crate::worker) fn give_back(&mut self, keep: usize) {
        let n = self.chains.len().saturating_sub(keep);
        if let (Some(ring), Ok(n)) = (self.rx.as_mut(), u16::try_from(n)) {
            ring.unpop(n);
        }
        self.chains.truncate(keep);
    }

    /// Chains of the receive ring that are free, counted up to `most`.
    pub(in crate::worker) fn free_chains(&mut self, most: usize) -> usize {
        self.begin();
        let mut n = 0;
        while n < most && self.pop() {
            n += 1;
        }
        self.give_back(0);
        if n == 0 && self.rx.is_some() {
            self.full();
        }
        n
    }

    /// Whether a small frame can be written now.
    pub(in crate::worker) fn has_room(&mut self) -> bool {
        !self.starved && self.free_chains(1) == 1
    }

    /// Whether a datagram can be taken now.
    pub(in crate::worker) fn takes_datagram(&mut self) -> bool {
        if self.is_keeping() { self.kept < MOST_KEPT } else { self.has_room() }
    }

    /// Whether datagrams wait for the guest at the place that it goes to.
    pub(in crate::worker) fn is_keeping(&self) -> bool {
        self.keeps && self.rx.is_none()
    }

    /// From now on datagrams wait while there is no ring, or no longer.
    pub(in crate::worker) fn keep(&mut self, on: bool) {
        (self.keeps, self.kept) = (on, 0);
    }

    /// The ring has no buffer left: the guest's next kick on it is waited for.
    pub(in crate::worker) fn full(&mut self) -> Full {
        if !self.starved {
            self.starved = true;
            self.counters.guest_rx_empty.add(1);
        }
        Full
    }

    /// The guest has put buffers into the receive ring again.
    pub(in crate::worker) fn feed(&mut self) {
        if std::mem::take(&mut self.starved)
            && let Some(ring) = self.rx.as_mut()
        {
            ring.suppress_kicks();
        }
    }

    /// Writes one frame: headers with the virtio header in front, then the payload.
    pub(in crate::worker) fn frame(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), Full> {
        if self.is_keeping() {
            return self.keep_frames(vec![complete(headers, payload)]);
        }
        self.begin();
        match self.plan_frame(headers.len() + payload.len()) {
            Planned::Fits => self.write_planned(0, headers, payload),
            // Waiting does not help.
            Planned::TooSmall | Planned::WholeRing => self.counters.count_drop(Reason::TooLarge),
            Planned::Full => return Err(self.full()),
        }
        Ok(())
    }

    /// Writes the fragments of one datagram, Ethernet frames each: all of them or none. Fragments that no ring of this
    /// size could hold together wait with the other frames, if there is room for all of them.
    pub(in crate::worker) fn fragments(&mut self, fragments: Vec<Vec<u8>>) -> Result<(), Full> {
        if self.is_keeping() {
            return self.keep_frames(fragments);
        }
        self.begin();
        for fragment in &fragments {
            match self.plan_frame(VNET_LEN + fragment.len()) {
                Planned::Fits => {}
                Planned::WholeRing if !self.frames.is_empty() => {
                    if !self.queue_all(fragments) {
                        self.counters.count_drop(Reason::NoRxBuffer);
                    }
                    return Ok(());
                }
                Planned::TooSmall | Planned::WholeRing => {
                    self.counters.count_drop(Reason::TooLarge);
                    return Ok(());
                }
                Planned::Full => return Err(self.full()),
            }
        }
        let plain = VnetHeader::PLAIN.to_bytes();
        for (at, fragment) in fragments.iter().enumerate() {
            self.write_planned(at, &plain, fragment);
        }
        Ok(())
    }

    /// Pops chains for one more frame of `bytes`, virtio header included. If they do not suffice all that was popped
    /// since [`ReceiveQueue::begin`] is given back.
    fn plan_frame(&mut self, bytes: usize) -> Planned {
        let padded = bytes.max(VNET_LEN + MIN_FRAME);
        let (first_chain, first_slice) = (self.chains.len(), self.slices.len());
        let before = self.slices.bytes();
        while self.slices.bytes() - before < padded {
            let first = self.chains.len() == first_chain;
            let too_small = !first && !self.mergeable;
            if too_small || !self.pop() {
                let all = self.rx.as_ref().is_some_and(|ring| self.chains.len() >= usize::from(ring.size()));
                self.give_back(0);
                return match (too_small, all) {
                    (true, _) => Planned::TooSmall,
                    (false, true) => Planned::WholeRing,
                    (false, false) => Planned::Full,
                };
            }
        }
        let chains = self.chains.len() - first_chain;
        self.frames.push(Frame { first_chain, chains, first_slice, room: 0 });
        Planned::Fits
    }

    /// Writes the planned frame `at` and completes it.
    fn write_planned(&mut self, at: usize, headers: &[u8], payload: &[u8]) {
        let Some(&Frame { first_chain, chains, first_slice, room }) = self.frames.get(at) else { return };
        let total = headers.len() + payload.len();
        let padded = total.max(VNET_LEN + MIN_FRAME);
        self.slices.write(first_slice, 0, headers);
        self.slices.write(first_slice, headers.len(), payload);
        if padded > total {
            self.slices.write(first_slice, total, &[0; MIN_FRAME][..padded - total]);
        }
        self.finish(&Frame { first_chain, chains, first_slice, room }, headers, padded, total);
    }

    /// Completes a written frame: number of buffers, checksum, used entries. `checksummed` is where padding
    /// starts. Returns how many chains it took.
    pub(in crate::worker) fn finish(
        &mut self,
        frame: &Frame,
        headers: &[u8],
        total: usize,
        checksummed: usize,
    ) -> usize {
        let Some(ring) = self.rx.as_mut() else { return 0 };
        let mut used = 0;
        let mut covered = 0;
        for chain in &self.chains[frame.first_chain..frame.first_chain + frame.chains] {
            used += 1;
            covered += chain.bytes;
            if covered >= total {
                break;
            }
        }
        let mut vnet = [0; VNET_LEN];
        vnet.copy_from_slice(&headers[..VNET_LEN]);
        if let Some(h) = VnetHeader::parse(&vnet) {
            let h = VnetHeader { num_buffers: used as u16, ..h };
            let h = if h.needs_csum && !self.checksum {
                let start = VNET_LEN + usize::from(h.csum_start);
                let sum =
                    self.slices.checksum(frame.first_slice, start, checksummed.saturating_sub(start), 0);
                let udp = h.csum_offset == 6;
                // RFC 768: a UDP checksum of zero means none, so zero is sent as its complement.
                let sum = match !fold(u32::from(sum)) {
                    0 if udp => 0xffff,
                    s => s,
                };
                let at = start + usize::from(h.csum_offset);
                self.slices.write(frame.first_slice, at, &sum.to_be_bytes());
                VnetHeader { needs_csum: false, csum_start: 0, csum_offset: 0, hdr_len: 0, ..h }
            } else {
                h
            };
            self.slices.write(frame.first_slice, 0, &h.to_bytes());
            if let Some(taps) = &self.taps {
                taps.offer(Direction::Inbound, &self.slices, frame.first_slice, total, &h);
            }
        }
        ring.mark_written(&self.slices, frame.first_slice, total);
        let mut left = total;
        for chain in &self.chains[frame.first_chain..frame.first_chain + used] {
            let n = chain.bytes.min(left);
            // Each chain is a whole frame where headers are lengthened.
            let added = self.legacy.as_ref().map_or(0, LegacyHeader::added);
            ring.push_used(chain.head, n.saturating_sub(added) as u32);
            left -= n;
        }
        self.unpublished = true;
        self.moved += total;
        self.counters.guest_rx_frames.add(1);
        self.counters.guest_rx_bytes.add((total - VNET_LEN) as u64);
        used
    }

    /// Queues a whole Ethernet frame; the oldest is not pushed out, the newest is dropped when too many wait.
    pub(in crate::worker) fn queue(&mut self, frame: Vec<u8>) {
        if self.waiting.len() >= MAX_WAITING {
            self.counters.count_drop(Reason::NoRxBuffer);
            return;
        }
        self.waiting.push_back(frame);
    }

    /// Queues the fragments of one datagram, all of them or none; false when there is no room. They leave half of the
    /// places to other frames.
    pub(in crate::worker) fn queue_all(&mut self, fragments: Vec<Vec<u8>>) -> bool {
        let fits = self.waiting.len() + fragments.len() <= MAX_WAITING / 2;
        if fits {
            self.waiting.extend(fragments);
        }
        fits
    }

    fn keep_frames(&mut self, frames: Vec<Vec<u8>>) -> Result<(), Full> {
        if self.kept >= MOST_KEPT {
            return Err(Full);
        }
        self.kept += frames.iter().map(Vec::len).sum::<usize>();
        self.waiting.extend(frames);
        Ok(())
    }

    /// Takes in frames that waited elsewhere; what is more than may be kept is dropped.
    pub(in crate::worker) fn restore(&mut self, frames: Vec<Vec<u8>>) {
        let mut left = MOST_KEPT;
        for frame in frames {
            if left == 0 {
                self.counters.count_drop(Reason::NoRxBuffer);
                continue;
            }
            left = left.saturating_sub(frame.len().max(MIN_FRAME));
            self.waiting.push_back(frame);
        }
    }

    /// The frames that wait, oldest first.
    pub(in crate::worker) fn waiting(&self) -> Vec<Vec<u8>> {
        self.waiting.iter().cloned().collect()
    }

    /// Writes the frames that wait. Without a ring they go on waiting: one that is handed over has just been taken away.
    pub(in crate::worker) fn flush_queue(&mut self) {
        if self.rx.is_none() {
            return;
        }
        let plain = VnetHeader::PLAIN.to_bytes();
        while let Some(frame) = self.waiting.pop_front() {
            if self.frame(&plain, &frame).is_err() {
                self.waiting.push_front(frame);
                return;
            }
        }
    }

    /// Makes what was written visible to the guest and interrupts it if it wants to be.
    pub(in crate::worker) fn publish(&mut self) {
        if !std::mem::take(&mut self.unpublished) {
            return;
        }
        if let Some(ring) = self.rx.as_mut()
            && ring.publish()
        {
            ring.signal();
            self.counters.guest_interrupts.add(1);
        }
    }

    /// Takes the ring away, and lets go of guest memory that scratch lists still hold.
    pub(in crate::worker) fn take_ring(&mut self) -> Option<Ring> {
        self.begin();
        self.none.clear();
        if let Some(legacy) = &mut self.legacy {
            legacy.chain();
        }
        self.rx.take()
    }

    /// Forgets what waits, when the guest's rings are gone.
    pub(in crate::worker) fn clear(&mut self) {
        self.waiting.clear();
        self.unpublished = false;
        self.starved = false;
    }
}

/// The Ethernet frame of headers and payload, with the checksum complete that the headers leave to the guest.
pub(super) fn complete(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let (vnet, ethernet) = headers.split_at(VNET_LEN.min(headers.len()));
    let mut frame = [ethernet, payload].concat();
    let vnet = vnet.first_chunk().and_then(VnetHeader::parse).filter(|h| h.needs_csum);
    let Some(h) = vnet else { return frame };
    let start = usize::from(h.csum_start);
    let field = start + usize::from(h.csum_offset);
    if let Some(covered) = frame.get(start..)
        && field + 2 <= frame.len()
    {
        // The field holds the pseudo header's sum; RFC 768: a sum of zero is sent as its complement.
        let sum = match !fold(sum(covered, 0)) {
            0 if h.csum_offset == 6 => 0xffff,
            s => s,
        };
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}
