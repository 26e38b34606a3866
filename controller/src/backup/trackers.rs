//! The shell around [`super::tracker::decide()`]: watches, reads, writes.

use std::sync::Arc;

use futures::{Stream, stream};
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use podvirt_api::names::{annotation, event};
use podvirt_api::v1::{
    BackupCheckpoint, VirtualMachine, VirtualMachineBackupTracker as Tracker,
    VirtualMachineBackupTrackerStatus as Status, VirtualMachineInstance,
};
use podvirt_daemon::patch;
use serde_json::json;

use super::controller::Context;
use super::tracker::{Action, Observed, decide, place};
use crate::attachments::reason_of;
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::failure::Error;
use crate::kept::{self, Kept, requests_naming};
use crate::snapshot::{path, put};

/// The status code by which a machine tells that it has not the changes since a checkpoint.
const CHECKPOINT_INVALID: u16 = 422;

pub(super) struct Shared {
    context: Context,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("backuptracker", context.metrics.clone());
        Self { context, attempts }
    }
}

impl Keeper for Shared {
    type Object = Tracker;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, tracker: &Tracker) -> Result<Requeue, Error> {
        match Box::pin(one(tracker, &self.context)).await {
            Err(error) if error.is_stale() => Ok(Requeue::requeue(STALE_RETRY)),
            done => done,
        }
    }
}

type Request = ReconcileRequest<Tracker>;

/// By which texts the cache is indexed: the machine of a tracker.
pub(super) fn names(tracker: &Tracker) -> Vec<String> {
    vec![tracker.spec.source.name.clone()]
}

/// Keeps all trackers until it is dropped, and fills their cache.
pub(super) async fn run(context: Context, kept: (Kept<Tracker>, Writer<Tracker>)) {
    let queue = stream::select(kept::own(&kept.0), changes(&context, &kept.0));
    let client = context.client.clone();
    let shared = Arc::new(Shared::new(context));
    attempt::keep_all(shared, &client, kept, queue, "backup trackers").await;
}

/// Trackers that something else has changed for.
fn changes(
    context: &Context,
    trackers: &Kept<Tracker>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let [of_machines, of_instances] = [(); 2].map(|()| trackers.clone());
    let is_of = |tracker: &Tracker, namespace: Option<&String>, name: &str| {
        tracker.metadata.namespace.as_ref() == namespace && tracker.spec.source.name == name
    };
    let machines = kept::heard(context.machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
        requests_naming(&of_machines, one, |tracker| {
            one.is_none_or(|one| is_of(tracker, one.namespace.as_ref(), &one.name))
        })
    });
    let instances = context.view.heard(move |one: Option<&ObjectRef<VirtualMachineInstance>>| {
        requests_naming(&of_instances, one, |tracker| {
            one.is_none_or(|one| is_of(tracker, one.namespace.as_ref(), &one.name))
        })
    });
    stream::select(machines, instances)
}

pub(super) async fn one(tracker: &Tracker, context: &Context) -> Result<Requeue, Error> {
    context.complete().await?;
    let namespace = tracker.namespace().unwrap_or_default();
    let name = &tracker.spec.source.name;
    let vm = context.machines.store().get(&ObjectRef::new(name).within(&namespace));
    let vmi = context.view.machine(&namespace, name);
    let seen = Observed { tracker, vm: vm.as_deref(), vmi: vmi.as_deref() };
    let Some(action) = decide(&seen) else { return Ok(Requeue::await_change()) };
    let api: Api<Tracker> = Api::namespaced(context.client.clone(), &namespace);
    if !attempt::is_current(&api, tracker).await? {
        return Err(Error::Stale);
    }
    match (action, &vmi) {
        (Action::Forget(checkpoint), _) => {
            write(&api, tracker, Status::default()).await?;
            let message = format!(
                "checkpoint {checkpoint} is removed, since changed blocks of the machine {name} are not tracked any more; \
                 the next backup is a full one"
            );
            tracing::info!(checkpoint, "checkpoint removed");
            context.recorder.warning(tracker, event::CHECKPOINT_REMOVED, &message).await;
        }
        (Action::Mark, _) => {
            write(&api, tracker, marked(tracker, Some(true))).await?;
        }
        (Action::Unmark, _) => {
            write(&api, tracker, marked(tracker, None)).await?;
        }
        (Action::Redefine(checkpoint), Some(vmi)) => {
            redefine(context, &api, tracker, vmi, &checkpoint).await?;
        }
        (Action::Redefine(_), None) => {}
    }
    Ok(Requeue::await_change())
}

fn marked(tracker: &Tracker, is: Option<bool>) -> Status {
    Status { checkpoint_redefinition_required: is, ..tracker.status.clone() }
}

async fn write(api: &Api<Tracker>, tracker: &Tracker, status: Status) -> Result<(), Error> {
    let wanted = Tracker { status, ..tracker.clone() };
    Ok(patch::status_subresource(api, tracker, &wanted).await.map(drop)?)
}

async fn redefine(
    context: &Context,
    api: &Api<Tracker>,
    tracker: &Tracker,
    vmi: &VirtualMachineInstance,
    checkpoint: &BackupCheckpoint,
) -> Result<(), Error> {
    let name = checkpoint.name.as_deref().unwrap_or_default();
    let at = path(vmi, "virtualmachineinstances", "redefine-checkpoint");
    match put(&context.client, at, &json!(checkpoint)).await {
        Ok(_) => {
            tracing::info!(checkpoint = name, "checkpoint redefined");
            let known = remember(api, tracker, vmi).await?;
            write(api, &known, marked(&known, None)).await
        }
        Err(kube::Error::Api(status)) if status.code == CHECKPOINT_INVALID => {
            write(api, tracker, Status::default()).await?;
            let message = format!(
                "checkpoint {name} cannot be redefined, and is removed; the next backup is a full one: {}",
                status.message
            );
            tracing::warn!(checkpoint = name, why = status.message, "checkpoint removed");
            context.recorder.warning(tracker, event::CHECKPOINT_REDEFINITION_FAILED, &message).await;
            Ok(())
        }
        Err(error) => {
            let why = reason_of(&error);
            Err(Error::Refused(format!("checkpoint {name} is not redefined: {why}")))
        }
    }
}

/// Writes into a tracker that the instance's libvirt knows its checkpoint; the tracker as it is then.
pub(super) async fn remember(
    api: &Api<Tracker>,
    tracker: &Tracker,
    vmi: &VirtualMachineInstance,
) -> Result<Tracker, Error> {
    let mut wanted = tracker.clone();
    wanted.annotations_mut().insert(annotation::DEFINED_FOR.to_owned(), place(vmi));
    let written = patch::metadata(api, tracker, &wanted).await?;
    Ok(written.unwrap_or_else(|| tracker.clone()))
}
