//! `struct virtio_net_hdr_v1`, which stands before every frame in the rings (virtio 1.2, section 5.1.6).

/// Length of the header in bytes; with VERSION_1 or MRG_RXBUF `num_buffers` is always there.
pub const VNET_LEN: usize = 12;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// How the frame is to be cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoType {
    /// It is one segment.
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// The header's fields that netd uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    /// The transport checksum field holds only the pseudo header's sum.
    pub needs_csum: bool,
    /// The sender vouches for the checksum.
    pub data_valid: bool,
    /// Segmentation.
    pub gso: GsoType,
    /// Length of all headers in bytes, a hint.
    pub hdr_len: u16,
    /// Payload bytes of one segment.
    pub gso_size: u16,
    /// Where summing starts, in bytes from the Ethernet header.
    pub csum_start: u16,
    /// Where the checksum is, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Chains that the frame is spread over (receive direction).
    pub num_buffers: u16,
}

impl VnetHeader {
    /// A header that asks for nothing.
    pub const PLAIN: VnetHeader = VnetHeader {
        needs_csum: false,
        data_valid: false,
        gso: GsoType::None,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
        num_buffers: 1,
    };

    /// Reads a header; None for a segmentation that was never offered (UFO, USO).
    pub fn parse(b: &[u8; VNET_LEN]) -> Option<Self> {
        let le = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let gso = match b[1] & !GSO_ECN {
            GSO_NONE => GsoType::None,
            GSO_TCPV4 => GsoType::TcpV4,
            GSO_TCPV6 => GsoType::TcpV6,
            _ => return None,
        };
        Some(VnetHeader {
            needs_csum: b[0] & F_NEEDS_CSUM != 0,
            data_valid: b[0] & F_DATA_VALID != 0,
            gso,
            hdr_len: le(2),
            gso_size: le(4),
            csum_start: le(6),
            csum_offset: le(8),
            num_buffers: le(10),
        })
    }

    /// The header as it stands in the ring.
    pub fn to_bytes(self) -> [u8; VNET_LEN] {
        let mut b = [0; VNET_LEN];
        b[0] =
            if self.needs_csum { F_NEEDS_CSUM } else { 0 } | if self.data_valid { F_DATA_VALID } else { 0 };
        b[1] = match self.gso {
            GsoType::None => GSO_NONE,
            GsoType::TcpV4 => GSO_TCPV4,
            GsoType::TcpV6 => GSO_TCPV6,
        };
        b[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        b[10..12].copy_from_slice(&self.num_buffers.to_le_bytes());
        b
    }
}
