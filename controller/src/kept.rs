//! Objects of one kind as a cache has them, for all controllers, and word of every change. A cluster may be without the kind.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Error, Event};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch as latest};

use crate::index::Index;

/// Whether the cluster has a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The first list is not there yet.
    Unknown,
    /// The API server does not know the kind.
    No,
    /// The cache is filled.
    Yes,
}

/// Changes that may wait to be read.
const CHANGES: usize = 1024;

/// What a cache keeps.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// How often a kind is asked for that the cluster has not.
const ABSENT_RETRY: Duration = Duration::from_secs(20);

/// Whether a watch failed as the API server does not know the kind.
pub(crate) fn is_absent(error: &Error) -> bool {
    let (Error::InitialListFailed(error) | Error::WatchStartFailed(error)) = error else { return false };
    // Of a group that is not there at all, its answer is no Status, and so has no reason.
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What has changed: an object, or any number of them after a new list.
pub type Changed<K> = Option<ObjectRef<K>>;

/// The cache. Clones see the same.
#[derive(Debug)]
pub struct Kept<K: Kind> {
    store: Store<K>,
    served: Arc<latest::Sender<Served>>,
    changes: broadcast::Sender<Changed<K>>,
    index: Option<Arc<Index<K>>>,
}

impl<K: Kind> Clone for Kept<K> {
    fn clone(&self) -> Self {
        Kept {
            store: self.store.clone(),
            served: self.served.clone(),
            changes: self.changes.clone(),
            index: self.index.clone(),
        }
    }
}

impl<K: Kind> Kept<K> {
    /// An empty cache, and what fills it.
    pub fn new() -> (Self, Writer<K>) {
        let (store, writer) = reflector::store();
        let served = Arc::new(latest::Sender::new(Served::Unknown));
        (Kept { store, served, changes: broadcast::Sender::new(CHANGES), index: None }, writer)
    }

    /// As [`Self::new`], with an index by the texts that `texts` finds in an object.
    pub fn indexed(texts: fn(&K) -> Vec<String>) -> (Self, Writer<K>) {
        let (cache, writer) = Self::new();
        (Kept { index: Some(Arc::new(Index::new(texts))), ..cache }, writer)
    }

    /// The objects of a namespace that may have `text` among the texts of the index; without an index all of the namespace.
    pub fn with_text(&self, namespace: &str, text: &str) -> Vec<Arc<K>> {
        let Some(index) = &self.index else {
            let is_there = |object: &Arc<K>| object.meta().namespace.as_deref() == Some(namespace);
            return self.all().into_iter().filter(is_there).collect();
        };
        let names = index.names(namespace, text).into_iter();
        names.filter_map(|name| self.get(namespace, &name)).collect()
    }

    /// Whether the cluster has the kind.
    pub fn served(&self) -> Served {
        *self.served.borrow()
    }

    /// The object of this name in a namespace.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// The object of this name, of a kind that has no namespaces.
    pub fn named(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// The store behind it.
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// What changes from now on. A listener that falls behind has to take it for a change of all.
    pub fn changes(&self) -> broadcast::Receiver<Changed<K>> {
        self.changes.subscribe()
    }

    /// Keeps the cache filled by `events` until it is dropped.
    pub async fn keep(self, events: impl Stream<Item = Result<Event<K>, Error>>, mut writer: Writer<K>) {
        self.fill(events, &mut writer).await;
    }

    /// As [`Self::keep`], of a kind that comes and goes with what a cluster has installed: each time it has gone, `events` begin anew.
    pub async fn keep_if_there<S>(self, events: impl Fn() -> S, mut writer: Writer<K>)
    where
        S: Stream<Item = Result<Event<K>, Error>>,
    {
        while self.fill(events(), &mut writer).await {
            tokio::time::sleep(ABSENT_RETRY).await;
        }
    }

    /// Takes over `events` until there are no more, or the kind is not there: whether that is so.
    async fn fill(
        &self,
        events: impl Stream<Item = Result<Event<K>, Error>>,
        writer: &mut Writer<K>,
    ) -> bool {
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            if let Ok(event) = &event {
                writer.apply_watcher_event(event);
            }
            self.taken(&event);
            if event.as_ref().is_err_and(is_absent) {
                return true;
            }
        }
        false
    }

    /// Takes in what the watch says: whether the kind is served, and word for those that listen.
    pub fn taken(&self, event: &Result<Event<K>, Error>) {
        if let (Some(index), Ok(event)) = (&self.index, event) {
            index.apply(event, &self.store);
        }
        let changed = match event {
            Ok(Event::Apply(one) | Event::Delete(one)) => Some(ObjectRef::from_obj(one)),
            Ok(Event::InitDone) => {
                self.say(Served::Yes);
                None
            }
            Ok(Event::Init | Event::InitApply(_)) => return,
            Err(error) if is_absent(error) => {
                if !self.say(Served::No) {
                    return;
                }
                None
            }
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), error = error as &dyn std::error::Error, "watch");
                return;
            }
        };
        // It fails when no controller listens, which loses nothing: a controller that begins to listen reads the cache.
        let _unheard = self.changes.send(changed);
    }

    /// Whether that is news.
    fn say(&self, served: Served) -> bool {
        let news = self.served.send_if_modified(|known| std::mem::replace(known, served) != served);
        if news {
            tracing::info!(kind = %K::kind(&()), served = ?served, "cache");
        }
        news
    }

    /// A cache with these objects, and its writer: without it the cache ends.
    #[cfg(test)]
    pub(crate) fn with(objects: impl IntoIterator<Item = K>) -> (Self, Writer<K>) {
        Self::listed(Self::new(), objects)
    }

    /// The cache after a list of these objects.
    #[cfg(test)]
    pub(crate) fn listed(
        (cache, mut writer): (Self, Writer<K>),
        objects: impl IntoIterator<Item = K>,
    ) -> (Self, Writer<K>) {
        let listed = objects.into_iter().map(Event::InitApply);
        for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
            writer.apply_watcher_event(&event);
            cache.taken(&Ok(event));
        }
        (cache, writer)
    }
}

