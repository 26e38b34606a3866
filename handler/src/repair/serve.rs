//! A backend that is served, from its first connection to the end of the migration.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use podvirt_proto::repair::{Command, ENDS, Error, passt, recv_request, send_reply};
use socket2::{Socket, Type};
use tracing::{Span, debug, info, warn};

use super::act::{act, set};
use super::arrive::Arrival;
use super::depart::Departure;
use super::namespace::Inside;
use crate::sockets::Dir;

/// Milliseconds between two attempts to reach a backend that is not there (yet).
const AGAIN: u16 = 100;
/// How long a backend may take to take a connection, and to read an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sockets in one request from which on two threads share them.
const SHARED: usize = 16;

/// What a backend speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// netd's.
    Move,
    /// passt's.
    Passt,
}

/// Serves one socket.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) directory: Dir,
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) inside: Arc<Inside>,
    /// What is to be done before connections are released.
    pub(super) arrival: Option<Arc<Arrival>>,
    /// What is to be done when connections are frozen, and undone when they are thawed.
    pub(super) departure: Option<Arc<Departure>>,
    pub(super) stop: Arc<EventFd>,
}

/// What a wait ended with.
#[derive(PartialEq, Eq)]
enum Waited {
    Stopped,
    Ready,
    Nothing,
}

impl Server {
    /// Serves on a thread of its own, until the end is signalled.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn start(self) -> io::Result<()> {
        let span = Span::current();
        let name = "repair".to_owned();
        let builder = std::thread::Builder::new().name(name).stack_size(128 << 10);
        builder.spawn(move || span.in_scope(|| self.run())).map(drop)
    }

    fn run(&self) {
        let kind = if self.protocol == Protocol::Move { Type::SEQPACKET } else { Type::STREAM };
        loop {
            match self.directory.connect_as(&self.name, kind, TIMEOUT) {
                Ok(backend) => {
                    info!(socket = self.name, "repair of connections is offered");
                    match self.serve(&backend) {
                        Ok(true) => return,
                        Ok(false) => debug!(socket = self.name, "the backend has gone"),
                        Err(error) => warn!(socket = self.name, %error, "the backend is not served any more"),
                    }
                }
                // One of the two sockets has no owner, and the other's owner may be starting.
                Err(error) => debug!(socket = self.name, %error, "no backend"),
            }
            if self.wait(None, PollTimeout::from(AGAIN)).unwrap_or(Waited::Stopped) == Waited::Stopped {
                return;
            }
        }
    }

    fn wait(&self, backend: Option<&Socket>, timeout: PollTimeout) -> io::Result<Waited> {
        let mut fds = vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        fds.extend(backend.map(|b| PollFd::new(b.as_fd(), PollFlags::POLLIN)));
        loop {
            match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ok(match (fds.first().is_some_and(ready), fds.get(1).is_some_and(ready)) {
            (true, _) => Waited::Stopped,
            (_, true) => Waited::Ready,
            _ => Waited::Nothing,
        })
    }

    /// Serves until the end (true) or until the backend has gone.
    pub(super) fn serve(&self, backend: &Socket) -> Result<bool, Error> {
        backend.set_read_timeout(Some(TIMEOUT))?;
        backend.set_write_timeout(Some(TIMEOUT))?;
        loop {
            match self.wait(Some(backend), PollTimeout::NONE)? {
                Waited::Stopped => return Ok(true),
                Waited::Nothing => continue,
                Waited::Ready => {}
            }
            let goes_on = match self.protocol {
                Protocol::Move => self.answer(backend)?,
                Protocol::Passt => self.answer_passt(backend)?,
            };
            if !goes_on {
                return Ok(false);
            }
        }
    }

    fn answer(&self, backend: &Socket) -> Result<bool, Error> {
        let Some(request) = recv_request(backend.as_fd())? else { return Ok(false) };
        let done = |(socket, flags): &(OwnedFd, u8)| match act(&self.inside, request.command, socket, *flags)
        {
            Ok(()) => 0,
            Err(error) => {
                debug!(command = ?request.command, %error, "refused");
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        match request.command {
            Command::Release => self.arrive(),
            Command::Freeze => self.depart(true),
            // Connections that end say nothing on the machine, which has left.
            Command::Thaw
                if !request.sockets.is_empty()
                    && request.sockets.iter().all(|(_, flags)| flags & ENDS != 0) => {}
            Command::Thaw => self.depart(false),
            Command::Repair | Command::Ping => {}
        }
        let all = |part: &[(OwnedFd, u8)]| part.iter().map(done).collect::<Vec<i32>>();
        let (mine, others) = match request.sockets.len() {
            n if n < SHARED => request.sockets.split_at(n),
            n => request.sockets.split_at(n / 2),
        };
        let results = std::thread::scope(|scope| {
            // Time in the kernel, most of it: a second processor halves what the machine waits for.
            let others = (!others.is_empty()).then(|| scope.spawn(|| all(others)));
            let mut results = all(mine);
            let failed = |n: usize| vec![libc::EIO; n];
            let n = request.sockets.len() - mine.len();
            results.extend(others.map(|o| o.join().unwrap_or_else(|_| failed(n))).unwrap_or_default());
            results
        });
        send_reply(backend.as_fd(), request.command, &results)?;
        Ok(true)
    }

    fn arrive(&self) {
        if let Some(arrival) = &self.arrival {
            arrival.now();
        }
    }

    fn depart(&self, leaves: bool) {
        match &self.departure {
            Some(departure) if leaves => departure.begins(),
            Some(departure) => departure.is_off(),
            None => {}
        }
    }

    /// passt is told nothing of failures but by the end of the connection.
    fn answer_passt(&self, backend: &Socket) -> Result<bool, Error> {
        let Some((value, sockets)) = passt::recv_request(backend)? else { return Ok(false) };
        if value == 0 {
            self.arrive();
        }
        self.depart(value == 1);
        sockets.iter().try_for_each(|socket| set(&self.inside, value, socket))?;
        passt::send_reply(backend, value)?;
        Ok(true)
    }
}
