//! DHCPv4 messages on the wire (RFC 2131 section 2, RFC 2132).

use std::net::Ipv4Addr;

use crate::wire::MacAddr;

/// Bytes in front of the options, the magic cookie included.
pub(super) const HEADER: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The shortest message that every BOOTP client and relay takes (RFC 1542 section 2.1).
const MIN_LEN: usize = 300;

const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;
const ETHERNET: u8 = 1;

/// Option codes (RFC 2132, and the RFC named where another one defines it).
pub(super) mod code {
    pub(in super::super) const PAD: u8 = 0;
    pub(in super::super) const SUBNET_MASK: u8 = 1;
    pub(in super::super) const ROUTER: u8 = 3;
    pub(in super::super) const DNS: u8 = 6;
    pub(in super::super) const HOST_NAME: u8 = 12;
    pub(in super::super) const DOMAIN_NAME: u8 = 15;
    pub(in super::super) const MTU: u8 = 26;
    pub(in super::super) const BROADCAST: u8 = 28;
    pub(in super::super) const REQUESTED_ADDRESS: u8 = 50;
    pub(in super::super) const LEASE_TIME: u8 = 51;
    pub(in super::super) const OVERLOAD: u8 = 52;
    pub(in super::super) const MESSAGE_TYPE: u8 = 53;
    pub(in super::super) const SERVER_ID: u8 = 54;
    pub(in super::super) const PARAMETER_LIST: u8 = 55;
    pub(in super::super) const MESSAGE: u8 = 56;
    pub(in super::super) const MAX_SIZE: u8 = 57;
    pub(in super::super) const RENEWAL: u8 = 58;
    pub(in super::super) const REBINDING: u8 = 59;
    pub(in super::super) const CLIENT_ID: u8 = 61;
    /// RFC 4039.
    pub(in super::super) const RAPID_COMMIT: u8 = 80;
    /// RFC 4702.
    pub(in super::super) const FQDN: u8 = 81;
    /// RFC 3046.
    pub(in super::super) const RELAY_AGENT: u8 = 82;
    /// RFC 3397.
    pub(in super::super) const SEARCH: u8 = 119;
    /// RFC 3442.
    pub(in super::super) const CLASSLESS_ROUTES: u8 = 121;
    /// RFC 3442's content under the number that Windows before Vista asks for.
    pub(in super::super) const MS_CLASSLESS_ROUTES: u8 = 249;
    pub(in super::super) const END: u8 = 255;
}

/// Message types (RFC 2132 section 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageType {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
    Release = 7,
    Inform = 8,
}

impl MessageType {
    fn from_wire(n: u8) -> Option<MessageType> {
        use MessageType::{Ack, Decline, Discover, Inform, Nak, Offer, Release, Request};
        [Discover, Offer, Request, Decline, Ack, Nak, Release, Inform].into_iter().find(|t| *t as u8 == n)
    }
}

/// A request of a client.
#[derive(Debug)]
pub(super) struct Request {
    xid: [u8; 4],
    flags: [u8; 2],
    giaddr: [u8; 4],
    /// The client's present address, zero if it cannot answer ARP for it yet.
    pub(super) ciaddr: Ipv4Addr,
    /// The client's Ethernet address.
    pub(super) chaddr: MacAddr,
    /// None is plain BOOTP.
    pub(super) kind: Option<MessageType>,
    options: Vec<(u8, Vec<u8>)>,
}

