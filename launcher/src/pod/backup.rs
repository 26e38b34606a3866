//! Backups of the running machine's disks ([`podvirt_api::backup`]).
//!
//! # Theory of operation
//!
//! ```text
//!  Start ──> admitted ──> file systems frozen ──> libvirt's job begins ──> thawed ──> the job runs ──> complete | failed | aborted
//!              │             │                       │
//!              refused       told as a warning       refused: what was made is removed
//! ```
//!
//! The copies go into the directory of a claim that another pod holds; virt-handler has brought its descriptor as it brings disks
//! ([`super::held`]). In it `<machine>/<checkpoint>/` is made, with a qcow2 file for each disk. The guest stands still for the begin of
//! the job alone, so that all copies are of one moment. A job that fails takes its files along.
//!
//! A Start is not carried out twice: one for the backup that runs, or was the last one, is answered alike. A backup is noted before
//! anything is done for it, so that of two at the same time one is refused. The report tells of the backup's disks from its begin on,
//! and of its end until the next one.
//!
//! An incremental backup copies what has changed since a checkpoint. A disk that has no bitmap of that name, because it came later,
//! is copied whole. libvirt knows a checkpoint until its domain ends; virt-controller has it made known again at the next start
//! ([`redefine`]). Where that has not happened, it is done here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::backup::{self, Command, Options};
use podvirt_api::names::path;
use podvirt_api::v1::{BackupCheckpoint, BackupMode};
use podvirt_api::validate::is_dns_subdomain;
use podvirt_proto::domain::{Backup, BackupDisk};
use podvirt_proto::migration::Migration;
use tokio::time::sleep;
use tracing::{info, warn};

use super::freeze::Guest as _;
use super::report::{millis, now};
use super::shared::Shared;
use crate::domain::name_of;
use crate::domain::schema::Domain;
use crate::domain::schema::backup as xml;
use crate::domain::schema::{Disk, TypeOnly};
use crate::hypervisor::{BackupEnd, HypervisorError};

/// Between two looks at the job.
const LOOK: Duration = Duration::from_millis(300);
/// Looks that may fail, one after the other, before the backup is given up for lost: libvirt may be starting again.
const PATIENCE: u32 = 100;
/// When a guest thaws by itself whose file systems were frozen for the begin of a job.
const FROZEN: Duration = Duration::from_secs(60);

/// Carries out what the subresource `backup` asks for, of the machine `machine`.
///
/// # Errors
///
/// Why it is refused.
pub(super) async fn command(shared: &Arc<Shared>, machine: &str, options: Options) -> Result<(), String> {
    let asked_at = options.backup_start_time.as_ref().ok_or("backupStartTime: required")?.0;
    // It becomes a part of paths.
    if !is_dns_subdomain(&options.backup_name) {
        return Err(format!("backupName: '{}' is no object's name", options.backup_name));
    }
    let wanted = Backup {
        name: options.backup_name.clone(),
        asked_at_ms: u64::try_from(asked_at.as_millisecond()).unwrap_or_default(),
        checkpoint: backup::checkpoint(&options.backup_name, asked_at),
        ..Backup::default()
    };
    match options.cmd {
        Command::Start => {
            if !reserve(shared, &wanted)? {
                return Ok(());
            }
            let started = Box::pin(start(shared, machine, wanted, options)).await;
            if started.is_err() {
                shared.facts.send_modify(|facts| facts.backup = None);
            }
            started
        }
        Command::Abort => {
            let known = shared.facts.borrow().backup.clone();
            if !known.is_some_and(|known| is_same(&known, &wanted) && is_running(&known)) {
                return Err(format!("backup {} is not under way", wanted.name));
            }
            let aborted = shared.call(|hypervisor| hypervisor.backups()?.abort()).await;
            aborted.map_err(|error| error.to_string())
        }
    }
}

