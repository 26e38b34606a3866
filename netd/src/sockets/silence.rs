//! Listeners that leave peers without an answer.
//!
//! The kernel drops a SYN for which a listener has no room: the peer's kernel sends it again, as one that was lost on the way. A
//! queue of one place that is taken has no room. A connection of the pod's own takes it, by the loopback, and is reset at once:
//! what is left of it stays in the queue until it is accepted. This takes no privilege, where a filter on a TCP socket
//! (SO_ATTACH_FILTER) does since Linux 6.18.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::{listen, reset_on_close};

/// A queue of one place: the kernel takes one connection more than it is told.
const ONE_PLACE: i32 = 0;

/// Has a listener leave every SYN without an answer. What waits in its queue stays there.
///
/// # Errors
/// `WouldBlock` when the queue has not been filled yet; as socket(2), listen(2) and connect(2).
pub(crate) fn stop_answering(listener: &Socket) -> io::Result<()> {
    listener.listen(ONE_PLACE)?;
    if has_waiting(listener)? {
        return Ok(());
    }
    let own = listener.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    // A dual-stack listener takes connections by IPv4 as well.
    let loopback = if own.is_ipv4() || !listener.only_v6()? {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv6Addr::LOCALHOST.into()
    };
    let to = SocketAddr::new(loopback, own.port());
    let filler =
        Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    reset_on_close(&filler)?;
    match filler.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => drop(filler),
    }
    if has_waiting(listener)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Has a listener answer SYNs.
///
/// # Errors
/// As listen(2).
pub(crate) fn answer(listener: &Socket) -> io::Result<()> {
    listen(listener)
}

/// Whether an accepted connection is what is left of the one that made its listener silent: netd's own process or the one
/// before it has reset it.
pub(crate) fn is_filler(accepted: &Socket, from: SocketAddr) -> bool {
    let reset =
        || matches!(accepted.take_error(), Ok(Some(error)) if error.raw_os_error() == Some(libc::ECONNRESET));
    from.ip().to_canonical().is_loopback() && reset()
}

/// Whether there is something in a listener's queue.
fn has_waiting(listener: &Socket) -> io::Result<bool> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::sockets::{PeekOffset, accept, listen_tcp};

    /// Shorter than the pause before a SYN is sent again.
    const SHORT: Duration = Duration::from_millis(200);
    /// Longer than some such pauses.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_silent_listener_neither_accepts_nor_refuses_and_has_the_client_later() {
        let listener = listen_tcp(0, PeekOffset::NONE, true).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let at = SocketAddr::new(ip, port);
            // A second time changes nothing.
            for _ in 0..2 {
                stop_answering(&listener).unwrap();
            }
            let e = TcpStream::connect_timeout(&at, SHORT).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::TimedOut, "{at}: {e}");
            let waiting = std::thread::spawn(move || TcpStream::connect_timeout(&at, LONG));
            std::thread::sleep(SHORT);
            answer(&listener).unwrap();
            let (filler, from) = accept(&listener).unwrap();
            assert!(is_filler(&filler, from), "{from}");
            let mut client = waiting.join().unwrap().unwrap();
            // It is there already for the client, and in the listener's queue.
            let (mut accepted, from) = accept(&listener).unwrap();
            assert!(!is_filler(&accepted, from), "{from}");
            client.write_all(b"x").unwrap();
            accepted.set_nonblocking(false).unwrap();
            accepted.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!(accepted.read(&mut [0; 4]).unwrap(), 1);
        }
    }

    #[test]
    fn who_waits_already_makes_a_listener_silent_and_is_not_lost() {
        let listener = listen_tcp(0, PeekOffset::NONE, false).unwrap();
        let at = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().as_socket().unwrap().port());
        let client = TcpStream::connect(at).unwrap();
        stop_answering(&listener).unwrap();
        let e = TcpStream::connect_timeout(&at.into(), SHORT).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
        let (_accepted, from) = accept(&listener).unwrap();
        assert_eq!(from, client.local_addr().unwrap());
    }
}
