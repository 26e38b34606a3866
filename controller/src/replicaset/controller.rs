//! The shell around [`super::decide()`]: watches, reads, writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action as Requeue, Config, ReconcileRequest};
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::selector::{Labels, Selector};
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use tokio::sync::broadcast::error::RecvError;

use super::act;
use super::decide::{Observed, decide};
use super::status::status;
use crate::attempt::{self, Attempts, Failure, Keeper, Outcome};
use crate::claim;
use crate::expectations::Expectations;
use crate::metrics::Metrics;
use crate::vmi::{Change, View};
use crate::watch;

/// Replica sets that are worked on at a time.
const CONCURRENCY: u16 = 4;

/// When to decide again after the cache turned out to lag.
const STALE_RETRY: Duration = Duration::from_millis(500);

/// A reconciliation failed; it is tried again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The replica set could not be written.
    #[error("write the replica set")]
    Write(#[from] patch::Error),
    /// The API server could not be asked.
    #[error("API server not asked")]
    Ask(#[source] kube::Error),
    /// An action was refused; people have been told.
    #[error("{message}")]
    Refused {
        /// Reason of the condition.
        reason: &'static str,
        /// Why, for people.
        message: String,
    },
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Ask(_) => "read",
            Self::Refused { .. } => "refused",
        }
    }
}

/// What the controller needs of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Shows instances.
    pub view: View,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) expectations: Expectations,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("replicaset", context.metrics.clone());
        Self { context, expectations: Expectations::default(), attempts }
    }
}

impl Keeper for Shared {
    type Object = ReplicaSet;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, set: &ReplicaSet) -> Result<Requeue, Error> {
        one(set, self).await
    }
}

type Request = ReconcileRequest<ReplicaSet>;

/// Keeps all replica sets until it is dropped.
pub async fn run(context: Context) {
    let shared = Arc::new(Shared::new(context));
    let (sets, writer) = store();
    let (own, mut roster) = (shared.clone(), watch::Roster::default());
    let of_sets = watch::all::<ReplicaSet>(&shared.context.client)
        .inspect_ok(move |event| {
            for uid in roster.take(event) {
                own.expectations.forget(&uid);
                own.attempts.forget(&uid);
            }
        })
        .reflect(writer)
        .applied_objects()
        .map_ok(|set| Request::from(ObjectRef::from_obj(&set)));
    let queue = stream::select(of_sets, changes(shared.context.view.clone(), sets.clone()));
    let config = Config::default().concurrency(CONCURRENCY);
    attempt::keep(shared, sets, queue, config, "replica sets").await;
}

/// Replica sets whose instances changed.
fn changes(view: View, sets: Store<ReplicaSet>) -> impl Stream<Item = Result<Request, watcher::Error>> {
    let changes = view.changes();
    stream::unfold((changes, view, sets), |(mut changes, view, sets)| async move {
        let found = match changes.recv().await {
            Ok(Change::Machine(machine)) => {
                let namespace = machine.namespace.as_deref().unwrap_or_default();
                let vmi = view.machine(namespace, &machine.name);
                concerned(&sets.state(), namespace, vmi.as_deref())
            }
            Ok(Change::Pods(_)) => Vec::new(),
            // Too many to say which: all are looked at.
            Ok(Change::All) | Err(RecvError::Lagged(_)) => sets.state(),
            Err(RecvError::Closed) => return None,
        };
        let found = found.into_iter().map(|set| Ok(Request::from(ObjectRef::from_obj(set.as_ref()))));
        Some((stream::iter(found.collect::<Vec<_>>()), (changes, view, sets)))
    })
    .flatten()
}

/// The replica sets that a change of an instance is about: its controller, and those that select it. Of an instance that is
/// gone that is not known any more.
pub(super) fn concerned(
    sets: &[Arc<ReplicaSet>],
    namespace: &str,
    vmi: Option<&VirtualMachineInstance>,
) -> Vec<Arc<ReplicaSet>> {
    let none = Labels::new();
    let is = |set: &ReplicaSet| {
        let Some(vmi) = vmi else { return true };
        let controller = claim::controller_of(&vmi.metadata);
        let labels = vmi.metadata.labels.as_ref().unwrap_or(&none);
        controller.is_some_and(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
            || Selector::of(set.spec.selector.as_ref()).is_ok_and(|selector| selector.matches(labels))
    };
    let here = sets.iter().filter(|set| set.metadata.namespace.as_deref() == Some(namespace));
    here.filter(|set| is(set)).cloned().collect()
}

pub(super) async fn one(set: &ReplicaSet, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.view.complete().await;
    let (namespace, uid) = (set.namespace().unwrap_or_default(), set.uid().unwrap_or_default());
    let mut instances = context.view.machines();
    instances.retain(|vmi| vmi.metadata.namespace.as_deref() == Some(namespace.as_str()));
    shared.expectations.look(&uid, &claim::there(instances.iter().map(|vmi| &vmi.metadata)));
    let wait = shared.expectations.wait(&uid, Instant::now());
    let plan = decide(&Observed { set, instances: &instances, waits: wait.is_some() });
    let sets: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &namespace);
    if !plan.actions.is_empty() && !attempt::is_current(&sets, set).await.map_err(Error::Ask)? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let result = act::carry_out(set, &plan.actions, shared).await;
    let outcome = match &result {
        Err(Error::Refused { reason, message }) => Outcome::Failed { reason, message: message.clone() },
        _ if wait.is_some() => Outcome::Waited,
        _ => Outcome::Done,
    };
    let (status, note) = status(set, &plan, outcome, Timestamp::now());
    let wanted = ReplicaSet { status, ..set.clone() };
    match patch::status_subresource(&sets, set, &wanted).await {
        Ok(_) => {}
        Err(error) if error.is_stale() => {
            result?;
            return Ok(Requeue::requeue(STALE_RETRY));
        }
        Err(error) => return Err(error.into()),
    }
    if let Some((reason, message)) = note {
        context.recorder.normal(set, reason, message).await;
    }
    result?;
    Ok(wait.map_or_else(Requeue::await_change, Requeue::requeue))
}
