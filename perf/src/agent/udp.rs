//! Datagrams: one at a time, as many as come back, and counted.
//!
//! With `gso` the sender hands the kernel many datagrams in one call and takes many in one (UDP_SEGMENT, UDP_GRO), as
//! programs that move many do; without, each datagram is a system call each way, as in most programs.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use crate::Times;

/// A datagram that has not come back by then is lost.
const LOST: Duration = Duration::from_millis(200);
/// The same while more are sent anyway.
const STALLED: Duration = Duration::from_millis(20);
/// The most that one call sends: the kernel's limit of segments is 64 or more.
const SEGMENTS: usize = 32;
/// Room for datagrams that were taken together.
const LARGEST: usize = 1 << 16;
/// What comes before the measured time, as a part of it.
const WARM_UP: u32 = 5;
/// The kernel doubles it and limits it.
const RECEIVE_BUFFER: usize = 4 << 20;
/// For the first datagram to be counted.
const TIMEOUT: Duration = Duration::from_secs(20);

fn connected(address: SocketAddr) -> Result<UdpSocket> {
    let local: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(address)?;
    setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    Ok(socket)
}

/// Sends a datagram and waits for it, again and again.
pub(crate) fn round_trips(address: SocketAddr, time: Duration, size: usize) -> Result<Value> {
    let socket = connected(address)?;
    socket.set_read_timeout(Some(LOST))?;
    let (data, mut buffer) = (vec![b'x'; size], vec![0; LARGEST]);
    for _ in 0..3 {
        drop(socket.send(&data));
        drop(socket.recv(&mut buffer));
    }
    let mut times = Times::start();
    let mut failed = 0;
    while times.begin.elapsed() < time {
        let sent = Instant::now();
        // An ICMP error of an earlier datagram is no failure to send the present one.
        if socket.send(&data).is_ok() && socket.recv(&mut buffer).is_ok() {
            times.micros.push(sent.elapsed().as_secs_f64() * 1e6);
        } else {
            failed += 1;
        }
    }
    times.report(failed)
}

/// Keeps `window` datagrams under way and counts those that come back.
pub(crate) fn echo(
    address: SocketAddr,
    time: Duration,
    size: usize,
    window: usize,
    segments: bool,
) -> Result<Value> {
    ensure!(size > 0 && window > 0, "nothing to send");
    let socket = connected(address)?;
    socket.set_nonblocking(true)?;
    let most = if segments { SEGMENTS.min(LARGEST / 2 / size).max(1) } else { 1 };
    if most > 1 {
        setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(size)?)?;
        setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    }
    let (data, mut buffer) = (vec![b'x'; most * size], vec![0; LARGEST]);
    let begin = Instant::now();
    let warm_up = time / WARM_UP;
    let mut counted: Option<Instant> = None;
    let (mut sent, mut back, mut under_way) = (0u64, 0u64, 0usize);
    while begin.elapsed() < warm_up + time {
        if counted.is_none() && begin.elapsed() >= warm_up {
            (counted, sent, back) = (Some(Instant::now()), under_way as u64, 0);
        }
        while under_way < window {
            let count = most.min(window - under_way);
            if socket.send(data.get(..count * size).unwrap_or_default()).is_err() {
                break;
            }
            under_way += count;
            sent += count as u64;
        }
        let mut came = 0;
        while let Ok(length) = socket.recv(&mut buffer) {
            came += length.div_ceil(size);
            if came >= window / 2 {
                break;
            }
        }
        if came == 0 && !readable(&socket, STALLED)? {
            // All of them are lost.
            under_way = 0;
        }
        back += came as u64;
        under_way = under_way.saturating_sub(came);
    }
    let seconds = counted.context("no time to measure")?.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "counts of datagrams")]
    let (sent, back, under_way) = (sent as f64, back as f64, under_way as f64);
    let done = (sent - under_way).max(1.0);
    Ok(json!({"per_second": back / seconds, "lost_share": (1.0 - back / done).clamp(0.0, 1.0)}))
}

/// Counts datagrams that come to a port.
pub(crate) fn sink(port: u16, time: Duration) -> Result<Value> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    socket.set_nonblocking(true)?;
    let mut buffer = vec![0; LARGEST];
    ensure!(readable(&socket, TIMEOUT)?, "no datagram came within {TIMEOUT:?}");
    let begin = Instant::now();
    let (mut count, mut bytes) = (0u64, 0u64);
    while begin.elapsed() < time {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                count += 1;
                bytes += length as u64;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => drop(readable(&socket, STALLED)?),
            Err(e) => return Err(e.into()),
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "counts of datagrams")]
    let (count, bytes) = (count as f64, bytes as f64);
    Ok(json!({"count": count, "per_second": count / seconds, "gbits": bytes * 8.0 / seconds / 1e9}))
}

fn readable(socket: &UdpSocket, limit: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::try_from(limit)?)? > 0)
}
