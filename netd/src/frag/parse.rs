//! Fragments on the wire, and packets put together again.

use std::net::IpAddr;

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6FragmentHeader, Ipv6Packet};

use crate::counters::Reason;

/// Fixed header of IPv6 and the length of its fragment header.
const IPV6: usize = 40;
pub(super) const FRAGMENT_HEADER: usize = 8;
/// The largest IP packet, and the largest payload of IPv6.
const MAX: usize = 65_535;

/// What the pieces of one datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    from: IpAddr,
    to: IpAddr,
    id: u32,
    /// The protocol, for IPv4 only: pieces of one IPv6 datagram may differ in it.
    protocol: u8,
}

/// One fragment.
#[derive(Debug)]
pub(super) struct Fragment<'a> {
    pub(super) key: Key,
    /// Everything in front of the payload, an IPv6 fragment header included.
    pub(super) header: &'a [u8],
    /// Where in the datagram the payload belongs, in bytes.
    pub(super) offset: usize,
    /// Whether more follows behind it.
    pub(super) more: bool,
    pub(super) payload: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Parses an IP packet; none if it is not a fragment.
    pub(super) fn parse(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Reason> {
        match packet.first().map(|b| b >> 4) {
            Some(4) => Self::parse_v4(packet),
            Some(6) => Self::parse_v6(packet),
            _ => Err(Reason::Malformed),
        }
    }

    fn parse_v4(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Reason> {
        let ip = Ipv4Packet::new_checked(packet).map_err(|_| Reason::Malformed)?;
        if !ip.more_frags() && ip.frag_offset() == 0 {
            return Ok(None);
        }
        if !ip.verify_checksum() {
            return Err(Reason::Checksum);
        }
        let key = Key {
            from: ip.src_addr().into(),
            to: ip.dst_addr().into(),
            id: ip.ident().into(),
            protocol: ip.next_header().into(),
        };
        let header = packet.get(..usize::from(ip.header_len())).ok_or(Reason::Malformed)?;
        Ok(Some(Fragment {
            key,
            header,
            offset: usize::from(ip.frag_offset()),
            more: ip.more_frags(),
            payload: ip.payload(),
        }))
    }

    fn parse_v6(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Reason> {
        let ip = Ipv6Packet::new_checked(packet).map_err(|_| Reason::Malformed)?;
        let Some((_, at)) = fragment_header(packet).ok_or(Reason::Malformed)? else { return Ok(None) };
        let packet = packet.get(..ip.total_len()).ok_or(Reason::Malformed)?;
        // The fragment header begins with its next header and a reserved byte; smoltcp's has neither.
        let fields = packet.get(at + 2..at + FRAGMENT_HEADER).ok_or(Reason::Malformed)?;
        let fields = Ipv6FragmentHeader::new_checked(fields).map_err(|_| Reason::Malformed)?;
        let (header, payload) = packet.split_at_checked(at + FRAGMENT_HEADER).ok_or(Reason::Malformed)?;
        Ok(Some(Fragment {
            key: Key {
                from: ip.src_addr().into(),
                to: ip.dst_addr().into(),
                id: fields.ident(),
                protocol: 0,
            },
            header,
            offset: usize::from(fields.frag_offset()) * 8,
            more: fields.more_frags(),
            payload,
        }))
    }

    /// Whether this fragment can be part of any datagram at all.
    pub(super) fn check(&self) -> Result<(), Reason> {
        let len = self.payload.len();
        let uneven = self.more && !len.is_multiple_of(8);
        // IPv6 counts what stands between its fixed header and the fragment header, IPv4 its whole header.
        let v6 = self.key.from.is_ipv6();
        let headers =
            if v6 { self.header.len().saturating_sub(IPV6 + FRAGMENT_HEADER) } else { self.header.len() };
        if len == 0 || uneven || headers + self.offset + len > MAX { Err(Reason::Fragment) } else { Ok(()) }
    }
}

/// Whether an IP packet is a fragment; malformed packets are none.
pub fn is_fragment(packet: &[u8]) -> bool {
    match packet.first().map(|b| b >> 4) {
        // Neither the more-fragments bit nor an offset.
        Some(4) => {
            packet.get(6..8).is_some_and(|f| f.iter().zip([0x3f, 0xff]).any(|(b, mask)| b & mask != 0))
        }
        Some(6) => matches!(fragment_header(packet), Some(Some(_))),
        _ => false,
    }
}

/// Where the next-header field that names the fragment header stands, and where that header begins. The outer
/// value is none if the headers in front of it overrun the packet.
fn fragment_header(packet: &[u8]) -> Option<Option<(usize, usize)>> {
    let (mut field, mut at) = (6, IPV6);
    loop {
        match IpProtocol::from(*packet.get(field)?) {
            IpProtocol::Ipv6Frag => return Some(Some((field, at))),
            // The headers that stay in front of each fragment (RFC 8200 section 4.5).
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                field = at;
                at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
            }
            _ => return Some(None),
        }
    }
}

/// The packet of a first fragment's headers and the whole payload; none if it were too long.
pub(super) fn assemble<'a>(header: &[u8], payload: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let v6 = header.first()? >> 4 == 6;
    let mut packet = header.to_vec();
    if v6 {
        let (field, at) = fragment_header(header)??;
        let next = *header.get(at)?;
        *packet.get_mut(field)? = next;
        packet.truncate(at);
    }
    for piece in payload {
        packet.extend_from_slice(piece);
    }
    if v6 {
        let len = u16::try_from(packet.len().checked_sub(IPV6)?).ok()?;
        Ipv6Packet::new_unchecked(&mut packet[..]).set_payload_len(len);
    } else {
        let len = u16::try_from(packet.len()).ok()?;
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[..]);
        ip.set_total_len(len);
        ip.set_more_frags(false);
        ip.set_frag_offset(0);
        ip.fill_checksum();
    }
    Some(packet)
}
