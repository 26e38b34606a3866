//! What the shell of backups does, as a plan says.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use podvirt_api::backup::{FINALIZER, Options};
use podvirt_api::v1::{
    BackupCheckpoint, VirtualMachineBackup as Backup, VirtualMachineBackupTracker as Tracker,
    VirtualMachineBackupTrackerStatus as TrackerStatus, VirtualMachineInstance,
};
use podvirt_daemon::patch;
use serde_json::{Value, json};

use super::controller::Context;
use super::decide::Observed;
use super::plan::Action;
use super::{instance, trackers};
use crate::attachments::reason_of;
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
        (Action::Hold, Some(vmi)) => change(context, vmi, instance::hold(vmi, backup)).await?,
        (Action::Detach, Some(vmi)) => change(context, vmi, instance::detach(vmi, backup)).await?,
        (Action::Release, Some(vmi)) => change(context, vmi, instance::release(vmi)).await?,
        (Action::Start(options) | Action::Abort(options), Some(vmi)) => ask(context, vmi, options).await?,
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
async fn change(
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
async fn ask(context: &Context, vmi: &VirtualMachineInstance, options: &Options) -> Result<(), Error> {
    let at = path(vmi, "virtualmachineinstances", "backup");
    tracing::info!(cmd = ?options.cmd, incremental = options.incremental, "the machine is asked");
    match put(&context.client, at, &json!(options)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Refused(reason_of(&error))),
    }
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
