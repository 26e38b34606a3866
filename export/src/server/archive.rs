//! All files of a claim, packed by tar and compressed.
//!
//! One thread packs and hands over pieces, which are compressed as those of an image. It waits while the client does, and ends
//! when the client has gone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use axum::response::Response;
use futures::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

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
    builder.follow_symlinks(false);
    builder.sparse(true);
    let mut open = vec![PathBuf::from(".")];
    while let Some(directory) = open.pop() {
        announce(&mut builder, &directory)?;
        builder.append_dir(&directory, root.join(&directory))?;
        let entries = fs::read_dir(root.join(&directory))?.collect::<io::Result<Vec<_>>>()?;
        for entry in entries {
            let path = directory.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let is_own = directory == Path::new(".") && entry.file_name() == NOT_THE_TENANTS;
                open.extend((!is_own).then_some(path));
            } else if kind.is_file() || kind.is_symlink() {
                announce(&mut builder, &path)?;
                builder.append_path_with_name(entry.path(), &path)?;
            } else {
                tracing::warn!(path = %path.display(), "neither a file nor a directory: left out");
            }
        }
    }
    builder.into_inner()?.into_inner().flush()
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
