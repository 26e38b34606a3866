//! The flow table of one worker, with its entries in what all workers share.

mod tcp;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use socket2::Socket;
pub(super) use tcp::{FIRST_READ, TcpFlow};

use super::datagrams::UdpFlow;
use super::echo::EchoFlow;
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind, LISTS, Table};
use crate::shared::{Shared, Side};
use crate::udp::Life;

/// A flow of any kind.
pub(super) enum Flow {
    Tcp(Box<TcpFlow>),
    Udp(Box<UdpFlow>),
    Echo(Box<EchoFlow>),
}

impl Flow {
    /// The pod's socket, as long as there is one.
    pub(super) fn socket(&self) -> Option<&Socket> {
        match self {
            Flow::Tcp(f) => f.socket.as_ref(),
            Flow::Udp(f) => f.socket(),
            Flow::Echo(f) => Some(f.socket()),
        }
    }

    /// Whether the worker may not touch the socket; see [`super::parked`].
    pub(super) fn is_parked(&self) -> bool {
        matches!(self, Flow::Tcp(f) if f.parked)
    }

    /// Whether it is a connection that both ends have closed, and that is not forgotten yet.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Flow::Tcp(f) if f.conn.is_done_with_socket())
    }

    /// How long it lives without traffic, where it has no other end.
    pub(super) fn life(&self) -> Option<&Life> {
        match self {
            Flow::Tcp(_) => None,
            Flow::Udp(f) => Some(&f.life),
            Flow::Echo(f) => Some(&f.life),
        }
    }

    /// The side that opened it.
    pub(super) fn side(&self) -> Side {
        let from_guest = match self {
            Flow::Tcp(f) => f.from_guest,
            Flow::Udp(f) => f.from_guest,
            Flow::Echo(_) => true,
        };
        if from_guest { Side::Guest } else { Side::Peer }
    }

    /// Notes whether the flow stands in `Queues`; answers what was noted before.
    pub(super) fn set_queued(&mut self, queued: bool) -> bool {
        let note = match self {
            Flow::Tcp(f) => &mut f.queued,
            Flow::Udp(f) => &mut f.queued,
            Flow::Echo(f) => &mut f.queued,
        };
        std::mem::replace(note, queued)
    }
}

/// Lists of flows of datagrams: for each side the sustained ones and the others, crowding or not.
const DATAGRAM_LISTS: usize = 2 * 2 * 2;
// And one of connections that are being opened, for each side.
const _: () = assert!(LISTS == DATAGRAM_LISTS + 2, "a table has as many lists as are used here");

/// The list of such flows of datagrams; `crowding`: their port has more than its share.
fn list(side: Side, sustained: bool, crowding: bool) -> usize {
    side as usize * 4 + usize::from(sustained) * 2 + usize::from(crowding)
}

/// The list of a side's connections that are being opened, by age.
fn opening(side: Side) -> usize {
    DATAGRAM_LISTS + side as usize
}

/// The flows of one worker. A flow that is in here, or on its way to another worker, has a place in the budget
/// and an owner in the directory.
pub(super) struct Flows {
    table: Table<Flow>,
    shared: Arc<Shared>,
    pair: usize,
    /// UDP flows of each port of the guest, and how many of one port give way to no other's.
    ports: HashMap<u16, u32>,
    share: u32,
}

impl Deref for Flows {
    type Target = Table<Flow>;

    fn deref(&self) -> &Table<Flow> {
        &self.table
    }
}

impl DerefMut for Flows {
    fn deref_mut(&mut self) -> &mut Table<Flow> {
        &mut self.table
    }
}

impl Flows {
    pub(super) fn new(limit: u32, shared: Arc<Shared>, pair: usize) -> Self {
        // The flows of a port are spread over the workers.
        let share = (shared.budget.share_of_port() / shared.backlogs.len().max(1) as u32).max(1);
        Flows { table: Table::new(limit), shared, pair, ports: HashMap::new(), share }
    }

    /// Whether there may be no more flow that `side` opens, here or elsewhere.
    pub(super) fn is_full(&self, side: Side) -> bool {
        self.shared.budget.is_full(side)
    }

    /// Whether `side` has all the places that it may have, whatever the other side has.
    pub(super) fn has_all(&self, side: Side) -> bool {
        self.shared.budget.has_all(side)
    }

    /// Whether flows of datagrams have all the places that they may have.
    pub(super) fn has_all_datagrams(&self) -> bool {
        self.shared.budget.has_all_datagrams()
    }

    /// Whether `side` has half of the places for flows of datagrams, or more.
    pub(super) fn has_half_of_datagrams(&self, side: Side) -> bool {
        self.shared.budget.has_half_of_datagrams(side)
    }

    /// Takes in a new flow. It is dropped when there are too many, the last place of which another worker may have
    /// taken a moment ago, or another flow has the key.
    pub(super) fn insert(&mut self, key: Key, flow: Flow) -> Result<FlowId, Reason> {
        let side = flow.side();
        let budget = &self.shared.budget;
        let taken = if key.kind == Kind::Tcp { budget.take(side) } else { budget.take_datagrams(side) };
        if !taken {
            return Err(Reason::FlowLimit);
        }
        if self.shared.directory.claim(&key, self.pair).is_err() {
            self.give_back(key.kind, side);
            return Err(Reason::TupleCollision);
        }
        self.adopt(key, flow).ok_or(Reason::FlowLimit)
    }

