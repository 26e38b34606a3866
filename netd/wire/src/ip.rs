//! Ethernet, IPv4 (RFC 791) and IPv6 with its extension headers (RFC 8200).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::MacAddr;
use super::ParseError;
use super::{be16, fold, sum, take};

/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of a tag of 802.1Q.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol numbers.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Eth {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// EtherType.
    pub ethertype: u16,
}

impl Eth {
    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// [`ParseError::Malformed`] when the frame is shorter than a header.
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        Ok(Eth { dst: MacAddr(take(frame, 0)?), src: MacAddr(take(frame, 6)?), ethertype: be16(frame, 12)? })
    }
}

/// Where a fragment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of its payload in bytes.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

/// An IP header, extension headers included.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class: DSCP and, in the two lowest bits, ECN.
    pub class: u8,
    /// Don't-fragment bit; always true for IPv6.
    pub dont_fragment: bool,
    /// Set when the packet is a fragment.
    pub fragment: Option<Fragment>,
    /// Bytes from the start of the packet to its payload.
    pub header_len: usize,
    /// Payload bytes.
    pub payload_len: usize,
}

/// Extension headers a packet may carry before it is refused: hosts send at most a few, and each costs time.
const MAX_EXTENSIONS: usize = 8;

impl Ip {
    /// Reads the header at the start of `packet`, which holds at least the headers; `total` is how many bytes
    /// the packet really has. A GSO frame's length field is honoured up to 64 KiB (Linux sends no jumbograms
    /// to a device that did not offer them).
    ///
    /// # Errors
    /// [`ParseError::Malformed`] or [`ParseError::Checksum`].
    pub fn parse(packet: &[u8], total: usize) -> Result<Self, ParseError> {
        match packet.first().ok_or(ParseError::Malformed)? >> 4 {
            4 => Self::parse_v4(packet, total),
            6 => Self::parse_v6(packet, total),
            _ => Err(ParseError::Malformed),
        }
    }

    fn parse_v4(p: &[u8], total: usize) -> Result<Self, ParseError> {
        let header_len = usize::from(p[0] & 0xf) * 4;
        let header = p.get(..header_len).filter(|h| h.len() >= 20).ok_or(ParseError::Malformed)?;
        let packet_len = usize::from(be16(header, 2)?);
        if packet_len < header_len || packet_len > total {
            return Err(ParseError::Malformed);
        }
        // RFC 1122 3.2.1.2: a host verifies the header checksum of every datagram.
        if fold(sum(header, 0)) != 0xffff {
            return Err(ParseError::Checksum);
        }
        let flags = be16(header, 6)?;
        let fragment = Fragment { offset: (flags & 0x1fff) * 8, more: flags & 0x2000 != 0 };
        Ok(Ip {
            src: Ipv4Addr::from(take::<4>(header, 12)?).into(),
            dst: Ipv4Addr::from(take::<4>(header, 16)?).into(),
            protocol: header[9],
            ttl: header[8],
            class: header[1],
            dont_fragment: flags & 0x4000 != 0,
            fragment: (fragment.more || fragment.offset != 0).then_some(fragment),
            header_len,
            payload_len: packet_len - header_len,
        })
    }

    fn parse_v6(p: &[u8], total: usize) -> Result<Self, ParseError> {
        let packet_len = 40 + usize::from(be16(p, 4)?);
        if packet_len > total {
            return Err(ParseError::Malformed);
        }
        let mut next = *p.get(6).ok_or(ParseError::Malformed)?;
        let mut at = 40;
        let mut fragment = None;
        for _ in 0..MAX_EXTENSIONS {
            match next {
                // Hop-by-hop, routing, destination options: length in units of 8 bytes beyond the first.
                0 | 43 | 60 => {
                    let [following, len] = take(p, at)?;
                    next = following;
                    at += 8 + usize::from(len) * 8;
                }
                44 => {
                    let [following, _] = take(p, at)?;
                    let word = be16(p, at + 2)?;
                    fragment = Some(Fragment { offset: word & 0xfff8, more: word & 1 != 0 });
                    next = following;
                    at += 8;
                    // What follows is payload of the whole datagram unless this is its first fragment.
                    break;
                }
                _ => break,
            }
        }
        if at > packet_len || matches!(next, 0 | 43 | 60) {
            return Err(ParseError::Malformed);
        }
        Ok(Ip {
            src: Ipv6Addr::from(take::<16>(p, 8)?).into(),
            dst: Ipv6Addr::from(take::<16>(p, 24)?).into(),
            protocol: next,
            ttl: p[7],
            class: (p[0] << 4) | (p[1] >> 4),
            dont_fragment: true,
            fragment,
            header_len: at,
            payload_len: packet_len - at,
        })
    }
}
