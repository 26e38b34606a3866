//! The loop that serves one frontend after the other.
//!
//! The thread that runs [`serve`] is also the one that runs the [`Filter`]: it waits for the frontend, the daemon
//! and the stop signal, and carries messages both ways.
//!
//! The daemon accepts its connection from a listener that must be reachable by name, so others in the network
//! namespace could reach it, too. It accepts exactly one connection and the listener is closed at once, which
//! resets every other: if ours is still alive then, it is the accepted one. Until that is known, no ring runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use thiserror::Error;
use tracing::{info, warn};
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::device::Device;
use super::filter::{Action, Filter};
use super::listen::{ServerConfig, Source};
use super::message::Message;
use super::vring::Port;
use super::{RingSink, channel};
use crate::counters::Counters;
use crate::ring::DirtyLog;

/// How long a frontend may stall in the middle of a message, or not read its replies.
const STALL: Duration = Duration::from_secs(10);
/// How long, in milliseconds, an answer of ours waits for earlier ones of the daemon.
const SETTLE_MS: u16 = 1000;
/// Attempts at a private connection to the daemon.
const JOIN_ATTEMPTS: usize = 8;

/// Why frontends cannot be served at all. What goes wrong with one frontend is logged, and the next is served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The directory of the socket does not exist.
    #[error("directory {} of the vhost-user socket does not exist", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// Something else than a socket is in the way.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process listens there.
    #[error("another process listens on {}", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("socket {} cannot be made", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Waiting failed.
    #[error("cannot wait for frontends")]
    Poll(#[source] io::Error),
}

/// Ends [`serve`], from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<EventFd>);

/// What a wait ended with.
pub(crate) enum Waited {
    Stopped,
    /// Which of the descriptors have something; none after a timeout.
    Ready(Vec<bool>),
}

impl Stopper {
    /// A signal that is not raised.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Stopper> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Stopper(Arc::new(event)))
    }

    /// Raises the signal; it stays raised.
    pub fn stop(&self) {
        // It can only fail when it is raised already.
        let _ = self.0.write(1);
    }

    /// Waits for the signal or for one of `fds` to become readable, at most `timeout`.
    pub(crate) fn wait(&self, fds: &[BorrowedFd<'_>], timeout: PollTimeout) -> io::Result<Waited> {
        let mut polled = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        polled.extend(fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        loop {
            match poll(&mut polled, timeout) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        match polled.split_first() {
            Some((signal, _)) if ready(signal) => Ok(Waited::Stopped),
            Some((_, rest)) => Ok(Waited::Ready(rest.iter().map(ready).collect())),
            None => Ok(Waited::Stopped),
        }
    }
}

/// Serves one frontend after the other until `stop` is raised. Blocks: it wants a thread of its own.
///
/// # Errors
/// When the socket cannot be set up, or waiting for frontends fails.
pub fn serve(
    config: ServerConfig,
    sink: Arc<dyn RingSink>,
    counters: Arc<Counters>,
    stop: Stopper,
) -> Result<(), ServeError> {
    let mut source = Source::new(&config)?;
    info!(socket = %config.socket.display(), mode = ?config.mode, "waiting for a frontend");
    while let Some(front) = source.next(&stop)? {
        counters.frontend_connections.add(1);
        info!("frontend connected");
        match connection(&front, &sink, config.queue_pairs, &stop) {
            Ok(()) => info!("frontend disconnected"),
            Err(e) => warn!(error = %e, "connection with the frontend ended"),
        }
        if config.mode == super::SocketMode::Client {
            // A frontend that accepts and hangs up at once must not make this a busy loop.
            if let Waited::Stopped = stop.wait(&[], PollTimeout::from(100u16)).map_err(ServeError::Poll)? {
                break;
            }
        }
    }
    Ok(())
}

/// Serves one frontend to its end and leaves nothing of it behind.
pub(crate) fn connection(
    front: &UnixStream,
    sink: &Arc<dyn RingSink>,
    pairs: usize,
    stop: &Stopper,
) -> io::Result<()> {
    front.set_read_timeout(Some(STALL))?;
    front.set_write_timeout(Some(STALL))?;
    let port = Port::new(Arc::clone(sink))?;
    let (mut daemon, inner) = join(&port, pairs)?;
    port.arm();
    sink.set_connected(true);
    let carried = carry(front, &inner, &port, Filter::new(pairs), stop);
    // The daemon reads the end of the stream and finishes.
    let _ = inner.shutdown(std::net::Shutdown::Both);
    let ended = daemon.wait();
    port.close();
    sink.set_connected(false);
    carried?;
    match ended {
        Ok(())
        | Err(DaemonError::HandleRequest(ProtocolError::Disconnected | ProtocolError::SocketBroken(_))) => {
            Ok(())
        }
        Err(e) => Err(io::Error::other(e.to_string())),
    }
}

type Daemon = VhostUserDaemon<Arc<Device>>;

/// Makes a daemon and connects to it, privately.
fn join(port: &Arc<Port>, pairs: usize) -> io::Result<(Daemon, UnixStream)> {
    for _ in 0..JOIN_ATTEMPTS {
        let device = Arc::new(Device::new(Arc::clone(port), pairs));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon = port
            .give_birth(|| VhostUserDaemon::new("vhost-user".into(), device, memory))
            .map_err(|e| io::Error::other(e.to_string()))?;
        let listener = private_listener()?;
        let inner = UnixStream::connect_addr(&listener.local_addr()?)?;
        let mut listener = Listener::from(listener);
        daemon.start(&mut listener).map_err(|e| io::Error::other(e.to_string()))?;
        drop(listener);
        if alive(&inner)? {
            inner.set_read_timeout(Some(STALL))?;
            return Ok((daemon, inner));
        }
        warn!("another process connected to the inner socket");
        daemon.request_shutdown();
        let _ = daemon.wait();
        port.close();
    }
    Err(io::Error::other("the inner socket is not private"))
}

/// A listener with a name that the kernel chooses, in the abstract name space: no file is made.
fn private_listener() -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new_unnamed())?;
    listen(&fd, Backlog::new(1)?)?;
    Ok(fd.into())
}

