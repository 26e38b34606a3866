//! Which connections can move: those whose peer is where the socket says it is.
//!
//! A mesh's proxy in the pod stands between the guest and the world: the kernel has led the connection to it, and there
//! is another proxy at the target, which does not know of it. Nothing in the connection's own socket tells. The sockets of
//! the namespace do, without any privilege and without knowing the mesh:
//!
//! 1. the peer's address is the pod's own;
//! 2. some socket in the pod is the other end: its local address is the peer, and its peer is this end (a transparent
//!    proxy, a neighbour in the pod);
//! 3. of a connection that netd has opened: some socket has this end for its peer (it was redirected). A connection that
//!    netd has accepted shares its port with others, so there this says nothing.
//!
//! What the node translates (a Service's address) cannot be told from here.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use socket2::{Domain, Protocol, Socket, Type};

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It moves.
    Move,
    /// Its peer is in this pod: it ends.
    Local,
}

/// The TCP sockets of a network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    /// The namespace's own addresses.
    pub(crate) addresses: HashSet<IpAddr>,
    /// Both ends of each socket, its own first.
    ends: HashSet<(SocketAddr, SocketAddr)>,
    /// Peers of sockets.
    peers: HashSet<SocketAddr>,
}

impl Local {
    /// From the ends of sockets.
    pub(crate) fn new(
        addresses: impl IntoIterator<Item = IpAddr>,
        sockets: impl IntoIterator<Item = (SocketAddr, SocketAddr)>,
    ) -> Local {
        let ends: HashSet<_> = sockets.into_iter().collect();
        let peers = ends.iter().map(|(_, peer)| *peer).collect();
        Local { addresses: addresses.into_iter().collect(), ends, peers }
    }
}

/// Decides about a connection between `local` and `peer` of the pod; `opened`: by netd.
pub(crate) fn classify(local: SocketAddr, peer: SocketAddr, opened: bool, all: &Local) -> Verdict {
    let own = peer.ip().is_loopback() || all.addresses.contains(&peer.ip());
    if own || all.ends.contains(&(peer, local)) || (opened && all.peers.contains(&local)) {
        return Verdict::Local;
    }
    Verdict::Move
}

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST | NLM_F_DUMP.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bytes of `nlmsghdr`, of `inet_diag_req_v2` and of one answer's addresses.
const HEADER: usize = 16;
const REQUEST: usize = 56;
/// States: all but LISTEN (10), CLOSE (7) and TIME_WAIT (6).
const STATES: u32 = !((1 << 10) | (1 << 7) | (1 << 6)) & 0xfff;
/// A dump is read in parts of this size at most (the kernel's are 32 KiB).
const PART: usize = 64 << 10;

/// Asks the kernel for the TCP sockets and the addresses of this network namespace.
///
/// # Errors
/// As the kernel answers.
pub(crate) fn sockets_of_namespace() -> io::Result<Local> {
    // The kernel looks through all of its sockets for either, and the guest stands still.
    let (four, six) = thread::scope(|scope| {
        let six = scope.spawn(|| dump(libc::AF_INET6 as u8));
        (dump(libc::AF_INET as u8), six.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))))
    });
    let (four, six) = (four?, six?);
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
    });
    Ok(Local::new(addresses, four.into_iter().chain(six)))
}

fn dump(family: u8) -> io::Result<Vec<(SocketAddr, SocketAddr)>> {
    let kind = Type::RAW.cloexec();
    let socket =
        Socket::new(Domain::from(libc::AF_NETLINK), kind, Some(Protocol::from(libc::NETLINK_SOCK_DIAG)))?;
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    // Number and port of the message.
    request.extend([0; 8]);
    request.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(STATES.to_ne_bytes());
    request.resize(HEADER + REQUEST, 0);
    socket.send(&request)?;
    let (mut part, mut into) = (vec![0u8; PART], Vec::new());
    loop {
        let n = rustix::net::recv(&socket, &mut part[..], rustix::net::RecvFlags::empty())?.0;
        if answers(part.get(..n).unwrap_or_default(), &mut into)? {
            return Ok(into);
        }
    }
}

