//! Round trips, connections and many connections by TCP.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::{Schedule, Times, allow_descriptors};

/// For what takes no time unless something is broken.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two handfuls of connections that are closed.
const CLOSING: Duration = Duration::from_millis(3);
/// Connections that are being opened at the same time.
const OPENING: usize = 64;
/// So many failures, as a share of what is wanted, and the peer has reached its limit: the rest would fail one by one.
const FAILED: f64 = 0.01;
/// The longest that opening goes on: what is open then is what the peer reached.
const LONGEST: Duration = Duration::from_secs(60);

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| address.to_string())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends `size` bytes and waits for all of them, again and again, over one connection.
pub(crate) fn round_trips(
    address: SocketAddr,
    time: Duration,
    size: usize,
    per_second: Option<f64>,
) -> Result<Value> {
    let mut stream = connect(address)?;
    let mut buffer = vec![b'x'; size];
    // The first one finds every cache cold and the neighbours unknown.
    for _ in 0..3 {
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
    }
    let (mut times, mut schedule) = (Times::start(), Schedule::start(per_second));
    while times.begin.elapsed() < time {
        let sent = schedule.next();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        times.micros.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    times.report(0)
}

/// Connects, sends a byte, waits for it and closes, again and again.
pub(crate) fn connections(address: SocketAddr, time: Duration, per_second: Option<f64>) -> Result<Value> {
    let once = || -> Result<()> {
        let mut stream = connect(address)?;
        stream.write_all(b"x")?;
        Ok(stream.read_exact(&mut [0])?)
    };
    once()?;
    let (mut times, mut schedule) = (Times::start(), Schedule::start(per_second));
    let mut failed = 0;
    while times.begin.elapsed() < time {
        let start = schedule.next();
        match once() {
            Ok(()) => times.micros.push(start.elapsed().as_secs_f64() * 1e6),
            Err(_) => failed += 1,
        }
    }
    times.report(failed)
}

/// Connects to a port that no program serves, and waits until that is known: the connection is refused, or it comes about
/// and is ended. `refused_share` tells of how many it was the former.
pub(crate) fn refusals(address: SocketAddr, time: Duration) -> Result<Value> {
    let once = || -> Result<bool> {
        let mut stream = match TcpStream::connect_timeout(&address, TIMEOUT) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(true),
            // It had come about, and its end was there before this was looked at.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(false),
            stream => stream.with_context(|| address.to_string())?,
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        match stream.read(&mut [0]) {
            Ok(0) => Ok(false),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(false),
            Ok(_) => bail!("{address} speaks"),
            Err(e) => Err(e).with_context(|| address.to_string()),
        }
    };
    once()?;
    let mut times = Times::start();
    let mut refused = 0.0;
    while times.begin.elapsed() < time {
        let start = Instant::now();
        refused += f64::from(once()?);
        times.micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    #[allow(clippy::cast_precision_loss, reason = "a count of connections")]
    let share = refused / times.micros.len().max(1) as f64;
    let mut found = times.report(0)?;
    found["refused_share"] = json!(share);
    Ok(found)
}

/// Opens `count` connections, some at a time, each of which has had a byte echoed. It ends early, without an error, when
/// there are too many failures, when all that are being opened stay silent, or when it takes too long. `held` are those
/// that live at the end, of `wanted`; the rate is that of `opened` ones until the last of them.
pub(crate) fn flows(address: SocketAddr, count: usize) -> Result<(Vec<TcpStream>, Value)> {
    allow_descriptors(count as u64 + 64)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut opening: HashMap<u64, TcpStream> = HashMap::new();
    let mut open = Vec::with_capacity(count);
    let mut events = vec![EpollEvent::empty(); OPENING];
    let (mut begun, mut failed) = (0usize, 0usize);
    let start = Instant::now();
    let mut last = start;
    while open.len() + failed < count && !given_up(failed, count, start.elapsed()) {
        while opening.len() < OPENING && begun < count {
            let stream = begin(address)?;
            let token = u64::from(stream.as_raw_fd().unsigned_abs());
            epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, token))?;
            opening.insert(token, stream);
            begun += 1;
        }
        let ready = match epoll.wait(&mut events, EpollTimeout::try_from(TIMEOUT)?) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        };
        if ready == 0 {
            // A lost SYN is sent again after a second; five seconds of silence are the end.
            failed += opening.drain().count();
            break;
        }
        for event in events.iter().take(ready) {
            let Some(mut stream) = opening.remove(&event.data()) else { continue };
            match step(&mut stream, event.events()) {
                Some(true) => {
                    epoll.delete(&stream)?;
                    open.push(stream);
                    last = Instant::now();
                }
                Some(false) => {
                    epoll.modify(&stream, &mut EpollEvent::new(EpollFlags::EPOLLIN, event.data()))?;
                    opening.insert(event.data(), stream);
                }
                None => failed += 1,
            }
        }
    }
    let seconds = (last - start).as_secs_f64();
    let opened = open.len();
    open.retain(lives);
    ensure!(!open.is_empty(), "no connection to {address} could be opened");
    #[allow(clippy::cast_precision_loss, reason = "a count of connections")]
    let per_second = opened as f64 / seconds;
    let found = json!({"wanted": count, "opened": opened, "held": open.len(), "failed": failed, "seconds": seconds,
        "per_second": per_second});
    Ok((open, found))
}

