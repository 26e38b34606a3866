//! Lists of namespaces whose presets have no place in the cache, each when a machine is made there.
//!
//! ```text
//!  machine ──> the namespace's lock ──> a list that is new enough? ── yes ──> its presets
//!                                            │ no
//!                                            └──> a turn ──> pages, within bounds ──> its presets
//! ```
//!
//! So a namespace has a list at a time, and machines that are made together share it. A preset that the watch shows to have changed
//! makes a list too old. What is read beyond the presets' own bounds ends the list: the namespace has too many.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, Resource as _};
use podvirt_api::admission::preset::Effect;
use podvirt_api::v1::VirtualMachineInstancePreset as Preset;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::table::Namespace;
use super::{Effects, PresetsError};

/// Presets of a page: each may be as large as etcd takes an object.
const PAGE_PRESETS: u32 = 4;
/// Most pages of a list: presets without an effect count here alone.
const MAX_PAGES: usize = 128;
/// Most bytes of a list as they are sent: what users write into the metadata counts here alone.
const MAX_READ_BYTES: usize = 16 << 20;
/// Longest time for which a list is new enough.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Lists that stay in memory for the next machines.
const RECENT_LISTS: usize = 4;

/// A namespace without a place in the cache.
#[derive(Debug)]
pub struct LeftOut {
    namespace: String,
    /// Changes of its presets that were seen.
    changes: AtomicU64,
    /// Its last list; locked while the next is read.
    last: tokio::sync::Mutex<Weak<List>>,
}

impl LeftOut {
    pub(super) fn new(namespace: &str) -> Self {
        LeftOut {
            namespace: namespace.to_owned(),
            changes: AtomicU64::default(),
            last: tokio::sync::Mutex::default(),
        }
    }

    /// A preset has changed: the last list is too old.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a list had.
#[derive(Debug)]
struct List {
    /// Changes that were seen before it.
    changes: u64,
    end: Instant,
    presets: Result<Effects, PresetsError>,
}

/// Reads lists. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Lists {
    client: Option<Client>,
    recent: Arc<Mutex<VecDeque<Arc<List>>>>,
}

impl Lists {
    pub(super) fn new(client: Client) -> Self {
        Lists { client: Some(client), recent: Arc::default() }
    }

    /// The presets of a namespace, and the turn, where they had to be listed in it.
    pub(super) async fn presets<T>(
        &self,
        left_out: &LeftOut,
        turn: impl Future<Output = T>,
    ) -> (Result<Effects, PresetsError>, Option<T>) {
        let Some(client) = &self.client else { return (Err(PresetsError::Unknown), None) };
        let mut last = left_out.last.lock().await;
        let changes = left_out.changes.load(Ordering::Relaxed);
        if let Some(list) = last.upgrade().filter(|list| list.changes == changes)
            && list.end.elapsed() < MAX_AGE
        {
            return (list.presets.clone(), None);
        }
        let turn = turn.await;
        let changes = left_out.changes.load(Ordering::Relaxed);
        let presets = match read(client, &left_out.namespace).await {
            Ok(Some(own)) => Ok(own.effects()),
            Ok(None) => Err(PresetsError::TooMany),
            Err(error) => {
                warn!(
                    namespace = left_out.namespace,
                    error = &error as &dyn std::error::Error,
                    "the presets cannot be listed"
                );
                return (Err(PresetsError::Unknown), Some(turn));
            }
        };
        let list = Arc::new(List { changes, end: Instant::now(), presets: presets.clone() });
        *last = Arc::downgrade(&list);
        self.remember(list);
        (presets, Some(turn))
    }

    fn remember(&self, list: Arc<List>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.truncate(RECENT_LISTS - 1);
        recent.push_front(list);
    }
}

/// A page of presets, of whose metadata nothing else is read.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

