//! A backend made of netd's vhost-user side and its rings: what the guest sends comes back to it.

#![allow(clippy::unwrap_used, reason = "support of tests: a failure here is the failure of a test")]

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use netd::counters::Counters;
use netd::ring::{Iovs, PopError, Ring};
use netd::stop::Stopper;
use netd::vhost::{Mover, RingSink, ServeError, ServerConfig, SocketMode, serve};

/// What is done to a frame on its way back.
pub(crate) type Change = fn(&mut [u8]);

struct Rings {
    rings: Mutex<[Option<Ring>; 2]>,
    wake: EventFd,
    mergeable: Mutex<bool>,
    change: Change,
}

impl Rings {
    fn lock(&self) -> MutexGuard<'_, [Option<Ring>; 2]> {
        self.rings.lock().unwrap()
    }

    /// Moves frames from the transmit ring to the receive ring until either is exhausted.
    fn turn(&self) {
        let mergeable = *self.mergeable.lock().unwrap();
        let mut rings = self.lock();
        let [Some(rx), Some(tx)] = &mut *rings else { return };
        loop {
            while self.frame(rx, tx, mergeable) {}
            // The transmit ring first: a guest that has received a frame finds its sending completed.
            for ring in [&mut *tx, &mut *rx] {
                if ring.publish() {
                    ring.signal();
                }
            }
            // Kicks of the transmit ring are wanted unless the receive ring is what is waited for, and the
            // other way round; asking for both is simpler.
            let (more_rx, more_tx) = (rx.request_kicks(), tx.request_kicks());
            if !(more_rx && more_tx) {
                return;
            }
        }
    }

    fn frame(&self, rx: &mut Ring, tx: &mut Ring, mergeable: bool) -> bool {
        let (mut readable, mut none) = (Iovs::new(), Iovs::new());
        let sent = match tx.pop(&mut readable, &mut none) {
            Ok(Some(sent)) => sent,
            Ok(None) => return false,
            Err(PopError::Chain { head, .. }) => {
                tx.push_used(head, 0);
                return true;
            }
            Err(PopError::Ring(_)) => {
                tx.break_down();
                return false;
            }
        };
        let mut frame = vec![0; readable.bytes()];
        readable.read(0, 0, &mut frame);
        (self.change)(&mut frame);
        let mut writable = Iovs::new();
        let mut chains = Vec::new();
        while writable.bytes() < frame.len() && (mergeable || chains.is_empty()) {
            match rx.pop(&mut none, &mut writable) {
                Ok(Some(chain)) => chains.push(chain),
                _ => break,
            }
        }
        if writable.bytes() < frame.len() {
            rx.unpop(chains.len() as u16);
            tx.unpop(1);
            return false;
        }
        frame[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
        writable.write(0, 0, &frame);
        let mut left = frame.len() as u32;
        for chain in chains {
            let n = left.min(chain.writable);
            rx.push_used(chain.head, n);
            left -= n;
        }
        tx.push_used(sent.head, 0);
        true
    }
}

impl RingSink for Rings {
    fn start(&self, index: usize, mut ring: Ring) {
        ring.request_kicks();
        self.lock()[index] = Some(ring);
        let _ = self.wake.write(1);
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        self.lock()[index].take()
    }

    fn set_features(&self, acked: u64) {
        *self.mergeable.lock().unwrap() = acked & netd::vhost::feature::MRG_RXBUF != 0;
    }

    fn set_connected(&self, _connected: bool) {}
}

/// The running backend.
pub(crate) struct Reflector {
    path: PathBuf,
    stop: Stopper,
    rings: Arc<Rings>,
    server: Option<JoinHandle<Result<(), ServeError>>>,
    worker: Option<JoinHandle<()>>,
    done: Arc<EventFd>,
    _directory: tempfile::TempDir,
}

impl Reflector {
    pub(crate) fn new(change: Change) -> Reflector {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let rings =
            Arc::new(Rings { rings: Mutex::default(), wake: event(), mergeable: Mutex::new(false), change });
        let stop = Stopper::new().unwrap();
        let done = Arc::new(event());
        let config = ServerConfig { socket: path.clone(), mode: SocketMode::Server, queue_pairs: 1 };
        let (sink, stop2) = (Arc::clone(&rings), stop.clone());
        let server = std::thread::spawn(move || {
            serve(config, sink, Arc::new(Counters::default()), stop2, Mover::default(), None)
        });
        let (rings2, done2) = (Arc::clone(&rings), Arc::clone(&done));
        let worker = std::thread::spawn(move || work(&rings2, &done2));
        Reflector {
            path,
            stop,
            rings,
            server: Some(server),
            worker: Some(worker),
            done,
            _directory: directory,
        }
    }

    /// The socket, once it is there.
    pub(crate) fn path(&self) -> &Path {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(&self.path).is_err() {
            assert!(std::time::Instant::now() < deadline, "no socket came");
            std::thread::yield_now();
        }
        &self.path
    }
}

fn work(rings: &Rings, done: &EventFd) {
    loop {
        let kicks: Vec<_> =
            rings.lock().iter().flatten().map(|ring| ring.kick_fd().try_clone_to_owned().unwrap()).collect();
        let mut fds: Vec<_> = kicks.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(rings.wake.as_fd(), PollFlags::POLLIN));
        fds.push(PollFd::new(done.as_fd(), PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::NONE).unwrap();
        drop(fds);
        for kick in &kicks {
            let mut counter = [0; 8];
            let _ = nix::unistd::read(kick, &mut counter);
        }
        let _ = rings.wake.read();
        if done.read().is_ok() {
            return;
        }
        rings.turn();
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.stop.stop();
        let _ = self.done.write(1);
        let server = self.server.take().unwrap().join();
        let worker = self.worker.take().unwrap().join();
        if !std::thread::panicking() {
            server.unwrap().unwrap();
            worker.unwrap();
            assert!(self.rings.lock().iter().all(Option::is_none), "a ring was left running");
        }
    }
}
