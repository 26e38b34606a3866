//! The shell around [`super::decide()`]: watches, reads, writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action as Requeue, Config, ReconcileRequest};
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use tokio::sync::broadcast::error::RecvError;

use super::act;
use super::decide::{Observed, decide};
use super::revision::Known;
use super::status::status;
use crate::attempt::{self, Attempts, Failure, Keeper, Outcome};
use crate::claim;
use crate::expectations::Expectations;
use crate::metrics::Metrics;
use crate::vm::Machines;
use crate::vmi::{Change, View};
use crate::watch;

/// Pools that are worked on at a time.
const CONCURRENCY: u16 = 4;

/// When to decide again after the cache turned out to lag.
const STALE_RETRY: Duration = Duration::from_millis(500);

/// A reconciliation failed; it is tried again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caches ended.
    #[error("cache of VirtualMachines")]
    Cache(#[from] kube::runtime::reflector::store::WriterDropped),
    /// The pool could not be written.
    #[error("write the pool")]
    Write(#[from] patch::Error),
    /// An object cannot be written as JSON.
    #[error("object as JSON")]
    Json(#[source] serde_json::Error),
    /// The API server could not be asked.
    #[error("API server not asked")]
    Ask(#[source] kube::Error),
    /// An action was refused.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    pub(super) fn refused(message: String) -> Self {
        Self::Refused(message)
    }
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Write(_) | Self::Json(_) => "write",
            Self::Ask(_) | Self::Cache(_) => "read",
            Self::Refused(_) => "refused",
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
    /// Shows VMs.
    pub machines: Machines,
    /// Shows instances.
    pub view: View,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) expectations: Expectations,
    pub(super) revisions: Known,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("pool", context.metrics.clone());
        Self { context, expectations: Expectations::default(), revisions: Known::default(), attempts }
    }
}

impl Keeper for Shared {
    type Object = Pool;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, pool: &Pool) -> Result<Requeue, Error> {
        one(pool, self).await
    }
}

type Request = ReconcileRequest<Pool>;

/// Keeps all pools until it is dropped.
pub async fn run(context: Context) {
    let shared = Arc::new(Shared::new(context));
    let (pools, writer) = store();
    let (own, mut roster) = (shared.clone(), watch::Roster::default());
    let of_pools = watch::all::<Pool>(&shared.context.client)
        .inspect_ok(move |event| {
            for uid in roster.take(event) {
                own.expectations.forget(&uid);
                own.revisions.forget(&uid);
                own.attempts.forget(&uid);
            }
        })
        .reflect(writer)
        .applied_objects()
        .map_ok(|pool| Request::from(ObjectRef::from_obj(&pool)));
    let queue = stream::select(of_pools, changes(&shared.context, pools.clone()));
    let config = Config::default().concurrency(CONCURRENCY);
    attempt::keep(shared, pools, queue, config, "pools").await;
}

/// Pools whose VMs or instances changed.
fn changes(
    context: &Context,
    pools: Store<Pool>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let machines = context.machines.clone();
    let of_machines = (context.machines.changes(), context.view.changes());
    stream::unfold((of_machines, machines, pools), |(mut changes, machines, pools)| async move {
        // The name of a VM is its instance's.
        let name = tokio::select! {
            vm = changes.0.recv() => match vm {
                Ok(Some(vm)) => Some((vm.namespace.unwrap_or_default(), vm.name)),
                Ok(None) | Err(RecvError::Lagged(_)) => None,
                Err(RecvError::Closed) => return None,
            },
            vmi = changes.1.recv() => match vmi {
                Ok(Change::Machine(vmi)) => Some((vmi.namespace.unwrap_or_default(), vmi.name)),
                Ok(Change::Pods(_)) => return Some((stream::iter(Vec::new()), (changes, machines, pools))),
                Ok(Change::All) | Err(RecvError::Lagged(_)) => None,
                Err(RecvError::Closed) => return None,
            },
        };
        let found = match name {
            Some((namespace, name)) => {
                let vm = machines.store().get(&ObjectRef::new(&name).within(&namespace));
                concerned(&pools.state(), &namespace, vm.as_deref())
            }
            // Too many to say which: all are looked at.
            None => pools.state(),
        };
        let found = found.into_iter().map(|pool| Ok(Request::from(ObjectRef::from_obj(pool.as_ref()))));
        Some((stream::iter(found.collect::<Vec<_>>()), (changes, machines, pools)))
    })
    .flatten()
}

