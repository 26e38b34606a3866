//! The shell around [`super::decide()`]: watches, reads, writes.

use std::sync::Arc;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::event;
use podvirt_api::snapshot::{self, FINALIZER, SOURCE_FINALIZER};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;

use super::decide::{Action, Observed, decide, wants_source};
use super::source::{self, Source};
use super::view::{Snapshots, Writers};
use super::{contents, stored};
use crate::attachments::reason_of;
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::data::{DataVolumes, Served};
use crate::failure::Error;
use crate::kept::{self, requests_naming};
use crate::metrics::Metrics;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::View;

/// What is said while the cluster cannot take snapshots of claims.
const NOT_SERVED: &str =
    "this cluster has no VolumeSnapshots (snapshot.storage.k8s.io/v1): install them with its storage";

/// What is said while it is not known how the cluster takes them.
const NOT_KNOWN: &str = "the cluster's storage classes and VolumeSnapshots are not listed yet";

/// What the controller needs of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Shows machines.
    pub machines: Machines,
    /// Shows their instances.
    pub view: View,
    /// Claims and their snapshots.
    pub storage: Storage,
    /// DataVolumes.
    pub data: DataVolumes,
    /// Snapshots and contents.
    pub snapshots: Snapshots,
}

impl Context {
    /// The machine of a snapshot and its instance, as the caches have them.
    pub(super) fn source(
        &self,
        snapshot: &Snapshot,
    ) -> (Option<Arc<VirtualMachine>>, Option<Arc<VirtualMachineInstance>>) {
        let namespace = snapshot.namespace().unwrap_or_default();
        let name = &snapshot.spec.source.name;
        let vm = self.machines.store().get(&ObjectRef::new(name).within(&namespace));
        let vmi = vm.as_ref().and_then(|_| self.view.machine(&namespace, name));
        (vm, vmi)
    }

    /// Waits until the caches are filled.
    pub(super) async fn complete(&self) -> Result<(), Error> {
        self.view.complete().await;
        self.machines.store().wait_until_ready().await?;
        self.snapshots.snapshots.store().wait_until_ready().await?;
        self.snapshots.contents.store().wait_until_ready().await?;
        Ok(self.storage.claims.store().wait_until_ready().await?)
    }
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("snapshot", context.metrics.clone());
        Self { context, attempts }
    }
}

impl Keeper for Shared {
    type Object = Snapshot;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, snapshot: &Snapshot) -> Result<Requeue, Error> {
        Box::pin(one(snapshot, self)).await
    }
}

type Request = ReconcileRequest<Snapshot>;

/// Keeps all snapshots and contents until it is dropped, and fills the caches of both.
pub async fn run(context: Context, writers: Writers) {
    let kept = (context.snapshots.snapshots.clone(), writers.snapshots);
    let queue = queue(&context);
    let shared = Arc::new(Shared::new(context.clone()));
    let client = context.client.clone();
    let keeping = attempt::keep_all(shared, &client, kept, queue, "snapshots");
    futures::join!(keeping, contents::run(context, writers.contents));
}

/// Snapshots that something has changed for.
fn queue(context: &Context) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let Snapshots { snapshots, contents } = &context.snapshots;
    let [of_machines, of_instances] = [(); 2].map(|()| snapshots.clone());
    let own = kept::own(snapshots);
    let shown = contents.clone();
    let of_contents = kept::heard(contents.changes(), move |one: Option<&ObjectRef<Content>>| {
        let Some(one) = one else { return Vec::new() };
        let namespace = one.namespace.clone().unwrap_or_default();
        let known =
            shown.get(&namespace, &one.name).and_then(|one| one.spec.virtual_machine_snapshot_name.clone());
        let name = known.map(|name| Ok(Request::from(ObjectRef::new(&name).within(&namespace))));
        name.into_iter().collect()
    });
    let of_machines =
        kept::heard(context.machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
            let is = |snapshot: &Snapshot| {
                one.is_none_or(|one| {
                    one.namespace == snapshot.namespace() && one.name == snapshot.spec.source.name
                })
            };
            requests_naming(&of_machines, one, |snapshot| is(snapshot) && is_open(snapshot))
        });
    let of_instances = context.view.heard(move |one: Option<&ObjectRef<VirtualMachineInstance>>| {
        let is = |snapshot: &Snapshot| {
            one.is_none_or(|one| {
                one.namespace == snapshot.namespace() && one.name == snapshot.spec.source.name
            })
        };
        requests_naming(&of_instances, one, |snapshot| is(snapshot) && is_open(snapshot))
    });
    stream::select(stream::select(own, of_contents), stream::select(of_machines, of_instances))
}

