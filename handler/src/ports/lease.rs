//! One netd's sockets, steered to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::sys::socket::getsockopt;
use nix::sys::stat::{Mode, SFlag, fstat};
use podvirt_proto::steering::{Answer, Held, Lent, Offer, Ranges, recv, send};
use socket2::{Domain, SockAddr, Socket, Type};

use super::closed::{ALL_WORDS, Bits};
use super::diag::Diag;
use super::program::{TCP_SOCKET, UDP_SOCKET, program};
use super::{Error, bpf};
use crate::socket_options::BindToIfindex;

/// How long netd may take to accept a connection, to make its offer and to take an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Ranges of ports that netd may have closed, of a protocol.
const CLOSED_RANGES: usize = 256;
/// Ranges of ports that netd may have listeners for, of a protocol.
const OWN_RANGES: usize = 8192;
/// Entries of the map of sockets.
const SOCKETS: u32 = 2;

/// What was lent, and what keeps it current.
pub(super) struct Lease {
    connection: Socket,
    held: Held,
    resumed: bool,
    closed: Ranges,
    diag: Diag,
    /// What the map says.
    bits: Bits,
    /// UDP ports seen the last time, sorted.
    seen: Vec<u16>,
}

impl Lease {
    /// Takes netd's sockets and steers the namespace's ports to them; what netd holds already is taken over.
    pub(super) fn take(netns: &OwnedFd, path: &Path) -> Result<Lease, Error> {
        let kernel = |what| move |source| Error::Kernel { what, source };
        let (connection, offer, lent) = ask(path)?;
        // A netd that has one interface of the pod has its sockets bound to it.
        let bound = lent.tcp.as_ref().or(lent.udp.as_ref()).map(|socket| getsockopt(socket, BindToIfindex));
        let bound = bound.transpose().map_err(|errno| kernel("SO_BINDTOIFINDEX")(errno.into()))?;
        let interface = bound.filter(|index| *index != 0);
        let diag =
            Diag::open(netns, interface).map_err(kernel("sock_diag in the pod's network namespace"))?;
        let resumed = lent.held.is_some();
        let (held, bits, seen) = match lent.held {
            Some(held) => {
                check(&held)?;
                let read = |i| bpf::get(held.closed.as_fd(), i);
                let words = (0..ALL_WORDS).map(read).collect::<Result<Vec<u64>, _>>();
                let bits = Bits::from_words(words.map_err(kernel("the map of closed ports"))?.into_iter());
                (held, bits, diag.listening().map_err(kernel("sock_diag"))?.udp)
            }
            None => attach(netns, &lent, &offer, &diag, interface).inspect_err(|error| {
                let answer = Answer { attached: false, error: Some(podvirt_api::error::chain(error)) };
                // netd learns by the end of the connection otherwise.
                let _ = send(connection.as_fd(), &answer, &[]);
            })?,
        };
        let fds = if resumed { Vec::new() } else { held.as_fds().to_vec() };
        send(connection.as_fd(), &Answer { attached: true, error: None }, &fds)?;
        Ok(Lease { connection, held, resumed, closed: offer.closed, diag, bits, seen })
    }

    /// Whether netd was steered to before.
    pub(super) fn resumed(&self) -> bool {
        self.resumed
    }

    /// Readable when netd has gone.
    pub(super) fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// How many ports are closed: TCP, UDP.
    pub(super) fn closed(&self) -> (u32, u32) {
        self.bits.count()
    }

    /// Brings the closed ports up to date.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        let kernel = |what| move |source| Error::Kernel { what, source };
        let now = self.diag.listening().map_err(kernel("sock_diag"))?.that_stay(&mut self.seen);
        let bits = Bits::of(&self.closed, &now);
        for (index, word) in bits.changes(&self.bits) {
            bpf::set(self.held.closed.as_fd(), index, word).map_err(kernel("the map of closed ports"))?;
        }
        self.bits = bits;
        Ok(())
    }
}

/// Connects to netd and takes its offer.
fn ask(path: &Path) -> Result<(Socket, Offer, Lent), Error> {
    let failed = |source| Error::Connect { path: path.to_owned(), source };
    let socket = connect(path, ANSWER).map_err(failed)?;
    let (offer, fds) =
        recv::<Offer>(socket.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof).map_err(|e| failed(e.into()))?;
    let lent = offer.roles(fds)?;
    bounded(&offer)?;
    Ok((socket, offer, lent))
}

/// Refuses an offer that would keep this process busy.
fn bounded(offer: &Offer) -> Result<(), Error> {
    for (what, ranges, most) in [("closed", &offer.closed, CLOSED_RANGES), ("own", &offer.own, OWN_RANGES)] {
        let have = ranges.tcp.len().max(ranges.udp.len());
        if have > most {
            return Err(Error::Offer(format!(
                "{have} ranges of ports in '{what}'; at most {most} are allowed"
            )));
        }
    }
    Ok(())
}

