//! What is asked of a pod's network namespace, from without.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::thread;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::getsockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tracing::debug;

use crate::ports::{Namespace, bpf};
use crate::socket_options::NetnsCookie;

/// Instructions (RFC 9669): r0 = 0, exit. Of a segment nothing is taken.
const SILENCE: [u64; 2] =
    [u64::from_ne_bytes([0xb7, 0, 0, 0, 0, 0, 0, 0]), u64::from_ne_bytes([0x95, 0, 0, 0, 0, 0, 0, 0])];

/// The namespace by what was made in it.
pub(super) struct Inside {
    /// Which it is.
    cookie: u64,
    /// Speaks with its connection tracking; none where the kernel has none.
    /// One request at a time: the answer is to the last.
    pub(super) netfilter: Option<Mutex<Socket>>,
    /// A filter that takes no segment, for all sockets alike: the kernel makes one of its own otherwise for each of
    /// them, which takes longer than everything else. None where it may not be loaded.
    pub(super) silence: Option<OwnedFd>,
    /// Addresses that connections can go on with elsewhere; any, when it is not known.
    to: Option<Vec<IpAddr>>,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

impl Inside {
    /// Looks into the namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN in the namespace's and the own user namespace; before Linux 5.14.
    pub(super) fn of(namespace: &Namespace) -> io::Result<Inside> {
        // A thread of its own enters the namespace and ends; sockets belong to the namespace for ever.
        let enter = || {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Inside::here()
        };
        thread::scope(|s| s.spawn(enter).join())
            .map_err(|_| io::Error::other("the thread ended by a panic"))?
    }

    /// The calling thread's namespace.
    pub(super) fn here() -> io::Result<Inside> {
        let flags = SocketFlags::CLOEXEC;
        let probe = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        let cookie = getsockopt(&probe, NetnsCookie)?;
        let netfilter = Socket::new(NETLINK_NETFILTER).and_then(|socket| {
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        });
        let silence =
            bpf::load_filter(&SILENCE).inspect_err(|error| debug!(%error, "no filter for all sockets"));
        Ok(Inside { cookie, netfilter: netfilter.ok().map(Mutex::new), silence: silence.ok(), to: None })
    }

    /// The same, whose connections go to where these addresses are.
    pub(super) fn going_to(self, to: Option<Vec<IpAddr>>) -> Inside {
        Inside { to, ..self }
    }

    /// Whether a connection from this address can go on elsewhere.
    pub(super) fn can_go(&self, from: IpAddr) -> bool {
        self.to.as_ref().is_none_or(|to| to.contains(&from.to_canonical()))
    }

    /// Whether it matters where connections come from.
    pub(super) fn is_choosy(&self) -> bool {
        self.to.is_some()
    }

    /// Whether a socket belongs to it.
    ///
    /// # Errors
    /// It is no socket.
    pub(super) fn has(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(getsockopt(&socket, NetnsCookie)? == self.cookie)
    }
}
