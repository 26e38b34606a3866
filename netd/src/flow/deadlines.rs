//! Deadlines in order: a heap in which each flow has one place, so that it can move and be taken out.
//!
//! The heap has four children to a node, which halves its depth, and the places of flows are told to the caller as
//! they change. Nothing stale stays in it: it is never larger than the table.

use crate::time::Time;

/// No place in the heap.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Children of a node.
const WIDTH: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Time,
    slot: u32,
}

/// The heap. `place` arguments are told where each slot is now.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<Entry>,
}

impl Deadlines {
    pub(super) fn with_capacity(n: usize) -> Self {
        Deadlines { heap: Vec::with_capacity(n) }
    }

    /// The earliest deadline and its slot.
    pub(super) fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().map(|e| (e.at, e.slot))
    }

    /// The deadline at a place.
    pub(super) fn at(&self, place: u32) -> Option<Time> {
        self.heap.get(place as usize).map(|e| e.at)
    }

    /// Takes in a slot that is nowhere.
    pub(super) fn push(&mut self, at: Time, slot: u32, place: impl FnMut(u32, u32)) {
        self.heap.push(Entry { at, slot });
        self.rise(self.heap.len() - 1, place);
    }

    /// Gives the slot at a place an earlier deadline.
    pub(super) fn hasten(&mut self, from: u32, at: Time, place: impl FnMut(u32, u32)) {
        if let Some(e) = self.heap.get_mut(from as usize) {
            e.at = at;
            self.rise(from as usize, place);
        }
    }

    /// Gives the slot at a place a later deadline.
    pub(super) fn postpone(&mut self, from: u32, at: Time, place: impl FnMut(u32, u32)) {
        if let Some(e) = self.heap.get_mut(from as usize) {
            e.at = at;
            self.sink(from as usize, place);
        }
    }

    /// Takes out the slot at a place.
    pub(super) fn remove(&mut self, from: u32, mut place: impl FnMut(u32, u32)) {
        let from = from as usize;
        if from >= self.heap.len() {
            return;
        }
        let gone = self.heap.swap_remove(from);
        place(gone.slot, NOWHERE);
        if from < self.heap.len() {
            let to = self.rise(from, &mut place);
            self.sink(to, place);
        }
    }

    fn rise(&mut self, mut at: usize, mut place: impl FnMut(u32, u32)) -> usize {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / WIDTH;
            if self.heap[parent].at <= entry.at {
                break;
            }
            self.heap[at] = self.heap[parent];
            place(self.heap[at].slot, at as u32);
            at = parent;
        }
        self.heap[at] = entry;
        place(entry.slot, at as u32);
        at
    }

    fn sink(&mut self, mut at: usize, mut place: impl FnMut(u32, u32)) {
        let entry = self.heap[at];
        loop {
            let first = at * WIDTH + 1;
            let children = first..(first + WIDTH).min(self.heap.len());
            let Some(least) = children.min_by_key(|&i| self.heap[i].at) else { break };
            if self.heap[least].at >= entry.at {
                break;
            }
            self.heap[at] = self.heap[least];
            place(self.heap[at].slot, at as u32);
            at = least;
        }
        self.heap[at] = entry;
        place(entry.slot, at as u32);
    }
}