/// Reads the presets of a namespace; nothing where it has more than it may have.
async fn read(client: &Client, namespace: &str) -> Result<Option<Namespace>, kube::Error> {
    let request = Request::new(Preset::url_path(&(), Some(namespace)));
    let mut params = ListParams::default().limit(PAGE_PRESETS);
    let (mut own, mut bytes) = (Namespace::default(), 0);
    for _ in 0..MAX_PAGES {
        let page = request.list(&params).map_err(kube::Error::BuildRequest)?;
        let page = client.request_text(page).await?;
        bytes += page.len();
        let page: Page = serde_json::from_str(&page).map_err(kube::Error::SerdeError)?;
        for item in page.items {
            let name = item.metadata.name;
            let preset = json!({"metadata": {"name": name}, "spec": item.spec});
            match serde_json::from_value::<Preset>(preset) {
                Ok(preset) => Effect::of(&preset).into_iter().for_each(|effect| own.insert_effect(effect)),
                Err(error) => warn!(
                    namespace,
                    name,
                    error = &error as &dyn std::error::Error,
                    "preset cannot be read: it is left out"
                ),
            }
        }
        if own.is_too_large() || bytes > MAX_READ_BYTES {
            return Ok(None);
        }
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            return Ok(Some(own));
        };
        params = params.continue_token(&token);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::FutureExt as _;
    use podvirt_daemon::testing;

    use super::super::MAX_PRESETS;
    use super::*;

    fn preset(n: usize, bytes: usize) -> Value {
        json!({"metadata": {"name": format!("p{n}")},
            "spec": {"selector": {}, "domain": {"cpu": {"model": "x".repeat(bytes)}, "devices": {}}}})
    }

    /// Lists from an API server that has these presets, and how many were begun.
    fn server(presets: Vec<Value>) -> (Lists, Arc<AtomicUsize>) {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let client = testing::client("shop", move |_, uri, _| {
            assert_eq!(uri.path(), "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancepresets");
            let query = uri.query().unwrap_or_default();
            let token = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
            let first: usize = token.map_or(0, |token| token.parse().unwrap());
            count.fetch_add(usize::from(first == 0), Ordering::Relaxed);
            let end = presets.len().min(first + PAGE_PRESETS as usize);
            let next = if end < presets.len() { end.to_string() } else { String::new() };
            (200, json!({"metadata": {"continue": next}, "items": presets[first..end]}))
        });
        (Lists::new(client), begun)
    }

    /// Makes the preset of a number.
    type MakePreset<'a> = &'a dyn Fn(usize) -> Value;

    #[tokio::test]
    async fn a_list_has_all_presets_within_the_namespaces_own_bounds() {
        let small = |n: usize| preset(n, 0);
        let large = |n: usize| preset(n, 30 << 10);
        let empty = |n: usize| json!({"metadata": {"name": format!("p{n}")}});
        let annotated = |n: usize| {
            let mut preset = preset(n, 0);
            preset["metadata"]["annotations"] = json!({"a": "x".repeat(1 << 20)});
            preset
        };
        let unreadable = |n: usize| json!({"metadata": {"name": format!("p{n}")}, "spec": n});
        let pages = MAX_PAGES * PAGE_PRESETS as usize;
        let cases: [(MakePreset<'_>, usize, Result<usize, PresetsError>); 8] = [
            (&small, MAX_PRESETS, Ok(MAX_PRESETS)),
            (&small, MAX_PRESETS + 1, Err(PresetsError::TooMany)),
            (&large, 30, Ok(30)),
            (&large, 40, Err(PresetsError::TooMany)),
            (&empty, pages, Ok(0)),
            (&empty, pages + 1, Err(PresetsError::TooMany)),
            (&annotated, 20, Err(PresetsError::TooMany)),
            (&unreadable, 3, Ok(0)),
        ];
        for (preset, count, expected) in cases {
            let (lists, _) = server((0..count).map(preset).collect());
            let (presets, turn) = lists.presets(&LeftOut::new("shop"), std::future::ready("a turn")).await;
            assert_eq!(presets.map(|presets| presets.len()), expected, "{count} presets");
            assert_eq!(turn, Some("a turn"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn machines_that_are_made_together_share_a_list_until_it_is_too_old() {
        let (lists, begun) = server(vec![preset(0, 0)]);
        let left_out = LeftOut::new("shop");
        let list = async || {
            let (presets, turn) = lists.presets(&left_out, std::future::ready("a turn")).await;
            assert_eq!(presets.map(|presets| presets.len()), Ok(1));
            turn.is_some()
        };
        assert_eq!(tokio::join!(list(), list(), list()), (true, false, false));
        left_out.change();
        assert_eq!((list().await, list().await), (true, false), "a preset has changed");
        tokio::time::sleep(MAX_AGE).await;
        assert!(list().await, "it is too old");
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        for _ in 0..2 * RECENT_LISTS {
            left_out.change();
            assert!(list().await);
        }
        assert_eq!(lists.recent.lock().unwrap().len(), RECENT_LISTS);
    }

    #[tokio::test]
    async fn a_namespace_that_waits_for_its_list_has_no_turn_meanwhile() {
        let (lists, _) = server(vec![preset(0, 0)]);
        let left_out = LeftOut::new("shop");
        let waiting = lists.presets(&left_out, std::future::pending::<()>());
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        let turns = AtomicUsize::new(0);
        let second = lists.presets(&left_out, async { turns.fetch_add(1, Ordering::Relaxed) });
        assert!(second.now_or_never().is_none());
        assert_eq!(turns.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_list_that_fails_is_read_again() {
        let fails = AtomicUsize::new(1);
        let client = testing::client("shop", move |_, _, _| {
            if fails.swap(0, Ordering::Relaxed) == 1 {
                return testing::failure(500, "InternalError", "etcd is away");
            }
            (200, json!({"metadata": {}, "items": [preset(0, 0)]}))
        });
        let (lists, left_out) = (Lists::new(client), LeftOut::new("shop"));
        for expected in [Err(PresetsError::Unknown), Ok(1)] {
            let (presets, _) = lists.presets(&left_out, std::future::ready(())).await;
            assert_eq!(presets.map(|presets| presets.len()), expected);
        }
    }
}
