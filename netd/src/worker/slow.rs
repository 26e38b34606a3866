//! The slow path: link services, fragments, ICMP, and everything else that is rare enough to be copied.

use std::net::IpAddr;

use super::transmit::TxFrame;
use super::turn::Worker;
use crate::counters::Reason;
use crate::frag::{self, Outcome, Reassembler};
use crate::guest::Handled;
use crate::icmp::{self, ErrorLimiter, IcmpError};
use crate::limits::Limits;
use crate::ring::Iovs;
use crate::spoof;
use crate::time::Time;
use crate::udp::SendOptions;
use crate::wire::{ETH_LEN, Ip, VNET_LEN, VnetHeader};

/// ICMP errors to the guest: RFC 1812 4.3.2.8 asks for a limit; these are Linux's icmp_msgs_per_sec and burst.
const ERRORS_PER_SECOND: u32 = 1000;
/// See [`ERRORS_PER_SECOND`].
const ERRORS_BURST: u32 = 50;
/// Workers there can be, a power of two: fragments have 16-bit names in IPv4, and each worker its part of them.
const MAX_PAIRS: u32 = crate::limits::MAX_QUEUE_PAIRS as u32;

/// Names of datagrams that are cut for the guest.
pub(super) struct FragmentIds(u32);

impl FragmentIds {
    /// The last name, for a successor.
    pub(super) fn last(&self) -> u32 {
        self.0
    }

    /// Goes on behind the names of a predecessor.
    pub(super) fn restore(&mut self, last: u32) {
        self.0 = last / MAX_PAIRS * MAX_PAIRS + self.0 % MAX_PAIRS;
    }

    /// A name that no other worker uses.
    pub(super) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(MAX_PAIRS);
        self.0
    }
}

/// What the slow path keeps between frames.
pub(super) struct Slow {
    fragments: Reassembler,
    pub(super) fragment_ids: FragmentIds,
    errors: ErrorLimiter,
}

impl Slow {
    /// Of worker `index` of `workers`. A datagram's fragments come by one ring: each worker has its part of the bounds.
    pub(super) fn new(limits: &Limits, workers: usize, index: usize) -> Slow {
        Slow {
            fragments: Reassembler::new(frag::Limits {
                max_datagrams: limits.fragment_datagrams.div_ceil(workers),
                max_bytes: limits.fragment_bytes.div_ceil(workers),
            }),
            fragment_ids: FragmentIds(index as u32),
            errors: ErrorLimiter::new(ERRORS_PER_SECOND, ERRORS_BURST),
        }
    }

    /// When fragments are given up next.
    pub(super) fn poll_at(&self) -> Option<Time> {
        self.fragments.poll_at()
    }

    /// Whether the guest may be told of an error now; the right to tell it is not used up.
    pub(super) fn may_tell(&self, now: Time) -> bool {
        self.errors.would_allow(now)
    }

    /// Begins anew with what the guest may be told.
    pub(super) fn forget_errors(&mut self) {
        self.errors = ErrorLimiter::new(ERRORS_PER_SECOND, ERRORS_BURST);
    }
}

impl Worker {
    /// A frame that belongs to netd's own services: ARP, NDP, DHCP, DHCPv6.
    pub(super) fn on_service_frame(&mut self, frame: &[u8]) -> Result<(), Reason> {
        if self.peers.index != 0 {
            return self.pass_service_frame(frame);
        }
        self.guest.services.learn(frame);
        let link = self.receiveq.link.clone();
        let handled = self.guest.services.handle(frame, &link, self.now, &mut self.frames);
        self.send_frames();
        match handled {
            Handled::Consumed => Ok(()),
            Handled::NotMine => Err(Reason::UnknownProtocol),
            Handled::Dropped(reason) => Err(reason),
        }
    }

