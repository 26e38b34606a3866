//! Messages on the socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use crate::descriptors::receive;

/// The version of these messages.
const VERSION: u8 = 1;
/// Bytes of a message before its payload: kind, version, two that are zero.
const HEADER: usize = 4;
/// Payload of one message, well below a socket's buffer.
const CHUNK: usize = 64 << 10;
/// Bytes of the largest message.
pub(super) const LARGEST: usize = HEADER + CHUNK;
/// Descriptors of one message: SCM_MAX_FD of the kernel.
const FDS: usize = 253;
/// Between two attempts to send descriptors while too many are on their way.
const AGAIN: Duration = Duration::from_millis(1);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4;

/// What went wrong on the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer is another user's.
    #[error("the peer's user is {peer}; {own} is allowed")]
    User {
        /// The peer's.
        peer: u32,
        /// The one of this process.
        own: u32,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {0}; {VERSION} is allowed")]
    Version(u8),
    /// The peer does not follow the protocol.
    #[error("the peer's message is not understood: {0}")]
    Message(String),
    /// The peer says why it does not go on.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// The parcel is too large, or not whole.
    #[error("the parcel has {what}: {have}; {allowed} are allowed")]
    Parcel {
        /// Bytes or descriptors.
        what: &'static str,
        /// How many it has.
        have: u64,
        /// How many it may have, or was said to have.
        allowed: u64,
    },
    /// The peer has closed the connection.
    #[error("the peer has closed the connection")]
    Closed,
    /// It took too long.
    #[error("the peer took too long")]
    Late,
}

/// One message.
#[derive(Debug)]
pub enum Message {
    /// A parcel follows, to be kept.
    Deposit,
    /// A parcel is asked for.
    Collect,
    /// A part of the bytes.
    Bytes(Vec<u8>),
    /// Some of the descriptors.
    Fds(Vec<OwnedFd>),
    /// The parcel is whole: so many bytes and descriptors.
    End {
        /// Bytes.
        bytes: u64,
        /// Descriptors.
        fds: u64,
    },
    /// The parcel is unpacked, and its receiver can go on.
    Ready,
    /// Its receiver is to go on.
    Go,
    /// The parcel is kept.
    Kept,
    /// There is no parcel.
    Empty,
    /// Why it does not go on.
    Refused(String),
}

impl Message {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Message::Deposit => 1,
            Message::Collect => 2,
            Message::Bytes(_) => 3,
            Message::Fds(_) => 4,
            Message::End { .. } => 5,
            Message::Ready => 6,
            Message::Go => 7,
            Message::Kept => 8,
            Message::Empty => 9,
            Message::Refused(_) => 10,
        }
    }

    fn parse(kind: u8, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Message, Error> {
        if !fds.is_empty() && kind != 4 {
            return Err(Error::Message(format!("descriptors with a message of kind {kind}")));
        }
        let number =
            |at: usize| payload.get(at..).and_then(|p| p.first_chunk::<8>()).map(|b| u64::from_le_bytes(*b));
        Ok(match kind {
            1 => Message::Deposit,
            2 => Message::Collect,
            3 => Message::Bytes(payload.to_vec()),
            4 => Message::Fds(fds),
            5 => match (number(0), number(8)) {
                (Some(bytes), Some(fds)) => Message::End { bytes, fds },
                _ => return Err(Error::Message("an end of less than 16 bytes".into())),
            },
            6 => Message::Ready,
            7 => Message::Go,
            8 => Message::Kept,
            9 => Message::Empty,
            10 => Message::Refused(String::from_utf8_lossy(payload).into_owned()),
            _ => return Err(Error::Message(format!("kind {kind}; 1 to 10 are allowed"))),
        })
    }
}

/// A connection. No call on it takes longer than its timeout.
#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    deadline: Instant,
}

