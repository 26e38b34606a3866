//! An update while netd runs: the control interface asks for an [`Offer`], the new netd comes and takes it.
//!
//! An offer is a listening socket with a name that the kernel chooses, in the abstract name space: no file is made, and
//! only who is in the same network namespace can reach it, as a netd that shall go on here must be. It is good for one
//! netd and for a while; asking for another one withdraws it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockname, listen, socket,
};
use podvirt_proto::hold::{Message, Wire};
use tracing::{info, warn};

use super::give::{Given, Giver};
use crate::vhost::{Stopper, Waited};

/// How long a successor may take to begin: its start, at most.
const OFFERED: Duration = Duration::from_secs(120);
/// How long one that has connected may take until it asks: it does everything before that can be done before.
const PATIENCE: Duration = Duration::from_secs(60);

/// What another netd needs to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Where it is to come, as `--takeover` has it.
    pub name: String,
    /// The arguments of this one.
    pub arguments: Vec<Vec<u8>>,
    /// The directory in which they were given.
    pub directory: PathBuf,
}

/// Makes offers.
pub struct Offers {
    giver: Arc<Giver>,
    arguments: Vec<Vec<u8>>,
    directory: PathBuf,
    /// What is done once everything was handed over.
    given: Box<dyn Fn(Given) + Send + Sync>,
    last: Mutex<Option<Stopper>>,
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offers").field("giver", &self.giver).finish_non_exhaustive()
    }
}

impl Offers {
    /// Offers of what `giver` has; `given` is called when somebody has taken it.
    ///
    /// # Errors
    /// There is no working directory.
    pub fn new(giver: Arc<Giver>, given: impl Fn(Given) + Send + Sync + 'static) -> io::Result<Offers> {
        let mut arguments = Vec::new();
        let mut all = std::env::args_os().skip(1);
        while let Some(argument) = all.next() {
            // Where this one came from itself is of no use to the next.
            match argument.as_bytes() {
                b"--takeover" => drop(all.next()),
                a if a.starts_with(b"--takeover=") => {}
                a => arguments.push(a.to_vec()),
            }
        }
        let directory = std::env::current_dir()?;
        Ok(Offers { giver, arguments, directory, given: Box::new(given), last: Mutex::default() })
    }

    /// How many netds had the state before this one.
    pub fn generation(&self) -> u32 {
        self.giver.generation
    }

    /// Offers everything to the next netd that comes.
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
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(stop.clone());
        if let Some(before) = before {
            before.stop();
        }
        let offers = Arc::clone(self);
        std::thread::Builder::new()
            .name("netd-handover".into())
            .spawn(move || offers.serve(&listener, &stop))?;
        info!(name, "everything is offered to another netd");
        Ok(Offer { name, arguments: self.arguments.clone(), directory: self.directory.clone() })
    }

    fn serve(&self, listener: &OwnedFd, stop: &Stopper) {
        let until = Instant::now() + OFFERED;
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            match stop.wait(&[listener.as_fd()], timeout) {
                Ok(Waited::Ready(ready)) if ready.contains(&true) => {}
                Ok(_) => return,
                Err(error) => return warn!(%error, "the offer cannot be waited for"),
            }
            let asked = Wire::accept(listener.as_fd(), PATIENCE).and_then(|wire| {
                wire.expect(&Message::Collect)?;
                Ok(wire)
            });
            let given = match asked {
                Ok(wire) => self.giver.give(wire).map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match given {
                Ok(given) => return (self.given)(given),
                Err(error) => warn!(%error, "another netd did not take over; this one goes on"),
            }
        }
    }
}
