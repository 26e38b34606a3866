//! Places of long answers: users' streams, and nodes' watches.
//!
//! A stream (console, VNC, forwarded port) has a connection of the API server to itself, and lives as long as its user wants.
//! Streams have fewer places than such connections, so that requests, watches of nodes and the API server's own checks always have
//! one. Of the streams' places a user has a share, and so have a machine and all machines of a namespace, whose users may make
//! themselves any number of accounts:
//!
//! ```text
//!  connections of the API server with its certificate   1024
//!  └── streams                                           896
//!      ├── of a user                                     256
//!      ├── to the machines of a namespace                384
//!      └── to a machine                                  128
//! ```
//!
//! A node needs two watches, and two more while it begins them anew. One more ends its oldest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Streams at a time.
pub const MAX_STREAMS: usize = 896;
/// Streams of a user at a time.
pub const MAX_USER_STREAMS: usize = 256;
/// Streams to the machines of a namespace at a time.
pub const MAX_NAMESPACE_STREAMS: usize = 384;
/// Streams to a machine at a time.
pub const MAX_MACHINE_STREAMS: usize = 128;
/// Watches of a node at a time.
pub const MAX_NODE_WATCHES: usize = 4;

/// Why a stream has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamsError {
    /// All are taken.
    #[error(
        "there are {MAX_STREAMS} consoles, VNC connections and forwarded ports already; close some, or try again"
    )]
    All,
    /// The user's are.
    #[error(
        "the user has {MAX_USER_STREAMS} consoles, VNC connections and forwarded ports already; close some"
    )]
    User,
    /// The namespace's are.
    #[error(
        "the namespace has {MAX_NAMESPACE_STREAMS} consoles, VNC connections and forwarded ports already; close some"
    )]
    Namespace,
    /// The machine's are.
    #[error(
        "the machine has {MAX_MACHINE_STREAMS} consoles, VNC connections and forwarded ports already; close some"
    )]
    Machine,
}

/// The streams' places. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Streams(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    users: HashMap<String, usize>,
    namespaces: HashMap<String, usize>,
    machines: HashMap<(String, String), usize>,
}

/// A stream's place; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct StreamPlace {
    streams: Streams,
    user: String,
    machine: (String, String),
}

fn give_back<K: std::hash::Hash + Eq>(shares: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = shares.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            shares.remove(key);
        }
    }
}

impl Streams {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a stream of `user` to the machine of this namespace and name.
    ///
    /// # Errors
    ///
    /// All places are taken, or all of the user's or the machine's share.
    pub fn admit(&self, user: &str, namespace: &str, machine: &str) -> Result<StreamPlace, StreamsError> {
        let machine = (namespace.to_owned(), machine.to_owned());
        let mut taken = self.taken();
        if taken.users.get(user).is_some_and(|count| *count >= MAX_USER_STREAMS) {
            return Err(StreamsError::User);
        }
        if taken.machines.get(&machine).is_some_and(|count| *count >= MAX_MACHINE_STREAMS) {
            return Err(StreamsError::Machine);
        }
        if taken.namespaces.get(namespace).is_some_and(|count| *count >= MAX_NAMESPACE_STREAMS) {
            return Err(StreamsError::Namespace);
        }
        if taken.all >= MAX_STREAMS {
            return Err(StreamsError::All);
        }
        taken.all += 1;
        *taken.users.entry(user.to_owned()).or_default() += 1;
        *taken.namespaces.entry(namespace.to_owned()).or_default() += 1;
        *taken.machines.entry(machine.clone()).or_default() += 1;
        Ok(StreamPlace { streams: self.clone(), user: user.to_owned(), machine })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut taken = self.streams.taken();
        taken.all -= 1;
        give_back(&mut taken.users, &self.user);
        give_back(&mut taken.namespaces, &self.machine.0);
        give_back(&mut taken.machines, &self.machine);
    }
}

/// The watches of nodes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Watches(Arc<Mutex<HashMap<String, VecDeque<Arc<Notify>>>>>);

/// A watch's place; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct WatchPlace {
    watches: Watches,
    node: String,
    displaced: Arc<Notify>,
}

impl Watches {
    /// A place for a watch of `node`, which its oldest gives way to where there are too many.
    pub fn admit(&self, node: &str) -> WatchPlace {
        let displaced = Arc::new(Notify::new());
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = nodes.entry(node.to_owned()).or_default();
        if open.len() >= MAX_NODE_WATCHES
            && let Some(oldest) = open.pop_front()
        {
            oldest.notify_one();
        }
        open.push_back(Arc::clone(&displaced));
        WatchPlace { watches: self.clone(), node: node.to_owned(), displaced }
    }
}

impl WatchPlace {
    /// Waits until another watch has the place.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut nodes = self.watches.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = nodes.get_mut(&self.node) {
            open.retain(|other| !Arc::ptr_eq(other, &self.displaced));
            if open.is_empty() {
                nodes.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_user_and_a_machine_have_shares_and_the_others_have_the_rest() {
        let streams = Streams::default();
        let machine = |n: usize| format!("vm{n}");
        let of_user: Vec<_> = (0..2000).map_while(|n| streams.admit("jane", "a", &machine(n)).ok()).collect();
        assert_eq!(of_user.len(), MAX_USER_STREAMS);
        assert_eq!(streams.admit("jane", "a", "x").unwrap_err(), StreamsError::User);
        let of_machine: Vec<_> =
            (0..2000).map_while(|n| streams.admit(&machine(n), "a", "one").ok()).collect();
        assert_eq!(of_machine.len(), MAX_MACHINE_STREAMS);
        let one_more = streams.admit("kim", "b", "one").expect("another namespace's machine of the name");
        let rest: Vec<_> =
            (0..2000).map_while(|n| streams.admit(&machine(n), &machine(n), "x").ok()).collect();
        assert_eq!(of_user.len() + of_machine.len() + 1 + rest.len(), MAX_STREAMS);
        assert_eq!(streams.admit("kim", "c", "x").unwrap_err(), StreamsError::All);
        drop((of_user, of_machine, one_more, rest));
        let taken = streams.taken();
        assert_eq!((taken.all, taken.users.len(), taken.machines.len()), (0, 0, 0));
        assert!(taken.namespaces.is_empty());
    }

    #[test]
    fn accounts_of_a_namespace_have_a_share_together() {
        let streams = Streams::default();
        let name = |n: usize| format!("n{n}");
        let of_namespace: Vec<_> =
            (0..2000).map_while(|n| streams.admit(&name(n), "mallory", &name(n)).ok()).collect();
        assert_eq!(of_namespace.len(), MAX_NAMESPACE_STREAMS);
        assert_eq!(streams.admit("x", "mallory", "x").unwrap_err(), StreamsError::Namespace);
        let other = streams.admit("jane", "shop", "vm").expect("the rest is for other namespaces");
        drop((of_namespace, other));
    }

    #[test]
    fn a_nodes_oldest_watch_gives_way() {
        let watches = Watches::default();
        let mut open: Vec<_> = (0..MAX_NODE_WATCHES).map(|_| watches.admit("node1")).collect();
        let other = watches.admit("node2");
        assert!(open.iter().all(|place| place.displaced().now_or_never().is_none()));
        open.push(watches.admit("node1"));
        let displaced: Vec<_> = open.iter().map(|place| place.displaced().now_or_never().is_some()).collect();
        assert_eq!(displaced, [true, false, false, false, false]);
        assert!(other.displaced().now_or_never().is_none());
        drop((open, other));
        assert!(watches.0.lock().unwrap().is_empty());
    }
}
