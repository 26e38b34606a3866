//! A proxy in a pod's network namespace that keeps the client's address, as Istio's ztunnel does.
//!
//! ```text
//!   client ── eth0 ── nat, prerouting ── 15006 ── from the client's address, marked ── lo ── the pod's own port
//!   the pod's process ── nat, output ── 15001 ── marked ── eth0 ── where it was meant to go
//! ```
//!
//! The rules leave alone what is marked. Answers to the client's address come back to the proxy by way of the connection's
//! mark, which the rules restore, and a routing table that has everything be local. Where ztunnel speaks HBONE with its
//! peer's ztunnel (15008), this copies bytes: what the pod sees is the same.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, setsockopt, socket,
    sockopt,
};

/// The mark of what ztunnel opens.
pub(crate) const MARK: u32 = 0x539;
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;

/// Serves until it is killed.
pub(crate) fn run(mark: u32) -> Result<ExitCode> {
    let mut threads = Vec::new();
    for port in [OUTBOUND, INBOUND] {
        let listener =
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).with_context(|| format!("port {port}"))?;
        threads.push(std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                std::thread::spawn(move || carry(near, port == INBOUND, mark));
            }
        }));
    }
    println!("ready");
    for thread in threads {
        drop(thread.join());
    }
    Ok(ExitCode::SUCCESS)
}

fn carry(near: TcpStream, inbound: bool, mark: u32) {
    let way = if inbound { "in" } else { "out" };
    match onward(&near, inbound, mark) {
        Ok((far, from, to)) => {
            println!("{way} {from} -> {to}");
            copy(near, far);
        }
        Err(error) => {
            println!("{way} failed: {error:#}");
            reset(&near);
        }
    }
}

/// The connection to where another one was meant to go, whose it is, and where that is.
fn onward(near: &TcpStream, inbound: bool, mark: u32) -> Result<(TcpStream, IpAddr, SocketAddr)> {
    let from = near.peer_addr()?.ip().to_canonical();
    let (to, family) = if from.is_ipv4() {
        let to = getsockopt(near, sockopt::OriginalDst).context("the original destination")?;
        (SocketAddr::from((to.sin_addr.s_addr.to_ne_bytes(), u16::from_be(to.sin_port))), AddressFamily::Inet)
    } else {
        let to = getsockopt(near, sockopt::Ip6tOriginalDst).context("the original destination")?;
        let (address, port) = (Ipv6Addr::from(to.sin6_addr.s6_addr), u16::from_be(to.sin6_port));
        (SocketAddrV6::new(address, port, 0, 0).into(), AddressFamily::Inet6)
    };
    let far = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&far, sockopt::Mark, &mark)?;
    if inbound {
        // Of both families: it is one flag of the socket.
        setsockopt(&far, sockopt::IpTransparent, &true)?;
        setsockopt(&far, sockopt::ReuseAddr, &true)?;
        bind(far.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))
            .context("the client's address")?;
    }
    connect(far.as_raw_fd(), &SockaddrStorage::from(to)).with_context(|| to.to_string())?;
    Ok((far.into(), from, to))
}

/// Copies bytes both ways until both have ended; an end by a reset is handed on as one.
fn copy(near: TcpStream, far: TcpStream) {
    let pump = |from: &TcpStream, to: &TcpStream| {
        let (mut from, mut to) = (from, to);
        let mut buffer = [0; 16 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return drop(to.shutdown(Shutdown::Write)),
                Ok(size) if to.write_all(buffer.get(..size).unwrap_or_default()).is_ok() => {}
                _ => return [from, to].into_iter().for_each(reset),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pump(&near, &far));
        pump(&far, &near);
    });
}

/// Closed from here on, it ends by a reset.
fn reset(stream: &TcpStream) {
    // It may be gone.
    let _ = setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
    drop(stream.shutdown(Shutdown::Read));
}
