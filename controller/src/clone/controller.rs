//! The shell around [`super::decide()`]: watches, reads, writes.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::event;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineClone as Clone_, VirtualMachineClonePhase as Phase,
    VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;

use super::decide::{Action, Observed, decide};
use super::make;
use crate::attachments::reason_of;
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::failure::Error;
use crate::kept::{self, Kept, requests, requests_naming, requests_with_text};
use crate::metrics::Metrics;
use crate::snapshot::Snapshots;
use crate::storage::{Storage, is_bound};
use crate::vm::Machines;

/// When to look again for what a clone has made, unless its change comes before.
const AGAIN: Duration = Duration::from_secs(5);

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
    /// Claims.
    pub storage: Storage,
    /// Snapshots and contents.
    pub snapshots: Snapshots,
    /// Restores.
    pub restores: Kept<Restore>,
}

struct Shared {
    context: Context,
    attempts: Attempts,
}

impl Keeper for Shared {
    type Object = Clone_;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, clone: &Clone_) -> Result<Requeue, Error> {
        one(clone, &self.context).await
    }
}

type Request = ReconcileRequest<Clone_>;

/// Keeps all clones until it is dropped.
pub async fn run(context: Context) {
    let (clones, writer) = Kept::indexed(names);
    let client = context.client.clone();
    let queue = stream::select(kept::own(&clones), changes(&context, &clones));
    let attempts = Attempts::new("clone", context.metrics.clone());
    let shared = Arc::new(Shared { context, attempts });
    attempt::keep_all(shared, &client, (clones, writer), queue, "clones").await;
}

/// Text of the clones that wait for claims, of which only a look tells which. No name has a slash.
pub(super) const WAITS_FOR_CLAIMS: &str = "/waits-for-claims";

/// By which texts the cache is indexed: the names of what a clone is of and of what it makes.
pub(super) fn names(clone: &Clone_) -> Vec<String> {
    let mut names = vec![make::target_name(clone), make::snapshot_name(clone), make::restore_name(clone)];
    names.extend(clone.spec.source.as_ref().map(|source| source.name.clone()));
    if waits_for_claims(clone) {
        names.push(WAITS_FOR_CLAIMS.to_owned());
    }
    names
}

/// Whether a clone's machine is there, and waits for its claims.
fn waits_for_claims(clone: &Clone_) -> bool {
    clone.status.phase == Some(Phase::Succeeded) && is_open(clone)
}

/// Clones that something else has changed for.
fn changes(
    context: &Context,
    clones: &Kept<Clone_>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let all = || clones.clone();
    let cache = all();
    let machines = kept::heard(context.machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
        let names = |clone: &Clone_, name: &str| {
            let source = clone.spec.source.as_ref().is_some_and(|source| source.name == name);
            source || make::target_name(clone) == name
        };
        requests_naming(&cache, one, |clone| {
            one.is_none_or(|one| one.namespace == clone.namespace() && names(clone, &one.name))
        })
    });
    let cache = all();
    let snapshots =
        kept::heard(context.snapshots.snapshots.changes(), move |one: Option<&ObjectRef<Snapshot>>| {
            let names = |clone: &Clone_, name: &str| {
                let source = clone.spec.source.as_ref().is_some_and(|source| source.name == name);
                source || make::snapshot_name(clone) == name
            };
            requests_naming(&cache, one, |clone| {
                is_open(clone)
                    && one.is_none_or(|one| one.namespace == clone.namespace() && names(clone, &one.name))
            })
        });
    let cache = all();
    let restores = kept::heard(context.restores.changes(), move |one: Option<&ObjectRef<Restore>>| {
        let is = |clone: &Clone_, name: &str| make::restore_name(clone) == name;
        requests_naming(&cache, one, |clone| {
            is_open(clone) && one.is_none_or(|one| one.namespace == clone.namespace() && is(clone, &one.name))
        })
    });
    let cache = all();
    let claims = kept::heard(
        context.storage.claims.changes(),
        move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            let Some(one) = one else { return requests(cache.store(), waits_for_claims) };
            let namespace = one.namespace.as_deref().unwrap_or_default();
            requests_with_text(&cache, namespace, WAITS_FOR_CLAIMS, waits_for_claims)
        },
    );
    stream::select(stream::select(machines, snapshots), stream::select(restores, claims))
}

/// Whether a clone has something left to do.
fn is_open(clone: &Clone_) -> bool {
    let over = matches!(clone.status.phase, Some(Phase::Succeeded | Phase::Failed));
    !over || clone.status.phase == Some(Phase::Succeeded) && clone.status.restore_name.is_some()
}

