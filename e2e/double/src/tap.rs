//! A network namespace's TCP/IP stack as the guest: frames between a tap device and a double.
//!
//! One thread a queue pair waits for its queue of the tap and for the device's interrupts, moves up to a batch of frames each way straight
//! between the tap and guest memory, and tells either side once a batch. GSO and checksum headers pass unchanged
//! both ways: the tap's header is the virtio header.
//!
//! A frame that the tap does not take is dropped and counted, as a network card would.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::{debug, warn};

use crate::double::{Double, DoubleError, RX, TX};
use crate::feature;
use crate::pair::Pair;
use crate::sys::{attach_queue, open_tap};

/// Frames moved one way before the other way gets its turn.
const BATCH: usize = 64;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
const TUN_CSUM: u32 = 1;
const TUN_TSO4: u32 = 2;
const TUN_TSO6: u32 = 4;

/// Where the tap is.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Name of the device, at most 15 bytes. It is made when it is not there; addresses and `up` are the
    /// caller's.
    pub name: String,
    /// A network namespace, as a path like `/run/netns/x` or `/proc/1/ns/net`; none: the caller's.
    pub netns: Option<PathBuf>,
}

/// What a pump has moved.
#[derive(Debug, Default)]
pub struct PumpStats {
    /// Frames from the tap to the backend.
    pub sent: AtomicU64,
    /// Bytes of them, virtio headers included.
    pub sent_bytes: AtomicU64,
    /// Frames from the backend to the tap.
    pub received: AtomicU64,
    /// Bytes of them, virtio headers included.
    pub received_bytes: AtomicU64,
    /// Frames from the backend that the tap did not take.
    pub dropped: AtomicU64,
}

/// A running pump: a thread for each queue pair, with a queue of the tap of its own.
pub struct TapPump {
    double: Option<Double>,
    taps: Vec<Arc<OwnedFd>>,
    /// Pairs that are disabled.
    idle: Vec<bool>,
    threads: Vec<JoinHandle<(Pair, Result<(), DoubleError>)>>,
    stop: Arc<EventFd>,
    stats: Arc<PumpStats>,
}

impl TapPump {
    /// Opens the tap and starts the pump.
    ///
    /// # Errors
    /// When the namespace or the tap cannot be had (it takes `CAP_NET_ADMIN`).
    pub fn start(mut double: Double, options: &TapOptions) -> Result<TapPump, DoubleError> {
        let (features, queues) = (double.features(), double.pairs().len());
        let taps = open(options, features, queues)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let mut pump = TapPump {
            double: Some(double),
            taps: taps.into_iter().map(Arc::new).collect(),
            idle: vec![false; queues],
            threads: Vec::new(),
            stop: Arc::new(EventFd::from_flags(flags).map_err(io)?),
            stats: Arc::default(),
        };
        pump.resume()?;
        Ok(pump)
    }

