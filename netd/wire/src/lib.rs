//! Headers of the frames between a virtio-net device and its guest: parsing what the guest sends, building what it gets.
//!
//! Only what every frame needs is here, over plain byte slices and without allocation; rare packets (ARP, NDP, DHCP, ICMP
//! errors) are better read and written by a library. A parser answers a value or a [`ParseError`] for any bytes, and never
//! panics.

mod build;
mod checksum;
mod ip;
mod mac;
mod transport;
mod vnet;

pub use build::{EthIp, MAX_HEADERS, TcpMeta, build_tcp, build_udp};
pub use checksum::{fold, pseudo_header, sum};
pub use ip::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Eth, Fragment, Ip, protocol};
pub use mac::{MacAddr, MacError};
pub use transport::{TcpFlags, TcpHeader, UdpHeader};
pub use vnet::{GsoType, VNET_LEN, VnetHeader};

/// Why a frame cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// It is shorter than its headers say, or a header contradicts itself.
    #[error("the frame is cut off or contradicts itself")]
    Malformed,
    /// The checksum of an IPv4 header is wrong.
    #[error("the IPv4 header's checksum is wrong")]
    Checksum,
}

/// Length of an Ethernet header in bytes.
pub const ETH_LEN: usize = 14;

/// The `N` bytes at `offset`, or [`ParseError::Malformed`].
#[inline]
fn take<const N: usize>(b: &[u8], offset: usize) -> Result<[u8; N], ParseError> {
    b.get(offset..).and_then(|b| b.first_chunk()).copied().ok_or(ParseError::Malformed)
}

#[inline]
fn be16(b: &[u8], offset: usize) -> Result<u16, ParseError> {
    take(b, offset).map(u16::from_be_bytes)
}

#[inline]
fn be32(b: &[u8], offset: usize) -> Result<u32, ParseError> {
    take(b, offset).map(u32::from_be_bytes)
}
