//! The flow table: which flows there are between the guest and its peers, within limits.
//!
//! A flow is found by its [`Key`], the tuple as the guest sees it, or by its [`FlowId`], which is what epoll
//! hands back. Ids carry a generation, so that an event or a timer of a flow that is gone finds nothing. Each
//! flow has at most one deadline in the timer queue; a deadline that moved later is not taken out but found to
//! be early when it comes up (most deadlines only ever move later).
//!
//! Flows that may give their place to others are in lists by the order in which they were used; see
//! [`Table::rank`].

mod admission;
mod deadlines;
mod index;
mod packed;
mod recent;
mod table;

pub use admission::Admission;
pub use recent::LISTS;
pub use table::Table;

use std::net::SocketAddr;

/// What a key speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A TCP connection.
    Tcp = 0,
    /// A UDP flow.
    Udp = 1,
    /// Echo requests of one identifier; the peer is the unspecified address.
    Echo = 2,
}

/// The tuple of a flow as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Kind.
    pub kind: Kind,
    /// The guest's end; for echo its identifier instead of a port.
    pub guest: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
}

/// A flow's place in the table, good for one flow only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    index: u32,
    generation: u32,
}

/// Bits of a generation that fit an epoll token beside the index and the tag.
const GENERATION_BITS: u32 = 24;

impl FlowId {
    /// The place in the order of [`Table::iter_from`].
    pub fn slot(self) -> usize {
        self.index as usize
    }

    /// The id as the low 56 bits of an epoll token.
    pub fn to_token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The id in a token made by [`FlowId::to_token`].
    pub fn from_token(token: u64) -> FlowId {
        FlowId { index: token as u32, generation: (token >> 32) as u32 & ((1 << GENERATION_BITS) - 1) }
    }
}
