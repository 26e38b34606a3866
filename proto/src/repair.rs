//! How netd has its TCP sockets repaired, by a privileged helper: `<socket>.move`, and passt's own `<socket>.repair`.
//!
//! TCP_REPAIR of tcp(7) takes CAP_NET_ADMIN over the socket's network namespace, which a backend does not have. Both
//! protocols have the backend listen on a UNIX socket and the privileged side connect to it; the backend then sends
//! descriptors and waits until they are in the state that it asks for.
//!
//! `.move` is a socket of the kind SOCK_SEQPACKET, and one message is one datagram, numbers in little-endian order:
//!
//! ```text
//! request: version u8 = 1 | command u8 | count u16 | count × flags u8        count descriptors beside it
//! reply:   version u8 = 1 | command u8 | count u16 | count × errno i32       0: done
//! ```
//!
//! `.repair` is a stream of single bytes, each with up to [`MAX_FDS`] descriptors beside it: the value of TCP_REPAIR that
//! they are to get. The answer is the same byte; the connection ends when something went wrong.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::descriptors::receive;

/// The version of these messages.
pub const VERSION: u8 = 1;
/// Most descriptors in one message: SCM_MAX_FD of the kernel.
pub const MAX_FDS: usize = 253;
/// What follows the path of the vhost-user socket in the name of netd's own repair socket.
pub const SUFFIX: &str = ".move";
/// The same of the socket that speaks passt's protocol.
pub const PASST_SUFFIX: &str = ".repair";
/// Flag of [`Command::Release`]: the pod accepted the connection.
pub const ACCEPTED: u8 = 1;
/// Flag of [`Command::Repair`]: the connection's queues fit into any socket; buffers need not be made larger. A helper
/// may pass over it.
pub const SHORT: u8 = 2;
/// Flag of [`Command::Repair`] and [`Command::Release`]: a queue, or the window that the peer was told, is longer than
/// [`ROOM`] has room for.
pub const LONG: u8 = 8;
/// Bytes that a helper has either queue hold of a connection that is put together and not [`SHORT`]; the kernel allows
/// twice as much for its own accounting.
pub const ROOM: usize = 4 << 20;
/// The same of one that is [`LONG`], until it is released.
pub const LONG_ROOM: usize = 32 << 20;
/// The same from then on where a backend does not say more ([`receive_buffer_flags`]): not more than the kernel lets a receive
/// queue grow to by itself (tcp_rmem).
pub const LONG_LEFT: usize = 16 << 20;
/// Flag of [`Command::Thaw`]: the connection is about to be reset, as the machine has left without it. Without the flag
/// the machine stays. A helper may pass over it.
pub const ENDS: u8 = 4;
/// Bytes in front of flags and results.
const HEADER: usize = 4;

/// The flags of [`Command::Release`] from this bit on are the size of the connection's receive buffer: none where they are 0,
/// otherwise 64 KiB doubled so many times. A helper may pass over it.
const RECEIVE_BUFFER_SHIFT: u32 = 4;
/// The buffer whose size is 0.
const RECEIVE_BUFFER_UNIT: usize = 64 << 10;
/// The largest receive buffer that a helper gives, bytes as the kernel counts them.
const MAX_RECEIVE_BUFFER: usize = 2 * LONG_LEFT;

/// Flags of [`Command::Release`] for a receive buffer of at least so many bytes, as the kernel counts them.
#[must_use]
pub fn receive_buffer_flags(bytes: usize) -> u8 {
    let sizes = 1..=(MAX_RECEIVE_BUFFER / RECEIVE_BUFFER_UNIT).ilog2() as u8;
    let last = *sizes.end();
    let is_enough = |size: &u8| RECEIVE_BUFFER_UNIT << size >= bytes;
    sizes.into_iter().find(is_enough).unwrap_or(last) << RECEIVE_BUFFER_SHIFT
}

/// The receive buffer that flags of [`Command::Release`] ask for, bytes as the kernel counts them; never above 32 MiB.
#[must_use]
pub fn receive_buffer(flags: u8) -> Option<usize> {
    let size = flags >> RECEIVE_BUFFER_SHIFT;
    (size != 0).then(|| (RECEIVE_BUFFER_UNIT << size).min(MAX_RECEIVE_BUFFER))
}

/// What is to be done with the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Receive nothing any more, acknowledge nothing, and stand still to be looked at. Without sockets: the guest is about to
    /// leave, and a helper that can sends after it what comes for it from the answer on.
    Freeze,
    /// Stand still to be set up.
    Repair,
    /// Begin, with a window probe. Without sockets: the guest is about to run here.
    Release,
    /// Go on as before [`Command::Freeze`], without a word to the peer. Without sockets: the guest stays.
    Thaw,
    /// Nothing: whether the helper is there.
    Ping,
}

