//! Room for a new flow when there is none: which flow goes.
//!
//! # Theory of operation
//!
//! Connections in TIME-WAIT go first, the oldest of the side that opens the new flow before those of the other: the
//! state is a courtesy to a guest whose last acknowledgement was lost. Then flows of datagrams, which have no end of
//! their own, in the order in which they were used last, and connections that are still being opened, the oldest first.
//!
//! Of these two sorts the connections go first where there are more of them, the side's own or the other's, than the side has
//! flows of datagrams: a flood of SYNs leaves the few flows of datagrams alone, and a flood of datagrams the few connections
//! that are being opened.
//!
//! The peer of a connection that goes gets a RST. A guest whose SYN was not answered yet sends it again, and has another
//! connection. A guest that had been answered gets a RST for its next segment.
//!
//! Flows of datagrams go in this order:
//!
//! | the new flow | goes, the first that there is |
//! |---|---|
//! | of a side with half of the places for datagrams, or more | crowding, of its side; not sustained, of its side; not sustained, of the other; sustained, of its side |
//! | of a side with less | crowding, of its side; not sustained, of the other; not sustained, of its side; sustained, of its side |
//! | either, if it is one of datagrams | and then: sustained, of the other side |
//!
//! So a side that floods pays for its flows itself, and the other one gets up to half of the places from it: were its own
//! flows the first to go, a guest that has few would lose each question to the next one, before the answer comes.
//!
//! A flow is crowding if its port of the guest had more flows than its share
//! ([`share_of_port`](crate::shared::Budget::share_of_port)) when it opened, and still has: so the peers of one port take
//! no places from those of the others. Where a sort has crowding flows those go first.
//!
//! What the other side has is taken only where that makes room: either side has places that the other cannot take, and
//! flows of datagrams leave a part of the places to connections ([`Budget`](crate::shared::Budget)). A connection
//! that is open never goes, nor does one whose socket is being repaired.

use std::collections::VecDeque;

use super::flows::Flow;
use super::turn::Worker;
use crate::flow::FlowId;
use crate::shared::Side;
use crate::udp::{Life, Used};

/// Entries of the list of connections in TIME-WAIT for each flow that there is. Connections leave it in no certain order: one whose
/// guest sends its FIN again and again stays, while those behind it end.
const MAX_OVER_PER_FLOW: usize = 2;

impl Worker {
    /// Whether there is room for a connection that `side` opens, be it made for it.
    pub(super) fn has_room_for_flow(&mut self, side: Side) -> bool {
        while self.flows.is_full(side) {
            let Some(id) = self.pop_room_for(side, false) else { return false };
            self.evict(id);
        }
        true
    }

    /// The same for a flow of datagrams.
    pub(super) fn has_room_for_datagrams(&mut self, side: Side) -> bool {
        loop {
            let id = match (self.flows.is_full(side), self.flows.has_all_datagrams()) {
                (false, false) => return true,
                (true, false) => self.pop_room_for(side, true),
                // A connection that goes makes no room for datagrams.
                (_, true) => self.oldest_for(side, true),
            };
            let Some(id) = id else { return false };
            self.evict(id);
        }
    }

    /// The flow that makes room for one of `side`, in a table without room for that side.
    fn pop_room_for(&mut self, side: Side, datagrams: bool) -> Option<FlowId> {
        self.pop_over_for(side)
            .or_else(|| self.oldest_opening_for(side, self.flows.datagrams(side)))
            .or_else(|| self.oldest_for(side, datagrams))
            .or_else(|| self.oldest_opening_for(side, 0))
    }

    /// The connection that is being opened and makes room for a flow of `side`: of a side that has more than so many.
    fn oldest_opening_for(&self, side: Side, more_than: u32) -> Option<FlowId> {
        let others = (!self.flows.has_all(side)).then_some(other(side));
        let sides = [Some(side), others].into_iter().flatten();
        sides
            .filter(|side| self.flows.openings(*side) > more_than)
            .filter_map(|side| self.flows.oldest_opening(side))
            .find(|id| self.flows.get(*id).is_some_and(|flow| !flow.is_parked()))
    }

