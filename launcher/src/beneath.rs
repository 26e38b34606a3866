//! Files in a directory that other pods may write to, such as the root of a claim.
//!
//! Such a pod can leave a symbolic link under the name of a file, to another claim of this pod or to a file of this process. So
//! links are not followed, and nothing above the directory is reached (openat2(2)). A pipe in a file's place does not block.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    FileType, Mode, OFlags, ResolveFlags, fcntl_getfl, fcntl_setfl, fstat, mkdirat, open, openat2,
};
use rustix::io::Errno;

/// Mode of files and directories that are made: the pod's group may write, since another container of the pod may have another user.
const FILE_MODE: Mode = Mode::from_raw_mode(0o660);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o770);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Opens the regular file `name` in `directory`, whose own path is trusted.
///
/// # Errors
///
/// As openat2(2); or it is no regular file, a symbolic link among those.
pub(crate) fn file(directory: &Path, name: &str, access: OFlags) -> io::Result<File> {
    let directory = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mode = if access.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() };
    let opened = openat2(&directory, name, flags, mode, RESOLVE).map_err(refused)?;
    if FileType::from_raw_mode(fstat(&opened)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    fcntl_setfl(&opened, fcntl_getfl(&opened)? - OFlags::NONBLOCK)?;
    Ok(opened.into())
}

/// Opens the directory `name` in `directory`, and makes it where there is none.
///
/// # Errors
///
/// As mkdirat(2) and openat2(2); or it is no directory, a symbolic link among those.
pub(crate) fn directory(directory: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(&directory, name, DIRECTORY_MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(&directory, name, flags, Mode::empty(), RESOLVE).map_err(refused)
}

/// The kernel calls a link that it does not follow a loop.
fn refused(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, which is not followed")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_opened_and_nothing_else_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (claim, other) = (dir.path().join("claim"), dir.path().join("other"));
        std::fs::create_dir(&claim).unwrap();
        std::fs::write(&other, "another volume's").unwrap();
        std::fs::write(claim.join("disk.img"), "own").unwrap();
        let opened = file(&claim, "disk.img", OFlags::RDWR).unwrap();
        assert!(!fcntl_getfl(&opened).unwrap().contains(OFlags::NONBLOCK));
        let told = |name: &str| file(&claim, name, OFlags::RDWR | OFlags::CREATE).unwrap_err().to_string();
        symlink("../other", claim.join("link")).unwrap();
        assert!(told("link").contains("a symbolic link"), "{}", told("link"));
        symlink("disk.img", claim.join("inner")).unwrap();
        assert!(told("inner").contains("a symbolic link"));
        symlink("nowhere", claim.join("dangling")).unwrap();
        assert!(told("dangling").contains("a symbolic link"));
        told("../other");
        nix::unistd::mkfifo(&claim.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(told("pipe").contains("no regular file"));
        let pipe = file(&claim, "pipe", OFlags::RDONLY).unwrap_err().to_string();
        assert!(pipe.contains("no regular file"), "{pipe}");
        file(&claim, "new", OFlags::RDWR | OFlags::CREATE).unwrap();
        let missing = file(&claim, "missing", OFlags::RDONLY).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_is_made_and_no_link_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let made = directory(&root, "web").unwrap();
        directory(&made, "copy").unwrap();
        directory(&root, "web").unwrap();
        assert!(dir.path().join("web/copy").is_dir());
        symlink("web", dir.path().join("link")).unwrap();
        assert!(directory(&root, "link").unwrap_err().to_string().contains("a symbolic link"));
        directory(&root, "../x").unwrap_err();
    }
}
