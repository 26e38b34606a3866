//! Listeners that leave peers without an answer.
//!
//! The kernel drops a SYN for which a listener has no room: the peer's kernel sends it again, as one that was lost on the way. A
//! queue of one place that is taken has no room. A connection of the pod's own takes it, and is reset at once: what is left of
//! it stays in the queue until it is accepted. It goes by the loopback's address, or by that of the one interface which netd has:
//! a listener of an interface hears nothing from the loopback. This takes no privilege, where a filter on a TCP socket
//! (SO_ATTACH_FILTER) does since Linux 6.18.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::{INTERFACE, listen, quiet_peer, reset_on_close, socket};

/// A queue of one place: the kernel takes one connection more than it is told.
const ONE_PLACE: i32 = 0;
/// Any port: nothing is sent there.
const DISCARD_PORT: u16 = 9;

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
    // A dual-stack listener takes connections by IPv4 as well, and an interface may have addresses of one family alone.
    let v4 = own.is_ipv4() || !listener.only_v6()?;
    let families = [
        v4.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        own.is_ipv6().then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    ];
    let mut result = Err(io::ErrorKind::WouldBlock.into());
    for any in families.into_iter().flatten() {
        let filled = own_address(any).and_then(|ip| connect_and_reset(SocketAddr::new(ip, own.port())));
        if has_waiting(listener)? {
            return Ok(());
        }
        if filled.is_err() {
            result = filled;
        }
    }
    result
}

/// The pod's own address of the family of `any` by which its listeners can be reached.
fn own_address(any: IpAddr) -> io::Result<IpAddr> {
    let peer = quiet_peer(any);
    if INTERFACE.get().is_none() {
        return Ok(peer);
    }
    let to = SocketAddr::new(peer, DISCARD_PORT);
    // The kernel chooses the interface's; nothing is sent.
    let s = socket(Domain::for_address(to), Type::DGRAM, Protocol::UDP)?;
    s.connect(&to.into())?;
    let own = s.local_addr()?.as_socket().map(|own| own.ip()).filter(|ip| !ip.is_unspecified());
    own.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Leaves at a listener of the pod what is left of a connection.
fn connect_and_reset(to: SocketAddr) -> io::Result<()> {
    // Of no interface, so that nothing leaves the pod: each of its addresses is near, and is heard as if it came by its own interface.
    let kind = Type::STREAM.nonblocking().cloexec();
    let filler = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))?;
    reset_on_close(&filler)?;
    match filler.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
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
    let from = from.ip().to_canonical();
    let is_own = || {
        let to = accepted.local_addr().ok().and_then(|a| a.as_socket());
        to.is_some_and(|to| to.ip().to_canonical() == from)
    };
    // Without an interface of its own the filler comes from the loopback, and other connections are spared a system call.
    let may_be = if INTERFACE.get().is_some() { is_own() } else { from.is_loopback() };
    may_be && reset()
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

    use rtnetlink::LinkUnspec;

    use super::*;
    use crate::pod::testns::{add_address, add_interface, in_netns, index_of};
    use crate::sockets::{PeekOffset, accept, bind_to, listen_tcp};

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

    /// A listener of an interface with these addresses is silent, and accepts what made it so.
    fn is_silent_at_an_interface(addresses: &'static [&'static str]) {
        in_netns(move |handle| async move {
            let lo = LinkUnspec::new_with_index(index_of(&handle, "lo").await).up().build();
            handle.link().set(lo).execute().await.unwrap();
            let index = add_interface(&handle, "net1", [2, 0, 0, 0, 0, 1], 1500).await;
            for address in addresses {
                add_address(&handle, index, address).await;
            }
            bind_to("net1").unwrap();
            let listener = listen_tcp(0, PeekOffset::NONE, true).unwrap();
            assert!(has_waiting(&listener).unwrap());
            stop_answering(&listener).unwrap();
            let (filler, from) = accept(&listener).unwrap();
            assert!(is_filler(&filler, from), "{from}");
            assert_eq!(accept(&listener).unwrap_err().kind(), ErrorKind::WouldBlock);
            stop_answering(&listener).unwrap();
        });
    }

    #[test]
    fn a_listener_of_one_interface_is_silent() {
        is_silent_at_an_interface(&["10.9.0.2/24", "fd00:9::2/64"]);
    }

    #[test]
    fn a_listener_of_an_interface_with_ipv6_alone_is_silent() {
        is_silent_at_an_interface(&["fd00:9::2/64"]);
    }
}
