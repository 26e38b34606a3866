//! The transmit ring: frames of the guest, sorted to their translators.

pub(super) mod gather;
mod outbound;

use std::net::SocketAddr;

use super::command::Command;
use super::legacy::LegacyHeader;
use super::pace::{DATAGRAM, Frames, Owed};
use super::turn::Worker;
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::guest::Services;
use crate::ring::{Iovs, PopError, Ring};
use crate::sockets::IpFields;
use crate::spoof;
use crate::tap::Direction;
use crate::tcp::{Segment, Seq};
use crate::time::Time;
use crate::wire::{
    ETH_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Eth, Ip, MacAddr, TcpHeader,
    UdpHeader, VNET_LEN, VnetHeader, fold, protocol, pseudo_header, sum,
};
use gather::Gathers;
use outbound::Outbound;

/// Chains of one batch: enough to gather, few enough that the guest gets its buffers back soon.
const BATCH_CHAINS: usize = 128;
/// Bytes of one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Batches of one turn; after that the receive direction has its turn.
const BATCHES: usize = 4;
/// Times that a transmit ring is drained before it is given back: all that the largest holds.
const LAST_TURNS: usize = 4;
/// Bytes of a frame that are copied out for parsing: all headers with options and a few extension headers.
const HEAD: usize = 256;
/// Bytes of the longest frame: an IPv6 packet (RFC 8200, section 4.5: a payload of 65,535 bytes) in Ethernet with a tag.
/// A driver may chain the same pages a thousand times over; what it claims must not become a size of netd's memory.
const MAX_FRAME: usize = VNET_LEN + ETH_LEN + VLAN_LEN + 40 + 65_535;

/// Bytes of a tag of 802.1Q, and its bits that name a VLAN.
const VLAN_LEN: usize = 4;
const VLAN_ID: u16 = 0xfff;

/// The transmit ring, and what is not finished of its present batch.
#[derive(Default)]
pub(super) struct Transmit {
    ring: Option<Ring>,
    /// The driver has taken the ring out of use.
    discards: bool,
    /// What lengthens the driver's headers; none: they have all fields.
    legacy: Option<LegacyHeader>,
    /// Flows that this batch has touched.
    touched: Vec<FlowId>,
    /// What flows send in this batch.
    pub(super) gathers: Gathers,
    /// Slices of the chains popped since the last flush.
    slices: Iovs,
    none: Iovs,
    heads: Vec<u16>,
    /// Chains of this batch that held nothing but acknowledgements.
    bare: usize,
    /// Those that held a datagram of at most [`DATAGRAM`] bytes.
    datagrams: usize,
    /// The worker spins: it did not sleep before this turn.
    pub(super) spinning: bool,
    /// The ring's interrupt.
    owed: Owed,
    /// Bytes taken from the ring in this turn.
    sent: usize,
    outbound: Outbound,
}

impl Transmit {
    /// The ring, while there is one.
    pub(super) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    /// Takes a ring into use.
    pub(super) fn begin(&mut self, ring: Ring) {
        self.ring = Some(ring);
    }

    /// Features that the driver acknowledged.
    pub(super) fn set_features(&mut self, features: u64) {
        self.legacy = LegacyHeader::for_features(features);
    }

    /// Asks for kicks; true when there are frames already.
    pub(super) fn request_kicks(&mut self) -> bool {
        self.ring.as_mut().is_some_and(Ring::request_kicks)
    }

    /// Bytes taken from the ring since this was last asked.
    pub(super) fn take_sent(&mut self) -> usize {
        std::mem::take(&mut self.sent)
    }

    /// When the interrupt that is owed is to be sent at the latest.
    pub(super) fn due_at(&self) -> Option<Time> {
        self.owed.due_at()
    }

    /// Whether an interrupt is owed that is to be sent before the worker sleeps.
    pub(super) fn owes_before_sleep(&self) -> bool {
        self.owed.is_due_before_sleep()
    }

    /// No interrupt is owed any more.
    pub(super) fn forget_owed(&mut self) {
        self.owed = Owed::default();
    }
}

/// A frame in the transmit ring.
pub(super) struct TxFrame<'a> {
    pub(super) slices: &'a Iovs,
    /// Its first slice.
    pub(super) first: usize,
    /// Bytes, virtio header included.
    pub(super) bytes: usize,
    pub(super) vnet: VnetHeader,
}

