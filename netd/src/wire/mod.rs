//! Headers on the hot path: parsing what the guest sends and building what it gets.
//!
//! Only what every frame needs is written here, over plain byte slices and without allocation. Rare packets
//! (ARP, NDP, DHCP, ICMP errors) go through smoltcp's `wire` in [`crate::guest`] and [`crate::icmp`]. Parsers
//! answer the [`Reason`] under which a bad frame is counted; they never panic.

mod build;
mod checksum;
mod ip;
mod transport;
mod vnet;

pub use build::{EthIp, MAX_HEADERS, TcpMeta, build_tcp, build_udp};
pub use checksum::{fold, pseudo_header, sum};
pub use ip::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Eth, Fragment, Ip, protocol};
pub use transport::{TcpFlags, TcpHeader, UdpHeader};
pub use vnet::{GsoType, VNET_LEN, VnetHeader};

use crate::counters::Reason;

/// Length of an Ethernet header in bytes.
pub const ETH_LEN: usize = 14;

/// The `N` bytes at `offset`, or [`Reason::Malformed`].
fn take<const N: usize>(b: &[u8], offset: usize) -> Result<[u8; N], Reason> {
    b.get(offset..).and_then(|b| b.first_chunk()).copied().ok_or(Reason::Malformed)
}

fn be16(b: &[u8], offset: usize) -> Result<u16, Reason> {
    take(b, offset).map(u16::from_be_bytes)
}

fn be32(b: &[u8], offset: usize) -> Result<u32, Reason> {
    take(b, offset).map(u32::from_be_bytes)
}
