//! A link between two network namespaces on which each frame is so long under way.
//!
//! One thread takes frames out of either tap as they come, notes when each is due, and puts it into the other tap at that
//! time. Frames keep their order, none is lost on the way, and the link has no rate: the delay is all that it adds. GSO and
//! checksum headers pass unchanged: the taps have the same ones, so that a large frame crosses as one.
//!
//! A tap drops what comes while its own queue is full; the queue must hold what comes in the time that the thread does not
//! run.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::unistd::{read, write};
use tracing::warn;

use crate::double::DoubleError;
use crate::feature;
use crate::tap::{TapOptions, io, open};

/// Frames taken from one tap before the other gets its turn.
const BATCH: usize = 64;
/// The largest frame, with its headers.
const LARGEST: usize = 66_000;

/// A running link. It ends when this is dropped.
#[derive(Debug)]
pub struct LongWire {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl LongWire {
    /// Joins two taps; a frame takes `delay` from one to the other, whichever way.
    ///
    /// # Errors
    /// When a namespace or a tap cannot be had (it takes `CAP_NET_ADMIN`).
    pub fn join(ends: [&TapOptions; 2], delay: Duration) -> Result<LongWire, DoubleError> {
        let tap = |end| open(end, feature::ALL, 1)?.pop().ok_or(DoubleError::Closed);
        let [one, other] = ends;
        let taps = [tap(one)?, tap(other)?];
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(io)?);
        let ended = Arc::clone(&stop);
        let run = move || {
            if let Err(error) = carry(&taps, &ended, delay) {
                warn!(%error, "the wire ended");
            }
        };
        let thread = std::thread::Builder::new().name("long-wire".into()).spawn(run);
        Ok(LongWire { stop, thread: Some(thread.map_err(DoubleError::Io)?) })
    }
}

impl Drop for LongWire {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Frames under way in one direction, the first one first, each with the time at which it arrives.
type Way = VecDeque<(Instant, Vec<u8>)>;

fn carry(taps: &[OwnedFd; 2], stop: &EventFd, delay: Duration) -> std::io::Result<()> {
    let mut ways = [Way::new(), Way::new()];
    let mut buffer = vec![0; LARGEST];
    loop {
        let next = ways.iter().filter_map(|way| Some(way.front()?.0)).min();
        let wait = next.map(|at| TimeSpec::from(at.saturating_duration_since(Instant::now())));
        let [one, other] = taps;
        let mut fds = [stop.as_fd(), one.as_fd(), other.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut fds, wait, None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        if fds.first().and_then(PollFd::any).unwrap_or(false) {
            return Ok(());
        }
        let [forth, back] = &mut ways;
        for (way, from, to) in [(forth, one, other), (back, other, one)] {
            let now = Instant::now();
            for _ in 0..BATCH {
                match read(from, &mut buffer).map_err(std::io::Error::from) {
                    Ok(n) => way.push_back((now + delay, buffer.get(..n).unwrap_or_default().to_vec())),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                }
            }
            while let Some((_, frame)) = way.pop_front_if(|(due, _)| *due <= now) {
                // A frame that the namespace does not take is lost, as by a network card.
                let _ = write(to, &frame);
            }
        }
    }
}
