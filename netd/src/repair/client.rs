//! netd's side of the way to the helper.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podvirt_proto::repair::{Command, Error, SUFFIX, recv_reply, send_request};
use socket2::{Socket, Type};
use tracing::debug;

use super::BATCH;
use crate::sockets::unix::{SocketFile, listen_as};

/// How long the helper may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What became of a request for a socket.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It was done.
    Done,
    /// The helper, or the kernel, refuses it.
    Refused(io::Error),
    /// The helper has not answered: it may have done it.
    Unanswered,
}

impl Outcome {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
}

/// Where the helper is met.
#[derive(Debug)]
pub struct Helper {
    path: PathBuf,
    listener: Socket,
    _file: Option<SocketFile>,
    peer: Mutex<Option<Socket>>,
}

impl Helper {
    /// Listens beside the vhost-user socket.
    ///
    /// # Errors
    /// As bind(2); another process listens there.
    pub fn open(vhost_user: &Path) -> io::Result<Helper> {
        let path = Helper::path(vhost_user);
        let (listener, file) = listen_as(Type::SEQPACKET, &path, true)?;
        Ok(Helper { path, listener, _file: Some(file), peer: Mutex::default() })
    }

    /// Goes on with the listener of another netd.
    ///
    /// # Errors
    /// Its file is not there.
    pub fn taken(vhost_user: &Path, listener: OwnedFd) -> io::Result<Helper> {
        let path = Helper::path(vhost_user);
        let file = SocketFile::taken(&path)?;
        Ok(Helper { path, listener: listener.into(), _file: Some(file), peer: Mutex::default() })
    }

    /// Where it is, beside the vhost-user socket.
    pub fn path(vhost_user: &Path) -> PathBuf {
        let mut path = vhost_user.as_os_str().to_owned();
        path.push(SUFFIX);
        path.into()
    }

    /// Path and listening socket.
    pub(crate) fn listener(&self) -> (&Path, BorrowedFd<'_>) {
        (&self.path, self.listener.as_fd())
    }

    /// A helper that is connected already.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn connected(peer: OwnedFd) -> io::Result<Helper> {
        let listener = Socket::new(socket2::Domain::UNIX, Type::SEQPACKET, None)?;
        listener.set_nonblocking(true)?;
        let peer = Mutex::new(Some(peer.into()));
        Ok(Helper { path: PathBuf::new(), listener, _file: None, peer })
    }

    /// Whether a helper has connected; it is not asked whether it lives.
    pub(crate) fn is_met(&self) -> bool {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        self.meet(&mut peer).is_ok() && peer.is_some()
    }

    /// The helper that connected last is the one that lives: a helper that was started anew has connected again.
    fn meet(&self, peer: &mut Option<Socket>) -> io::Result<()> {
        while let Ok((newer, _)) = self.listener.accept() {
            newer.set_nonblocking(false)?;
            *peer = Some(newer);
        }
        Ok(())
    }

    /// Whether a helper is there and answers.
    pub(crate) fn is_there(&self) -> bool {
        self.ask(Command::Ping, &[], &[]).is_ok()
    }

    /// Tells that the guest is about to run here: its addresses are to speak, before any connection does.
    pub(crate) fn arrived(&self) -> bool {
        self.ask(Command::Release, &[], &[]).is_ok()
    }

    /// Tells that the guest is about to leave: from the answer on the helper keeps what comes for it, where it can.
    pub(crate) fn leaves(&self) -> bool {
        self.ask(Command::Freeze, &[], &[]).is_ok()
    }

    /// Tells that the guest stays.
    pub(crate) fn stays(&self) -> bool {
        self.ask(Command::Thaw, &[], &[]).is_ok()
    }

    /// Has something done to the sockets; what became of each.
    pub(crate) fn call<F: AsFd>(&self, command: Command, sockets: &[F]) -> Vec<Outcome> {
        self.call_with(command, sockets, &vec![0; sockets.len()])
    }

    /// The same with flags for each of them.
    pub(crate) fn call_with<F: AsFd>(&self, command: Command, sockets: &[F], flags: &[u8]) -> Vec<Outcome> {
        let mut results = Vec::with_capacity(sockets.len());
        for (batch, flags) in sockets.chunks(BATCH).zip(flags.chunks(BATCH)) {
            let fds: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
            match self.ask(command, &fds, flags) {
                Ok(errnos) => results.extend(errnos.into_iter().map(|errno| match errno {
                    0 => Outcome::Done,
                    errno => Outcome::Refused(io::Error::from_raw_os_error(errno)),
                })),
                Err(_) => results.extend(batch.iter().map(|_| Outcome::Unanswered)),
            }
        }
        results
    }

    fn ask(&self, command: Command, fds: &[BorrowedFd<'_>], flags: &[u8]) -> Result<Vec<i32>, Error> {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        self.meet(&mut peer)?;
        let connection = peer.as_ref().ok_or(Error::Closed)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        let answer = send_request(connection.as_fd(), command, fds, flags)
            .and_then(|()| recv_reply(connection.as_fd(), command, fds.len()));
        if let Err(error) = &answer {
            debug!(?command, %error, "the helper does not answer");
            // A late answer must not be taken for that to something else.
            *peer = None;
        }
        answer
    }
}