/// The pools that a change of a VM is about: its controller. Of a VM that is gone that is not known any more.
pub(super) fn concerned(pools: &[Arc<Pool>], namespace: &str, vm: Option<&VirtualMachine>) -> Vec<Arc<Pool>> {
    let is = |pool: &Pool| {
        let Some(vm) = vm else { return true };
        claim::controller_of(&vm.metadata).is_some_and(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
    };
    let here = pools.iter().filter(|pool| pool.metadata.namespace.as_deref() == Some(namespace));
    here.filter(|pool| is(pool)).cloned().collect()
}

pub(super) async fn one(pool: &Pool, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.view.complete().await;
    context.machines.store().wait_until_ready().await?;
    let (namespace, uid) = (pool.namespace().unwrap_or_default(), pool.uid().unwrap_or_default());
    let mut machines = context.machines.store().state();
    machines.retain(|vm| vm.metadata.namespace.as_deref() == Some(namespace.as_str()));
    let instances = instances(&machines, &uid, &context.view);
    let metadata = machines.iter().map(|vm| &vm.metadata);
    let metadata = metadata.chain(instances.values().map(|vmi| &vmi.metadata));
    shared.expectations.look(&uid, &claim::there(metadata));
    let wait = shared.expectations.wait(&uid, Instant::now());
    let of_namespace: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let revisions = shared.revisions.of(&of_namespace, pool).await.map_err(Error::Ask)?;
    let seen = Observed {
        pool,
        machines: &machines,
        instances: &instances,
        revisions: &revisions,
        waits: wait.is_some(),
    };
    let plan = decide(&seen, Timestamp::now());
    let pools: Api<Pool> = Api::namespaced(context.client.clone(), &namespace);
    if !plan.actions.is_empty() && !attempt::is_current(&pools, pool).await.map_err(Error::Ask)? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let result = act::carry_out(pool, &plan.actions, shared).await;
    let outcome = match &result {
        Err(Error::Refused(message)) => {
            Outcome::Failed { reason: plan.stage.failure(), message: message.clone() }
        }
        _ if wait.is_some() => Outcome::Waited,
        _ => Outcome::Done,
    };
    let (status, notes) = status(pool, &plan, outcome, Timestamp::now());
    let wanted = Pool { status, ..pool.clone() };
    match patch::status_subresource(&pools, pool, &wanted).await {
        Ok(_) => {}
        Err(error) if error.is_stale() => {
            result?;
            return Ok(Requeue::requeue(STALE_RETRY));
        }
        Err(error) => return Err(error.into()),
    }
    for note in notes {
        if note.warning {
            context.recorder.warning(pool, note.reason, &note.message).await;
        } else {
            context.recorder.normal(pool, note.reason, &note.message).await;
        }
    }
    result?;
    // Revisions are not watched: what was done to them calls for no pass by itself.
    let goes_on = plan.actions.iter().any(|action| matches!(action, super::Action::Remember));
    let again = wait.into_iter().chain(plan.look_again).chain(goes_on.then_some(STALE_RETRY)).min();
    Ok(again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// The instances of the pool's VMs, by their names.
fn instances(
    machines: &[Arc<VirtualMachine>],
    pool: &str,
    view: &View,
) -> HashMap<String, Arc<VirtualMachineInstance>> {
    let own = machines
        .iter()
        .filter(|vm| claim::controller_of(&vm.metadata).is_some_and(|owner| owner.uid == pool));
    own.filter_map(|vm| {
        let name = vm.name_any();
        let vmi = view.machine(&vm.namespace().unwrap_or_default(), &name)?;
        Some((name, vmi))
    })
    .collect()
}
