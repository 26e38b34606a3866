//! Overlays of disks whose changes are tracked.
//!
//! An overlay is a qcow2 file without data of its own: the data is in the disk's own image or device, raw, as it is without an
//! overlay (qcow2's external data file, `data_file_raw`). What the overlay adds are bitmaps of changed blocks, which raw images have
//! no room for. It lies on the machine's backend claim, so the bitmaps are there at the next start.
//!
//! A bitmap is worth as much as the certainty that every change was tracked. So an overlay is used again only for the claim that it
//! was made for, and for a disk of the same size; otherwise it is made anew, without bitmaps, and the next backup copies everything.
//! Which claim it was made for is in a file beside it.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use tracing::info;

use super::claims::length;
use super::{MediaError, probe};
use crate::beneath;
use crate::domain::{Image, ImageFormat};

/// Where the virtual size is in qcow2's header, bytes (docs/interop/qcow2.txt in QEMU's sources).
const SIZE_AT: usize = 24;

/// Which disks of a machine have overlays.
#[derive(Clone, Debug, Default)]
pub struct Tracking {
    /// The directory of overlays.
    pub directory: PathBuf,
    /// What the data of each volume is on: its claim, or the path on the node.
    pub on: BTreeMap<String, String>,
    /// Whether the machine comes from another node: an overlay that is there is its own.
    pub incoming: bool,
}

impl Tracking {
    /// The image of a volume with its overlay, where it has one.
    ///
    /// # Errors
    ///
    /// The disk cannot be looked at, or the overlay cannot be made.
    pub fn of(&self, volume: &str, image: Image) -> Result<Image, MediaError> {
        self.of_length(volume, image, length)
    }

    /// The same of an image whose bytes `length` tells.
    ///
    /// # Errors
    ///
    /// As of [`Self::of`].
    pub fn of_length(
        &self,
        volume: &str,
        image: Image,
        length: impl FnOnce(&Path) -> io::Result<u64>,
    ) -> Result<Image, MediaError> {
        let (Some(on), ImageFormat::Raw) = (self.on.get(volume), image.format) else { return Ok(image) };
        let size = length(&image.path).map_err(|error| MediaError::file("measure", &image.path, error))?;
        let path = of(Tracked { volume, on, size }, &self.directory, self.incoming)?;
        Ok(probe::tracked(image, path))
    }
}

/// What an overlay is made for.
#[derive(Clone, Copy, Debug)]
struct Tracked<'a> {
    /// The volume's name.
    volume: &'a str,
    /// What the volume's data is on: its claim, or the path on the node.
    on: &'a str,
    /// Bytes of the data.
    size: u64,
}

/// The overlay of a disk in `directory`, which is made where there is none that fits. `incoming`: one that is there fits.
///
/// # Errors
///
/// The overlay cannot be made.
fn of(tracked: Tracked<'_>, directory: &Path, incoming: bool) -> Result<PathBuf, MediaError> {
    let name = format!("{}.qcow2", tracked.volume);
    let path = directory.join(&name);
    // The directory is on a claim: a link there is no overlay.
    let had = virtual_size(directory, &name);
    if incoming && had.is_some() {
        return Ok(path);
    }
    let size = tracked.size;
    let note = note(&path);
    let known = std::fs::read_to_string(&note).ok();
    if had == Some(size) && known.as_deref() == Some(tracked.on) {
        return Ok(path);
    }
    info!(
        volume = tracked.volume,
        on = tracked.on,
        size,
        was_on = known,
        was_of = had,
        "the overlay is made anew"
    );
    remove(tracked.volume, directory)?;
    std::fs::create_dir_all(directory).map_err(|error| MediaError::file("make", directory, error))?;
    make(&path, size)?;
    // Last: an overlay without its note is not used.
    std::fs::write(&note, tracked.on).map_err(|error| MediaError::file("write", &note, error))?;
    Ok(path)
}

