//! What threads share values by. The models of `tests/loom` compile this module's neighbours with their own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
pub(super) use std::sync::mpsc::{Receiver, Sender, channel};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd that a worker watches by its edges and never reads: each ring is an edge.
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }

    /// The counter saturates only after 2^64 - 1 rings.
    pub(super) fn ring(&self) -> bool {
        self.0.write(1).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