    /// ICMP and ICMPv6: echo requests go through ping sockets, the rest to the services.
    pub(super) fn on_icmp(&mut self, frame: &TxFrame<'_>, ip: &Ip) -> Result<(), Reason> {
        let copy = frame.copy();
        let end = ETH_LEN + ip.header_len + ip.payload_len;
        let packet = copy.get(ETH_LEN..end).ok_or(Reason::Malformed)?;
        match icmp::parse_echo(packet) {
            Ok(echo) => self.on_echo_request(&echo, SendOptions::of(ip), packet, frame),
            Err(Reason::UnknownProtocol) => self.on_service_frame(&copy),
            Err(reason) => Err(reason),
        }
    }

    /// A protocol that netd does not carry: the guest is told (RFC 1122 3.2.2.1).
    pub(super) fn on_unknown(&mut self, frame: &TxFrame<'_>, ip: &Ip) -> Result<(), Reason> {
        let copy = frame.copy();
        let end = ETH_LEN + ip.header_len + ip.payload_len;
        if let Some(packet) = copy.get(ETH_LEN..end)
            && self.receiveq.link.guest_address(ip.src) == Some(ip.src)
        {
            self.tell(IcmpError::ProtocolUnreachable, None, ip.src, packet);
        }
        Err(Reason::UnknownProtocol)
    }

    /// A fragment: collected until its packet is whole, which then goes the usual way.
    pub(super) fn on_fragment(&mut self, frame: &TxFrame<'_>) -> Result<(), Reason> {
        let copy = frame.copy();
        let (eth, packet) = copy.split_first_chunk::<ETH_LEN>().ok_or(Reason::Malformed)?;
        let whole = match self.slow.fragments.push(self.now, packet) {
            Outcome::Incomplete => return Ok(()),
            Outcome::NotFragment => return Err(Reason::Malformed),
            Outcome::Dropped(reason) => return Err(reason),
            Outcome::Whole(packet) => packet,
        };
        // The guest has cut it, so it may be cut again, however small it is: the guest may know of a narrow path.
        let ip = Ip { dont_fragment: false, ..Ip::parse(&whole, whole.len())? };
        let mut bytes = Vec::with_capacity(VNET_LEN + ETH_LEN + whole.len());
        bytes.extend_from_slice(&VnetHeader::PLAIN.to_bytes());
        bytes.extend_from_slice(eth);
        bytes.extend_from_slice(&whole);
        let transport = whole.get(ip.header_len..).ok_or(Reason::Malformed)?;
        if spoof::is_neighbour_discovery(&ip, transport) {
            return Err(Reason::Fragment);
        }
        let bytes_len = bytes.len();
        let slices = Iovs::from_owned(bytes);
        let frame = TxFrame { slices: &slices, first: 0, bytes: bytes_len, vnet: VnetHeader::PLAIN };
        self.on_packet(&frame, &ip, transport)
    }

    /// Gives up fragments that have waited too long.
    pub(super) fn expire_fragments(&mut self) {
        for expired in self.slow.fragments.expire(self.now) {
            self.counters.count_drop(Reason::Fragment);
            if let Some(packet) = expired.first
                && let Ok(ip) = Ip::parse(&packet, usize::MAX)
            {
                self.tell(IcmpError::FragmentTimeExceeded, None, ip.src, &packet);
            }
        }
    }

    /// Tells the guest that its packet `quote` did not arrive. The error comes from `offender`; without one, from
    /// the gateway.
    pub(super) fn tell(&mut self, kind: IcmpError, offender: Option<IpAddr>, guest: IpAddr, quote: &[u8]) {
        let Some(mac) = self.receiveq.guest_mac else { return };
        if !self.slow.errors.allow(self.now) {
            return;
        }
        let link = &self.receiveq.link;
        let Some(from) = offender.or_else(|| link.gateway_address(guest)) else { return };
        if let Some(frame) = icmp::error_frame(link, mac, kind, from, quote) {
            self.counters.icmp_errors_to_guest.add(1);
            self.receiveq.queue(frame);
        }
    }
}
