//! The presets of all namespaces, as a cache: each new machine is compared with those of its namespace.
//!
//! Users write presets, and the cache lives in a small process. So it holds what counts of each
//! ([`Effect`]), by namespace, within bounds. A namespace is in it with all of its presets, or left out:
//!
//! ```text
//!  preset applied ──> in the table ──> its namespace has more than its bound? ── yes ──> the namespace is left out
//!                                  └─> all have more than theirs together?    ── yes ──> the largest namespace is left out
//! ```
//!
//! The cache's bound is no limit of namespaces: the presets of one that is left out are listed when a machine is made there
//! ([`list`]). What is left out is not held. So a deletion is followed by a new list of all, which has what fits now.
//!
//! A preset that is left out silently would give machines that lack what their owner has written; a namespace beyond its own bound
//! therefore makes no machines, and says why. It is one that its users have filled themselves.

mod list;
mod table;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use podvirt_api::admission::preset::Effect;
use podvirt_api::v1::VirtualMachineInstancePreset as Preset;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

pub use list::LeftOut;
use list::Lists;
use table::Table;

/// Presets that may not be readable: one of these must not end the watch of all.
type Guarded = DeserializeGuard<Preset>;

/// Most presets of a namespace.
pub const MAX_PRESETS: usize = 256;
/// Memory of a namespace's presets, in bytes.
pub const MAX_NAMESPACE_BYTES: usize = 1 << 20;
/// Memory of the presets in the cache, in bytes.
pub const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Presets that are listed at a time: each may be as large as etcd takes an object.
const PAGE_SIZE: u32 = 16;
/// Time from the deletion of a preset to a new list, where namespaces were left out that may have a place now.
const RELIST_PAUSE: Duration = Duration::from_secs(30);

/// Why the presets of a namespace cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetsError {
    /// The list has not come yet, or cannot be read.
    #[error("the presets are not known now: try again")]
    Unknown,
    /// There are more than a namespace may have.
    #[error(
        "the VirtualMachineInstancePresets of the namespace are too many or too large: at most {MAX_PRESETS} of {MAX_NAMESPACE_BYTES} \
         bytes together are taken; delete some"
    )]
    TooMany,
}

/// Presets of a namespace, in the order of their names.
pub type Effects = Vec<Arc<Effect>>;

/// What the cache has of a namespace.
#[derive(Clone, Debug)]
pub enum Cached {
    /// All of its presets.
    Whole(Effects),
    /// Nothing: its presets are to be listed.
    LeftOut(Arc<LeftOut>),
}

/// Waits until a time; for ever where there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The presets as they are now. Clones see the same.
#[derive(Clone)]
pub struct Presets {
    table: Arc<RwLock<Option<Table>>>,
    lists: Lists,
}

impl Presets {
    /// No presets, and none will come.
    pub fn none() -> Self {
        Presets { table: Arc::new(RwLock::new(Some(Table::default()))), lists: Lists::default() }
    }

    /// The presets, and what follows them for as long as it is polled; it calls `known` once they are known.
    pub fn follow(client: Client, known: impl Fn() + Send) -> (Self, impl Future<Output = ()> + Send) {
        let presets = Presets { table: Arc::default(), lists: Lists::new(client.clone()) };
        let table = presets.clone();
        let follow = async move {
            let config = watcher::Config::default().page_size(PAGE_SIZE);
            let begin =
                || Box::pin(watcher(Api::<Guarded>::all(client.clone()), config.clone()).default_backoff());
            let mut events = begin();
            // What a new list has, until it is whole.
            let mut listed = Table::default();
            let mut relist = None;
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = at(relist) => {
                        relist = None;
                        events = begin();
                        continue;
                    }
                };
                let Some(event) = event else { break };
                match event {
                    Ok(Event::Init) => listed = Table::default(),
                    Ok(Event::InitApply(preset)) => listed.apply(&preset),
                    Ok(Event::InitDone) => {
                        table.change(|table| *table = Some(std::mem::take(&mut listed)));
                        known();
                    }
                    Ok(Event::Apply(preset)) => {
                        table.change(|table| table.get_or_insert_default().apply(&preset));
                    }
                    Ok(Event::Delete(preset)) => {
                        let mut leaves_out = false;
                        table.change(|table| {
                            let table = table.get_or_insert_default();
                            table.forget(&preset);
                            leaves_out = table.leaves_out();
                        });
                        if leaves_out {
                            relist.get_or_insert_with(|| Instant::now() + RELIST_PAUSE);
                        }
                    }
                    Err(error) => {
                        warn!(error = &error as &dyn std::error::Error, "watching the presets failed");
                    }
                }
            }
        };
        (presets, follow)
    }

    fn change(&self, change: impl FnOnce(&mut Option<Table>)) {
        change(&mut self.table.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// What the cache has of a namespace.
    ///
    /// # Errors
    ///
    /// The presets are not known yet.
    pub fn cached(&self, namespace: &str) -> Result<Cached, PresetsError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.as_ref().map(|table| table.cached(namespace)).ok_or(PresetsError::Unknown)
    }

    /// The presets of a namespace that the cache has left out. They are listed in a `turn`, which is returned then: they take
    /// memory for as long as they are used.
    pub async fn list<T>(
        &self,
        left_out: &LeftOut,
        turn: impl Future<Output = T>,
    ) -> (Result<Effects, PresetsError>, Option<T>) {
        self.lists.presets(left_out, turn).await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::body::Body;
    use futures::stream;
    use http::Uri;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn presets_are_unknown_before_their_list() {
        let presets = Presets { table: Arc::default(), lists: Lists::default() };
        assert_eq!(presets.cached("shop").unwrap_err(), PresetsError::Unknown);
        assert!(matches!(Presets::none().cached("shop"), Ok(Cached::Whole(effects)) if effects.is_empty()));
    }

    /// A client of an API server whose first list has a preset too many, which a watch tells to be deleted.
    fn crowded() -> Client {
        let preset = |n: usize| {
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset",
                "metadata": {"name": format!("p{n}"), "namespace": "full", "resourceVersion": "1"},
                "spec": {"selector": {}, "domain": {"devices": {}}}})
        };
        let lists = Arc::new(AtomicUsize::new(0));
        let served = move |uri: Uri| {
            let body = if uri.query().is_some_and(|query| query.contains("watch=true")) {
                let deleted = (lists.load(Ordering::Relaxed) == 1)
                    .then(|| format!("{}\n", json!({"type": "DELETED", "object": preset(0)})));
                let lines = stream::iter(deleted.map(Ok::<_, Infallible>));
                Body::from_stream(lines.chain(stream::pending()))
            } else {
                let first = lists.fetch_add(1, Ordering::Relaxed);
                let items: Vec<Value> = (first..=MAX_PRESETS).map(preset).collect();
                let list = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePresetList",
                    "metadata": {"resourceVersion": "1"}, "items": items});
                Body::from(list.to_string())
            };
            std::future::ready(body)
        };
        Client::new(Router::new().fallback(served), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_in_the_cache_again_when_it_has_deleted_what_was_too_many() {
        let (presets, follow) = Presets::follow(crowded(), || {});
        let followed = tokio::spawn(follow);
        let becomes = async |wanted: Option<usize>| {
            for _ in 0..300 {
                let count = presets.cached("full").map(|cached| match cached {
                    Cached::Whole(effects) => Some(effects.len()),
                    Cached::LeftOut(_) => None,
                });
                if count == Ok(wanted) {
                    return true;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            false
        };
        assert!(becomes(None).await);
        assert!(becomes(Some(MAX_PRESETS)).await, "a deletion makes room");
        followed.abort();
    }
}
