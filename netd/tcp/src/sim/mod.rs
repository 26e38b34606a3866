//! The translator in virtual time: a guest, a link with faults, and a pod's socket with a peer behind it.
//!
//! # Theory of operation
//!
//! [`world::World`] steps from event to event. Four parts have a next event each: the [`link::Link`] (packets on
//! their way, with loss, duplication and reordering), the guest ([`guest::Reference`], a TCP of its own with
//! every habit a guest may have, or [`smol::Smol`], smoltcp's socket), the [`pod::Pod`] (send buffer, receive
//! queue with a peek offset, and the peer that reads, writes, stalls and closes) and [`driver::Driver`], which
//! owns the connection and does what the worker does, in the worker's order. Everything follows from a seed.
//!
//! Checked at every step, not only at the end: what is sent lies in the window the guest gave, acknowledgements
//! and the window's right edge never go back, nothing is acknowledged that a far peer has not acknowledged, the
//! peek offset is `snd_nxt - snd_una`, the deadline is in the future after it was served, and every byte is the
//! right one. A run that does not end within its virtual time or its number of steps has failed.

mod cases;
mod driver;
mod far;
mod guest;
mod link;
mod pod;
mod smol;
mod world;

use super::Seq;
use netd_base::time::Time;
use netd_wire::TcpFlags;

/// A segment with its payload.
#[derive(Clone, Debug)]
struct Packet {
    seq: Seq,
    ack: Seq,
    flags: TcpFlags,
    window: u16,
    mss: Option<u16>,
    scale: Option<u8>,
    payload: Vec<u8>,
}

impl Packet {
    fn has(&self, flags: TcpFlags) -> bool {
        self.flags.has(flags)
    }

    /// Numbers of the sequence space that it takes.
    fn occupied(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }
}

/// When an end closes its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    /// As soon as everything was sent.
    AfterSending,
    /// When the other direction has ended.
    AfterEnd,
}

/// What both applications do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Bytes from the guest.
    up: u64,
    /// Bytes from the peer.
    down: u64,
    guest_closes: Close,
    peer_closes: Close,
    /// The guest's application dies when it has received this many bytes.
    guest_resets_at: Option<u64>,
    /// The peer dies when it has received this many bytes.
    peer_resets_at: Option<u64>,
}

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }

    fn fork(&mut self) -> Rng {
        Rng(self.next())
    }
}

/// The byte at `at` of a stream; the two directions differ.
fn byte(stream: u8, at: u64) -> u8 {
    ((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8) ^ stream
}

const UP: u8 = 0x55;
const DOWN: u8 = 0xaa;

fn bytes(stream: u8, from: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| byte(stream, from + i)).collect()
}

fn min_time(times: impl IntoIterator<Item = Option<Time>>) -> Option<Time> {
    times.into_iter().flatten().min()
}
