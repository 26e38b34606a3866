//! A connection taken apart, and put together again.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podvirt_proto::repair::ROOM;
use socket2::{Domain, Protocol, SockRef, Type};

use super::restored::{Made, Restored};
use crate::codec::{DecodeError, Field, Reader, fields, nested};
use crate::sockets::{PeekOffset, in_line, socket};
use crate::sys::repair as sys;
use crate::sys::repair::{Queue, Window};
use crate::sys::{received_bytes, tcp_info};

/// Bytes that either queue may have: as much as tcp_rmem and tcp_wmem usually allow.
pub(crate) const QUEUE: usize = 32 << 20;

/// Bytes for which a helper's usual room is enough, whatever they are packed in.
const LARGE_QUEUE: usize = ROOM / 2 * 3;

/// Bytes that fit into either queue of any socket, and the window that its receive buffer is large enough for: the kernel
/// begins with a send buffer of 16 KiB and a receive buffer of 128 KiB, which it does not fill to the last byte.
const SHORT_QUEUE: usize = 4 << 10;
const SHORT_WINDOW: u32 = 64 << 10;

/// Bits of `tcpi_options` (linux/tcp.h).
mod agreed {
    pub(super) const TIMESTAMPS: u8 = 1;
    pub(super) const SACK: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 4;
}

/// Kinds of options (RFC 9293 3.1, RFC 7323, RFC 2018).
mod kind {
    pub(super) const MSS: u32 = 2;
    pub(super) const WINDOW_SCALE: u32 = 3;
    pub(super) const SACK: u32 = 4;
    pub(super) const TIMESTAMPS: u32 = 8;
}

/// States of a socket (net/tcp_states.h).
mod state {
    pub(super) const ESTABLISHED: u8 = 1;
    pub(super) const FIN_WAIT1: u8 = 4;
    pub(super) const FIN_WAIT2: u8 = 5;
    pub(super) const CLOSE_WAIT: u8 = 8;
    pub(super) const LAST_ACK: u8 = 9;
    pub(super) const CLOSING: u8 = 11;
}

/// Bytes in one piece.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Field for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        nested(out, |out| out.extend(&self.0));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Bytes(r.nested()?.rest().to_vec()))
    }
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The socket's state.
    state: u8,
    /// What was agreed on.
    options: u8,
    /// Both ends' window scales, the peer's in the lower half.
    scales: u8,
    mss: u32,
    timestamp: u32,
    /// snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
    window: Vec<u32>,
    /// Sequence numbers behind the last byte of each queue.
    send_end: u32,
    receive_end: u32,
    /// How many bytes at the end of the send queue were never sent.
    unsent: u32,
    /// SO_PEEK_OFF, where the kernel keeps it.
    peek_offset: Option<u32>,
    send: Bytes,
    receive: Bytes,
}
fields!(Connection {
    state,
    options,
    scales,
    mss,
    timestamp,
    window,
    send_end,
    receive_end,
    unsent,
    peek_offset,
    send,
    receive,
});

/// Room for the queues of one connection after the other: megabytes of memory that is new to the process cost the kernel more than
/// the copies themselves.
#[derive(Debug, Default)]
pub(crate) struct Room {
    send: Vec<u8>,
    receive: Vec<u8>,
}

/// A connection whose socket was taken apart.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) connection: Connection,
    /// How many bytes its peer has acknowledged.
    pub(crate) acked: u64,
    /// The windows of the socket, by which it goes on if it stays.
    pub(crate) window: Window,
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
impl Connection {
    /// One in the middle of its life.
    pub(crate) fn sample() -> Connection {
        Connection {
            state: state::CLOSE_WAIT,
            options: agreed::TIMESTAMPS | agreed::SACK | agreed::WINDOW_SCALE,
            scales: 0x79,
            mss: 1448,
            timestamp: 0x1234_5678,
            window: vec![1, 65_535, 65_535, 64_240, 2],
            send_end: 1006,
            receive_end: 2004,
            unsent: 2,
            peek_offset: Some(1),
            send: Bytes(b"queued".to_vec()),
            receive: Bytes(b"read".to_vec()),
        }
    }
}

