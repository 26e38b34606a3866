//! Names in an archive as `tar .` writes them: `./file`, which unpackers of exports ask for.
//!
//! The library leaves a `./` out of the names that fit into a header. It is put back there on the way, and the header's sum is made anew.

use std::io::{self, Write};

/// Bytes of a block; a header is one, and comes in one piece.
const BLOCK: usize = 512;
/// Bytes of a name in a header.
pub(super) const NAME: usize = 100;
/// Places of a header's fields.
const SIZE: std::ops::Range<usize> = 124..136;
const SUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;
/// In front of each name.
pub(super) const PREFIX: &[u8] = b"./";

/// Passes on what a builder writes.
pub(super) struct Named<W> {
    to: W,
    /// Whether the header of an entry comes next.
    header: bool,
    /// Bytes of a long name that come before it.
    skip: u64,
}

impl<W: Write> Named<W> {
    pub(super) fn new(to: W) -> Self {
        Named { to, header: false, skip: 0 }
    }

    /// An entry comes next.
    pub(super) fn expect(&mut self) {
        self.header = true;
    }

    /// What is below.
    pub(super) fn into_inner(self) -> W {
        self.to
    }
}

/// A number in octal digits.
fn octal(field: &[u8]) -> u64 {
    let digits = field.iter().filter(|byte| (b'0'..b'8').contains(*byte));
    digits.fold(0, |number: u64, digit| number.wrapping_mul(8).wrapping_add(u64::from(digit - b'0')))
}

/// The header with the prefix, if its name has room for it.
fn prefixed(header: &[u8; BLOCK]) -> Option<[u8; BLOCK]> {
    let name = header.get(..NAME)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    let own = name.get(..length)?;
    if length + PREFIX.len() > NAME || own == b"." || own.starts_with(PREFIX) {
        return None;
    }
    let mut block = *header;
    block.copy_within(..length, PREFIX.len());
    block.get_mut(..PREFIX.len())?.copy_from_slice(PREFIX);
    block.get_mut(SUM)?.fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block.get_mut(SUM)?.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(block)
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(bytes.len() as u64);
        } else if self.header
            && let Ok(header) = <&[u8; BLOCK]>::try_from(bytes)
        {
            if matches!(header[KIND], b'L' | b'K') {
                let size = octal(header.get(SIZE).unwrap_or_default());
                self.skip = size.next_multiple_of(BLOCK as u64);
            } else {
                self.header = false;
                if let Some(block) = prefixed(header) {
                    self.to.write_all(&block)?;
                    return Ok(bytes.len());
                }
            }
        }
        self.to.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
