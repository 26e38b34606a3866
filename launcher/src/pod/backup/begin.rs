//! From a Start to libvirt's job.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::backup::Options;
use podvirt_api::error::chain;
use podvirt_api::v1::BackupMode;
use podvirt_proto::domain::Backup;
use tracing::{info, warn};

use super::super::freeze::Guest as _;
use super::super::shared::Shared;
use super::describe::{Description, describe};
use super::follow::{Job, follow};
use super::place::Place;
use super::room::Room;
use super::{BackupError, checkpoint, pull};
use crate::domain::schema::Disk;
use crate::hypervisor::HypervisorError;

/// When a guest thaws by itself whose file systems were frozen for the begin of a job.
const FROZEN: Duration = Duration::from_secs(60);

/// Begins a backup that is noted, of the machine `machine`.
pub(super) async fn start(
    shared: &Arc<Shared>,
    machine: &str,
    mut backup: Backup,
    options: Options,
) -> Result<(), BackupError> {
    let pulls = match &options.mode {
        None | Some(BackupMode::Push) => false,
        Some(BackupMode::Pull) => true,
        Some(mode) => return Err(BackupError::Mode(mode.to_string())),
    };
    let disks = shared.described().await?.devices.disks;
    if !disks.iter().any(Disk::is_tracked) {
        return Err(BackupError::Untracked);
    }
    let place = options.target_path.as_deref().map(Path::new);
    let place = place.ok_or(BackupError::Missing("targetPath"))?;
    let volume = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let claim = shared.held.directory(volume);
    let claim = claim.ok_or_else(|| BackupError::NotHandedOver(volume.to_owned()))?;
    let whole = match &options.incremental {
        Some(since) => checkpoint::without_bitmap(shared, &disks, since).await?,
        None => Vec::new(),
    };
    checkpoint::forget_superseded(shared, &options).await;
    let socket = pulls.then(|| pull::socket(&shared.identity.uid)).transpose()?;
    let place = Place::make(&*claim, machine, &backup.checkpoint).map_err(|source| {
        BackupError::Directory(Path::new(volume).join(machine).join(&backup.checkpoint), source)
    })?;
    let directory = place.path();
    let description = describe(&disks, &options, &backup.checkpoint, &directory, &whole, socket.as_deref());
    let Description { job, checkpoint, told } = description?;
    let room = if pulls { room(shared, &disks, &directory).await } else { None };
    // Ahead of the job, so that an Abort finds it as soon as there is one.
    if let Some(socket) = socket {
        shared.pull.begin(&backup, socket);
    }
    let begun = begin(shared, options.skip_quiesce, job, checkpoint).await;
    let warning = begun.inspect_err(|_| {
        shared.pull.end();
        place.clear();
    })?;
    backup.message = warning.unwrap_or_default();
    backup.disks = told;
    info!(
        backup = backup.name,
        checkpoint = backup.checkpoint,
        since = options.incremental,
        pulls,
        "the backup has begun"
    );
    shared.facts.send_modify(|facts| facts.backup = Some(backup.clone()));
    tokio::spawn(follow(Arc::clone(shared), backup, Job { place, pulls, room }));
    Ok(())
}

/// The room that a backup in pull mode is to leave on its claim.
async fn room(shared: &Shared, disks: &[Disk], directory: &Path) -> Option<Room> {
    let aliases: Vec<_> =
        disks.iter().filter(|disk| disk.is_tracked()).map(|disk| disk.alias.name.clone()).collect();
    let directory = directory.to_owned();
    let known = shared.call(move |hypervisor| {
        let sizes = aliases.iter().map(|alias| hypervisor.capacity(alias));
        Ok(Room::new(&directory, sizes.sum::<Result<u64, _>>()?))
    });
    known.await.inspect_err(|error| warn!(%error, "the room that the backup takes is not known")).ok()?
}

/// Begins libvirt's job, with the guest's file systems frozen meanwhile. What is to be told of it all the same.
async fn begin(
    shared: &Arc<Shared>,
    skip_quiesce: bool,
    job: String,
    checkpoint: String,
) -> Result<Option<String>, HypervisorError> {
    // Where a user has frozen the guest before, that user thaws it.
    let freezes = !skip_quiesce && !shared.is_frozen();
    let mut warning = None;
    let mut frozen = false;
    if freezes {
        match shared.freezes.freeze(Arc::clone(shared), Some(FROZEN)).await {
            Ok(()) => frozen = true,
            Err(error) => {
                let error = chain(&error);
                warn!(error, "the guest's file systems are not frozen for the backup");
                warning = Some(format!("Failed freezing guest filesystem: {error}"));
            }
        }
    }
    let begun = shared.call(move |hypervisor| hypervisor.backups()?.begin(&job, &checkpoint)).await;
    if frozen && let Err(error) = shared.freezes.thaw(Arc::clone(shared)).await {
        let error = chain(&error);
        warn!(error, "the guest's file systems thaw by their time limit");
        warning = Some(format!("Failed to unfreeze filesystem after backup completion: {error}"));
    }
    begun.map(|()| warning)
}
