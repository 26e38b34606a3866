//! ICMP errors for the guest.

use std::net::IpAddr;

use smoltcp::wire::{Icmpv4DstUnreachable as Unreachable4, Icmpv6DstUnreachable as Unreachable6, IpProtocol};

use super::packet::Outline;
use crate::guest::frame::{self, IPV4, IPV6, MacPair, TTL};
use crate::net::Link;
use crate::wire::MacAddr;

/// Length of the header of every ICMP error, in bytes.
const HEADER: usize = 8;
/// What is quoted beyond the IP header at most: RFC 1812 section 4.3.2.3 wants as much as fits 576 bytes, RFC
/// 4443 section 2.4 (c) as much as fits the minimum MTU.
const MAX_V4: usize = 576 - IPV4 - HEADER;
const MAX_V6: usize = 1280 - IPV6 - HEADER;
/// The smallest MTUs that mean something: RFC 791 section 3.2, RFC 8200 section 5.
const MIN_MTU_V4: u32 = 68;
const MIN_MTU_V6: u32 = 1280;

/// ICMPv4 types (RFC 792).
const V4_UNREACHABLE: u8 = 3;
const V4_TIME_EXCEEDED: u8 = 11;
const V4_PARAMETER: u8 = 12;
/// Codes of RFC 1812 section 5.2.7.1 and of RFC 792.
const V4_FRAGMENTATION: u8 = 4;
/// ICMPv6 types (RFC 4443).
const V6_UNREACHABLE: u8 = 1;
const V6_TOO_BIG: u8 = 2;
const V6_TIME_EXCEEDED: u8 = 3;
const V6_PARAMETER: u8 = 4;
/// Code of a parameter problem: unrecognized next header, and where a packet without extensions names it.
const V6_NEXT_HEADER: u8 = 1;
const NEXT_HEADER_AT: u32 = 6;

/// Origins of `sock_extended_err` (linux/errqueue.h).
const ORIGIN_LOCAL: u8 = 1;
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;

/// What happened to a packet of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// The host does not answer.
    HostUnreachable,
    /// There is no route.
    NetUnreachable,
    /// No program listens on the port.
    PortUnreachable,
    /// Policy forbids it.
    AdminProhibited,
    /// The host does not know the protocol.
    ProtocolUnreachable,
    /// The packet is larger than the next link of its path.
    FragmentationNeeded {
        /// MTU of that link in bytes, IP header included.
        mtu: u32,
    },
    /// The TTL or hop limit ended on the way.
    TimeExceeded,
    /// A fragment of the datagram did not arrive in time.
    FragmentTimeExceeded,
    /// Another error, as its wire has it.
    Raw {
        /// ICMP type of the packet's family.
        kind: u8,
        /// ICMP code.
        code: u8,
        /// The four bytes behind the checksum.
        info: u32,
    },
}

impl IcmpError {
    /// What an errno and the fields of `sock_extended_err` say; none if it is nothing to tell the guest.
    ///
    /// `origin`, `kind`, `code` and `info` are `ee_origin`, `ee_type`, `ee_code` and `ee_info`.
    pub fn from_extended(errno: i32, origin: u8, kind: u8, code: u8, info: u32) -> Option<IcmpError> {
        match origin {
            ORIGIN_LOCAL => Self::from_local(errno, info),
            ORIGIN_ICMP => Self::from_v4(kind, code, info),
            ORIGIN_ICMP6 => Self::from_v6(kind, code, info),
            _ => None,
        }
    }

    /// What the pod's own kernel says; `info` is the MTU where that is what matters.
    fn from_local(errno: i32, info: u32) -> Option<IcmpError> {
        match errno {
            libc::EMSGSIZE => Some(IcmpError::FragmentationNeeded { mtu: info }),
            libc::ECONNREFUSED => Some(IcmpError::PortUnreachable),
            libc::EHOSTUNREACH | libc::EHOSTDOWN => Some(IcmpError::HostUnreachable),
            libc::ENETUNREACH | libc::ENETDOWN => Some(IcmpError::NetUnreachable),
            libc::EACCES | libc::EPERM => Some(IcmpError::AdminProhibited),
            _ => None,
        }
    }