impl Connection {
    /// Takes apart a socket that is in repair mode and receives nothing. From then on it sends nothing that it had not sent:
    /// the kernel takes the peer's window for closed, until [`Restored::stayed`] opens it again. Without that, what waits in
    /// a queue of the pod's interface, or for the time at which the connection's pace allows it, would still be followed by
    /// more, and bytes that the peer has would be taken for unsent.
    ///
    /// # Errors
    /// It is in a state that cannot be moved, or not in repair mode. The socket is as it was before.
    pub(crate) fn dump(socket: BorrowedFd<'_>, room: Room) -> io::Result<Apart> {
        let window = possible(sys::window(socket)?);
        let [told_at, _, largest, own, own_at] = window;
        sys::set_window(socket, &[told_at, 0, largest, own, own_at])?;
        let taken = Connection::take(socket, window, room);
        if taken.is_err() {
            sys::set_window(socket, &window)?;
        }
        taken.map(|(connection, acked)| Apart { connection, acked, window })
    }

    fn take(socket: BorrowedFd<'_>, window: Window, room: Room) -> io::Result<(Connection, u64)> {
        let info = tcp_info(socket)?;
        // A FIN that is on its way counts as a byte.
        let fin = match info.state {
            state::ESTABLISHED | state::CLOSE_WAIT | state::FIN_WAIT2 => 0,
            state::FIN_WAIT1 | state::LAST_ACK | state::CLOSING => 1,
            _ => return Err(refused("the connection is neither open nor half-closed")),
        };
        let (queued, unsent) = sys::send_queue(socket)?;
        let to_send = queued.saturating_sub(fin) as usize;
        let received = received_bytes(socket)? as usize;
        if to_send > QUEUE || received > QUEUE {
            return Err(refused("a queue is longer than 32 MiB"));
        }
        let peek_offset = sys::peek_offset(socket).ok().and_then(|at| u32::try_from(at).ok());
        // The copy begins at the queue's first byte.
        let moved = peek_offset.filter(|_| received > 0);
        if moved.is_some() {
            crate::sys::enable_peek_offset(socket, u32::MAX)?;
        }
        let copied = Connection::copy(socket, to_send, received, room);
        if let Some(at) = moved {
            crate::sys::enable_peek_offset(socket, at)?;
        }
        let (send_end, receive_end, Room { send, receive }) = copied?;
        if send.len() != to_send || receive.len() != received {
            return Err(refused("a queue is shorter than the socket says"));
        }
        let connection = Connection {
            state: info.state,
            options: info.options,
            scales: info.wscale,
            mss: sys::largest_segment(socket)?,
            timestamp: sys::timestamp(socket)?,
            window: window.to_vec(),
            send_end: send_end.wrapping_sub(fin),
            receive_end,
            unsent: unsent.saturating_sub(fin).min(to_send as u32),
            peek_offset,
            send: Bytes(send),
            receive: Bytes(receive),
        };
        Ok((connection, info.bytes_acked))
    }

    /// Copies both queues into the room; beside it, the sequence numbers behind their last bytes.
    fn copy(
        socket: BorrowedFd<'_>,
        send: usize,
        receive: usize,
        mut room: Room,
    ) -> io::Result<(u32, u32, Room)> {
        let Room { send: sent, receive: received } = &mut room;
        sent.clear();
        received.clear();
        sys::choose_queue(socket, Queue::Send)?;
        let send_end = sys::queue_end(socket)?;
        sys::copy_queue(socket, send, sent)?;
        sys::choose_queue(socket, Queue::Receive)?;
        let receive_end = sys::queue_end(socket)?;
        sys::copy_queue(socket, receive, received)?;
        // A peek ends at the urgent mark; one that begins there goes on. Kernels without a peek offset leave it at that.
        while !received.is_empty() && received.len() < receive {
            crate::sys::enable_peek_offset(socket, received.len() as u32)?;
            let more = sys::copy_queue(socket, receive - received.len(), received);
            crate::sys::enable_peek_offset(socket, u32::MAX)?;
            more?;
        }
        // The choice ends with the mode.
        Ok((send_end, receive_end, room))
    }