    /// Ends a flow for the sake of another.
    fn evict(&mut self, id: FlowId) {
        if self.tx.gathers.slices_of(id).is_some() {
            // What the guest has sent by it is on its way.
            self.flush_gathers();
        }
        match self.flows.remove(id) {
            Some((_, Flow::Udp(_) | Flow::Echo(_))) => self.counters.datagram_flows_evicted.add(1),
            Some((_, Flow::Tcp(f))) if f.opening => {
                // The peer may have its end: closed without a RST it would stay half open, here and there.
                f.reset_peer();
                self.counters.tcp_openings_evicted.add(1);
            }
            _ => {}
        }
    }

    /// The flow of datagrams that makes room for a flow of `side`.
    pub(super) fn oldest_for(&self, side: Side, datagrams: bool) -> Option<FlowId> {
        let other = other(side);
        let others = !self.flows.has_all(side);
        let few = !self.flows.has_half_of_datagrams(side);
        // Whether they may go, whose they are, sustained, crowding.
        let candidates = [
            (true, side, false, true),
            (true, side, true, true),
            (others && few, other, false, true),
            (others && few, other, false, false),
            (true, side, false, false),
            (others, other, false, true),
            (others, other, false, false),
            (true, side, true, false),
            (others && datagrams, other, true, true),
            (others && datagrams, other, true, false),
        ];
        let allowed = candidates.into_iter().filter(|(allowed, ..)| *allowed);
        let mut oldest = allowed.filter_map(|(_, side, sustained, crowding)| {
            self.flows.oldest_datagrams(side, sustained, crowding)
        });
        oldest.next()
    }

    /// The connection in TIME-WAIT that makes room for a flow of `side`.
    fn pop_over_for(&mut self, side: Side) -> Option<FlowId> {
        match self.pop_over(side) {
            None if !self.flows.has_all(side) => self.pop_over(other(side)),
            own => own,
        }
    }

    /// Takes the oldest of a side's connections in TIME-WAIT from the list.
    fn pop_over(&mut self, side: Side) -> Option<FlowId> {
        while let Some(id) = self.over[side as usize].pop_front() {
            if self.is_over(id) {
                return Some(id);
            }
        }
        None
    }

    /// A connection has no more use for its socket, but is not forgotten yet.
    pub(super) fn note_over(&mut self, id: FlowId) {
        let Some(side) = self.flows.get(id).map(Flow::side) else { return };
        let flows = &self.flows;
        let is_over = |id: &FlowId| flows.get(*id).is_some_and(Flow::is_over);
        note(&mut self.over[side as usize], id, flows.len(), is_over);
    }

    /// A connection in TIME-WAIT makes room for a new one of the same tuple: the pod's kernel has accepted it.
    pub(super) fn is_over(&self, id: FlowId) -> bool {
        self.flows.get(id).is_some_and(Flow::is_over)
    }

    /// A flow of datagrams was used.
    pub(super) fn note_use(&mut self, id: FlowId, used: Used) {
        if used.ranks {
            self.flows.rank_datagrams(id);
        }
        if used.sooner
            && let Some(at) = self.flows.get(id).and_then(Flow::life).map(Life::expires)
        {
            self.flows.arm(id, at);
        }
    }
}

/// Adds to a list of connections in TIME-WAIT, of so many flows, and tidies it when it has grown beyond [`MAX_OVER_PER_FLOW`].
fn note(list: &mut VecDeque<FlowId>, id: FlowId, flows: usize, is_over: impl Fn(&FlowId) -> bool) {
    list.push_back(id);
    if list.len() > MAX_OVER_PER_FLOW.saturating_mul(flows) {
        list.retain(is_over);
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Guest => Side::Peer,
        Side::Peer => Side::Guest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_stays_in_time_wait_keeps_no_place_for_those_behind_it() {
        let (mut list, stays) = (VecDeque::new(), FlowId::from_token(0));
        note(&mut list, stays, 1, |_| true);
        for n in 1..100_000 {
            let newest = FlowId::from_token(n);
            note(&mut list, newest, 2, |id| [stays, newest].contains(id));
            assert!(list.len() <= MAX_OVER_PER_FLOW * 2, "{} entries for two flows", list.len());
        }
        assert_eq!(list.front(), Some(&stays));
    }
}
