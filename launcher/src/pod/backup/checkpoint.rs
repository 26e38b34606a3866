//! Checkpoints, which libvirt forgets and QEMU's bitmaps keep.

use podvirt_api::backup::Options;
use podvirt_api::v1::BackupCheckpoint;
use tracing::{info, warn};

use super::super::described::DescribeError;
use super::super::shared::Shared;
use crate::domain::schema::Disk;
use crate::domain::schema::backup as xml;
use crate::hypervisor::HypervisorError;

/// Aliases of tracked disks without a bitmap of this name. The checkpoint is made known where libvirt does not know it.
///
/// # Errors
///
/// No disk has such a bitmap, or libvirt refuses the checkpoint.
pub(super) async fn without_bitmap(
    shared: &Shared,
    disks: &[Disk],
    since: &str,
) -> Result<Vec<String>, Unknown> {
    let checkpoint = BackupCheckpoint { name: Some(since.to_owned()), ..BackupCheckpoint::default() };
    redefine(shared, &checkpoint).await?;
    let bitmaps = shared.call(|hypervisor| hypervisor.backups()?.bitmaps()).await?;
    let has = |disk: &&Disk| bitmaps.get(&disk.alias.name).is_some_and(|names| names.contains(since));
    let tracked = disks.iter().filter(|disk| disk.is_tracked());
    Ok(tracked.filter(|disk| !has(disk)).map(|disk| disk.alias.name.clone()).collect())
}

/// Removes the bitmaps of all checkpoints but those that virt-controller wants to be kept, and the one that this backup goes on from. What
/// is in the way is told, and keeps no backup from being made: the next one tries again.
pub(super) async fn forget_superseded(shared: &Shared, options: &Options) {
    let Some(mut keep) = options.keep_checkpoints.clone() else { return };
    keep.extend(options.incremental.clone());
    match shared.call(move |hypervisor| hypervisor.backups()?.forget_all_but(&keep)).await {
        Ok(gone) if gone.is_empty() => {}
        Ok(gone) => info!(checkpoints = ?gone, "superseded checkpoints are removed"),
        Err(error) => warn!(%error, "superseded checkpoints stay"),
    }
}

/// Why a checkpoint is not made known.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Unknown {
    /// Its bitmaps are gone, or not sound: it is of no use any more.
    #[error("checkpoint {0}: the disks have no bitmaps of it that can be used")]
    Invalid(String),
    /// The hypervisor says no, for another reason.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// The machine's disks are not known.
    #[error(transparent)]
    Undescribed(#[from] DescribeError),
    /// The checkpoint cannot be described.
    #[error(transparent)]
    Unwritten(#[from] quick_xml::SeError),
}

/// Makes a checkpoint known to libvirt, of the disks that have its bitmaps.
///
/// # Errors
///
/// See [`Unknown`].
pub(in super::super) async fn redefine(
    shared: &Shared,
    checkpoint: &BackupCheckpoint,
) -> Result<(), Unknown> {
    let name = checkpoint.name.clone().unwrap_or_default();
    let disks = shared.described().await?.devices.disks;
    let wanted = name.clone();
    let asked = shared.call(move |hypervisor| {
        let backups = hypervisor.backups()?;
        Ok((backups.bitmaps()?, backups.knows(&wanted)?))
    });
    let (bitmaps, known) = asked.await?;
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
    let description = description.to_xml()?;
    let redefined = shared.call(move |hypervisor| hypervisor.backups()?.redefine(&description)).await;
    if redefined? {
        info!(checkpoint = name, "the checkpoint is known to the hypervisor");
        return Ok(());
    }
    Err(Unknown::Invalid(name))
}
