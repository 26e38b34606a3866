//! The room that a backup in pull mode has on its claim.
//!
//! QEMU writes there what a disk was before the guest overwrites it. Where there is no room for that, QEMU fails the guest's write. So a
//! backup whose claim is smaller than the disks is ended ahead of that, which is told: the guest goes on, and the backup has failed.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use tracing::warn;

const MIB: u64 = 1 << 20;
/// Room for what QEMU keeps beside the data: tables of its files, MiB for every GiB of the disks.
const TABLES_PER_GIB: u64 = 2;
/// The part of the room at the begin that is to be left: a fourth.
const LEFT: u64 = 4;
/// Most that is to be left, bytes: what a fast guest writes between two looks.
const MOST_LEFT: u64 = 1 << 30;

/// The room of a backup, as it was when the backup began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    claim: PathBuf,
    left: u64,
}

impl Room {
    /// Of the claim of this directory, with disks of so many bytes; none where it has room for all that the guest can overwrite.
    pub(super) fn new(claim: &Path, disks: u64) -> Option<Self> {
        Some(Room { claim: claim.to_owned(), left: left(free(claim)?, disks)? })
    }

    /// A room of which all is to be left.
    #[cfg(test)]
    pub(super) fn all_of(claim: &Path) -> Self {
        Room { claim: claim.to_owned(), left: u64::MAX }
    }

    /// Why the backup is to end; none: it can go on.
    pub(super) fn ends(&self) -> Option<String> {
        let free = free(&self.claim)?;
        (free < self.left).then(|| {
            format!(
                "No space left on device: the claim has {} MiB left for what the guest overwrites; the backup ends before the guest's \
                 writes fail",
                free / MIB
            )
        })
    }
}

/// Bytes below which a backup ends that begins with `free` bytes; none where disks of `disks` bytes fit.
fn left(free: u64, disks: u64) -> Option<u64> {
    let tables = (disks >> 30).saturating_add(1).saturating_mul(TABLES_PER_GIB * MIB);
    (free < disks.saturating_add(tables)).then(|| (free / LEFT).min(MOST_LEFT))
}

/// Bytes that the launcher's user may still write.
fn free(claim: &Path) -> Option<u64> {
    match statvfs(claim) {
        Ok(stat) => Some(stat.f_bavail.saturating_mul(stat.f_frsize)),
        Err(error) => {
            warn!(claim = %claim.display(), %error, "the room on the backup's claim is not known");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_smaller_than_the_disks_keeps_some_room() {
        const GIB: u64 = 1 << 30;
        assert_eq!(left(11 * GIB, 10 * GIB), None);
        assert_eq!(left(10 * GIB, 10 * GIB), Some(GIB), "tables take room as well");
        assert_eq!(left(128 * MIB, GIB), Some(32 * MIB));
        assert_eq!(left(100 * GIB, 1000 * GIB), Some(GIB));
        assert_eq!(left(0, 1), Some(0));
        let of = tempfile::tempdir().unwrap();
        assert_eq!(Room::new(of.path(), 0), None);
        assert_eq!(Room { claim: of.path().to_owned(), left: 0 }.ends(), None);
        assert!(Room::all_of(of.path()).ends().unwrap().starts_with("No space left on device"));
        assert_eq!(Room { claim: of.path().join("gone"), left: 1 }.ends(), None);
    }
}
