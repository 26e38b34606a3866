//! The node's helper, as a thread with this process' privileges: what virt-handler does for a pod whose machine moves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use frontend_double::Silence;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use podvirt_proto::repair::{
    Command, LONG, LONG_LEFT, LONG_ROOM, ROOM, Request, SHORT, recv_request, send_reply,
};
use socket2::{Domain, SockAddr, SockFilter, SockRef, Socket, Type};

use crate::bed::eventually;

/// What a helper does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It dies instead of carrying out this.
    Dies(Command),
    /// It refuses this.
    Refuses(Command),
    /// It dies when it has carried this out for a connection, before it says so.
    Vanishes(Command),
}

/// A helper that serves one netd.
pub(crate) struct Helper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// What it was asked, and for how many sockets.
    asked: Arc<Mutex<Vec<(Command, usize)>>>,
}

impl Helper {
    /// Serves the netd whose vhost-user socket is at `vhost_user`; `arrive` is done when it says first that its guest is
    /// about to run.
    pub(crate) fn serve(vhost_user: &Path, fault: Fault, arrive: impl FnOnce() + Send + 'static) -> Helper {
        let mut path = vhost_user.as_os_str().to_owned();
        path.push(podvirt_proto::repair::SUFFIX);
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let at = SockAddr::unix(Path::new(&path)).unwrap();
        eventually("netd's repair socket", || socket.connect(&at).ok());
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let thread = std::thread::spawn({
            let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
            move || serve(&socket, fault, arrive, &stop, &asked)
        });
        Helper { stop, thread: Some(thread), asked }
    }

    /// How many sockets there were in all requests of this kind.
    pub(crate) fn asked(&self, command: Command) -> usize {
        self.asked.lock().unwrap().iter().filter(|(c, _)| *c == command).map(|(_, n)| n).sum()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(
    socket: &Socket,
    fault: Fault,
    arrive: impl FnOnce(),
    stop: &AtomicBool,
    asked: &Mutex<Vec<(Command, usize)>>,
) {
    let mut arrive = Some(arrive);
    // Without it each socket gets a filter of its own.
    let silence = Silence::load().ok();
    while !stop.load(SeqCst) {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(20u16)).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(Some(Request { command, sockets })) = recv_request(socket.as_fd()) else { return };
        if fault == Fault::Dies(command) && !sockets.is_empty() {
            return;
        }
        asked.lock().unwrap().push((command, sockets.len()));
        if command == Command::Release
            && let Some(arrive) = arrive.take()
        {
            arrive();
        }
        let done = |(s, flags): &(OwnedFd, u8)| {
            if fault == Fault::Refuses(command) {
                return libc::EPERM;
            }
            let done = act(command, s, *flags, silence.as_ref());
            done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0)
        };
        // As virt-handler does: two threads share them.
        let (mine, others) = sockets.split_at(sockets.len().div_ceil(2));
        let results = std::thread::scope(|scope| {
            let others = (others.len() > 8).then(|| scope.spawn(|| others.iter().map(done).collect()));
            let mut results: Vec<i32> = mine.iter().map(done).collect();
            results.extend(match others {
                Some(thread) => thread.join().unwrap(),
                None => sockets[mine.len()..].iter().map(done).collect::<Vec<i32>>(),
            });
            results
        });
        let of_connections = sockets.iter().any(|(s, _)| !SockRef::from(s).is_listener().unwrap_or(true));
        if fault == Fault::Vanishes(command) && of_connections {
            return;
        }
        if send_reply(socket.as_fd(), command, &results).is_err() {
            return;
        }
    }
}

fn act(command: Command, socket: &OwnedFd, flags: u8, silence: Option<&Silence>) -> io::Result<()> {
    let s = SockRef::from(socket);
    let listens = s.is_listener()?;
    match command {
        // The flags of a segment: what has SYN is dropped.
        Command::Freeze if listens => s.attach_filter(&[
            SockFilter::new(0x30, 0, 0, 13),
            SockFilter::new(0x45, 0, 1, 2),
            SockFilter::new(6, 0, 0, 0),
            SockFilter::new(6, 0, 0, u32::MAX),
        ]),
        Command::Freeze => {
            deafen(socket, silence)?;
            Ok(setsockopt(socket, sockopt::TcpRepair, &1)?)
        }
        Command::Repair => {
            deafen(socket, silence)?;
            setsockopt(socket, sockopt::TcpRepair, &1)?;
            if flags & SHORT != 0 {
                return Ok(());
            }
            let room = if flags & LONG != 0 { LONG_ROOM } else { ROOM };
            setsockopt(socket, sockopt::SndBufForce, &room)?;
            Ok(setsockopt(socket, sockopt::RcvBufForce, &room)?)
        }
        Command::Release => {
            if flags & LONG != 0 {
                setsockopt(socket, sockopt::RcvBufForce, &LONG_LEFT)?;
            }
            hear(&s)?;
            Ok(setsockopt(socket, sockopt::TcpRepair, &0)?)
        }
        Command::Thaw => {
            if !listens {
                setsockopt(socket, sockopt::TcpRepair, &u32::MAX)?;
            }
            hear(&s)
        }
        Command::Ping => Ok(()),
    }
}

fn deafen(socket: &OwnedFd, silence: Option<&Silence>) -> io::Result<()> {
    match silence {
        Some(silence) => silence.attach(socket),
        None => SockRef::from(socket).attach_filter(&[SockFilter::new(6, 0, 0, 0)]),
    }
}

fn hear(s: &SockRef<'_>) -> io::Result<()> {
    match s.detach_filter() {
        Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(()),
        other => other,
    }
}
