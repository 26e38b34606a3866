//! A signal that ends what waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Ends a loop that waits by [`Stopper::wait`], from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<EventFd>);

/// What a wait ended with.
pub(crate) enum Waited {
    /// The signal was raised.
    Stopped,
    /// Which of the descriptors have something; none after a timeout.
    Ready(Vec<bool>),
}

impl Stopper {
    /// A signal that is not raised.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Stopper> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Stopper(Arc::new(event)))
    }

    /// Raises the signal; it stays raised.
    pub fn stop(&self) {
        // It can only fail when it is raised already.
        let _ = self.0.write(1);
    }

    /// Waits for the signal or for one of `fds` to become readable, at most `timeout`.
    pub(crate) fn wait(&self, fds: &[BorrowedFd<'_>], timeout: PollTimeout) -> io::Result<Waited> {
        let mut polled = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        polled.extend(fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        loop {
            match poll(&mut polled, timeout) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        match polled.split_first() {
            Some((signal, _)) if ready(signal) => Ok(Waited::Stopped),
            Some((_, rest)) => Ok(Waited::Ready(rest.iter().map(ready).collect())),
            None => Ok(Waited::Stopped),
        }
    }
}
