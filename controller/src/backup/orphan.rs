//! Instances that are held by a backup that is not there: its finalizer was taken while it ran, and it was deleted.
//!
//! ```text
//!  backupStatus of a backup that is neither in the cache nor in the API server
//!    │ not complete, and begun      the launcher is asked to abort: the instance tells that it is complete
//!    │ its claim is in the instance the claim leaves
//!    v
//!  backupStatus leaves the instance
//! ```
//!
//! A backup has its claim in the instance before the instance tells of the backup: such a claim leaves as well once its backup is gone.
//!
//! Nothing else ends such a hold before the machine's next start: later backups of the machine wait, and so do its migrations.

use std::time::Duration;

use kube::{Api, ResourceExt};
use podvirt_api::backup::{Command, Options, backup_of};
use podvirt_api::error::chain;
use podvirt_api::v1::{
    VirtualMachineBackup as Backup, VirtualMachineInstance,
    VirtualMachineInstanceBackupStatus as BackupStatus,
};

use super::controller::Context;
use super::{act, instance, tracker};
use crate::failure::Error;
use crate::kept::Kept;

/// Time between two looks at the caches.
const ORPHAN_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// What is done next for an instance that no backup holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Have the launcher end the backup.
    Abort(Box<Options>),
    /// Take the claim of the backup of this name out of the instance.
    Detach(String),
    /// Let go of the instance.
    Release,
}

/// Decides on what the instance tells of the backup that is gone.
pub(super) fn step(vmi: &VirtualMachineInstance, status: &BackupStatus) -> Step {
    let name = status.backup_name.clone().unwrap_or_default();
    if instance::has_begun(status) && status.completed != Some(true) {
        return Step::Abort(Box::new(Options {
            backup_name: name,
            cmd: Command::Abort,
            backup_start_time: status.start_timestamp.clone().flatten(),
            ..Options::default()
        }));
    }
    if instance::has_backup_target(vmi, &name) { Step::Detach(name) } else { Step::Release }
}

/// Releases such instances until it is dropped.
pub(super) async fn release_forever(context: Context, backups: Kept<Backup>) {
    if context.complete().await.is_err() || backups.store().wait_until_ready().await.is_err() {
        return;
    }
    loop {
        tokio::time::sleep(ORPHAN_POLL_INTERVAL).await;
        for vmi in context.view.machines() {
            if let Err(error) = release(&context, &backups, &vmi).await {
                tracing::warn!(
                    namespace = vmi.namespace(),
                    name = vmi.name_any(),
                    error = chain(&error),
                    "the instance is not released of a backup that is gone"
                );
            }
        }
    }
}

/// Takes the next step for an instance, if a backup holds it that is not there.
pub(super) async fn release(
    context: &Context,
    backups: &Kept<Backup>,
    vmi: &VirtualMachineInstance,
) -> Result<(), Error> {
    if !instance::runs(vmi) {
        return Ok(());
    }
    let step = match instance::told(vmi) {
        Some(status) => {
            let Some(name) = status.backup_name.as_deref() else { return Ok(()) };
            if is_there(context, backups, vmi, name, |backup| instance::is_of(status, backup)).await? {
                return Ok(());
            }
            step(vmi, status)
        }
        None => match orphaned_target(context, backups, vmi).await? {
            Some(name) => Step::Detach(name),
            None => return Ok(()),
        },
    };
    let (namespace, name) = (vmi.namespace(), vmi.name_any());
    tracing::info!(namespace, name, ?step, "held by a backup that is gone");
    let done = match &step {
        Step::Abort(options) => act::send_options(context, vmi, options).await,
        Step::Detach(name) => act::change(context, vmi, instance::detach(vmi, name)).await,
        Step::Release => act::change(context, vmi, instance::release(vmi)).await,
    };
    match done {
        // What was seen is not so any more: the next look sees what is.
        Err(error) if error.is_stale() => Ok(()),
        done => done,
    }
}

/// Whether the backup of this name is there, and `is` tells that it is the one that is meant.
async fn is_there(
    context: &Context,
    backups: &Kept<Backup>,
    vmi: &VirtualMachineInstance,
    name: &str,
    is: impl Fn(&Backup) -> bool,
) -> Result<bool, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    if backups.get(&namespace, name).is_some_and(|backup| is(&backup)) {
        return Ok(true);
    }
    // The cache may lag behind a backup that has just been made.
    let api: Api<Backup> = Api::namespaced(context.client.clone(), &namespace);
    Ok(api.get_opt(name).await?.is_some_and(|backup| is(&backup)))
}

/// The first backup that is gone and has its claim in the instance, which tells of no backup.
async fn orphaned_target(
    context: &Context,
    backups: &Kept<Backup>,
    vmi: &VirtualMachineInstance,
) -> Result<Option<String>, Error> {
    let machine = vmi.name_any();
    // A backup of the name may be another machine's by now.
    let is_own = |backup: &Backup| tracker::names_tracker(backup) || backup.spec.source.name == machine;
    for name in vmi.spec.utility_volumes.iter().filter_map(backup_of) {
        if !is_there(context, backups, vmi, name, is_own).await? {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}
