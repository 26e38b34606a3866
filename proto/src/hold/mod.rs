//! How the state of a netd passes to its successor, and the hold that keeps it while there is none.
//!
//! A *parcel* is a stream of bytes, which only netd understands, and descriptors in their order. It passes over a
//! UNIX socket of the kind SOCK_SEQPACKET in messages of a kind, a version and a payload:
//!
//! ```text
//! giver ── Deposit ──> hold          hold, or a netd that hands over <── Collect ── successor
//!       ── Bytes… ──>                                                ── Bytes… ──>
//!       ── Fds… ────>                                                ── Fds… ────>
//!       ── End ─────>                                                ── End ─────>    unpacks it, prepares all
//!       <── Kept ────                                                <── Ready ───    that can fail
//!                                                                    ── Go ──────>    and only now goes on
//! ```
//!
//! To the successor a hold and a netd that runs are the same. Until *Ready* nothing has been given away: when the
//! successor ends, is too late or says that it cannot ([`Message::Refused`]), the netd goes on and the hold keeps
//! the parcel. A hold without a parcel answers *Empty*.
//!
//! A hold keeps one parcel. It is dropped when no netd has collected it in time, which closes what is in it: flows are
//! reset as if netd had ended without one. Both ends check that the other is of their own user.

mod keep;
mod parcel;
mod wire;

pub use keep::{Hold, KEEP};
pub use parcel::{Limits, Parcel};
pub use wire::{Error, Message, Wire, listener};
