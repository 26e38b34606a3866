//! The one socket option that no crate wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_NETNS_COOKIE` of socket(7), since Linux 5.14: a number for each network namespace, never used again.
const SO_NETNS_COOKIE: libc::c_int = 71;

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
