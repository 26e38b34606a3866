//! Large TCP frames cut into the segments that they stand for, as a device without that offload would send them.

use std::net::IpAddr;

use netd_wire::{ETH_LEN, ETHERTYPE_IPV4, Eth, Ip, TcpFlags, TcpHeader, fold, protocol, pseudo_header, sum};

use super::Packet;

/// Control bits that only the last segment keeps.
const LAST_ONLY: u8 = TcpFlags::FIN.0 | TcpFlags::PSH.0;
/// Congestion window reduced: only the first segment keeps it (RFC 3168, 6.1.2).
const CWR: u8 = 0x80;

/// Segments of one frame: as many as the largest frame has at the least segment size that IPv4 hosts take without being asked
/// (RFC 9293, 3.7.1: 536). A guest may claim a size of one byte, and each segment has headers and memory of its own.
const MAX_SEGMENTS: usize = 128;

/// The segments of a packet, each cut to `snaplen`; the packet itself where it is none that can be cut.
pub fn segments(packet: Packet, snaplen: u32) -> Vec<Packet> {
    let cut = |mut p: Packet| {
        p.data.truncate(snaplen as usize);
        p
    };
    let whole = packet.data.len() == packet.len as usize;
    let frames = if packet.gso_size > 0 && whole { segment(&packet.data, packet.gso_size) } else { None };
    match frames {
        Some(frames) => {
            let one = |data: Vec<u8>| Packet { len: data.len() as u32, gso_size: 0, data, ..packet };
            frames.into_iter().map(one).map(cut).collect()
        }
        None => vec![cut(packet)],
    }
}

/// Cuts an Ethernet frame with TCP into segments of at most `size` payload bytes, with lengths, identifications,
/// sequence numbers, control bits and checksums of their own. None when it is no such frame, or would be more than 128 segments.
pub fn segment(frame: &[u8], size: u16) -> Option<Vec<Vec<u8>>> {
    let eth = Eth::parse(frame).ok()?;
    let packet = &frame[ETH_LEN..];
    let ip = Ip::parse(packet, packet.len()).ok()?;
    let known = ip.protocol == protocol::TCP && ip.fragment.is_none() && size > 0;
    if !known || ip.src.is_ipv4() != (eth.ethertype == ETHERTYPE_IPV4) {
        return None;
    }
    let tcp_at = ETH_LEN + ip.header_len;
    let end = tcp_at + ip.payload_len;
    let tcp = TcpHeader::parse(frame.get(tcp_at..end)?).ok()?;
    let payload = frame.get(tcp_at + tcp.header_len..end)?;
    let headers = &frame[..tcp_at + tcp.header_len];
    let count = payload.len().div_ceil(usize::from(size)).max(1);
    if count > MAX_SEGMENTS {
        return None;
    }
    let mut segments = Vec::with_capacity(count);
    for (i, part) in payload.chunks(usize::from(size)).enumerate() {
        let mut s = Vec::with_capacity(headers.len() + part.len());
        s.extend_from_slice(headers);
        s.extend_from_slice(part);
        write_ip(&mut s[ETH_LEN..], &ip, tcp.header_len + part.len(), i as u16);
        let seq = tcp.seq.wrapping_add((i * usize::from(size)) as u32);
        let t = &mut s[tcp_at..];
        t[4..8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 < count {
            t[13] &= !LAST_ONLY;
        }
        if i > 0 {
            t[13] &= !CWR;
        }
        t[16..18].copy_from_slice(&[0, 0]);
        let sum = checksum(t, pseudo_header(ip.src, ip.dst, protocol::TCP, t.len()));
        t[16..18].copy_from_slice(&sum.to_be_bytes());
        segments.push(s);
    }
    Some(segments).filter(|s| !s.is_empty())
}

/// The checksum field's value for `data`, whose own field is zero, on top of `pseudo`.
fn checksum(data: &[u8], pseudo: u32) -> u16 {
    !fold(sum(data, pseudo))
}

/// Writes the lengths of an IP header for `payload_len` bytes behind it, and IPv4's identification and checksum.
fn write_ip(packet: &mut [u8], ip: &Ip, payload_len: usize, index: u16) {
    match ip.src {
        IpAddr::V4(_) => {
            let header = &mut packet[..ip.header_len];
            header[2..4].copy_from_slice(&((ip.header_len + payload_len) as u16).to_be_bytes());
            let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(index);
            header[4..6].copy_from_slice(&id.to_be_bytes());
            header[10..12].copy_from_slice(&[0, 0]);
            let checksum = !fold(sum(header, 0));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        IpAddr::V6(_) => {
            let len = (ip.header_len - 40 + payload_len) as u16;
            packet[4..6].copy_from_slice(&len.to_be_bytes());
        }
    }
}