/// Notes that a backup is about to begin, so that no other one begins and the machine does not leave. Whether it was not noted before.
///
/// # Errors
///
/// Another backup is under way, or the machine moves.
fn reserve(shared: &Shared, wanted: &Backup) -> Result<bool, String> {
    let mut reserved = Ok(false);
    shared.facts.send_if_modified(|facts| {
        reserved = match &facts.backup {
            Some(known) if is_same(known, wanted) => Ok(false),
            Some(other) if is_running(other) => {
                Err(format!("backup {} is under way: one at a time is allowed", other.name))
            }
            _ if facts.migration.as_ref().is_some_and(Migration::is_running) => {
                Err("the machine moves to another node: its disks can be backed up once it is there"
                    .to_owned())
            }
            _ => Ok(true),
        };
        let is_new = reserved == Ok(true);
        if is_new {
            facts.backup = Some(wanted.clone());
        }
        is_new
    });
    reserved
}

fn is_same(known: &Backup, wanted: &Backup) -> bool {
    known.name == wanted.name && known.asked_at_ms == wanted.asked_at_ms
}

/// Whether libvirt's job runs, or is about to.
fn is_running(backup: &Backup) -> bool {
    backup.ended_at_ms.is_none()
}

/// Whether the claim of a volume can be let go of, and the machine can leave.
///
/// # Errors
///
/// A backup is under way.
pub(super) fn may_go(shared: &Shared, volume: &str) -> Result<(), String> {
    let facts = shared.facts.borrow();
    match facts.backup.as_ref().filter(|backup| is_running(backup)) {
        Some(running) if backup::target_volume(&running.name) == volume => {
            Err(format!("backup {} writes to it", running.name))
        }
        _ => Ok(()),
    }
}

/// Whether the machine can leave.
///
/// # Errors
///
/// A backup is under way: it is named.
pub(super) fn may_leave(shared: &Shared) -> Result<(), String> {
    let facts = shared.facts.borrow();
    match facts.backup.as_ref().filter(|backup| is_running(backup)) {
        Some(running) => Err(format!("cannot migrate VMI until backup {} is completed", running.name)),
        None => Ok(()),
    }
}

/// Begins a backup that is noted, of the machine `machine`.
async fn start(
    shared: &Arc<Shared>,
    machine: &str,
    mut backup: Backup,
    options: Options,
) -> Result<(), String> {
    if let Some(mode) = options.mode.as_ref().filter(|mode| **mode != BackupMode::Push) {
        return Err(format!("mode: '{mode}' is not carried out by podvirt; Push is allowed"));
    }
    let disks = disks(shared).await?;
    if !disks.iter().any(Disk::is_tracked) {
        return Err("changes of none of the machine's disks are tracked".to_owned());
    }
    let place = options.target_path.as_deref().map(Path::new).ok_or("targetPath: required")?;
    let volume = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !shared.held.is_directory(volume) {
        return Err(format!("targetPath: the directory of the volume '{volume}' has not been handed over"));
    }
    let whole = match &options.incremental {
        Some(since) => without_bitmap(shared, &disks, since).await?,
        None => Vec::new(),
    };
    let directory = path::plugged_device(volume).join(machine).join(&backup.checkpoint);
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let description = describe(&disks, &options, &backup.checkpoint, &directory, &whole);
    let (job, point, told) = description.map_err(|error| error.to_string())?;
    let begun = begin(shared, options.skip_quiesce, job, point).await;
    backup.message = begun.inspect_err(|_| clear(&directory))?.unwrap_or_default();
    backup.disks = told;
    info!(
        backup = backup.name,
        checkpoint = backup.checkpoint,
        since = options.incremental,
        "the backup has begun"
    );
    shared.facts.send_modify(|facts| facts.backup = Some(backup.clone()));
    tokio::spawn(follow(Arc::clone(shared), backup, directory));
    Ok(())
}