impl TxFrame<'_> {
    /// A copy of the Ethernet frame, with the checksum that the guest left to the device completed.
    pub(super) fn copy(&self) -> Vec<u8> {
        let mut frame = vec![0; self.bytes.saturating_sub(VNET_LEN)];
        self.slices.read(self.first, VNET_LEN, &mut frame);
        let start = usize::from(self.vnet.csum_start);
        let field = start + usize::from(self.vnet.csum_offset);
        if self.vnet.needs_csum && start < frame.len() && field + 2 <= frame.len() {
            let sum = !fold(sum(&frame[start..], 0));
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }

    /// Whether the transport checksum over the `len` bytes from `at` is right or vouched for.
    fn checksum_ok(&self, ip: &Ip, at: usize, len: usize) -> bool {
        if self.vnet.needs_csum || self.vnet.data_valid {
            return true;
        }
        let pseudo = pseudo_header(ip.src, ip.dst, ip.protocol, len);
        fold(u32::from(self.slices.checksum(self.first, at, len, pseudo))) == 0xffff
    }
}

impl Worker {
    /// Drains the transmit ring for a while; true when it has more.
    pub(super) fn transmit(&mut self) -> bool {
        let mut more = false;
        if let Some(ring) = self.tx.ring.as_mut() {
            ring.suppress_kicks();
            self.tx.discards = ring.is_disabled();
            for _ in 0..BATCHES {
                more = self.transmit_batch();
                if !more {
                    break;
                }
            }
        }
        self.settle_touched();
        more
    }

    /// Sends the interrupt of the transmit ring that is owed, if the driver has not found the buffers by itself.
    pub(super) fn pay(&mut self) {
        if let Some(chains) = self.tx.owed.settle()
            && let Some(ring) = &self.tx.ring
            && ring.wants_interrupt(chains)
        {
            ring.signal();
            self.counters.guest_interrupts.add(1);
        }
    }

    /// Carries what the guest has sent, and gives the ring back. The guest may send more without end, so that has an end.
    pub(super) fn end_transmit(&mut self) -> Option<Ring> {
        for _ in 0..LAST_TURNS {
            if !self.transmit() {
                break;
            }
        }
        self.flush_outboxes();
        self.tx.none.clear();
        if let Some(legacy) = &mut self.tx.legacy {
            legacy.chain();
        }
        self.pay();
        self.tx.ring.take()
    }

    /// As [`Worker::on_frame`], of a frame that is in no ring of this worker's: what this ring is owed does not change.
    pub(super) fn on_frame_apart(&mut self, slices: &Iovs, bytes: usize) -> Result<(), Reason> {
        let before = (self.tx.bare, self.tx.datagrams);
        let result = self.on_frame(slices, 0, bytes);
        (self.tx.bare, self.tx.datagrams) = before;
        result
    }

    fn transmit_batch(&mut self) -> bool {
        let mut slices = std::mem::take(&mut self.tx.slices);
        let mut more = true;
        while self.tx.heads.len() < BATCH_CHAINS && slices.bytes() < BATCH_BYTES {
            let Some(ring) = self.tx.ring.as_mut() else { break };
            let first = slices.len();
            let popped = match &mut self.tx.legacy {
                Some(legacy) => ring.pop(legacy.chain(), &mut self.tx.none),
                None => ring.pop(&mut slices, &mut self.tx.none),
            };
            match popped {
                Ok(Some(p)) => {
                    self.tx.none.clear();
                    self.tx.heads.push(p.head);
                    let added = self.tx.legacy.as_mut().map_or(0, |legacy| legacy.lengthen(&mut slices));
                    if let Err(reason) = self.on_frame(&slices, first, p.readable as usize + added) {
                        self.counters.count_drop(reason);
                    }
                }
                Ok(None) => {
                    more = false;
                    break;
                }
                Err(PopError::Chain { head, reason }) => {
                    tracing::trace!(head, %reason, "bad descriptor chain");
                    self.counters.count_drop(Reason::BadChain);
                    self.tx.heads.push(head);
                }
                Err(PopError::Ring(error)) => {
                    tracing::warn!(%error, "transmit ring disabled");
                    self.counters.ring_errors.add(1);
                    ring.break_down();
                    if let Some(ring) = self.tx.ring.take() {
                        self.unwatch_ring(&ring);
                    }
                    more = false;
                    break;
                }
            }
        }
        self.flush_gathers();
        self.tx.sent += slices.bytes();
        slices.clear();
        self.tx.slices = slices;
        let chains = self.tx.heads.len();
        let bare = std::mem::take(&mut self.tx.bare);
        let datagrams = std::mem::take(&mut self.tx.datagrams);
        let frames = match chains.saturating_sub(bare) {
            0 => Frames::Bare,
            others if self.tx.spinning && others == datagrams => Frames::Datagrams,
            _ => Frames::Any,
        };
        if let Some(ring) = self.tx.ring.as_mut()
            && !self.tx.heads.is_empty()
        {
            for head in self.tx.heads.drain(..) {
                ring.push_used(head, 0);
            }
            let wanted = ring.publish();
            if self.tx.owed.owe(self.now, chains, frames, wanted, ring.size()) {
                self.pay();
            }
        }
        self.tx.heads.clear();
        self.settle_touched();
        more
    }

