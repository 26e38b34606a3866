//! The control socket in the file system.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 16;

/// A listening UNIX socket whose file goes when it is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode, to tell the file from another file that was put in its place.
    id: (u64, u64),
}

/// Listens at `path`, with permissions 0660 if the group may use it and 0600 otherwise.
///
/// A socket on which no process listens any more is replaced. No client can connect before the permissions stand: the
/// socket listens only then.
///
/// # Errors
///
/// `AddrInUse` when a process listens there or the path is no socket, otherwise what the system says.
pub fn listen(path: &Path, group: bool) -> io::Result<(UnixListener, SocketFile)> {
    let (socket, file) = listen_as(Type::STREAM, path, group)?;
    Ok((socket.into(), file))
}

/// As [`listen`], with a socket of another kind.
///
/// # Errors
///
/// As [`listen`].
pub fn listen_as(kind: Type, path: &Path, group: bool) -> io::Result<(Socket, SocketFile)> {
    remove_stale(kind, path)?;
    let socket = Socket::new(Domain::UNIX, kind.nonblocking().cloexec(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let metadata = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), id: (metadata.dev(), metadata.ino()) };
    std::fs::set_permissions(path, PermissionsExt::from_mode(if group { 0o660 } else { 0o600 }))?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

impl SocketFile {
    /// The file of a socket that another process has made and this process goes on with.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn taken(path: &Path) -> io::Result<SocketFile> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), id: (metadata.dev(), metadata.ino()) })
    }
}

fn remove_stale(kind: Type, path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let in_use = |why| Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    if !metadata.file_type().is_socket() {
        return in_use("the path is taken by something that is no socket");
    }
    let probe = Socket::new(Domain::UNIX, kind.cloexec(), None)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(e) => Err(e),
        Ok(_) => in_use("another process listens there"),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |m: &std::fs::Metadata| (m.dev(), m.ino()) == self.id;
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| ours(&m))
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "the control socket's file stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn permissions_are_the_owners_or_the_groups() {
        let dir = tempfile::tempdir().unwrap();
        for (group, expected) in [(false, 0o600), (true, 0o660)] {
            let path = dir.path().join("control.sock");
            let (_listener, _file) = listen(&path, group).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, expected);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (_listener, _file) = listen(&path, false).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(listen(&path, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn what_is_no_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_goes_with_the_listener_unless_another_listener_has_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(listen(&path, false).unwrap());
        assert!(!path.exists());
        let (_listener, file) = listen(&path, false).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
