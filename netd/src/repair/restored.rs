//! A connection that was put together, until it speaks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use podvirt_proto::repair::{LONG, SHORT, receive_buffer_flags};
use socket2::SockRef;

use crate::sockets::plain_stream_options;
use crate::sys::repair as sys;
use crate::sys::repair::Window;

/// Where the kernel begins to size a send buffer, in bytes; it doubles that for its own accounting.
const SEND_BUFFER: usize = 64 << 10;

/// Whether everything that was never sent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// It is.
    Done,
    /// There is no room for it yet.
    Later,
}

/// What is left to do for a connection once it may speak.
#[derive(Debug)]
pub(crate) struct Restored {
    /// Its socket, as the flow has it.
    pub(crate) socket: OwnedFd,
    /// What it has to send, from the first byte on that the peer has not acknowledged.
    pub(super) queue: Vec<u8>,
    /// How many of these bytes were sent.
    pub(super) sent: usize,
    /// The first one goes alone: with more behind it, it would not fit into a window that is closed but for it; see
    /// [`super::Connection::repeat_byte`].
    pub(super) alone: bool,
    /// The pod has closed, and the peer has not acknowledged that.
    pub(super) close: bool,
    /// It was made anew.
    pub(super) made: Option<Made>,
    /// What its receive buffer has to hold, bytes: what was received, and what the peer may send.
    pub(super) receive_bytes: usize,
}

/// How a socket was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// As any.
    Small,
    /// With large buffers.
    Large,
    /// With the largest.
    Long,
}

impl Made {
    /// What the helper is told of it.
    pub(super) fn flags(self) -> u8 {
        match self {
            Made::Small => SHORT,
            Made::Large => 0,
            Made::Long => LONG,
        }
    }
}

impl Restored {
    /// What the helper is told when it lets go of it.
    pub(crate) fn flags(&self) -> u8 {
        match self.made {
            Some(made @ (Made::Large | Made::Long)) => {
                made.flags() & LONG | receive_buffer_flags(self.receive_bytes)
            }
            Some(Made::Small) | None => 0,
        }
    }

    /// Another descriptor of the socket, for the flow.
    ///
    /// # Errors
    /// As dup(2).
    pub(crate) fn for_flow(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// The same for a connection that was frozen and has stayed: nothing is left of it. One that was [taken
    /// apart](super::Connection::dump) has its windows back.
    pub(crate) fn stayed(socket: OwnedFd, window: Option<Window>) -> Restored {
        if let Some(Err(error)) = window.map(|window| sys::set_window(socket.as_fd(), &window)) {
            tracing::warn!(%error, "a connection that stays waits until its peer tells its window");
        }
        Restored {
            socket,
            queue: Vec::new(),
            sent: 0,
            alone: false,
            close: false,
            made: None,
            receive_bytes: 0,
        }
    }

    /// The mode has ended: sends what was never sent, as far as there is room, and the FIN if there is to be one.
    ///
    /// # Errors
    /// The peer has reset it.
    pub(crate) fn finish(&mut self) -> io::Result<Finished> {
        let s = SockRef::from(&self.socket);
        if self.made.is_some() {
            plain_stream_options(&s)?;
        }
        while let Some(left) = self.queue.get(self.sent..).filter(|left| !left.is_empty()) {
            let now = if self.alone && self.sent == 0 { &left[..1] } else { left };
            match sys::append(self.socket.as_fd(), now) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Finished::Later),
                Err(e) => return Err(e),
            }
        }
        if self.close {
            s.shutdown(std::net::Shutdown::Write)?;
        }
        // The end of the mode has taken this away: a listener of the same port could not be opened any more.
        s.set_reuse_address(true)?;
        if matches!(self.made, Some(Made::Large | Made::Long)) {
            // What the queues had at the other machine is no measure for this connection's way from here: the kernel
            // begins anew, as with any connection. The window that the peer knows stays.
            let sized =
                s.set_send_buffer_size(SEND_BUFFER).and_then(|()| sys::unlock_buffers(self.socket.as_fd()));
            if let Err(error) = sized {
                tracing::trace!(%error, "the socket's buffers keep their size");
            }
        }
        Ok(Finished::Done)
    }
}
