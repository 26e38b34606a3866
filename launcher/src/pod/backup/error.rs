//! Why a backup is not begun, or not ended.

use std::io;
use std::path::PathBuf;

use quick_xml::SeError;

use super::super::described::DescribeError;
use super::tunnel::TargetError;
use super::{Unknown, pull};
use crate::hypervisor::HypervisorError;

/// Why what was asked of a backup is refused, or not done.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum BackupError {
    /// A field is empty.
    #[error("{0}: required")]
    Missing(&'static str),
    /// A name that cannot be a part of paths.
    #[error("backupName: '{0}' is no object's name")]
    Name(String),
    /// A mode that is none.
    #[error("mode: '{0}': Push and Pull are allowed")]
    Mode(String),
    /// Another backup runs.
    #[error("backup {0} is under way: one at a time is allowed")]
    Busy(String),
    /// The disks are about to be elsewhere.
    #[error("the machine moves to another node: its disks can be backed up once it is there")]
    Moves,
    /// It does not run.
    #[error("backup {0} is not under way")]
    NotUnderWay(String),
    /// It cannot be exported.
    #[error("backup {0} is not one in pull mode")]
    Pushed(String),
    /// It cannot be exported any more.
    #[error("backup {0} is about to end")]
    Ending(String),
    /// There is nothing to be backed up.
    #[error("changes of none of the machine's disks are tracked")]
    Untracked,
    /// The claim is not here.
    #[error("targetPath: the directory of the volume '{0}' has not been handed over")]
    NotHandedOver(String),
    /// A directory cannot be made.
    #[error("{}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The NBD server's socket would have a path that is none.
    #[error("{}: {length} bytes; {allowed} are allowed", .socket.display(), allowed = pull::MAX_SOCKET)]
    Socket {
        /// The path.
        socket: PathBuf,
        /// Its bytes.
        length: usize,
    },
    /// The exporter cannot be reached as it is named.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// The machine's disks are not known.
    #[error(transparent)]
    Undescribed(#[from] DescribeError),
    /// The job cannot be described.
    #[error(transparent)]
    Unwritten(#[from] SeError),
    /// The checkpoint that it goes on from is not known.
    #[error(transparent)]
    Checkpoint(#[from] Unknown),
}

/// What a backup that runs keeps from being done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum UnderWay {
    /// Its claim stays.
    #[error("backup {0} writes to it")]
    Writes(String),
    /// The machine stays.
    #[error("cannot migrate VMI until backup {0} is completed")]
    Leaving(String),
}