/// Begins libvirt's job, with the guest's file systems frozen meanwhile. What is to be told of it all the same.
async fn begin(
    shared: &Arc<Shared>,
    skip_quiesce: bool,
    job: String,
    point: String,
) -> Result<Option<String>, String> {
    // Where a user has frozen the guest before, that user thaws it.
    let freezes = !skip_quiesce && !shared.is_frozen();
    let mut warning = None;
    let mut frozen = false;
    if freezes {
        match shared.freezes.freeze(Arc::clone(shared), Some(FROZEN)).await {
            Ok(()) => frozen = true,
            Err(error) => {
                warn!(error, "the guest's file systems are not frozen for the backup");
                warning = Some(format!("Failed freezing guest filesystem: {error}"));
            }
        }
    }
    let begun = shared.call(move |hypervisor| hypervisor.backups()?.begin(&job, &point)).await;
    if frozen && let Err(error) = shared.freezes.thaw(Arc::clone(shared)).await {
        warn!(error, "the guest's file systems thaw by their time limit");
        warning = Some(format!("Failed to unfreeze filesystem after backup completion: {error}"));
    }
    begun.map(|()| warning).map_err(|error| error.to_string())
}

/// Tells of the backup's end.
async fn follow(shared: Arc<Shared>, mut backup: Backup, directory: PathBuf) {
    let mut failures = 0;
    let end = loop {
        sleep(LOOK).await;
        match shared.call(|hypervisor| hypervisor.backups()?.end()).await {
            Ok(None) => failures = 0,
            Ok(Some(end)) => break end,
            Err(HypervisorError::NotRunning(_)) => {
                break BackupEnd::Failed("the machine has ended".to_owned());
            }
            Err(error) => {
                failures += 1;
                if failures >= PATIENCE {
                    break BackupEnd::Failed(error.to_string());
                }
            }
        }
    };
    backup.ended_at_ms = Some(millis(now()));
    let failure = match end {
        BackupEnd::Complete => None,
        BackupEnd::Aborted => Some("backup aborted".to_owned()),
        BackupEnd::Failed(why) => Some(why),
    };
    match failure {
        None => info!(backup = backup.name, "the backup is complete"),
        Some(why) => {
            warn!(backup = backup.name, why, "the backup has failed");
            (backup.failed, backup.message) = (true, why);
            clear(&directory);
        }
    }
    shared.facts.send_modify(|facts| facts.backup = Some(backup));
}

/// Removes the files of a backup that has failed.
fn clear(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        warn!(directory = %directory.display(), %error, "what is left of the backup stays");
    }
}

/// The running machine's disks.
async fn disks(shared: &Shared) -> Result<Vec<Disk>, String> {
    let text = shared.call(|hypervisor| hypervisor.xml()).await.map_err(|error| error.to_string())?;
    let domain =
        Domain::from_xml(&text).map_err(|error| format!("the domain's XML cannot be read: {error}"))?;
    Ok(domain.devices.disks)
}