    /// Takes in a flow that comes from another worker; None, and the flow dropped, when there is no room for it.
    pub(super) fn adopt(&mut self, key: Key, mut flow: Flow) -> Option<FlowId> {
        let side = flow.side();
        if let Flow::Udp(f) = &mut flow {
            f.crowding = self.of_port(&key) >= self.share;
        }
        let id = self.table.insert(key, flow);
        match id {
            Some(id) => {
                if key.kind == Kind::Udp {
                    *self.ports.entry(key.guest.port()).or_insert(0) += 1;
                }
                self.rank_datagrams(id);
                self.rank_opening(id);
            }
            None => self.forget(&key, side),
        }
        id
    }

    /// UDP flows of the guest's port of `key`.
    fn of_port(&self, key: &Key) -> u32 {
        self.ports.get(&key.guest.port()).copied().unwrap_or(0)
    }

    /// A flow has left the table.
    fn note_gone(&mut self, key: &Key) {
        if key.kind == Kind::Udp
            && let Entry::Occupied(mut flows) = self.ports.entry(key.guest.port())
        {
            *flows.get_mut() -= 1;
            if *flows.get() == 0 {
                flows.remove();
            }
        }
    }

    /// Ends a flow.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<(Key, Flow)> {
        let removed = self.table.remove(id)?;
        self.note_gone(&removed.0);
        self.forget(&removed.0, removed.1.side());
        Some(removed)
    }

    /// Takes out a flow for another worker.
    pub(super) fn part(&mut self, id: FlowId, to: usize) -> Option<(Key, Flow)> {
        let parted = self.table.remove(id)?;
        self.note_gone(&parted.0);
        self.shared.directory.hand_over(&parted.0, to);
        Some(parted)
    }

    fn forget(&self, key: &Key, side: Side) {
        self.shared.directory.release(key);
        self.give_back(key.kind, side);
    }

    fn give_back(&self, kind: Kind, side: Side) {
        match kind {
            Kind::Tcp => self.shared.budget.give_back(side),
            Kind::Udp | Kind::Echo => self.shared.budget.give_back_datagrams(side),
        }
    }

    /// Settles the place of a flow of datagrams in the order of use.
    pub(super) fn rank_datagrams(&mut self, id: FlowId) {
        // There may be fewer flows of its port by now.
        let has_share = self.table.key(id).is_some_and(|key| self.of_port(&key) <= self.share);
        let Some(flow) = self.table.get_mut(id) else { return };
        let crowding = match flow {
            Flow::Udp(f) => {
                f.crowding &= !has_share;
                f.crowding
            }
            Flow::Tcp(_) | Flow::Echo(_) => false,
        };
        if let Some(life) = flow.life() {
            let list = list(flow.side(), life.is_sustained(), crowding);
            self.table.rank(id, list);
        }
    }

    /// Notes whether a connection is being opened.
    pub(super) fn rank_opening(&mut self, id: FlowId) {
        let Some(flow) = self.table.get_mut(id) else { return };
        let side = flow.side();
        let Flow::Tcp(f) = flow else { return };
        f.opening = f.conn.is_opening();
        if f.opening {
            self.table.rank(id, opening(side));
        } else {
            self.table.unrank(id);
        }
    }

    /// The connection of `side` that has been opening for the longest time.
    pub(super) fn oldest_opening(&self, side: Side) -> Option<FlowId> {
        self.table.oldest(opening(side))
    }

    /// Connections of `side` that are being opened.
    pub(super) fn openings(&self, side: Side) -> u32 {
        self.table.ranked(opening(side))
    }

    /// Flows of datagrams of `side`.
    pub(super) fn datagrams(&self, side: Side) -> u32 {
        let sorts = [(false, false), (false, true), (true, false), (true, true)];
        sorts.map(|(sustained, crowding)| self.table.ranked(list(side, sustained, crowding))).iter().sum()
    }

    /// The flow of datagrams of `side` that was used least recently.
    pub(super) fn oldest_datagrams(&self, side: Side, sustained: bool, crowding: bool) -> Option<FlowId> {
        self.table.oldest(list(side, sustained, crowding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a flow takes of netd's memory, without the kernel's: at most 1 KiB with its part of the table.
    #[test]
    fn a_flow_is_small() {
        // A bucket of the index (at least three quarters full), a place among the deadlines and one in a list by use.
        let shared = 16 + 16 + 12;
        let slot = 64;
        let sizes = [size_of::<TcpFlow>(), size_of::<UdpFlow>(), size_of::<EchoFlow>()];
        eprintln!("TCP, UDP and echo flows: {sizes:?} bytes, {} in the table", slot + shared);
        assert!(slot + shared <= 108);
        assert!(sizes[0] <= 640 && sizes[1] <= 208 && sizes[2] <= 208, "{sizes:?}");
    }
}
