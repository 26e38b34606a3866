//! Volumes that come and go while the machine runs.
//!
//! # Theory of operation
//!
//! The claim of such a volume is held by another pod, on the machine's node. virt-handler brings the claim's disk as a descriptor
//! ([`podvirt_proto::volumes`]) and then gives the VMI again. Each time the disks of the machine are held against the volumes of
//! the specification that are hotpluggable:
//!
//! ```text
//! specification   descriptor   machine
//! there           here         lacks it    the disk is plugged
//! there           -            lacks it    nothing: the descriptor comes, and the VMI again
//! gone            -            has it      the guest is asked to let go of the disk, and waited for
//! gone            here         lacks it    the descriptor is closed
//! ```
//!
//! How QEMU gets the disk of a descriptor is in [`super::held`]; its path is the same in every pod of the machine, so that the
//! machine can move. The descriptor is kept until the guest has let go of the disk: the report tells which
//! ones are kept ([`Facts::volumes`](super::shared::Facts)), and the pod that holds the claim stays as long.
//!
//! A machine starts with the disks that are here by then ([`images`]): virt-handler waits for all of them before it gives the VMI, so
//! that a machine can boot from such a disk. One that comes from another node has them already when it arrives: it is let in once all
//! their descriptors are here ([`awaited`]).
//!
//! The file of a memory dump ([`dump`]) is handed over and closed in the same way, and so is the directory that a backup writes into
//! ([`backup_to`]); they are no disks.
//!
//! A CD-ROM drive stays, and its medium comes and goes. The drive's cache mode is that of its start, so that both a disk image and a
//! device can be its medium: through the page cache unless the VMI says otherwise.
//!
//! What fails with one volume does not keep the others from coming and going; the first failure is told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::path;
use podvirt_api::vmi::{Disk, DriverCache, Volume};
use podvirt_api::{backup, storage, v1};
use quick_xml::SeError;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::backup::UnderWay;
use super::described::DescribeError;
use super::dump::DumpError;
use super::held::{set_direct, size};
use super::shared::Shared;
use super::{backup as backup_to, dump};
use crate::domain::schema::{self as xml, Domain};
use crate::domain::{ConvertError, Image, ImageFormat, Place, alias_of, plugged_disk, with_medium};
use crate::fdset;
use crate::hypervisor::HypervisorError;
use crate::media::overlay::{self, Tracking};
use crate::media::probe::seen;
use crate::media::{MediaError, claims};

/// How long a guest has to let go of a disk.
const RELEASE: Duration = Duration::from_secs(15);
/// Between two looks at that.
const LOOK: Duration = Duration::from_millis(250);

/// What keeps a volume from coming, from going, or from being left behind.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeError {
    /// With this volume.
    #[error("volume {volume}")]
    Volume {
        /// Its name.
        volume: String,
        /// What.
        source: Obstacle,
    },
    /// The VMI cannot be read.
    #[error("vmi")]
    Vmi(#[from] serde_json::Error),
    /// The other node's hypervisor has the disks of before.
    #[error("while the machine moves to another node, no disk is plugged or unplugged")]
    Moving,
}

