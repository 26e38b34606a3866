//! The loop that serves one frontend after the other.
//!
//! The thread that runs [`serve`] is also the one that runs the [`Filter`]: it waits for the frontend, the daemon
//! and the stop signal, and carries messages both ways.
//!
//! The daemon accepts its connection from a listener that must be reachable by name, so others in the network
//! namespace could reach it, too. It accepts exactly one connection and the listener is closed at once, which
//! resets every other: if ours is still alive then, it is the accepted one. Until that is known, no ring runs.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use thiserror::Error;
use tracing::{info, warn};
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::device::Device;
use super::filter::{Action, Filter};
use super::group::RingGroup;
use super::listen::{ServerConfig, Source};
use super::message::{Message, code};
use super::mover::{Mover, Taken};
use super::record::Record;
use super::transfer::{self, Transfer};
use super::{RingSink, channel};
use crate::counters::Counters;
use crate::ring::DirtyLog;
use crate::stop::{Stopper, Waited};

/// How long a frontend may stall in the middle of a message, or not read its replies.
const STALL: Duration = Duration::from_secs(10);
/// How long, in milliseconds, an answer of ours waits for earlier ones of the daemon.
const ANSWER_TIMEOUT_MS: u16 = 1000;
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

/// Serves one frontend after the other until `stop` is raised. Blocks: it wants a thread of its own.
///
/// # Errors
/// When the socket cannot be set up, or waiting for frontends fails.
pub fn serve(
    config: ServerConfig,
    sink: Arc<dyn RingSink>,
    counters: Arc<Counters>,
    stop: Stopper,
    mover: Mover,
    taken: Option<Taken>,
) -> Result<(), ServeError> {
    let (listener, mut joined) = taken.map_or((None, None), |t| (t.listener, t.joined));
    let mut source = Source::new(&config, listener, &mover)?;
    info!(socket = %config.socket.display(), mode = ?config.mode, "waiting for a frontend");
    sink.listening();
    loop {
        let carried = match joined.take() {
            Some(joined) => connection(joined, &sink, &stop, &mover),
            None => {
                let Some(front) = source.next(&stop, &mover)? else { break };
                counters.frontend_connections.add(1);
                info!("frontend connected");
                Joined::new(front, &sink, config.queue_pairs)
                    .and_then(|joined| connection(joined, &sink, &stop, &mover))
            }
        };
        mover.lock().coming = false;
        match carried {
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

/// A connection in service. The thread that carries messages has it locked.
pub(super) struct Live {
    pub(super) front: UnixStream,
    pub(super) inner: UnixStream,
    pub(super) group: Arc<RingGroup>,
    pub(super) filter: Filter,
    pub(super) record: Record,
    pub(super) transfer: Transfer,
    /// Replies that the daemon owes the frontend.
    owed: usize,
    /// Replies that it owes us, to what [`Live::come_to_rest`] asks; they come before those.
    own: usize,
}

/// A connection and the daemon that serves it.
pub(super) struct Joined {
    daemon: Daemon,
    pub(super) live: Live,
}

impl Joined {
    /// Makes a daemon for the connection. No ring runs yet.
    pub(super) fn new(front: UnixStream, sink: &Arc<dyn RingSink>, pairs: usize) -> io::Result<Joined> {
        front.set_read_timeout(Some(STALL))?;
        front.set_write_timeout(Some(STALL))?;
        let group = RingGroup::new(Arc::clone(sink))?;
        let (daemon, inner) = join(&group, pairs)?;
        let (filter, record) = (Filter::new(pairs), Record::default());
        Ok(Joined { daemon, live: Live::new(front, inner, group, filter, record) })
    }
}

/// Serves one frontend that is connected already, as fuzzing does.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn serve_one(
    front: UnixStream,
    sink: &Arc<dyn RingSink>,
    pairs: usize,
    stop: &Stopper,
) -> io::Result<()> {
    connection(Joined::new(front, sink, pairs)?, sink, stop, &Mover::default())
}

/// Serves one frontend to its end and leaves nothing of it behind.
fn connection(joined: Joined, sink: &Arc<dyn RingSink>, stop: &Stopper, mover: &Mover) -> io::Result<()> {
    let Joined { mut daemon, live } = joined;
    let (front, inner) = (live.front.try_clone()?, live.inner.try_clone()?);
    let group = Arc::clone(&live.group);
    {
        let mut shared = mover.lock();
        sink.set_connected(true);
        group.arm();
        shared.live = Some(live);
        shared.coming = false;
    }
    let carried = carry(&front, &inner, &group, mover, stop);
    mover.lock().live = None;
    // The daemon reads the end of the stream and finishes.
    let _ = inner.shutdown(std::net::Shutdown::Both);
    let ended = daemon.wait();
    group.close();
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
fn join(group: &Arc<RingGroup>, pairs: usize) -> io::Result<(Daemon, UnixStream)> {
    for _ in 0..JOIN_ATTEMPTS {
        let device = Arc::new(Device::new(Arc::clone(group), pairs));
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon = group
            .owning_new_rings(|| VhostUserDaemon::new("vhost-user".into(), device, memory))
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
        group.close();
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

/// Whether the connection was accepted by a frontend that still holds it.
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
    group: &RingGroup,
    mover: &Mover,
    stop: &Stopper,
) -> io::Result<()> {
    loop {
        if let Waited::Stopped =
            stop.wait(&[inner.as_fd(), front.as_fd(), group.alarm()], PollTimeout::NONE)?
        {
            return Ok(());
        }
        // A handover may have been in between, so it is asked again what there is.
        let mut shared = mover.lock();
        let Some(live) = &mut shared.live else { return Ok(()) };
        let ready = match stop.wait(&[inner.as_fd(), front.as_fd(), group.alarm()], PollTimeout::ZERO)? {
            Waited::Stopped => return Ok(()),
            Waited::Ready(ready) => ready,
        };
        let goes_on = match ready[..] {
            [_, _, true] => {
                return Err(io::Error::other("the frontend has taken memory away that it shares"));
            }
            // First: the daemon's answers, in case it has given up meanwhile.
            [true, ..] => live.answer()?,
            [_, true, _] => live.carry()?,
            _ => true,
        };
        if !goes_on {
            return Ok(());
        }
    }
}

impl Live {
    fn new(
        front: UnixStream,
        inner: UnixStream,
        group: Arc<RingGroup>,
        filter: Filter,
        record: Record,
    ) -> Live {
        Live { front, inner, group, filter, record, transfer: Transfer::default(), owed: 0, own: 0 }
    }

    /// Carries an answer of the daemon to the frontend; false when the daemon has ended.
    fn answer(&mut self) -> io::Result<bool> {
        let Some(reply) = channel::recv(&self.inner)? else { return Ok(false) };
        if self.own > 0 {
            self.own -= 1;
            return Ok(true);
        }
        self.owed = self.owed.saturating_sub(1);
        channel::send(&self.front, &reply)?;
        Ok(true)
    }

    /// Carries a message of the frontend; false when it has ended.
    fn carry(&mut self) -> io::Result<bool> {
        let Some(message) = channel::recv(&self.front)? else { return Ok(false) };
        if message.code == code::SET_STATUS || message.code == code::SET_VRING_ENABLE {
            // The filter may answer these itself.
            self.record.note(&message)?;
        }
        if message.code == code::SET_VRING_KICK {
            self.transfer.resume(self.group.sink());
        }
        for action in self.filter.handle(message) {
            match action {
                Action::Forward(message) => {
                    self.owed += usize::from(self.filter.expects_reply(&message));
                    channel::send(&self.inner, &message)?;
                    self.record.note(&message)?;
                }
                Action::Reply(reply) => {
                    self.finish_answers()?;
                    channel::send(&self.front, &reply)?;
                }
                Action::BadRing(index) => self.group.bad_ring(index),
                Action::Transfer { direction, file } => {
                    self.come_to_rest()?;
                    let stopped = !self.group.runs();
                    if !stopped {
                        warn!("the state of a device that runs cannot be transferred");
                    }
                    let began = stopped && self.transfer.begin(direction, file, self.group.sink());
                    channel::send(&self.front, &transfer::began(began))?;
                }
                Action::Checked => {
                    self.finish_answers()?;
                    let good = self.transfer.finish();
                    channel::send(&self.front, &transfer::checked(good))?;
                }
                Action::Reset => {
                    self.finish_answers()?;
                    self.group.reset();
                }
                Action::Log { file, offset, len } => {
                    self.record.note_log(&file, offset, len)?;
                    let log = DirtyLog::new(file, offset, len).map_err(io::Error::other)?;
                    self.group.set_log(log).map_err(io::Error::other)?;
                }
            }
        }
        Ok(true)
    }

    /// Lets the daemon answer what it owes, so that nothing of ours overtakes it.
    pub(super) fn finish_answers(&mut self) -> io::Result<()> {
        while self.owed > 0 {
            if !self.await_answer()? {
                self.owed = 0;
            }
        }
        Ok(())
    }

    /// Waits until the daemon has taken all that was carried to it, what it does not answer included: it takes
    /// messages in turn, so the answer to one more tells it. The frontend hears nothing of that message.
    ///
    /// # Errors
    /// The daemon has ended, or does not answer in time.
    pub(super) fn come_to_rest(&mut self) -> io::Result<()> {
        while self.owed > 0 {
            self.must_answer()?;
        }
        for action in self.filter.handle(Message::request(code::GET_FEATURES, Vec::new())) {
            if let Action::Forward(message) = action {
                channel::send(&self.inner, &message)?;
                self.own += 1;
            }
        }
        while self.own > 0 {
            self.must_answer()?;
        }
        Ok(())
    }

    fn must_answer(&mut self) -> io::Result<()> {
        if self.await_answer()? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Carries the daemon's next answer; false when none comes for [`ANSWER_TIMEOUT_MS`].
    fn await_answer(&mut self) -> io::Result<bool> {
        loop {
            let mut fds = [PollFd::new(self.inner.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::from(ANSWER_TIMEOUT_MS)) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(0) => return Ok(false),
                Ok(_) if self.answer()? => return Ok(true),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
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

    /// A sink without a worker.
    struct Nothing;

    impl RingSink for Nothing {
        fn start(&self, _: usize, _: crate::ring::Ring) {}
        fn stop(&self, _: usize) -> Option<crate::ring::Ring> {
            None
        }
        fn set_features(&self, _: u64) {}
        fn set_connected(&self, _: bool) {}
    }

    /// A connection in service, its frontend and the daemon's end.
    fn live() -> (Live, UnixStream, UnixStream) {
        let (front, frontend) = UnixStream::pair().unwrap();
        let (inner, daemon) = UnixStream::pair().unwrap();
        let group = RingGroup::new(Arc::new(Nothing)).unwrap();
        let (filter, record) = (Filter::new(1), Record::default());
        (Live::new(front, inner, group, filter, record), frontend, daemon)
    }

    #[test]
    fn rest_waits_for_messages_that_have_no_answer() {
        let (mut live, frontend, daemon) = live();
        channel::send(
            &frontend,
            &Message::request(code::SET_VRING_NUM, [0u32, 256].map(u32::to_ne_bytes).concat()),
        )
        .unwrap();
        assert!(live.carry().unwrap());
        let (taken, rested) = std::sync::mpsc::channel();
        let serving = std::thread::spawn(move || {
            let first = channel::recv(&daemon).unwrap().unwrap();
            taken.send(first.code).unwrap();
            let second = channel::recv(&daemon).unwrap().unwrap();
            channel::send(&daemon, &Message::reply(second.code, vec![0; 8])).unwrap();
            daemon
        });
        live.come_to_rest().unwrap();
        assert_eq!(rested.try_recv(), Ok(code::SET_VRING_NUM));
        let _daemon = serving.join().unwrap();
        frontend.set_nonblocking(true).unwrap();
        assert_eq!(channel::recv(&frontend).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_not_at_rest_and_its_late_answer_is_not_the_frontends() {
        let (mut live, frontend, daemon) = live();
        assert_eq!(live.come_to_rest().unwrap_err().kind(), io::ErrorKind::TimedOut);
        channel::send(&frontend, &Message::request(code::GET_PROTOCOL_FEATURES, Vec::new())).unwrap();
        assert!(live.carry().unwrap());
        for asked in [code::GET_FEATURES, code::GET_PROTOCOL_FEATURES] {
            assert_eq!(channel::recv(&daemon).unwrap().unwrap().code, asked);
            channel::send(&daemon, &Message::reply(asked, vec![0; 8])).unwrap();
        }
        live.finish_answers().unwrap();
        assert_eq!(channel::recv(&frontend).unwrap().unwrap().code, code::GET_PROTOCOL_FEATURES);
        drop(daemon);
        assert!(live.come_to_rest().is_err());
    }
}