/// Reads a part of a dump; true when it was the last.
fn answers(mut bytes: &[u8], into: &mut Vec<(SocketAddr, SocketAddr)>) -> io::Result<bool> {
    while let Some(head) = bytes.first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = bytes.get(HEADER..length).unwrap_or_default();
        match u16::from_ne_bytes([head[4], head[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = body.first_chunk().map_or(-libc::EIO, |c| i32::from_ne_bytes(*c));
                return Err(io::Error::from_raw_os_error(-errno));
            }
            SOCK_DIAG_BY_FAMILY => into.extend(ends(body)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
    }
    Ok(false)
}

/// Both ends in a `struct inet_diag_msg`: family, state, timer, retransmissions; ports, then addresses of 16 bytes.
fn ends(body: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let body = body.first_chunk::<40>()?;
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let address = |at: usize| -> IpAddr {
        let mut octets = [0u8; 16];
        octets.copy_from_slice(&body[at..at + 16]);
        if i32::from(body[0]) == libc::AF_INET {
            Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()
        } else {
            Ipv6Addr::from(octets).to_canonical()
        }
    };
    Some((SocketAddr::new(address(8), port(4)), SocketAddr::new(address(24), port(6))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "10.9.0.2";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn all(sockets: &[(&str, &str)]) -> Local {
        let own = [POD, "fd00:9::2", "::6", "127.0.0.1"].map(|a| a.parse().unwrap());
        Local::new(own, sockets.iter().map(|(local, peer)| (at(local), at(peer))))
    }

    #[test]
    fn a_connection_with_the_world_moves() {
        let (me, peer) = ("10.9.0.2:40000", "192.0.2.1:443");
        let sockets = all(&[(me, peer), ("10.9.0.2:22", "192.0.2.7:5000")]);
        assert_eq!(classify(at(me), at(peer), true, &sockets), Verdict::Move);
        assert_eq!(classify(at("10.9.0.2:22"), at("192.0.2.7:5000"), false, &sockets), Verdict::Move);
    }

    #[test]
    fn a_peer_at_the_pods_own_addresses_is_local() {
        for peer in ["127.0.0.6:4000", "[::1]:4000", "[::6]:4000", "10.9.0.2:4000"] {
            assert_eq!(classify(at("10.9.0.2:80"), at(peer), false, &all(&[])), Verdict::Local, "{peer}");
        }
    }

    #[test]
    fn the_other_end_in_the_pod_is_found() {
        let (me, client) = ("10.9.0.2:80", "192.0.2.7:5000");
        let sockets = all(&[(me, client), (client, me)]);
        assert_eq!(classify(at(me), at(client), false, &sockets), Verdict::Local, "a transparent proxy");
    }

    #[test]
    fn a_connection_that_was_redirected_is_told_by_who_has_it() {
        let (me, world) = ("10.9.0.2:40000", "192.0.2.1:443");
        let proxy = ("127.0.0.1:15001", me);
        let sockets = all(&[(me, world), proxy]);
        assert_eq!(classify(at(me), at(world), true, &sockets), Verdict::Local);
        // A port on which the pod accepts is that of many.
        assert_eq!(classify(at(me), at(world), false, &sockets), Verdict::Move);
    }

    #[test]
    fn the_kernel_tells_of_both_ends_of_a_connection() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(listen) else { continue };
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            let all = sockets_of_namespace().unwrap();
            let (a, b) = (near.local_addr().unwrap(), far.local_addr().unwrap());
            assert!(all.ends.contains(&(a, b)) && all.ends.contains(&(b, a)), "{listen}");
            assert!(all.addresses.contains(&a.ip()));
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_one_and_cut_answers_are_nothing() {
        let mut error = 20u32.to_ne_bytes().to_vec();
        error.extend(NLMSG_ERROR.to_ne_bytes());
        error.extend([0; 10]);
        error.extend((-libc::EPERM).to_ne_bytes());
        let refused = answers(&error, &mut Vec::new()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let mut cut = 20u32.to_ne_bytes().to_vec();
        cut.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        cut.extend([0; 14]);
        let mut none = Vec::new();
        assert!(!answers(&cut, &mut none).unwrap() && none.is_empty());
    }
}
