//! The backup in pull mode that runs.
//!
//! ```text
//!  begun ── Export ──> a tunnel to the exporter ── Abort ──> asked to end: no tunnel ──> ended
//!    │                   └─ Export: aims elsewhere             │ refused: goes on
//!    └────────────────────── Abort ────────────────────────────┘
//! ```
//!
//! The socket of QEMU's NBD server is in the directory with the sockets of the machine's console and display, which the launcher's
//! container alone sees.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use podvirt_api::names::path;
use podvirt_proto::domain::Backup;

use super::tunnel::{Report, Target, Tunnel};
use super::{BackupError, is_same};

/// The NBD server's socket, in the machine's directory.
const SOCKET: &str = "backup-nbd";
/// Longest path of a UNIX socket, in bytes (unix(7)).
pub(super) const MAX_SOCKET: usize = 107;

/// Where the machine's disks are offered.
///
/// # Errors
///
/// The path is too long.
pub(super) fn socket(vmi_uid: &str) -> Result<PathBuf, BackupError> {
    let socket = path::machine_dir(vmi_uid).join(SOCKET);
    match socket.as_os_str().as_bytes().len() {
        ..=MAX_SOCKET => Ok(socket),
        length => Err(BackupError::Socket { socket, length }),
    }
}

/// The backup in pull mode that runs, if there is one.
#[derive(Debug, Default)]
pub(in super::super) struct Pull(Mutex<Option<Job>>);

#[derive(Debug)]
struct Job {
    backup: Backup,
    socket: PathBuf,
    asked_to_end: bool,
    tunnel: Option<Tunnel>,
}

impl Pull {
    fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A backup begins, whose disks are offered at `socket`.
    pub(super) fn begin(&self, backup: &Backup, socket: PathBuf) {
        *self.job() = Some(Job { backup: backup.clone(), socket, asked_to_end: false, tunnel: None });
    }

    /// Opens the tunnel to an exporter, or aims it at another one. `report` is told why the exporter is not reached, and nothing once it is.
    ///
    /// # Errors
    ///
    /// The backup is not one in pull mode, or is about to end.
    pub(super) fn export(
        &self,
        backup: &Backup,
        target: Target,
        report: impl Report,
    ) -> Result<(), BackupError> {
        let mut job = self.job();
        let job = job.as_mut().filter(|job| is_same(&job.backup, backup));
        let job = job.ok_or_else(|| BackupError::Pushed(backup.name.clone()))?;
        if job.asked_to_end {
            return Err(BackupError::Ending(backup.name.clone()));
        }
        match &job.tunnel {
            Some(tunnel) => tunnel.aim(target),
            None => job.tunnel = Some(Tunnel::open(target, job.socket.clone(), report)),
        }
        Ok(())
    }

    /// Closes the tunnel of a backup that is asked to end. Whether it was not asked before; none: it is not one in pull mode.
    pub(super) fn stop(&self, backup: &Backup) -> Option<bool> {
        let mut job = self.job();
        let job = job.as_mut().filter(|job| is_same(&job.backup, backup))?;
        job.tunnel = None;
        Some(!std::mem::replace(&mut job.asked_to_end, true))
    }

    /// A backup does not end, although it was asked to. The next Export opens the tunnel again.
    pub(super) fn goes_on(&self, backup: &Backup) {
        if let Some(job) = self.job().as_mut().filter(|job| is_same(&job.backup, backup)) {
            job.asked_to_end = false;
        }
    }

    /// The backup has ended. Whether it was asked to.
    pub(super) fn end(&self) -> bool {
        let Some(job) = self.job().take() else { return false };
        // QEMU has removed it, unless it was killed.
        let _ = std::fs::remove_file(&job.socket);
        job.asked_to_end
    }
}