/// Whether more attempts are of no use.
fn given_up(failed: usize, count: usize, elapsed: Duration) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "a count of connections")]
    let too_many = failed as f64 > (count as f64 * FAILED).max(OPENING as f64);
    too_many || elapsed > LONGEST
}

/// Whether an idle connection has neither ended nor failed meanwhile.
fn lives(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn opening_ends_when_it_is_of_no_use() {
        let short = Duration::from_secs(1);
        assert!(!given_up(180, 18_000, short) && given_up(181, 18_000, short));
        // A handful is no sign where few are wanted.
        assert!(!given_up(OPENING, 100, short));
        assert!(given_up(0, 18_000, LONGEST * 2));
    }

    #[test]
    fn a_refusal_is_told_from_an_end() {
        let time = Duration::from_millis(20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            // Those that come in while it is being closed are reset.
            for stream in listener.incoming().take(20) {
                drop(stream.unwrap());
            }
        });
        let found = refusals(address, time).unwrap();
        assert!(found["refused_share"].as_f64().unwrap() < 1.0, "{found}");
        while !server.is_finished() {
            drop(TcpStream::connect(address));
        }
        server.join().unwrap();
        let found = refusals(address, time).unwrap();
        assert_eq!(
            (found["refused_share"].as_f64(), found["failed"].as_u64()),
            (Some(1.0), Some(0)),
            "{found}"
        );
        assert!(found["p50"].as_f64().unwrap() <= found["p99"].as_f64().unwrap(), "{found}");
    }

    #[test]
    fn a_peer_that_takes_a_few_has_reached_so_many() {
        const TAKEN: usize = 10;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let taken = (0..TAKEN).map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                stream.write_all(&byte).unwrap();
                stream
            });
            // And then no program listens.
            taken.collect::<Vec<_>>()
        });
        let (held, found) = flows(address, 300).unwrap();
        assert_eq!((held.len(), found["held"].as_u64()), (TAKEN, Some(TAKEN as u64)), "{found}");
        assert_eq!(found["wanted"], 300);
        assert!(found["failed"].as_u64().unwrap() < 300 - TAKEN as u64, "it went on for no use: {found}");
        drop(server.join().unwrap());
        // A blocking look waits for the end of each; then it does not live.
        for stream in &held {
            stream.set_nonblocking(false).unwrap();
            assert_eq!(stream.peek(&mut [0]).unwrap(), 0);
            stream.set_nonblocking(true).unwrap();
            assert!(!lives(stream));
        }
    }
}
