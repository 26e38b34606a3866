//! The shell around [`super::decide()`]: watches, reads, writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action as Requeue, Config, ReconcileRequest};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use podvirt_api::migration::{defaults, is_final};
use podvirt_api::names::{event, label};
use podvirt_api::resources::AutoLimits;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use tokio::sync::broadcast::error::RecvError;

use super::act;
use super::admit::Limits;
use super::decide::{self, Decision, Observed, Turn, believes_in_target};
use super::host_model;
use super::kept;
use super::policy;
use super::queue::Queue;
use super::status::phase;
use crate::attempt::{self, Attempts, Keeper};
use crate::failure::{Failure, retry_delay};
use crate::metrics::Metrics;
use crate::settings::{Cluster, Settings};
use crate::storage::Storage;
use crate::template::pod_name;
use crate::vmi::{Change, View, observe, pods};
use crate::{attachments, limits, watch};

/// Migrations that are worked on at a time.
const CONCURRENCY: u16 = 8;
/// When to decide again after the cache turned out to lag.
const STALE_RETRY: Duration = Duration::from_millis(500);

/// A reconciliation failed; it is tried again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Machine or migration could not be written.
    #[error("write machine or migration")]
    Write(#[from] patch::Error),
    /// The API server refused a pod.
    #[error("make target pod {name}")]
    Create {
        /// Name of the pod.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// Another object has the pod's name.
    #[error("pod {0} belongs to another owner")]
    Taken(String),
    /// The API server refused a deletion.
    #[error("delete {name}")]
    Delete {
        /// Name of the object.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// The API server refused a change of a claim.
    #[error("write claim {name}")]
    Update {
        /// Name of the claim.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// An object could not be read.
    #[error("read {name}")]
    Read {
        /// Name of the object.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// The policies could not be read.
    #[error("read the migration policies")]
    Policies(#[source] kube::Error),
    /// What the namespace wants of limits could not be read.
    #[error("read the quotas and labels of the namespace")]
    Limits(#[source] kube::Error),
    /// What the pod's networks take is not known.
    #[error("networks of the target pod")]
    Attachments(#[from] attachments::Error),
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Write(_) | Self::Update { .. } => "write",
            Self::Create { .. } | Self::Taken(_) => "create",
            Self::Delete { .. } => "delete",
            Self::Read { .. } | Self::Policies(_) | Self::Limits(_) | Self::Attachments(_) => "read",
        }
    }

    fn longest_retry(&self) -> Option<Duration> {
        match self {
            Self::Create { source, .. } => retry_delay(source),
            _ => None,
        }
    }
}

/// What the controller needs of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// The cluster's configuration.
    pub cluster: Cluster,
    /// Image of the launcher.
    pub launcher_image: String,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Machines and their pods.
    pub view: View,
    /// All nodes.
    pub nodes: Store<Node>,
    /// Claims and their classes.
    pub storage: Storage,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    /// All migrations.
    pub(super) queue: Queue,
    pub(super) attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("migration", context.metrics.clone());
        Shared { queue: Queue::new(context.view.clone()), context, attempts }
    }

    /// Takes a change of a migration in.
    pub(super) fn apply(&self, event: &Event<Migration>) {
        for gone in self.queue.apply(event, Timestamp::now()) {
            self.attempts.forget(&gone);
        }
    }

    /// Notes that a migration was let start.
    pub(super) fn start(&self, migration: &Migration) {
        self.queue.start(&migration.uid().unwrap_or_default(), Timestamp::now());
    }

    /// Forgets that a migration was let start: it has ended, or did not start after all.
    pub(super) fn stop(&self, uid: &str) {
        self.queue.stop(uid, Timestamp::now());
    }

    /// Whether it is this migration's turn, from all that wait and run.
    fn turn(&self, migration: &Migration, settings: &Settings, now: Timestamp) -> Turn {
        let limits = Limits::of(&defaults(&settings.configuration));
        let uid = migration.uid().unwrap_or_default();
        if self.queue.is_turn(&uid, limits, now) { Turn::Now } else { Turn::Later }
    }
}

impl Keeper for Shared {
    type Object = Migration;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, migration: &Migration) -> Result<Requeue, Error> {
        one(migration, self).await
    }
}

type Request = ReconcileRequest<Migration>;

/// Keeps all migrations until it is dropped, and fills `store` by `writer`.
pub async fn run(context: Context, store: Store<Migration>, writer: Writer<Migration>) {
    let shared = Arc::new(Shared::new(context));
    let own = shared.clone();
    let migrations = watch::all::<Migration>(&shared.context.client)
        .inspect_ok(move |event| own.apply(event))
        .reflect(writer)
        .applied_objects()
        .map_ok(|migration| Request::from(ObjectRef::from_obj(&migration)));
    let queue = stream::select(migrations, changes(shared.clone()));
    let config = Config::default().concurrency(CONCURRENCY);
    attempt::keep(shared, store, queue, config, "migrations").await;
}

/// Migrations whose machine changed, or a pod of it. An ended one may still hold its target pod.
fn changes(shared: Arc<Shared>) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let changes = shared.context.view.changes();
    stream::unfold((changes, shared), move |(mut changes, shared)| async move {
        let found = match changes.recv().await {
            Ok(Change::Machine(machine) | Change::Pods(machine)) => {
                let namespace = machine.namespace.as_deref().unwrap_or_default();
                shared.queue.changed(Some((namespace, &machine.name)), Timestamp::now())
            }
            // Too many to say which: all are looked at.
            Ok(Change::All) | Err(RecvError::Lagged(_)) => shared.queue.changed(None, Timestamp::now()),
            Err(RecvError::Closed) => return None,
        };
        let found = found.into_iter().map(|m| Ok(Request::from(ObjectRef::from_obj(m.as_ref()))));
        Some((stream::iter(found.collect::<Vec<_>>()), (changes, shared)))
    })
    .flatten()
}

pub(super) async fn one(migration: &Migration, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.view.complete().await;
    let settings = context.cluster.settings().await;
    let now = Timestamp::now();
    let vmi = machine(migration, shared).await?;
    let target = target(migration, vmi.as_deref(), shared).await?;
    let siblings = shared.queue.siblings(migration);
    let way = match (&vmi, phase(migration)) {
        (Some(vmi), Phase::Scheduled) => {
            let way = policy::way(&context.client, vmi, &settings.configuration).await;
            Some(way.map_err(Error::Policies)?)
        }
        _ => None,
    };
    let turn = match phase(migration) {
        Phase::Pending => shared.turn(migration, &settings, now),
        _ => Turn::Later,
    };
    let limits = match &vmi {
        Some(vmi) if phase(migration) == Phase::Pending && turn != Turn::Later => {
            let found = limits::of_namespace(&context.client, vmi, &settings.configuration).await;
            found.map_err(Error::Limits)?
        }
        _ => AutoLimits::default(),
    };
    let host_model = match &vmi {
        Some(vmi) if turn == Turn::Now => from_here(vmi, shared),
        _ => BTreeMap::new(),
    };
    let uid = vmi.as_ref().and_then(|vmi| vmi.uid()).unwrap_or_default();
    let attachment = target.as_ref().and_then(|target| {
        let all = context.view.pods().attachments_of(&uid);
        all.into_iter().find(|pod| !observe::is_consumer(pod) && observe::controls(target, pod))
    });
    let source = vmi.as_deref().map(pods::name_of);
    let source =
        context.view.pods_of(&uid).into_iter().find(|pod| Some(observe::name(pod)) == source.as_deref());
    let seen = Observed {
        migration,
        vmi: vmi.as_deref(),
        source: source.as_deref(),
        target: target.as_deref(),
        attachment: attachment.as_deref(),
        kept: kept::look(migration, vmi.as_deref(), &context.storage, &settings),
        siblings: &siblings,
        turn,
        way: way.as_ref(),
        settings: &settings,
        launcher_image: &context.launcher_image,
        limits,
        host_model,
    };
    let decision = decide::decide(&seen, now);
    if let (Some(old), Some(new)) = (&vmi, &decision.vmi) {
        let api = Api::namespaced(context.client.clone(), &old.namespace().unwrap_or_default());
        match patch::status(&api, old.as_ref(), new).await {
            Ok(_) => {}
            Err(error) if error.is_stale() => {
                tracing::debug!(error = &error as &dyn std::error::Error, "decided from an old copy");
                return Ok(Requeue::requeue(STALE_RETRY));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !write_migration(migration, &decision, vmi.as_deref(), shared).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    for action in decision.actions {
        Box::pin(act::carry_out(&decision.migration, action, shared)).await?;
    }
    Ok(decision.look_again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// What the machine takes along of the model that its node gave it.
fn from_here(vmi: &VirtualMachineInstance, shared: &Shared) -> BTreeMap<String, String> {
    let node = vmi.status.node_name.as_deref().unwrap_or_default();
    let pods = shared.context.view.pods_of(&vmi.uid().unwrap_or_default());
    let here = |pod: &&Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let pod = pods.iter().rev().find(here).map(AsRef::as_ref);
    host_model::selector(vmi, pod, shared.context.nodes.get(&ObjectRef::new(node)).as_deref())
}

/// The migration's machine. That there is none is asked of the API server: it ends the migration.
async fn machine(
    migration: &Migration,
    shared: &Shared,
) -> Result<Option<Arc<VirtualMachineInstance>>, Error> {
    let (namespace, Some(name)) = (migration.namespace().unwrap_or_default(), &migration.spec.vmi_name)
    else {
        return Ok(None);
    };
    if let Some(known) = shared.context.view.machine(&namespace, name) {
        return Ok(Some(known));
    }
    let api: Api<VirtualMachineInstance> = Api::namespaced(shared.context.client.clone(), &namespace);
    let found = api.get_opt(name).await.map_err(|source| Error::Read { name: name.clone(), source })?;
    Ok(found.map(Arc::new))
}

/// The migration's target pod. That there is none is asked of the API server where something follows from it.
async fn target(
    migration: &Migration,
    vmi: Option<&VirtualMachineInstance>,
    shared: &Shared,
) -> Result<Option<Arc<Pod>>, Error> {
    let uid = migration.uid().unwrap_or_default();
    let machine = vmi.and_then(ResourceExt::uid).unwrap_or_default();
    let of_this = |pod: &Arc<Pod>| pod.labels().get(label::MIGRATION_JOB) == Some(&uid);
    if let Some(known) = shared.context.view.pods_of(&machine).into_iter().find(of_this) {
        return Ok(Some(known));
    }
    if !believes_in_target(migration) {
        return Ok(None);
    }
    let name = pod_name(migration.spec.vmi_name.as_deref().unwrap_or_default(), &uid);
    let api: Api<Pod> =
        Api::namespaced(shared.context.client.clone(), &migration.namespace().unwrap_or_default());
    let found = api.get_opt(&name).await.map_err(|source| Error::Read { name, source })?;
    // A machine that is gone took its pods with it, as their owner.
    Ok(found.filter(|pod| vmi.is_none() || pods::is_of(pod, &machine)).map(Arc::new))
}

/// Writes the migration and tells what there is to tell. Whether the decision still holds.
pub(super) async fn write_migration(
    migration: &Migration,
    decision: &Decision,
    vmi: Option<&VirtualMachineInstance>,
    shared: &Shared,
) -> Result<bool, Error> {
    let context = &shared.context;
    let api: Api<Migration> =
        Api::namespaced(context.client.clone(), &migration.namespace().unwrap_or_default());
    let written = async {
        let status = patch::status_subresource(&api, migration, &decision.migration).await?;
        let mut old = migration.clone();
        if let Some(written) = status {
            old.metadata.resource_version = written.metadata.resource_version;
        }
        // The finalizer may go with this, and the migration with it.
        patch::metadata(&api, &old, &decision.migration).await
    };
    match written.await {
        Ok(_) => {}
        Err(error) if error.is_stale() => {
            tracing::debug!(error = &error as &dyn std::error::Error, "decided from an old copy");
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    let (before, after) = (phase(migration), phase(&decision.migration));
    let ends = is_final(&decision.migration);
    if before != after {
        tracing::info!(from = before.as_str(), to = after.as_str(), "phase");
        if ends {
            shared.stop(&migration.uid().unwrap_or_default());
            context.metrics.migrated(after == Phase::Succeeded);
        }
    }
    for note in &decision.notes {
        let recorder = &context.recorder;
        if note.warning {
            recorder.warning(migration, &note.reason, &note.message).await;
        } else {
            recorder.normal(migration, &note.reason, &note.message).await;
        }
        // A user who watches the VirtualMachineInstance, not the migration, is told as well why it stays.
        let is_told = ends || note.reason == event::MIGRATION_BACKOFF;
        if let Some(vmi) = vmi.filter(|_| is_told) {
            if note.warning {
                recorder.warning(vmi, &note.reason, &note.message).await;
            } else {
                recorder.normal(vmi, &note.reason, &note.message).await;
            }
        }
    }
    Ok(true)
}
