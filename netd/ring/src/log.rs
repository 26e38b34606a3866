//! The dirty-page log that a frontend shares with the device during migration.
//!
//! One bit per page of 4 KiB, least significant bit first, indexed by guest-physical page number; the frontend
//! reads and clears it while the device sets it (vhost-user protocol, "Migration"; `VHOST_LOG_PAGE`).

use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;
use vm_memory::{FileOffset, MmapRegion};

use super::RingError;
use super::fault::{self, Guard};

/// Bytes that one bit of the log stands for.
const PAGE: u64 = 0x1000;

/// A mapped dirty log.
#[derive(Debug)]
pub struct DirtyLog {
    /// Before the mapping, which it ends before.
    guard: OnceLock<Guard>,
    map: MmapRegion<()>,
}

impl DirtyLog {
    /// Maps `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// [`RingError::Log`] when the file is shorter than that, or cannot be mapped.
    pub fn new(file: File, offset: u64, len: u64) -> Result<Arc<DirtyLog>, RingError> {
        let bad = |text: &str| RingError::Log(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        let end = offset.checked_add(len).ok_or_else(|| bad("offset and length overflow"))?;
        // Touching a mapping beyond the end of its file would end the process.
        if len == 0 || file.metadata().map_err(RingError::Log)?.len() < end {
            return Err(bad("log is empty or longer than its file"));
        }
        let len = usize::try_from(len).map_err(|_| bad("log is too large"))?;
        let map = MmapRegion::from_file(FileOffset::new(file, offset), len)
            .map_err(|e| RingError::Log(std::io::Error::other(e)))?;
        Ok(Arc::new(DirtyLog { guard: OnceLock::new(), map }))
    }

    /// Makes a SIGBUS in the log raise `alarm` instead of ending the process: see [`super::fault`].
    ///
    /// # Errors
    /// [`RingError::Guard`].
    pub fn guard(&self, alarm: &Arc<EventFd>) -> Result<(), RingError> {
        let guard = fault::guard(self.map.as_ptr(), self.map.size(), alarm).map_err(RingError::Guard)?;
        let _ = self.guard.set(guard);
        Ok(())
    }

    /// Sets the bits of all pages that `[gpa, gpa + len)` touches. Pages beyond the log are ignored: they are
    /// not part of what the frontend migrates.
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / PAGE;
        for page in gpa / PAGE..=last {
            let Ok(byte) = usize::try_from(page / 8) else { return };
            if byte >= self.map.size() {
                return;
            }
            // SAFETY: byte is below the size of the mapping; the log is only ever accessed as atomic bytes.
            let cell = unsafe { AtomicU8::from_ptr(self.map.as_ptr().add(byte)) };
            // Release: the frontend that sees the bit also sees the bytes it stands for.
            cell.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}