    /// Frames flow again.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn resume(&mut self) -> Result<(), DoubleError> {
        let pairs = self.double.as_mut().map(Double::take_pairs).unwrap_or_default();
        for ((pair, tap), idle) in pairs.into_iter().zip(&self.taps).zip(self.idle.clone()) {
            let (tap, stop, stats) = (Arc::clone(tap), Arc::clone(&self.stop), Arc::clone(&self.stats));
            let run = move || {
                let mut pump = Pump { pair, tap, stop, stats, parts: Vec::new() };
                let ended = if idle { pump.sleep() } else { pump.run() };
                if let Err(e) = &ended {
                    debug!(error = %e, "pump ended");
                }
                (pump.pair, ended)
            };
            let thread = std::thread::Builder::new().name("tap-pump".into()).spawn(run);
            self.threads.push(thread.map_err(DoubleError::Io)?);
        }
        Ok(())
    }

    /// No frame flows any more until [`TapPump::resume`]; what the guest sends waits in the tap.
    ///
    /// # Errors
    /// What ended the pump before.
    pub fn pause(&mut self) -> Result<(), DoubleError> {
        let _ = self.stop.write(1);
        let mut result = Ok(());
        let mut pairs = Vec::new();
        for thread in std::mem::take(&mut self.threads) {
            let (pair, ended) = thread.join().map_err(|_| DoubleError::Closed)?;
            pairs.push(pair);
            result = result.and(ended);
        }
        let _ = self.stop.read();
        if let Some(double) = &mut self.double {
            double.put_pairs(pairs);
        }
        result
    }

    /// The guest's threads move: what the tap gives goes by the transmit ring of the next pair from now on, while
    /// what is received still comes by its own. A tap of several queues sends where it has received, so its flows
    /// change pairs for ever.
    ///
    /// # Errors
    /// What ended the pump.
    pub fn cross(&mut self) -> Result<(), DoubleError> {
        self.pause()?;
        if let Some(double) = &mut self.double {
            let pairs = double.pairs();
            for i in 1..pairs.len() {
                let (left, right) = pairs.split_at_mut(i);
                left[i - 1].swap_transmit(&mut right[0]);
            }
        }
        self.resume()
    }

    /// The pairs serve other queues of the tap from now on, each the next one's.
    ///
    /// # Errors
    /// What ended the pump.
    pub fn rotate(&mut self) -> Result<(), DoubleError> {
        self.pause()?;
        self.taps.rotate_left(1);
        self.resume()
    }

    /// Enables or disables a queue pair while frames flow; the tap uses its queue accordingly.
    ///
    /// # Errors
    /// As [`Double::enable`], or when the tap refuses.
    pub fn enable(&mut self, pair: usize, on: bool) -> Result<(), DoubleError> {
        let double = self.double.as_mut().ok_or(DoubleError::Closed)?;
        let tap = self.taps.get(pair).ok_or(DoubleError::Pairs(pair))?;
        if on {
            double.enable(pair, true)?;
            attach_queue(tap.as_fd(), true)?;
        } else {
            attach_queue(tap.as_fd(), false)?;
            double.enable(pair, false)?;
        }
        self.pause()?;
        self.idle[pair] = !on;
        self.resume()
    }

    /// The double, for requests that need no ring, while frames flow.
    pub fn double(&mut self) -> Option<&mut Double> {
        self.double.as_mut()
    }

    /// What has been moved so far.
    pub fn stats(&self) -> &PumpStats {
        &self.stats
    }

    /// Ends the pump and gives the double back; the tap disappears.
    ///
    /// # Errors
    /// What ended the pump before.
    pub fn stop(mut self) -> Result<Double, DoubleError> {
        self.pause()?;
        self.double.take().ok_or(DoubleError::Closed)
    }
}

impl Drop for TapPump {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            let _ = self.pause();
        }
    }
}

pub(crate) fn io(e: nix::errno::Errno) -> DoubleError {
    DoubleError::Io(e.into())
}

/// Opens the queues of a tap, which gives what a backend with these features takes.
pub(crate) fn open(options: &TapOptions, features: u64, queues: usize) -> Result<Vec<OwnedFd>, DoubleError> {
    // A thread of its own: setns holds for the calling thread.
    let opened = std::thread::scope(|scope| scope.spawn(|| open_here(options, features, queues)).join());
    opened.map_err(|_| DoubleError::Closed)?
}

fn open_here(options: &TapOptions, features: u64, queues: usize) -> Result<Vec<OwnedFd>, DoubleError> {
    if let Some(path) = &options.netns {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET).map_err(io)?;
    }
    // What the backend takes from us, the tap may give to us.
    let mut offload = 0;
    if features & feature::CSUM != 0 {
        offload |= TUN_CSUM;
        for (bit, tun) in [(feature::HOST_TSO4, TUN_TSO4), (feature::HOST_TSO6, TUN_TSO6)] {
            if features & bit != 0 {
                offload |= tun;
            }
        }
    }
    let queue = |_| Ok(open_tap(&options.name, feature::header_len(features) as i32, offload, queues > 1)?);
    (0..queues).map(queue).collect()
}

