//! The headers of a frame as a filter sees them: whatever can be read, however wrong the rest is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netd_wire::{ETH_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Eth, Ip, MacAddr, protocol};

/// Two values of which one belongs to the sender and one to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrcDst<T> {
    /// The sender's.
    pub src: T,
    /// The receiver's.
    pub dst: T,
}

/// The headers of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Bytes of the frame.
    pub len: usize,
    /// Ethernet addresses; none in a frame that is too short.
    pub mac: Option<SrcDst<MacAddr>>,
    /// EtherType; 0 where there is none.
    pub ethertype: u16,
    /// IP addresses, or those that an ARP packet speaks of.
    pub ip: Option<SrcDst<IpAddr>>,
    /// Protocol of the IP payload.
    pub protocol: Option<u8>,
    /// Ports of TCP or UDP; none in a fragment that is not the first.
    pub ports: Option<SrcDst<u16>>,
    /// TCP's control bits, as in byte 13 of its header.
    pub tcp_flags: Option<u8>,
}

impl Headers {
    /// Reads what `head`, the start of a frame of `len` bytes, has.
    pub fn parse(head: &[u8], len: usize) -> Headers {
        let mut h =
            Headers { len, mac: None, ethertype: 0, ip: None, protocol: None, ports: None, tcp_flags: None };
        let Ok(eth) = Eth::parse(head) else { return h };
        h.mac = Some(SrcDst { src: eth.src, dst: eth.dst });
        h.ethertype = eth.ethertype;
        let packet = &head[ETH_LEN..];
        match eth.ethertype {
            ETHERTYPE_IPV4 => h.parse_v4(packet),
            ETHERTYPE_IPV6 => h.parse_v6(packet, len - ETH_LEN),
            // RFC 826, Ethernet and IPv4: sender's address at 14, target's at 24.
            ETHERTYPE_ARP => h.ip = v4(packet, 14, 24),
            _ => {}
        }
        h
    }

    fn parse_v4(&mut self, packet: &[u8]) {
        self.ip = v4(packet, 12, 16);
        let Some(fixed) = packet.first_chunk::<20>() else { return };
        self.protocol = Some(fixed[9]);
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let offset = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff;
        if offset == 0 && header_len >= 20 {
            self.parse_transport(packet.get(header_len..).unwrap_or_default());
        }
    }

    fn parse_v6(&mut self, packet: &[u8], len: usize) {
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        if let (Some(src), Some(dst)) = (address(8), address(24)) {
            self.ip = Some(SrcDst { src: src.into(), dst: dst.into() });
        }
        let Ok(ip) = Ip::parse(packet, len) else { return };
        if !ip.src.is_ipv6() {
            return;
        }
        self.protocol = Some(ip.protocol);
        if ip.fragment.is_none_or(|f| f.offset == 0) {
            self.parse_transport(packet.get(ip.header_len..).unwrap_or_default());
        }
    }

    fn parse_transport(&mut self, transport: &[u8]) {
        if !matches!(self.protocol, Some(protocol::TCP | protocol::UDP)) {
            return;
        }
        if let Some(&[a, b, c, d]) = transport.first_chunk::<4>() {
            self.ports = Some(SrcDst { src: u16::from_be_bytes([a, b]), dst: u16::from_be_bytes([c, d]) });
        }
        if self.protocol == Some(protocol::TCP) {
            self.tcp_flags = transport.get(13).copied();
        }
    }
}

fn v4(packet: &[u8], src: usize, dst: usize) -> Option<SrcDst<IpAddr>> {
    let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?)));
    Some(SrcDst { src: address(src)?, dst: address(dst)? })
}
