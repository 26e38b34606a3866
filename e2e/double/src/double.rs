//! A vhost-user frontend with one queue pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror::Error;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};

use crate::feature;
use crate::ring::DriverRing;
use crate::sys::{GuestMem, event_fd};

/// Number of the ring that the guest receives on.
pub const RX: usize = 0;
/// Number of the ring that the guest sends on.
pub const TX: usize = 1;
/// Length of the virtio header in front of each frame (VIRTIO 1.2, 5.1.6.1).
pub const HEADER: usize = 12;
/// Where `num_buffers` stands in it.
const NUM_BUFFERS: u64 = 10;
/// Room for a frame of 64 KiB with its headers.
const LARGE: u32 = 0x1_1000;

/// What a double is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Features to accept, of those that the backend offers.
    pub features: u64,
    /// Entries of each ring: a power of two, at most 1024 for most backends.
    pub queue_size: u16,
    /// Guest memory; more is taken when the buffers need it.
    pub mem_mib: u64,
    /// Guest-physical address of the memory.
    pub start: u64,
    /// Size of a receive buffer; none: as Linux does it, 4 KiB with MRG_RXBUF, otherwise whole frames.
    pub rx_buffer: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options { features: feature::ALL, queue_size: 256, mem_mib: 64, start: 0x4000_0000, rx_buffer: None }
    }
}

