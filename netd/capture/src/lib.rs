//! Captured frames: what their headers say, which of them a filter lets through, and the file that holds them.
//!
//! A [`Packet`] is a frame that was taken at some place and moment. [`Headers`] are read from it whatever else is wrong with
//! it; a [`Filter`], an expression as tcpdump has it, judges them. [`segment`] cuts a frame that a device was to segment;
//! [`pcapng`] writes packets to a file.
//!
//! Where frames are taken, and how many may wait, is the caller's.

mod filter;
mod headers;
pub mod pcapng;
pub mod segment;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use filter::{Filter, FilterError};
pub use headers::{Headers, SrcDst};

/// Which way a frame goes, as the guest's network card has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest receives it.
    Inbound,
    /// The guest sends it.
    Outbound,
}

/// One frame, or what was kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Since the UNIX epoch.
    pub at: Duration,
    /// Which way it goes.
    pub direction: Direction,
    /// Its length in bytes, Ethernet header included.
    pub len: u32,
    /// Payload bytes of one segment if the device is to cut it, otherwise 0.
    pub gso_size: u16,
    /// Its first bytes.
    pub data: Vec<u8>,
}