/// What a queue of reconciliations holds.
type Requests<K> = Vec<Result<ReconcileRequest<K>, Error>>;

/// Requests to look at those objects of a cache that `is` tells. All are walked.
pub fn requests<K: Kind>(all: &Store<K>, is: impl Fn(&K) -> bool) -> Requests<K> {
    requests_for(all.state(), is)
}

/// As [`requests`], of the objects that have the name of `changed` among the texts of their index: what is walked are these alone.
pub fn requests_naming<K: Kind, C: Kind>(
    cache: &Kept<K>,
    changed: Option<&ObjectRef<C>>,
    is: impl Fn(&K) -> bool,
) -> Requests<K> {
    match changed {
        Some(changed) => {
            requests_with_text(cache, changed.namespace.as_deref().unwrap_or_default(), &changed.name, is)
        }
        // Any may have changed.
        None => requests_for(cache.all(), is),
    }
}

/// As [`requests`], of the objects of a namespace that have `text` among the texts of their index.
pub fn requests_with_text<K: Kind>(
    cache: &Kept<K>,
    namespace: &str,
    text: &str,
    is: impl Fn(&K) -> bool,
) -> Requests<K> {
    requests_for(cache.with_text(namespace, text), is)
}

fn requests_for<K: Kind>(objects: Vec<Arc<K>>, is: impl Fn(&K) -> bool) -> Requests<K> {
    let found = objects.into_iter().filter(|object| is(object));
    found.map(|object| Ok(ReconcileRequest::from(ObjectRef::from_obj(&*object)))).collect()
}

/// A request for each object of a cache that changes.
pub fn own<K: Kind>(
    kept: &Kept<K>,
) -> impl Stream<Item = Result<ReconcileRequest<K>, Error>> + Send + use<K> {
    let all = kept.store().clone();
    heard(kept.changes(), move |one: Option<&ObjectRef<K>>| match one {
        Some(one) => vec![Ok(ReconcileRequest::from(one.clone()))],
        None => requests(&all, |_| true),
    })
}

