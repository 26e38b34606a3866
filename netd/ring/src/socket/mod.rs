//! System calls that move payload between guest memory and sockets, without a copy in between.
//!
//! Everything public is safe: buffers are [`Iovs`], which keep guest memory mapped, and descriptors are borrowed. All
//! calls carry MSG_DONTWAIT.

mod messages;
mod stream;

use std::io;

pub use messages::{MESSAGES, Message, send_messages};
pub use stream::{Peek, discard, peek, received_bytes, send};

use crate::Iovs;

/// As [`cvt`], of a call on the memory of `iovs`. Where the frontend has taken that away, it is replaced, and the
/// connection with the frontend ends; see `ring::fault`.
fn cvt_on(iovs: &Iovs, n: isize) -> io::Result<usize> {
    let result = cvt(n);
    if matches!(&result, Err(e) if e.raw_os_error() == Some(libc::EFAULT)) {
        iovs.touch();
    }
    result
}

/// Turns a libc result into a byte count.
fn cvt(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
