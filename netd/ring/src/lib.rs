//! The device side of a split virtqueue, straight on guest memory.
//!
//! # Theory of operation
//!
//! A [`MemMap`] is an immutable snapshot of the guest's memory: regions sorted by guest-physical address, each
//! with the host address of its mapping. When the memory changes, the rings are stopped, a new `MemMap` is made
//! and new [`Ring`]s on it; nothing is ever translated twice and nothing is ever remapped under a ring.
//!
//! [`Ring::new`] translates the descriptor table, the available ring and the used ring once, after checking
//! their alignment and that each lies inside one region. [`Ring::pop`] reads one chain and appends its buffers,
//! as host slices, to two [`Iovs`] (what the device reads, what the device writes). Every index, length and
//! address is checked at that moment and read from guest memory exactly once, so a guest that changes a
//! descriptor under our hands changes nothing that was checked. Completed chains are staged by
//! [`Ring::push_used`] and made visible together by [`Ring::publish`], which also says whether the driver wants
//! to be told.
//!
//! ```text
//!   driver: writes table, avail.ring, avail.idx     device: pop ... pop, push_used ... push_used, publish
//!
//!   next_used <= next_avail <= avail.idx            all three are counters modulo 2^16; their distances
//!        in flight     waiting                      never exceed the size of the ring
//! ```
//!
//! # What is trusted
//!
//! Nothing that lies in guest memory. Two kinds of trouble are told apart, because the answers differ:
//!
//! - one chain is wrong ([`PopError::Chain`]): give it back with length 0 and go on;
//! - the ring itself is wrong ([`PopError::Ring`]): stop it and tell the frontend ([`Ring::break_down`]).
//!
//! Guest memory is shared with a running guest and is therefore never the target of a Rust reference: it is read
//! and written by volatile or atomic accesses and by raw copies from which the compiler concludes nothing, and any value found there may be torn or stale.
//! That is harmless: bytes are only bytes, and indexes are checked after they were read.
//!
//! # Differences from the `virtio-queue` crate
//!
//! That crate is the oracle of this module's tests. netd's ring is stricter: a chain that is cut short, loops, or
//! has a bad descriptor is refused as a whole instead of being delivered in part; so are empty buffers,
//! `INDIRECT` together with `NEXT`, a readable buffer after a writable one, a chain of more than
//! [`MAX_CHAIN`] buffers, and an indirect table that lies in two regions. A buffer across two adjacent regions
//! becomes two slices. A head outside the table, and more chains in flight than the ring has entries, break the
//! ring. `NO_INTERRUPT` is obeyed when `EVENT_IDX` was not negotiated.
//!
//! # Dirty pages
//!
//! While a [`DirtyLog`] is set on the map, the ring marks what it writes itself (used ring, event fields); the
//! caller marks payload by [`Ring::mark_written`], after it was written.
//!
//! # Beyond the ring
//!
//! [`socket`] moves payload between a chain's buffers ([`Iovs`]) and sockets of the kernel; [`Bell`] tells the driver that
//! something was done, without waiting for the frontend at the other end.
//!
//! Written from the Virtual I/O Device (VIRTIO) specification 1.2, section 2.7 (split virtqueues).

#![allow(unsafe_code)]

mod bell;
mod desc;
#[cfg(test)]
mod dirty_tests;
mod error;
mod fault;
mod interrupt;
mod iovs;
mod log;
mod mem;
#[cfg(test)]
mod oracle_tests;
mod queue;
pub mod socket;
mod sum;
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod tests;

pub use bell::{Bell, BellKind};
pub use error::{Area, ChainError, PopError, RingError};
pub use interrupt::Thread;
pub use iovs::Iovs;
pub use log::DirtyLog;
pub use mem::MemMap;
pub use queue::{MAX_CHAIN, MAX_SIZE, Popped, Ring, RingLayout};
