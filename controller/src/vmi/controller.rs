//! The shell around [`super::decide()`]: watches, reads, writes.
//!
//! Everything runs in the one future that [`run`] returns, so that dropping it ends the work at once: a replica
//! that lost the lead must start nothing more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action as Requeue, Config, ReconcileRequest};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::names::label;
use podvirt_api::resources::AutoLimits;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::claims::{self, Problem, Told};
use super::data;
use super::decide::{self, Decision, Note, Observed, needs_claims};
use super::ends::Ends;
use super::hotplug;
use super::pods::{self, Pods};
use super::status::{is_final, phase};
use super::view::{Change, View};
use super::{act, backup_hooks};
use crate::attempt::{self, Attempts, Keeper};
use crate::data::DataVolumes;
use crate::expectations::Expectations;
use crate::failure::{Failure, retry_delay};
use crate::kept::{self, Kept};
use crate::metrics::Metrics;
use crate::settings::Cluster;
use crate::storage::{Storage, backend};
use crate::{attachments, limits, template, watch};

/// Machines that are worked on at a time. Each is a few requests; the API server's own limits come first.
const CONCURRENCY: u16 = 16;

/// When to decide again after the cache turned out to lag.
const STALE_RETRY: Duration = Duration::from_millis(500);

/// When to look again at a pod that the watch does not show.
const UNSEEN_RETRY: Duration = Duration::from_secs(5);

/// When to look again for a NetworkAttachmentDefinition that was missing. They are not watched: a cluster may lack the kind.
const ATTACHMENT_RETRY: Duration = Duration::from_secs(5);