    /// The room of its queues, for another one.
    pub(crate) fn into_room(self) -> Room {
        Room { send: self.send.0, receive: self.receive.0 }
    }

    /// Has the connection begin with a byte that its peer has acknowledged, where it has more to send and nothing of it is on
    /// its way: the peer's window is full, and may be opened while no socket hears it. The peer does not say so again, and need
    /// not answer the probe by which repair ends: Linux answers one without data in half a second, and the source may have had
    /// that. A byte that it has is answered at once, with the window as it is (RFC 9293 3.10.7.4), and nothing of it stays on
    /// its way: a byte beyond a window that stays closed would be sent again after 3 s, 6 s, 12 s ..., also when the
    /// window has long been opened. Whether it does so; one byte less is acknowledged then.
    pub(crate) fn repeat_byte(&mut self) -> bool {
        let [_, send, largest, ..] = self.window.as_mut_slice() else { return false };
        if self.unsent == 0 || self.unsent as usize != self.send.0.len() {
            return false;
        }
        *send = send.saturating_add(1);
        *largest = (*largest).max(*send);
        // Which byte it is the peer does not look at.
        self.send.0.insert(0, 0);
        self.unsent += 1;
        true
    }

    /// What the helper is told of the room it needs.
    pub(crate) fn room(&self) -> u8 {
        self.made().flags()
    }

    /// The window that the peer was told.
    fn own_window(&self) -> u32 {
        self.window.get(3).copied().unwrap_or(u32::MAX)
    }

    /// What the receive buffer has to hold: what was received, and what the peer may send. That is at most what the buffer at the
    /// source had, and so a connection whose reader is slow has the same buffer after many moves. A larger one would be filled by the
    /// peer, be copied in the next move, and be counted to the pod's memory. At the system's limit (tcp_rmem) a full buffer has
    /// the kernel take back windows that it has offered, and both ends may then wait for each other for ever: it passes over a window
    /// that the peer tells at an earlier sequence number than before.
    fn receive_bytes(&self) -> usize {
        self.receive.0.len().saturating_add(self.own_window() as usize)
    }

    fn made(&self) -> Made {
        let queue = self.send.0.len().max(self.receive.0.len());
        let window = self.own_window();
        // Any socket has room for it, as those of idle connections do.
        if queue <= SHORT_QUEUE && window <= SHORT_WINDOW {
            Made::Small
        } else if queue.max(window as usize) <= LARGE_QUEUE {
            Made::Large
        } else {
            Made::Long
        }
    }

    /// A socket that can be put into repair mode for a connection.
    ///
    /// # Errors
    /// As socket(2).
    pub(crate) fn socket(peer: SocketAddr) -> io::Result<OwnedFd> {
        let s = socket(Domain::for_address(peer), Type::STREAM, Protocol::TCP)?;
        s.set_reuse_address(true)?;
        // Before it speaks: what is urgent may be the first thing that it hears.
        in_line(&s)?;
        Ok(s.into())
    }

