//! An update while netd runs: the control interface asks for an [`Offer`], the new netd comes and takes it.
//!
//! An offer is a listening socket with a name that the kernel chooses, in the abstract name space: no file is made, and
//! only a process in the same network namespace can reach it, where a netd that shall go on here must be as well. An
//! offer is good for one netd and for a while. Asking for another offer withdraws it, once a handover under way has
//! failed: the caller that gets the next offer knows that nothing was given by the offer before.

use std::collections::VecDeque;
use std::io;
use std::iter::once;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockname, listen, socket,
};
use podvirt_proto::hold::{Message, Wire};
use tracing::{info, warn};

use super::give::{GiveError, Given, Giver};
use crate::stop::{Stopper, Waited};

/// How long a successor may take to begin: its start, at most.
const OFFERED: Duration = Duration::from_secs(120);
/// How long one that has begun to ask may take for it.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Connections that may wait until they ask: a successor does everything before that can be done before. With one more
/// the oldest is closed.
const SILENT: usize = 4;

/// What another netd needs to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Where it is to come, as `--takeover` has it.
    pub name: String,
    /// The arguments of this netd.
    pub arguments: Vec<Vec<u8>>,
    /// The directory in which they were given.
    pub directory: PathBuf,
}

/// Makes offers.
pub struct Offers {
    giver: Arc<Giver>,
    arguments: Vec<Vec<u8>>,
    directory: PathBuf,
    /// What is done once everything was handed over: it ends the process.
    given: Box<dyn Fn(Given) + Send + Sync>,
    last: Mutex<Last>,
}

/// The last offer.
#[derive(Default)]
struct Last {
    running: Option<(Stopper, JoinHandle<()>)>,
    /// There shall be no other.
    closed: bool,
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offers").field("giver", &self.giver).finish_non_exhaustive()
    }
}

impl Offers {
    /// Offers of what `giver` has; `given` is called when a successor has taken it, on the thread that gave it: nothing of
    /// this process may be tidied up any more, so it ends the process.
    ///
    /// # Errors
    /// There is no working directory.
    pub fn new(giver: Arc<Giver>, given: impl Fn(Given) + Send + Sync + 'static) -> io::Result<Offers> {
        let mut arguments = Vec::new();
        let mut all = std::env::args_os().skip(1);
        while let Some(argument) = all.next() {
            // Where this netd itself took over from is of no use to the next.
            match argument.as_bytes() {
                b"--takeover" => drop(all.next()),
                a if a.starts_with(b"--takeover=") => {}
                a => arguments.push(a.to_vec()),
            }
        }
        let directory = std::env::current_dir()?;
        Ok(Offers { giver, arguments, directory, given: Box::new(given), last: Mutex::default() })
    }

    /// How many netds had the state before this netd.
    pub fn generation(&self) -> u32 {
        self.giver.generation
    }

    /// Offers everything to the next netd that comes, once the offer before is withdrawn.
    ///
    /// # Errors
    /// As socket(2), or there is no thread.
    pub fn open(self: &Arc<Self>) -> io::Result<Offer> {
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed())?;
        listen(&listener, Backlog::new(1)?)?;
        let address: UnixAddr = getsockname(listener.as_raw_fd())?;
        let name = address.as_abstract().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let name = format!("@{}", String::from_utf8_lossy(name));
        let stop = Stopper::new()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.withdraw();
        if last.closed {
            return Err(io::Error::other("netd is ending"));
        }
        let (offers, stopped) = (Arc::clone(self), stop.clone());
        let thread = std::thread::Builder::new()
            .name("netd-handover".into())
            .spawn(move || offers.serve(&listener, &stopped))?;
        last.running = Some((stop, thread));
        info!(name, "everything is offered to another netd");
        Ok(Offer { name, arguments: self.arguments.clone(), directory: self.directory.clone() })
    }

    /// Withdraws the offer, if there is one, and makes no other. A handover under way is waited for: if this returns,
    /// nothing was given and nothing will be.
    pub fn close(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.closed = true;
        last.withdraw();
    }

    fn serve(&self, listener: &OwnedFd, stop: &Stopper) {
        let mut silent: VecDeque<Wire> = VecDeque::new();
        let until = Instant::now() + OFFERED;
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let fds: Vec<_> = once(listener.as_fd()).chain(silent.iter().map(AsFd::as_fd)).collect();
            let ready = match stop.wait(&fds, timeout) {
                Ok(Waited::Ready(ready)) if ready.contains(&true) => ready,
                Ok(_) => return,
                Err(error) => return warn!(%error, "the offer cannot be waited for"),
            };
            let asking = ready.iter().skip(1).position(|ready| *ready).and_then(|i| silent.remove(i));
            let given = match asking {
                Some(wire) => self.answer(wire).map_err(|e| e.to_string()),
                // It is said nothing to before it asks, so that a client that never asks keeps no other waiting.
                None => match Wire::accept(listener.as_fd(), TIMEOUT) {
                    Ok(wire) => {
                        if silent.len() == SILENT {
                            silent.pop_front();
                        }
                        silent.push_back(wire);
                        continue;
                    }
                    Err(error) => Err(error.to_string()),
                },
            };
            match given {
                Ok(given) => return (self.given)(given),
                Err(error) => warn!(%error, "another netd did not take over; this netd goes on"),
            }
        }
    }

    /// Gives everything to one that has said something.
    fn answer(&self, mut wire: Wire) -> Result<Given, GiveError> {
        wire.set_timeout(TIMEOUT);
        wire.expect(&Message::Collect)?;
        self.giver.give(wire)
    }
}

impl Last {
    fn withdraw(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        stop.stop();
        if thread.join().is_err() {
            warn!("the thread of an offer has ended by a panic");
        }
    }
}
