//! The state of a netd as a value: what a successor needs to go on where this one stops.
//!
//! # Theory of operation
//!
//! A [`Snapshot`] holds everything that the guest or a peer could miss: the frontend's connection and what it has set
//! up, the rings' positions, every flow with its socket, the listeners and what was learned of the guest. It is made
//! of plain values; descriptors stand beside it, and the values name their places. [`Snapshot::encode`] and [`decode`]
//! turn it into a stream of versioned records (`codec`) and back, so that an older and a newer netd understand each
//! other, in both directions.
//!
//! ```text
//!  old netd                                             new netd
//!  frontend at rest, workers frozen                      starts, reads its configuration, the pod, …
//!     │ state()              ┌── podvirt_proto::hold ──┐     │
//!     └──> Snapshot ─ encode ┤ bytes and descriptors   ├ decode ─> Snapshot ─> workers (frozen), replay
//!                            └─────────────────────────┘     │            all that can fail has been done
//!     │ <──────────────────── Ready ───────────────────────── ┘
//!     │ ───────────────────── Go ───────────────────────────> thaw
//!   exit: nothing is shut down, so no FIN                    and no RST: the sockets live on
//! ```
//!
//! [`Giver`] is the old one's side, [`Collected`] the new one's; between them may lie a hold ([`podvirt_proto::hold`]), to
//! which the two are the same. Everything that stands still in the old one goes on when the new one is not ready in
//! time.

mod begin;
pub(crate) mod codec;
mod device;
mod give;
mod offer;
mod pack;
mod saved;
mod snapshot;
mod stream;
mod take;
#[cfg(test)]
mod tests;

pub use begin::{BeginError, Heir, Parts, begin};
pub use codec::DecodeError;
pub use device::StateError;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use device::{Arrivals, read_arrivals};
pub(crate) use device::{Device, Ends};
pub use give::{GiveError, Given, Giver, end};
pub use offer::{Offer, Offers};
pub use pack::{Descriptors, Missing, Pack};
pub(crate) use pack::{Named, text};
pub use snapshot::{
    Addresses, EchoFlow, Fd, Frontend, Listeners, Log, Origin, Outlet, Port, Region, Snapshot, Steering,
    TcpFlow, UdpFlow, VhostRing, Worker, WorkerState,
};
pub use stream::decode;
pub use take::{CollectError, Collected, Permission, Source};
