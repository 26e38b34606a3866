//! DataVolumes as the cache has them, for all controllers, and word of every change.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Client;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Error, Event};
use podvirt_api::cdi::DataVolume;
use tokio::sync::{broadcast, watch as latest};

use crate::watch;

/// Changes that may wait to be read.
const CHANGES: usize = 1024;

/// How long a cluster without the kind is left alone.
const AGAIN: Duration = Duration::from_secs(20);

/// What has changed: a DataVolume, or any number of them after a new list.
type Changed = Option<ObjectRef<DataVolume>>;

/// Whether the cluster has DataVolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The first list is not there yet.
    Unknown,
    /// The API server does not know the kind: CDI is not installed.
    No,
    /// The cache is filled.
    Yes,
}

/// The cache. Clones see the same.
#[derive(Clone, Debug)]
pub struct DataVolumes {
    store: Store<DataVolume>,
    served: Arc<latest::Sender<Served>>,
    changes: broadcast::Sender<Changed>,
}

impl DataVolumes {
    /// An empty cache, and what fills it.
    pub fn new() -> (DataVolumes, Writer<DataVolume>) {
        let (store, writer) = reflector::store();
        let served = Arc::new(latest::Sender::new(Served::Unknown));
        (DataVolumes { store, served, changes: broadcast::Sender::new(CHANGES) }, writer)
    }

    /// Whether there are DataVolumes in this cluster.
    pub fn served(&self) -> Served {
        *self.served.borrow()
    }

    /// The DataVolume of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<DataVolume>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// What changes from now on. A listener that falls behind has to take it for a change of all.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// Takes in what the watch says: whether the kind is served, and word for those that listen.
    fn taken(&self, event: &Result<Event<DataVolume>, Error>) {
        let changed = match event {
            Ok(Event::Apply(one) | Event::Delete(one)) => Some(ObjectRef::from_obj(one)),
            Ok(Event::InitDone) => {
                self.say(Served::Yes);
                None
            }
            Ok(Event::Init | Event::InitApply(_)) => return,
            Err(error) if is_unserved(error) => {
                if !self.say(Served::No) {
                    return;
                }
                None
            }
            Err(error) => {
                tracing::warn!(error = error as &dyn std::error::Error, "watch of DataVolumes");
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
            tracing::info!(served = ?served, "DataVolumes");
        }
        news
    }

    /// A cache with these DataVolumes, and its writer: without it the cache ends.
    #[cfg(test)]
    pub(crate) fn with(volumes: impl IntoIterator<Item = DataVolume>) -> (DataVolumes, Writer<DataVolume>) {
        let (view, mut writer) = Self::new();
        let listed = volumes.into_iter().map(Event::InitApply);
        for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
            writer.apply_watcher_event(&event);
            view.taken(&Ok(event));
        }
        (view, writer)
    }
}

/// Keeps the cache filled until it is dropped. A cluster that gets CDI later is seen within half a minute.
pub async fn keep(client: Client, view: DataVolumes, writer: Writer<DataVolume>) {
    fill(watch::all::<DataVolume>(&client), view, writer).await;
}

async fn fill(
    events: impl Stream<Item = Result<Event<DataVolume>, Error>>,
    view: DataVolumes,
    writer: Writer<DataVolume>,
) {
    reflector::reflector(writer, events)
        .for_each(async |event| {
            view.taken(&event);
            // The watch's own delay begins anew with each try.
            if event.as_ref().is_err_and(is_unserved) {
                tokio::time::sleep(AGAIN).await;
            }
        })
        .await;
}

/// Whether the API server does not know the kind. It says so by the code alone: its answer to a path that it does not serve is
/// text, without a reason.
fn is_unserved(error: &Error) -> bool {
    matches!(error, Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_the_kind_is_told_from_one_that_has_not_answered() {
        let (view, writer) = DataVolumes::new();
        let mut changes = view.changes();
        assert_eq!(view.served(), Served::Unknown);
        let missing = || {
            // What the client makes of an answer that is no Status.
            let status = kube::core::Status::failure("404 page not found", "Failed to parse error data")
                .with_code(404);
            Err(Error::InitialListFailed(kube::Error::Api(Box::new(status))))
        };
        let mut volume = DataVolume::default();
        volume.metadata.name = Some("disk".into());
        volume.metadata.namespace = Some("shop".into());
        let broken = Err(Error::NoResourceVersion);
        let list = [Ok(Event::Init), Ok(Event::InitApply(volume)), Ok(Event::InitDone)];
        let events = [broken, missing(), missing()].into_iter().chain(list);
        let began = tokio::time::Instant::now();
        fill(futures::stream::iter(events), view.clone(), writer).await;
        assert_eq!(began.elapsed(), 2 * AGAIN, "the cluster is not asked all the time");
        assert_eq!(view.served(), Served::Yes);
        assert!(view.get("shop", "disk").is_some());
        let told = std::iter::from_fn(|| changes.try_recv().ok()).count();
        assert_eq!(told, 2, "that the kind is missing, once, and the list");
    }
}