/// What is wrong with one volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum Obstacle {
    /// It is not known what the machine has.
    #[error(transparent)]
    Undescribed(#[from] DescribeError),
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// Its device cannot be made.
    #[error(transparent)]
    Device(#[from] ConvertError),
    /// Its device cannot be described.
    #[error(transparent)]
    Unwritten(#[from] SeError),
    /// Its disk cannot be looked at, or made ready.
    #[error(transparent)]
    Disk(#[from] io::Error),
    /// Its overlay cannot be made.
    #[error(transparent)]
    Overlay(#[from] MediaError),
    /// The thread that looks at its disk has failed.
    #[error(transparent)]
    Thread(#[from] JoinError),
    /// The specification has no disk for it.
    #[error("spec.domain.devices.disks has no disk of this name")]
    NoDisk,
    /// Its disk is not here yet.
    #[error("its disk has not been handed over on this node yet")]
    NotHandedOver,
    /// The guest's memory is being written to it.
    #[error(transparent)]
    Dumped(#[from] DumpError),
    /// A backup is being written to it.
    #[error(transparent)]
    BackedUp(#[from] UnderWay),
    /// The guest was asked, and keeps its disk.
    #[error("the guest has not let go of its disk within {} s", RELEASE.as_secs())]
    Kept,
    /// The machine would leave without it.
    #[error("it is unplugged, and the guest has not let go of its disk yet")]
    Leaving,
}

impl VolumeError {
    fn of<E: Into<Obstacle>>(volume: &str) -> impl FnOnce(E) -> VolumeError {
        move |error| VolumeError::Volume { volume: volume.to_owned(), source: error.into() }
    }
}

/// The machine without the disks of hotpluggable volumes whose disks are not here; without any of these where nothing is `here`.
pub(super) fn without_absent(
    vmi: &VirtualMachineInstance,
    here: &BTreeMap<String, Image>,
) -> VirtualMachineInstance {
    let mut vmi = vmi.clone();
    let is_absent = |volume: &&Volume| volume.is_hotpluggable() && !here.contains_key(&volume.name);
    let absent: BTreeSet<&str> =
        vmi.spec.volumes.iter().filter(is_absent).map(|volume| volume.name.as_str()).collect();
    // A drive without its medium is empty.
    vmi.spec.domain.devices.disks.retain(|disk| disk.cdrom.is_some() || !absent.contains(&*disk.name));
    put_plugged_behind(&mut vmi);
    vmi
}

/// Puts the disk of a hotpluggable volume behind the disks of the volumes that are listed before it, unless it has a boot order.
///
/// The firmware starts from the first disk. The list of disks names a disk that was plugged into the running machine, and may not name
/// the root disk, which defaults then put at its end: the machine would start from the plugged disk.
fn put_plugged_behind(vmi: &mut VirtualMachineInstance) {
    let volumes = &vmi.spec.volumes;
    let place = |disk: &Disk| volumes.iter().position(|volume| volume.name == disk.name);
    let is_plugged = |disk: &Disk| {
        disk.boot_order.is_none() && place(disk).is_some_and(|place| volumes[place].is_hotpluggable())
    };
    let disks = &mut vmi.spec.domain.devices.disks;
    // From the last one on, so that they keep their order among one another.
    for from in (0..disks.len()).rev().filter(|at| is_plugged(&disks[*at])).collect::<Vec<_>>() {
        let of = place(&disks[from]);
        let before = disks.iter().rposition(|disk| !is_plugged(disk) && place(disk) < of);
        if let Some(before) = before.filter(|before| *before > from) {
            disks[from..=before].rotate_left(1);
        }
    }
}

/// Images of the hotpluggable volumes whose disks are here, for a machine that starts with them; devices are made ready for QEMU.
///
/// # Errors
///
/// A disk cannot be looked at; its volume is named.
pub(super) async fn images(
    shared: &Shared,
    vmi: &VirtualMachineInstance,
    told: &BTreeMap<String, v1::PersistentVolumeClaimInfo>,
    tracking: &Tracking,
) -> Result<BTreeMap<String, Image>, VolumeError> {
    let mut images = BTreeMap::new();
    for disk in &vmi.spec.domain.devices.disks {
        let volume = disk.name.as_str();
        if !vmi.volume_of(disk).is_some_and(Volume::is_hotpluggable) || !shared.held.has(volume) {
            continue;
        }
        let ready = async {
            let image = image(shared, volume, is_kept(told, volume), tracking).await?;
            let direct = image.direct && past_page_cache(disk);
            if let Some(device) = shared.held.device(volume) {
                set_direct(&device, direct)?;
            }
            Ok::<_, Obstacle>(Image { direct, ..image })
        };
        let ready = ready.await.map_err(VolumeError::of(volume))?;
        images.insert(volume.to_owned(), ready);
    }
    Ok(images)
}

/// Whether the storage of a volume is allocated as a whole, and stays so.
fn is_kept(told: &BTreeMap<String, v1::PersistentVolumeClaimInfo>, volume: &str) -> bool {
    told.get(volume).is_some_and(|claim| claim.preallocated == Some(true))
}

/// The image of a volume whose disk is here, as QEMU finds it.
async fn image(shared: &Shared, volume: &str, kept: bool, tracking: &Tracking) -> Result<Image, Obstacle> {
    let device = shared.held.device(volume);
    let image = match &device {
        Some(_) => Image { place: Place::Block, ..Image::new(fdset::place(volume), ImageFormat::Raw) },
        None => Image::new(path::plugged_image(volume), ImageFormat::Raw),
    };
    let (volume, tracking) = (volume.to_owned(), tracking.clone());
    let ready = tokio::task::spawn_blocking(move || {
        let image = seen(image);
        // Every device can be read and written past the page cache; this process may not open the device to see that.
        let direct = image.direct || image.place == Place::Block;
        let length = |path: &Path| device.map_or_else(|| claims::length(path), |device| size(&device));
        tracking.of_length(&volume, Image { kept, direct, ..image }, length)
    });
    Ok(ready.await??)
}

/// The disks of a machine whose changes are tracked.
pub(super) fn tracking(vmi: &v1::VirtualMachineInstance, incoming: bool) -> Tracking {
    Tracking { directory: path::OVERLAYS.into(), on: backup::tracked(vmi), incoming }
}

/// Whether all disks are here that the machine `vmi` brings from another node; they are made ready for QEMU. `json`: the VMI as the
/// handler has sent it.
///
/// # Errors
///
/// One is missing; its volume is named.
pub(super) async fn awaited(
    shared: &Shared,
    vmi: &VirtualMachineInstance,
    json: &[u8],
) -> Result<(), VolumeError> {
    let wire: Box<v1::VirtualMachineInstance> = serde_json::from_slice(json)?;
    let tracking = tracking(&wire, true);
    for volume in brought(&wire) {
        if !shared.held.has(volume) {
            return Err(VolumeError::of(volume)(Obstacle::NotHandedOver));
        }
        let disk = vmi.spec.domain.devices.disks.iter().find(|disk| disk.name == volume);
        if let Some((device, disk)) = shared.held.device(volume).zip(disk) {
            set_direct(&device, past_page_cache(disk)).map_err(VolumeError::of(volume))?;
        }
        // virt-controller gives the target a backend claim of its own where the source's is ReadWriteOnce: the overlay is made there.
        image(shared, volume, false, &tracking).await.map_err(VolumeError::of(volume))?;
    }
    Ok(())
}

/// Names of the volumes whose disks are plugged into the machine, by its status.
fn brought(vmi: &v1::VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let has_disk = |status: &&v1::VolumeStatus| status.hotplug_volume.is_some() && !status.target.is_empty();
    vmi.status.volume_status.iter().filter(has_disk).map(|status| status.name.as_str())
}

/// Brings the running machine's disks to the volumes of `vmi`, as far as their disks were handed over.
///
/// # Errors
///
/// The hypervisor refuses, or the guest does not let go; the volume is named. What was done stays.
pub(super) async fn change(
    shared: &Arc<Shared>,
    vmi: &VirtualMachineInstance,
    json: &[u8],
) -> Result<(), VolumeError> {
    let wanted: Vec<&str> =
        vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable()).map(|v| v.name.as_str()).collect();
    let held = shared.held.names();
    if wanted.is_empty() && held.is_empty() {
        return Ok(());
    }
    let wire: Box<v1::VirtualMachineInstance> = serde_json::from_slice(json)?;
    // A backup writes into the directories of these.
    let is_utility = |name: &str| storage::is_utility(&wire, name);
    if shared.facts.borrow().migration.as_ref().is_some_and(podvirt_proto::migration::Migration::is_running) {
        return Err(VolumeError::Moving);
    }
    let told = storage::told(&wire);
    let tracking = tracking(&wire, false);
    let mut failed = Ok(());
    let mut done = |volume: &str, result: Result<(), Obstacle>| {
        let result = result.map_err(VolumeError::of(volume));
        if failed.is_ok() {
            failed = result;
        } else if let Err(error) = result {
            warn!(error = &error as &dyn std::error::Error, "a disk is not plugged or unplugged");
        }
    };
    for name in held.iter().filter(|name| !wanted.contains(&name.as_str()) && !is_utility(name)) {
        done(name, unplug(shared, name).await);
    }
    // A claim for a memory dump has no disk.
    let is_dump = |name: &str| vmi.spec.volumes.iter().any(|v| v.name == name && v.memory_dump.is_some());
    let wanted = wanted.into_iter().filter(|name| !is_dump(name));
    for name in wanted.filter(|name| held.iter().any(|held| held == name)) {
        done(name, plug(shared, vmi, name, is_kept(&told, name), &tracking).await);
    }
    failed
}

/// The device of a volume, also a drive that is empty.
fn device(domain: Domain, volume: &str) -> Option<xml::Disk> {
    let alias = alias_of(volume);
    domain.devices.disks.into_iter().find(|disk| disk.alias.name == alias)
}

fn has(domain: &Domain, volume: &str) -> bool {
    let alias = alias_of(volume);
    let mut disks = domain.devices.disks.iter();
    disks.any(|disk| disk.alias.name == alias && disk.source.path().is_some())
}

/// Plugs the disk of a volume whose disk was handed over. `kept`: its storage is allocated as a whole, and stays so.
async fn plug(
    shared: &Shared,
    vmi: &VirtualMachineInstance,
    volume: &str,
    kept: bool,
    tracking: &Tracking,
) -> Result<(), Obstacle> {
    let domain = shared.described().await?;
    if has(&domain, volume) {
        return Ok(());
    }
    let disk = vmi.spec.domain.devices.disks.iter().find(|disk| disk.name == volume);
    let disk = disk.ok_or(Obstacle::NoDisk)?;
    let image = image(shared, volume, kept, tracking).await?;
    let (device, is_drive) = match self::device(domain.clone(), volume) {
        Some(drive) => (with_medium(drive, Some((&image.path, image.place)))?, true),
        None => (plugged_disk(vmi, disk, &image, &domain)?, false),
    };
    let xml = device.to_xml()?;
    if let Some(file) = shared.held.device(volume) {
        set_direct(&file, device.driver.cache.as_deref() == Some(DriverCache::None.as_str()))?;
        let set = fdset::number(volume);
        shared.call(move |hypervisor| hypervisor.hand_over(&file, set)).await?;
    }
    let plugged = shared.call(move |hypervisor| match is_drive {
        true => hypervisor.change_medium(&xml),
        false => hypervisor.plug(&xml),
    });
    if let Err(error) = plugged.await {
        take_back(shared, volume).await;
        return Err(error.into());
    }
    info!(volume, target = device.target.dev, "the disk is plugged");
    // The report is to tell of it at once.
    shared.facts.send_modify(|_| {});
    Ok(())
}

/// Whether a disk on a device is read and written past the page cache: where nothing else is asked for, unless it is a drive.
fn past_page_cache(disk: &Disk) -> bool {
    disk.cache.map_or(disk.cdrom.is_none(), |cache| cache == DriverCache::None)
}

/// Has QEMU close the device of a volume, if it has one.
async fn take_back(shared: &Shared, volume: &str) {
    if shared.held.device(volume).is_some() {
        let set = fdset::number(volume);
        if let Err(error) = shared.call(move |hypervisor| hypervisor.take_back(set)).await {
            warn!(volume, %error, "QEMU keeps the device open until the machine ends");
        }
    }
}

/// Has the guest let go of the disk of a volume, and closes the disk.
async fn unplug(shared: &Shared, volume: &str) -> Result<(), Obstacle> {
    dump::may_go(shared, volume)?;
    backup_to::may_go(shared, volume)?;
    let domain = shared.described().await?;
    if has(&domain, volume) {
        info!(volume, "the disk is unplugged");
        let alias = alias_of(volume);
        let drive = device(domain, volume).filter(xml::Disk::is_drive);
        let empty = drive.map(|drive| with_medium(drive, None)).transpose()?;
        let empty = empty.map(|drive| drive.to_xml()).transpose()?;
        let unplugged = shared.call(move |hypervisor| match empty {
            Some(drive) => hypervisor.change_medium(&drive),
            None => hypervisor.unplug(&alias),
        });
        unplugged.await?;
        let end = Instant::now() + RELEASE;
        while has(&shared.described().await?, volume) {
            if Instant::now() >= end {
                return Err(Obstacle::Kept);
            }
            sleep(LOOK).await;
        }
    }
    take_back(shared, volume).await;
    shared.held.release(volume);
    // What it knows of changes ends with them: nothing tracks the disk from now on.
    if let Err(error) = overlay::remove(volume, Path::new(path::OVERLAYS)) {
        warn!(volume, error = &error as &dyn std::error::Error, "its overlay stays");
    }
    shared.facts.send_if_modified(|facts| facts.volumes.remove(volume));
    Ok(())
}

/// Whether the machine, which has the disks of `domain`, can leave with the volumes of `vmi`: at the target only these have a disk.
///
/// # Errors
///
/// The guest has not let go of the disk of a volume that is not in the specification any more. The volume is named.
pub(super) fn may_leave(domain: &Domain, vmi: &v1::VirtualMachineInstance) -> Result<(), VolumeError> {
    let stays = |volume: &str| vmi.spec.volumes.iter().any(|one| one.name == volume);
    match brought(vmi).find(|volume| !stays(volume) && has(domain, volume)) {
        Some(volume) => Err(VolumeError::of(volume)(Obstacle::Leaving)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(volumes: &str, disks: &str) -> String {
        let text = format!(
            "{{metadata: {{name: vm}}, spec: {{domain: {{devices: {{disks: [{disks}]}}}}, volumes: [{volumes}]}}}}"
        );
        let vmi: VirtualMachineInstance = serde_saphyr::from_str(&text).unwrap();
        let image = Image::new("/image", ImageFormat::Raw);
        let here = vmi.spec.volumes.iter().map(|volume| (volume.name.clone(), image.clone())).collect();
        let names = without_absent(&vmi, &here).spec.domain.devices.disks;
        names.into_iter().map(|disk| disk.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_machine_does_not_start_from_a_disk_that_was_plugged_later() {
        let claim = |name: &str, hotpluggable: bool| {
            format!(
                "{{name: {name}, persistentVolumeClaim: {{claimName: {name}, hotpluggable: {hotpluggable}}}}}"
            )
        };
        let fixed = |name: &str| claim(name, false);
        let plugged = |name: &str| claim(name, true);
        let volumes = [fixed("root"), fixed("data"), plugged("b"), plugged("a")].join(", ");
        assert_eq!(order(&volumes, "{name: a}, {name: b}, {name: root}, {name: data}"), "root data a b");
        assert_eq!(order(&volumes, "{name: data}, {name: a}, {name: root}"), "data root a");
        assert_eq!(order(&volumes, "{name: a, bootOrder: 1}, {name: root}"), "a root", "as it was asked for");
        let first = [plugged("root"), fixed("data")].join(", ");
        assert_eq!(order(&first, "{name: root}, {name: data}"), "root data", "it is the root disk");
    }
}
