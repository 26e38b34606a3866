//! What is on a claim: a disk image, or the claim is a block device.
//!
//! Other pods may have written to the claim: a link in the image's place is not followed ([`crate::beneath`]).
//!
//! A claim without a disk image gets one, as large as was asked for and sparse. One that is smaller than its claim, because the
//! claim was expanded, grows when the machine starts, and while it runs ([`possible`] says how far): upstream's sizes.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use podvirt_api::names::path;
use podvirt_api::quantity::Quantity;
use podvirt_api::storage::is_block;
use podvirt_api::v1::PersistentVolumeClaimInfo;
use podvirt_api::vmi::Volume;
use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};
use tracing::{info, warn};

use super::MediaError;
use super::images::ImageSources;
use super::probe;
use crate::beneath;
use crate::domain::{Base, ImageFormat, Place};

/// Sizes of disk images are multiples of it, bytes.
pub(super) const ALIGNMENT: u64 = 1 << 20;
/// A size that follows from the room that there is, is a multiple of it: the largest sector of disks, bytes.
const SECTOR: u64 = 4096;
/// What is left free on a claim, bytes.
const RESERVE: u64 = 128 << 10;
/// By how much an image may be smaller than was asked for, percent: a file system needs some room itself.
const TOLERANCE: u64 = 10;
/// What a claim's storage is called in its quantities.
const STORAGE: &str = "storage";

