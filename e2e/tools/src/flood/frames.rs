//! Frames of a guest that obeys no rule: built by hand, header by header, from the Ethernet header on.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The guest's Ethernet address.
    pub from: [u8; 6],
    /// Its router's.
    pub to: [u8; 6],
}

/// Flags of a TCP segment (RFC 9293, 3.1).
pub mod flag {
    /// No more data.
    pub const FIN: u8 = 1;
    /// The beginning.
    pub const SYN: u8 = 2;
    /// The end, at once.
    pub const RST: u8 = 4;
    /// The acknowledgement counts.
    pub const ACK: u8 = 16;
    /// The urgent pointer counts.
    pub const URG: u8 = 32;
}

/// Bytes of an IPv4 header without options.
const IP: usize = 20;
/// Bytes of a TCP header without options.
const TCP: usize = 20;
/// Protocol numbers.
const ICMP: u8 = 1;
const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;
/// The next header of an IPv6 fragment.
const FRAGMENT: u8 = 44;

/// A TCP segment of the guest or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Source address and port.
    pub from: (Ipv4Addr, u16),
    /// Destination address and port.
    pub to: (Ipv4Addr, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Of [`flag`].
    pub flags: u8,
    /// As in the header, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub len: usize,
}

impl Segment {
    /// The segment in a frame that came; none: it is something else.
    pub fn parse(frame: &[u8]) -> Option<Segment> {
        let packet = frame.get(14..)?;
        if frame.get(12..14)? != [8, 0] || *packet.get(9)? != TCP_PROTOCOL {
            return None;
        }
        let header = usize::from(packet.first()? & 15) * 4;
        let total = usize::from(word(packet, 2)?);
        let tcp = packet.get(header..)?;
        let offset = usize::from(tcp.get(12)? >> 4) * 4;
        let address = |at: usize| packet.get(at..)?.first_chunk::<4>().map(|b| Ipv4Addr::from(*b));
        Some(Segment {
            from: (address(12)?, word(tcp, 0)?),
            to: (address(16)?, word(tcp, 2)?),
            seq: double_word(tcp, 4)?,
            ack: double_word(tcp, 8)?,
            flags: *tcp.get(13)?,
            window: word(tcp, 14)?,
            // A frame with an offload may be longer than its own header knows.
            len: if total == 0 { packet.len() } else { total }.saturating_sub(header + offset),
        })
    }

    /// The frame that carries it; the payload is as long as it says, its last byte urgent if it says so.
    pub fn frame(&self, link: Link) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(TCP + self.len);
        tcp.extend(self.from.1.to_be_bytes());
        tcp.extend(self.to.1.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(TCP as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        let urgent = if self.flags & flag::URG != 0 { self.len as u16 } else { 0 };
        tcp.extend([0, 0]);
        tcp.extend(urgent.to_be_bytes());
        tcp.resize(TCP + self.len, b'x');
        let pseudo = pseudo4(self.from.0, self.to.0, TCP_PROTOCOL, tcp.len());
        let sum = checksum(&[&pseudo, &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        ipv4(link, self.from.0, self.to.0, TCP_PROTOCOL, (0, 0), &tcp)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|b| u16::from_be_bytes(*b))
}

fn double_word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_be_bytes(*b))
}

/// A question for the Ethernet address of a neighbour (RFC 826).
pub fn arp_request(link: Link, from: Ipv4Addr, of: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(Link { to: [0xff; 6], ..link }, [8, 6]);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(link.from);
    frame.extend(from.octets());
    frame.extend([0; 6]);
    frame.extend(of.octets());
    frame
}

/// Whether a frame that came answers for that neighbour.
pub fn is_arp_reply(frame: &[u8], of: Ipv4Addr) -> bool {
    frame.get(12..14) == Some(&[8, 6])
        && frame.get(20..22) == Some(&[0, 2])
        && frame.get(28..32) == Some(&of.octets())
}

/// An ICMP echo request of this number.
pub fn echo_request(link: Link, from: Ipv4Addr, to: Ipv4Addr, number: u16) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0];
    icmp.extend(number.to_be_bytes());
    icmp.extend(number.to_be_bytes());
    icmp.extend([b'e'; 32]);
    let sum = checksum(&[&icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv4(link, from, to, ICMP, (0, 0), &icmp)
}

/// The number of the echo reply in a frame that came.
pub fn echo_reply(frame: &[u8]) -> Option<u16> {
    let packet = frame.get(14..)?;
    let icmp = packet.get(usize::from(packet.first()? & 15) * 4..)?;
    let is = frame.get(12..14)? == [8, 0] && *packet.get(9)? == ICMP && *icmp.first()? == 0;
    if is { word(icmp, 6) } else { None }
}

/// A datagram without a checksum, as IPv4 allows (RFC 768).
pub fn datagram4(link: Link, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), len: usize) -> Vec<u8> {
    ipv4(link, from.0, to.0, UDP_PROTOCOL, (0, 0), &udp(from.1, to.1, len))
}

