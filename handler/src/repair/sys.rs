//! The socket options that no crate wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_NETNS_COOKIE` of socket(7), since Linux 5.14: a number for each network namespace, never used again.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// `SO_ATTACH_BPF` of socket(7).
const SO_ATTACH_BPF: libc::c_int = 50;

/// Attaches a filter that is loaded already.
///
/// # Errors
/// As setsockopt(2).
pub(super) fn attach_filter(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let program: libc::c_int = program.as_raw_fd();
    // SAFETY: the kernel reads one int.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_BPF,
            (&raw const program).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The cookie of a socket's network namespace.
///
/// # Errors
/// As getsockopt(2).
pub(super) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the number.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut len,
        )
    };
    if rc == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
