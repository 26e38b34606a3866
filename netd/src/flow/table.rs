//! The table itself: a slab, an index by key and a queue of deadlines.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{FlowId, GENERATION_BITS, Key};
use crate::time::Time;

#[derive(Debug)]
struct Slot<F> {
    generation: u32,
    deadline: Option<Time>,
    flow: Option<(Key, F)>,
}

/// Flows by key and by id.
#[derive(Debug)]
pub struct Table<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u32>,
    index: HashMap<Key, u32>,
    deadlines: BinaryHeap<Reverse<(Time, FlowId)>>,
    limit: usize,
}

impl<F> Table<F> {
    /// An empty table that takes at most `limit` flows.
    pub fn new(limit: u32) -> Self {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            deadlines: BinaryHeap::new(),
            limit: limit as usize,
        }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether no more flow fits.
    pub fn is_full(&self) -> bool {
        self.index.len() >= self.limit
    }

    /// The flow with this key.
    pub fn find(&self, key: &Key) -> Option<FlowId> {
        let index = *self.index.get(key)?;
        Some(FlowId { index, generation: self.slots[index as usize].generation })
    }

    /// Takes in a flow; None, and the flow dropped, when the table is full or the key is taken.
    pub fn insert(&mut self, key: Key, flow: F) -> Option<FlowId> {
        if self.is_full() || self.index.contains_key(&key) {
            return None;
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                let i = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, deadline: None, flow: None });
                i
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.flow = Some((key, flow));
        slot.deadline = None;
        self.index.insert(key, index);
        Some(FlowId { index, generation: slot.generation })
    }

    /// Takes out a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<(Key, F)> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let flow = slot.flow.take()?;
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        slot.deadline = None;
        self.free.push(id.index);
        self.index.remove(&flow.0);
        Some(flow)
    }

    /// The flow with this id, if it is still there.
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut F> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        slot.flow.as_mut().map(|(_, f)| f)
    }

    /// The key of a flow.
    pub fn key(&self, id: FlowId) -> Option<&Key> {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation)?;
        slot.flow.as_ref().map(|(k, _)| k)
    }

    /// Every flow.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &Key, &F)> {
        self.iter_from(0)
    }

    /// The flows from slot `first` on; a flow stays in its slot.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = (FlowId, &Key, &F)> {
        self.slots.iter().enumerate().skip(first).filter_map(|(i, s)| {
            let (key, flow) = s.flow.as_ref()?;
            Some((FlowId { index: i as u32, generation: s.generation }, key, flow))
        })
    }

    /// Asks for the flow to come up in [`Table::due`] at `at`, or earlier if it already does.
    pub fn arm(&mut self, id: FlowId, at: Time) {
        let Some(slot) = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)
        else {
            return;
        };
        if slot.deadline.is_none_or(|d| at < d) {
            slot.deadline = Some(at);
            self.deadlines.push(Reverse((at, id)));
        }
    }

    /// The next flow whose deadline has passed; it has no deadline afterwards.
    pub fn due(&mut self, now: Time) -> Option<FlowId> {
        while let Some(&Reverse((at, id))) = self.deadlines.peek() {
            if at > now {
                return None;
            }
            self.deadlines.pop();
            let slot = self.slots.get_mut(id.index as usize);
            if let Some(slot) = slot.filter(|s| s.generation == id.generation && s.deadline == Some(at)) {
                slot.deadline = None;
                return Some(id);
            }
        }
        None
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Kind;

    fn key(port: u16) -> Key {
        Key {
            kind: Kind::Tcp,
            guest: "10.9.0.2:22".parse().unwrap(),
            peer: std::net::SocketAddr::new("192.0.2.1".parse().unwrap(), port),
        }
    }

    #[test]
    fn an_id_is_good_for_one_flow_only() {
        let mut t = Table::new(10);
        let a = t.insert(key(1), "a").unwrap();
        assert_eq!(FlowId::from_token(a.to_token()), a);
        assert_eq!(t.remove(a).unwrap().1, "a");
        let b = t.insert(key(1), "b").unwrap();
        assert_eq!(t.get_mut(a), None);
        assert_eq!(t.get_mut(b), Some(&mut "b"));
        assert_eq!(t.find(&key(1)), Some(b));
    }

    #[test]
    fn keys_are_unique_and_the_limit_holds() {
        let mut t = Table::new(2);
        assert!(t.insert(key(1), ()).is_some());
        assert!(t.insert(key(1), ()).is_none());
        assert!(t.insert(key(2), ()).is_some());
        assert!(t.is_full());
        assert!(t.insert(key(3), ()).is_none());
    }

    #[test]
    fn deadlines_come_up_once_and_in_order() {
        let mut t = Table::new(10);
        let a = t.insert(key(1), ()).unwrap();
        let b = t.insert(key(2), ()).unwrap();
        t.arm(a, Time::from_millis(20));
        t.arm(b, Time::from_millis(10));
        t.arm(a, Time::from_millis(5));
        t.arm(a, Time::from_millis(7));
        assert_eq!(t.next_deadline(), Some(Time::from_millis(5)));
        assert_eq!(t.due(Time::from_millis(4)), None);
        assert_eq!(t.due(Time::from_millis(30)), Some(a));
        assert_eq!(t.due(Time::from_millis(30)), Some(b));
        assert_eq!(t.due(Time::from_millis(30)), None);
        t.arm(b, Time::from_millis(40));
        t.remove(b);
        assert_eq!(t.due(Time::from_millis(50)), None);
    }
}