impl Command {
    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Command::Freeze => 1,
            Command::Repair => 2,
            Command::Release => 3,
            Command::Thaw => 4,
            Command::Ping => 5,
        }
    }

    /// The command with this number.
    pub fn of(number: u8) -> Option<Command> {
        let all = [Command::Freeze, Command::Repair, Command::Release, Command::Thaw, Command::Ping];
        all.into_iter().find(|c| c.number() == number)
    }
}

/// A request as it arrives.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub command: Command,
    /// The sockets, each with its flags.
    pub sockets: Vec<(OwnedFd, u8)>,
}

/// What went wrong on the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer has closed.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer does not follow the protocol.
    #[error("the peer's message is not understood: {0}")]
    Message(String),
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Self {
        Error::Io(e.into())
    }
}

fn wrong(what: impl Into<String>) -> Error {
    Error::Message(what.into())
}

/// Sends a request; `flags` has one byte for each descriptor.
///
/// # Errors
/// As sendmsg(2); too many descriptors.
pub fn send_request(
    socket: BorrowedFd<'_>,
    command: Command,
    fds: &[BorrowedFd<'_>],
    flags: &[u8],
) -> Result<(), Error> {
    if fds.len() > MAX_FDS || fds.len() != flags.len() {
        return Err(wrong(format!("{} descriptors with {} flags", fds.len(), flags.len())));
    }
    let mut bytes = header(command, fds.len());
    bytes.extend(flags);
    send(socket, &bytes, fds)
}

/// Receives a request; none when the peer has closed.
///
/// # Errors
/// As recvmsg(2); a message that is not one.
pub fn recv_request(socket: BorrowedFd<'_>) -> Result<Option<Request>, Error> {
    let mut bytes = [0; HEADER + MAX_FDS];
    let Some((bytes, fds)) = recv(socket, &mut bytes)? else { return Ok(None) };
    let (command, flags) = parse(bytes)?;
    if flags.len() != fds.len() {
        return Err(wrong(format!("{} descriptors; {} are announced", fds.len(), flags.len())));
    }
    let sockets = fds.into_iter().zip(flags.iter().copied()).collect();
    Ok(Some(Request { command, sockets }))
}

/// Answers a request: for each of its sockets the errno, 0 where it was done.
///
/// # Errors
/// As sendmsg(2).
pub fn send_reply(socket: BorrowedFd<'_>, command: Command, results: &[i32]) -> Result<(), Error> {
    let mut bytes = header(command, results.len());
    results.iter().for_each(|errno| bytes.extend(errno.to_le_bytes()));
    send(socket, &bytes, &[])
}

/// Receives the answer to a request of `count` sockets.
///
/// # Errors
/// As recvmsg(2), `WouldBlock` after the socket's own time; an answer to something else.
pub fn recv_reply(socket: BorrowedFd<'_>, command: Command, count: usize) -> Result<Vec<i32>, Error> {
    let mut bytes = [0; HEADER + 4 * MAX_FDS];
    let Some((bytes, _)) = recv(socket, &mut bytes)? else { return Err(Error::Closed) };
    let (answered, rest) = parse(bytes)?;
    let results: Vec<i32> =
        rest.chunks_exact(4).filter_map(|c| Some(i32::from_le_bytes(*c.first_chunk()?))).collect();
    if answered != command || results.len() != count || rest.len() != 4 * count {
        return Err(wrong(format!(
            "{} results of {answered:?}; {count} of {command:?} are due",
            results.len()
        )));
    }
    Ok(results)
}

fn header(command: Command, count: usize) -> Vec<u8> {
    let count = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
    vec![VERSION, command.number(), count[0], count[1]]
}

/// Command and what follows the header. The caller, which knows the size of a part, checks its count.
fn parse(bytes: &[u8]) -> Result<(Command, &[u8]), Error> {
    let Some((&[version, number, c0, c1], rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(wrong(format!("{} bytes", bytes.len())));
    };
    if version != VERSION {
        return Err(wrong(format!("version {version}; {VERSION} is known")));
    }
    let command = Command::of(number).ok_or_else(|| wrong(format!("command {number}")))?;
    let count = usize::from(u16::from_le_bytes([c0, c1]));
    if rest.len() != count && rest.len() != 4 * count {
        return Err(wrong(format!("{} bytes for {count} sockets", rest.len())));
    }
    Ok((command, rest))
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(wrong(format!("{} descriptors; {MAX_FDS} are allowed", fds.len())));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

type Whole<'a> = (&'a [u8], Vec<OwnedFd>);

fn recv<'a>(socket: BorrowedFd<'_>, bytes: &'a mut [u8]) -> Result<Option<Whole<'a>>, Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match receive(socket, bytes, &mut control) {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    if !got.whole {
        return Err(wrong("it is larger than a message can be, or descriptors ran out"));
    }
    Ok(Some((bytes.get(..got.bytes).unwrap_or_default(), got.fds)))
}

/// passt's protocol, the privileged side.
pub mod passt {
    use super::{AsFd, Error, OwnedFd, recv, send, wrong};

    /// Receives what sockets are to be set to: 1 repair, 0 no repair with a window probe, -1 without one. None when the
    /// backend has closed.
    ///
    /// # Errors
    /// As recvmsg(2); another byte.
    pub fn recv_request(socket: impl AsFd) -> Result<Option<(i8, Vec<OwnedFd>)>, Error> {
        let mut byte = [0; 1];
        match recv(socket.as_fd(), &mut byte)? {
            None => Ok(None),
            Some((&[value], fds)) if (-1..=1).contains(&value.cast_signed()) && !fds.is_empty() => {
                Ok(Some((value.cast_signed(), fds)))
            }
            Some((bytes, fds)) => Err(wrong(format!("{bytes:?} with {} descriptors", fds.len()))),
        }
    }

    /// Says that the sockets are set to `value`.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn send_reply(socket: impl AsFd, value: i8) -> Result<(), Error> {
        send(socket.as_fd(), &[value.cast_unsigned()], &[])
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_receive_buffer_holds_what_it_is_asked_to_and_never_more_than_32_mib() {
        const MIB: usize = 1 << 20;
        for (bytes, expected) in [
            (0, MIB / 8),
            (MIB / 8, MIB / 8),
            (MIB / 8 + 1, MIB / 4),
            (5 * MIB, 8 * MIB),
            (32 * MIB, 32 * MIB),
            (usize::MAX, 32 * MIB),
        ] {
            let flags = receive_buffer_flags(bytes);
            assert_eq!(flags & (ACCEPTED | SHORT | ENDS | LONG), 0);
            assert_eq!(receive_buffer(flags | LONG), Some(expected), "{bytes}");
        }
        assert_eq!(receive_buffer(0xff), Some(32 * MIB));
        assert_eq!(receive_buffer(LONG | ACCEPTED), None);
    }

    #[test]
    fn a_request_and_its_answer_arrive_whole() {
        let (a, b) = pair(SocketType::SEQPACKET);
        let fds = vec![a.as_fd(); MAX_FDS];
        let flags: Vec<u8> = (0..MAX_FDS).map(|i| i as u8 & ACCEPTED).collect();
        send_request(a.as_fd(), Command::Release, &fds, &flags).unwrap();
        let request = recv_request(b.as_fd()).unwrap().unwrap();
        assert_eq!(request.command, Command::Release);
        assert_eq!(request.sockets.iter().map(|s| s.1).collect::<Vec<_>>(), flags);
        let results: Vec<i32> = (0..MAX_FDS as i32).collect();
        send_reply(b.as_fd(), Command::Release, &results).unwrap();
        assert_eq!(recv_reply(a.as_fd(), Command::Release, MAX_FDS).unwrap(), results);
        send_request(a.as_fd(), Command::Ping, &[], &[]).unwrap();
        assert!(recv_request(b.as_fd()).unwrap().unwrap().sockets.is_empty());
        drop((a, request));
        assert!(recv_request(b.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[1][..], &[2, 1, 0, 0], &[1, 9, 0, 0], &[1, 1, 2, 0, 0], &[1, 1, 1, 0, 0]] {
            let (a, b) = pair(SocketType::SEQPACKET);
            rustix::io::write(&a, bytes).unwrap();
            assert!(matches!(recv_request(b.as_fd()), Err(Error::Message(_))), "{bytes:?}");
        }
        let (a, b) = pair(SocketType::SEQPACKET);
        send_reply(a.as_fd(), Command::Freeze, &[0, 0]).unwrap();
        assert!(matches!(recv_reply(b.as_fd(), Command::Freeze, 3), Err(Error::Message(_))));
        send_reply(a.as_fd(), Command::Thaw, &[0]).unwrap();
        assert!(matches!(recv_reply(b.as_fd(), Command::Freeze, 1), Err(Error::Message(_))));
        let many = vec![a.as_fd(); MAX_FDS + 1];
        assert!(send_request(a.as_fd(), Command::Freeze, &many, &[0; MAX_FDS + 1]).is_err());
    }

    #[test]
    fn passts_bytes_are_its_values() {
        let (a, b) = pair(SocketType::STREAM);
        for (byte, value) in [(1u8, 1i8), (0, 0), (0xff, -1)] {
            super::send(a.as_fd(), &[byte], &[a.as_fd()]).unwrap();
            let (got, fds) = passt::recv_request(&b).unwrap().unwrap();
            assert_eq!((got, fds.len()), (value, 1));
            passt::send_reply(&b, got).unwrap();
            let mut answer = [7];
            rustix::io::read(&a, &mut answer).unwrap();
            assert_eq!(answer, [byte]);
        }
        super::send(a.as_fd(), &[2], &[a.as_fd()]).unwrap();
        assert!(passt::recv_request(&b).is_err());
    }
}
