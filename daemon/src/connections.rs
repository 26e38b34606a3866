//! How many connections a server holds, and from where.
//!
//! A server that every pod can reach must stay open to those that need it. Without a limit one pod takes all memory
//! and descriptors; with a plain limit one pod takes all places. So places are shared out by source address:
//!
//! ```text
//! a connection comes ── its source has its share already ──────────────> refused
//!        │
//!        ├── a place is free ─────────────────────────────────────────> admitted
//!        │
//!        └── all places are taken ── one source has at least two more ─> admitted; that source's oldest
//!                      │             connections than the new one's source    connection is displaced
//!                      └── else ──────────────────────────────────────> refused
//! ```
//!
//! A source with few connections is therefore kept out only when nearly as many sources as there are places attack
//! together. A displaced connection is told by [`Slot::displaced`]; its task has to end it. Addresses are compared
//! whole: pods of one node share an IPv6 prefix with each other and with the node.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From all sources together.
    pub total: usize,
    /// From one address.
    pub per_source: usize,
}

/// The places of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct Connections {
    limits: Limits,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: usize,
    /// The connections of each source, the oldest first. No list is empty.
    sources: HashMap<IpAddr, VecDeque<Entry>>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    displaced: Arc<Notify>,
}

impl Table {
    /// Takes the place of the oldest connection of the source that has the most, if that is at least two more than
    /// `own`: with less, two sources would displace each other in turn.
    fn displace(&mut self, own: usize) -> bool {
        let most = self.sources.iter().max_by_key(|(_, entries)| entries.len());
        let Some(source) = most.filter(|(_, entries)| entries.len() > own + 1).map(|(source, _)| *source)
        else {
            return false;
        };
        let oldest = self.sources.get_mut(&source).and_then(VecDeque::pop_front);
        if let Some(entry) = oldest {
            entry.displaced.notify_one();
            self.open -= 1;
        }
        true
    }
}

impl Connections {
    /// Places by `limits`, all free.
    pub fn new(limits: Limits) -> Self {
        Connections { limits, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `source`, or nothing: the connection is to be closed then.
    pub fn admit(&self, source: IpAddr) -> Option<Slot> {
        let source = source.to_canonical();
        let mut table = self.table();
        let own = table.sources.get(&source).map_or(0, VecDeque::len);
        if own >= self.limits.per_source || table.open >= self.limits.total && !table.displace(own) {
            return None;
        }
        let id = table.next;
        table.next += 1;
        table.open += 1;
        let displaced = Arc::new(Notify::new());
        table.sources.entry(source).or_default().push_back(Entry { id, displaced: Arc::clone(&displaced) });
        Some(Slot { of: self.clone(), source, id, displaced })
    }

    /// Places that are taken.
    pub fn open(&self) -> usize {
        self.table().open
    }
}

/// A place; free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    of: Connections,
    source: IpAddr,
    id: u64,
    displaced: Arc<Notify>,
}

impl Slot {
    /// Waits until the place is given to another connection; the connection that had it must end then. For one task at a time.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.of.table();
        let Some(entries) = table.sources.get_mut(&self.source) else { return };
        // A displaced connection has left the list already.
        let before = entries.len();
        entries.retain(|entry| entry.id != self.id);
        let (gone, empty) = (before - entries.len(), entries.is_empty());
        if empty {
            table.sources.remove(&self.source);
        }
        table.open -= gone;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn is_displaced(slot: &Slot) -> bool {
        slot.displaced().now_or_never().is_some()
    }

    #[test]
    fn a_source_has_no_more_than_its_share() {
        let places = Connections::new(Limits { total: 8, per_source: 2 });
        let first = places.admit(source(1)).unwrap();
        let _second = places.admit(source(1)).unwrap();
        assert!(places.admit(source(1)).is_none());
        // The same address, as a listener of both families tells it.
        assert!(places.admit("::ffff:10.0.0.1".parse().unwrap()).is_none());
        assert!(places.admit(source(2)).is_some(), "another source has its own");
        drop(first);
        assert!(places.admit(source(1)).is_some());
    }

    #[test]
    fn where_all_places_are_taken_the_greediest_source_gives_way() {
        let places = Connections::new(Limits { total: 4, per_source: 4 });
        let greedy: Vec<Slot> = (0..4).map(|_| places.admit(source(1)).unwrap()).collect();
        let one = places.admit(source(2)).unwrap();
        assert!(is_displaced(&greedy[0]) && !is_displaced(&greedy[1]));
        assert_eq!(places.open(), 4);
        let two = places.admit(source(2)).unwrap();
        assert!(is_displaced(&greedy[1]));
        // Two each: neither displaces the other.
        assert!(places.admit(source(1)).is_none() && places.admit(source(2)).is_none());
        drop(greedy);
        assert_eq!(places.open(), 2, "displaced connections are not counted twice");
        drop((one, two));
        assert_eq!(places.open(), 0);
        assert!(places.table().sources.is_empty());
    }

    #[test]
    fn as_many_sources_as_places_are_equal() {
        let places = Connections::new(Limits { total: 2, per_source: 2 });
        let _held = (places.admit(source(1)).unwrap(), places.admit(source(2)).unwrap());
        assert!(places.admit(source(3)).is_none());
    }
}
