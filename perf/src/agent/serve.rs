//! The echo: one thread, any number of connections.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// The largest datagram.
const LARGEST: usize = 65_535;
/// Datagrams that are echoed before connections get their turn.
const TURN: usize = 256;

/// Echoes what comes by TCP and UDP, in both families. The UDP socket has `room` for so many bytes, or as many as is usual.
pub(crate) fn serve(port: u16, room: Option<usize>) -> Result<()> {
    crate::allow_descriptors(1 << 16)?;
    let listener = listen(port)?;
    listener.set_nonblocking(true)?;
    let datagrams = UdpSocket::bind(any(port)).with_context(|| format!("UDP port {port}"))?;
    datagrams.set_nonblocking(true)?;
    if let Some(room) = room {
        // Beyond the system's limit, which takes root.
        setsockopt(&datagrams, sockopt::RcvBufForce, &room).context("SO_RCVBUFFORCE")?;
    }

    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for fd in [listener.as_fd(), datagrams.as_fd()] {
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token(&fd)))?;
    }
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    let mut events = vec![EpollEvent::empty(); 512];
    let mut buffer = vec![0; LARGEST];
    loop {
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        };
        for event in events.iter().take(count) {
            let which = event.data();
            if which == token(&listener) {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token(&stream)))?;
                    streams.insert(token(&stream), stream);
                }
            } else if which == token(&datagrams) {
                for _ in 0..TURN {
                    let Ok((length, from)) = datagrams.recv_from(&mut buffer) else { break };
                    // One that does not fit is lost, as on any network.
                    drop(datagrams.send_to(buffer.get(..length).unwrap_or_default(), from));
                }
            } else if let Some(stream) = streams.get_mut(&which)
                && !echo(stream, &mut buffer)
            {
                // Closing takes it out of epoll's set.
                streams.remove(&which);
            }
        }
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
}

/// A TCP port of both families.
pub(crate) fn listen(port: u16) -> Result<TcpListener> {
    let listener = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    listener.set_reuse_address(true)?;
    listener.bind(&any(port).into()).with_context(|| format!("TCP port {port}"))?;
    listener.listen(BACKLOG)?;
    Ok(listener.into())
}

fn token(fd: &impl AsRawFd) -> u64 {
    u64::from(fd.as_raw_fd().unsigned_abs())
}

/// Echoes what has come; whether the connection goes on. Requests are small: one that the socket does not take at once
/// ends the connection.
fn echo(stream: &mut TcpStream, buffer: &mut [u8]) -> bool {
    match stream.read(buffer) {
        Ok(0) => false,
        Ok(length) => stream.write_all(buffer.get(..length).unwrap_or_default()).is_ok(),
        Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
