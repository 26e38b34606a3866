//! One queue pair of a double: two rings with their buffers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::double::{DoubleError, LARGE, RX, TX};
use crate::feature;
use crate::ring::DriverRing;
use crate::sys::{GuestMem, event_fd};

/// Where `num_buffers` stands in the virtio header.
const NUM_BUFFERS: u64 = 10;

type Result<T> = std::result::Result<T, DoubleError>;

/// A queue pair: the guest's end of it.
pub struct Pair {
    /// The connection, to notice its end.
    pub(crate) stream: Arc<UnixStream>,
    mem: Arc<GuestMem>,
    features: u64,
    pub(crate) rings: [DriverRing; 2],
    rx_buffers: u64,
    rx_buffer: u32,
    tx_buffers: u64,
    tx_free: Vec<u32>,
}

impl Pair {
    /// Guest memory that a pair takes.
    pub(crate) fn bytes(size: u16, rx_buffer: u32) -> u64 {
        let n = u64::from(size);
        2 * DriverRing::bytes(size) + n * u64::from(rx_buffer) + n * u64::from(LARGE)
    }

    /// A pair whose memory starts at `at`, with every receive buffer offered but not yet visible.
    pub(crate) fn new(
        stream: Arc<UnixStream>,
        mem: Arc<GuestMem>,
        at: u64,
        (size, rx_buffer): (u16, u32),
        features: u64,
    ) -> Result<Pair> {
        let event_idx = features & feature::EVENT_IDX != 0;
        let ring = |i: u64| at + i * DriverRing::bytes(size);
        let rx = DriverRing::new(Arc::clone(&mem), ring(0), size, event_idx)?;
        let mut tx = DriverRing::new(Arc::clone(&mem), ring(1), size, event_idx)?;
        tx.suppress_interrupts();
        let mut pair = Pair {
            stream,
            mem,
            features,
            rings: [rx, tx],
            rx_buffers: ring(2),
            rx_buffer,
            tx_buffers: ring(2) + u64::from(size) * u64::from(rx_buffer),
            tx_free: (0..u32::from(size)).rev().collect(),
        };
        for slot in 0..u32::from(size) {
            pair.recycle(slot);
        }
        Ok(pair)
    }

    /// Exchanges the transmit rings of two pairs: what is sent on one goes by the other's ring.
    pub fn swap_transmit(&mut self, other: &mut Pair) {
        std::mem::swap(&mut self.rings[TX], &mut other.rings[TX]);
        std::mem::swap(&mut self.tx_buffers, &mut other.tx_buffers);
        std::mem::swap(&mut self.tx_free, &mut other.tx_free);
    }

    /// The accepted features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The same pair in another memory, which has the same contents.
    pub(crate) fn set_mem(&mut self, mem: &Arc<GuestMem>) {
        self.mem = Arc::clone(mem);
        self.rings.iter_mut().for_each(|ring| ring.set_mem(mem));
    }

    /// The guest's memory.
    pub fn mem(&self) -> &Arc<GuestMem> {
        &self.mem
    }

    /// One of the rings, [`RX`] or [`TX`], for raw descriptors.
    pub fn ring(&mut self, index: usize) -> &mut DriverRing {
        &mut self.rings[index]
    }

    /// Sends one frame, its virtio header in front; false when the ring is full.
    ///
    /// # Errors
    /// When the frame is too long or too short.
    pub fn send(&mut self, frame: &[u8]) -> Result<bool> {
        self.send_parts(frame, &[], false)
    }

    /// Sends one frame in several descriptors, cut at these offsets, by an indirect table or directly; false when
    /// the ring is full.
    ///
    /// # Errors
    /// When the frame is too long or too short.
    pub fn send_parts(&mut self, frame: &[u8], cuts: &[usize], indirect: bool) -> Result<bool> {
        let queued = self.queue(frame, cuts, indirect)?;
        self.flush();
        Ok(queued)
    }

    /// As [`Pair::send_parts`], but the device is not told before [`Pair::flush`].
    ///
    /// # Errors
    /// When the frame is too long or too short.
    pub fn queue(&mut self, frame: &[u8], cuts: &[usize], indirect: bool) -> Result<bool> {
        if frame.len() < feature::header_len(self.features) || frame.len() > LARGE as usize {
            return Err(DoubleError::FrameLength(frame.len()));
        }
        // Descriptors may be short although a buffer is free.
        if self.rings[TX].free() <= cuts.len() {
            self.reclaim();
        }
        let Some(slot) = self.tx_slot() else { return Ok(false) };
        let at = self.tx_address(slot);
        self.mem.write(at, frame);
        let mut parts = Vec::with_capacity(cuts.len() + 1);
        let mut from = 0;
        for to in cuts.iter().copied().chain([frame.len()]) {
            let to = to.min(frame.len());
            if to > from {
                parts.push((at + from as u64, (to - from) as u32, false));
                from = to;
            }
        }
        let tx = &mut self.rings[TX];
        let head = if indirect { tx.add_indirect(&parts, slot) } else { tx.add(&parts, slot) };
        if head.is_none() {
            self.tx_free.push(slot);
        }
        Ok(head.is_some())
    }

    /// Tells the device about everything queued.
    pub fn flush(&mut self) {
        self.rings[TX].publish();
    }

