//! Every port of a pod for two sockets: the privileged side.
//!
//! # Theory of operation
//!
//! netd forwards every port of its pod to the guest when a manifest lists none. A listener for each would cost
//! hundreds of megabytes of kernel memory; instead a program at the kernel's socket lookup leads all of them to
//! two sockets. The program is loaded and attached here, with netd's sockets, which it lends over a UNIX socket
//! ([`podvirt_proto::steering`] has the protocol); the link and the maps go back to netd, so nothing depends on
//! this process living.
//!
//! The program runs before the lookup of listeners, so a port on which another container of the pod listens must
//! be closed for it. [`Steering`] asks the pod's network namespace for its listeners every two seconds and keeps
//! the closed ports in the map: a listener that comes later has its port within that time. UDP sockets that are
//! not connected are treated alike. A UDP port must be seen twice: netd binds a flow's socket before it connects
//! it, and one that is caught between would close its port for nothing. The look before the ports are steered is the
//! first of the two: a port that is closed then stays closed.
//!
//! A [`Steering`] is a thread, for as long as netd lives: it reconnects when netd starts anew. When this process
//! starts anew, netd hands over what it holds, and the keeping goes on with the same maps. Nothing is attached to
//! a network namespace that is the node's own.

pub(crate) mod bpf;
mod cli;
mod closed;
mod diag;
mod lease;
mod program;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::fstat;
use podvirt_api::error::chain;
use tracing::{Span, info, warn};

pub use cli::{Command, run};
use lease::Lease;

use crate::process::Process;

/// Pause between two looks at what listens, and between two attempts to reach netd.
const PERIOD: Duration = Duration::from_secs(2);

/// What stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the pod's ports are steered.
    pub attached: bool,
    /// TCP ports that are not, because they are reserved or a process listens there.
    pub closed_tcp: u32,
    /// UDP ports that are not.
    pub closed_udp: u32,
    /// What went wrong last, if it still stands.
    pub error: Option<String>,
}