/// Listens at `path` in place of a socket on which no process listens any more, for this user alone.
///
/// # Errors
/// As socket(2), bind(2) and listen(2); `AddrInUse` when a process listens there.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let address = SocketAddrUnix::new(path)?;
    let new = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    };
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        let stale =
            meta.file_type().is_socket() && connect(new()?, &address) == Err(rustix::io::Errno::CONNREFUSED);
        if !stale {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let socket = new()?;
    bind(&socket, &address)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl AsFd for Wire {
    /// Readable when the peer has said something, or has closed the connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire {
    /// Connects to the listener at `path`; a path that begins with `@` is a name of the abstract name space.
    ///
    /// # Errors
    /// As connect(2), or the peer is another user's.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Wire, Error> {
        use std::os::unix::ffi::OsStrExt;
        let address = match path.as_os_str().as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
            _ => SocketAddrUnix::new(path),
        }
        .map_err(io::Error::from)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
        connect(&socket, &address).map_err(io::Error::from)?;
        Wire::new(socket, timeout)
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As accept(2), or the peer is another user's.
    pub fn accept(listener: BorrowedFd<'_>, timeout: Duration) -> Result<Wire, Error> {
        let socket = accept_with(listener, SocketFlags::CLOEXEC).map_err(io::Error::from)?;
        Wire::new(socket, timeout)
    }

    /// Takes a connected socket.
    ///
    /// # Errors
    /// The peer is another user's, or the socket is of another kind.
    pub fn new(socket: OwnedFd, timeout: Duration) -> Result<Wire, Error> {
        let own = geteuid().as_raw();
        // nix's, since rustix takes a peer of another pid namespace, whose number is zero here, for none.
        let peer = getsockopt(&socket, PeerCredentials).map_err(io::Error::from)?.uid();
        if peer != own && peer != 0 {
            return Err(Error::User { peer, own });
        }
        Ok(Wire { socket, deadline: Instant::now() + timeout })
    }

    /// Allows what follows to take this long.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.deadline = Instant::now() + timeout;
    }

    fn wait(&self, which: Timeout) -> Result<(), Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Late);
        }
        // A timeout of zero would be none at all.
        let left = left.max(Duration::from_millis(1));
        set_socket_timeout(&self.socket, which, Some(left)).map_err(|e| Error::Io(e.into()))
    }

    fn put(&self, kind: u8, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let header = [kind, VERSION, 0, 0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Message(format!("{} descriptors; at most {FDS} are allowed", fds.len())));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        loop {
            self.wait(Timeout::Send)?;
            match rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                // The kernel bounds the descriptors that all processes of a user have on their way, by RLIMIT_NOFILE of
                // the one that sends; other pods' netds are of the same user. They become fewer as they are received.
                Err(rustix::io::Errno::TOOMANYREFS) => std::thread::sleep(AGAIN),
                Err(rustix::io::Errno::AGAIN) => return Err(Error::Late),
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::Io(e.into())),
            }
        }
    }

    /// Sends a message without descriptors.
    ///
    /// # Errors
    /// As sendmsg(2), [`Error::Late`].
    pub fn send(&self, message: &Message) -> Result<(), Error> {
        match message {
            Message::Bytes(bytes) => self.send_bytes(bytes),
            Message::Fds(fds) => self.send_fds(&fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()),
            Message::End { bytes, fds } => {
                self.put(message.kind(), &[bytes.to_le_bytes(), fds.to_le_bytes()].concat(), &[])
            }
            Message::Refused(why) => {
                let why = why.as_bytes();
                self.put(message.kind(), &why[..why.len().min(CHUNK)], &[])
            }
            _ => self.put(message.kind(), &[], &[]),
        }
    }

    /// Sends bytes of a parcel.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<(), Error> {
        bytes.chunks(CHUNK).try_for_each(|part| self.put(3, part, &[]))
    }

    /// Sends descriptors of a parcel.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_fds(&self, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        fds.chunks(FDS).try_for_each(|part| self.put(4, &[], part))
    }

    /// Receives a message.
    ///
    /// # Errors
    /// As recvmsg(2), [`Error::Closed`], [`Error::Late`], or what came is no message.
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_into(&mut vec![0; LARGEST])
    }

    pub(super) fn recv_into(&self, buffer: &mut [u8]) -> Result<Message, Error> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            self.wait(Timeout::Recv)?;
            match receive(&self.socket, buffer, &mut control) {
                Ok(got) => break got,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(Error::Late),
                Err(rustix::io::Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::Io(e.into())),
            }
        };
        if got.bytes == 0 {
            return Err(Error::Closed);
        }
        if !got.whole {
            return Err(Error::Message("it is larger than a message can be, or descriptors ran out".into()));
        }
        match buffer.get(..got.bytes) {
            Some([kind, VERSION, 0, 0, payload @ ..]) => match Message::parse(*kind, payload, got.fds)? {
                Message::Refused(why) => Err(Error::Refused(why)),
                message => Ok(message),
            },
            Some([_, version, _, _, ..]) => Err(Error::Version(*version)),
            _ => Err(Error::Message("shorter than its header".into())),
        }
    }

    /// Receives a message that must be `expected`, without payload.
    ///
    /// # Errors
    /// As [`Wire::recv`], or another came.
    pub fn expect(&self, expected: &Message) -> Result<(), Error> {
        let got = self.recv()?;
        if got.kind() == expected.kind() {
            return Ok(());
        }
        Err(Error::Message(format!("kind {}; {} is expected", got.kind(), expected.kind())))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rustix::net::socketpair;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    pub(in crate::hold) fn pair() -> (Wire, Wire) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Wire::new(a, SOON).unwrap(), Wire::new(b, SOON).unwrap())
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in
            [&[][..], &[1], &[1, 2, 0, 0], &[0, 1, 0, 0], &[11, 1, 0, 0], &[5, 1, 0, 0, 1], &[1, 1, 1, 0]]
        {
            let (a, b) = pair();
            rustix::net::send(&a.socket, bytes, SendFlags::empty()).unwrap();
            assert!(b.recv().is_err(), "{bytes:?}");
        }
        let (a, b) = pair();
        a.put(6, &[], &[b.socket.as_fd()]).unwrap();
        assert!(matches!(b.recv(), Err(Error::Message(_))), "descriptors where none belong");
    }

    #[test]
    fn descriptors_wait_while_too_many_are_on_their_way() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 2 * FDS as u64, hard).unwrap();
        let (a, b) = pair();
        let (tell, told) = std::sync::mpsc::channel();
        let sender = std::thread::spawn(move || {
            // The kernel bounds only a process without privilege.
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
                .unwrap();
            let own = a.socket.try_clone().unwrap();
            let many = [own.as_fd(); FDS];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
            let refused = loop {
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
                let bytes = [IoSlice::new(&[4, VERSION, 0, 0])];
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                if let Err(error) = rustix::net::sendmsg(&a.socket, &bytes, &mut control, flags) {
                    break error;
                }
            };
            assert_eq!(refused, rustix::io::Errno::TOOMANYREFS);
            tell.send(()).unwrap();
            a.send_fds(&many).unwrap();
            a.send(&Message::Go).unwrap();
        });
        told.recv().unwrap();
        let mut received = 0;
        while let Message::Fds(fds) = b.recv().unwrap() {
            received += fds.len();
        }
        sender.join().unwrap();
        assert!(received >= 3 * FDS, "{received}");
    }

    #[test]
    fn a_peer_that_says_nothing_is_not_waited_for_for_ever() {
        let (_a, mut b) = pair();
        b.set_timeout(Duration::from_millis(1));
        assert!(matches!(b.recv(), Err(Error::Late)));
    }
}
