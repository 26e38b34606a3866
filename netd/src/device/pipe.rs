//! The pipe that a state goes through, and the records that come out of it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::codec::{DecodeError, MAGIC};
use crate::repair::QUEUE;
use crate::state::StateError;

/// Bytes written or read at once: what a pipe holds.
pub(super) const CHUNK: usize = 64 << 10;
/// How long, in milliseconds, the frontend may take nothing, or give nothing.
const TIMEOUT_MS: u16 = 10_000;
/// The longest record: a connection with full queues, and the rest of it.
const RECORD: u64 = 2 * QUEUE as u64 + (64 << 10);
/// All records but those of sockets together: for each flow that there may be, and for ports and frames that wait. What
/// netd may have of memory ([`crate::sandbox::data_limit`]) is some times that.
const FLOW: u64 = 2 << 10;
const OTHERS: u64 = 16 << 20;

/// A descriptor whose other end may stall for a while and not for ever.
#[derive(Debug)]
pub(super) struct Pipe(File);

impl Pipe {
    pub(super) fn new(file: File) -> io::Result<Pipe> {
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        fcntl(&file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Pipe(file))
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        loop {
            match poll(&mut fds, PollTimeout::from(TIMEOUT_MS)) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN)?,
                other => return other,
            }
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::POLLOUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A record: its tag, whether it is mandatory, and the body with its length in front.
pub(super) type Record<'a> = (u16, bool, &'a [u8]);

/// Records as they come; each is whole, and none is longer than a record may be.
pub(super) struct Records<R> {
    from: io::BufReader<R>,
    /// The last record, whose room the next one has again.
    record: Vec<u8>,
    read: usize,
    /// Bytes of records that stay in memory, and how many may.
    kept: u64,
    allowed: u64,
}

impl<R: Read> Records<R> {
    /// Reads what a stream of at most so many flows begins with.
    pub(super) fn new(from: R, flows: u32) -> Result<Self, StateError> {
        let allowed = OTHERS + FLOW * u64::from(flows);
        let from = io::BufReader::with_capacity(CHUNK, from);
        let mut records = Records { from, record: Vec::new(), read: 0, kept: 0, allowed };
        let mut magic = [0; MAGIC.len()];
        if !records.fill(&mut magic)? || magic != MAGIC {
            return Err(DecodeError::Magic.into());
        }
        Ok(records)
    }

    /// Bytes that were read.
    pub(super) fn read(&self) -> usize {
        self.read
    }

    /// The next record; none at the end of the stream.
    ///
    /// # Errors
    /// The stream ends in the middle of it, it is too long, or there are too many.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>, StateError> {
        let mut head = [0; 8];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let [t0, t1, f0, f1, length @ ..] = head;
        let (tag, flags) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([f0, f1]));
        let len = u64::from(u32::from_le_bytes(length));
        if len > RECORD {
            return Err(StateError::TooLarge { what: "a record of bytes", have: len, allowed: RECORD });
        }
        if tag != super::tag::SOCKET {
            self.kept += len + head.len() as u64;
            if self.kept > self.allowed {
                let (have, allowed) = (self.kept, self.allowed);
                return Err(StateError::TooLarge { what: "bytes", have, allowed });
            }
        }
        self.record.clear();
        self.record.extend(length);
        // As much is allocated as there is, and not what the length says.
        let got = (&mut self.from).take(len).read_to_end(&mut self.record)?;
        self.read += got;
        if (got as u64) < len {
            return Err(DecodeError::Truncated(self.read).into());
        }
        Ok(Some((tag, flags & 1 != 0, &self.record)))
    }

    /// Reads to the end of the stream: the writer is not to be told that there is no reader any more.
    ///
    /// # Errors
    /// As read(2).
    pub(super) fn end(mut self) -> Result<(), StateError> {
        let mut left = [0; 512];
        for _ in 0..CHUNK {
            if self.from.read(&mut left)? == 0 {
                return Ok(());
            }
        }
        Err(StateError::TooLarge { what: "bytes behind its end", have: u64::MAX, allowed: 32 << 20 })
    }

    /// Fills `buffer`; false when the stream ended before.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, StateError> {
        let mut have = 0;
        while have < buffer.len() {
            match self.from.read(&mut buffer[have..]) {
                Ok(0) if have == 0 => return Ok(false),
                Ok(0) => return Err(DecodeError::Truncated(self.read).into()),
                Ok(n) => (have, self.read) = (have + n, self.read + n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }
}
