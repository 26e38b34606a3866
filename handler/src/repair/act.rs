//! What is done to one socket, after it was looked at.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::PoisonError;

use nix::sys::socket::{setsockopt, sockopt};
use podvirt_proto::repair::{ACCEPTED, Command, LONG, LONG_LEFT, LONG_ROOM, ROOM, SHORT, receive_buffer};
use socket2::{Domain, Protocol, SockFilter, SockRef, Type};
use tracing::debug;

use super::conntrack;
use super::namespace::Inside;
use crate::socket_options::AttachBpf;

/// Filters (linux/filter.h): code, jumps when true and when not, and a number. A socket's filter sees a segment from its
/// TCP header on. No segment is taken.
const DROP_ALL: [(u16, u8, u8, u32); 1] = [(RETURN, 0, 0, 0)];
/// No SYN is taken: the byte of flags, is SYN in it. Handshakes that have begun go on; what is accepted has the listener's
/// filter, which is harmless there.
const DROP_SYN: [(u16, u8, u8, u32); 4] =
    [(LOAD_BYTE, 0, 0, 13), (JUMP_IF_SET, 0, 1, 2), (RETURN, 0, 0, 0), (RETURN, 0, 0, u32::MAX)];
/// BPF_RET | BPF_K, BPF_LD | BPF_B | BPF_ABS, BPF_JMP | BPF_JSET | BPF_K.
const RETURN: u16 = 0x6;
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_SET: u16 = 0x45;
/// TCP_REPAIR's values (linux/tcp.h); the last is -1: no window probe.
const ON: u32 = 1;
const OFF: u32 = 0;
const OFF_SILENTLY: u32 = u32::MAX;

/// Whether the pod may have anything done to this socket.
///
/// # Errors
/// EPERM.
fn check(inside: &Inside, socket: &OwnedFd) -> io::Result<()> {
    let s = SockRef::from(socket);
    let refused = || io::Error::from_raw_os_error(libc::EPERM);
    let tcp = || -> io::Result<bool> {
        let family = matches!(s.domain()?, Domain::IPV4 | Domain::IPV6);
        Ok(family && s.r#type()? == Type::STREAM && s.protocol()? == Some(Protocol::TCP))
    };
    match (tcp(), inside.has(socket.as_fd())) {
        (Ok(true), Ok(true)) => Ok(()),
        _ => Err(refused()),
    }
}

/// Does what is asked of a socket.
///
/// # Errors
/// EPERM for what is no TCP socket of the namespace, EADDRNOTAVAIL for what cannot go on at the target, otherwise as the
/// kernel answers.
pub(super) fn act(inside: &Inside, command: Command, socket: &OwnedFd, flags: u8) -> io::Result<()> {
    check(inside, socket)?;
    let s = SockRef::from(socket);
    match command {
        Command::Freeze => {
            if s.is_listener()? {
                // Nothing of it is repaired, and no peer that wants to connect is answered.
                return filter(&s, &DROP_SYN);
            }
            if inside.is_choosy() {
                let from = s.local_addr()?.as_socket();
                if !from.is_some_and(|from| inside.can_go(from.ip())) {
                    return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
                }
            }
            // In this order: a socket in repair mode receives and acknowledges as any other.
            deafen(inside, socket)?;
            let frozen = setsockopt(socket, sockopt::TcpRepair, &ON);
            if frozen.is_err() {
                s.detach_filter()?;
            }
            Ok(frozen?)
        }
        Command::Repair => {
            // The address speaks before every connection goes on, and what comes for one that does not is to come again.
            deafen(inside, socket)?;
            setsockopt(socket, sockopt::TcpRepair, &ON)?;
            if flags & SHORT != 0 {
                return Ok(());
            }
            // More than the system allows by itself: the other machine's kernel let the queues grow.
            let room = if flags & LONG != 0 { LONG_ROOM } else { ROOM };
            setsockopt(socket, sockopt::SndBufForce, &room)?;
            Ok(setsockopt(socket, sockopt::RcvBufForce, &room)?)
        }
        Command::Release => {
            if flags & ACCEPTED != 0 {
                track(inside, &s);
            }
            // What is in the queue stays there. The kernel doubles the number for its own accounting.
            let left = receive_buffer(flags).map(|bytes| bytes / 2);
            if let Some(left) = left.or((flags & LONG != 0).then_some(LONG_LEFT)) {
                setsockopt(socket, sockopt::RcvBufForce, &left)?;
            }
            // In this order: the end of the mode sends a probe, whose answer is to be heard.
            hear(&s)?;
            Ok(setsockopt(socket, sockopt::TcpRepair, &OFF)?)
        }
        Command::Thaw => {
            if !s.is_listener()? {
                setsockopt(socket, sockopt::TcpRepair, &OFF_SILENTLY)?;
            }
            hear(&s)
        }
        Command::Ping => Ok(()),
    }
}

/// Has a connection take no segment.
fn deafen(inside: &Inside, socket: &OwnedFd) -> io::Result<()> {
    match &inside.silence {
        Some(silence) => Ok(setsockopt(socket, AttachBpf, &silence.as_raw_fd())?),
        None => filter(&SockRef::from(socket), &DROP_ALL),
    }
}

/// Has it take segments again.
fn hear(s: &SockRef<'_>) -> io::Result<()> {
    match s.detach_filter() {
        // It was done already: the backend that asks has not heard so.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        detached => detached,
    }
}

fn filter(s: &SockRef<'_>, program: &[(u16, u8, u8, u32)]) -> io::Result<()> {
    let program: Vec<SockFilter> =
        program.iter().map(|(code, yes, no, k)| SockFilter::new(*code, *yes, *no, *k)).collect();
    s.attach_filter(&program)
}

/// Sets TCP_REPAIR to `value`, as passt asks.
///
/// # Errors
/// As [`act`].
pub(super) fn set(inside: &Inside, value: i8, socket: &OwnedFd) -> io::Result<()> {
    check(inside, socket)?;
    let value = match value {
        1 => ON,
        0 => OFF,
        _ => OFF_SILENTLY,
    };
    Ok(setsockopt(socket, sockopt::TcpRepair, &value)?)
}

/// Makes the entry for a connection that the pod accepted. Without one the connection may go astray, and need not.
fn track(inside: &Inside, s: &SockRef<'_>) {
    let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let end = |at: io::Result<socket2::SockAddr>| at.ok()?.as_socket().map(plain);
    let (Some(pod), Some(client)) = (end(s.local_addr()), end(s.peer_addr())) else { return };
    let Some(netfilter) = &inside.netfilter else { return };
    let netfilter = netfilter.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = conntrack::insert(&netfilter, client, pod) {
        debug!(%client, %pod, %error, "no entry of connection tracking");
    }
}
