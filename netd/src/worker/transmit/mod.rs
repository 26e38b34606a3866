//! The transmit ring: frames of the guest, sorted to their translators.

use super::command::Command;
use super::turn::Worker;
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::net::MacAddr;
use crate::ring::{Iovs, PopError};
use crate::spoof;
use crate::tap::Direction;
use crate::tcp::{Segment, Seq};
use crate::wire::{
    ETH_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Eth, Ip, TcpHeader, UdpHeader, VNET_LEN,
    VnetHeader, fold, protocol, pseudo_header, sum,
};
use std::net::SocketAddr;

/// Chains of one batch: enough to gather, few enough that the guest gets its buffers back soon.
const BATCH_CHAINS: usize = 128;
/// Bytes of one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Batches of one turn; after that the receive direction has its turn.
const BATCHES: usize = 4;
/// Bytes of a frame that are copied out for parsing: all headers with options and a few extension headers.
const HEAD: usize = 256;
/// Bytes of the longest frame: an IPv6 packet (RFC 8200, section 4.5: a payload of 65,535 bytes) in Ethernet with a tag.
/// A driver may chain the same pages a thousand times over; what it claims must not become a size of netd's memory.
const MAX_FRAME: usize = VNET_LEN + ETH_LEN + 4 + 40 + 65_535;

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
        if let Some(ring) = self.tx.as_mut() {
            ring.suppress_kicks();
            self.discards = ring.is_disabled();
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

    fn transmit_batch(&mut self) -> bool {
        let mut slices = std::mem::take(&mut self.slices);
        let mut more = true;
        while self.heads.len() < BATCH_CHAINS && slices.bytes() < BATCH_BYTES {
            let Some(ring) = self.tx.as_mut() else { break };
            let first = slices.len();
            match ring.pop(&mut slices, &mut self.none) {
                Ok(Some(p)) => {
                    self.none.clear();
                    self.heads.push(p.head);
                    if let Err(reason) = self.on_frame(&slices, first, p.readable as usize) {
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
                    self.heads.push(head);
                }
                Err(PopError::Ring(error)) => {
                    tracing::warn!(%error, "transmit ring disabled");
                    self.counters.ring_errors.add(1);
                    ring.break_down();
                    self.tx = None;
                    more = false;
                    break;
                }
            }
        }
        self.flush_gathers();
        self.sent += slices.bytes();
        slices.clear();
        self.slices = slices;
        let chains = self.heads.len();
        let bare = std::mem::take(&mut self.bare) == chains;
        if let Some(ring) = self.tx.as_mut()
            && !self.heads.is_empty()
        {
            for head in self.heads.drain(..) {
                ring.push_used(head, 0);
            }
            let wanted = ring.publish();
            if self.owed.owe(self.now, chains, bare, wanted, ring.size()) {
                self.pay();
            }
        }
        self.heads.clear();
        self.settle_touched();
        more
    }

    /// Sends what was gathered.
    pub(super) fn flush_gathers(&mut self) {
        while let Some(g) = self.gathers.take() {
            if g.items.is_empty() {
                self.flush_stream(&g);
                self.gathers.recycle(g);
            } else {
                self.flush_datagrams(g);
            }
        }
        self.flush_shared();
    }

    /// Marks a flow for [`Worker::settle_touched`].
    pub(super) fn touch(&mut self, id: FlowId) {
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
    }

    /// Each touched connection answers once.
    fn settle_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in touched.drain(..) {
            self.settle_stream(id);
        }
        self.touched = touched;
    }

    pub(super) fn on_frame(&mut self, slices: &Iovs, first: usize, bytes: usize) -> Result<(), Reason> {
        if self.discards && self.peers.hops == 0 {
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
            if let Some(taps) = &self.port.taps {
                taps.offer(Direction::Outbound, slices, first, bytes, &vnet);
            }
        }
        let eth = Eth::parse(head)?;
        spoof::check_ethernet(&self.port.link, self.guest_station(), &eth)?;
        self.learn(eth.src);
        match eth.ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                let packet = &head[ETH_LEN..];
                let ip = Ip::parse(packet, bytes - VNET_LEN - ETH_LEN)?;
                if ip.src.is_ipv4() != (eth.ethertype == ETHERTYPE_IPV4) {
                    return Err(Reason::Malformed);
                }
                let transport = packet.get(ip.header_len..).ok_or(Reason::Malformed)?;
                spoof::check_ip(&self.port.link, &ip, transport)?;
                if ip.fragment.is_some() {
                    return self.on_fragment(&frame);
                }
                self.on_packet(&frame, &ip, transport)
            }
            ETHERTYPE_ARP => {
                spoof::check_arp(&self.port.link, eth.src, &head[ETH_LEN..])?;
                self.on_service_frame(&frame.copy())
            }
            _ => Err(Reason::UnknownProtocol),
        }
    }

    /// The station that frames have to come from: the configured one, or the first that this frontend showed.
    fn guest_station(&self) -> Option<MacAddr> {
        self.port.link.guest_mac.or(self.port.guest_mac.filter(|_| self.station_seen))
    }

    /// Takes note of the guest's Ethernet address where none is configured. It is kept until another frontend
    /// connects; that one's first frame may bring another address.
    #[inline]
    fn learn(&mut self, station: MacAddr) {
        if self.station_seen || self.port.link.guest_mac.is_some() {
            return;
        }
        self.station_seen = true;
        if self.port.guest_mac.replace(station).is_none() {
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
        self.bare += usize::from(len == 0);
        self.on_stream_segment(key, &segment, frame, at + tcp.header_len)
    }

    fn on_udp(&mut self, frame: &TxFrame<'_>, ip: &Ip, transport: &[u8]) -> Result<(), Reason> {
        let udp = UdpHeader::parse(transport, ip.payload_len)?;
        // DHCP and DHCPv6 are netd's own services.
        if (udp.dst == 67 && ip.src.is_ipv4()) || (udp.dst == 547 && ip.src.is_ipv6()) {
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
