//! How many flows one guest may have, over all its workers.

use std::sync::PoisonError;

use super::sync::{AtomicU32, Mutex, Relaxed};
use crate::flow::Admission;
use crate::limits::Limits;
use crate::time::Time;

/// The most places that are kept for either side: enough to work with, and few of those that were asked for.
const MOST_KEPT: u32 = 256;

/// Budgets below this are too small to be parted.
const FEWEST: u32 = 64;

/// The part of the places, one in so many, that flows of datagrams leave to connections.
const CONNECTIONS: u32 = 4;

/// The part of what is left, one in so many, that the flows of one port have without giving way to those of others.
const PORT: u32 = 4;

/// The side that opens a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest.
    Guest,
    /// A peer, by a forwarded port.
    Peer,
}

/// The guest's budget of flows: how many at once, and how fast new ones may come.
///
/// Either side has a rate of its own, and an eighth of the places (at most [`MOST_KEPT`]) that the other cannot take:
/// peers that flood the guest do not keep it from speaking, and a guest that floods stays within reach. Likewise flows
/// of datagrams have rates of their own and leave a quarter of the places to connections: a guest that asks thousands
/// of names can still connect.
///
/// It is touched when a flow opens or ends, never for a packet of one.
#[derive(Debug)]
pub struct Budget {
    limit: u32,
    kept: u32,
    flows: AtomicU32,
    /// Those of each side.
    sides: [AtomicU32; 2],
    /// Those of datagrams, of both sides and of each.
    datagrams: AtomicU32,
    datagrams_of: [AtomicU32; 2],
    admission: [Mutex<Admission>; 2],
    datagram_admission: [Mutex<Admission>; 2],
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(limits: &Limits, now: Time) -> Budget {
        let admission =
            || Mutex::new(Admission::new(limits.new_flows_per_second, limits.new_flows_burst, now));
        Budget {
            limit: limits.flows,
            kept: if limits.flows < FEWEST { 0 } else { (limits.flows / 8).min(MOST_KEPT) },
            flows: AtomicU32::new(0),
            sides: [AtomicU32::new(0), AtomicU32::new(0)],
            datagrams: AtomicU32::new(0),
            datagrams_of: [AtomicU32::new(0), AtomicU32::new(0)],
            admission: [admission(), admission()],
            datagram_admission: [admission(), admission()],
        }
    }

    /// Whether one more connection may be opened now by the rate of new flows.
    pub fn admit(&self, side: Side, now: Time) -> bool {
        self.admission[side as usize].lock().unwrap_or_else(PoisonError::into_inner).admit(now)
    }

    /// Whether one more flow of datagrams may be opened now by the rate of new flows.
    pub fn admit_datagrams(&self, side: Side, now: Time) -> bool {
        self.datagram_admission[side as usize].lock().unwrap_or_else(PoisonError::into_inner).admit(now)
    }

    /// Whether flows of datagrams have all the places that they may have.
    pub fn has_all_datagrams(&self) -> bool {
        self.datagrams.load(Relaxed) >= self.most_datagrams()
    }

    /// Whether `side` has half of the places for flows of datagrams, or more: it makes room for its next one itself then.
    pub fn has_half_of_datagrams(&self, side: Side) -> bool {
        self.datagrams_of[side as usize].load(Relaxed) >= self.most_datagrams() / 2
    }

    /// Flows of datagrams of one port, beyond which they are the first to go; a table that is too small to be parted
    /// knows no such bound.
    pub fn share_of_port(&self) -> u32 {
        if self.limit < FEWEST { self.limit } else { self.most_datagrams() / PORT }
    }

    fn most_datagrams(&self) -> u32 {
        if self.limit < FEWEST { self.limit } else { self.limit - self.limit / CONNECTIONS }
    }

    /// Takes the place of one flow of datagrams; false when there is none.
    pub fn take_datagrams(&self, side: Side) -> bool {
        let most = self.most_datagrams();
        let up = |flows: u32| (flows < most).then_some(flows + 1);
        if self.datagrams.fetch_update(Relaxed, Relaxed, up).is_err() {
            return false;
        }
        let taken = self.take(side);
        if taken {
            self.datagrams_of[side as usize].fetch_add(1, Relaxed);
        } else {
            self.datagrams.fetch_sub(1, Relaxed);
        }
        taken
    }

    /// Gives the place of one flow of datagrams back.
    pub fn give_back_datagrams(&self, side: Side) {
        self.give_back(side);
        self.datagrams_of[side as usize].fetch_sub(1, Relaxed);
        self.datagrams.fetch_sub(1, Relaxed);
    }

    /// Whether no more flow of `side` fits. Another worker may take the last place before the caller does.
    pub fn is_full(&self, side: Side) -> bool {
        self.flows.load(Relaxed) >= self.limit || self.has_all(side)
    }

    /// Whether `side` has all the places that it may have: then only the end of one of its own makes room.
    pub fn has_all(&self, side: Side) -> bool {
        self.sides[side as usize].load(Relaxed) >= self.limit - self.kept
    }

    /// Takes the place of one flow; false when there is none.
    pub fn take(&self, side: Side) -> bool {
        let up_to = |most: u32| move |flows: u32| (flows < most).then_some(flows + 1);
        let own = &self.sides[side as usize];
        if own.fetch_update(Relaxed, Relaxed, up_to(self.limit - self.kept)).is_err() {
            return false;
        }
        let taken = self.flows.fetch_update(Relaxed, Relaxed, up_to(self.limit)).is_ok();
        if !taken {
            own.fetch_sub(1, Relaxed);
        }
        taken
    }

    /// Gives the place of one flow back.
    pub fn give_back(&self, side: Side) {
        self.sides[side as usize].fetch_sub(1, Relaxed);
        self.flows.fetch_sub(1, Relaxed);
    }
}
