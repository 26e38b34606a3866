//! Peers that are of no use: one reads nothing, three send without end.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use socket2::{Domain, Socket, Type};

/// Between two looks at full connections.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of one call.
const PART: usize = 16 << 10;
/// Bytes of one call of a stream that is alone on its thread, as iperf3 has it.
const BULK: usize = 128 << 10;
/// Bytes of a datagram.
const DATAGRAM: usize = 64;
/// Of those whose last byte is urgent.
const URGENT: usize = 64;

/// Accepts connections and reads nothing of them.
pub(crate) fn deaf(port: u16) -> Result<()> {
    crate::allow_descriptors(1 << 16)?;
    let listener = crate::serve::listen(port)?;
    let mut held = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, _)) => held.push(stream),
            // No descriptor is free, or the connection has ended: there is no connection to hold.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Opens connections and writes to all of them as much as they take; one that ends is opened again.
pub(crate) fn pour(address: SocketAddr, count: usize, urgent: bool) -> Result<()> {
    crate::allow_descriptors(count as u64 + 64)?;
    let data = vec![b'x'; if urgent { URGENT } else { PART }];
    let flags = if urgent { MsgFlags::MSG_OOB } else { MsgFlags::empty() };
    let mut streams: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    loop {
        let mut wrote = false;
        for place in &mut streams {
            let Some(stream) = place else {
                *place = open(address).ok();
                continue;
            };
            match send(stream.as_raw_fd(), &data, flags | MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
                Ok(_) => wrote = true,
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => *place = None,
            }
        }
        if !wrote {
            thread::sleep(PAUSE);
        }
    }
}

/// Opens connections and writes to each as fast as it takes bytes, until this process is ended.
pub(crate) fn stream(address: SocketAddr, count: usize) -> Result<()> {
    let write = || -> Result<()> {
        let mut stream = TcpStream::connect(address)?;
        let data = vec![b'x'; BULK];
        loop {
            stream.write_all(&data)?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(write)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
    })
}

/// Sends datagrams from `count` ports in turn, and reads no answer.
pub(crate) fn spray(address: SocketAddr, count: usize) -> Result<()> {
    crate::allow_descriptors(count as u64 + 64)?;
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let open = || {
        let socket = UdpSocket::bind(any).context("no port is free")?;
        socket.connect(address)?;
        Ok(socket)
    };
    let sockets = (0..count).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let data = [b'x'; DATAGRAM];
    loop {
        for socket in &sockets {
            // One that is refused, or for which there is no room, is lost.
            _ = socket.send(&data);
        }
    }
}

fn open(address: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(e)
            if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) || e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => return Err(e.into()),
    }
    Ok(socket.into())
}
