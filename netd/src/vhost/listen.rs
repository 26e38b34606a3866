//! Where frontends come from: a socket that netd listens on, or one that it connects to.

use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::PollTimeout;
use tracing::{info, warn};

use super::mover::Mover;
use super::serve::ServeError;
use crate::stop::{Stopper, Waited};

/// Mode of the listening socket: its owner and its group connect.
const SOCKET_MODE: u32 = 0o660;
/// Milliseconds between attempts to connect.
const RETRY_MS: u16 = 1000;
/// How often, and how far apart, netd looks whether the process that listens on the socket has ended.
const LAST_LOOKS: u32 = 10;
/// See [`LAST_LOOKS`].
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which side listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// netd listens, the frontend connects.
    Server,
    /// netd connects, the frontend listens; retried every second.
    Client,
}

/// Where the frontend is met.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Which side listens on it.
    pub mode: SocketMode,
    /// Queue pairs that are offered: 1 to [`super::MAX_QUEUE_PAIRS`].
    pub queue_pairs: usize,
}

/// The source of connections.
pub(super) enum Source {
    Listener(Bound),
    Connector { path: PathBuf, complained: bool },
}

/// A listening socket with its file, which is removed at the end.
pub(super) struct Bound {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Source {
    /// The source as configured; of a listener that another netd has had, if there is one.
    pub(super) fn new(
        config: &ServerConfig,
        taken: Option<UnixListener>,
        mover: &Mover,
    ) -> Result<Source, ServeError> {
        match config.mode {
            SocketMode::Server => {
                let failed = |source| ServeError::Socket { path: config.socket.clone(), source };
                let bound = match taken {
                    Some(listener) => Bound::taken(listener, &config.socket).map_err(failed)?,
                    None => Bound::new(&config.socket)?,
                };
                let copy = bound.listener.try_clone().map_err(failed)?;
                mover.lock().listener = Some((config.socket.clone(), copy));
                Ok(Source::Listener(bound))
            }
            SocketMode::Client => Ok(Source::Connector { path: config.socket.clone(), complained: false }),
        }
    }

    /// Waits for the next frontend; `None` when netd is to stop.
    pub(super) fn next(&mut self, stop: &Stopper, mover: &Mover) -> Result<Option<UnixStream>, ServeError> {
        loop {
            match self {
                Source::Listener(bound) => {
                    match stop.wait(&[bound.listener.as_fd()], PollTimeout::NONE).map_err(ServeError::Poll)? {
                        Waited::Stopped => return Ok(None),
                        Waited::Ready(_) => {}
                    }
                    // Not while a handover is under way: the successor would not know of this connection.
                    let mut shared = mover.lock();
                    match bound.listener.accept() {
                        Ok((stream, _)) => {
                            shared.coming = true;
                            // Accepted sockets do not inherit the listener's O_NONBLOCK on Linux.
                            return Ok(Some(stream));
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => {
                            drop(shared);
                            // Out of descriptors or memory, or the frontend gave up: not for ever.
                            warn!(error = %e, "frontend cannot be accepted");
                            if let Waited::Stopped =
                                stop.wait(&[], PollTimeout::from(RETRY_MS)).map_err(ServeError::Poll)?
                            {
                                return Ok(None);
                            }
                        }
                    }
                }
                Source::Connector { path, complained } => match connect(path, mover) {
                    Ok(stream) => {
                        *complained = false;
                        return Ok(Some(stream));
                    }
                    Err(e) => {
                        if !std::mem::replace(complained, true) {
                            info!(socket = %path.display(), error = %e, "waiting for the frontend's socket");
                        }
                        if let Waited::Stopped =
                            stop.wait(&[], PollTimeout::from(RETRY_MS)).map_err(ServeError::Poll)?
                        {
                            return Ok(None);
                        }
                    }
                },
            }
        }
    }
}

fn connect(path: &Path, mover: &Mover) -> io::Result<UnixStream> {
    let mut shared = mover.lock();
    let stream = UnixStream::connect(path)?;
    shared.coming = true;
    Ok(stream)
}

impl Bound {
    /// Goes on with a listener of another netd, whose file is at `path`.
    fn taken(listener: UnixListener, path: &Path) -> io::Result<Bound> {
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Bound { listener, path: path.to_owned(), inode })
    }

    fn new(path: &Path) -> Result<Bound, ServeError> {
        let failed = |source| ServeError::Socket { path: path.to_owned(), source };
        let directory = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        if !directory.is_dir() {
            return Err(ServeError::Directory { path: directory.to_owned() });
        }
        clear_when_gone(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
        Ok(Bound { listener, path: path.to_owned(), inode })
    }
}

/// As [`clear`]; a process that listens is given a moment to end. A killed process closes what it has file by file, and
/// the process that saw its connection close may have started this netd before the killed process's listener is closed
/// as well.
fn clear_when_gone(path: &Path) -> Result<(), ServeError> {
    for _ in 0..LAST_LOOKS {
        match clear(path) {
            Err(ServeError::InUse { .. }) => std::thread::sleep(LOOK_EVERY),
            other => return other,
        }
    }
    clear(path)
}

/// Removes the socket of a process that is gone; nothing else is touched.
fn clear(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::Socket { path: path.to_owned(), source };
    let meta = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    if !meta.file_type().is_socket() {
        return Err(ServeError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(_) => Err(ServeError::InUse { path: path.to_owned() }),
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A successor may have put its own socket there.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
