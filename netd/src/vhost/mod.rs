//! The vhost-user backend: how a frontend (QEMU, User Mode Linux, DPDK) sets up the rings.
//!
//! # Theory of operation
//!
//! The protocol itself, the memory map and the bookkeeping of rings come from the `vhost-user-backend` crate. It
//! is shaped by three additions (ADR 0002):
//!
//! - [`vring`]: a `VringT` of our own. The crate reports every change of a ring by a call on it; after each
//!   call the ring is *evaluated*: compared with what runs, and stopped or started on the [`RingSink`].
//! - `queues_per_thread() -> []`: the crate starts no threads and reads no kicks. The datapath polls the kick
//!   descriptors itself.
//! - [`filter`]: a translator of messages in front of the crate, for what real frontends send and the crate does
//!   not take.
//!
//! ```text
//!   frontend ──socket── filter ──private socket── vhost-user-backend ── HookVring ── RingSink (worker)
//!             (the thread that runs `serve`)       (a thread a connection)
//! ```
//!
//! One frontend is served at a time. Each connection gets a daemon of its own, so nothing of one frontend is
//! left for the next; when it ends, for whatever reason, every running ring is stopped and the sink is told.
//!
//! A ring runs when features were negotiated, it is enabled (`SET_VRING_ENABLE`), it has a kick descriptor and
//! its addresses are good. A transmit ring that was enabled and is not any more runs on, marked as disabled: the
//! frames in it are thrown away, as the driver would wait for ever for their completion. A ring with bad addresses is logged, reported on its error descriptor and left alone;
//! the other rings and the connection go on.
//!
//! On a change of the memory map the rings are stopped, made anew on the new map and started; then the old map
//! is let go. `GET_VRING_BASE` stops a ring, so the position it answers is final.
//!
//! # Dirty logging
//!
//! `SET_LOG_BASE` is answered by the filter, which maps the log; `VHOST_F_LOG_ALL` in `SET_FEATURES` puts it on
//! the memory map and takes it off again. The crate is not asked: it cannot stop logging. Whenever the log in use changes
//! (also when it is replaced by a longer one) each ring is stopped and started, and only then the frontend is answered:
//! nothing goes into the old log after that, and nothing that was written unmarked is written after that. Memory that
//! comes later is logged as the rest.
//!
//! # Device state
//!
//! In a migration the frontend asks for the device's state, or gives it, by a pipe (`SET_DEVICE_STATE_FD`, while no ring
//! runs) and asks later whether that was of success (`CHECK_DEVICE_STATE`). The state is written or read by a thread of
//! its own ([`transfer`]), so that messages are answered meanwhile. `SET_VRING_KICK` says that the guest is about to run:
//! here, after all, when the state was saved, or here for the first time when it was loaded.
//!
//! # What is trusted
//!
//! Nothing the frontend sends can stop netd: a message that makes no sense ends its connection, and the next one
//! is served. Files that are too short when they arrive are refused. One that is made shorter while it is mapped costs the
//! frontend its connection, and netd nothing: SIGBUS in guest memory or in the dirty log is caught, the memory
//! replaced, and the connection ended (`ring::fault`).
//!
//! The descriptors that signal the frontend are shared with it, `O_NONBLOCK` with them. Each is asked for room before it
//! is written, so one that is full and made to block is left alone. A frontend that fills one between the two system
//! calls, and never reads it, can still stop a worker: the kernel has no write to an eventfd that cannot wait.

mod channel;
mod device;
mod filter;
mod group;
mod listen;
mod message;
mod mover;
mod record;
mod serve;
#[cfg(test)]
mod tests;
mod transfer;
mod vring;

use std::fs::File;

use crate::ring::Ring;
use crate::state::StateError;

pub use listen::{ServerConfig, SocketMode};
pub use mover::{AtRest, Mover, Recorded, RestError, TakeError, Taken};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use serve::serve_one as serve_connection;
pub use serve::{ServeError, serve};

/// Queue pairs that netd can offer: more than a guest of usual size has processors to serve.
pub const MAX_QUEUE_PAIRS: usize = 8;
/// Rings of that many pairs: of pair n, 2n is the guest's receive ring and 2n + 1 its transmit ring.
const MAX_RINGS: usize = 2 * MAX_QUEUE_PAIRS;
/// The most entries of a ring. QEMU asks for up to 1024.
pub const MAX_RING_SIZE: u16 = 1024;

/// Virtio feature bits (VIRTIO 1.2, 5.1.3 and 6) and the two of vhost-user itself.
pub mod feature {
    /// `VIRTIO_NET_F_CSUM`: the device takes packets with partial checksums.
    pub const CSUM: u64 = 1;
    /// `VIRTIO_NET_F_GUEST_CSUM`: the driver takes packets with partial checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// `VIRTIO_NET_F_GUEST_TSO4`.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// `VIRTIO_NET_F_GUEST_TSO6`.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// `VIRTIO_NET_F_HOST_TSO4`.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// `VIRTIO_NET_F_HOST_TSO6`.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// `VIRTIO_NET_F_MRG_RXBUF`: a frame may be spread over several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// `VIRTIO_NET_F_MQ`: more than one queue pair. The control queue that goes with it is the frontend's.
    pub const MQ: u64 = 1 << 22;
    /// `VHOST_F_LOG_ALL`: the device logs the pages it writes.
    pub const LOG_ALL: u64 = 1 << 26;
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `VIRTIO_F_EVENT_IDX`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// `VHOST_USER_F_PROTOCOL_FEATURES`.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// `VIRTIO_F_VERSION_1`.
    pub const VERSION_1: u64 = 1 << 32;

    /// What netd offers, [`MQ`] beside it where there is more than one pair. A later version must not offer less:
    /// a frontend that reconnects would be refused.
    pub const OFFERED: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | HOST_TSO4
        | HOST_TSO6
        | MRG_RXBUF
        | LOG_ALL
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1;

    /// What netd offers with this many queue pairs.
    pub const fn offered(pairs: usize) -> u64 {
        if pairs > 1 { OFFERED | MQ } else { OFFERED }
    }
}

/// What the vhost-user side tells the datapath.
///
/// Called from the threads of this module, never from two at once for the same ring. Calls are synchronous: when
/// [`RingSink::stop`] returns, the worker no longer touches the ring.
pub trait RingSink: Send + Sync + 'static {
    /// From now on a frontend can come; called once, before everything else.
    fn listening(&self) {}
    /// Ring `index` runs from now on. It may hold chains already, for which no kick will come. If it is
    /// [disabled](Ring::is_disabled), chains are only to be completed.
    fn start(&self, index: usize, ring: Ring);
    /// Takes ring `index` back. Every chain that was popped has been completed or given back by `unpop`.
    fn stop(&self, index: usize) -> Option<Ring>;
    /// The features that the driver accepted; called before the first start and when they change.
    fn set_features(&self, acked: u64);
    /// A frontend has come, or is gone.
    fn set_connected(&self, connected: bool);
    /// Writes the device's state and stands still from then on, until [`RingSink::resume`]. No ring runs.
    ///
    /// # Errors
    /// [`StateError`]; everything goes on as before then.
    fn save(&self, _to: File) -> Result<(), StateError> {
        Err(StateError::Unsupported)
    }
    /// Reads the device's state and stands still with it until [`RingSink::resume`]. No ring runs.
    ///
    /// # Errors
    /// [`StateError`]; there is nothing of the state then.
    fn load(&self, _from: File) -> Result<(), StateError> {
        Err(StateError::Unsupported)
    }
    /// The guest runs here: a device that stands still since its state was saved or loaded goes on.
    fn resume(&self) {}
}