/// Whether the connection was accepted by somebody who still holds it.
fn alive(stream: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO)?;
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    Ok(!events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLIN))
}

/// Carries messages both ways until one side ends or netd is to stop.
fn carry(
    front: &UnixStream,
    inner: &UnixStream,
    port: &Arc<Port>,
    mut filter: Filter,
    stop: &Stopper,
) -> io::Result<()> {
    // Replies that the daemon owes.
    let mut owed = 0usize;
    loop {
        let ready = match stop.wait(&[inner.as_fd(), front.as_fd(), port.alarm()], PollTimeout::NONE)? {
            Waited::Stopped => return Ok(()),
            Waited::Ready(ready) => ready,
        };
        if ready.get(2) == Some(&true) {
            return Err(io::Error::other("the frontend has taken memory away that it shares"));
        }
        if ready.first() == Some(&true) {
            // First: the daemon's answers, in case it has given up meanwhile.
            match channel::recv(inner)? {
                Some(reply) => {
                    owed = owed.saturating_sub(1);
                    channel::send(front, &reply)?;
                }
                None => return Ok(()),
            }
            continue;
        }
        if ready.get(1) != Some(&true) {
            continue;
        }
        let Some(message) = channel::recv(front)? else { return Ok(()) };
        for action in filter.handle(message) {
            match action {
                Action::Forward(message) => {
                    owed += usize::from(filter.expects_reply(&message));
                    channel::send(inner, &message)?;
                }
                Action::Reply(reply) => {
                    settle(front, inner, &mut owed)?;
                    channel::send(front, &reply)?;
                }
                Action::BadRing(index) => port.bad_ring(index),
                Action::Reset => {
                    settle(front, inner, &mut owed)?;
                    port.reset();
                }
                Action::Log { file, offset, len } => {
                    let log = DirtyLog::new(file, offset, len).map_err(io::Error::other)?;
                    port.set_log(log).map_err(io::Error::other)?;
                }
            }
        }
    }
}

/// Lets the daemon answer what it owes, so that our own answer does not overtake it.
fn settle(front: &UnixStream, inner: &UnixStream, owed: &mut usize) -> io::Result<()> {
    while *owed > 0 {
        let mut fds = [PollFd::new(inner.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(SETTLE_MS)) {
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(0) => {
                *owed = 0;
                return Ok(());
            }
            Ok(_) => {}
        }
        let reply: Option<Message> = channel::recv(inner)?;
        let reply = reply.ok_or(io::ErrorKind::UnexpectedEof)?;
        *owed -= 1;
        channel::send(front, &reply)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_accepted_connection_survives_the_listener() {
        let listener = private_listener().unwrap();
        let address = listener.local_addr().unwrap();
        let first = UnixStream::connect_addr(&address).unwrap();
        let second = UnixStream::connect_addr(&address).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        drop(listener);
        assert!(alive(&first).unwrap());
        assert!(!alive(&second).unwrap());
    }
}
