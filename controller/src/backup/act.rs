//! What the shell of backups does, as a plan says.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::backup::{FINALIZER, Key, Options, expires, tunnel_identity};
use podvirt_api::v1::{
    BackupCheckpoint, VirtualMachineBackup as Backup, VirtualMachineBackupTracker as Tracker,
    VirtualMachineBackupTrackerStatus as TrackerStatus, VirtualMachineExport, VirtualMachineInstance,
};
use podvirt_daemon::patch;
use serde_json::{Value, json};

use super::controller::Context;
use super::decide::Observed;
use super::plan::Action;
use super::{instance, tracker, trackers};
use crate::attachments::reason_of;
use crate::export::{self, Identity};
use crate::failure::{Error, is_lost};
use crate::snapshot::{path, put};

/// Carries out an action; the backup as it is then, if it has changed.
///
/// # Errors
///
/// What was seen is not so any more, or a daemon or the API server refuses.
pub(super) async fn act(
    context: &Context,
    api: &Api<Backup>,
    seen: &Observed<'_>,
    action: &Action,
) -> Result<Option<Backup>, Error> {
    let backup = seen.backup;
    match (action, seen.vmi) {
        (Action::AddFinalizer, _) => {
            let mut wanted = backup.clone();
            wanted.finalizers_mut().push(FINALIZER.to_owned());
            return Ok(patch::metadata(api, backup, &wanted).await?);
        }
        (Action::RemoveFinalizer, _) => {
            let mut wanted = backup.clone();
            wanted.finalizers_mut().retain(|one| one != FINALIZER);
            return Ok(patch::metadata(api, backup, &wanted).await?);
        }
        (Action::Attach, Some(vmi)) => change(context, vmi, instance::attach(vmi, backup)).await?,
        (Action::Hold, Some(vmi)) => change(context, vmi, instance::hold(vmi, backup)).await?,
        (Action::Detach, Some(vmi)) => {
            change(context, vmi, instance::detach(vmi, &backup.name_any())).await?;
        }
        (Action::Release, Some(vmi)) => change(context, vmi, instance::release(vmi)).await?,
        (Action::Start(options), Some(vmi)) => {
            let options = Options { keep_checkpoints: Some(kept(context, vmi).await?), ..options.clone() };
            send_options(context, vmi, &options).await?;
        }
        (Action::Abort(options), Some(vmi)) => send_options(context, vmi, options).await?,
        (Action::MakeExport(wanted), _) => {
            // What another pass has made is found by the next one.
            export::make(&context.client, wanted.as_ref(), "VirtualMachineExport").await?;
        }
        (Action::Export(options), Some(vmi)) => {
            let options = identified(context, backup, options, seen.now)?;
            send_options(context, vmi, &options).await?;
        }
        (Action::DeleteExport, _) => {
            if let Some(there) = seen.export {
                delete(context, there).await?;
            }
        }
        (Action::Remember(checkpoint), Some(vmi)) => {
            if let Some(tracker) = seen.tracker {
                remember(context, tracker, vmi, checkpoint).await?;
            }
        }
        (_, None) => {}
    }
    Ok(None)
}

/// Sends a JSON patch of an instance.
pub(super) async fn change(
    context: &Context,
    vmi: &VirtualMachineInstance,
    operations: Vec<Value>,
) -> Result<(), Error> {
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(context.client.clone(), &vmi.namespace().unwrap_or_default());
    let change: json_patch::Patch =
        serde_json::from_value(operations.into()).map_err(kube::Error::SerdeError)?;
    match api.patch(&vmi.name_any(), &PatchParams::default(), &Patch::Json::<()>(change)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if is_lost(&status) => Err(Error::Stale),
        Err(error) => Err(error.into()),
    }
}

/// Has the machine begin or end.
pub(super) async fn send_options(
    context: &Context,
    vmi: &VirtualMachineInstance,
    options: &Options,
) -> Result<(), Error> {
    let at = path(vmi, "virtualmachineinstances", "backup");
    tracing::info!(cmd = ?options.cmd, incremental = options.incremental, "the machine is asked");
    match put(&context.client, at, &json!(options)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Refused(reason_of(&error))),
    }
}

/// The checkpoints that trackers of the machine go on from. They are read anew: a checkpoint that the cache has not seen yet would be
/// removed from the machine's disks.
async fn kept(context: &Context, vmi: &VirtualMachineInstance) -> Result<BTreeSet<String>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let api: Api<Tracker> = Api::namespaced(context.client.clone(), &namespace);
    let all = api.list(&ListParams::default()).await?;
    let own = all.items.iter().filter(|tracker| tracker.spec.source.name == vmi.name_any());
    Ok(own.filter_map(|tracker| tracker::checkpoint(tracker)?.name.clone()).collect())
}

/// What the machine is told of the export, with a key and a certificate by which the exporter knows it until the backup ends.
fn identified(
    context: &Context,
    backup: &Backup,
    options: &Options,
    now: Timestamp,
) -> Result<Options, Error> {
    let end = expires(backup).unwrap_or(now);
    let life = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    let name = tunnel_identity(&backup.uid().unwrap_or_default());
    let Identity { pair, ca } = context.exports.identify(&name, now, life)?;
    Ok(Options {
        backup_key: Some(Key(pair.key)),
        backup_cert: Some(pair.certificate),
        ca_cert: Some(ca.trim().to_owned()),
        ..options.clone()
    })
}

/// Deletes the very export that was seen.
async fn delete(context: &Context, there: &VirtualMachineExport) -> Result<(), Error> {
    let namespace = there.namespace().unwrap_or_default();
    let api: Api<VirtualMachineExport> = Api::namespaced(context.client.clone(), &namespace);
    let only = Preconditions { uid: there.uid(), resource_version: None };
    tracing::info!("the export is deleted");
    export::gone(api.delete(&there.name_any(), &DeleteParams::default().preconditions(only)).await)
}

/// Writes a checkpoint that a backup has just made into its tracker. That libvirt knows the checkpoint is written first: it must not
/// be redefined.
async fn remember(
    context: &Context,
    tracker: &Tracker,
    vmi: &VirtualMachineInstance,
    checkpoint: &BackupCheckpoint,
) -> Result<(), Error> {
    let api: Api<Tracker> = Api::namespaced(context.client.clone(), &tracker.namespace().unwrap_or_default());
    let known = trackers::remember(&api, tracker, vmi).await?;
    let status =
        TrackerStatus { latest_checkpoint: Some(checkpoint.clone()), checkpoint_redefinition_required: None };
    let wanted = Tracker { status, ..known.clone() };
    patch::status_subresource(&api, &known, &wanted).await?;
    tracing::info!(tracker = tracker.name_any(), checkpoint = checkpoint.name, "checkpoint written");
    Ok(())
}
