//! Attempts to bring an object where it belongs: counted, told when they fail, and made again later each time.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::controller::{
    Action as Requeue, Config, Error as ControllerError, ReconcileRequest, applier,
};
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use podvirt_api::error::chain;
use podvirt_daemon::backoff::Backoff;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::failure::Failure;
use crate::kept::{Kept, Kind};
use crate::metrics::Metrics;
use crate::watch::{self, Roster};

/// Objects that a controller works on at a time.
const CONCURRENCY: u16 = 4;

/// When to decide again after the cache turned out to lag.
pub(crate) const STALE_RETRY: Duration = Duration::from_millis(500);

/// How the attempt to carry out a decision went, for a condition that tells of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was none: something is waited for.
    Waited,
    /// It succeeded, or there was nothing to do.
    Done,
    /// It failed.
    Failed {
        /// Reason of the condition.
        reason: &'static str,
        /// Why, for people.
        message: String,
    },
}

/// A controller: what it keeps, and one attempt to bring an object where it belongs.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// Kind of the objects.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
    /// Why an attempt failed.
    type Error: Failure + Send + Sync;

    /// Its attempts.
    fn attempts(&self) -> &Attempts;

    /// One attempt.
    async fn one(&self, object: &Self::Object) -> Result<Requeue, Self::Error>;

    /// Forgets the object of this UID, which is gone.
    fn forget(&self, uid: &String) {
        self.attempts().forget(uid);
    }
}

/// Keeps all objects of a kind until it is dropped: fills their cache with what a watch tells, and attempts what `queue` asks
/// for. `watched` names them in the log.
pub(crate) async fn keep_all<K: Keeper>(
    keeper: Arc<K>,
    client: &Client,
    (kept, writer): (Kept<K::Object>, Writer<K::Object>),
    queue: impl Stream<Item = Result<ReconcileRequest<K::Object>, watcher::Error>> + Send + 'static,
    watched: &'static str,
) where
    K::Object: Kind + Default,
{
    let (own, mut roster) = (keeper.clone(), Roster::default());
    let events = watch::all::<K::Object>(client).inspect(move |event| {
        let gone = event.as_ref().map(|event| roster.take(event)).unwrap_or_default();
        gone.iter().for_each(|uid| own.forget(uid));
    });
    let config = Config::default().concurrency(CONCURRENCY);
    let keeping = keep(keeper, kept.store().clone(), queue, config, watched);
    // What reads is polled before what fills, and so misses no change. On the heap: a few of these fill a thread's stack.
    futures::join!(Box::pin(keeping), Box::pin(kept.keep(events, writer)));
}

/// Attempts what `queue` asks for, of the objects in `store`, until it is dropped. `watched` names in the log what the queue
/// comes from.
pub(crate) async fn keep<K: Keeper>(
    keeper: Arc<K>,
    store: Store<K::Object>,
    queue: impl Stream<Item = Result<ReconcileRequest<K::Object>, watcher::Error>> + Send + 'static,
    config: Config,
    watched: &'static str,
) {
    applier(
        |object: Arc<K::Object>, keeper: Arc<K>| {
            Box::pin(async move {
                // Boxed, as an attempt may write several objects, and thousands may wait.
                let work = Box::pin(keeper.one(&object));
                keeper.attempts().make(object.as_ref(), work).await
            })
        },
        |object, error, keeper| keeper.attempts().failed(object.as_ref(), error),
        keeper,
        store,
        queue,
        config,
    )
    .for_each(|result| async move {
        match result {
            // The object went while it was in the queue; a failure was logged where it happened.
            Ok(_) | Err(ControllerError::ObjectNotFound(_) | ControllerError::ReconcilerFailed(..)) => {}
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "watch of {watched}");
            }
        }
    })
    .await;
}

/// Whether the API server has the object as it is here: what an old copy leads to is not done.
///
/// # Errors
///
/// The API server could not be asked.
pub(crate) async fn is_current<K>(api: &Api<K>, object: &K) -> Result<bool, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let there = api.get_metadata_opt(&object.name_any()).await?;
    Ok(there.is_some_and(|there| {
        there.uid() == object.uid() && there.resource_version() == object.resource_version()
    }))
}

/// The attempts of one controller.
#[derive(Debug)]
pub(crate) struct Attempts {
    controller: &'static str,
    metrics: Metrics,
    /// By UID: another object of the same name starts anew.
    backoff: Backoff<String>,
}

impl Attempts {
    /// None yet; `controller` names them in logs and metrics.
    pub(crate) fn new(controller: &'static str, metrics: Metrics) -> Self {
        Self { controller, metrics, backoff: Backoff::default() }
    }

    /// Makes one, for `object`, in a span that names it.
    ///
    /// # Errors
    /// What `work` fails with.
    pub(crate) async fn make<E: Failure>(
        &self,
        object: &impl ResourceExt,
        work: impl Future<Output = Result<Requeue, E>>,
    ) -> Result<Requeue, E> {
        let uid = object.uid().unwrap_or_default();
        let span = tracing::info_span!(
            "reconcile",
            controller = self.controller,
            namespace = object.namespace(),
            name = object.name_any(),
            uid
        );
        let result = work.instrument(span).await;
        self.metrics.reconciled(self.controller, result.as_ref().err().map(E::label));
        if result.is_ok() {
            self.backoff.forget(&uid);
        }
        result
    }

    /// Tells that the last one for `object` failed, and says when to make the next.
    pub(crate) fn failed(&self, object: &impl ResourceExt, error: &impl Failure) -> Requeue {
        let delay = self.backoff.failed(object.uid().unwrap_or_default());
        let delay = error.longest_retry().map_or(delay, |longest| delay.min(longest));
        tracing::warn!(
            controller = self.controller,
            namespace = object.namespace(),
            name = object.name_any(),
            retry_s = delay.as_secs_f32(),
            // In one text: lines in JSON have no fields for an error's sources.
            error = chain(error),
            "reconciliation failed"
        );
        Requeue::requeue(delay)
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, uid: &String) {
        self.backoff.forget(uid);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use podvirt_daemon::testing::failure;

    use super::*;
    use crate::vmi::controller::Error;

    #[test]
    fn what_a_quota_forbids_is_tried_again_soon_however_often_it_failed() {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        for (code, reason, longest) in [(403, "Forbidden", 30), (500, "InternalError", 300)] {
            let attempts = Attempts::new("test", Metrics::new(&mut Default::default()));
            let status = serde_json::from_value(failure(code, reason, "exceeded quota").1).unwrap();
            let source = kube::Error::Api(Box::new(status));
            let error = Error::Create { name: "p".into(), source };
            let delays: Vec<Requeue> = (0..20).map(|_| attempts.failed(&pod, &error)).collect();
            assert_eq!(delays.last(), Some(&Requeue::requeue(Duration::from_secs(longest))), "{code}");
            assert_eq!(delays[0], Requeue::requeue(Duration::from_millis(100)));
        }
        // Of all the other kinds: people have been told of the refusal.
        let refused = crate::failure::Error::Refused("claim not made: exceeded quota".into());
        let attempts = Attempts::new("test", Metrics::new(&mut Default::default()));
        let delays: Vec<Requeue> = (0..20).map(|_| attempts.failed(&pod, &refused)).collect();
        assert_eq!(delays.last(), Some(&Requeue::requeue(Duration::from_secs(30))));
    }
}
