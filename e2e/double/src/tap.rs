//! A network namespace's TCP/IP stack as the guest: frames between a tap device and a double.
//!
//! One thread waits for the tap and for the device's interrupts, moves up to a batch of frames each way straight
//! between the tap and guest memory, and tells either side once a batch. GSO and checksum headers pass unchanged
//! both ways: the tap's header is the virtio header.
//!
//! A frame that the tap does not take is dropped and counted, as a network card would.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::{debug, warn};

use crate::double::{Double, DoubleError, HEADER, RX, TX};
use crate::feature;
use crate::sys::open_tap;

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

/// A running pump.
pub struct TapPump {
    thread: Option<JoinHandle<(Double, Result<(), DoubleError>)>>,
    stop: Arc<EventFd>,
    stats: Arc<PumpStats>,
}

impl TapPump {
    /// Opens the tap and starts the pump.
    ///
    /// # Errors
    /// When the namespace or the tap cannot be had (it takes `CAP_NET_ADMIN`).
    pub fn start(double: Double, options: &TapOptions) -> Result<TapPump, DoubleError> {
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(io)?);
        let stats = Arc::new(PumpStats::default());
        let (opened, result) = channel();
        let (stop2, stats2, options) = (Arc::clone(&stop), Arc::clone(&stats), options.clone());
        let thread = std::thread::Builder::new()
            .name("tap-pump".into())
            // A thread of its own: setns holds for the calling thread.
            .spawn(move || {
                let tap = open(&options, double.features());
                match tap {
                    Ok(tap) => {
                        let _ = opened.send(Ok(()));
                        let mut pump = Pump { double, tap, stop: stop2, stats: stats2, parts: Vec::new() };
                        let ended = pump.run();
                        if let Err(e) = &ended {
                            debug!(error = %e, "pump ended");
                        }
                        (pump.double, ended)
                    }
                    Err(e) => {
                        let _ = opened.send(Err(e));
                        (double, Ok(()))
                    }
                }
            })
            .map_err(DoubleError::Io)?;
        result.recv().map_err(|_| DoubleError::Closed)??;
        Ok(TapPump { thread: Some(thread), stop, stats })
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
        match self.end() {
            Some((double, Ok(()))) => Ok(double),
            Some((_, Err(e))) => Err(e),
            None => Err(DoubleError::Closed),
        }
    }

    fn end(&mut self) -> Option<(Double, Result<(), DoubleError>)> {
        let _ = self.stop.write(1);
        self.thread.take()?.join().ok()
    }
}

impl Drop for TapPump {
    fn drop(&mut self) {
        self.end();
    }
}

fn io(e: nix::errno::Errno) -> DoubleError {
    DoubleError::Io(e.into())
}

fn open(options: &TapOptions, features: u64) -> Result<OwnedFd, DoubleError> {
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
    Ok(open_tap(&options.name, HEADER as i32, offload)?)
}

struct Pump {
    double: Double,
    tap: OwnedFd,
    stop: Arc<EventFd>,
    stats: Arc<PumpStats>,
    parts: Vec<(u64, usize, u32)>,
}

impl Pump {
    fn run(&mut self) -> Result<(), DoubleError> {
        loop {
            let (sent, blocked) = self.send()?;
            if sent == BATCH || self.receive()? == BATCH {
                if self.stop.read().is_ok() {
                    return Ok(());
                }
                continue;
            }
            let mut pause = self.double.arm();
            if blocked && self.double.ring(TX).request_interrupts() {
                pause = Duration::ZERO;
            }
            if !pause.is_zero() {
                let mut fds = vec![self.stop.as_fd()];
                if !blocked {
                    fds.push(self.tap.as_fd());
                }
                self.double.wait(&fds, pause)?;
            }
            self.double.ring(RX).suppress_interrupts();
            self.double.ring(TX).suppress_interrupts();
            if self.stop.read().is_ok() {
                return Ok(());
            }
        }
    }

    /// From the tap to the backend: how many, and whether the ring is full.
    fn send(&mut self) -> Result<(usize, bool), DoubleError> {
        let mut count = 0;
        let mut blocked = false;
        while count < BATCH {
            let Some(slot) = self.double.tx_slot() else {
                blocked = true;
                break;
            };
            let at = self.double.tx_address(slot);
            let read = self.double.mem().read_from(self.tap.as_fd(), at, Double::TX_BUFFER);
            let len = match read {
                Ok(len) if len >= HEADER => len,
                Ok(_) => {
                    self.double.tx_unused(slot);
                    continue;
                }
                Err(e) => {
                    self.double.tx_unused(slot);
                    match e.kind() {
                        std::io::ErrorKind::WouldBlock => break,
                        std::io::ErrorKind::Interrupted => continue,
                        _ => return Err(e.into()),
                    }
                }
            };
            if self.double.ring(TX).add(&[(at, len as u32, false)], slot).is_none() {
                self.double.tx_unused(slot);
                blocked = true;
                break;
            }
            count += 1;
            self.stats.sent.fetch_add(1, Relaxed);
            self.stats.sent_bytes.fetch_add(len as u64, Relaxed);
        }
        self.double.flush();
        Ok((count, blocked))
    }

    /// From the backend to the tap: how many.
    fn receive(&mut self) -> Result<usize, DoubleError> {
        let mut count = 0;
        let mut parts = std::mem::take(&mut self.parts);
        while count < BATCH && self.double.next_frame(&mut parts)? {
            let slices: Vec<(u64, usize)> = parts.iter().map(|&(at, len, _)| (at, len)).collect();
            match self.double.mem().write_to(self.tap.as_fd(), &slices) {
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
                self.double.recycle(slot);
            }
            count += 1;
        }
        if count > 0 {
            self.double.ring(RX).publish();
        }
        self.parts = parts;
        Ok(count)
    }
}
