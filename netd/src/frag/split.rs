//! Datagrams for the guest that are longer than its MTU.

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6FragmentHeader, Ipv6Packet};

use super::parse::FRAGMENT_HEADER;

/// Length of an Ethernet header, and of the fixed IPv6 header, in bytes.
const ETHERNET: usize = 14;
const IPV6: usize = 40;

/// Cuts a complete Ethernet frame into frames whose packets fit the MTU; see [`split`].
pub fn split_frame(frame: &[u8], mtu: u16, id: u32) -> Option<Vec<Vec<u8>>> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET)?;
    Some(split(packet, mtu, id)?.into_iter().map(|p| [ethernet, &p[..]].concat()).collect())
}

/// Cuts an IP packet without extension headers into fragments that fit the MTU, in order; a packet that
/// fits stays as it is. None if the packet is malformed or the MTU leaves no room.
///
/// `id` names the datagram: it must not come back between the same two addresses for as long as a receiver
/// waits (RFC 6864; the lower 16 bits count for IPv4).
pub fn split(packet: &[u8], mtu: u16, id: u32) -> Option<Vec<Vec<u8>>> {
    if packet.len() <= usize::from(mtu) {
        return Some(vec![packet.to_vec()]);
    }
    match packet.first()? >> 4 {
        4 => split_v4(packet, usize::from(mtu), id),
        6 => split_v6(packet, usize::from(mtu), id),
        _ => None,
    }
}

/// Calls `build` with offset, whether more follows, and content of each piece of `payload`.
fn pieces(
    payload: &[u8],
    room: usize,
    build: impl Fn(usize, bool, &[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<Vec<u8>>> {
    // All but the last are multiples of eight bytes (RFC 791 section 3.2, RFC 8200 section 4.5).
    let size = room / 8 * 8;
    if size == 0 {
        return None;
    }
    let piece = |(i, content): (usize, &[u8])| {
        let offset = i * size;
        build(offset, offset + content.len() < payload.len(), content)
    };
    payload.chunks(size).enumerate().map(piece).collect()
}

fn split_v4(packet: &[u8], mtu: usize, id: u32) -> Option<Vec<Vec<u8>>> {
    let ip = Ipv4Packet::new_checked(packet).ok()?;
    let header = packet.get(..usize::from(ip.header_len()))?;
    pieces(ip.payload(), mtu.checked_sub(header.len())?, |offset, more, content| {
        let mut fragment = [header, content].concat();
        let len = u16::try_from(fragment.len()).ok()?;
        let mut ip = Ipv4Packet::new_unchecked(&mut fragment[..]);
        ip.set_total_len(len);
        // The lower half.
        ip.set_ident((id & 0xffff) as u16);
        ip.set_dont_frag(false);
        ip.set_more_frags(more);
        ip.set_frag_offset(u16::try_from(offset).ok()?);
        ip.fill_checksum();
        Some(fragment)
    })
}

fn split_v6(packet: &[u8], mtu: usize, id: u32) -> Option<Vec<Vec<u8>>> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    let header = packet.get(..IPV6)?;
    let next = u8::from(ip.next_header());
    pieces(ip.payload(), mtu.checked_sub(IPV6 + FRAGMENT_HEADER)?, |offset, more, content| {
        let mut extension = [next, 0, 0, 0, 0, 0, 0, 0];
        let mut fields = Ipv6FragmentHeader::new_unchecked(extension.get_mut(2..)?);
        fields.set_frag_offset(u16::try_from(offset / 8).ok()?);
        fields.set_more_frags(more);
        fields.set_ident(id);
        let mut fragment = [header, &extension, content].concat();
        let len = u16::try_from(fragment.len() - IPV6).ok()?;
        let mut ip = Ipv6Packet::new_unchecked(&mut fragment[..]);
        ip.set_next_header(IpProtocol::Ipv6Frag);
        ip.set_payload_len(len);
        Some(fragment)
    })
}
