//! The shell around [`super::content::decide()`]: watches, reads, writes.

use std::sync::Arc;

use futures::{Stream, stream};
use jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::names::{annotation, event};
use podvirt_api::snapshot::{CONTENT_FINALIZER, FREEZE_LIMIT, content_name};
use podvirt_api::v1::{VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content};
use podvirt_daemon::patch;

use super::agent;
use super::content::{AGAIN, Observed, Plan, Taken, decide, name_of, volume_snapshot};
use super::controller::Context;
use super::source::Source;
use super::status::told;
use super::view::Snapshots;
use crate::attachments::reason_of;
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::failure::Error;
use crate::kept::{self, requests_naming};
use crate::storage::snapshot_class;

/// What the reconciliations share.
pub(super) struct Shared {
    context: Context,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("snapshotcontent", context.metrics.clone());
        Self { context, attempts }
    }
}

impl Keeper for Shared {
    type Object = Content;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, content: &Content) -> Result<Requeue, Error> {
        one(content, self).await
    }
}

type Request = ReconcileRequest<Content>;

/// Keeps all contents until it is dropped, and fills their cache.
pub(super) async fn run(context: Context, writer: Writer<Content>) {
    let (queue, client) = (queue(&context), context.client.clone());
    let kept = (context.snapshots.contents.clone(), writer);
    attempt::keep_all(Arc::new(Shared::new(context)), &client, kept, queue, "contents").await;
}

/// Contents that something has changed for.
fn queue(context: &Context) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let Snapshots { snapshots, contents } = &context.snapshots;
    let of_volumes = contents.clone();
    let own = kept::own(contents);
    let shown = snapshots.clone();
    let of_snapshots = kept::heard(snapshots.changes(), move |one: Option<&ObjectRef<Snapshot>>| {
        let Some(one) = one else { return Vec::new() };
        let namespace = one.namespace.clone().unwrap_or_default();
        let known = shown.get(&namespace, &one.name).map(|one| content_name(&one));
        let name = known.map(|name| Ok(Request::from(ObjectRef::new(&name).within(&namespace))));
        name.into_iter().collect()
    });
    let of_volumes =
        kept::heard(context.storage.snapshots.changes(), move |one: Option<&ObjectRef<VolumeSnapshot>>| {
            let has = |content: &Content, one: &ObjectRef<VolumeSnapshot>| {
                let mut backups = content.spec.volume_backups.iter();
                content.namespace() == one.namespace
                    && backups.any(|backup| name_of(backup) == Some(&one.name))
            };
            requests_naming(&of_volumes, one, |content| one.is_none_or(|one| has(content, one)))
        });
    stream::select(own, stream::select(of_snapshots, of_volumes))
}

/// The snapshot of a content: one of the same name that was made later has another content.
fn snapshot_of(content: &Content, context: &Context) -> Option<Arc<Snapshot>> {
    let name = content.spec.virtual_machine_snapshot_name.as_deref()?;
    let found = context.snapshots.snapshots.get(&content.namespace().unwrap_or_default(), name)?;
    (content_name(&found) == content.name_any()).then_some(found)
}

fn volumes_of(content: &Content, context: &Context) -> Api<VolumeSnapshot> {
    Api::namespaced(context.client.clone(), &content.namespace().unwrap_or_default())
}