impl Request {
    /// Parses a request; none if it is not one of an Ethernet client.
    pub(super) fn parse(message: &[u8]) -> Option<Request> {
        let (header, rest) = message.split_at_checked(HEADER)?;
        let four = |at: usize| header.get(at..at + 4).and_then(|b| b.first_chunk::<4>()).copied();
        let [op, htype, hlen, _hops, ..] = *header else { return None };
        if op != BOOT_REQUEST || htype != ETHERNET || hlen != 6 || four(236)? != MAGIC {
            return None;
        }
        let chaddr = MacAddr(*header.get(28..34)?.first_chunk::<6>()?);
        if chaddr.is_group() {
            return None;
        }
        let mut options = Vec::new();
        parse_options(rest, &mut options)?;
        // RFC 2131 section 4.1: the fields `file` and `sname` may hold options, in this order.
        let overload =
            options.iter().find(|(c, _)| *c == code::OVERLOAD).and_then(|(_, v)| v.first().copied());
        if matches!(overload, Some(1 | 3)) {
            parse_options(header.get(108..236)?, &mut options)?;
        }
        if matches!(overload, Some(2 | 3)) {
            parse_options(header.get(44..108)?, &mut options)?;
        }
        let kind = match options.iter().find(|(c, _)| *c == code::MESSAGE_TYPE) {
            Some((_, value)) => Some(MessageType::from_wire(*value.first()?)?),
            None => None,
        };
        Some(Request {
            xid: four(4)?,
            flags: *header.get(10..12)?.first_chunk()?,
            giaddr: four(24)?,
            ciaddr: four(12)?.into(),
            chaddr,
            kind,
            options,
        })
    }

    /// The value of an option.
    pub(super) fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(c, _)| *c == code).map(|(_, v)| &v[..])
    }

    /// The value of an option that is an address.
    pub(super) fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.option(code)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a))
    }

    /// Whether the client wants the answer by broadcast (RFC 2131 section 2, figure 2).
    pub(super) fn wants_broadcast(&self) -> bool {
        self.flags[0] & 0x80 != 0
    }

    /// Whether a relay agent sent it.
    pub(super) fn relayed(&self) -> bool {
        self.giaddr != [0; 4]
    }

    /// The reply to this request, with as many of `options` as fit into `max` bytes, in their order.
    pub(super) fn reply(
        &self,
        ciaddr: Ipv4Addr,
        yiaddr: Ipv4Addr,
        options: &[(u8, Vec<u8>)],
        max: usize,
    ) -> Vec<u8> {
        let mut m = vec![BOOT_REPLY, ETHERNET, 6, 0];
        m.extend_from_slice(&self.xid);
        m.extend_from_slice(&[0, 0]);
        m.extend_from_slice(&self.flags);
        m.extend_from_slice(&ciaddr.octets());
        m.extend_from_slice(&yiaddr.octets());
        // The next server stays zero: what boots from the network is told by options.
        m.extend_from_slice(&[0; 4]);
        m.extend_from_slice(&self.giaddr);
        m.extend_from_slice(&self.chaddr.0);
        m.resize(HEADER - MAGIC.len(), 0);
        m.extend_from_slice(&MAGIC);
        for (code, value) in options {
            push_option(&mut m, *code, value, max);
        }
        m.push(code::END);
        if m.len() < MIN_LEN {
            m.resize(MIN_LEN, code::PAD);
        }
        m
    }
}

/// Collects options; several of one code are one value (RFC 3396 section 7). None if one overruns the field.
fn parse_options(mut field: &[u8], options: &mut Vec<(u8, Vec<u8>)>) -> Option<()> {
    while let Some((&code, rest)) = field.split_first() {
        match code {
            code::PAD => field = rest,
            code::END => break,
            _ => {
                let (&len, rest) = rest.split_first()?;
                let (value, rest) = rest.split_at_checked(usize::from(len))?;
                match options.iter_mut().find(|(c, _)| *c == code) {
                    Some((_, whole)) => whole.extend_from_slice(value),
                    None => options.push((code, value.to_vec())),
                }
                field = rest;
            }
        }
    }
    Some(())
}

/// Appends an option, a long value in several pieces (RFC 3396 section 6), if it fits with the end mark.
fn push_option(message: &mut Vec<u8>, code: u8, value: &[u8], max: usize) {
    let pieces = value.len().div_ceil(255).max(1);
    if message.len() + value.len() + 2 * pieces + 1 > max {
        return;
    }
    if value.is_empty() {
        message.extend_from_slice(&[code, 0]);
    }
    for piece in value.chunks(255) {
        // A piece has at most 255 bytes.
        message.extend_from_slice(&[code, u8::try_from(piece.len()).unwrap_or(u8::MAX)]);
        message.extend_from_slice(piece);
    }
}
