//! Round trips, connections and many connections by TCP.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::{Times, allow_descriptors};

/// For what takes no time unless something is broken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two handfuls of connections that are closed.
const CLOSING: Duration = Duration::from_millis(3);
/// Connections that are being opened at the same time.
const OPENING: usize = 64;

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(|| address.to_string())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends `size` bytes and waits for all of them, again and again, over one connection.
pub(crate) fn round_trips(address: SocketAddr, time: Duration, size: usize) -> Result<Value> {
    let mut stream = connect(address)?;
    let mut buffer = vec![b'x'; size];
    // The first one finds every cache cold and the neighbours unknown.
    for _ in 0..3 {
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
    }
    let mut times = Times::start();
    while times.begin.elapsed() < time {
        let sent = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        times.micros.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    times.report(0)
}

/// Connects, sends a byte, waits for it and closes, again and again.
pub(crate) fn connections(address: SocketAddr, time: Duration) -> Result<Value> {
    let once = || -> Result<()> {
        let mut stream = connect(address)?;
        stream.write_all(b"x")?;
        Ok(stream.read_exact(&mut [0])?)
    };
    once()?;
    let mut times = Times::start();
    let mut failed = 0;
    while times.begin.elapsed() < time {
        let start = Instant::now();
        match once() {
            Ok(()) => times.micros.push(start.elapsed().as_secs_f64() * 1e6),
            Err(_) => failed += 1,
        }
    }
    times.report(failed)
}

/// Opens `count` connections, some at a time, each of which has had a byte echoed.
pub(crate) fn flows(address: SocketAddr, count: usize) -> Result<(Vec<TcpStream>, Value)> {
    allow_descriptors(count as u64 + 64)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut opening: HashMap<u64, TcpStream> = HashMap::new();
    let mut open = Vec::with_capacity(count);
    let mut events = vec![EpollEvent::empty(); OPENING];
    let (mut begun, mut failed) = (0usize, 0u64);
    let start = Instant::now();
    while open.len() + usize::try_from(failed)? < count {
        while opening.len() < OPENING && begun < count {
            let stream = begin(address)?;
            let token = u64::from(stream.as_raw_fd().unsigned_abs());
            epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, token))?;
            opening.insert(token, stream);
            begun += 1;
        }
        let ready = match epoll.wait(&mut events, EpollTimeout::try_from(PATIENCE)?) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        };
        if ready == 0 {
            // A lost SYN is sent again after a second; five seconds of silence are the end of these.
            failed += opening.drain().count() as u64;
            continue;
        }
        for event in events.iter().take(ready) {
            let Some(mut stream) = opening.remove(&event.data()) else { continue };
            match step(&mut stream, event.events()) {
                Some(true) => {
                    epoll.delete(&stream)?;
                    open.push(stream);
                }
                Some(false) => {
                    epoll.modify(&stream, &mut EpollEvent::new(EpollFlags::EPOLLIN, event.data()))?;
                    opening.insert(event.data(), stream);
                }
                None => failed += 1,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(!open.is_empty(), "no connection to {address} could be opened");
    #[allow(clippy::cast_precision_loss, reason = "a count of connections")]
    let per_second = open.len() as f64 / seconds;
    let found = json!({"count": open.len(), "seconds": seconds, "per_second": per_second, "failed": failed});
    Ok((open, found))
}

/// Resets connections some at a time: thousands of RSTs at once would not fit the guest's queue, and the other side would
/// keep those whose RST was lost.
pub(crate) fn close(held: Vec<TcpStream>) {
    let mut left = held.into_iter();
    while left.by_ref().take(OPENING).count() > 0 {
        std::thread::sleep(CLOSING);
    }
}

fn begin(address: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).context("a further socket")?;
    socket.set_nonblocking(true)?;
    // Reset at the end: no port stays in TIME-WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {}
        Err(e) => return Err(e).with_context(|| address.to_string()),
    }
    Ok(socket.into())
}

/// What comes next for a connection: it is done, it waits for its byte, or it has failed.
fn step(stream: &mut TcpStream, events: EpollFlags) -> Option<bool> {
    if events.contains(EpollFlags::EPOLLOUT) {
        let opened = stream.take_error().ok()?.is_none() && stream.write_all(b"x").is_ok();
        return opened.then_some(false);
    }
    match stream.read(&mut [0]) {
        Ok(1) => Some(true),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Some(false),
        _ => None,
    }
}
