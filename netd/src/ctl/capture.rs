//! Captures: a [tap](crate::tap) for each call, bounded in number, ended with the call or with netd.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::{Stream, stream};
use netd_capture::{Direction, FilterError, Packet};
use podvirt_proto::netd::v1 as proto;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

use crate::control::Control;
use crate::limits::{MAX_CAPTURE_KIB, MAX_CAPTURES};
use crate::tap::{self, MAX_SNAPLEN, Reader, Settings};

/// KiB that may wait by default: some 60 of the largest frames.
const DEFAULT_BUFFER_KIB: u32 = 4096;
/// Least KiB: room for one frame of any size.
const LEAST_BUFFER_KIB: u32 = 128;
/// Frames in one message, of up to 64 KiB each.
const FRAMES_PER_MESSAGE: usize = 32;
/// How often the numbers are told when nothing else is.
const PULSE: Duration = Duration::from_secs(1);

/// What the call answers.
pub(super) type CaptureStream = Pin<Box<dyn Stream<Item = Result<proto::CaptureResponse, Status>> + Send>>;

/// Hands out captures.
pub(super) struct Captures {
    permits: Arc<Semaphore>,
    next_id: AtomicU64,
}

/// What is wrong with a request.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("snaplen: {0} is not allowed; at most {max} is", max = MAX_SNAPLEN)]
    Snaplen(u32),
    #[error("buffer_kib: {0} is not allowed; {least} to {max} is", least = LEAST_BUFFER_KIB, max = MAX_CAPTURE_KIB)]
    Buffer(u32),
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// A capture that runs; the worker forgets it when this goes.
struct Running {
    control: Arc<dyn Control>,
    id: u64,
    reader: Reader,
    interface: Option<proto::CaptureInterface>,
    pulse: Interval,
    ending: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.untap(self.id);
        let (matched, dropped) = (self.reader.matched(), self.reader.dropped());
        tracing::info!(id = self.id, matched, dropped, "capture ended");
    }
}

impl Captures {
    pub(super) fn new() -> Captures {
        Captures { permits: Arc::new(Semaphore::new(MAX_CAPTURES)), next_id: AtomicU64::new(1) }
    }

    /// Starts one at the guest's card `name` with the address `mac`; it ends when `ending` becomes true.
    pub(super) fn start(
        &self,
        control: Arc<dyn Control>,
        request: &proto::CaptureRequest,
        (name, mac): (&str, String),
        ending: watch::Receiver<bool>,
    ) -> Result<CaptureStream, Status> {
        let settings = self.settings(request).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            Status::resource_exhausted(format!("{MAX_CAPTURES} captures run already, no more can"))
        })?;
        let (id, snaplen) = (settings.id, settings.snaplen);
        let (tap, reader) = tap::tap(settings);
        let mut pulse = interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // From here on the end of the capture is told to the worker.
        let running = Running {
            control,
            id,
            reader,
            interface: Some(proto::CaptureInterface { name: name.to_owned(), mac, snaplen }),
            pulse,
            ending,
            _permit: permit,
        };
        if !running.control.tap(tap) {
            return Err(Status::unavailable("netd's worker has ended"));
        }
        tracing::info!(id, filter = request.filter, snaplen, "capture started");
        Ok(Box::pin(stream::unfold(running, Running::step)))
    }

    fn settings(&self, r: &proto::CaptureRequest) -> Result<Settings, RequestError> {
        let snaplen = match r.snaplen {
            0 => MAX_SNAPLEN,
            n if n <= MAX_SNAPLEN => n,
            n => return Err(RequestError::Snaplen(n)),
        };
        let buffer_kib = match r.buffer_kib {
            0 => DEFAULT_BUFFER_KIB,
            n if (LEAST_BUFFER_KIB..=MAX_CAPTURE_KIB).contains(&n) => n,
            n => return Err(RequestError::Buffer(n)),
        };
        Ok(Settings {
            id: self.next_id.fetch_add(1, Relaxed),
            filter: r.filter.parse()?,
            snaplen,
            segment: r.segment,
            buffer_bytes: buffer_kib as usize * 1024,
        })
    }
}

impl Running {
    /// The next message.
    async fn step(mut self) -> Option<(Result<proto::CaptureResponse, Status>, Running)> {
        let mut response = proto::CaptureResponse { interface: self.interface.take(), ..Default::default() };
        if response.interface.is_none() {
            tokio::select! {
                _ = self.ending.wait_for(|ending| *ending) => return None,
                packets = self.reader.read(FRAMES_PER_MESSAGE) => {
                    if packets.is_empty() {
                        return None;
                    }
                    response.frames = packets.into_iter().map(frame).collect();
                }
                _ = self.pulse.tick() => {}
            }
        }
        response.matched = self.reader.matched();
        response.dropped = self.reader.dropped();
        Some((Ok(response), self))
    }
}

fn frame(p: Packet) -> proto::CapturedFrame {
    let direction = match p.direction {
        Direction::Inbound => proto::FrameDirection::Inbound,
        Direction::Outbound => proto::FrameDirection::Outbound,
    };
    proto::CapturedFrame {
        time_ns: u64::try_from(p.at.as_nanos()).unwrap_or(u64::MAX),
        direction: direction.into(),
        length: p.len,
        gso_size: p.gso_size.into(),
        data: p.data,
    }
}
