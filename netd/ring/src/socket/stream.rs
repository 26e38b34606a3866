//! TCP payload between guest memory and the pod's sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{cvt, cvt_on};
use crate::Iovs;

/// Most slices one call takes (IOV_MAX of Linux).
const MAX_SLICES: usize = 1024;

/// Sends all of `payload` and returns how many bytes the socket took.
///
/// # Errors
/// As sendmsg(2); `WouldBlock` when the send buffer is full.
pub fn send(socket: BorrowedFd<'_>, payload: &Iovs) -> io::Result<usize> {
    let raw = payload.as_raw();
    // SAFETY: msghdr is plain data for which all zeroes is a valid value (no name, no control data).
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = raw.as_ptr().cast_mut();
    msg.msg_iovlen = raw.len().min(MAX_SLICES);
    // SAFETY: the slices are mapped for as long as `payload` lives, and sendmsg only reads them. The guest may
    // change them at the same time; the kernel copes with that as with any shared memory.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    cvt_on(payload, n)
}

/// How the start of unsent data is found in the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The kernel keeps the offset (SO_PEEK_OFF).
    Kernel,
    /// It does not: bytes already sent are copied into a waste buffer first.
    Skip(u32),
}

/// Size of the waste buffer; slices of it are repeated for longer skips.
const WASTE_BYTES: usize = 64 << 10;

/// Peeks received bytes into `room` and returns how many; zero means end of stream.
///
/// No read goes beyond the urgent mark of a peer but one that begins there. With [`Peek::Skip`] what lies behind the mark
/// is therefore out of reach until everything before it was discarded.
///
/// # Errors
/// As recvmsg(2); `WouldBlock` when there is nothing new, or nothing within reach.
pub fn peek(socket: BorrowedFd<'_>, room: &Iovs, from: Peek) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: as in `send`.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    match from {
        Peek::Kernel | Peek::Skip(0) => {
            let raw = room.as_raw();
            msg.msg_iov = raw.as_ptr().cast_mut();
            msg.msg_iovlen = raw.len().min(MAX_SLICES);
            // SAFETY: the slices are writable guest memory that stays mapped while `room` lives. No Rust
            // reference to it exists, so the kernel writing there breaks no aliasing rule.
            let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut msg, flags) };
            cvt_on(room, n)
        }
        Peek::Skip(skip) => {
            let skip = skip as usize;
            let mut waste = vec![0u8; WASTE_BYTES.min(skip)];
            let mut iov = Vec::with_capacity(MAX_SLICES);
            let mut left = skip;
            while left > 0 && iov.len() < MAX_SLICES {
                let len = left.min(waste.len());
                iov.push(libc::iovec { iov_base: waste.as_mut_ptr().cast(), iov_len: len });
                left -= len;
            }
            let rest = MAX_SLICES - iov.len();
            iov.extend(room.as_raw().iter().take(rest));
            msg.msg_iov = iov.as_mut_ptr();
            msg.msg_iovlen = iov.len();
            // SAFETY: `waste` outlives the call and is written several times over on purpose; the other slices
            // as above.
            let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut msg, flags) };
            let n = cvt_on(room, n)?;
            match n.checked_sub(skip) {
                None | Some(0) => eof_or_wait(socket, skip),
                Some(new) => Ok(new),
            }
        }
    }
}

/// Nothing lies behind what was skipped: tells the end of the stream from a pause.
fn eof_or_wait(socket: BorrowedFd<'_>, skip: usize) -> io::Result<usize> {
    // TCP_CLOSE_WAIT (8), TCP_LAST_ACK (9), TCP_CLOSING (11), TCP_TIME_WAIT (6), TCP_CLOSE (7): FIN received.
    let ended = matches!(state(socket)?, 6..=9 | 11);
    if ended && received_bytes(socket).is_ok_and(|queued| queued as usize <= skip) {
        return Ok(0);
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// The state of the connection: the first byte of `struct tcp_info` (linux/tcp.h).
fn state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let (mut state, mut len) = (0_u8, 1);
    // SAFETY: the kernel writes as many bytes as `len` says at most, and `state` lives through the call.
    let n = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut state).cast(),
            &mut len,
        )
    };
    cvt(n as isize).map(|_| state)
}

/// Bytes in the receive queue, those that were peeked included (SIOCINQ of tcp(7)).
///
/// # Errors
/// As ioctl(2).
pub fn received_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut queued: libc::c_int = 0;
    // SAFETY: SIOCINQ writes one int.
    cvt(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut queued) } as isize)?;
    Ok(u32::try_from(queued).unwrap_or(0))
}

/// Removes `n` bytes from the receive queue without copying them; with a kernel peek offset that moves back by
/// as much.
///
/// # Errors
/// As recv(2).
pub fn discard(socket: BorrowedFd<'_>, n: u32) -> io::Result<usize> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and writes nothing to the buffer (tcp(7)).
    cvt(unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), n as usize, flags) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn what_is_skipped_beyond_the_urgent_mark_is_not_the_end_of_the_stream() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        SockRef::from(&near).set_out_of_band_inline(true).unwrap();
        peer.write_all(b"0123456789").unwrap();
        SockRef::from(&peer).send_out_of_band(b"U").unwrap();
        peer.write_all(b"bcdef").unwrap();
        while received_bytes(near.as_fd()).unwrap() < 16 {
            std::thread::yield_now();
        }
        let room = Iovs::from_owned(vec![0; 100]);
        let after = |skip| peek(near.as_fd(), &room, Peek::Skip(skip)).map_err(|e| e.kind());
        assert_eq!(after(4), Ok(6), "up to the mark");
        for skip in [10, 11, 13, 16] {
            assert_eq!(after(skip), Err(io::ErrorKind::WouldBlock), "{skip} bytes");
        }
        // Once the mark is the queue's first byte a read goes on.
        assert_eq!(discard(near.as_fd(), 10).unwrap(), 10);
        assert_eq!((after(0), after(2)), (Ok(6), Ok(4)));
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        while after(6) != Ok(0) {
            std::thread::yield_now();
        }
    }
}
