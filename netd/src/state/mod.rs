//! The state of a netd as a value: what a successor needs to go on where this netd stops.
//!
//! A [`Snapshot`] holds everything that the guest or a peer could miss: the frontend's connection and what it has set
//! up, the rings' positions, every flow with its socket, the listeners and what was learned of the guest. It is made
//! of plain values; descriptors stand beside it ([`Descriptors`]), and the values name their places. [`Snapshot::encode`]
//! and [`decode`] turn it into a stream of versioned records ([`crate::codec`]) and back, so that an older and a newer
//! netd understand each other, in both directions.
//!
//! The same records serve the two ways in which a state moves: to the next process on this machine
//! ([`crate::update`]), with the descriptors themselves, and to another machine ([`crate::device`]), without them.

mod error;
mod pack;
mod saved;
mod snapshot;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use error::{InheritError, StateError};
pub use pack::{Descriptors, Missing, Pack};
pub(crate) use pack::{Named, text};
pub use snapshot::{
    Addresses, EchoFlow, Fd, ForwardedPort, Frontend, Listeners, Log, Origin, Outlet, Region, Snapshot,
    Steering, TcpFlow, UdpFlow, VhostRing, Worker, WorkerState,
};
pub use stream::decode;
#[cfg(test)]
pub(crate) use tests::syn;

/// The ends of a flow: the guest's, and the peer as the guest sees it.
pub(crate) type Endpoints = (SocketAddr, SocketAddr);
