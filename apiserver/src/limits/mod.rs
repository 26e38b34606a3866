//! How much of this server's memory each caller may hold.
//!
//! Every pod of the cluster may reach the port, and webhooks are asked without a client certificate: the API server
//! shows none there unless the cluster's operator gives it one. So memory is bounded before anything is read, and the
//! API server's part is set apart.
//!
//! ```text
//!  address ──> Callers: has this address shown the front proxy's certificate?
//!                 │ yes: Side::ApiServer                    │ no: Side::Anyone
//!                 │                                         │
//!  connection   1024 with the certificate ([`streams`]      256, 32 of an address; the greediest address
//!               of users live in them), 256 without          gives way, see podvirt_daemon::connections
//!  handshake    5 s                                         5 s
//!  head         no deadline, 64 KiB                         5 s, 16 KiB
//!  lifetime     none                                        60 s, then 10 s to finish
//!  unread body  64 KiB of each of 64 streams                16 KiB of each of 8 streams
//!  read body    32 MiB together                             24 MiB together, 8 MiB of an address
//!  deadline     8 s until a body is whole                   3 s
//!  review       4 at a time are read and judged              2 of those 4
//!  its tree     128 MiB together, with its copies            64 MiB of those
//!  presets      2 lists at a time                            1 of those 2
//!  document     4 at a time are read and completed           none: only a user has one
//! ```
//!
//! **Which caller is the API server.** A connection that shows the front proxy's certificate makes its address the API
//! server's while it stands and an hour longer: the API server fetches this server's discovery that way, and its
//! webhook calls come from the same address. Until it has, it is one of many callers with a small share of its own,
//! which the others cannot take. Where the network hides addresses behind the node's, pods of the API server's node
//! share its side; a NetworkPolicy is the answer there.
//!
//! **Budgets.** A body's place is taken by its declared length before its first byte is read, and given back when the
//! answer has been handed to the client: a client that does not read its answer holds its own share. A review's tree is bounded while it
//! is read ([`podvirt_api::budget`]): the most that its text may become is taken before, what it has become is held until
//! it is dropped, also while other objects are asked for. It is taken before a turn, and a turn before a lookup is waited for by none.
//! A list of presets has its turn until the machine is judged by it. What does not
//! fit waits, first for its address's share, then for all; HTTP/2 stops the client meanwhile. The windows of all streams
//! fit into their connection's, so that a stream that waits never holds up one that is read.

mod bodies;
mod callers;
pub mod streams;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::Body;
use podvirt_api::budget::{MAX_REVIEW_TREE_BYTES, max_tree_bytes};
use podvirt_daemon::connections::{self, Connections, Slot};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;
use crate::status::Status;

use bodies::Budget;
pub use bodies::Held;
use callers::Callers;
use streams::{MAX_STREAMS, Watches};

/// Bytes of bodies that are in memory for the API server at most.
pub const API_SERVER_BODY_BYTES: usize = 32 << 20;
/// Bytes of bodies that are in memory for all others at most.
pub const OTHERS_BODY_BYTES: usize = 24 << 20;
/// Bytes of bodies of one address among those.
pub const SOURCE_BODY_BYTES: usize = 8 << 20;
/// Connections that showed the front proxy's certificate: one for each stream of a user, and those of requests.
const VOUCHED: usize = MAX_STREAMS + 128;
/// Connections of the API server without it: webhooks.
const OF_API_SERVER: connections::Limits = connections::Limits { total: 256, per_source: 256 };
/// Connections of all others.
const OF_OTHERS: connections::Limits = connections::Limits { total: 256, per_source: 32 };
/// Reviews at a time that are read and judged, each on a thread of its own.
const TURNS: usize = 4;
/// How many of those are not the API server's.
const TURNS_OF_OTHERS: usize = 2;
/// Reviews at a time that ask the API server for other objects.
const LOOKUPS: usize = 16;
/// How many of those are not the API server's.
const LOOKUPS_OF_OTHERS: usize = 4;
/// Lists of a namespace's presets at a time, each with a page of the largest objects in memory.
const PRESET_LISTS: usize = 2;
/// How many of those are not the API server's.
const PRESET_LISTS_OF_OTHERS: usize = 1;

/// Documents of users at a time that are read and completed.
const DOCUMENTS: usize = 4;

/// Trees of reviews together, with what is made of them, in bytes.
const TREE_BYTES: usize = 128 << 20;
/// How many of those bytes are not the API server's.
const TREE_BYTES_OF_OTHERS: usize = 64 << 20;
/// How often a part of a review is in memory at most: as it was sent, changed, and as two kinds of structures.
const TREE_COPIES: usize = 4;
/// Least bytes of a review beside its tree: its answer, and what is told of it.
const LEAST_TREE_BYTES: usize = 16 << 10;

/// Whose share a connection or a request takes.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Side {
    /// The API server's.
    ApiServer,
    /// That of all others.
    Anyone,
}

impl Side {
    /// Value of the metrics' label.
    pub fn label(self) -> &'static str {
        match self {
            Side::ApiServer => "apiserver",
            Side::Anyone => "other",
        }
    }
}

