//! All files of a claim, packed by tar and compressed.
//!
//! A pod may write to the claim meanwhile, and put a link in the place of a directory or of a file. So everything is opened in the
//! directory that it was found in, without following links, and what it is is told by what was opened. A file's length is what it
//! was when its entry began ([`file`]).
//!
//! One thread packs and hands over pieces, which are compressed as those of an image. It waits while the client does, and ends
//! when the client has gone.

mod file;

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use axum::response::Response;
use futures::{Stream, StreamExt, stream};
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, open, openat, openat2, readlinkat};
use rustix::io::Errno;
use tokio::sync::mpsc;

use self::file::Packed;
use super::gzip::{PIECE, member, packed, together};
use super::image::blocking;
use super::named::{NAME, Named, PREFIX};

/// What file systems make for themselves.
pub(super) const NOT_THE_TENANTS: &str = "lost+found";
/// Pieces that wait to be compressed.
const WAITING: usize = 2;

/// Hands over what is written, in pieces.
struct Pieces {
    bytes: Vec<u8>,
    to: mpsc::Sender<io::Result<Vec<u8>>>,
}

impl Pieces {
    fn hand_over(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.bytes);
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone");
        self.to.blocking_send(Ok(piece)).map_err(gone)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() as u64 >= PIECE {
            self.hand_over()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packs the files below a directory.
fn pack(root: &Path, to: impl Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(Named::new(to));
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut pending = vec![PathBuf::from(".")];
    while let Some(path) = pending.pop() {
        let Some(directory) = subdirectory(&root, &path)? else { continue };
        announce(&mut builder, &path)?;
        builder.append_dir(&path, format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let is_own = path == Path::new(".") && name == NOT_THE_TENANTS;
            let is_directory = pack_entry(&mut builder, &directory, entry.file_name(), &path.join(name))?;
            pending.extend((is_directory && !is_own).then(|| path.join(name)));
        }
    }
    builder.into_inner()?.into_inner().flush()
}

/// The directory `path` below the root; none where it has gone, or is none any more.
fn subdirectory(root: &OwnedFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(directory) => Ok(Some(directory)),
        Err(error @ (Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV)) => {
            tracing::warn!(path = %path.display(), %error, "no directory of the claim any more: left out");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Packs an entry of a directory as `path`, but for a directory; whether it is one.
fn pack_entry(
    builder: &mut tar::Builder<Named<impl Write>>,
    directory: &OwnedFd,
    name: &CStr,
    path: &Path,
) -> io::Result<bool> {
    let opened =
        |flags| match openat(directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(entry) => Ok(Some(File::from(entry))),
            // Removed, or replaced by a link, after it was found.
            Err(Errno::NOENT | Errno::LOOP) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
    let Some(entry) = opened(OFlags::PATH)? else { return Ok(false) };
    let metadata = entry.metadata()?;
    if metadata.is_dir() {
        return Ok(true);
    }
    if metadata.is_symlink() {
        let target = readlinkat(&entry, c"", Vec::new())?;
        let mut header = tar::Header::new_gnu();
        header.set_metadata(&metadata);
        announce(builder, path)?;
        builder.append_link(&mut header, path, Path::new(OsStr::from_bytes(target.to_bytes())))?;
        return Ok(false);
    }
    let file = metadata.is_file().then(|| opened(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY));
    match file.transpose()?.flatten() {
        Some(file) if file.metadata()?.is_file() => {
            announce(builder, path)?;
            let (mut header, contents) = Packed::new(file, path)?.into_parts();
            builder.append_data(&mut header, path, contents)?;
        }
        _ => tracing::warn!(path = %path.display(), "neither a file nor a directory: left out"),
    }
    Ok(false)
}

/// Has the next entry named as it is: of a name that fits into a header only without its prefix, the whole stands ahead.
fn announce(builder: &mut tar::Builder<Named<impl Write>>, path: &Path) -> io::Result<()> {
    let name = path.as_os_str().as_bytes();
    if name.len() > NAME && name.len() - PREFIX.len() <= NAME {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_path("././@LongLink")?;
        header.set_size(name.len() as u64 + 1);
        header.set_cksum();
        builder.append(&header, name.chain(io::repeat(0).take(1)))?;
    }
    builder.get_mut().expect();
    Ok(())
}

fn pieces(root: PathBuf) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
    let (to, from) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { bytes: Vec::new(), to: to.clone() };
        let packed = pack(&root, &mut pieces).and_then(|()| pieces.hand_over());
        if let Err(error) = packed {
            tracing::warn!(path = %root.display(), %error, "not packed");
            // A client that has gone hears nothing.
            let _gone = to.blocking_send(Err(error));
        }
    });
    stream::unfold(from, async |mut from| Some((from.recv().await?, from)))
}

/// Answers with the files below a directory.
pub(super) fn answer(root: PathBuf) -> Response {
    let members = pieces(root).map(|piece| blocking(move || member(&piece?)));
    packed(members.buffered(together()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Paths and contents of an archive's entries.
    pub(super) fn unpacked(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        });
        entries.collect()
    }

    /// Paths and contents of what is packed.
    fn packed_files(root: &Path) -> Vec<(String, Vec<u8>)> {
        let mut archive = Vec::new();
        pack(root, &mut archive).unwrap();
        unpacked(&archive)
    }

    #[test]
    fn a_directory_that_has_become_a_link_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let (claim, outside) = (dir.path().join("claim"), dir.path().join("outside"));
        fs::create_dir_all(claim.join("own")).unwrap();
        fs::create_dir_all(outside.join("deep")).unwrap();
        symlink(&outside, claim.join("a")).unwrap();
        let root = open(&claim, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(subdirectory(&root, Path::new("./own")).unwrap().is_some());
        for path in ["a", "./a/deep", "own/../../outside", "gone"] {
            assert!(subdirectory(&root, Path::new(path)).unwrap().is_none(), "{path}");
        }
    }

    #[test]
    fn nothing_from_outside_is_packed_while_links_are_swapped_in() {
        let dir = tempfile::tempdir().unwrap();
        let (claim, outside) = (dir.path().join("claim"), dir.path().join("outside"));
        for directory in [&claim, &outside, &claim.join("a"), &outside.join("deep")] {
            fs::create_dir_all(directory).unwrap();
        }
        for file in [outside.join("key"), outside.join("deep/key")] {
            fs::write(file, "secret").unwrap();
        }
        fs::write(claim.join("file"), "own").unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let swapping = {
            let (claim, outside, ends) = (claim.clone(), outside.clone(), Arc::clone(&ends));
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let (directory, file) = (claim.join("a"), claim.join("file"));
                    fs::remove_dir(&directory).unwrap();
                    symlink(&outside, &directory).unwrap();
                    symlink(outside.join("key"), claim.join("new")).unwrap();
                    fs::rename(claim.join("new"), &file).unwrap();
                    fs::remove_file(&directory).unwrap();
                    fs::create_dir(&directory).unwrap();
                    fs::write(claim.join("new"), "own").unwrap();
                    fs::rename(claim.join("new"), &file).unwrap();
                }
            })
        };
        let packed: Vec<_> = (0..2000).flat_map(|_| packed_files(&claim)).collect();
        ends.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        assert!(packed.iter().any(|(_, content)| content == b"own"));
        let foreign = packed.iter().find(|(path, content)| path.contains("key") || content == b"secret");
        assert_eq!(foreign, None);
    }
}
