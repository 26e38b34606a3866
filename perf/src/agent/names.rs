//! Questions, each from a fresh port, as a resolver asks for names.
//!
//! A socket for each question is a dozen system calls, of which User Mode Linux makes some thousands a second: the guest
//! would not reach the rate. So one raw socket sends and hears for all ports; on the link it is the same.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::libc::{BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET};
use nix::sys::socket::{MsgFlags, recv, send};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// For the last answers.
const LOST: Duration = Duration::from_secs(1);
/// How often the clock is looked at when there is nothing to do.
const TICK: Duration = Duration::from_micros(500);
/// Bytes of a question behind its header.
const QUESTION: usize = 40;
/// A UDP header (RFC 768).
const HEADER: usize = 8;
/// The first port that asks, and how many do, in turn. The guest serves below them.
const FIRST: u16 = 10_000;
const PORTS: u64 = 50_000;
/// The kernel doubles it and limits it.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Asks so many questions a second and counts the answers.
pub(crate) fn names(address: SocketAddr, time: Duration, rate: u32) -> Result<Value> {
    ensure!(rate > 0, "nothing to ask");
    let SocketAddr::V4(address) = address else { bail!("not IPv4: {address}") };
    let socket = hears_only(address)?;
    let mut waiting = vec![false; PORTS as usize];
    let (mut asked, mut answered) = (0u64, 0u64);
    let begin = Instant::now();
    loop {
        let elapsed = begin.elapsed();
        if elapsed > time + LOST || (elapsed > time && asked == answered) {
            break;
        }
        let due = elapsed.min(time).as_micros() as u64 * u64::from(rate) / 1_000_000;
        while asked < due {
            let place = asked % PORTS;
            // One that the kernel does not take is lost, as any other.
            _ = send(
                socket.as_raw_fd(),
                &question(FIRST + place as u16, address.port()),
                MsgFlags::MSG_DONTWAIT,
            );
            waiting[place as usize] = true;
            asked += 1;
        }
        while let Some(port) = answer(&socket) {
            let place = usize::from(port.wrapping_sub(FIRST));
            if waiting.get_mut(place).is_some_and(std::mem::take) {
                answered += 1;
            }
        }
        std::thread::sleep(TICK);
    }
    #[allow(clippy::cast_precision_loss, reason = "counts of datagrams")]
    let (asked, answered) = (asked as f64, answered as f64);
    Ok(json!({
        "per_second": answered / time.as_secs_f64(),
        "answered_share": answered / asked.max(1.0),
    }))
}

/// A raw socket that hears only what comes from a port of a peer.
fn hears_only(address: SocketAddrV4) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).context("a raw socket")?;
    let step = |code: u32, jt, jf, k| SockFilter::new(code as u16, jt, jf, k);
    socket.attach_filter(&[
        // The IP header's length, and the source port behind it.
        step(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),
        step(BPF_LD | BPF_H | BPF_IND, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, address.port().into()),
        step(BPF_RET | BPF_K, 0, 0, u32::MAX),
        step(BPF_RET | BPF_K, 0, 0, 0),
    ])?;
    // Which of the peer's ports a raw socket's peer has is of no matter (raw(7)).
    socket.connect(&SocketAddrV4::new(*address.ip(), 0).into())?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    Ok(socket)
}

/// A question, from its UDP header on; without a checksum, as IPv4 allows.
fn question(from: u16, to: u16) -> [u8; HEADER + QUESTION] {
    let mut question = [b'?'; HEADER + QUESTION];
    question[0..2].copy_from_slice(&from.to_be_bytes());
    question[2..4].copy_from_slice(&to.to_be_bytes());
    question[4..6].copy_from_slice(&((HEADER + QUESTION) as u16).to_be_bytes());
    question[6..8].copy_from_slice(&[0, 0]);
    question
}

/// The port that the next answer has come to.
fn answer(socket: &Socket) -> Option<u16> {
    let mut buffer = [0; 60 + HEADER + QUESTION];
    let len = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()?;
    let header = usize::from(buffer[0] & 15) * 4;
    let port = buffer.get(header + 2..header + 4).filter(|_| header + 4 <= len)?;
    Some(u16::from_be_bytes(port.try_into().ok()?))
}