    fn from_v4(kind: u8, code: u8, info: u32) -> Option<IcmpError> {
        Some(match (kind, code) {
            (V4_UNREACHABLE, 0) => IcmpError::NetUnreachable,
            (V4_UNREACHABLE, 1) => IcmpError::HostUnreachable,
            (V4_UNREACHABLE, 2) => IcmpError::ProtocolUnreachable,
            (V4_UNREACHABLE, 3) => IcmpError::PortUnreachable,
            (V4_UNREACHABLE, V4_FRAGMENTATION) => IcmpError::FragmentationNeeded { mtu: info },
            (V4_UNREACHABLE, 13) => IcmpError::AdminProhibited,
            (V4_UNREACHABLE, _) => IcmpError::Raw { kind, code, info: 0 },
            (V4_TIME_EXCEEDED, 0) => IcmpError::TimeExceeded,
            (V4_TIME_EXCEEDED, 1) => IcmpError::FragmentTimeExceeded,
            // Linux reports the pointer alone; on the wire it is the first of the four bytes (RFC 792).
            (V4_PARAMETER, _) => IcmpError::Raw { kind, code, info: info << 24 },
            _ => return None,
        })
    }

    fn from_v6(kind: u8, code: u8, info: u32) -> Option<IcmpError> {
        Some(match (kind, code) {
            (V6_UNREACHABLE, 0) => IcmpError::NetUnreachable,
            (V6_UNREACHABLE, 1) => IcmpError::AdminProhibited,
            (V6_UNREACHABLE, 3) => IcmpError::HostUnreachable,
            (V6_UNREACHABLE, 4) => IcmpError::PortUnreachable,
            (V6_UNREACHABLE, _) => IcmpError::Raw { kind, code, info: 0 },
            (V6_TOO_BIG, _) => IcmpError::FragmentationNeeded { mtu: info },
            (V6_TIME_EXCEEDED, 0) => IcmpError::TimeExceeded,
            (V6_TIME_EXCEEDED, 1) => IcmpError::FragmentTimeExceeded,
            (V6_PARAMETER, _) => IcmpError::Raw { kind, code, info },
            _ => return None,
        })
    }

    /// Type, code and the four bytes behind the checksum (RFC 792, RFC 1191 section 4, RFC 1812 section
    /// 5.2.7.1).
    fn v4(self) -> Option<(u8, u8, u32)> {
        Some(match self {
            IcmpError::NetUnreachable => (V4_UNREACHABLE, Unreachable4::NetUnreachable.into(), 0),
            IcmpError::HostUnreachable => (V4_UNREACHABLE, Unreachable4::HostUnreachable.into(), 0),
            IcmpError::ProtocolUnreachable => (V4_UNREACHABLE, Unreachable4::ProtoUnreachable.into(), 0),
            IcmpError::PortUnreachable => (V4_UNREACHABLE, Unreachable4::PortUnreachable.into(), 0),
            IcmpError::AdminProhibited => (V4_UNREACHABLE, Unreachable4::CommProhibited.into(), 0),
            IcmpError::FragmentationNeeded { mtu } => {
                (V4_UNREACHABLE, V4_FRAGMENTATION, mtu.clamp(MIN_MTU_V4, u16::MAX.into()))
            }
            IcmpError::TimeExceeded => (V4_TIME_EXCEEDED, 0, 0),
            IcmpError::FragmentTimeExceeded => (V4_TIME_EXCEEDED, 1, 0),
            // Source quench and redirect would change how the guest sends, on the word of any sender.
            IcmpError::Raw {
                kind: kind @ (V4_UNREACHABLE | V4_TIME_EXCEEDED | V4_PARAMETER),
                code,
                info,
            } => (kind, code, info),
            IcmpError::Raw { .. } => return None,
        })
    }

