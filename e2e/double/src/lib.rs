//! A double of a virtual machine's network device: a vhost-user frontend without a guest.
//!
//! Tests and benchmarks use it where a real guest is too slow or too well-behaved.
//!
//! - [`Double`] connects to a vhost-user backend with guest memory of its own and drives the rings itself: it
//!   sends and receives frames, and posts descriptors that no honest driver would post.
//! - A [`Double`] may have several queue pairs, each a [`Pair`].
//! - [`TapPump`] joins a double with a tap device in a network namespace, so that the namespace's own TCP/IP
//!   stack is the guest: its frames, GSO headers included, go through the backend as a guest's would.
//! - [`LongWire`] joins two taps of two namespaces, so that each is as far from the other as it is long.
//!
//! ```text
//!   Double      ──rings, vhost-user──▶ backend
//!   namespace's TCP/IP ── tap ── TapPump ── Double ──rings, vhost-user──▶ backend
//!   namespace's TCP/IP ── tap ── LongWire ── tap ── other namespace's TCP/IP
//! ```
//!
//! Frames carry the 12-byte `virtio_net_hdr` (VIRTIO 1.2, 5.1.6.1) in front, in both directions; see [`feature::header_len`].
//!
//! `unsafe` is confined to the module `sys`: mapped guest memory, and the tap's ioctls.

mod double;
mod migrate;
mod pair;
mod ring;
mod sys;
mod tap;
mod wire;

pub use double::{Double, DoubleError, HEADER, Options, RX, TX};
pub use migrate::{Loaded, Position, Source};
pub use pair::Pair;
pub use ring::{Descriptor, DriverRing, INDIRECT, NEXT, Used, WRITE};
pub use sys::{GuestMem, Silence};
pub use tap::{PumpStats, TapOptions, TapPump};
pub use wire::LongWire;

/// Bits of `VIRTIO_NET_F_*` and `VIRTIO_F_*` that a double can accept (VIRTIO 1.2, 5.1.3 and 6).
pub mod feature {
    /// Partial checksums in what the guest sends.
    pub const CSUM: u64 = 1;
    /// Partial checksums in what the guest receives.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// Large IPv4 TCP frames in what the guest receives.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// Large IPv6 TCP frames in what the guest receives.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Large IPv4 TCP frames in what the guest sends.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// Large IPv6 TCP frames in what the guest sends.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// Received frames in several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// More than one queue pair; taken when a double has them.
    pub const MQ: u64 = 1 << 22;
    /// Indirect descriptor tables.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Event indexes instead of flags.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user's own negotiation.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The standard of 1.0 and later. Without it and [`MRG_RXBUF`] the header of a frame is the legacy one of 10 bytes.
    pub const VERSION_1: u64 = 1 << 32;

    /// Bytes of the header of a frame for a driver that has accepted these (VIRTIO 1.2, 5.1.6.1).
    pub const fn header_len(features: u64) -> usize {
        if features & (VERSION_1 | MRG_RXBUF) == 0 { crate::HEADER - 2 } else { crate::HEADER }
    }

    /// Everything above.
    pub const ALL: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | HOST_TSO4
        | HOST_TSO6
        | MRG_RXBUF
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1;
}