    /// Puts the connection together in a socket that is in repair mode and says nothing yet. The kernel is asked by
    /// `peek` for the peek offset; whether it keeps it is answered.
    ///
    /// # Errors
    /// The address is not this machine's, the connection is here already, or its values are none.
    pub(crate) fn restore(
        self,
        socket: OwnedFd,
        (local, peer): (SocketAddr, SocketAddr),
        peek: PeekOffset,
    ) -> io::Result<(Restored, bool)> {
        let made = Some(self.made());
        let receive_bytes = self.receive_bytes();
        let window = Window::try_from(self.window).map_err(|_| refused("five numbers make a window"))?;
        let unsent = self.unsent as usize;
        let sent = self.send.0.len().checked_sub(unsent).ok_or_else(|| refused("more unsent than queued"))?;
        let fd = socket.as_fd();
        sys::choose_queue(fd, Queue::Send)?;
        sys::set_queue_start(fd, self.send_end.wrapping_sub(self.send.0.len() as u32))?;
        sys::choose_queue(fd, Queue::Receive)?;
        sys::set_queue_start(fd, self.receive_end.wrapping_sub(self.receive.0.len() as u32))?;
        let s = SockRef::from(&socket);
        s.bind(&local.into())?;
        s.connect(&peer.into())?;
        let (peers, own) = (u32::from(self.scales & 15), u32::from(self.scales >> 4));
        let option = |bit: u8, kind: u32, value: u32| (self.options & bit != 0).then_some([kind, value]);
        let options = [
            option(agreed::SACK, kind::SACK, 0),
            option(agreed::WINDOW_SCALE, kind::WINDOW_SCALE, peers | own << 16),
            option(agreed::TIMESTAMPS, kind::TIMESTAMPS, 0),
            Some([kind::MSS, self.mss]),
        ];
        sys::set_agreed(fd, &options.into_iter().flatten().collect::<Vec<_>>())?;
        sys::set_timestamp(fd, self.timestamp)?;
        let (sent, rest) = self.send.0.split_at(sent);
        for (queue, bytes) in [(Queue::Receive, &self.receive.0[..]), (Queue::Send, sent)] {
            if !bytes.is_empty() {
                sys::choose_queue(fd, queue)?;
                fill(fd, bytes)?;
            }
        }
        sys::set_window(fd, &begun(window, sent, rest))?;
        let peek_offset = self.peek_offset.filter(|_| peek.of(peer.ip()));
        if let Some(at) = peek_offset {
            crate::sys::enable_peek_offset(fd, at)?;
        }
        // What the peer has said by its FIN was heard: reading ends behind the queue, without a packet.
        if matches!(self.state, state::CLOSE_WAIT | state::LAST_ACK | state::CLOSING) {
            s.shutdown(std::net::Shutdown::Read)?;
        }
        let close = matches!(self.state, state::FIN_WAIT1 | state::LAST_ACK | state::CLOSING);
        let (sent, queue) = (sent.len(), self.send.0);
        let restored = Restored { socket, queue, sent, alone: sent == 0, close, made, receive_bytes };
        Ok((restored, peek_offset.is_some()))
    }
}

/// The window that a connection begins with that has bytes on their way, and bytes that were never sent.
///
/// A socket that connects in repair mode expects that the peer's window is 0. It takes a header with such a window for one that
/// changes nothing (header prediction in the kernel's `tcp_rcv_established`) until the peer's window has differed once from the
/// one that the socket was given. Where bytes were on their way, their acknowledgement, with a window of 0, may have come to the
/// frozen socket. Its repetition, taken for one that changes nothing, would leave a window open that the peer has closed: what is
/// sent then is lost, and sent again later and later. Such a connection begins with a window of 0, until the peer has answered
/// the probe by which repair ends. One without bytes begins with a byte less than the peer has told, so that the peer's next
/// header differs. For one that begins with a byte alone see [`Connection::repeat_byte`].
fn begun(window: Window, on_their_way: &[u8], unsent: &[u8]) -> Window {
    let [told_at, told, largest, own, own_at] = window;
    let begun = match (on_their_way, unsent) {
        ([], []) => told.saturating_sub(1),
        ([], _) => told,
        _ => 0,
    };
    [told_at, begun, largest, own, own_at]
}

/// The same windows as the kernel takes them. Where it has no room for what comes, it takes back a window that it has offered. A segment
/// beyond what is offered now may have told the peer's window before that: in such a state the kernel refuses to set the
/// windows that it has itself.
fn possible([told_at, told, largest, own, own_at]: Window) -> Window {
    let end = own_at.wrapping_add(own);
    let beyond = told_at.wrapping_sub(end).cast_signed() > 0;
    [if beyond { end } else { told_at }, told, largest, own, own_at]
}

/// Fills the chosen queue: the kernel takes it in parts.
fn fill(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = sys::append(socket, bytes)?;
        bytes = bytes.get(n..).unwrap_or_default();
    }
    Ok(())
}