/// Turns of which some are kept for the API server.
struct Turns {
    all: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// A turn; given back when it is dropped.
#[must_use]
pub struct Turn {
    of_others: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Gives back what is more than `permits`.
    fn shrink(&mut self, permits: usize) {
        for permit in [&mut self.of_others, &mut self.of_all].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(permits)));
        }
    }
}

/// The place that a review's tree takes in memory; given back when it is dropped.
#[must_use]
pub struct TreePlace(Turn);

impl TreePlace {
    /// The tree has become `bytes` large: the rest is given back.
    pub fn shrink(&mut self, bytes: usize) {
        self.0.shrink(with_copies(bytes));
    }
}

/// What a tree takes together with what is made of it, in bytes.
fn with_copies(bytes: usize) -> usize {
    LEAST_TREE_BYTES + TREE_COPIES * bytes.min(MAX_REVIEW_TREE_BYTES)
}

impl Turns {
    fn new(all: usize, others: usize) -> Self {
        Turns { all: Arc::new(Semaphore::new(all)), others: Arc::new(Semaphore::new(others)) }
    }

    async fn wait(&self, side: Side, permits: usize) -> Turn {
        let take = |semaphore: &Arc<Semaphore>| {
            Arc::clone(semaphore).acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX))
        };
        // Neither semaphore is ever closed.
        let of_others = match side {
            Side::ApiServer => None,
            Side::Anyone => take(&self.others).await.ok(),
        };
        Turn { of_others, of_all: take(&self.all).await.ok() }
    }
}

/// The shares of a server.
pub struct Limits {
    callers: Mutex<Callers>,
    vouched: Connections,
    of_api_server: Connections,
    of_others: Connections,
    api_server: Budget,
    others: Budget,
    trees: Turns,
    reviews: Turns,
    lookups: Turns,
    preset_lists: Turns,
    documents: Turns,
    /// Watches of nodes.
    pub watches: Watches,
    metrics: Metrics,
}

/// A connection's place.
pub struct Place {
    slot: Slot,
    source: IpAddr,
    limits: Arc<Limits>,
    is_vouched: bool,
}

impl Limits {
    /// Nothing is taken yet.
    pub fn new(metrics: Metrics) -> Arc<Self> {
        let vouched = connections::Limits { total: VOUCHED, per_source: VOUCHED };
        Arc::new(Limits {
            callers: Mutex::default(),
            vouched: Connections::new(vouched),
            of_api_server: Connections::new(OF_API_SERVER),
            of_others: Connections::new(OF_OTHERS),
            api_server: Budget::new(Side::ApiServer, API_SERVER_BODY_BYTES, None, &metrics),
            others: Budget::new(Side::Anyone, OTHERS_BODY_BYTES, Some(SOURCE_BODY_BYTES), &metrics),
            // The largest tree of each side fits in.
            trees: Turns::new(TREE_BYTES + 2 * LEAST_TREE_BYTES, TREE_BYTES_OF_OTHERS + LEAST_TREE_BYTES),
            reviews: Turns::new(TURNS, TURNS_OF_OTHERS),
            lookups: Turns::new(LOOKUPS, LOOKUPS_OF_OTHERS),
            preset_lists: Turns::new(PRESET_LISTS, PRESET_LISTS_OF_OTHERS),
            documents: Turns::new(DOCUMENTS, DOCUMENTS),
            watches: Watches::default(),
            metrics,
        })
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose share `source` takes now.
    pub fn side(&self, source: IpAddr) -> Side {
        if self.callers().is_api_server(source.to_canonical(), Instant::now()) {
            Side::ApiServer
        } else {
            Side::Anyone
        }
    }

    /// A place for a connection from `source`, or nothing: it is to be closed then.
    pub fn admit(self: &Arc<Self>, source: IpAddr) -> Option<Place> {
        let side = self.side(source);
        let places = match side {
            Side::ApiServer => &self.of_api_server,
            Side::Anyone => &self.of_others,
        };
        let Some(slot) = places.admit(source) else {
            self.metrics.refused_connections.get_or_create(&side.into()).inc();
            return None;
        };
        let source = source.to_canonical();
        Some(Place { slot, source, limits: Arc::clone(self), is_vouched: false })
    }

    /// Reads a body from `source` of at most `max` bytes.
    ///
    /// # Errors
    ///
    /// It is longer, breaks off, or is not whole in time.
    pub async fn read(&self, source: IpAddr, body: Body, max: usize) -> Result<Held, Status> {
        match self.side(source) {
            Side::ApiServer => self.api_server.read(source, body, max).await,
            Side::Anyone => self.others.read(source, body, max).await,
        }
    }

    /// Waits for the place of the tree that a review from `source` of `length` bytes may become.
    pub async fn tree(&self, source: IpAddr, length: usize) -> TreePlace {
        TreePlace(self.trees.wait(self.side(source), with_copies(max_tree_bytes(length))).await)
    }

    /// Waits for a turn of reading and judging a review from `source`.
    pub async fn review(&self, source: IpAddr) -> Turn {
        self.reviews.wait(self.side(source), 1).await
    }

    /// Waits for a turn of asking the API server because of a review from `source`.
    pub async fn lookup(&self, source: IpAddr) -> Turn {
        self.lookups.wait(self.side(source), 1).await
    }

    /// Waits for a turn of listing the presets of a namespace because of a review from `source`.
    pub async fn preset_list(&self, source: IpAddr) -> Turn {
        self.preset_lists.wait(self.side(source), 1).await
    }

    /// Waits for a turn of reading a user's document and completing it.
    pub async fn document(&self) -> Turn {
        self.documents.wait(Side::ApiServer, 1).await
    }
}

impl Place {
    /// Whose share the connection takes.
    pub fn side(&self) -> Side {
        if self.is_vouched { Side::ApiServer } else { self.limits.side(self.source) }
    }

