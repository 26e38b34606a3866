//! The table itself: a slab, an index by key, a queue of deadlines and lists by use.
//!
//! All are as large as the limit asks for from the beginning, in memory that the kernel gives when it is first
//! touched, so that a table with few flows is small and one with many never stops to move them.

use super::deadlines::{Deadlines, NOWHERE};
use super::index::Index;
use super::packed::Packed;
use super::recent::Recent;
use super::{FlowId, GENERATION_BITS, Key};
use crate::time::Time;

/// Slots that are made room for in advance at most; beyond that the slab grows as it fills.
const ROOM: usize = 1 << 18;
/// The end of the list of free slots.
const NONE: u32 = u32::MAX;

/// With a flow of sixteen bytes one line of the cache, and no more than one: among very many flows a search waits for memory, not
/// for instructions.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<F> {
    key: Packed,
    generation: u32,
    /// The place among the deadlines; of a free slot the next free one.
    place: u32,
    /// None in a free slot, whose key means nothing.
    flow: Option<F>,
}

/// Flows by key and by id.
#[derive(Debug)]
pub struct Table<F> {
    slots: Vec<Slot<F>>,
    /// First of the free slots.
    free: u32,
    index: Index,
    deadlines: Deadlines,
    recent: Recent,
    limit: usize,
}

impl<F> Table<F> {
    /// An empty table that takes at most `limit` flows.
    pub fn new(limit: u32) -> Self {
        Table::with_index(limit as usize, Index::new(limit as usize))
    }

    /// As [`Table::new`], with a hash that is keyed by `seeds`: for measurements, which are to find each key in the same
    /// place every time. A peer that knows the seeds can make its flows collide.
    pub fn with_seeds(limit: u32, seeds: [u64; 4]) -> Self {
        Table::with_index(limit as usize, Index::with_seeds(limit as usize, seeds))
    }

    fn with_index(limit: usize, index: Index) -> Self {
        Table {
            slots: Vec::with_capacity(limit.min(ROOM)),
            free: NONE,
            index,
            deadlines: Deadlines::with_capacity(limit.min(ROOM)),
            recent: Recent::with_capacity(limit.min(ROOM)),
            limit,
        }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no more flow fits.
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// The flow with this key.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<FlowId> {
        let key = Packed::from(key);
        self.find_hashed(self.index.hash(&key), &key)
    }

    #[inline]
    fn find_hashed(&self, hash: u32, key: &Packed) -> Option<FlowId> {
        // The index leads to slots with flows only.
        let is = |slot: u32| self.slots[slot as usize].key == *key;
        let index = self.index.find(hash, is)?;
        Some(FlowId { index, generation: self.slots[index as usize].generation })
    }

    /// Takes in a flow; None, and the flow dropped, when the table is full or the key is taken.
    pub fn insert(&mut self, key: Key, flow: F) -> Option<FlowId> {
        let key = Packed::from(&key);
        let hash = self.index.hash(&key);
        if self.is_full() || self.find_hashed(hash, &key).is_some() {
            return None;
        }
        let index = if self.free == NONE {
            let i = u32::try_from(self.slots.len()).ok().filter(|i| *i < NONE)?;
            self.slots.push(Slot { key, generation: 0, place: NOWHERE, flow: None });
            i
        } else {
            let i = self.free;
            self.free = self.slots[i as usize].place;
            i
        };
        let slot = &mut self.slots[index as usize];
        slot.key = key;
        slot.flow = Some(flow);
        slot.place = NOWHERE;
        self.index.insert(hash, index);
        Some(FlowId { index, generation: slot.generation })
    }

    /// Takes out a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<(Key, F)> {
        let place = self.slot(id)?.place;
        let slots = &mut self.slots;
        self.deadlines.remove(place, |slot, to| slots[slot as usize].place = to);
        self.recent.remove(id.index);
        let slot = &mut self.slots[id.index as usize];
        let flow = slot.flow.take()?;
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        slot.place = std::mem::replace(&mut self.free, id.index);
        let key = slot.key;
        self.index.remove(self.index.hash(&key), id.index);
        Some((key.key(), flow))
    }

    /// The slot of a flow that is there.
    #[inline]
    fn slot(&self, id: FlowId) -> Option<&Slot<F>> {
        self.slots.get(id.index as usize).filter(|s| s.generation == id.generation && s.flow.is_some())
    }

    /// The flow with this id, if it is still there.
    #[inline]
    pub fn get(&self, id: FlowId) -> Option<&F> {
        self.slot(id)?.flow.as_ref()
    }

    /// The flow with this id, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut F> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        slot.flow.as_mut()
    }

    /// The key of a flow.
    #[inline]
    pub fn key(&self, id: FlowId) -> Option<Key> {
        Some(self.slot(id)?.key.key())
    }

    /// Every flow.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, Key, &F)> {
        self.iter_from(0)
    }

    /// The flows from slot `first` on; a flow stays in its slot.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = (FlowId, Key, &F)> {
        self.slots.iter().enumerate().skip(first).filter_map(|(i, s)| {
            let flow = s.flow.as_ref()?;
            Some((FlowId { index: i as u32, generation: s.generation }, s.key.key(), flow))
        })
    }

    /// Puts a flow at the end of a list, as the one that was used last. The [`LISTS`](super::LISTS) lists are numbered from 0;
    /// a flow is in one at most.
    pub fn rank(&mut self, id: FlowId, list: usize) {
        if self.slot(id).is_some() {
            self.recent.put(id.index, list);
        }
    }

    /// Takes a flow out of its list, if it is in one.
    pub fn unrank(&mut self, id: FlowId) {
        if self.slot(id).is_some() {
            self.recent.remove(id.index);
        }
    }

    /// Number of flows in a list.
    pub fn ranked(&self, list: usize) -> u32 {
        self.recent.len(list)
    }

    /// The flow at the head of a list: of those in it, it was put there first.
    pub fn oldest(&self, list: usize) -> Option<FlowId> {
        let index = self.recent.oldest(list)?;
        Some(FlowId { index, generation: self.slots.get(index as usize)?.generation })
    }

    /// Asks for the flow to come up in [`Table::due`] at `at`, or earlier if it already does.
    #[inline]
    pub fn arm(&mut self, id: FlowId, at: Time) {
        self.arm_before(id, at, Time::ZERO);
    }

    /// As [`Table::arm`], but a deadline before `soon` is moved to a later `at`. To move one that is far away costs more
    /// than to look at the flow once for nothing.
    #[inline]
    pub fn arm_before(&mut self, id: FlowId, at: Time, soon: Time) {
        let Some(Slot { place, .. }) = self.slot(id) else { return };
        let place = *place;
        let armed = self.deadlines.at(place);
        let slots = &mut self.slots;
        let moved = |slot: u32, to| slots[slot as usize].place = to;
        match armed {
            None => self.deadlines.push(at, id.index, moved),
            Some(before) if at < before => self.deadlines.hasten(place, at, moved),
            Some(before) if before < soon => self.deadlines.postpone(place, at, moved),
            Some(_) => {}
        }
    }

    /// The next flow whose deadline has passed; it has no deadline afterwards.
    pub fn due(&mut self, now: Time) -> Option<FlowId> {
        let (_, index) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        let slots = &mut self.slots;
        self.deadlines.remove(0, |slot, to| slots[slot as usize].place = to);
        Some(FlowId { index, generation: self.slots[index as usize].generation })
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