pub(super) async fn one(content: &Content, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.complete().await?;
    let namespace = content.namespace().unwrap_or_default();
    let snapshot = snapshot_of(content, context);
    let (vm, vmi) = snapshot.as_ref().map(|one| context.source(one)).unwrap_or_default();
    let source = vm.as_deref().map(|vm| Source { vm, vmi: vmi.as_deref() });
    let names = content.spec.volume_backups.iter().filter_map(name_of);
    let mut taken: Taken = names
        .filter_map(|name| Some((name.to_owned(), context.storage.snapshots.get(&namespace, name)?)))
        .collect();
    let now = Timestamp::now();
    let plan = {
        let seen = Observed { content, snapshot: snapshot.as_deref(), source, taken: &taken, now };
        let plan = decide(&seen);
        if plan.take.is_empty() && plan.missing.is_empty() {
            plan
        } else {
            // The cache may lag: what is not in it is asked for before the guest is frozen, or people are told that it is gone.
            for backup in &content.spec.volume_backups {
                let Some(name) = name_of(backup).filter(|name| !taken.contains_key(*name)) else { continue };
                if let Some(found) = volumes_of(content, context).get_opt(name).await? {
                    taken.insert(name.to_owned(), Arc::new(found));
                }
            }
            decide(&Observed { content, snapshot: snapshot.as_deref(), source, taken: &taken, now })
        }
    };
    let api: Api<Content> = Api::namespaced(context.client.clone(), &namespace);
    carry_out(context, &api, content, snapshot.as_deref(), source, &taken, plan, now).await
}

