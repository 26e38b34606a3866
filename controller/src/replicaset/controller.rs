//! The shell around [`super::decide()`]: watches, reads, writes.

use std::sync::Arc;
use std::time::Instant;

use futures::{Stream, stream};
use jiff::Timestamp;
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::selector::{Labels, Selector};
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;

use super::act;
use super::decide::{Observed, decide};
use super::status::status;
use crate::attempt::{self, Attempts, Keeper, Outcome, STALE_RETRY};
use crate::claim;
use crate::expectations::Expectations;
use crate::failure::{Failure, REFUSED};
use crate::kept::{self, Kept};
use crate::metrics::Metrics;
use crate::vmi::View;

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
            Self::Refused { .. } => REFUSED,
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

    fn forget(&self, uid: &String) {
        self.expectations.forget(uid);
        self.attempts.forget(uid);
    }
}

type Request = ReconcileRequest<ReplicaSet>;

/// Keeps all replica sets until it is dropped.
pub async fn run(context: Context) {
    let (sets, writer) = Kept::new();
    let client = context.client.clone();
    let queue = stream::select(kept::own(&sets), changes(&context.view, sets.store()));
    attempt::keep_all(Arc::new(Shared::new(context)), &client, (sets, writer), queue, "replica sets").await;
}

/// Replica sets whose instances changed.
fn changes(
    view: &View,
    sets: &Store<ReplicaSet>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let (seen, sets) = (view.clone(), sets.clone());
    view.heard(move |machine: Option<&ObjectRef<VirtualMachineInstance>>| {
        let found = match machine {
            Some(machine) => {
                let namespace = machine.namespace.as_deref().unwrap_or_default();
                concerned(&sets.state(), namespace, seen.machine(namespace, &machine.name).as_deref())
            }
            None => sets.state(),
        };
        found.iter().map(|set| Ok(Request::from(ObjectRef::from_obj(set.as_ref())))).collect()
    })
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