/// Removes the overlay of a volume, if it has one.
///
/// # Errors
///
/// It cannot be removed.
pub fn remove(volume: &str, directory: &Path) -> Result<(), MediaError> {
    let path = directory.join(format!("{volume}.qcow2"));
    for file in [note(&path), path] {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(MediaError::file("remove", &file, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The file beside an overlay that says what the overlay was made for.
fn note(overlay: &Path) -> PathBuf {
    overlay.with_extension("on")
}

/// The size of the disk that an overlay is of, bytes; none where there is no overlay.
fn virtual_size(directory: &Path, name: &str) -> Option<u64> {
    let mut header = [0; SIZE_AT + 8];
    beneath::file(directory, name, OFlags::RDONLY).ok()?.read_exact(&mut header).ok()?;
    let [b'Q', b'F', b'I', 0xfb, .., a, b, c, d, e, f, g, h] = header else { return None };
    Some(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

/// Makes an overlay for data of `size` bytes.
///
/// qemu-img makes the file of the data as well, and would empty one that is there. So it is given a name beside the overlay, and what
/// it has made under that name is removed: QEMU goes by the machine's definition, and never looks for the name.
fn make(path: &Path, size: u64) -> Result<(), MediaError> {
    let data = path.with_extension("data");
    let options = format!("data_file={},data_file_raw=on", data.display());
    let output = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-o", &options])
        .arg(path)
        .arg(size.to_string())
        .output()
        .map_err(|error| MediaError::file("run qemu-img for", path, error))?;
    let removed = std::fs::remove_file(&data);
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(MediaError::QemuImg { path: path.to_owned(), message });
    }
    removed.map_err(|error| MediaError::file("remove", &data, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn has_qemu_img() -> bool {
        let has = Command::new("qemu-img").arg("--version").output().is_ok();
        if !has {
            eprintln!("SKIPPED: no qemu-img is installed; overlays are not made");
        }
        has
    }

    #[test]
    fn an_overlay_is_used_again_for_the_same_claim_and_size_alone() {
        if !has_qemu_img() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (data, directory) = (dir.path().join("disk.img"), dir.path().join("cbt"));
        let written = vec![7; 4096];
        std::fs::write(&data, &written).unwrap();
        let disk = std::fs::OpenOptions::new().write(true).open(&data).unwrap();
        disk.set_len(MIB).unwrap();
        let of = |on: &str, incoming: bool| {
            let on = [("root".to_owned(), on.to_owned())].into();
            let tracking = Tracking { directory: directory.clone(), on, incoming };
            let image = tracking.of("root", Image::new(&data, ImageFormat::Raw)).unwrap();
            assert_eq!(image.path, data);
            let path = image.overlay.unwrap();
            let inode = std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
            (path, inode)
        };
        let first = of("a", false);
        assert_eq!(virtual_size(&directory, "root.qcow2"), Some(MIB));
        assert_eq!(of("a", false), first, "it is there");
        let grown = |size: u64| disk.set_len(size).unwrap();
        grown(2 * MIB);
        assert_eq!(of("a", true), first, "the machine comes with it");
        let _made_anew = of("a", false);
        assert_eq!(virtual_size(&directory, "root.qcow2"), Some(2 * MIB));
        std::fs::write(note(&first.0), "b").unwrap();
        let _ = of("a", false);
        assert_eq!(std::fs::read_to_string(note(&first.0)).unwrap(), "a", "it was of another claim");
        assert_eq!(std::fs::read(&data).unwrap()[..4096], written, "the data stays");
        let names: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        remove("root", &directory).unwrap();
        remove("root", &directory).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_overlay_has_no_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.qcow2");
        let size = |name: &str| virtual_size(dir.path(), name);
        assert_eq!(size("x.qcow2"), None);
        std::fs::write(&path, [0; 64]).unwrap();
        assert_eq!(size("x.qcow2"), None);
        // Another volume's.
        std::fs::write(&path, b"QFI\xfb00000000000000000000\0\0\0\0\0\0\0\x07").unwrap();
        assert_eq!(size("x.qcow2"), Some(7));
        std::os::unix::fs::symlink("x.qcow2", dir.path().join("link.qcow2")).unwrap();
        assert_eq!(size("link.qcow2"), None);
        let on = [("x".to_owned(), "a".to_owned())].into();
        let tracking = Tracking { directory: dir.path().to_owned(), on, incoming: false };
        let image = || Image::new(dir.path().join("none"), ImageFormat::Raw);
        assert!(tracking.of("x", image()).unwrap_err().to_string().contains("cannot measure"));
        assert_eq!(tracking.of("y", image()).unwrap().overlay, None, "it is not tracked");
    }
}