struct Pump {
    pair: Pair,
    tap: Arc<OwnedFd>,
    stop: Arc<EventFd>,
    stats: Arc<PumpStats>,
    parts: Vec<(u64, usize, u32)>,
}

impl Pump {
    /// Whether the end was asked for. The signal stays up for the other threads.
    fn stopped(&self) -> bool {
        let mut fds = [PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
    }

    /// Waits for the end.
    fn sleep(&mut self) -> Result<(), DoubleError> {
        while !self.stopped() {
            self.pair.wait(&[self.stop.as_fd()], Duration::from_secs(3600))?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), DoubleError> {
        loop {
            let (sent, blocked) = self.send()?;
            if sent == BATCH || self.receive()? == BATCH {
                if self.stopped() {
                    return Ok(());
                }
                continue;
            }
            let mut pause = self.pair.arm();
            if blocked && self.pair.ring(TX).request_interrupts() {
                pause = Duration::ZERO;
            }
            if !pause.is_zero() {
                let mut fds = vec![self.stop.as_fd()];
                if !blocked {
                    fds.push(self.tap.as_fd());
                }
                self.pair.wait(&fds, pause)?;
            }
            self.pair.ring(RX).suppress_interrupts();
            self.pair.ring(TX).suppress_interrupts();
            if self.stopped() {
                return Ok(());
            }
        }
    }

    /// From the tap to the backend: how many, and whether the ring is full.
    fn send(&mut self) -> Result<(usize, bool), DoubleError> {
        let mut count = 0;
        let mut blocked = false;
        while count < BATCH {
            let Some(slot) = self.pair.tx_slot() else {
                blocked = true;
                break;
            };
            let at = self.pair.tx_address(slot);
            let read = self.pair.mem().read_from(self.tap.as_fd(), at, Pair::TX_BUFFER);
            let len = match read {
                Ok(len) if len >= feature::header_len(self.pair.features()) => len,
                Ok(_) => {
                    self.pair.tx_unused(slot);
                    continue;
                }
                Err(e) => {
                    self.pair.tx_unused(slot);
                    match e.kind() {
                        std::io::ErrorKind::WouldBlock => break,
                        std::io::ErrorKind::Interrupted => continue,
                        // The queue is about to be disabled.
                        _ if e.raw_os_error() == Some(libc::EBADFD) => break,
                        _ => return Err(e.into()),
                    }
                }
            };
            if self.pair.ring(TX).add(&[(at, len as u32, false)], slot).is_none() {
                self.pair.tx_unused(slot);
                blocked = true;
                break;
            }
            count += 1;
            self.stats.sent.fetch_add(1, Relaxed);
            self.stats.sent_bytes.fetch_add(len as u64, Relaxed);
        }
        self.pair.flush();
        Ok((count, blocked))
    }

    /// From the backend to the tap: how many.
    fn receive(&mut self) -> Result<usize, DoubleError> {
        let mut count = 0;
        let mut parts = std::mem::take(&mut self.parts);
        while count < BATCH && self.pair.next_frame(&mut parts)? {
            let slices: Vec<(u64, usize)> = parts.iter().map(|&(at, len, _)| (at, len)).collect();
            match self.pair.mem().write_to(self.tap.as_fd(), &slices) {
                Ok(len) => {
                    self.stats.received.fetch_add(1, Relaxed);
                    self.stats.received_bytes.fetch_add(len as u64, Relaxed);
                }
                Err(e) => {
                    // Most often: the device is down, or the frame's header makes no sense.
                    if self.stats.dropped.fetch_add(1, Relaxed) == 0 {
                        warn!(error = %e, "the tap refuses a frame");
                    }
                }
            }
            for &(_, _, slot) in &parts {
                self.pair.recycle(slot);
            }
            count += 1;
        }
        if count > 0 {
            self.pair.ring(RX).publish();
        }
        self.parts = parts;
        Ok(count)
    }
}
