//! What a TCP socket in repair mode says of itself and takes (TCP_REPAIR of linux/tcp.h). None of it needs a privilege
//! once the mode is on.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{IPPROTO_TCP, SOL_SOCKET, c_int};

use super::options::{SO_PEEK_OFF, get, set, set_int};
use super::{cvt, options};

const TCP_REPAIR_QUEUE: c_int = 20;
const TCP_QUEUE_SEQ: c_int = 21;
const TCP_REPAIR_OPTIONS: c_int = 22;
const TCP_TIMESTAMP: c_int = 24;
const TCP_REPAIR_WINDOW: c_int = 29;
/// Which buffers' sizes are fixed (asm-generic/socket.h).
const SO_BUF_LOCK: c_int = 72;
/// Bytes that have not been sent (sockios.h).
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// A queue of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// None: what is sent and received concerns the peer.
    None = 0,
    /// What was received and not read.
    Receive = 1,
    /// What was written and not acknowledged.
    Send = 2,
}

/// `struct tcp_repair_window`: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
pub type Window = [u32; 5];

/// Chooses the queue that is meant from then on.
///
/// # Errors
/// `PermissionDenied` outside repair mode.
pub fn choose_queue(socket: BorrowedFd<'_>, queue: Queue) -> io::Result<()> {
    set_int(socket, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue as c_int)
}

/// The sequence number behind the chosen queue's last byte.
///
/// # Errors
/// As getsockopt(2).
pub fn queue_end(socket: BorrowedFd<'_>) -> io::Result<u32> {
    options::get(socket, IPPROTO_TCP, TCP_QUEUE_SEQ)
}

/// Sets the sequence number at which the chosen queue begins; only before the socket is connected.
///
/// # Errors
/// As setsockopt(2).
pub fn set_queue_start(socket: BorrowedFd<'_>, sequence: u32) -> io::Result<()> {
    set(socket, IPPROTO_TCP, TCP_QUEUE_SEQ, &[sequence])
}

/// Appends a copy of the chosen queue's first `len` bytes, or of as many as there are.
///
/// # Errors
/// As recv(2).
pub fn copy_queue(socket: BorrowedFd<'_>, len: usize, to: &mut Vec<u8>) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    to.reserve_exact(len);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `len` bytes behind the vector's own, where as many are reserved.
    let n = cvt(unsafe { libc::recv(socket.as_raw_fd(), to.as_mut_ptr().add(to.len()).cast(), len, flags) })?;
    // SAFETY: the kernel has written `n` bytes there, which is no more than was reserved.
    unsafe { to.set_len(to.len() + n) };
    Ok(())
}

/// Appends to the chosen queue, or sends where none is; as many bytes as there is room for.
///
/// # Errors
/// As send(2), `WouldBlock` without room.
pub fn append(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads at most the slice's bytes.
    cvt(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Bytes in the send queue, and those of them that have not been sent; a FIN counts as one until it is acknowledged.
///
/// # Errors
/// As ioctl(2).
pub fn send_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut queued: c_int = 0;
    // SAFETY: SIOCOUTQ writes one int.
    cvt(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut queued) } as isize)?;
    Ok((u32::try_from(queued).unwrap_or(0), unsent(socket)?))
}

/// Bytes that have not been sent.
///
/// # Errors
/// As ioctl(2).
pub fn unsent(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut unsent: c_int = 0;
    // SAFETY: SIOCOUTQNSD writes one int.
    cvt(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD, &mut unsent) } as isize)?;
    Ok(u32::try_from(unsent).unwrap_or(0))
}

/// The windows.
///
/// # Errors
/// As getsockopt(2).
pub fn window(socket: BorrowedFd<'_>) -> io::Result<Window> {
    get(socket, IPPROTO_TCP, TCP_REPAIR_WINDOW)
}

/// Sets the windows, once the queues are filled.
///
/// # Errors
/// `InvalidInput` where they contradict each other or the queues.
pub fn set_window(socket: BorrowedFd<'_>, window: &Window) -> io::Result<()> {
    set(socket, IPPROTO_TCP, TCP_REPAIR_WINDOW, window)
}

/// The socket's clock, as its timestamps have it.
///
/// # Errors
/// As getsockopt(2).
pub fn timestamp(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get(socket, IPPROTO_TCP, TCP_TIMESTAMP)
}

/// Sets the socket's clock.
///
/// # Errors
/// As setsockopt(2).
pub fn set_timestamp(socket: BorrowedFd<'_>, value: u32) -> io::Result<()> {
    set(socket, IPPROTO_TCP, TCP_TIMESTAMP, &[value])
}

/// The largest segment that the peer takes.
///
/// # Errors
/// As getsockopt(2).
pub fn largest_segment(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get(socket, IPPROTO_TCP, libc::TCP_MAXSEG)
}

/// Sets the options that both ends have agreed on: pairs of kind (RFC 9293 3.1) and value.
///
/// # Errors
/// As setsockopt(2).
pub fn set_agreed(socket: BorrowedFd<'_>, agreed: &[[u32; 2]]) -> io::Result<()> {
    set(socket, IPPROTO_TCP, TCP_REPAIR_OPTIONS, agreed.as_flattened())
}

/// Lets the kernel choose the sizes of a socket's buffers again, which it does not once a program has set them
/// (SO_BUF_LOCK of Linux 5.14).
///
/// # Errors
/// As setsockopt(2).
pub fn unlock_buffers(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, SOL_SOCKET, SO_BUF_LOCK, 0)
}

/// SO_PEEK_OFF; below zero where it is off.
///
/// # Errors
/// As getsockopt(2).
pub fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    get::<u32>(socket, SOL_SOCKET, SO_PEEK_OFF).map(u32::cast_signed)
}

/// Limits how many bytes a second leave; `u32::MAX` ends the limit.
///
/// # Errors
/// As setsockopt(2).
#[cfg(test)]
pub(crate) fn pace(socket: BorrowedFd<'_>, rate: u32) -> io::Result<()> {
    set(socket, SOL_SOCKET, libc::SO_MAX_PACING_RATE, &[rate])
}
