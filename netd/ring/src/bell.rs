//! The descriptors by which the frontend is told something: an interrupt, or that a ring is out of order.
//!
//! They are the frontend's, so what is done with them must not make netd wait. `O_NONBLOCK` does not see to that: it
//! belongs to the open file, which the frontend has as well and may take the flag from again. For a socket there is
//! `MSG_DONTWAIT`. For an eventfd there is nothing (it has no `RWF_NOWAIT` for writing), so it is asked before it is
//! written whether it has room. What is left is a frontend that clears the flag and fills the counter between the two.
//! It makes the thread wait, and the wait is ended from outside: a thread that waits for a worker's answer interrupts it
//! ([`crate::Thread`]), other threads ring by [`Bell::ring_aside`]. A bell that has cost a wait is never rung again.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{io, thread};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{SFlag, fstat};

use super::Thread;

/// How long a bell may take that is rung aside.
const TIMEOUT: Duration = Duration::from_millis(100);

/// What kinds of files a frontend may have rings kicked and interrupted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BellKind {
    /// An eventfd, or another file without a name; most of those refuse to be written.
    Eventfd,
    /// A pipe, as frontends have without eventfds.
    Pipe,
    /// A socket.
    Socket,
}

impl BellKind {
    /// The kind of a descriptor's file.
    ///
    /// # Errors
    /// It is another file, which may have a device or a file system behind it that makes a writer wait.
    pub fn of(fd: &impl AsFd) -> io::Result<BellKind> {
        let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
        let other = match kind {
            SFlag::S_IFIFO => return Ok(BellKind::Pipe),
            SFlag::S_IFSOCK => return Ok(BellKind::Socket),
            kind if kind.is_empty() => return Ok(BellKind::Eventfd),
            SFlag::S_IFREG => "a regular file",
            SFlag::S_IFDIR => "a directory",
            SFlag::S_IFLNK => "a symbolic link",
            _ => "a device",
        };
        let error = format!("the ring's descriptor is {other}; an eventfd, a pipe or a socket is allowed");
        Err(io::Error::new(io::ErrorKind::InvalidInput, error))
    }
}

/// A descriptor of the frontend's that is written to tell it something.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    socket: bool,
    /// It has made a thread wait.
    stuck: AtomicBool,
}

impl Bell {
    /// Takes a descriptor.
    ///
    /// # Errors
    /// As [`BellKind::of`].
    pub fn new(fd: OwnedFd) -> io::Result<Bell> {
        let socket = BellKind::of(&fd)? == BellKind::Socket;
        if !socket {
            // So that a frontend that means no harm is never waited for.
            let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
            fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(Bell { fd, socket, stuck: AtomicBool::new(false) })
    }

    /// Rings if that can be done at once: 8 bytes, a one.
    ///
    /// # Errors
    /// The descriptor cannot be written; `EAGAIN`: it is full, and so has been rung already.
    pub fn ring(&self) -> nix::Result<()> {
        let one = 1u64.to_ne_bytes();
        if self.socket {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            return send(self.fd.as_raw_fd(), &one, flags).map(drop);
        }
        if self.stuck.load(Relaxed) {
            return Err(Errno::EAGAIN);
        }
        let mut room = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut room, PollTimeout::ZERO) {
            // A signal says nothing of the descriptor, which most likely has room.
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        if room[0].revents().is_some_and(|r| !r.contains(PollFlags::POLLOUT)) {
            return Err(Errno::EAGAIN);
        }
        self.write(&one)
    }

    fn write(&self, one: &[u8; 8]) -> nix::Result<()> {
        let written = nix::unistd::write(&self.fd, one).map(drop);
        // Only a write that has waited can be interrupted.
        if written == Err(Errno::EINTR) && !self.stuck.swap(true, Relaxed) {
            tracing::warn!(
                "the frontend makes a descriptor block by which it wants to be told: it is told no more"
            );
        }
        written
    }

    /// As [`Bell::ring`], for a thread that no other thread interrupts: a helper thread does it, and is not waited for for long.
    ///
    /// # Errors
    /// As [`Bell::ring`].
    pub fn ring_aside(&self) -> nix::Result<()> {
        aside(|| self.ring())
    }
}

/// Runs `call` on a thread of its own, and interrupts it when it takes long.
fn aside(call: impl FnOnce() -> nix::Result<()> + Send) -> nix::Result<()> {
    thread::scope(|scope| {
        let (tell, told) = channel();
        let run = move || {
            let _ = tell.send(Thread::current());
            call()
            // With its end it lets go of the channel.
        };
        let Ok(ringer) = thread::Builder::new().name("netd-bell".into()).spawn_scoped(scope, run) else {
            return Err(Errno::EAGAIN);
        };
        if let Ok(thread) = told.recv() {
            while matches!(told.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Timeout)) {
                thread.interrupt();
            }
        }
        ringer.join().unwrap_or(Err(Errno::EAGAIN))
    })
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::EventFd;

    use super::*;

    /// An eventfd that is full and blocks, as a frontend leaves it behind that wins the race.
    fn full() -> (EventFd, Bell) {
        let event = EventFd::new().unwrap();
        let bell = Bell::new(event.as_fd().try_clone_to_owned().unwrap()).unwrap();
        event.write(u64::MAX - 1).unwrap();
        fcntl(&event, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        (event, bell)
    }

    #[test]
    fn a_write_that_blocks_is_ended_from_outside_and_there_is_no_other() {
        let (event, bell) = full();
        // Behind the look at the room that there is.
        assert_eq!(aside(|| bell.write(&1u64.to_ne_bytes())), Err(Errno::EINTR));
        assert_eq!(event.read().unwrap(), u64::MAX - 1);
        // Now there would be room.
        assert_eq!(bell.ring(), Err(Errno::EAGAIN));
        event.write(7).unwrap();
        assert_eq!(event.read().unwrap(), 7, "it was rung again");
    }

    #[test]
    fn a_full_one_is_not_written() {
        let (event, bell) = full();
        assert_eq!((bell.ring(), bell.ring_aside()), (Err(Errno::EAGAIN), Err(Errno::EAGAIN)));
        assert_eq!(event.read().unwrap(), u64::MAX - 1);
        bell.ring().unwrap();
        bell.ring_aside().unwrap();
        assert_eq!(event.read().unwrap(), 2);
    }

    #[test]
    fn a_pipe_and_a_socket_are_rung_and_other_files_are_refused() {
        let (read, write) = nix::unistd::pipe().unwrap();
        let bell = Bell::new(write).unwrap();
        while bell.ring().is_ok() {}
        assert_eq!(bell.ring(), Err(Errno::EAGAIN), "a full pipe that is not read");
        assert_eq!(nix::unistd::read(&read, &mut [0; 8]).unwrap(), 8);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let bell = Bell::new(ours.into()).unwrap();
        while bell.ring().is_ok() {}
        assert_eq!(bell.ring(), Err(Errno::EAGAIN), "a full socket that is not read");
        drop(theirs);
        for (file, says) in
            [("/dev/null", "a device"), ("/", "a directory"), ("/proc/self/exe", "a regular file")]
        {
            let error = Bell::new(std::fs::File::open(file).unwrap().into()).unwrap_err();
            let told = format!("the ring's descriptor is {says}; an eventfd, a pipe or a socket is allowed");
            assert_eq!(error.to_string(), told);
        }
    }
}