/// Whether a snapshot may hold its source, or is going to.
pub(super) fn is_open(snapshot: &Snapshot) -> bool {
    snapshot::progresses(snapshot) || snapshot.metadata.deletion_timestamp.is_some()
}

pub(super) async fn one(snapshot: &Snapshot, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.complete().await?;
    let (vm, vmi) = context.source(snapshot);
    let source = vm.as_deref().map(|vm| Source { vm, vmi: vmi.as_deref() });
    let content = context.snapshots.content_of(snapshot);
    let now = Timestamp::now();
    let obstacle = match source {
        Some(source) if wants_source(snapshot, source, now) => obstacle(context, snapshot, source).await?,
        Some(source) if content.is_none() => not_served(context, source),
        _ => None,
    };
    let mut seen = Observed {
        snapshot,
        source,
        obstacle: obstacle.as_deref(),
        content: content.as_deref(),
        error: None,
        now,
    };
    let plan = decide(&seen);
    let api: Api<Snapshot> =
        Api::namespaced(context.client.clone(), &snapshot.namespace().unwrap_or_default());
    if !plan.actions.is_empty() && !attempt::is_current(&api, snapshot).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let mut snapshot = snapshot.clone();
    let mut refused = None;
    for action in plan.actions.iter().filter(|action| **action != Action::RemoveFinalizer) {
        let done = Box::pin(act(context, &api, &mut snapshot, source, content.as_deref(), *action)).await;
        match done {
            Ok(()) => {}
            Err(Error::Refused(message)) => refused = Some(message),
            Err(Error::Write(error)) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
            Err(error) => return Err(error),
        }
    }
    seen.snapshot = &snapshot;
    seen.error = refused.as_deref();
    let status = if refused.is_some() { super::status::status(&seen) } else { plan.status };
    let wanted = Snapshot { status, ..snapshot.clone() };
    let written = match patch::status_subresource(&api, &snapshot, &wanted).await {
        Ok(written) => written.unwrap_or(snapshot),
        Err(error) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
        Err(error) => return Err(error.into()),
    };
    if plan.actions.contains(&Action::RemoveFinalizer) {
        let mut free = written.clone();
        free.finalizers_mut().retain(|one| one != FINALIZER);
        match patch::metadata(&api, &written, &free).await {
            Err(error) if !error.is_stale() => return Err(error.into()),
            _ => {}
        }
    }
    if let Some(message) = refused {
        return Err(Error::Refused(message));
    }
    Ok(plan.again_after.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// What keeps the source from being held.
async fn obstacle(
    context: &Context,
    snapshot: &Snapshot,
    source: Source<'_>,
) -> Result<Option<String>, Error> {
    let not_served = not_served(context, source);
    if not_served.is_some() {
        return Ok(not_served);
    }
    let claims = source::claims(source.vm, &context.storage);
    let mut pods = 0;
    if !source.is_online() && !claims.is_empty() {
        let api: Api<Pod> =
            Api::namespaced(context.client.clone(), &snapshot.namespace().unwrap_or_default());
        pods = source::users(source.vm, &context.storage, &api.list(&ListParams::default()).await?.items);
    }
    Ok(source::obstacle(source, &snapshot.name_any(), &context.storage, &context.data, pods))
}

/// That the cluster takes no snapshots of claims, or that it is not known yet how, if the source has any: a claim whose class is not
/// known would be left out.
fn not_served(context: &Context, source: Source<'_>) -> Option<String> {
    if source::claims(source.vm, &context.storage).is_empty() {
        return None;
    }
    let Storage { classes, profiles, snapshots, snapshot_classes, .. } = &context.storage;
    if [snapshots.served(), snapshot_classes.served()].contains(&Served::No) {
        return Some(NOT_SERVED.to_owned());
    }
    let all = [
        classes.served(),
        profiles.served(),
        snapshots.served(),
        snapshot_classes.served(),
        context.data.served(),
    ];
    all.contains(&Served::Unknown).then(|| NOT_KNOWN.to_owned())
}

async fn act(
    context: &Context,
    api: &Api<Snapshot>,
    snapshot: &mut Snapshot,
    source: Option<Source<'_>>,
    content: Option<&Content>,
    action: Action,
) -> Result<(), Error> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let machines: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    match (action, source) {
        (Action::AddFinalizer, _) => {
            let mut wanted = snapshot.clone();
            wanted.finalizers_mut().push(FINALIZER.to_owned());
            if let Some(written) = patch::metadata(api, snapshot, &wanted).await? {
                *snapshot = written;
            }
        }
        (Action::Lock, Some(source)) => {
            let mut vm = source.vm.clone();
            if vm.status.snapshot_in_progress.is_none() {
                let mut wanted = vm.clone();
                wanted.status.snapshot_in_progress = Some(snapshot.name_any());
                vm = patch::status_subresource(&machines, &vm, &wanted).await?.unwrap_or(wanted);
            }
            let mut wanted = vm.clone();
            if !wanted.finalizers().iter().any(|one| one == SOURCE_FINALIZER) {
                wanted.finalizers_mut().push(SOURCE_FINALIZER.to_owned());
                patch::metadata(&machines, &vm, &wanted).await?;
            }
        }
        (Action::Unlock, Some(source)) => {
            let mut wanted = source.vm.clone();
            wanted.finalizers_mut().retain(|one| one != SOURCE_FINALIZER);
            let vm = patch::metadata(&machines, source.vm, &wanted).await?.unwrap_or(wanted);
            let mut free = vm.clone();
            free.status.snapshot_in_progress = None;
            match patch::status_subresource(&machines, &vm, &free).await {
                // Without its last finalizer a machine that is being deleted is gone.
                Err(patch::Error::Gone(_)) => {}
                done => drop(done?),
            }
        }
        (Action::MakeContent, Some(source)) => {
            let contents: Api<Content> = Api::namespaced(context.client.clone(), &namespace);
            let made = stored::content(&context.client, snapshot, source, &context.storage).await;
            let made = made.map_err(|error| Error::Refused(format!("content not made: {}", error.told())))?;
            match contents.create(&PostParams::default(), &made).await {
                Ok(made) => {
                    let name = made.name_any();
                    tracing::info!(content = name, "content made");
                    let message = format!("Successfully created VirtualMachineSnapshotContent {name}");
                    context.recorder.normal(snapshot, event::CONTENT_CREATED, &message).await;
                }
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(Error::Refused(format!("content not made: {}", reason_of(&error)))),
            }
        }
        (Action::DeleteContent, _) => {
            let contents: Api<Content> = Api::namespaced(context.client.clone(), &namespace);
            let Some(content) = content else { return Ok(()) };
            let only = Preconditions { uid: content.uid(), resource_version: None };
            match contents.delete(&content.name_any(), &DeleteParams::default().preconditions(only)).await {
                Ok(_) => tracing::info!(content = content.name_any(), "content deleted"),
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        (Action::RemoveFinalizer, _) | (Action::Lock | Action::Unlock | Action::MakeContent, None) => {}
    }
    Ok(())
}
