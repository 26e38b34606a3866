//! The tap: copies of the frames on the guest's link, for an operator who watches.
//!
//! # Theory of operation
//!
//! ```text
//!   worker: on_frame / finish ──▶ Taps::offer ──▶ filter ──▶ copy ──▶ queue ──▶ Reader ──▶ gRPC ──▶ netctl ──▶ pcapng
//!                                                              └── full: counted, not waited for
//! ```
//!
//! A tap is taken at the rings: frames of the guest after their virtio header was read and before anything judges
//! them, frames for the guest when they stand complete in its buffers. Without a tap that costs one branch a frame.
//! With one, the worker parses the headers ([`Headers`]), asks the [`Filter`], and copies what matched into a queue
//! that is bounded in bytes. It never waits: what does not fit is counted ([`Reader::dropped`]). The queue is read
//! by the control thread; a tap ends when its [`Reader`] goes and the worker is told to forget it.
//!
//! What is shown is what a wire would carry: a checksum that was left to the device is completed, over the whole
//! frame, before the copy is cut. Frames that are to be segmented by the device are shown as they are, up to 64 KiB,
//! or as the segments that they stand for ([`segment`]), which the control thread makes.
//!
//! The guest may change a frame of its own while it is read. Headers and copy are then read at different moments; a
//! capture may lie about a guest that wants it to, and does no other harm.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub use netd_capture::{Direction, Filter, Packet};
use netd_capture::{Headers, segment};

use crate::ring::Iovs;
use crate::wire::{GsoType, VNET_LEN, VnetHeader};

/// Bytes of a frame that are looked at by the filter: all headers, with options and some extension headers.
const HEAD: usize = 192;
/// What a queued frame costs beside its bytes.
const OVERHEAD: usize = size_of::<Packet>() + 16;
/// Bytes of a frame that are kept by default, and at most: the largest frame and then some, as tcpdump has it.
pub const MAX_SNAPLEN: u32 = 262_144;

/// What a tap does.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tells it from others.
    pub id: u64,
    /// Frames that it shows.
    pub filter: Filter,
    /// Bytes kept of each frame.
    pub snaplen: u32,
    /// Whether large frames are shown as the segments that they stand for.
    pub segment: bool,
    /// Bytes that may wait to be read.
    pub buffer_bytes: usize,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    queued_bytes: AtomicUsize,
    matched: AtomicU64,
    dropped: AtomicU64,
}

/// The worker's end. Clones are the same tap, for several workers.
#[derive(Clone, Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    queue: UnboundedSender<Packet>,
}

/// The end that frames are read from.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    queue: UnboundedReceiver<Packet>,
}

/// Makes both ends.
pub fn tap(settings: Settings) -> (Tap, Reader) {
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::new(Shared {
        settings,
        queued_bytes: AtomicUsize::new(0),
        matched: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
    });
    (Tap { shared: shared.clone(), queue: sender }, Reader { shared, queue: receiver })
}

fn cost(bytes: usize) -> usize {
    bytes + OVERHEAD
}

impl Tap {
    /// The number in its settings.
    pub fn id(&self) -> u64 {
        self.shared.settings.id
    }

    fn offer(&self, frame: &Frame<'_>) {
        let settings = &self.shared.settings;
        if !settings.filter.matches(&frame.headers, frame.direction) {
            return;
        }
        self.shared.matched.fetch_add(1, Relaxed);
        let whole = frame.len();
        // Segments are made of the whole frame and cut afterwards.
        let keep = match frame.vnet.gso {
            GsoType::TcpV4 | GsoType::TcpV6 if settings.segment => whole,
            _ => whole.min(settings.snaplen as usize),
        };
        let queued = self.shared.queued_bytes.fetch_add(cost(keep), Relaxed);
        if queued + cost(keep) > settings.buffer_bytes {
            self.shared.queued_bytes.fetch_sub(cost(keep), Relaxed);
            self.shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        let packet = Packet {
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            direction: frame.direction,
            len: whole as u32,
            gso_size: if frame.vnet.gso == GsoType::None { 0 } else { frame.vnet.gso_size },
            data: frame.copy(keep),
        };
        // Without a reader it is about to be forgotten.
        let _ = self.queue.send(packet);
    }
}

impl Reader {
    /// Waits for frames and gives up to `most`; none when no worker has the tap any more.
    pub async fn read(&mut self, most: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        self.queue.recv_many(&mut packets, most).await;
        let freed = packets.iter().map(|p| cost(p.data.len())).sum();
        self.shared.queued_bytes.fetch_sub(freed, Relaxed);
        let settings = &self.shared.settings;
        if settings.segment {
            packets = packets.into_iter().flat_map(|p| segment::segments(p, settings.snaplen)).collect();
        }
        packets
    }

    /// Frames that the filter let through, those that were dropped included.
    pub fn matched(&self) -> u64 {
        self.shared.matched.load(Relaxed)
    }

    /// Frames that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Relaxed)
    }
}

/// The taps of one worker.
#[derive(Debug, Default)]
pub struct Taps(Vec<Tap>);

impl Taps {
    /// With one tap more.
    pub fn add(taps: Option<Box<Taps>>, tap: Tap) -> Option<Box<Taps>> {
        let mut taps = taps.unwrap_or_default();
        taps.0.push(tap);
        Some(taps)
    }

    /// Without the tap of this number; None when there is none left.
    pub fn remove(taps: Option<Box<Taps>>, id: u64) -> Option<Box<Taps>> {
        let mut taps = taps?;
        taps.0.retain(|t| t.id() != id);
        (!taps.0.is_empty()).then_some(taps)
    }

    /// Shows a frame to every tap: `bytes` of `slices` from slice `first` on, its virtio header in front.
    #[cold]
    #[inline(never)]
    pub fn offer(&self, direction: Direction, slices: &Iovs, first: usize, bytes: usize, vnet: &VnetHeader) {
        let mut head = [0; HEAD];
        let len = bytes.saturating_sub(VNET_LEN);
        let n = slices.read(first, VNET_LEN, &mut head[..len.min(HEAD)]);
        let headers = Headers::parse(&head[..n], len);
        let frame = Frame { direction, slices, first, vnet, headers };
        for tap in &self.0 {
            tap.offer(&frame);
        }
    }
}

/// A frame in the guest's memory.
struct Frame<'a> {
    direction: Direction,
    slices: &'a Iovs,
    first: usize,
    vnet: &'a VnetHeader,
    headers: Headers,
}

impl Frame<'_> {
    /// Bytes without the virtio header.
    fn len(&self) -> usize {
        self.headers.len
    }

    /// Its first `keep` bytes, with the checksum that the sender left to the device.
    fn copy(&self, keep: usize) -> Vec<u8> {
        let mut data = vec![0; keep];
        self.slices.read(self.first, VNET_LEN, &mut data);
        let start = usize::from(self.vnet.csum_start);
        let field = start + usize::from(self.vnet.csum_offset);
        if self.vnet.needs_csum && field + 2 <= self.len() && field + 2 <= keep {
            // The field holds the pseudo header's sum and is part of what is summed (virtio 1.2, 5.1.6.2).
            let rest = self.len() - start;
            // RFC 768: a UDP checksum of zero is sent as its complement.
            let udp = self.vnet.csum_offset == 6;
            let sum = match !self.slices.checksum(self.first, VNET_LEN + start, rest, 0) {
                0 if udp => 0xffff,
                sum => sum,
            };
            data[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        data
    }
}
