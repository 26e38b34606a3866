//! The descriptors by which a ring tells its driver something.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{SFlag, fstat};

/// The descriptor that a ring is signalled through.
#[derive(Debug)]
pub(super) struct Call {
    fd: OwnedFd,
    socket: bool,
}

impl Call {
    /// Takes an eventfd, which is made not to block, or a socket.
    ///
    /// # Errors
    /// As fstat(2) and fcntl(2).
    pub(super) fn new(fd: OwnedFd) -> std::io::Result<Call> {
        let mode = SFlag::from_bits_truncate(fstat(&fd)?.st_mode);
        let socket = mode & SFlag::S_IFMT == SFlag::S_IFSOCK;
        if !socket {
            nonblocking(&fd)?;
        }
        Ok(Call { fd, socket })
    }

    /// Interrupts the driver. A full descriptor already signals, and is left alone.
    pub(super) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // A failed write means that the frontend is gone or has not read yet: nothing to do in either case.
        let _ = if self.socket {
            send(self.fd.as_raw_fd(), &one, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).map(drop)
        } else {
            ring_bell(&self.fd)
        };
    }
}

/// Adds one to an eventfd of the frontend's if that can be done at once.
///
/// `O_NONBLOCK` belongs to the open file, which the frontend has as well: it can take the flag off and fill the counter,
/// and a write would wait for as long as it likes. So the descriptor is asked first; what then is still between asking
/// and writing is for a frontend that fills it at that very moment. No other way is known to the kernel: an eventfd has
/// no `RWF_NOWAIT` for writing.
///
/// # Errors
/// When the descriptor cannot be asked or written; `EAGAIN`: it is full.
pub(crate) fn ring_bell(fd: &OwnedFd) -> nix::Result<()> {
    let mut room = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    poll(&mut room, PollTimeout::ZERO)?;
    if !room[0].revents().is_some_and(|r| r.contains(PollFlags::POLLOUT)) {
        return Err(Errno::EAGAIN);
    }
    nix::unistd::write(fd, &1u64.to_ne_bytes()).map(drop)
}

/// Sets `O_NONBLOCK`, so that a driver that means no harm does not make the device wait in a write; see [`ring_bell`].
pub(crate) fn nonblocking(fd: &OwnedFd) -> std::io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