    /// Waits for one frame, at most `timeout`; its virtio header is in front, merged buffers are joined.
    ///
    /// # Errors
    /// When the backend is gone, or completes what it should not.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>> {
        let mut parts = Vec::new();
        if !self.await_frame(&mut parts, timeout)? {
            return Ok(None);
        }
        let mut frame = vec![0; length(&parts)];
        self.take(&parts, &mut frame);
        Ok(Some(frame))
    }

    /// As [`Pair::recv`], but only the frame's first bytes are copied, as many as `head` has room for. How long the frame is.
    ///
    /// # Errors
    /// As [`Pair::recv`].
    pub fn recv_head(&mut self, head: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        let mut parts = Vec::new();
        if !self.await_frame(&mut parts, timeout)? {
            return Ok(None);
        }
        self.take(&parts, head);
        Ok(Some(length(&parts)))
    }

    /// Waits for one frame, as [`Pair::next_frame`] tells of it; false when none came.
    fn await_frame(&mut self, parts: &mut Vec<(u64, usize, u32)>, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.next_frame(parts)? {
                return Ok(true);
            }
            let pause = self.arm();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.wait(&[], left.min(pause))?;
        }
    }

    /// Copies a frame as far as it fits, and offers its buffers again.
    fn take(&mut self, parts: &[(u64, usize, u32)], to: &mut [u8]) {
        let mut rest = to;
        for &(at, len, slot) in parts {
            let (part, left) = rest.split_at_mut(len.min(rest.len()));
            self.mem.read(at, part);
            rest = left;
            self.recycle(slot);
        }
        self.rings[RX].publish();
    }

    /// Asks for an interrupt when something is received; how long the caller may sleep until then.
    pub(crate) fn arm(&mut self) -> Duration {
        let before = self.rings[RX].waiting();
        self.rings[RX].request_interrupts();
        match self.rings[RX].waiting() {
            0 => Duration::from_secs(3600),
            // Part of a frame, of which the rest may come without an interrupt.
            waiting if waiting == before => Duration::from_millis(1),
            _ => Duration::ZERO,
        }
    }

    /// Waits until the device interrupts, or one of `others` becomes readable, at most `timeout`.
    ///
    /// # Errors
    /// [`DoubleError::Closed`] when the backend is gone.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> Result<()> {
        // Rounded up: a remainder below one millisecond must not become a busy loop.
        let millis = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut fds = vec![
            PollFd::new(event_fd(&self.rings[RX].call), PollFlags::POLLIN),
            PollFd::new(event_fd(&self.rings[TX].call), PollFlags::POLLIN),
            // The end of the connection is reported without being asked for.
            PollFd::new(self.stream.as_fd(), PollFlags::empty()),
        ];
        fds.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let gone = fds[2].revents().is_some_and(|events| !events.is_empty());
        drop(fds);
        self.rings[RX].interrupted();
        self.rings[TX].interrupted();
        if gone { Err(DoubleError::Closed) } else { Ok(()) }
    }

    /// Takes one received frame, as address, length and slot of each of its buffers; false when none is complete.
    pub(crate) fn next_frame(&mut self, parts: &mut Vec<(u64, usize, u32)>) -> Result<bool> {
        parts.clear();
        let Some(first) = self.rings[RX].peek(0) else { return Ok(false) };
        let buffers = if self.features & feature::MRG_RXBUF != 0 {
            let slot = self.check(first)?;
            let mut field = [0; 2];
            self.mem.read(self.rx_address(slot) + NUM_BUFFERS, &mut field);
            u16::from_le_bytes(field)
        } else {
            1
        };
        if buffers == 0 || (first.len as usize) < feature::header_len(self.features) {
            return Err(DoubleError::Completion { head: first.head, len: first.len });
        }
        if self.rings[RX].waiting() < buffers {
            return Ok(false);
        }
        for _ in 0..buffers {
            let Some(used) = self.rings[RX].next_used() else { break };
            let slot = self.check(used)?;
            parts.push((self.rx_address(slot), used.len as usize, slot));
        }
        Ok(true)
    }

    fn check(&self, used: crate::ring::Used) -> Result<u32> {
        match used.token {
            Some(slot) if used.len <= self.rx_buffer => Ok(slot),
            _ => Err(DoubleError::Completion { head: used.head, len: used.len }),
        }
    }

    fn rx_address(&self, slot: u32) -> u64 {
        self.rx_buffers + u64::from(slot) * u64::from(self.rx_buffer)
    }

    /// Offers a receive buffer again. Visible after the ring's `publish`.
    pub(crate) fn recycle(&mut self, slot: u32) {
        let at = self.rx_address(slot);
        self.rings[RX].add(&[(at, self.rx_buffer, true)], slot);
    }

    /// A transmit buffer that is free, after taking back what the device has completed.
    pub(crate) fn tx_slot(&mut self) -> Option<u32> {
        if self.tx_free.is_empty() || self.rings[TX].free() == 0 {
            self.reclaim();
        }
        if self.rings[TX].free() == 0 { None } else { self.tx_free.pop() }
    }

    /// Takes back the transmit buffers that the device has completed.
    pub fn reclaim(&mut self) {
        while let Some(used) = self.rings[TX].next_used() {
            self.tx_free.extend(used.token);
        }
    }

    /// Gives an unused transmit buffer back.
    pub(crate) fn tx_unused(&mut self, slot: u32) {
        self.tx_free.push(slot);
    }

    pub(crate) fn tx_address(&self, slot: u32) -> u64 {
        self.tx_buffers + u64::from(slot) * u64::from(LARGE)
    }

    /// Length of a transmit buffer.
    pub(crate) const TX_BUFFER: usize = LARGE as usize;
}

/// Bytes of a frame in these buffers.
fn length(parts: &[(u64, usize, u32)]) -> usize {
    parts.iter().map(|&(_, len, _)| len).sum()
}
