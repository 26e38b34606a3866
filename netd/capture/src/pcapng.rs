//! A writer of pcapng files (IETF draft-ietf-opsawg-pcapng): one section, one Ethernet interface.
//!
//! Written by hand because it is four kinds of blocks: the format's crates bring readers and dialects that no caller
//! here needs.

use std::io::{self, Write};
use std::time::Duration;

use netd_wire::MacAddr;

use super::{Direction, Packet};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// LINKTYPE_ETHERNET of the link-layer types registry.
const LINKTYPE_ETHERNET: u16 = 1;

// Options by their code; the first two are common to all blocks.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const SHB_OS: u16 = 3;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_MACADDR: u16 = 6;
const IF_TSRESOL: u16 = 9;
const IF_FILTER: u16 = 11;
const EPB_FLAGS: u16 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFDROP: u16 = 5;
const ISB_FILTERACCEPT: u16 = 6;
const ISB_USRDELIV: u16 = 8;

/// The interface that frames were taken at.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Its Ethernet address.
    pub mac: Option<MacAddr>,
    /// Bytes kept of a frame.
    pub snaplen: u32,
    /// The filter; empty: none.
    pub filter: String,
}

/// Numbers at the end of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Frames that matched the filter.
    pub matched: u64,
    /// Of these, frames that were lost on the way.
    pub dropped: u64,
}

/// Writes a capture.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    block: Vec<u8>,
    started: Duration,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the section header and the interface's description; `started` is since the UNIX epoch.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, interface: &Interface, started: Duration) -> io::Result<Writer<W>> {
        let mut w = Writer { out, block: Vec::new(), started, written: 0 };
        w.begin(SECTION_HEADER);
        w.u32(BYTE_ORDER);
        w.u16(1);
        w.u16(0);
        // The section's length is not known.
        w.u64(u64::MAX);
        w.option(SHB_OS, b"Linux");
        w.option(SHB_USERAPPL, concat!("netctl ", env!("CARGO_PKG_VERSION")).as_bytes());
        w.end()?;
        w.begin(INTERFACE_DESCRIPTION);
        w.u16(LINKTYPE_ETHERNET);
        w.u16(0);
        w.u32(interface.snaplen);
        w.option(IF_NAME, interface.name.as_bytes());
        w.option(IF_DESCRIPTION, interface.description.as_bytes());
        if let Some(mac) = interface.mac {
            w.option(IF_MACADDR, &mac.0);
        }
        // Times are in units of 10^-9 seconds.
        w.option(IF_TSRESOL, &[9]);
        if !interface.filter.is_empty() {
            // The first byte says that the rest is an expression as text.
            w.option(IF_FILTER, &[&[0], interface.filter.as_bytes()].concat());
        }
        w.end()?;
        w.out.flush()?;
        Ok(w)
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// Those of the output.
    pub fn packet(&mut self, p: &Packet) -> io::Result<()> {
        self.begin(ENHANCED_PACKET);
        self.u32(0);
        self.time(p.at);
        self.u32(p.data.len() as u32);
        self.u32(p.len);
        self.block.extend_from_slice(&p.data);
        self.pad();
        // Bits 0 and 1: the direction; bits 2 to 4, how it was received, stay unsaid.
        let flags: u32 = match p.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(EPB_FLAGS, &flags.to_le_bytes());
        if p.gso_size > 0 {
            let comment = format!("one frame of several segments, {} payload bytes each", p.gso_size);
            self.option(COMMENT, comment.as_bytes());
        }
        self.written += 1;
        self.end()
    }

    /// Writes the numbers at the end of the capture, and whatever is buffered.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, s: Statistics, ended: Duration) -> io::Result<W> {
        self.begin(INTERFACE_STATISTICS);
        self.u32(0);
        self.time(ended);
        let (started, written) = (self.started, self.written);
        self.option(ISB_STARTTIME, &halves(started));
        self.option(ISB_ENDTIME, &halves(ended));
        self.option(ISB_IFDROP, &s.dropped.to_le_bytes());
        self.option(ISB_FILTERACCEPT, &s.matched.to_le_bytes());
        self.option(ISB_USRDELIV, &written.to_le_bytes());
        self.end()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Frames written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.u32(kind);
        // The length is written by `end`.
        self.u32(0);
    }

    fn end(&mut self) -> io::Result<()> {
        self.u16(END_OF_OPTIONS);
        self.u16(0);
        let len = (self.block.len() + 4) as u32;
        self.u32(len);
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.out.write_all(&self.block)
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // The length field has 16 bits.
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.u16(code);
        self.u16(value.len() as u16);
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn time(&mut self, at: Duration) {
        self.block.extend_from_slice(&halves(at));
    }

    fn u16(&mut self, v: u16) {
        self.block.extend_from_slice(&v.to_le_bytes());
    }

    fn u32(&mut self, v: u32) {
        self.block.extend_from_slice(&v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.block.extend_from_slice(&v.to_le_bytes());
    }
}

/// A time in nanoseconds as the format has it: the upper half first, each half little-endian.
fn halves(at: Duration) -> [u8; 8] {
    let ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    let mut b = [0; 8];
    b[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
    b[4..].copy_from_slice(&(ns as u32).to_le_bytes());
    b
}
