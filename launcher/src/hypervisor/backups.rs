//! Backups of a domain's disks, as the launcher sees them.
//!
//! A backup is a job that copies disks while the guest runs, or that offers them to be read as they were at its begin: all of them, or the
//! blocks that have changed since a checkpoint. With its begin it makes a checkpoint, from which on changes are tracked for the next one.
//! A checkpoint is a bitmap in each disk, under the checkpoint's name.

use std::collections::{BTreeMap, BTreeSet};

use super::HypervisorError;

/// How a backup job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupEnd {
    /// Everything is copied. Of a job that offers disks: it has ended without an error, as it does when it is given up.
    Complete,
    /// It was given up, as was asked for.
    Aborted,
    /// It could not go on, and why.
    Failed(String),
}

/// What makes backups. Calls block, as those of [`Hypervisor`](super::Hypervisor) do.
pub trait Backups {
    /// Begins to copy the running domain's disks, or to offer them, as two XML documents say: `<domainbackup>`, and the
    /// `<domaincheckpoint>` from which on changes are tracked for the next copy.
    ///
    /// # Errors
    ///
    /// The domain does not run, another job does, or a copy cannot be made.
    fn begin(&self, backup: &str, checkpoint: &str) -> Result<(), HypervisorError>;

    /// How the last backup job ended; none while it runs.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn end(&self) -> Result<Option<BackupEnd>, HypervisorError>;

    /// Has the present backup job given up.
    ///
    /// # Errors
    ///
    /// There is none.
    fn abort(&self) -> Result<(), HypervisorError>;

    /// Names of the bitmaps that each disk has and that are sound, by the disks' aliases.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn bitmaps(&self) -> Result<BTreeMap<String, BTreeSet<String>>, HypervisorError>;

    /// Whether the hypervisor knows the checkpoint of this name.
    ///
    /// # Errors
    ///
    /// The domain is not there.
    fn knows(&self, checkpoint: &str) -> Result<bool, HypervisorError>;

    /// Makes a checkpoint known whose bitmaps the disks have. Whether the disks have them, and the bitmaps are sound.
    ///
    /// # Errors
    ///
    /// The domain does not run, or the description is refused.
    fn redefine(&self, checkpoint: &str) -> Result<bool, HypervisorError>;

    /// Removes the bitmaps of all disks but those of the checkpoints `keep`, and what the hypervisor knows of the other checkpoints. Names of the
    /// checkpoints that are gone.
    ///
    /// # Errors
    ///
    /// The domain does not run, or a job uses one of the bitmaps.
    fn forget_all_but(&self, keep: &BTreeSet<String>) -> Result<BTreeSet<String>, HypervisorError>;
}