/// What can go wrong with a double.
#[derive(Debug, Error)]
pub enum DoubleError {
    /// The system refuses something.
    #[error("double cannot be set up")]
    Io(#[from] io::Error),
    /// The backend refuses something, or is gone.
    #[error("vhost-user request failed: {0}")]
    Protocol(#[from] vhost::Error),
    /// The backend lacks features without which a double cannot work.
    #[error("the backend offers features {0:#x}")]
    Features(u64),
    /// The backend is gone.
    #[error("the backend has closed the connection")]
    Closed,
    /// A frame is larger than a transmit buffer, or has no room for its header.
    #[error("a frame of {0} bytes cannot be sent")]
    FrameLength(usize),
    /// The backend completed something that was not offered.
    #[error("the backend completed head {head} with {len} bytes, which was not offered so")]
    Completion {
        /// The head.
        head: u32,
        /// The bytes.
        len: u32,
    },
}

type Result<T> = std::result::Result<T, DoubleError>;

/// A vhost-user frontend with guest memory and two rings of its own.
pub struct Double {
    frontend: Frontend,
    /// The connection again, to notice its end.
    stream: UnixStream,
    mem: Arc<GuestMem>,
    features: u64,
    rings: [DriverRing; 2],
    rx_buffers: u64,
    rx_buffer: u32,
    tx_buffers: u64,
    tx_free: Vec<u32>,
}

impl Double {
    /// Connects to a backend that listens on `path`, and starts both rings.
    ///
    /// # Errors
    /// When there is no such backend, or it refuses.
    pub fn connect(path: impl AsRef<Path>, options: &Options) -> Result<Double> {
        Double::from_stream(UnixStream::connect(path)?, options)
    }

    /// Listens on `path` for one backend that connects, and starts both rings.
    ///
    /// # Errors
    /// When the socket cannot be made, or the backend refuses.
    pub fn listen(path: impl AsRef<Path>, options: &Options) -> Result<Double> {
        let listener = UnixListener::bind(path)?;
        Double::from_stream(listener.accept()?.0, options)
    }

    /// Starts both rings with the backend at the other end of `stream`.
    ///
    /// # Errors
    /// When the backend refuses.
    pub fn from_stream(stream: UnixStream, options: &Options) -> Result<Double> {
        let (frontend, features) = negotiate(&stream, options.features)?;
        let size = options.queue_size;
        let usual = if features & feature::MRG_RXBUF != 0 {
            4096
        } else if features & (feature::GUEST_TSO4 | feature::GUEST_TSO6) != 0 {
            LARGE
        } else {
            2048
        };
        let rx_buffer = options.rx_buffer.unwrap_or(usual);
        let n = u64::from(size);
        let rings = 2 * DriverRing::bytes(size);
        let needed = rings + n * u64::from(rx_buffer) + n * u64::from(LARGE);
        let bytes = needed.max(options.mem_mib << 20).next_multiple_of(0x1000);
        let mem = Arc::new(GuestMem::new(options.start, bytes)?);
        let event_idx = features & feature::EVENT_IDX != 0;
        let at = |ring: u64| options.start + ring * DriverRing::bytes(size);
        let rx = DriverRing::new(Arc::clone(&mem), at(0), size, event_idx)?;
        let mut tx = DriverRing::new(Arc::clone(&mem), at(1), size, event_idx)?;
        tx.suppress_interrupts();
        let mut double = Double {
            frontend,
            stream,
            features,
            rings: [rx, tx],
            rx_buffers: at(2),
            rx_buffer,
            tx_buffers: at(2) + n * u64::from(rx_buffer),
            tx_free: (0..u32::from(size)).rev().collect(),
            mem,
        };
        for slot in 0..u32::from(size) {
            double.recycle(slot);
        }
        double.start([0, 0])?;
        double.rings[RX].publish();
        Ok(double)
    }

    /// Hands memory and rings to the backend, from these positions of the available rings on.
    fn start(&mut self, base: [u16; 2]) -> Result<()> {
        self.frontend.set_mem_table(&[self.mem.region()?])?;
        for (index, (ring, base)) in self.rings.iter().zip(base).enumerate() {
            let (desc, avail, used) = ring.areas();
            self.frontend.set_vring_num(index, ring.size())?;
            self.frontend.set_vring_base(index, base)?;
            let config = VringConfigData {
                queue_max_size: ring.size(),
                queue_size: ring.size(),
                flags: 0,
                desc_table_addr: self.mem.user_address(desc),
                used_ring_addr: self.mem.user_address(used),
                avail_ring_addr: self.mem.user_address(avail),
                log_addr: None,
            };
            self.frontend.set_vring_addr(index, &config)?;
            self.frontend.set_vring_call(index, &ring.call)?;
            self.frontend.set_vring_err(index, &ring.err)?;
            self.frontend.set_vring_kick(index, &ring.kick)?;
            self.frontend.set_vring_enable(index, true)?;
        }
        Ok(())
    }

    /// Stops both rings as a virtual machine does that shuts down, and closes the connection; returns the
    /// positions that the backend gives back. (Dropping a double instead is a virtual machine that crashes.)
    ///
    /// # Errors
    /// When the backend does not answer.
    pub fn disconnect(self) -> Result<[u16; 2]> {
        let rx = self.frontend.get_vring_base(RX)?;
        let tx = self.frontend.get_vring_base(TX)?;
        Ok([rx as u16, tx as u16])
    }

    /// Goes on with another backend, in the state in which the last one left the rings. The last one must be gone:
    /// two would take each other's kicks.
    ///
    /// # Errors
    /// When the new backend refuses.
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<()> {
        let (frontend, features) = negotiate(&stream, self.features)?;
        if features != self.features {
            return Err(DoubleError::Features(features));
        }
        (self.frontend, self.stream) = (frontend, stream);
        // What was taken and not completed comes again.
        let base = [self.rings[RX].used_idx(), self.rings[TX].used_idx()];
        self.start(base)?;
        for ring in &self.rings {
            ring.kick_now();
        }
        Ok(())
    }

    /// The accepted features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The guest's memory.
    pub fn mem(&self) -> &Arc<GuestMem> {
        &self.mem
    }

    /// The connection's own requests.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
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

    /// As [`Double::send_parts`], but the device is not told before [`Double::flush`].
    ///
    /// # Errors
    /// When the frame is too long or too short.
    pub fn queue(&mut self, frame: &[u8], cuts: &[usize], indirect: bool) -> Result<bool> {
        if frame.len() < HEADER || frame.len() > LARGE as usize {
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
        let deadline = Instant::now() + timeout;
        loop {
            let mut parts = Vec::new();
            if self.next_frame(&mut parts)? {
                let mut frame = vec![0; parts.iter().map(|&(_, len, _)| len).sum()];
                let mut rest = frame.as_mut_slice();
                for &(at, len, slot) in &parts {
                    let (part, left) = rest.split_at_mut(len);
                    self.mem.read(at, part);
                    rest = left;
                    self.recycle(slot);
                }
                self.rings[RX].publish();
                return Ok(Some(frame));
            }
            let pause = self.arm();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(&[], left.min(pause))?;
        }
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
        if buffers == 0 || (first.len as usize) < HEADER {
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

    fn reclaim(&mut self) {
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

/// Negotiates features up to the memory table.
fn negotiate(stream: &UnixStream, wanted: u64) -> Result<(Frontend, u64)> {
    let mut frontend = Frontend::from_stream(stream.try_clone()?, 2);
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    if offered & feature::VERSION_1 == 0 || offered & feature::PROTOCOL_FEATURES == 0 {
        return Err(DoubleError::Features(offered));
    }
    let features = offered & wanted | feature::VERSION_1 | feature::PROTOCOL_FEATURES;
    let protocol = frontend.get_protocol_features()?
        & (VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
    frontend.set_protocol_features(protocol)?;
    if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    frontend.set_features(features)?;
    Ok((frontend, features))
}