    /// Type, code and the four bytes behind the checksum (RFC 4443 section 3).
    fn v6(self) -> Option<(u8, u8, u32)> {
        Some(match self {
            IcmpError::NetUnreachable => (V6_UNREACHABLE, Unreachable6::NoRoute.into(), 0),
            IcmpError::HostUnreachable => (V6_UNREACHABLE, Unreachable6::AddrUnreachable.into(), 0),
            IcmpError::ProtocolUnreachable => (V6_PARAMETER, V6_NEXT_HEADER, NEXT_HEADER_AT),
            IcmpError::PortUnreachable => (V6_UNREACHABLE, Unreachable6::PortUnreachable.into(), 0),
            IcmpError::AdminProhibited => (V6_UNREACHABLE, Unreachable6::AdminProhibit.into(), 0),
            IcmpError::FragmentationNeeded { mtu } => (V6_TOO_BIG, 0, mtu.max(MIN_MTU_V6)),
            IcmpError::TimeExceeded => (V6_TIME_EXCEEDED, 0, 0),
            IcmpError::FragmentTimeExceeded => (V6_TIME_EXCEEDED, 1, 0),
            IcmpError::Raw { kind: kind @ V6_UNREACHABLE..=V6_PARAMETER, code, info } => (kind, code, info),
            IcmpError::Raw { .. } => return None,
        })
    }
}

/// The frame that tells the guest what happened to its packet `original`; none if the rules forbid it.
///
/// `from` is the host that noticed, as the pod knows it: the guest sees it through [`Link::source_for_guest`],
/// and an offender of no use to the guest (none, a group) becomes the gateway. `original` is the guest's
/// own IP packet, all of it or at least its headers and eight bytes more if it has them.
pub fn error_frame(
    link: &Link,
    guest_mac: MacAddr,
    kind: IcmpError,
    from: IpAddr,
    original: &[u8],
) -> Option<Vec<u8>> {
    let outline = Outline::of(original).ok()?;
    if !deserves(link, &outline, original, kind) {
        return None;
    }
    let same_family = from.is_ipv4() == outline.src.is_ipv4();
    let seen = link.source_for_guest(from).filter(|a| same_family && !a.is_multicast());
    let from = match seen {
        Some(a) => a,
        None => link.gateway_address(outline.src)?,
    };
    let ends = MacPair { from: link.mac, to: guest_mac };
    match (from, outline.src) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let max = MAX_V4.min(usize::from(link.mtu).checked_sub(IPV4 + HEADER)?);
            frame::icmp4(ends, (from, to), TTL, message(kind.v4()?, original, max))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame::icmp6(ends, (from, to), TTL, message(kind.v6()?, original, MAX_V6))
        }
        _ => None,
    }
}

fn message((kind, code, info): (u8, u8, u32), original: &[u8], max: usize) -> Vec<u8> {
    let mut m = vec![kind, code, 0, 0];
    m.extend_from_slice(&info.to_be_bytes());
    m.extend(original.iter().take(max));
    m
}

/// Whether a packet may be answered with an error: RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e).
fn deserves(link: &Link, outline: &Outline, original: &[u8], kind: IcmpError) -> bool {
    // Not for what came from an unspecified address, or not from one host.
    let sender = match outline.src {
        IpAddr::V4(a) => !a.is_unspecified() && !a.is_loopback() && !a.is_multicast() && !a.is_broadcast(),
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_loopback() && !a.is_multicast(),
    };
    // Not for what went to many, except that IPv6 finds the MTU of a group's paths so.
    let too_big = matches!(kind, IcmpError::FragmentationNeeded { .. });
    let receiver = match outline.dst {
        IpAddr::V4(a) => !a.is_multicast() && !a.is_broadcast() && !is_subnet_broadcast(link, a),
        IpAddr::V6(a) => !a.is_multicast() || too_big,
    };
    // Not for errors, and not for fragments that cannot show whether they are part of one.
    let kind = original.get(outline.payload.start).filter(|_| !outline.payload.is_empty());
    let about_error = match outline.protocol {
        IpProtocol::Icmp => !matches!(kind, Some(0 | 8 | 9 | 10 | 13..=18)),
        // Errors are the types below 128; redirects are told apart by (e.2).
        IpProtocol::Icmpv6 => !matches!(kind, Some(128..=136 | 138..)),
        _ => false,
    };
    sender && receiver && !about_error && !outline.later_fragment
}

fn is_subnet_broadcast(link: &Link, a: std::net::Ipv4Addr) -> bool {
    let net = link.v4.as_ref().filter(|v4| v4.prefix_len < 31);
    net.and_then(|v4| ipnet::Ipv4Net::new(v4.guest, v4.prefix_len).ok()).is_some_and(|n| n.broadcast() == a)
}
