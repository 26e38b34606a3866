//! The directory that the files of a backup go into: `<claim>/<machine>/<checkpoint>`.
//!
//! Several machines may have their backups on one claim, and other pods may write to it. Each directory is opened in the one above
//! it without following a link, and QEMU gets a path by this process's descriptor: what is put in a directory's place later
//! changes nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, unlinkat};
use tracing::warn;

use crate::beneath;

/// The directory of a backup.
#[derive(Debug)]
pub(super) struct Place {
    claim: OwnedFd,
    machine: OwnedFd,
    own: OwnedFd,
    machine_name: String,
    checkpoint: String,
}

impl Place {
    /// Makes the directory on the claim whose directory is `claim`.
    ///
    /// # Errors
    ///
    /// It cannot be made, or a symbolic link is in the place of one of its directories.
    pub(super) fn make(claim: impl AsFd, machine: &str, checkpoint: &str) -> io::Result<Self> {
        let directory = beneath::directory(&claim, machine)?;
        let own = beneath::directory(&directory, checkpoint)?;
        Ok(Self {
            claim: claim.as_fd().try_clone_to_owned()?,
            machine: directory,
            own,
            machine_name: machine.to_owned(),
            checkpoint: checkpoint.to_owned(),
        })
    }

    /// Its path for the processes of this container, as long as this is.
    pub(super) fn path(&self) -> PathBuf {
        path(&self.own)
    }

    /// Removes the files of the backup, with the machine's directory around them where there is nothing else in it.
    pub(super) fn clear(&self) {
        let directory = path(&self.machine).join(&self.checkpoint);
        if let Err(error) = std::fs::remove_dir_all(directory) {
            let (machine, checkpoint) = (&self.machine_name, &self.checkpoint);
            warn!(machine, checkpoint, %error, "what is left of the backup stays");
        }
        // Copies of earlier backups keep it.
        let _ = unlinkat(&self.claim, &*self.machine_name, AtFlags::REMOVEDIR);
    }
}

fn path(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_go_into_the_machines_directory_and_are_cleared_with_it() {
        let claim = tempfile::tempdir().unwrap();
        let root = File::open(claim.path()).unwrap();
        let first = Place::make(&root, "web", "a-1").unwrap();
        let second = Place::make(&root, "web", "b-1").unwrap();
        fs::write(second.path().join("b-root.qcow2"), "blocks").unwrap();
        assert_eq!(fs::read(claim.path().join("web/b-1/b-root.qcow2")).unwrap(), b"blocks");
        second.clear();
        assert_eq!(names(&claim.path().join("web")), ["a-1"]);
        first.clear();
        assert!(names(claim.path()).is_empty());
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_leads_no_backup_elsewhere() {
        let claim = tempfile::tempdir().unwrap();
        fs::create_dir_all(claim.path().join("other/b-1")).unwrap();
        fs::write(claim.path().join("other/b-1/b-root.qcow2"), "the other one's").unwrap();
        let root = File::open(claim.path()).unwrap();
        symlink("other", claim.path().join("web")).unwrap();
        let told = Place::make(&root, "web", "b-1").unwrap_err().to_string();
        assert!(told.contains("a symbolic link"), "{told}");

        // One that is swapped in while the backup runs.
        fs::remove_file(claim.path().join("web")).unwrap();
        let place = Place::make(&root, "web", "b-1").unwrap();
        fs::rename(claim.path().join("web"), claim.path().join("moved")).unwrap();
        symlink("other", claim.path().join("web")).unwrap();
        fs::write(place.path().join("b-root.qcow2"), "own").unwrap();
        place.clear();
        assert_eq!(fs::read(claim.path().join("other/b-1/b-root.qcow2")).unwrap(), b"the other one's");
        assert!(names(&claim.path().join("moved")).is_empty());
    }
}