/// A datagram by IPv6.
pub fn datagram6(link: Link, from: (Ipv6Addr, u16), to: (Ipv6Addr, u16), len: usize) -> Vec<u8> {
    let mut udp = udp(from.1, to.1, len);
    let mut pseudo = [from.0.octets(), to.0.octets()].concat();
    pseudo.extend((udp.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, UDP_PROTOCOL]);
    let sum = checksum(&[&pseudo, &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    ipv6(link, from.0, to.0, UDP_PROTOCOL, &udp)
}

/// A part of a datagram that is never whole; `offset` in units of 8 bytes.
pub fn fragment4(link: Link, from: Ipv4Addr, to: Ipv4Addr, id: u16, offset: u16, len: usize) -> Vec<u8> {
    ipv4(link, from, to, UDP_PROTOCOL, (id, 0x2000 | offset), &udp(4000, 4000, len))
}

/// The same by IPv6 (RFC 8200, 4.5).
pub fn fragment6(link: Link, from: Ipv6Addr, to: Ipv6Addr, id: u32, offset: u16, len: usize) -> Vec<u8> {
    let mut payload = vec![UDP_PROTOCOL, 0];
    payload.extend((offset << 3 | 1).to_be_bytes());
    payload.extend(id.to_be_bytes());
    payload.extend(udp(4000, 4000, len));
    ipv6(link, from, to, FRAGMENT, &payload)
}

fn udp(from: u16, to: u16, len: usize) -> Vec<u8> {
    let mut udp = Vec::with_capacity(8 + len);
    for field in [from, to, (8 + len) as u16, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.resize(8 + len, b'x');
    udp
}

/// Ethernet and IPv4 headers in front of a payload; `fragment` is the identification, and flags with offset.
fn ipv4(
    link: Link,
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    fragment: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = ethernet(link, [8, 0]);
    let at = frame.len();
    frame.extend([0x45, 0]);
    frame.extend(((IP + payload.len()) as u16).to_be_bytes());
    frame.extend(fragment.0.to_be_bytes());
    frame.extend(fragment.1.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    let sum = checksum(&[frame.get(at..).unwrap_or_default()]);
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(payload);
    frame
}

fn ipv6(link: Link, from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(link, [0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    frame
}

/// An Ethernet header from the guest to its router.
pub fn ethernet(link: Link, kind: [u8; 2]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(1514);
    frame.extend(link.to);
    frame.extend(link.from);
    frame.extend(kind);
    frame
}

fn pseudo4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, len: usize) -> Vec<u8> {
    let mut pseudo = [from.octets(), to.octets()].concat();
    pseudo.extend([0, protocol]);
    pseudo.extend((len as u16).to_be_bytes());
    pseudo
}

/// The Internet checksum of parts of which all but the last are of even length (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | w.get(1).copied().map_or(0, u32::from)).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { from: [2, 0, 0, 0, 0, 9], to: [2, 0, 0, 0, 0, 1] };
    const A: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 2);
    const B: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);

    fn segment() -> Segment {
        let flags = flag::ACK | flag::URG;
        Segment { from: (A, 1), to: (B, 2), seq: 3, ack: 4, flags, window: 5, len: 7 }
    }

    #[test]
    fn a_segment_survives_its_frame_and_has_right_checksums() {
        let frame = segment().frame(LINK);
        assert_eq!(Segment::parse(&frame), Some(segment()));
        let packet = &frame[14..];
        assert_eq!(checksum(&[&packet[..20]]), 0);
        assert_eq!(checksum(&[&pseudo4(A, B, TCP_PROTOCOL, packet.len() - 20), &packet[20..]]), 0);
        // The urgent pointer.
        assert_eq!(word(packet, 20 + 18), Some(7));
        assert_eq!(Segment::parse(&datagram4(LINK, (A, 1), (B, 2), 9)), None);
        assert_eq!(Segment::parse(&frame[..40]), None);
    }

    #[test]
    fn fragments_are_never_the_last_one() {
        let four = fragment4(LINK, A, B, 9, 3, 16);
        assert_eq!(word(&four, 14 + 6), Some(0x2003));
        let one = Ipv6Addr::LOCALHOST;
        let six = fragment6(LINK, one, one, 9, 3, 16);
        assert_eq!(word(&six, 14 + 40 + 2), Some(3 << 3 | 1));
        assert_eq!(word(&six, 14 + 4), Some(8 + 8 + 16));
    }

    #[test]
    fn an_answer_for_a_neighbour_is_known_by_its_address() {
        let mut frame = arp_request(LINK, A, B);
        assert_eq!(frame.len(), 14 + 28);
        assert!(!is_arp_reply(&frame, A));
        // As the neighbour would answer: the sender's address is the one that was asked for.
        frame[21] = 2;
        frame[28..32].copy_from_slice(&B.octets());
        assert!(is_arp_reply(&frame, B) && !is_arp_reply(&frame, A));
    }

    #[test]
    fn an_answer_to_an_echo_is_known_by_its_number() {
        let mut frame = echo_request(LINK, A, B, 77);
        assert_eq!(echo_reply(&frame), None);
        frame[14 + 20] = 0;
        assert_eq!(echo_reply(&frame), Some(77));
    }
}
