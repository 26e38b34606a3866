//! Headers of frames for the guest, written in one go into a small buffer.
//!
//! The virtio header, Ethernet, IP and transport headers of one frame are contiguous, so that they are one
//! write into the guest's first receive buffer.

use std::net::IpAddr;

use super::MacAddr;
use super::{
    ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, GsoType, TcpFlags, UdpHeader, VNET_LEN, VnetHeader, fold,
    protocol, pseudo_header, sum,
};

/// The most bytes that the builders write: virtio, Ethernet, IPv6, TCP with 12 bytes of options.
pub const MAX_HEADERS: usize = VNET_LEN + ETH_LEN + 40 + 20 + 12;

/// TTL and hop limit of what netd originates; a receiver's limit of 64 is the usual default (RFC 1700).
const TTL: u8 = 64;

/// Link and network addresses of a frame for the guest.
#[derive(Clone, Copy, Debug)]
pub struct EthIp {
    /// The guest's Ethernet address.
    pub dst_mac: MacAddr,
    /// netd's Ethernet address.
    pub src_mac: MacAddr,
    /// The peer as the guest sees it.
    pub src: IpAddr,
    /// The guest's address.
    pub dst: IpAddr,
    /// TTL or hop limit; None for netd's own choice.
    pub ttl: Option<u8>,
    /// Type of service or traffic class.
    pub class: u8,
}

impl EthIp {
    /// Bytes of the IP header.
    pub fn ip_len(&self) -> usize {
        if self.src.is_ipv4() { 20 } else { 40 }
    }

    /// Writes Ethernet and IP headers for `transport_len` bytes of transport header and payload.
    fn write(&self, b: &mut [u8; MAX_HEADERS], protocol: u8, transport_len: usize) -> usize {
        let eth = VNET_LEN;
        b[eth..eth + 6].copy_from_slice(&self.dst_mac.0);
        b[eth + 6..eth + 12].copy_from_slice(&self.src_mac.0);
        let ip = eth + ETH_LEN;
        let ttl = self.ttl.unwrap_or(TTL);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                b[eth + 12..ip].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
                let h = &mut b[ip..ip + 20];
                h[0] = 0x45;
                h[1] = self.class;
                h[2..4].copy_from_slice(&clamp16(20 + transport_len).to_be_bytes());
                // RFC 6864 4.1: an atomic datagram (DF, not a fragment) may have any identification.
                h[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
                h[8] = ttl;
                h[9] = protocol;
                h[10..12].copy_from_slice(&[0, 0]);
                h[12..16].copy_from_slice(&src.octets());
                h[16..20].copy_from_slice(&dst.octets());
                let checksum = !fold(sum(h, 0));
                h[10..12].copy_from_slice(&checksum.to_be_bytes());
                ip + 20
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                b[eth + 12..ip].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
                let h = &mut b[ip..ip + 40];
                h[0..4].copy_from_slice(&[0x60 | (self.class >> 4), self.class << 4, 0, 0]);
                h[4..6].copy_from_slice(&clamp16(transport_len).to_be_bytes());
                h[6] = protocol;
                h[7] = ttl;
                h[8..24].copy_from_slice(&src.octets());
                h[24..40].copy_from_slice(&dst.octets());
                ip + 40
            }
            _ => ip,
        }
    }
}

fn clamp16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// What a TCP segment for the guest says.
#[derive(Clone, Copy, Debug)]
pub struct TcpMeta {
    /// Source port, as the guest sees it.
    pub src_port: u16,
    /// The guest's port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field, already scaled.
    pub window: u16,
    /// Maximum segment size option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub window_scale: Option<u8>,
    /// Payload bytes that follow.
    pub payload_len: usize,
    /// Segment size if the payload is larger than one segment.
    pub gso_size: Option<u16>,
}

/// Writes all headers of a TCP frame and returns their length. The checksum field holds the pseudo header's
/// sum and the virtio header asks for the rest (NEEDS_CSUM); a guest without GUEST_CSUM gets it completed by
/// the caller.
pub fn build_tcp(b: &mut [u8; MAX_HEADERS], at: &EthIp, m: &TcpMeta) -> usize {
    let mut options = [0; 12];
    let mut options_len = 0;
    if let Some(mss) = m.mss {
        options[..4].copy_from_slice(&[2, 4, (mss >> 8) as u8, mss as u8]);
        options_len = 4;
    }
    if let Some(scale) = m.window_scale {
        options[options_len..options_len + 4].copy_from_slice(&[1, 3, 3, scale]);
        options_len += 4;
    }
    let header_len = 20 + options_len;
    let tcp = at.write(b, protocol::TCP, header_len + m.payload_len);
    let h = &mut b[tcp..tcp + header_len];
    h[0..2].copy_from_slice(&m.src_port.to_be_bytes());
    h[2..4].copy_from_slice(&m.dst_port.to_be_bytes());
    h[4..8].copy_from_slice(&m.seq.to_be_bytes());
    h[8..12].copy_from_slice(&m.ack.to_be_bytes());
    h[12] = ((header_len / 4) as u8) << 4;
    h[13] = m.flags.0;
    h[14..16].copy_from_slice(&m.window.to_be_bytes());
    let pseudo = fold(pseudo_header(at.src, at.dst, protocol::TCP, header_len + m.payload_len));
    h[16..18].copy_from_slice(&pseudo.to_be_bytes());
    h[18..20].copy_from_slice(&[0, 0]);
    h[20..].copy_from_slice(&options[..options_len]);
    let end = tcp + header_len;
    let gso = match (m.gso_size, at.src) {
        (None, _) => GsoType::None,
        (Some(_), IpAddr::V4(_)) => GsoType::TcpV4,
        (Some(_), IpAddr::V6(_)) => GsoType::TcpV6,
    };
    let vnet = VnetHeader {
        needs_csum: true,
        gso,
        gso_size: m.gso_size.unwrap_or(0),
        hdr_len: (end - VNET_LEN) as u16,
        csum_start: (tcp - VNET_LEN) as u16,
        csum_offset: 16,
        ..VnetHeader::PLAIN
    };
    b[..VNET_LEN].copy_from_slice(&vnet.to_bytes());
    end
}

/// Writes all headers of a UDP frame and returns their length; the checksum as in [`build_tcp`].
pub fn build_udp(
    b: &mut [u8; MAX_HEADERS],
    at: &EthIp,
    src_port: u16,
    dst_port: u16,
    payload_len: usize,
) -> usize {
    let len = UdpHeader::LEN + payload_len;
    let udp = at.write(b, protocol::UDP, len);
    let h = &mut b[udp..udp + UdpHeader::LEN];
    h[0..2].copy_from_slice(&src_port.to_be_bytes());
    h[2..4].copy_from_slice(&dst_port.to_be_bytes());
    h[4..6].copy_from_slice(&clamp16(len).to_be_bytes());
    let pseudo = fold(pseudo_header(at.src, at.dst, protocol::UDP, len));
    h[6..8].copy_from_slice(&pseudo.to_be_bytes());
    let end = udp + UdpHeader::LEN;
    let vnet = VnetHeader {
        needs_csum: true,
        hdr_len: (end - VNET_LEN) as u16,
        csum_start: (udp - VNET_LEN) as u16,
        csum_offset: 6,
        ..VnetHeader::PLAIN
    };
    b[..VNET_LEN].copy_from_slice(&vnet.to_bytes());
    end
}
