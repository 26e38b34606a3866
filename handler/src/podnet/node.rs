//! The launcher's own `/dev/net/tun`: QEMU's user may open it.
//!
//! The runtime makes the device's file in the container with owner and mode of the node's. Most nodes let every user open
//! `/dev/net/tun`; on one that does not, the container's file gets the launcher's user as its owner. The node's own file is
//! never touched.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, major, minor};
use nix::unistd::{Gid, Uid, fchownat};

use crate::device::TUN;
use crate::process::Process;

/// Numbers of `/dev/net/tun` (the kernel's list of devices).
const NUMBERS: (u64, u64) = (10, 200);
/// Reading and writing, for all users.
const FOR_ALL: u32 = 0o006;

/// Sees to it that `owner` may open the device in the launcher's container.
///
/// # Errors
/// The container has no such device, or it is not the container's own.
pub(super) fn hand_over(launcher: &Process, owner: u32) -> io::Result<()> {
    give(&launcher.root()?, owner)
}

fn give(root: &File, owner: u32) -> io::Result<()> {
    let missing = || {
        let message =
            format!("the launcher's container has no {}; a pod asks for it by {}", TUN.path, TUN.resource);
        io::Error::new(ErrorKind::NotFound, message)
    };
    let file = match within(root, TUN.path.trim_start_matches('/'), OFlag::O_PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing()),
        opened => opened?,
    };
    let stat = fstat(&file)?;
    let is_device = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits();
    if !is_device || (major(stat.st_rdev), minor(stat.st_rdev)) != NUMBERS {
        return Err(missing());
    }
    own(root, &file, TUN.path, owner)
}

/// A file of the container with this root. The pod has made none of what is opened here and can change none of it; links are
/// not followed all the same.
pub(super) fn within(root: &File, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
    openat2(root, path, how).map_err(io::Error::from)
}

/// Lets `owner` open a device of the container with this root, which is `file` at `path`.
///
/// # Errors
/// The file is not the container's own.
pub(super) fn own(root: &File, file: &OwnedFd, path: &str, owner: u32) -> io::Result<()> {
    let stat = fstat(file)?;
    if may_open(&stat, owner) {
        return Ok(());
    }
    let directory = fstat(&within(root, "dev", OFlag::O_PATH | OFlag::O_DIRECTORY)?)?;
    if directory.st_dev != stat.st_dev {
        let message = format!(
            "{path} in the launcher's container is the node's own file, and user {owner} may not open it: let it, as \
             `chmod 0666 {path}` does on the node"
        );
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    Ok(fchownat(file, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)?)
}

fn may_open(stat: &FileStat, owner: u32) -> bool {
    let owned = stat.st_uid == owner
        && stat.st_mode & Mode::S_IRUSR.bits() != 0
        && stat.st_mode & Mode::S_IWUSR.bits() != 0;
    owned || stat.st_mode & FOR_ALL == FOR_ALL
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use nix::sys::stat::{makedev, mknod};

    use super::*;

    const OWNER: u32 = 107;

    fn container(numbers: Option<(u64, u64)>, mode: u32) -> Option<tempfile::TempDir> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("dev/net")).unwrap();
        let Some((major, minor)) = numbers else { return Some(root) };
        let path = root.path().join("dev/net/tun");
        match mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), makedev(major, minor)) {
            Ok(()) => Some(root),
            Err(error) => {
                eprintln!("SKIPPED: cannot make a device: {error}");
                None
            }
        }
    }

    fn given(root: &Path) -> io::Result<u32> {
        give(&File::open(root)?, OWNER)?;
        Ok(std::fs::symlink_metadata(root.join("dev/net/tun"))?.uid())
    }

    #[test]
    fn a_device_that_only_root_may_open_becomes_the_launchers() {
        let Some(root) = container(Some(NUMBERS), 0o600) else { return };
        assert_eq!(given(root.path()).unwrap(), OWNER);
        assert_eq!(given(root.path()).unwrap(), OWNER, "again");
        let Some(open) = container(Some(NUMBERS), 0) else { return };
        let for_all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(open.path().join("dev/net/tun"), for_all).unwrap();
        assert_eq!(given(open.path()).unwrap(), 0, "every user may open it: it stays as it is");
    }

    #[test]
    fn what_is_not_the_device_is_left_alone() {
        let told = |root: &Path| given(root).unwrap_err().to_string();
        let Some(none) = container(None, 0) else { return };
        let missing =
            "the launcher's container has no /dev/net/tun; a pod asks for it by devices.kubevirt.io/tun";
        assert_eq!(told(none.path()), missing);
        // /dev/null is not it.
        let Some(other) = container(Some((1, 3)), 0o600) else { return };
        assert_eq!(told(other.path()), missing);
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(outside.path(), none.path().join("dev/net/tun")).unwrap();
        told(none.path());
        assert_eq!(outside.as_file().metadata().unwrap().uid(), nix::unistd::getuid().as_raw());
    }
}
