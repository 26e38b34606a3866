//! TCP (RFC 9293 section 3.1, options of RFC 7323) and UDP (RFC 768) headers.

use std::fmt;

use super::ParseError;
use super::{be16, be32, take};

/// The control bits of a TCP segment.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(1);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(2);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(4);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(8);
    /// The acknowledgement field is significant.
    pub const ACK: TcpFlags = TcpFlags(16);

    /// Whether every bit of `f` is set.
    #[inline]
    pub fn has(self, f: TcpFlags) -> bool {
        self.0 & f.0 == f.0
    }

    /// Both sets of bits.
    #[inline]
    pub const fn with(self, f: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | f.0)
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join("|"))
    }
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpHeader {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as it stands in the header, not scaled.
    pub window: u16,
    /// Length of the header in bytes, options included.
    pub header_len: usize,
    /// Maximum segment size option (only in SYN).
    pub mss: Option<u16>,
    /// Window scale option (only in SYN), at most 14.
    pub window_scale: Option<u8>,
}

impl TcpHeader {
    /// Reads the header at the start of a segment. Options that netd does not use (SACK, timestamps, unknown
    /// ones) are stepped over; a broken option list ends the list, as RFC 9293 3.1 leaves to the receiver.
    ///
    /// # Errors
    /// [`ParseError::Malformed`].
    pub fn parse(segment: &[u8]) -> Result<Self, ParseError> {
        let [offset, flags] = take(segment, 12)?;
        let header_len = usize::from(offset >> 4) * 4;
        let header = segment.get(..header_len).filter(|h| h.len() >= 20).ok_or(ParseError::Malformed)?;
        let mut h = TcpHeader {
            src: be16(header, 0)?,
            dst: be16(header, 2)?,
            seq: be32(header, 4)?,
            ack: be32(header, 8)?,
            flags: TcpFlags(flags & 0x3f),
            window: be16(header, 14)?,
            header_len,
            mss: None,
            window_scale: None,
        };
        if h.flags.has(TcpFlags::SYN) {
            h.parse_options(&header[20..]);
        }
        Ok(h)
    }

    fn parse_options(&mut self, mut options: &[u8]) {
        while let Some((&kind, rest)) = options.split_first() {
            let len = match kind {
                0 => return,
                1 => {
                    options = rest;
                    continue;
                }
                _ => usize::from(rest.first().copied().unwrap_or(0)),
            };
            let Some(value) = options.get(2..len.max(2)).filter(|_| len >= 2) else { return };
            match (kind, value) {
                (2, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
                // RFC 7323 2.3: a shift above 14 is used as 14.
                (3, &[s]) => self.window_scale = Some(s.min(14)),
                _ => {}
            }
            options = &options[len..];
        }
    }
}

/// A UDP header.
#[derive(Clone, Copy, Debug)]
pub struct UdpHeader {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Payload bytes.
    pub payload_len: usize,
    /// Checksum field; zero means none for IPv4.
    pub checksum: u16,
}

impl UdpHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Reads the header at the start of a datagram of `total` bytes.
    ///
    /// # Errors
    /// [`ParseError::Malformed`].
    pub fn parse(datagram: &[u8], total: usize) -> Result<Self, ParseError> {
        let len = usize::from(be16(datagram, 4)?);
        if len < Self::LEN || len > total {
            return Err(ParseError::Malformed);
        }
        Ok(UdpHeader {
            src: be16(datagram, 0)?,
            dst: be16(datagram, 2)?,
            payload_len: len - Self::LEN,
            checksum: be16(datagram, 6)?,
        })
    }
}