/// What libvirt is told of a backup and of its checkpoint, and the disks that are in it. `whole`: aliases of disks of which everything is
/// copied.
fn describe(
    disks: &[Disk],
    options: &Options,
    checkpoint: &str,
    directory: &Path,
    whole: &[String],
) -> Result<(String, String, Vec<BackupDisk>), quick_xml::SeError> {
    let (mut copied, mut points, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for disk in disks {
        let (name, volume) = (disk.target.dev.clone(), name_of(&disk.alias.name));
        let Some(volume) = volume.filter(|_| disk.is_tracked()) else {
            let no = || "no".to_owned();
            copied.push(xml::BackupDisk { name: name.clone(), backup: no(), ..xml::BackupDisk::default() });
            points.push(xml::CheckpointDisk { name, checkpoint: no() });
            continue;
        };
        let file = directory.join(format!("{}-{volume}.qcow2", options.backup_name));
        copied.push(xml::BackupDisk {
            name: name.clone(),
            backup: "yes".to_owned(),
            kind: Some("file".to_owned()),
            backup_mode: whole.contains(&disk.alias.name).then(|| "full".to_owned()),
            target: Some(xml::BackupTarget { file: file.display().to_string() }),
            driver: Some(TypeOnly { kind: "qcow2".to_owned() }),
        });
        points.push(xml::CheckpointDisk { name: name.clone(), checkpoint: "bitmap".to_owned() });
        told.push(BackupDisk { volume: volume.to_owned(), target: name });
    }
    let job = xml::Backup {
        mode: "push".to_owned(),
        incremental: options.incremental.clone(),
        disks: xml::BackupDisks { all: copied },
    };
    let point = xml::Checkpoint {
        name: checkpoint.to_owned(),
        creation_time: None,
        disks: xml::CheckpointDisks { all: points },
    };
    Ok((job.to_xml()?, point.to_xml()?, told))
}

/// Aliases of tracked disks without a bitmap of this name. The checkpoint is made known where libvirt does not know it.
///
/// # Errors
///
/// No disk has such a bitmap, or libvirt refuses the checkpoint.
async fn without_bitmap(shared: &Shared, disks: &[Disk], since: &str) -> Result<Vec<String>, String> {
    let checkpoint = BackupCheckpoint { name: Some(since.to_owned()), ..BackupCheckpoint::default() };
    redefine(shared, &checkpoint).await.map_err(|error| error.to_string())?;
    let bitmaps = shared.call(|hypervisor| hypervisor.backups()?.bitmaps()).await;
    let bitmaps = bitmaps.map_err(|error| error.to_string())?;
    let has = |disk: &&Disk| bitmaps.get(&disk.alias.name).is_some_and(|names| names.contains(since));
    let tracked = disks.iter().filter(|disk| disk.is_tracked());
    Ok(tracked.filter(|disk| !has(disk)).map(|disk| disk.alias.name.clone()).collect())
}

/// Why a checkpoint is not made known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    /// Its bitmaps are gone, or not sound: it is of no use any more.
    #[error("checkpoint {0}: the disks have no bitmaps of it that can be used")]
    Invalid(String),
    /// The hypervisor says no, for another reason.
    #[error("{0}")]
    Refused(String),
}

/// Makes a checkpoint known to libvirt, of the disks that have its bitmaps.
///
/// # Errors
///
/// See [`Unknown`].
pub(super) async fn redefine(shared: &Shared, checkpoint: &BackupCheckpoint) -> Result<(), Unknown> {
    let name = checkpoint.name.clone().unwrap_or_default();
    let refused = |error: HypervisorError| Unknown::Refused(error.to_string());
    let disks = disks(shared).await.map_err(Unknown::Refused)?;
    let wanted = name.clone();
    let asked = shared.call(move |hypervisor| {
        let backups = hypervisor.backups()?;
        Ok((backups.bitmaps()?, backups.knows(&wanted)?))
    });
    let (bitmaps, known) = asked.await.map_err(refused)?;
    if known {
        return Ok(());
    }
    let has = |disk: &&Disk| bitmaps.get(&disk.alias.name).is_some_and(|names| names.contains(&name));
    let with = disks.iter().filter(|disk| disk.is_tracked()).filter(has);
    let all: Vec<_> = with
        .map(|disk| xml::CheckpointDisk { name: disk.target.dev.clone(), checkpoint: "bitmap".to_owned() })
        .collect();
    if all.is_empty() {
        return Err(Unknown::Invalid(name));
    }
    let made = checkpoint.creation_time.as_ref().and_then(|time| time.as_ref());
    let description = xml::Checkpoint {
        name: name.clone(),
        creation_time: made.map(|time| time.0.as_second()),
        disks: xml::CheckpointDisks { all },
    };
    let description = description.to_xml().map_err(|error| Unknown::Refused(error.to_string()))?;
    let redefined = shared.call(move |hypervisor| hypervisor.backups()?.redefine(&description)).await;
    if redefined.map_err(refused)? {
        info!(checkpoint = name, "the checkpoint is known to the hypervisor");
        return Ok(());
    }
    Err(Unknown::Invalid(name))
}

#[cfg(test)]
#[path = "backup_tests.rs"]
mod tests;
