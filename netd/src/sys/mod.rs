//! System calls that move guest memory or read socket state, and that no crate wraps.
//!
//! Besides [`crate::ring`] the only module with `unsafe`. Everything public is safe: buffers are
//! [`Iovs`](crate::ring::Iovs), which keep guest memory mapped, or ordinary slices, and descriptors are
//! borrowed. All sockets are non-blocking; calls carry MSG_DONTWAIT all the same.
#![allow(unsafe_code)]

mod filter;
mod messages;
mod options;
mod process;
pub mod repair;
mod stream;
mod tap;
mod terminal;
mod text;
mod udp;
mod wait;

pub use filter::{FILTER_ALL_THREADS, FILTER_LOG, FILTER_SPECULATION, install_filter};
pub use messages::{MESSAGES, Message, send_messages};
pub use options::{
    PmtuDiscovery, SendBuffer, TcpInfo, enable_peek_offset, send_buffer, set_pmtu_discovery, set_recv_error,
    set_recv_errors, set_recv_original, set_recv_original_port, set_recv_ttl, set_ttl, set_udp_gro, tcp_info,
};
pub use process::{Fork, fork};
pub use stream::{Peek, discard, peek, received_bytes, send};
pub use tap::open_tap;
pub use terminal::terminal_size;
pub use text::release_startup_pages;
pub use udp::{BATCH, Datagram, ReceiveBatch, SocketError, recv_error};
pub use wait::Waiter;

use std::io;

/// As [`cvt`], of a call on the memory of `iovs`. Where the frontend has taken that away, it is replaced, and the
/// connection with the frontend ends; see `ring::fault`.
fn cvt_on(iovs: &crate::ring::Iovs, n: isize) -> io::Result<usize> {
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