#[allow(clippy::too_many_arguments, reason = "what a pass has seen")]
async fn carry_out(
    context: &Context,
    api: &Api<Content>,
    content: &Content,
    snapshot: Option<&Snapshot>,
    source: Option<Source<'_>>,
    taken: &Taken,
    mut plan: Plan,
    now: Timestamp,
) -> Result<Requeue, Error> {
    let acts = plan.lets_go || plan.thaw.is_some() || !plan.take.is_empty();
    if acts && !attempt::is_current(api, content).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let mut again = plan.again_after;
    if let (Some(must), Some(source)) = (plan.thaw, source) {
        match agent::thaw(&context.client, source.vm).await {
            Ok(()) => tracing::info!(vm = source.vm.name_any(), "the guest's file systems are thawed"),
            Err(error) if !must => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the guest's file systems are not thawed"
                );
            }
            Err(error) if reason_of(&error).contains(FREEZE_LIMIT) => {
                if let Some(status) = &mut plan.status {
                    status.creation_time = None;
                    status.error = Some(told(&reason_of(&error), now));
                }
                again = Some(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut content = content.clone();
    if plan.lets_go {
        let mut free = content.clone();
        free.finalizers_mut().retain(|one| one != CONTENT_FINALIZER);
        match patch::metadata(api, &content, &free).await {
            Ok(written) => content = written.unwrap_or(free),
            Err(error) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
            Err(error) => return Err(error.into()),
        }
    }
    if !plan.take.is_empty()
        && let (Some(snapshot), Some(source)) = (snapshot, source)
    {
        let mut status = content.status.clone();
        match take(context, &content, snapshot, source, taken, &plan).await {
            Ok(()) => {
                note(api, &content, None).await?;
                return Ok(Requeue::await_change());
            }
            Err(Untaken::NotMade(message)) => {
                if content.annotations().get(annotation::NOT_MADE) != Some(&message) {
                    context.recorder.warning(&content, event::FAILED_CREATE, &message).await;
                    context.recorder.warning(snapshot, event::FAILED_CREATE, &message).await;
                    note(api, &content, Some(&message)).await?;
                }
                return Ok(Requeue::requeue(AGAIN));
            }
            Err(Untaken::Impossible(message)) => {
                status.ready_to_use = Some(false);
                let known =
                    status.error.as_ref().and_then(|known| known.message.as_deref()) == Some(&message);
                if !known {
                    context.recorder.warning(&content, event::FAILED_CREATE, &message).await;
                    status.error = Some(told(&message, now));
                }
            }
        }
        plan.status = Some(status);
        again = Some(AGAIN);
    }
    for name in &plan.missing {
        let known = content.status.error.as_ref().and_then(|error| error.message.as_deref());
        if !known.is_some_and(|known| known.contains(name)) {
            let message = format!("VolumeSnapshot {name} no longer exists");
            context.recorder.warning(&content, event::VOLUME_SNAPSHOT_MISSING, &message).await;
        }
    }
    if let Some(status) = plan.status {
        let wanted = Content { status, ..content.clone() };
        match patch::status_subresource(api, &content, &wanted).await {
            Err(error) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
            done => drop(done?),
        }
    }
    Ok(again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// Why a set of VolumeSnapshots is not taken.
enum Untaken {
    /// The cluster's storage has no classes for it, or the guest is not frozen: the content is in error.
    Impossible(String),
    /// The API server refuses one at present: as the content's state this is nothing more than that it goes on.
    NotMade(String),
}

impl From<String> for Untaken {
    fn from(message: String) -> Self {
        Self::Impossible(message)
    }
}

/// Notes on the content why its VolumeSnapshots are not made, or that they are.
async fn note(api: &Api<Content>, content: &Content, why: Option<&str>) -> Result<(), Error> {
    let mut noted = content.clone();
    match why {
        Some(why) => drop(noted.annotations_mut().insert(annotation::NOT_MADE.to_owned(), why.to_owned())),
        None => drop(noted.annotations_mut().remove(annotation::NOT_MADE)),
    }
    match patch::metadata(api, content, &noted).await {
        Err(error) if !error.is_stale() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Freezes the guest where it can be, and has all VolumeSnapshots taken. Why not, if that is refused: then the guest is thawed,
/// and none is left, so that all are of one moment at the next attempt.
async fn take(
    context: &Context,
    content: &Content,
    snapshot: &Snapshot,
    source: Source<'_>,
    taken: &Taken,
    plan: &Plan,
) -> Result<(), Untaken> {
    let client = &context.client;
    let mut classes = Vec::new();
    for backup in plan.take.iter().filter_map(|place| content.spec.volume_backups.get(*place)) {
        let spec = backup.persistent_volume_claim.spec.as_ref();
        let class = spec.and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        let found = snapshot_class(class, &context.storage).map_err(|error| error.to_string())?;
        let none = || {
            format!("volume {}: no VolumeSnapshotClass for the storage class {class:?}", backup.volume_name)
        };
        classes.push((backup, found.ok_or_else(none)?));
    }
    if plan.freeze {
        let frozen = agent::freeze(client, source.vm, snapshot).await;
        frozen.map_err(|error| format!("the guest's file systems are not frozen: {}", reason_of(&error)))?;
        tracing::info!(vm = source.vm.name_any(), "the guest's file systems are frozen");
    }
    let kind = ApiResource::erase::<VolumeSnapshot>(&());
    let namespace = content.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
    for (backup, class) in classes {
        let name = name_of(backup).unwrap_or_default();
        match api.create(&PostParams::default(), &volume_snapshot(content, backup, &class)).await {
            Ok(_) => {
                tracing::info!(volume_snapshot = name, "VolumeSnapshot made");
                let message = format!("Successfully created VolumeSnapshot {name}");
                context.recorder.normal(content, event::VOLUME_SNAPSHOT_CREATED, &message).await;
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                let message = format!("VolumeSnapshot {name} not made: {}", reason_of(&error));
                give_up(context, &api, content, source, taken, plan).await;
                return Err(Untaken::NotMade(message));
            }
        }
    }
    Ok(())
}

/// Thaws the guest and deletes what was taken of the set.
async fn give_up(
    context: &Context,
    api: &Api<DynamicObject>,
    content: &Content,
    source: Source<'_>,
    taken: &Taken,
    plan: &Plan,
) {
    if plan.freeze
        && let Err(error) = agent::thaw(&context.client, source.vm).await
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "the guest's file systems are not thawed");
    }
    let asked =
        plan.take.iter().filter_map(|place| content.spec.volume_backups.get(*place)).filter_map(name_of);
    for name in asked.chain(taken.keys().map(String::as_str)) {
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => {
                tracing::warn!(name, error = &error as &dyn std::error::Error, "VolumeSnapshot not deleted");
            }
        }
    }
}