/// Whether what netd says it holds are maps as [`attach`] makes them. They come from the pod, and bpf(2) writes as
/// many bytes to a value as the map has.
fn check(held: &Held) -> Result<(), Error> {
    for (what, fd, form) in [
        ("the map of closed ports", held.closed.as_fd(), bpf::WORD_MAP.entries(ALL_WORDS)),
        ("the map of sockets", held.sockets.as_fd(), bpf::SOCKET_MAP.entries(SOCKETS)),
    ] {
        if !form.is(fd).map_err(|source| Error::Kernel { what, source })? {
            return Err(Error::Offer(format!("a descriptor that is not {what}")));
        }
    }
    Ok(())
}

/// Says that the ports are no longer steered; netd lets go of what it holds.
pub(super) fn release(path: &Path) -> Result<bool, Error> {
    let (socket, offer, _lent) = ask(path)?;
    send(socket.as_fd(), &Answer { attached: false, error: Some("detached by request".into()) }, &[])?;
    Ok(offer.held)
}

/// Connects to the UNIX socket at `path`: itself, not what a symbolic link in its place leads to, since the pod can
/// write into the directory. The way by the descriptor also takes paths that are too long for an address.
///
/// Nothing on the socket takes longer than `limit`: a pod could let its backlog fill, and never answer.
fn connect(path: &Path, limit: Duration) -> io::Result<Socket> {
    let file = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    if fstat(&file)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFSOCK.bits() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket"));
    }
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.cloexec(), None)?;
    // connect(2) of a UNIX socket waits for a place in the backlog as long as a write may take.
    socket.set_write_timeout(Some(limit))?;
    socket.set_read_timeout(Some(limit))?;
    socket.connect(&SockAddr::unix(format!("/proc/self/fd/{}", file.as_raw_fd()))?)?;
    Ok(socket)
}

fn attach(
    netns: &OwnedFd,
    lent: &Lent,
    offer: &Offer,
    diag: &Diag,
    interface: Option<i32>,
) -> Result<(Held, Bits, Vec<u16>), Error> {
    let kernel = |what| move |source| Error::Kernel { what, source };
    let sockets = bpf::socket_map(SOCKETS).map_err(kernel("a BPF map of sockets"))?;
    let words = bpf::word_map(ALL_WORDS).map_err(kernel("a BPF map"))?;
    // Before anything is steered, what listens has its ports.
    let listening = diag.listening().map_err(kernel("sock_diag"))?.without(&offer.own);
    let bits = Bits::of(&offer.closed, &listening);
    for (index, word) in bits.changes(&Bits::new()) {
        bpf::set(words.as_fd(), index, word).map_err(kernel("the map of closed ports"))?;
    }
    for (key, socket) in [(TCP_SOCKET, &lent.tcp), (UDP_SOCKET, &lent.udp)] {
        if let Some(socket) = socket {
            bpf::set_socket(sockets.as_fd(), key, socket.as_fd()).map_err(kernel("the map of sockets"))?;
        }
    }
    let code = program(sockets.as_fd(), words.as_fd(), interface);
    let program = bpf::load(&code).map_err(kernel("the BPF program"))?;
    let link = bpf::attach(program.as_fd(), netns.as_fd()).map_err(kernel("the BPF link"))?;
    Ok((Held { link, sockets, closed: words }, bits, listening.udp))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_socket_itself_is_dialled() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link, file) = (dir.path().join("s"), dir.path().join("l"), dir.path().join("f"));
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        listener.bind(&SockAddr::unix(&socket).unwrap()).unwrap();
        listener.listen(1).unwrap();
        symlink(&socket, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        connect(&socket, ANSWER).unwrap();
        assert_eq!(connect(&link, ANSWER).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(connect(&file, ANSWER).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn an_offer_of_too_many_ranges_is_refused() {
        let offer = |closed, own| Offer {
            closed: Ranges { tcp: vec![(1, 2); closed], udp: vec![] },
            own: Ranges { tcp: vec![], udp: vec![(1, 2); own] },
            ..Offer::default()
        };
        bounded(&offer(CLOSED_RANGES, OWN_RANGES)).unwrap();
        assert!(bounded(&offer(CLOSED_RANGES + 1, 0)).unwrap_err().to_string().contains("257"));
        assert!(bounded(&offer(0, OWN_RANGES + 1)).unwrap_err().to_string().contains("'own'"));
    }

    #[test]
    fn descriptors_that_are_no_maps_are_refused() {
        let file = || OwnedFd::from(tempfile::tempfile().unwrap());
        let error = check(&Held { link: file(), sockets: file(), closed: file() }).unwrap_err();
        assert!(error.to_string().contains("not the map of closed ports"), "{error}");
    }

    #[test]
    fn a_listener_that_never_accepts_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path, Duration::from_millis(20)) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
