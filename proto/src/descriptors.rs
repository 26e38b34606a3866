//! Descriptors: how they come beside a message, and how many of them a process may have.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

/// Lets this process have as many descriptors as its hard limit allows: a flow has one, wherever it lies.
///
/// # Errors
/// As setrlimit(2); the limit is what it was then.
pub fn raise_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Makes this process' table of descriptors large enough for `count`, or for as many as it may have. The kernel doubles it
/// otherwise each time that it is full, and has all threads wait for that, some ten milliseconds each time.
///
/// # Errors
/// As fcntl(2).
pub fn reserve(count: u64) -> io::Result<()> {
    let (allowed, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let last = i32::try_from(count.min(allowed).saturating_sub(1)).unwrap_or(i32::MAX);
    let (any, _) = std::io::pipe()?;
    // Copied to the first free place from there on; the table stays as it is when the copy is gone.
    rustix::io::fcntl_dupfd_cloexec(any, last).map(drop).map_err(io::Error::from)
}

/// What one message has brought.
pub(crate) struct Received {
    /// Bytes of the buffer that it fills; none when the peer has closed.
    pub(crate) bytes: usize,
    /// Its descriptors.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether that is all of it: no byte more than the buffer holds, and a place in this process's table for each
    /// descriptor.
    pub(crate) whole: bool,
}

/// Receives a message once: a signal ends it.
///
/// # Errors
/// As recvmsg(2).
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> rustix::io::Result<Received> {
    let mut parts = [IoSliceMut::new(buffer)];
    let got = rustix::net::recvmsg(socket, &mut parts, control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let whole = !got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
    Ok(Received { bytes: got.bytes, fds, whole })
}
