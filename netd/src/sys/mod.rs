//! System calls and socket options that no crate wraps, and beside them those of [`crate::ring::socket`], which move guest
//! memory.
//!
//! The only module of this crate with `unsafe`. Everything public is safe: buffers are ordinary slices, and descriptors
//! are borrowed. All sockets are non-blocking; calls carry MSG_DONTWAIT all the same.
#![allow(unsafe_code)]

pub use netd_ring::socket::{MESSAGES, Message, Peek, discard, peek, received_bytes, send, send_messages};

mod filter;
mod options;
mod process;
pub mod repair;
mod tap;
mod text;
mod udp;
mod wait;

pub use filter::{FILTER_ALL_THREADS, FILTER_LOG, FILTER_SPECULATION, install_filter};
pub use options::{
    PmtuDiscovery, SendBuffer, TcpInfo, enable_peek_offset, send_buffer, set_class, set_local_port,
    set_pmtu_discovery, set_recv_error, set_recv_errors, set_recv_original, set_recv_original_port,
    set_recv_ttl, set_ttl, set_udp_gro, tcp_info,
};
pub use process::{Fork, fork};
pub use tap::open_tap;
pub use text::release_startup_pages;
pub use udp::{BATCH, Datagram, ReceiveBatch, SocketError, recv_error};
pub use wait::Waiter;

use std::io;

/// Turns a libc result into a byte count.
fn cvt(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