/// A reconciliation failed; it is tried again, later each time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine could not be written.
    #[error("write the machine")]
    Write(#[from] patch::Error),
    /// The API server refused a pod.
    #[error("make pod {name}")]
    Create {
        /// Name of the pod.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// Another object has the pod's name.
    #[error("pod {0} belongs to another owner")]
    Taken(String),
    /// A pod could not be deleted.
    #[error("delete pod {name}")]
    Delete {
        /// Name of the pod.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// A pod could not be written.
    #[error("write pod {name}")]
    Update {
        /// Name of the pod.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// The pod could not be read.
    #[error("read launcher pod {name}")]
    Read {
        /// Name of the pod.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
    /// The claims could not be read.
    #[error("read the claims")]
    Claims(#[source] kube::Error),
    /// What the namespace wants of limits could not be read.
    #[error("read the quotas and labels of the namespace")]
    Limits(#[source] kube::Error),
    /// What the pod's networks take is not known.
    #[error("networks of the launcher pod")]
    Attachments(#[from] attachments::Error),
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Create { .. } | Self::Taken(_) => "create",
            Self::Delete { .. } => "delete",
            Self::Update { .. } => "update",
            Self::Read { .. } => "read",
            Self::Claims(_) => "claims",
            Self::Limits(_) => "limits",
            Self::Attachments(_) => "networks",
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
    /// DataVolumes.
    pub data: DataVolumes,
    /// Claims and their classes.
    pub storage: Storage,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) pods: Arc<Pods>,
    /// What is told of a machine's claims, by the machine's UID, once that does not change any more.
    pub(super) claims_told: Mutex<HashMap<String, Arc<Told>>>,
    pub(super) ends: Ends,
    pub(super) expectations: Expectations,
    pub(super) attempts: Attempts,
}

impl Shared {
    fn claims_told(&self) -> MutexGuard<'_, HashMap<String, Arc<Told>>> {
        self.claims_told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong with the machine's claims, where `judged` wants to know, and what is to be told of them.
    ///
    /// They are read until they are bound and in use by the machine's pod, and when the watch tells of a change. Before that another
    /// claim may come to have the name; from then on Kubernetes keeps them as long as there is a pod.
    async fn claims(
        &self,
        api: &Api<PersistentVolumeClaim>,
        vmi: &VirtualMachineInstance,
        judged: bool,
    ) -> Result<(Vec<(String, Problem)>, Option<Arc<Told>>), Error> {
        let is_whole = |told: &Arc<Told>| template::claim_names(vmi).all(|name| told.contains_key(name));
        if template::claim_names(vmi).next().is_none() {
            return Ok((Vec::new(), Some(Arc::default())));
        }
        if is_final(&phase(vmi)) {
            return Ok((Vec::new(), None));
        }
        let uid = vmi.uid().unwrap_or_default();
        let known = self.claims_told().get(&uid).cloned();
        if let Some(known) = known.filter(|known| !judged && is_whole(known)) {
            return Ok((Vec::new(), Some(known)));
        }
        let claims = claims::read(api, vmi).await.map_err(Error::Claims)?;
        let problems = if judged { claims::problems(vmi, &claims, &self.context.data) } else { Vec::new() };
        let told = claims::told(vmi, &claims, &self.context.storage.data_settings).map(Arc::new);
        if let Some(told) = told.as_ref().filter(|_| is_in_use(vmi) && claims::are_bound(&claims)) {
            self.claims_told().insert(uid, Arc::clone(told));
        }
        Ok((problems, told))
    }
}

/// Whether the machine's pod runs on a node, with its claims mounted.
fn is_in_use(vmi: &VirtualMachineInstance) -> bool {
    matches!(phase(vmi), Phase::Scheduled | Phase::Running)
}

impl Keeper for Shared {
    type Object = VirtualMachineInstance;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, vmi: &VirtualMachineInstance) -> Result<Requeue, Error> {
        one(vmi, self).await
    }
}

/// Keeps all machines until it is dropped, and fills `view` with `writer`.
pub async fn run(context: Context, view: View, writer: Writer<VirtualMachineInstance>) {
    let client = context.client.clone();
    let attempts = Attempts::new("vmi", context.metrics.clone());
    let shared = Arc::new(Shared {
        context,
        pods: Arc::clone(view.pods()),
        claims_told: Mutex::default(),
        ends: Ends::default(),
        expectations: Expectations::default(),
        attempts,
    });
    let store = view.store().clone();
    let machines = machines(&client, writer, shared.clone(), view.clone());
    let claims = claims_of_machines(&shared.context.storage.claims, shared.clone(), view.clone());
    let filled = filled(shared.context.data.changes(), view.clone());
    let launchers = launchers(Api::all(client), shared.clone(), view);
    let hooks = backup_hooks::of_cluster(shared.context.cluster.changes(), store.clone());
    let queue = futures::stream::select(machines, futures::stream::select(launchers, hooks));
    let queue = futures::stream::select(queue, futures::stream::select(claims, filled));
    let config = Config::default().concurrency(CONCURRENCY);
    let caches = fill(&store, &shared);
    let work = attempt::keep(shared.clone(), store.clone(), queue, config, "machines or pods");
    futures::join!(work, caches);
}

/// The machines without a pod that a DataVolume's change concerns.
fn filled(
    changes: Receiver<Option<ObjectRef<DataVolume>>>,
    view: View,
) -> impl Stream<Item = Result<Request, watcher::Error>> {
    let concerned = futures::stream::unfold((changes, view), |(mut changes, view)| async move {
        let changed = match changes.recv().await {
            Ok(changed) => changed,
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return None,
        };
        let changed = changed.as_ref().map(|data: &ObjectRef<DataVolume>| {
            (data.namespace.as_deref().unwrap_or_default(), data.name.as_str())
        });
        let is_concerned =
            |vmi: &VirtualMachineInstance| phase(vmi) == Phase::Pending && claims::names_one(vmi, changed);
        let machines = view.machines_with(changed, is_concerned);
        let found: Vec<_> =
            machines.iter().map(|vmi| Ok(Request::from(ObjectRef::from_obj(&**vmi)))).collect();
        Some((futures::stream::iter(found), (changes, view)))
    });
    concerned.flatten()
}

async fn fill(store: &Store<VirtualMachineInstance>, shared: &Shared) {
    shared.pods.complete().await;
    if store.wait_until_ready().await.is_ok() {
        tracing::info!(machines = store.len(), "caches are filled");
    }
}

type Request = ReconcileRequest<VirtualMachineInstance>;

fn machines(
    client: &Client,
    writer: Writer<VirtualMachineInstance>,
    shared: Arc<Shared>,
    view: View,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let mut roster = watch::Roster::default();
    let events = watch::all::<VirtualMachineInstance>(client).inspect_ok(move |event| {
        for uid in roster.take(event) {
            shared.ends.forget(&uid);
            shared.expectations.forget(&uid);
            shared.attempts.forget(&uid);
            shared.claims_told().remove(&uid);
        }
    });
    let events = events.reflect(writer).inspect_ok(move |event| view.taken(event));
    events.applied_objects().map_ok(|vmi| Request::from(ObjectRef::from_obj(&vmi)))
}

fn launchers(
    api: Api<Pod>,
    shared: Arc<Shared>,
    view: View,
) -> impl Stream<Item = Result<Request, watcher::Error>> {
    let apps = format!("{} in ({}, {})", label::APP, label::APP_LAUNCHER, label::APP_HOTPLUG);
    let config = watcher::Config::default().labels(&apps);
    watcher(api, config)
        .modify(|pod| pod.metadata.managed_fields = None)
        .default_backoff()
        .map_ok(move |event| {
            let owners = shared.pods.apply(event, &shared.expectations);
            owners.iter().for_each(|owner| view.changed(Change::Pods(owner.clone())));
            futures::stream::iter(owners.into_iter().map(|owner| Ok(Request::from(owner))))
        })
        .try_flatten()
}

/// The machines whose claims change: they may be waited for, or grow.
fn claims_of_machines(
    claims: &Kept<PersistentVolumeClaim>,
    shared: Arc<Shared>,
    view: View,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    kept::heard(claims.changes(), move |changed: Option<&ObjectRef<PersistentVolumeClaim>>| {
        // After a break of the watch any may have changed.
        let changed = changed.map(|one| (one.namespace.as_deref().unwrap_or_default(), one.name.as_str()));
        let machines = view.machines_with(changed, |vmi| claims::names_one(vmi, changed));
        let mut told = shared.claims_told();
        machines.iter().for_each(|vmi| drop(told.remove(&vmi.uid().unwrap_or_default())));
        let requests = machines.iter().map(|vmi| Ok(Request::from(ObjectRef::from_obj(vmi.as_ref()))));
        requests.collect()
    })
}

pub(super) async fn one(vmi: &VirtualMachineInstance, shared: &Shared) -> Result<Requeue, Error> {
    shared.pods.complete().await;
    let settings = shared.context.cluster.settings().await;
    let (namespace, uid) = (vmi.namespace().unwrap_or_default(), vmi.uid().unwrap_or_default());
    if let Some(wait) = shared.expectations.wait(&uid, Instant::now()) {
        return Ok(Requeue::requeue(wait));
    }
    let mut pods = shared.pods.of(&uid);
    let unseen = if decide::current(vmi, &pods).is_none() && believes_in_pod(vmi) {
        unseen_pod(vmi, shared).await?
    } else {
        None
    };
    let is_unseen = unseen.is_some();
    pods.extend(unseen.map(Arc::new));
    let claim_api: Api<PersistentVolumeClaim> = Api::namespaced(shared.context.client.clone(), &namespace);
    let makes_pod = needs_claims(vmi, &pods);
    let plugs = hotplug::needs_claims(vmi);
    let (problems, claims_told) = shared.claims(&claim_api, vmi, makes_pod || plugs).await?;
    let (plug_claims, claims): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|(name, _)| claims::is_plugged(vmi, name));
    let limits = if makes_pod {
        limits::of_namespace(&shared.context.client, vmi, &settings.configuration)
            .await
            .map_err(Error::Limits)?
    } else {
        AutoLimits::default()
    };
    let ended = is_final(&phase(vmi));
    let end_seen = if ended { shared.ends.seen(&uid, Instant::now()) } else { Duration::ZERO };
    let data = data::of_machine(vmi, &shared.context.data);
    let backend = backend::look(vmi, &shared.context.storage, &settings.configuration);
    let seen = Observed {
        vmi,
        pods: &pods,
        consumers: &shared.pods.consumers_of(&uid),
        data: &data,
        attachments: &shared.pods.attachments_of(&uid),
        claims: &claims,
        plug_claims: &plug_claims,
        claims_told: claims_told.as_deref(),
        backend: &backend,
        end_seen,
        settings: &settings,
        launcher_image: &shared.context.launcher_image,
        limits,
    };
    let decision = decide::decide(&seen, Timestamp::now());
    if !write(vmi, &decision, shared).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let api = Api::namespaced(shared.context.client.clone(), &namespace);
    for action in decision.actions {
        match Box::pin(act::carry_out(&api, &decision.vmi, action, shared)).await {
            // It was told on the machine.
            Err(Error::Attachments(attachments::Error::Missing(_))) => {
                return Ok(Requeue::requeue(ATTACHMENT_RETRY));
            }
            carried_out => carried_out?,
        }
    }
    let again = decision.look_again.into_iter().chain(is_unseen.then_some(UNSEEN_RETRY)).min();
    Ok(again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// Whether that a machine has no pod would end it, or let it go.
fn believes_in_pod(vmi: &VirtualMachineInstance) -> bool {
    let active = [Phase::Scheduling, Phase::Scheduled, Phase::Running, Phase::Unknown];
    vmi.metadata.deletion_timestamp.is_some() || active.contains(&phase(vmi))
}

/// The machine's pod as the API server has it. The watch shows pods with the launcher's label alone, which any user
/// that may write pods can take away: the guest lives on.
async fn unseen_pod(vmi: &VirtualMachineInstance, shared: &Shared) -> Result<Option<Pod>, Error> {
    let uid = vmi.uid().unwrap_or_default();
    let name = pods::name_of(vmi);
    let api: Api<Pod> = Api::namespaced(shared.context.client.clone(), &vmi.namespace().unwrap_or_default());
    let there = api.get_opt(&name).await.map_err(|source| Error::Read { name, source })?;
    Ok(there.filter(|pod| pods::is_of(pod, &uid)))
}

/// Writes the machine and tells what there is to tell. Whether the decision still holds.
pub(super) async fn write(
    vmi: &VirtualMachineInstance,
    decision: &Decision,
    shared: &Shared,
) -> Result<bool, Error> {
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(shared.context.client.clone(), &vmi.namespace().unwrap_or_default());
    match patch::status(&api, vmi, &decision.vmi).await {
        Ok(None) => {}
        Ok(Some(written)) => {
            let (before, after) = (&vmi.status.phase, &written.status.phase);
            if before != after {
                let text = |phase: &Option<podvirt_api::v1::VirtualMachineInstancePhase>| {
                    phase.as_ref().map(ToString::to_string).unwrap_or_default()
                };
                tracing::info!(from = text(before), to = text(after), "phase");
                shared.context.metrics.transition(vmi, &decision.vmi);
            }
        }
        Err(error) if error.is_stale() => {
            tracing::debug!(error = &error as &dyn std::error::Error, "decided from an old copy");
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    for Note { warning, reason, message } in &decision.notes {
        if *warning {
            shared.context.recorder.warning(vmi, reason, message).await;
        } else {
            shared.context.recorder.normal(vmi, reason, message).await;
        }
    }
    Ok(true)
}
