//! Echo requests of the guest, and the replies it gets.

use std::net::IpAddr;
use std::ops::Range;

use smoltcp::wire::{EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol};

use super::packet::Outline;
use super::quote::echo_message;
use crate::counters::Reason;
use crate::guest::frame::{self, MacPair};
use crate::net::Link;
use crate::wire::MacAddr;

/// Length of an echo header in bytes.
const HEADER: usize = 8;

/// An echo request of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    /// The guest's address.
    pub src: IpAddr,
    /// The address that it asks.
    pub dst: IpAddr,
    /// Identifier; the reply must have it.
    pub id: u16,
    /// Sequence number; the reply must have it.
    pub sequence: u16,
    /// Where the payload stands in the packet.
    pub payload: Range<usize>,
    /// TTL or hop limit with which it came.
    pub ttl: u8,
}

/// Parses an IP packet of the guest as an echo request. Bytes behind the packet's end are ignored.
///
/// # Errors
///
/// [`Reason::Malformed`] or [`Reason::Checksum`]; [`Reason::UnknownProtocol`] if it is not an echo request,
/// [`Reason::Fragment`] if it is a fragment.
pub fn parse_echo(packet: &[u8]) -> Result<EchoRequest, Reason> {
    let outline = Outline::of(packet)?;
    if !outline.complete {
        return Err(Reason::Malformed);
    }
    if outline.fragment {
        return Err(Reason::Fragment);
    }
    let message = packet.get(outline.payload.clone()).ok_or(Reason::Malformed)?;
    let (id, sequence) = match (outline.protocol, outline.src, outline.dst) {
        (IpProtocol::Icmp, IpAddr::V4(_), _) => {
            let icmp = Icmpv4Packet::new_checked(message).map_err(|_| Reason::Malformed)?;
            if icmp.msg_type() != Icmpv4Message::EchoRequest {
                return Err(Reason::UnknownProtocol);
            }
            if !icmp.verify_checksum() {
                return Err(Reason::Checksum);
            }
            (icmp.echo_ident(), icmp.echo_seq_no())
        }
        (IpProtocol::Icmpv6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            // Refuses types that smoltcp does not know, along with short messages.
            if message.first() != Some(&u8::from(Icmpv6Message::EchoRequest)) {
                return Err(Reason::UnknownProtocol);
            }
            let icmp = Icmpv6Packet::new_checked(message).map_err(|_| Reason::Malformed)?;
            if !icmp.verify_checksum(&src, &dst) {
                return Err(Reason::Checksum);
            }
            (icmp.echo_ident(), icmp.echo_seq_no())
        }
        _ => return Err(Reason::UnknownProtocol),
    };
    let Outline { src, dst, ttl, payload, .. } = outline;
    Ok(EchoRequest { src, dst, id, sequence, payload: payload.start + HEADER..payload.end, ttl })
}

/// A reply to an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply<'a> {
    /// The address that the guest asked: the request's `dst`.
    pub from: IpAddr,
    /// The guest's address: the request's `src`.
    pub guest: IpAddr,
    /// The request's identifier.
    pub id: u16,
    /// The request's sequence number.
    pub sequence: u16,
    /// What the reply brought back.
    pub payload: &'a [u8],
    /// TTL or hop limit for the guest to see.
    pub ttl: u8,
    /// Type of service or traffic class for the guest to see.
    pub class: u8,
}

/// The frame with a reply for the guest.
///
/// None if the families differ or the payload is longer than IP can carry; a frame longer than the link's
/// MTU is for [`crate::frag::split_frame`].
pub fn echo_reply_frame(link: &Link, guest_mac: MacAddr, reply: &EchoReply<'_>) -> Option<Vec<u8>> {
    let mut packet = echo_message(reply.from, reply.guest, reply.id, reply.sequence, reply.payload, false)?;
    let protocol = if reply.from.is_ipv4() {
        let mut ip = smoltcp::wire::Ipv4Packet::new_unchecked(&mut packet[..]);
        ip.set_hop_limit(reply.ttl);
        ip.set_dscp(reply.class >> 2);
        ip.set_ecn(reply.class & 3);
        ip.fill_checksum();
        EthernetProtocol::Ipv4
    } else {
        let mut ip = smoltcp::wire::Ipv6Packet::new_unchecked(&mut packet[..]);
        ip.set_hop_limit(reply.ttl);
        ip.set_traffic_class(reply.class);
        EthernetProtocol::Ipv6
    };
    let mut frame = frame::ethernet(MacPair { from: link.mac, to: guest_mac }, protocol, 0);
    frame.append(&mut packet);
    Some(frame)
}