/// What `concerned` finds for each change that a channel tells, until there will be no more; of all, where it is not said what changed.
pub fn heard<C: Clone + Send + 'static, T: Send + 'static>(
    changes: broadcast::Receiver<Option<C>>,
    concerned: impl Fn(Option<&C>) -> Vec<T> + Send + 'static,
) -> impl Stream<Item = T> + Send {
    futures::stream::unfold((changes, concerned), |(mut changes, concerned)| async move {
        let changed = match changes.recv().await {
            Ok(changed) => changed,
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        let found = concerned(changed.as_ref());
        Some((futures::stream::iter(found), (changes, concerned)))
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use podvirt_api::csi::VolumeSnapshot;
    use podvirt_api::v1::{VirtualMachine, VirtualMachineSnapshot};

    use super::*;

    fn missing(error: fn(kube::Error) -> Error) -> Result<Event<VolumeSnapshot>, Error> {
        // As the client makes it of the answer about a group that is not there.
        let status =
            kube::core::Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        Err(error(kube::Error::Api(Box::new(status))))
    }

    #[test]
    fn a_change_visits_the_objects_that_name_what_changed_and_no_others() {
        let snapshot = |number: usize| {
            let mut snapshot = VirtualMachineSnapshot::default();
            snapshot.metadata.name = Some(format!("snapshot-{number}"));
            let namespace = if number.is_multiple_of(2) { "shop" } else { "other" };
            snapshot.metadata.namespace = Some(namespace.into());
            snapshot.spec.source.name = format!("vm-{}", number / 10);
            snapshot
        };
        let texts = |snapshot: &VirtualMachineSnapshot| vec![snapshot.spec.source.name.clone()];
        let (cache, _writer) = Kept::listed(Kept::indexed(texts), (0..10_000).map(snapshot));
        let visits = std::cell::Cell::new(0);
        let visit = |changed: Option<&ObjectRef<VirtualMachine>>| {
            visits.set(0);
            let found = requests_naming(&cache, changed, |_| {
                visits.set(visits.get() + 1);
                true
            });
            (visits.get(), found.len())
        };
        let changed = |name: &str| ObjectRef::<VirtualMachine>::new(name).within("shop");
        assert_eq!(visit(Some(&changed("vm-7"))), (5, 5));
        assert_eq!(visit(Some(&changed("vm-1000"))), (0, 0));
        assert_eq!(visit(None), (10_000, 10_000), "any may have changed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_the_kind_is_told_from_one_that_has_not_answered() {
        let (kept, writer) = Kept::<VolumeSnapshot>::new();
        let mut changes = kept.changes();
        let mut one = VolumeSnapshot::default();
        (one.metadata.name, one.metadata.namespace) = (Some("s".into()), Some("shop".into()));
        let round = std::sync::atomic::AtomicUsize::new(0);
        let seen = kept.clone();
        let events = || match round.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => {
                assert_eq!(seen.served(), Served::Unknown);
                stream::iter(vec![Err(Error::NoResourceVersion), missing(Error::InitialListFailed)])
            }
            1 => stream::iter(vec![missing(Error::InitialListFailed)]),
            _ => stream::iter(vec![Ok(Event::Init), Ok(Event::InitApply(one.clone())), Ok(Event::InitDone)]),
        };
        let begin = tokio::time::Instant::now();
        kept.clone().keep_if_there(events, writer).await;
        assert_eq!(begin.elapsed(), 2 * ABSENT_RETRY, "the cluster is not asked all the time");
        assert_eq!(kept.served(), Served::Yes);
        assert!(kept.get("shop", "s").is_some());
        let told = std::iter::from_fn(|| changes.try_recv().ok()).count();
        assert_eq!(told, 2, "that the kind is missing, once, and the list");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_comes_and_goes_is_listed_anew() {
        let (kept, writer) = Kept::<VolumeSnapshot>::new();
        let mut one = VolumeSnapshot::default();
        (one.metadata.name, one.metadata.namespace) = (Some("s".into()), Some("shop".into()));
        let round = std::sync::atomic::AtomicUsize::new(0);
        let seen = kept.clone();
        let events = || {
            let list = vec![Ok(Event::Init), Ok(Event::InitApply(one.clone())), Ok(Event::InitDone)];
            match round.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => stream::iter(vec![Ok(Event::Init), missing(Error::InitialListFailed)]),
                1 => {
                    assert_eq!(seen.served(), Served::No);
                    let mut list = list;
                    list.push(missing(Error::WatchStartFailed));
                    stream::iter(list)
                }
                2 => {
                    assert_eq!(seen.served(), Served::No, "it has gone again");
                    stream::iter(list)
                }
                _ => panic!("it has ended"),
            }
        };
        let mut changes = kept.changes();
        let begun = tokio::time::Instant::now();
        kept.clone().keep_if_there(events, writer).await;
        assert_eq!(begun.elapsed(), 2 * ABSENT_RETRY);
        assert_eq!(kept.served(), Served::Yes);
        assert!(kept.get("shop", "s").is_some());
        let told = std::iter::from_fn(|| changes.try_recv().ok()).count();
        assert_eq!(told, 4, "gone, listed, gone, listed");
    }
}