/// What users are told of disk images that were made: reason and message of an event each.
pub type Notes = Mutex<Vec<(&'static str, String)>>;

/// The disk image on the claim `name`, or its device.
pub(super) fn base(
    volume: &Volume,
    name: &str,
    read_only: bool,
    sources: &ImageSources<'_>,
) -> Result<Base, MediaError> {
    let claims = sources.claims.ok_or_else(|| MediaError::NoClaims(volume.name.clone()))?;
    let told = sources.told.get(&volume.name);
    if told.is_some_and(is_block) {
        return device(volume, name, read_only);
    }
    let claim = claims.join(&volume.name);
    let makes = !sources.incoming || sources.moved.contains(&volume.name);
    let writes = told.filter(|_| !read_only && makes);
    let file = image(&claim, &volume.name, name, writes, sources.notes)?;
    let path = claim.join(path::DISK_IMAGE);
    // A disk that moves has its own size.
    if let Some(told) = writes.filter(|_| !sources.incoming) {
        grow(&file, &path, told);
    }
    Ok(Base { path, place: Place::File, format: ImageFormat::Raw })
}

/// The disk image of `volume` on the claim `name`, which is mounted at `claim`. One that does not exist is made where the machine
/// writes to it: `writes` is what is told of the claim then.
fn image(
    claim: &Path,
    volume: &str,
    name: &str,
    writes: Option<&PersistentVolumeClaimInfo>,
    notes: &Notes,
) -> Result<File, MediaError> {
    let path = claim.join(path::DISK_IMAGE);
    if let Some(told) = writes.filter(|_| path.symlink_metadata().is_err()) {
        make(&path, told, notes)?;
    }
    let access = if writes.is_some() { OFlags::RDWR } else { OFlags::RDONLY };
    beneath::file(claim, path::DISK_IMAGE, access).map_err(|source| MediaError::Claim {
        volume: volume.to_owned(),
        claim: name.to_owned(),
        path,
        source,
    })
}

/// Opens the disk on a claim that is at `place`: mounted there, or a device.
///
/// # Errors
///
/// There is none, and none can be made; or it cannot be opened.
pub fn open(
    place: &Path,
    volume: &str,
    told: &PersistentVolumeClaimInfo,
    read_only: bool,
) -> Result<File, MediaError> {
    let claim = told.claim_name.as_deref().unwrap_or_default();
    if is_block(told) {
        return opened(place, volume, claim, read_only);
    }
    image(place, volume, claim, Some(told).filter(|_| !read_only), &Notes::default())
}

/// The device of the claim `name`. QEMU opens it with this process's rights: that it can is found out here, where the reason can
/// be told.
fn device(volume: &Volume, name: &str, read_only: bool) -> Result<Base, MediaError> {
    let path = path::claim_device(&volume.name);
    opened(&path, &volume.name, name, read_only)?;
    Ok(Base { path, place: Place::Block, format: ImageFormat::Raw })
}

/// The device at `path` of the claim `claim`.
fn opened(path: &Path, volume: &str, claim: &str, read_only: bool) -> Result<File, MediaError> {
    let is_block = path.metadata().map(|device| device.file_type().is_block_device());
    let opened = is_block.and_then(|is_block| {
        let open = || OpenOptions::new().read(true).write(!read_only).open(path);
        is_block.then(open).transpose()
    });
    let (path, volume, claim) = (path.to_owned(), volume.to_owned(), claim.to_owned());
    match opened {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(MediaError::NotADevice { volume, claim, path }),
        Err(source) => {
            let user = rustix::process::getuid().as_raw();
            Err(MediaError::Device { volume, claim, path, user, source })
        }
    }
}

/// Makes a disk image as large as was asked for, or a little smaller where its file system has not that much room.
fn make(path: &Path, told: &PersistentVolumeClaimInfo, notes: &Notes) -> Result<(), MediaError> {
    let failed = |error| MediaError::file("make", path, error);
    let wanted = wanted(told).ok_or_else(|| MediaError::NoSize(path.to_owned()))?;
    let available = available(path.parent().unwrap_or(path)).map_err(failed)?.saturating_sub(RESERVE);
    let size = fitting(wanted, available).ok_or_else(|| MediaError::NoRoom {
        path: path.to_owned(),
        wanted,
        available,
        tolerance: TOLERANCE,
    })?;
    if size < wanted {
        let message = format!(
            "PV size too small: expected {wanted} B, found {size} B. Using it anyway, it is within {TOLERANCE} % toleration"
        );
        notes.lock().unwrap_or_else(PoisonError::into_inner).push(("ToleratedSmallPV", message));
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o660).open(path).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    info!(path = %path.display(), size, "the claim had no disk image and has got one");
    Ok(())
}

/// Grows the disk image `file` at `path` to what its claim has room for; one that has all of its place on the storage keeps that. A
/// machine whose disk does not grow has the disk that it had.
fn grow(file: &File, path: &Path, told: &PersistentVolumeClaimInfo) {
    let grown = || -> io::Result<Option<u64>> {
        let Some(size) = possible(path, told)? else { return Ok(None) };
        let metadata = file.metadata()?;
        if size <= metadata.len() {
            return Ok(None);
        }
        if probe::is_allocated(&metadata) && metadata.len() > 0 {
            fallocate(file, FallocateFlags::empty(), metadata.len(), size - metadata.len())?;
        } else {
            file.set_len(size)?;
        }
        Ok(Some(size))
    };
    match grown() {
        Ok(None) => {}
        Ok(Some(size)) => info!(path = %path.display(), size, "the disk image has grown to its claim"),
        Err(error) => warn!(path = %path.display(), %error, "the disk image cannot grow to its claim"),
    }
}

/// The size that a disk has at most by its claim: of the whole device, or of what the file system has room for beside its own
/// part. `None`: it is not known.
///
/// # Errors
///
/// The file or device cannot be read.
pub fn possible(path: &Path, told: &PersistentVolumeClaimInfo) -> io::Result<Option<u64>> {
    if is_block(told) {
        return length(path).map(Some);
    }
    let used = path.metadata()?.blocks().saturating_mul(probe::BLOCK);
    Ok(room(told, used.saturating_add(available(path)?)))
}

/// Bytes of a disk image or a device.
///
/// # Errors
///
/// It cannot be opened.
pub fn length(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

/// Bytes that this user may still write to a file system.
fn available(path: &Path) -> io::Result<u64> {
    let stat = statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What was asked for, or what there is where that is less; whole mebibytes, at least one.
fn wanted(told: &PersistentVolumeClaimInfo) -> Option<u64> {
    let (asked, had) = asked_and_had(told);
    let bytes = asked.into_iter().chain(had).min()?;
    Some(bytes / ALIGNMENT * ALIGNMENT).filter(|size| *size > 0)
}

/// The size of an image for which this much room is there, if that is enough.
fn fitting(wanted: u64, available: u64) -> Option<u64> {
    if wanted <= available {
        return Some(wanted);
    }
    let least = wanted / 100 * (100 - TOLERANCE);
    Some(available / SECTOR * SECTOR).filter(|size| *size >= least)
}

/// The part of what was asked for and can be used that is not the file system's own.
fn room(told: &PersistentVolumeClaimInfo, usable: u64) -> Option<u64> {
    let (asked, had) = asked_and_had(told);
    let preferred = asked?.min(had?).min(usable);
    let overhead: Quantity = told.filesystem_overhead.as_ref()?.parse().ok()?;
    let kept = 1000_u64.checked_sub(overhead.milli_value()).filter(|_| !overhead.is_negative())?;
    let size = u64::try_from(u128::from(preferred) * u128::from(kept) / 1000).ok()?;
    Some(size / ALIGNMENT * ALIGNMENT).filter(|size| *size > 0)
}

/// Bytes of storage that were asked for, and that there are, as far as that is told.
fn asked_and_had(told: &PersistentVolumeClaimInfo) -> (Option<u64>, Option<u64>) {
    let bytes = |text: &str| text.parse().ok().map(|quantity: Quantity| quantity.value());
    let asked = told.requests.as_ref().and_then(|all| bytes(&all.get(STORAGE)?.0));
    (asked, told.capacity.as_ref().and_then(|all| bytes(&all.get(STORAGE)?.0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn told(asked: &str, had: &str) -> PersistentVolumeClaimInfo {
        serde_json::from_value(json!({
            "claimName": "data", "requests": {"storage": asked}, "capacity": {"storage": had}, "filesystemOverhead": "0.055",
        }))
        .unwrap()
    }

    #[test]
    fn an_image_is_as_large_as_was_asked_for_in_whole_mebibytes() {
        assert_eq!(wanted(&told("100Mi", "1Gi")), Some(100 * MIB));
        assert_eq!(wanted(&told("1Gi", "100Mi")), Some(100 * MIB));
        assert_eq!(wanted(&told("3000000", "1Gi")), Some(2 * MIB));
        assert_eq!(wanted(&told("1000000", "1Gi")), None);
        assert_eq!(wanted(&PersistentVolumeClaimInfo::default()), None);
    }

    #[test]
    fn a_tenth_may_be_the_file_systems() {
        assert_eq!(fitting(100 * MIB, 200 * MIB), Some(100 * MIB));
        assert_eq!(fitting(100 * MIB, 95 * MIB + 1), Some(95 * MIB));
        assert_eq!(fitting(100 * MIB, 89 * MIB), None);
    }

    #[test]
    fn an_image_grows_to_what_the_file_system_leaves() {
        let of = |asked: &str, had: &str, usable: u64| room(&told(asked, had), usable);
        assert_eq!(of("200Mi", "200Mi", 1000 * MIB), Some(189 * MIB));
        // Asked for, and not there yet.
        assert_eq!(of("400Mi", "200Mi", 1000 * MIB), Some(189 * MIB));
        assert_eq!(of("200Mi", "200Mi", 100 * MIB), Some(94 * MIB));
        assert_eq!(of("1Mi", "1Mi", 100 * MIB), None);
        let broken = |overhead: &str| {
            let told = PersistentVolumeClaimInfo {
                filesystem_overhead: Some(overhead.into()),
                ..told("1Gi", "1Gi")
            };
            room(&told, 1000 * MIB)
        };
        assert_eq!((broken("x"), broken("1.1"), broken("-0.1")), (None, None, None));
    }

    #[test]
    fn an_empty_claim_gets_an_image_which_grows_and_is_never_made_smaller() {
        let dir = tempfile::tempdir().unwrap();
        let (path, notes) = (dir.path().join(path::DISK_IMAGE), Notes::default());
        make(&path, &told("20Mi", "20Mi"), &notes).unwrap();
        let file = image(dir.path(), "v", "c", Some(&told("20Mi", "20Mi")), &notes).unwrap();
        let seen = path.metadata().unwrap();
        assert_eq!((seen.len(), probe::is_allocated(&seen)), (20 * MIB, false));
        assert!(notes.lock().unwrap().is_empty());
        // It has all that was asked for, the file system's part included.
        grow(&file, &path, &told("20Mi", "20Mi"));
        assert_eq!(path.metadata().unwrap().len(), 20 * MIB);
        grow(&file, &path, &told("40Mi", "40Mi"));
        assert_eq!(path.metadata().unwrap().len(), 37 * MIB);
        let told = make(&dir.path().join("x"), &told("9Ei", "9Ei"), &notes).unwrap_err().to_string();
        assert!(told.contains("room") && told.contains("10 %"), "{told}");
    }

    #[test]
    fn an_image_that_has_all_of_its_place_keeps_that_when_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(path::DISK_IMAGE);
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        grow(&OpenOptions::new().write(true).open(&path).unwrap(), &path, &told("4Mi", "4Mi"));
        let seen = path.metadata().unwrap();
        assert_eq!((seen.len(), probe::is_allocated(&seen)), (3 * MIB, true));
    }
}