async fn one(clone: &Clone_, context: &Context) -> Result<Requeue, Error> {
    context.machines.store().wait_until_ready().await?;
    context.snapshots.snapshots.store().wait_until_ready().await?;
    context.snapshots.contents.store().wait_until_ready().await?;
    context.restores.store().wait_until_ready().await?;
    context.storage.claims.store().wait_until_ready().await?;
    let namespace = clone.namespace().unwrap_or_default();
    let vm = |name: &str| context.machines.store().get(&ObjectRef::new(name).within(&namespace));
    let of = clone.spec.source.clone().unwrap_or_default();
    let source = if of.kind == "VirtualMachine" { vm(&of.name) } else { None };
    let named = clone.status.snapshot_name.clone();
    let named = if of.kind == "VirtualMachine" { named } else { Some(of.name.clone()) };
    let snapshot = named.and_then(|name| context.snapshots.snapshots.get(&namespace, &name));
    let content = snapshot.as_ref().and_then(|snapshot| context.snapshots.content_of(snapshot));
    let restore = clone.status.restore_name.as_ref().and_then(|name| context.restores.get(&namespace, name));
    let mut target = vm(&make::target_name(clone));
    if target.is_none() && clone.status.phase == Some(Phase::Succeeded) {
        // The clone goes with its machine: not because a cache lags.
        let machines: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
        target = machines.get_opt(&make::target_name(clone)).await?.map(Arc::new);
    }
    let made = |restore: &Restore| {
        let names = restore.status.restores.iter().map(|to| &to.persistent_volume_claim);
        names
            .into_iter()
            .all(|name| context.storage.claims.get(&namespace, name).is_some_and(|claim| is_bound(&claim)))
    };
    let plan = decide(&Observed {
        clone,
        source: source.as_deref(),
        snapshot: snapshot.as_deref(),
        content: content.as_deref(),
        restore: restore.as_deref(),
        target: target.as_deref(),
        bound: restore.as_deref().is_some_and(made),
        now: Timestamp::now(),
    });
    let api: Api<Clone_> = Api::namespaced(context.client.clone(), &namespace);
    if let Some(action) = &plan.action {
        if !attempt::is_current(&api, clone).await? {
            return Ok(Requeue::requeue(STALE_RETRY));
        }
        act(context, &api, clone, action).await?;
        if *action == Action::DeleteSelf {
            return Ok(Requeue::await_change());
        }
    }
    let wanted = Clone_ { status: plan.status, ..clone.clone() };
    match patch::status_subresource(&api, clone, &wanted).await {
        Ok(_) => {}
        Err(error) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
        Err(error) => return Err(error.into()),
    }
    for (reason, message) in &plan.notes {
        tracing::info!(reason, message);
        context.recorder.normal(clone, reason, message).await;
    }
    Ok(if plan.awaits { Requeue::requeue(AGAIN) } else { Requeue::await_change() })
}

async fn act(context: &Context, api: &Api<Clone_>, clone: &Clone_, action: &Action) -> Result<(), Error> {
    let namespace = clone.namespace().unwrap_or_default();
    let snapshots: Api<Snapshot> = Api::namespaced(context.client.clone(), &namespace);
    let restores: Api<Restore> = Api::namespaced(context.client.clone(), &namespace);
    let name = clone.name_any();
    match action {
        Action::Take(snapshot) => match snapshots.create(&PostParams::default(), snapshot).await {
            Ok(made) => {
                let message = format!("created snapshot {} for clone {name}", made.name_any());
                context.recorder.normal(clone, event::CLONE_SNAPSHOT_CREATED, &message).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => refused(context, clone, "snapshot", &snapshot.name_any(), &error).await,
        },
        Action::Restore(restore) => match restores.create(&PostParams::default(), restore).await {
            Ok(made) => {
                let message = format!("created restore {} for clone {name}", made.name_any());
                context.recorder.normal(clone, event::CLONE_RESTORE_CREATED, &message).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => refused(context, clone, "restore", &restore.name_any(), &error).await,
        },
        Action::CleanUp { restore, snapshot } => {
            gone(restores.delete(restore, &DeleteParams::default()).await)?;
            match snapshot {
                Some(snapshot) => gone(snapshots.delete(snapshot, &DeleteParams::default()).await),
                None => Ok(()),
            }
        }
        Action::DeleteSelf => {
            let only = Preconditions { uid: clone.uid(), resource_version: clone.resource_version() };
            gone(api.delete(&name, &DeleteParams::default().preconditions(only)).await)
        }
    }
}

fn gone<T>(deleted: Result<T, kube::Error>) -> Result<(), Error> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

async fn refused(
    context: &Context,
    clone: &Clone_,
    what: &str,
    name: &str,
    error: &kube::Error,
) -> Result<(), Error> {
    let message =
        format!("failed creating {what} {name} for clone {}: {}", clone.name_any(), reason_of(error));
    context.recorder.warning(clone, event::CLONE_RESTORE_FAILED, &message).await;
    Err(Error::Refused(message))
}