    /// Waits until another connection has the place.
    pub async fn displaced(&self) {
        self.slot.displaced().await;
    }

    /// The connection has shown the front proxy's certificate: it is the API server's, and so is its address.
    /// Nothing when there are too many such connections: the connection is to be closed then.
    pub fn vouch(mut self) -> Option<Self> {
        let limits = Arc::clone(&self.limits);
        let Some(slot) = limits.vouched.admit(self.source) else {
            limits.metrics.refused_connections.get_or_create(&Side::ApiServer.into()).inc();
            return None;
        };
        self.slot = slot;
        self.is_vouched = true;
        limits.callers().begins(self.source, Instant::now());
        Some(self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_vouched {
            self.limits.callers().ends(self.source, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn turns_are_bounded_and_some_are_kept_for_the_api_server() {
        let turns = Turns::new(2, 1);
        let of_others = turns.wait(Side::Anyone, 1).now_or_never().unwrap();
        assert!(turns.wait(Side::Anyone, 1).now_or_never().is_none(), "one of two is not for others");
        let own = turns.wait(Side::ApiServer, 1).now_or_never().unwrap();
        assert!(turns.wait(Side::ApiServer, 1).now_or_never().is_none(), "there are two");
        drop(of_others);
        let again = turns.wait(Side::ApiServer, 1).now_or_never().unwrap();
        assert!(turns.wait(Side::Anyone, 1).now_or_never().is_none(), "both are taken");
        drop((own, again));
        assert!(turns.wait(Side::Anyone, 1).now_or_never().is_some());
    }

    #[test]
    fn trees_hold_what_they_have_become_and_some_is_kept_for_the_api_server() {
        let limits = Limits::new(Metrics::default());
        let pod = IpAddr::from([10, 0, 0, 1]);
        let full = MAX_REVIEW_TREE_BYTES;
        let mut first = limits.tree(pod, full).now_or_never().unwrap();
        assert!(limits.tree(pod, 1).now_or_never().is_none(), "the largest that it may become is taken");
        let own = limits.trees.wait(Side::ApiServer, with_copies(full)).now_or_never().unwrap();
        assert!(limits.trees.wait(Side::ApiServer, with_copies(0)).now_or_never().is_none(), "all is taken");
        first.shrink(1 << 10);
        let small = limits.tree(pod, 1 << 10).now_or_never().unwrap();
        drop((first, own, small));
        assert_eq!(limits.trees.all.available_permits(), TREE_BYTES + 2 * LEAST_TREE_BYTES);
        assert_eq!(limits.trees.others.available_permits(), TREE_BYTES_OF_OTHERS + LEAST_TREE_BYTES);
    }

    #[test]
    fn documents_have_few_turns() {
        let limits = Limits::new(Metrics::default());
        let turns: Vec<_> = (0..100).map_while(|_| limits.document().now_or_never()).collect();
        assert_eq!(turns.len(), DOCUMENTS);
        drop(turns);
        assert!(limits.document().now_or_never().is_some());
    }

    #[tokio::test]
    async fn places_of_each_kind_are_bounded() {
        let limits = Limits::new(Metrics::default());
        let source = |n: usize| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n as u32));
        let of_one: Vec<_> = (0..100).filter_map(|_| limits.admit(source(0))).collect();
        assert_eq!(of_one.len(), OF_OTHERS.per_source);
        drop(of_one);
        let of_many: Vec<_> = (0..1000).filter_map(|n| limits.admit(source(n))).collect();
        assert_eq!(of_many.len(), OF_OTHERS.total, "each has one: no place is taken from another");
        drop(of_many);
        let vouched: Vec<_> = (0..2 * VOUCHED).filter_map(|_| limits.admit(source(1))?.vouch()).collect();
        assert_eq!(vouched.len(), VOUCHED);
        assert_eq!((limits.side(source(1)), limits.side(source(2))), (Side::ApiServer, Side::Anyone));
        let webhooks: Vec<_> = (0..1000).filter_map(|_| limits.admit(source(1))).collect();
        assert_eq!(webhooks.len(), OF_API_SERVER.total);
        drop((vouched, webhooks));
        let later = Instant::now() + std::time::Duration::from_secs(2 * 3600);
        assert!(!limits.callers().is_api_server(source(1), later), "its connections have ended");
    }
}
