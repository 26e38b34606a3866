//! What ICMP needs to know of an IP packet of either family.

use std::net::IpAddr;
use std::ops::Range;

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};

use crate::counters::Reason;

/// Length of the fixed IPv6 header in bytes.
const IPV6: usize = 40;

/// The outline of an IP packet, which may be cut short behind its headers.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// TTL or hop limit.
    pub(super) ttl: u8,
    /// The upper-layer protocol, behind any IPv6 extension headers.
    pub(super) protocol: IpProtocol,
    /// Where the upper-layer packet stands, as far as it is there.
    pub(super) payload: Range<usize>,
    /// It is a fragment, and not the first one.
    pub(super) later_fragment: bool,
    /// It is a fragment.
    pub(super) fragment: bool,
    /// All of the packet is there.
    pub(super) complete: bool,
}

impl Outline {
    /// Outlines an IP packet whose headers are all there.
    ///
    /// # Errors
    ///
    /// [`Reason::Malformed`] if they are not, [`Reason::Checksum`] if that of an IPv4 header is wrong.
    pub(super) fn of(packet: &[u8]) -> Result<Outline, Reason> {
        match packet.first().map(|b| b >> 4) {
            Some(4) => Self::v4(packet),
            Some(6) => Self::v6(packet).ok_or(Reason::Malformed),
            _ => Err(Reason::Malformed),
        }
    }

    fn v4(packet: &[u8]) -> Result<Outline, Reason> {
        let header_len = packet.first().map_or(0, |b| usize::from(b & 15) * 4);
        if header_len < 20 || packet.len() < header_len {
            return Err(Reason::Malformed);
        }
        // All header fields are there; its payload is not touched.
        let ip = Ipv4Packet::new_unchecked(packet);
        let total = usize::from(ip.total_len());
        if total < header_len {
            return Err(Reason::Malformed);
        }
        if !ip.verify_checksum() {
            return Err(Reason::Checksum);
        }
        Ok(Outline {
            src: ip.src_addr().into(),
            dst: ip.dst_addr().into(),
            ttl: ip.hop_limit(),
            protocol: ip.next_header(),
            payload: header_len..total.min(packet.len()),
            later_fragment: ip.frag_offset() != 0,
            fragment: ip.frag_offset() != 0 || ip.more_frags(),
            complete: total <= packet.len(),
        })
    }

    fn v6(packet: &[u8]) -> Option<Outline> {
        if packet.len() < IPV6 {
            return None;
        }
        // All header fields are there; its payload is not touched.
        let ip = Ipv6Packet::new_unchecked(packet);
        let end = ip.total_len().min(packet.len());
        let (mut protocol, mut at) = (ip.next_header(), IPV6);
        let (mut fragment, mut later_fragment) = (false, false);
        loop {
            let len = match protocol {
                IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                    (usize::from(*packet.get(at + 1)?) + 1) * 8
                }
                IpProtocol::Ipv6Frag => {
                    fragment = true;
                    let field = packet.get(at + 2..at + 4)?.first_chunk::<2>()?;
                    later_fragment = u16::from_be_bytes(*field) >> 3 != 0;
                    8
                }
                _ => break,
            };
            protocol = IpProtocol::from(*packet.get(at)?);
            at += len;
            if at > end {
                return None;
            }
            if later_fragment {
                // What follows belongs to the middle of something.
                break;
            }
        }
        Some(Outline {
            src: ip.src_addr().into(),
            dst: ip.dst_addr().into(),
            ttl: ip.hop_limit(),
            protocol,
            payload: at..end,
            later_fragment,
            fragment,
            complete: ip.total_len() <= packet.len(),
        })
    }
}
