//! The live update: a netd's successor on the same machine goes on where this netd stops.
//!
//! # Theory of operation
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
//! [`Giver`] is the old netd's side, [`Collected`] the new netd's. Between them may lie a hold ([`podvirt_proto::hold`]), a
//! process that keeps what the old netd deposits until the new netd collects it; both sides work as they do without it. What
//! stands still in the old netd goes on there when the new netd is not ready in time.

mod begin;
mod give;
mod offer;
mod take;

pub use begin::{BeginError, Heir, Parts, begin};
pub use give::{GiveError, Given, Giver, end};
pub use offer::{Offer, Offers};
pub use take::{CollectError, Collected, Permission, Source};
