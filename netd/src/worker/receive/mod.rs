//! The way to the guest: what has something for it, in turn, and the receive ring that takes it.

mod belongs;
mod deliver;
pub(super) mod inbound;
pub(super) mod payload;
pub(super) mod queue;
pub(super) mod ready;

pub(super) use inbound::{InHand, Origin};
pub(super) use queue::ReceiveQueue;
pub(super) use ready::Queues;