    /// Sends what was gathered.
    pub(super) fn flush_gathers(&mut self) {
        while let Some(g) = self.tx.gathers.take() {
            if g.items.is_empty() {
                self.flush_stream(&g);
                self.tx.gathers.recycle(g);
            } else {
                self.flush_datagrams(g);
            }
        }
        self.flush_shared();
    }

    /// Marks a flow for [`Worker::settle_touched`].
    pub(super) fn touch(&mut self, id: FlowId) {
        self.met.add(id);
        if self.tx.touched.last() != Some(&id) {
            self.tx.touched.push(id);
        }
    }

    /// Each touched connection answers once.
    fn settle_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.tx.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in touched.drain(..) {
            self.settle_stream(id);
        }
        self.tx.touched = touched;
    }

    pub(super) fn on_frame(&mut self, slices: &Iovs, first: usize, bytes: usize) -> Result<(), Reason> {
        if self.tx.discards && self.peers.hops == 0 {
            return Err(Reason::RingDisabled);
        }
        if bytes > MAX_FRAME {
            return Err(Reason::TooLarge);
        }
        let mut buffer = [0; HEAD];
        let n = slices.read(first, 0, &mut buffer[..bytes.min(HEAD)]);
        let (vnet, head) = buffer[..n].split_first_chunk::<VNET_LEN>().ok_or(Reason::Malformed)?;
        let vnet = VnetHeader::parse(vnet).ok_or(Reason::Malformed)?;
        let frame = TxFrame { slices, first, bytes, vnet };
        // A frame that another worker has passed on was counted, and shown, there.
        if self.peers.hops == 0 {
            self.counters.guest_tx_frames.add(1);
            self.counters.guest_tx_bytes.add((bytes - VNET_LEN) as u64);
            if let Some(taps) = &self.receiveq.taps {
                taps.offer(Direction::Outbound, slices, first, bytes, &vnet);
            }
        }
        let eth = Eth::parse(head)?;
        if eth.ethertype == ETHERTYPE_VLAN {
            return self.on_tagged(&frame, head);
        }
        self.on_ethernet(&frame, &eth, head)
    }

    /// A frame with a tag of 802.1Q. One that has a priority and no VLAN, as of a Windows guest with "Packet priority", is as one without the tag
    /// (IEEE 802.1Q, 6.9): it is copied without. Those of VLANs have nowhere to go.
    fn on_tagged(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<(), Reason> {
        let tag = head.get(ETH_LEN..).and_then(|b| b.first_chunk()).ok_or(Reason::Malformed)?;
        if u16::from_be_bytes(*tag) & VLAN_ID != 0 {
            return Err(Reason::UnknownProtocol);
        }
        let mut bytes = frame.copy();
        let at = ETH_LEN - 2;
        bytes.drain(at..(at + VLAN_LEN).min(bytes.len()));
        // Where the guest left the checksum to the device, `copy` has completed it.
        let data_valid = frame.vnet.data_valid || frame.vnet.needs_csum;
        let vnet = VnetHeader { data_valid, ..VnetHeader::PLAIN };
        let bytes = [&vnet.to_bytes()[..], &bytes].concat();
        let len = bytes.len();
        let head = bytes[VNET_LEN..len.min(HEAD)].to_vec();
        let slices = Iovs::from_owned(bytes);
        let untagged = TxFrame { slices: &slices, first: 0, bytes: len, vnet };
        self.on_ethernet(&untagged, &Eth::parse(&head)?, &head)
    }

    /// A frame whose first bytes are `head`.
    #[inline]
    fn on_ethernet(&mut self, frame: &TxFrame<'_>, eth: &Eth, head: &[u8]) -> Result<(), Reason> {
        let bytes = frame.bytes;
        spoof::check_ethernet(&self.receiveq.link, self.guest_station(), eth)?;
        self.learn(eth.src);
        match eth.ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                let packet = &head[ETH_LEN..];
                let ip = Ip::parse(packet, bytes - VNET_LEN - ETH_LEN)?;
                if ip.src.is_ipv4() != (eth.ethertype == ETHERTYPE_IPV4) {
                    return Err(Reason::Malformed);
                }
                let transport = packet.get(ip.header_len..).ok_or(Reason::Malformed)?;
                spoof::check_ip(&self.receiveq.link, &ip, transport)?;
                if ip.fragment.is_some() {
                    return self.on_fragment(frame);
                }
                self.on_packet(frame, &ip, transport)
            }
            ETHERTYPE_ARP => {
                spoof::check_arp(&self.receiveq.link, eth.src, &head[ETH_LEN..])?;
                self.on_service_frame(&frame.copy())
            }
            _ => Err(Reason::UnknownProtocol),
        }
    }

    /// The station that frames have to come from: the configured one, or the first that this frontend showed.
    fn guest_station(&self) -> Option<MacAddr> {
        self.receiveq.link.guest_mac.or(self.receiveq.guest_mac.filter(|_| self.guest.station_seen))
    }

    /// Takes note of the guest's Ethernet address where none is configured. It is kept until another frontend
    /// connects; the first frame of that frontend's guest may bring another address.
    #[inline]
    fn learn(&mut self, station: MacAddr) {
        if self.guest.station_seen || self.receiveq.link.guest_mac.is_some() {
            return;
        }
        self.guest.station_seen = true;
        if self.receiveq.guest_mac.replace(station).is_none() {
            self.wake_all();
        }
        self.peers.tell(|| Command::GuestMac(station));
    }

    /// A whole IP packet; `transport` is the start of its payload.
    pub(super) fn on_packet(&mut self, frame: &TxFrame<'_>, ip: &Ip, transport: &[u8]) -> Result<(), Reason> {
        match ip.protocol {
            protocol::TCP => self.on_tcp(frame, ip, transport),
            protocol::UDP => self.on_udp(frame, ip, transport),
            protocol::ICMP | protocol::ICMPV6 => self.on_icmp(frame, ip),
            // Membership of groups is of no consequence on a link with two stations.
            protocol::IGMP => Ok(()),
            _ => self.on_unknown(frame, ip),
        }
    }

    fn on_tcp(&mut self, frame: &TxFrame<'_>, ip: &Ip, transport: &[u8]) -> Result<(), Reason> {
        let tcp = TcpHeader::parse(transport)?;
        let len = ip.payload_len.checked_sub(tcp.header_len).ok_or(Reason::Malformed)?;
        let at = VNET_LEN + ETH_LEN + ip.header_len;
        if !frame.checksum_ok(ip, at, ip.payload_len) {
            return Err(Reason::Checksum);
        }
        let key = Key {
            kind: Kind::Tcp,
            guest: SocketAddr::new(ip.src, tcp.src),
            peer: SocketAddr::new(ip.dst, tcp.dst),
        };
        let segment = Segment {
            seq: Seq(tcp.seq),
            ack: Seq(tcp.ack),
            flags: tcp.flags,
            window: tcp.window,
            len: len as u32,
            mss: tcp.mss,
            window_scale: tcp.window_scale,
        };
        self.tx.bare += usize::from(len == 0);
        self.on_stream_segment(key, &segment, IpFields::from_packet(ip), frame, at + tcp.header_len)
    }

    fn on_udp(&mut self, frame: &TxFrame<'_>, ip: &Ip, transport: &[u8]) -> Result<(), Reason> {
        let udp = UdpHeader::parse(transport, ip.payload_len)?;
        self.tx.datagrams += usize::from(frame.bytes <= DATAGRAM);
        if Services::has_port(&self.receiveq.link, ip.dst, udp.dst) {
            return self.on_service_frame(&frame.copy());
        }
        let at = VNET_LEN + ETH_LEN + ip.header_len;
        // RFC 768: zero means no checksum; RFC 8200 8.1: not so for IPv6.
        let unsummed = udp.checksum == 0 && ip.src.is_ipv4();
        if !unsummed && !frame.checksum_ok(ip, at, UdpHeader::LEN + udp.payload_len) {
            return Err(Reason::Checksum);
        }
        let key = Key {
            kind: Kind::Udp,
            guest: SocketAddr::new(ip.src, udp.src),
            peer: SocketAddr::new(ip.dst, udp.dst),
        };
        self.on_guest_datagram(key, ip, frame, at + UdpHeader::LEN, udp.payload_len)
    }
}