/// Why the ports of a pod are not steered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket of netd.
    #[error("netd's steering socket {path} cannot be reached")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What netd says.
    #[error(transparent)]
    Protocol(#[from] podvirt_proto::steering::Error),
    /// What netd offers cannot be taken.
    #[error("netd's offer is refused: {0}")]
    Offer(String),
    /// The namespace is not one of a pod.
    #[error("{0} is the node's own network namespace; the ports of a node are not steered")]
    NodeNamespace(PathBuf),
    /// The kernel.
    #[error("{what}")]
    Kernel {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    fn namespace(source: io::Error) -> Self {
        Error::Kernel { what: "the network namespace", source }
    }
}

/// A network namespace whose ports may be steered.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// The namespace of a process.
    ///
    /// # Errors
    /// As [`Namespace::open`]; when the process has ended.
    pub fn of(process: &Process) -> Result<Namespace, Error> {
        let netns = process.open("ns/net").map_err(Error::namespace)?;
        Namespace::checked(netns, &Path::new("/proc").join(process.pid().to_string()).join("ns/net"))
    }

    /// The namespace that `path` stands for, as `/run/netns/NAME` or `/proc/PID/ns/net` do.
    ///
    /// # Errors
    /// When there is no such file; when it is the namespace of this process or of the node's first.
    pub fn open(path: &Path) -> Result<Namespace, Error> {
        Namespace::checked(File::open(path).map_err(Error::namespace)?, path)
    }

    fn checked(netns: File, path: &Path) -> Result<Namespace, Error> {
        let id = |f: &File| fstat(f).map(|s| (s.st_dev, s.st_ino)).map_err(io::Error::from);
        let wanted = id(&netns).map_err(Error::namespace)?;
        for other in ["/proc/self/ns/net", "/proc/1/ns/net"] {
            // Without a view of the node's processes only the own namespace can be told.
            if File::open(other).and_then(|f| id(&f)).is_ok_and(|own| own == wanted) {
                return Err(Error::NodeNamespace(path.to_owned()));
            }
        }
        Ok(Namespace(netns.into()))
    }

    /// Its file, for a thread that enters it.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.0.try_clone().map(File::from)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Steers the ports of one pod until it is dropped; netd then goes on with what it has. Dropping it waits for
/// nothing, [`Steering::end`] waits until the thread has let go of netd.
#[derive(Debug)]
pub struct Steering {
    stop: Arc<EventFd>,
    report: Arc<Mutex<Report>>,
    thread: Option<JoinHandle<()>>,
}

impl Steering {
    /// Starts for the netd that listens at `socket`, in the pod of `namespace`.
    ///
    /// # Errors
    /// When there are no more descriptors or threads.
    pub fn start(namespace: Namespace, socket: PathBuf) -> io::Result<Steering> {
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let report = Arc::new(Mutex::new(Report::default()));
        let keeper = Keeper { namespace, socket, stop: stop.clone(), report: report.clone() };
        let span = Span::current();
        let thread = std::thread::Builder::new()
            .name("ports".into())
            .stack_size(128 << 10)
            .spawn(move || span.in_scope(|| keeper.run()))?;
        Ok(Steering { stop, report, thread: Some(thread) })
    }

    /// What stands now.
    pub fn report(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it and waits for its thread, which may be waiting for netd for some seconds.
    pub fn end(mut self) {
        self.signal();
        if let Some(thread) = self.thread.take() {
            // A panic was told by the runtime.
            let _ = thread.join();
        }
    }

    fn signal(&self) {
        // It can only fail when it is raised already.
        let _ = self.stop.write(1);
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // The thread is not waited for: a pod can hold it up, and this may be the one thread of a runtime.
        self.signal();
    }
}

/// The thread.
struct Keeper {
    namespace: Namespace,
    socket: PathBuf,
    stop: Arc<EventFd>,
    report: Arc<Mutex<Report>>,
}

impl Keeper {
    fn run(self) {
        loop {
            let result = self.keep();
            match &result {
                Ok(Ended::Stopped) => return,
                Ok(Ended::Gone) => info!("netd has gone; its ports are no longer steered"),
                Err(error) => self.failed(error),
            }
            if self.wait(None) != Woken::Late {
                return;
            }
        }
    }

    /// One netd's life.
    fn keep(&self) -> Result<Ended, Error> {
        let mut lease = Lease::take(&self.namespace.0, &self.socket)?;
        info!(resumed = lease.resumed(), "every port of the pod is steered to netd");
        loop {
            let (closed_tcp, closed_udp) = lease.closed();
            self.tell(Report { attached: true, closed_tcp, closed_udp, error: None });
            match self.wait(Some(&lease)) {
                // Not before: netd may be about to close listeners that it had until now.
                Woken::Late => lease.refresh()?,
                Woken::Stop => return Ok(Ended::Stopped),
                Woken::Peer => return Ok(Ended::Gone),
            }
        }
    }

    /// Waits for one period, for the end or for the peer to close.
    fn wait(&self, lease: Option<&Lease>) -> Woken {
        let mut fds = vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        fds.extend(lease.map(|l| PollFd::new(l.connection(), PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(PERIOD).unwrap_or(PollTimeout::NONE);
        loop {
            match poll(&mut fds, timeout) {
                Err(nix::errno::Errno::EINTR) => {}
                Ok(0) => return Woken::Late,
                Ok(_) if fds[0].any() == Some(false) => return Woken::Peer,
                Ok(_) | Err(_) => return Woken::Stop,
            }
        }
    }

    fn failed(&self, error: &Error) {
        let text = chain(error);
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        // Once, not every two seconds.
        if report.error.as_deref() != Some(&text) {
            warn!(error = text, "the pod's ports are not steered");
        }
        *report = Report { error: Some(text), ..Report::default() };
    }

    fn tell(&self, new: Report) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

enum Ended {
    Stopped,
    Gone,
}

#[derive(PartialEq, Eq)]
enum Woken {
    Late,
    Stop,
    Peer,
}
