//! Volumes that move to other claims together with their machine.
//!
//! The target's pod has the other claims, under the paths that the source's have: each disk is copied from the one to the other as
//! disks of the pod are. QEMU copies onto images of the same size alone. So before anything moves the source tells the target how
//! large each disk is ([`super::word`]), and the target makes a disk image of that size; of a device that is larger, libvirt uses
//! the beginning. Where the one claim is a device and the other has a disk image, the machine gets another description, too.
//!
//! A volume that was plugged moves in the same way. Its claims are held by other pods: the target's launcher has a descriptor of the
//! disk ([`super::super::held`]). libvirt cannot open such a device to see how large it is, so the description says which part is used.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Seek as _, SeekFrom};
use std::path::PathBuf;

use podvirt_api::names::path;
use podvirt_api::storage::{is_block, is_hotpluggable, moving};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::migration::word::DISK;

use super::super::held::{self, Held};
use super::super::shared::Shared;
use super::word::{Promise, WordError};
use crate::domain::alias_of;
use crate::fdset;
use crate::hypervisor::HypervisorError;
use crate::xml_tree::{Document, Node, TreeError};

/// A volume that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pod) struct Moved {
    /// Its name.
    pub(in crate::pod) volume: String,
    /// Whether the claim that it moves to is a device.
    pub(in crate::pod) to_device: bool,
    /// Whether the claim that it leaves is a device.
    from_device: bool,
    /// Whether it was plugged.
    plugged: bool,
}

impl Moved {
    /// Where the machine finds its disk at the target.
    fn place(&self) -> PathBuf {
        match (self.plugged, self.to_device) {
            (false, true) => path::claim_device(&self.volume),
            (false, false) => path::claim_image(&self.volume),
            (true, true) => fdset::place(&self.volume),
            (true, false) => path::plugged_image(&self.volume),
        }
    }
}

/// The volumes of `vmi` that move.
pub(in crate::pod) fn all(vmi: &VirtualMachineInstance) -> Vec<Moved> {
    let moved = |volume: &podvirt_api::v1::Volume| {
        let info = moving(vmi, volume)?;
        Some(Moved {
            volume: volume.name.clone(),
            to_device: is_block(info.destination_pvc_info.as_ref()?),
            from_device: is_block(info.source_pvc_info.as_ref()?),
            plugged: is_hotpluggable(volume),
        })
    };
    vmi.spec.volumes.iter().filter_map(moved).collect()
}

/// What keeps a volume from moving to its other claim.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum MovedError {
    /// The hypervisor does not tell how large its disk is.
    #[error("volume {volume}")]
    Size {
        /// The volume.
        volume: String,
        /// Why.
        source: HypervisorError,
    },
    /// The target's launcher is of another release.
    #[error("volume {0}: the target's launcher takes no volume to another claim")]
    Untaken(String),
    /// The target's launcher refuses it.
    #[error(transparent)]
    Target(#[from] WordError),
    /// The source's launcher says what is not understood.
    #[error("'{0}' does not tell of a disk")]
    Line(String),
    /// The source's launcher means another volume.
    #[error("volume {0} does not move")]
    Stays(String),
    /// Its disk does not fit.
    #[error("volume {volume}: {bytes} bytes: {}", .place.display())]
    NoRoom {
        /// The volume.
        volume: String,
        /// Bytes of its disk.
        bytes: u64,
        /// Where it is to be.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The machine's description cannot be changed.
    #[error(transparent)]
    Description(#[from] TreeError),
}

/// Bytes of the disks of volumes that move, by volume.
pub(super) type Sizes = BTreeMap<String, u64>;

/// How large the disks of these volumes are.
///
/// # Errors
///
/// The hypervisor does not tell; the volume is named.
pub(super) async fn sizes(shared: &Shared, moved: &[Moved]) -> Result<Sizes, MovedError> {
    let mut sizes = Sizes::new();
    for Moved { volume, .. } in moved {
        let alias = alias_of(volume);
        let bytes = shared.call(move |hypervisor| hypervisor.capacity(&alias)).await;
        let bytes = bytes.map_err(|source| MovedError::Size { volume: volume.clone(), source })?;
        sizes.insert(volume.clone(), bytes);
    }
    Ok(sizes)
}

/// Has the target make room for disks that move to other claims.
///
/// # Errors
///
/// The target's launcher refuses a disk, or is of a release that takes none.
pub(super) async fn make_room(sizes: &Sizes, promise: Option<&mut Promise>) -> Result<(), MovedError> {
    let Some((first, _)) = sizes.first_key_value() else { return Ok(()) };
    let promise = promise.ok_or_else(|| MovedError::Untaken(first.clone()))?;
    for (volume, bytes) in sizes {
        promise.disk(volume, *bytes).await?;
    }
    Ok(())
}

/// What the source says of a disk of `bytes`.
pub(super) fn line(volume: &str, bytes: u64) -> String {
    format!("{DISK} {volume} {bytes}")
}

/// Makes ready what the source's `line` says, if it speaks of one of `expected`, the volumes that move here. The disks of plugged volumes
/// are among `held`.
///
/// # Errors
///
/// The line is none of these, or there is no room for the disk.
pub(super) fn make_ready(line: &str, expected: &[Moved], held: &Held) -> Result<(), MovedError> {
    let parsed = line.strip_prefix(DISK).and_then(|rest| rest.trim_start().split_once(' '));
    let parsed = parsed.and_then(|(volume, bytes)| Some((volume, bytes.parse::<u64>().ok()?)));
    let (volume, bytes) = parsed.ok_or_else(|| MovedError::Line(line.to_owned()))?;
    let moved = expected.iter().find(|moved| moved.volume == volume);
    let moved = moved.ok_or_else(|| MovedError::Stays(volume.to_owned()))?;
    let place = moved.place();
    let ready = match (moved.to_device, held.device(volume)) {
        // virt-launcher may not open the device of a plugged volume, and has a descriptor of it.
        (true, Some(device)) if moved.plugged => held::size(&device).and_then(|size| fits(size, bytes)),
        (true, _) => size_of(&place).and_then(|size| fits(size, bytes)),
        (false, _) => resize(&place, bytes),
    };
    ready.map_err(|source| MovedError::NoRoom { volume: volume.to_owned(), bytes, place, source })
}

/// Bytes of a file or device.
fn size_of(place: &std::path::Path) -> io::Result<u64> {
    OpenOptions::new().read(true).open(place)?.seek(SeekFrom::End(0))
}

/// Gives a disk image this size. What is in it is written over.
fn resize(image: &std::path::Path, bytes: u64) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(image)?.set_len(bytes)
}

/// Whether a disk of this size fits a device of `size` bytes.
fn fits(size: u64, bytes: u64) -> io::Result<()> {
    if size < bytes {
        return Err(io::Error::other(format!("the device has {size} bytes")));
    }
    Ok(())
}

/// The machine's description for the target, where it is another one than `xml`, the source's. `sizes`: bytes of the volumes' disks.
///
/// # Errors
///
/// It cannot be read.
pub(super) fn description(xml: &str, moved: &[Moved], sizes: &Sizes) -> Result<Option<String>, MovedError> {
    let is_part = |moved: &Moved| moved.plugged && moved.to_device;
    let is_other = |moved: &&Moved| moved.from_device != moved.to_device || is_part(moved);
    let changed: Vec<&Moved> = moved.iter().filter(is_other).collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let mut document = Document::read(xml)?;
    for devices in document.root.all_mut("devices") {
        for disk in devices.all_mut("disk") {
            let alias = disk.child("alias").and_then(|alias| alias.value("name")).unwrap_or_default();
            let Some(moved) = changed.iter().find(|moved| alias_of(&moved.volume) == alias) else { continue };
            let (kind, attribute) = if moved.to_device { ("block", "dev") } else { ("file", "file") };
            disk.set("type", kind);
            let path = moved.place().display().to_string();
            for source in disk.all_mut("source") {
                source.attributes = vec![(attribute.to_owned(), path.clone())];
                let bytes = sizes.get(&moved.volume).filter(|_| is_part(moved));
                source.children = bytes.map(|bytes| beginning(*bytes)).into_iter().collect();
            }
        }
    }
    Ok(Some(document.write()))
}

/// The part of a disk's description by which libvirt uses the first `bytes` of its device alone.
fn beginning(bytes: u64) -> Node {
    Node::Raw(format!("<slices><slice type=\"storage\" offset=\"0\" size=\"{bytes}\"/></slices>"))
}

#[cfg(test)]
mod tests {
    use podvirt_api::error::chain;

    use super::*;

    fn moved(volume: &str, from_device: bool, to_device: bool) -> Moved {
        Moved { volume: volume.into(), to_device, from_device, plugged: false }
    }

    const XML: &str = "<domain type=\"kvm\"><devices><disk type=\"file\" device=\"disk\"><driver name=\"qemu\" type=\"raw\"/>\
        <source file=\"/var/run/kubevirt-private/vmi-disks/data/disk.img\" index=\"1\"/><target dev=\"vda\" bus=\"virtio\"/>\
        <alias name=\"ua-data\"/></disk><disk type=\"file\" device=\"disk\"><source file=\"/a\"/><alias name=\"ua-root\"/></disk>\
        </devices></domain>";

    #[test]
    fn a_disk_image_that_becomes_a_device_is_described_anew() {
        let sizes = BTreeMap::from([("data".to_owned(), 512)]);
        let description = |xml: &str, moved: &[Moved]| super::description(xml, moved, &sizes);
        assert_eq!(description(XML, &[moved("data", false, false)]).unwrap(), None);
        let written = description(XML, &[moved("data", false, true)]).unwrap().unwrap();
        let expected = XML.replacen("type=\"file\"", "type=\"block\"", 1).replace(
            "file=\"/var/run/kubevirt-private/vmi-disks/data/disk.img\" index=\"1\"",
            "dev=\"/dev/data\"",
        );
        assert_eq!(written.trim_end(), expected);
        let back = description(&written, &[moved("data", true, false)]).unwrap().unwrap();
        assert_eq!(back.trim_end(), XML.replace(" index=\"1\"", ""));
        // The disk of a plugged volume is a descriptor that virt-launcher has.
        let [image, device] = [false, true].map(|to| Moved { plugged: true, ..moved("data", !to, to) });
        let written = description(XML, std::slice::from_ref(&device)).unwrap().unwrap();
        let part = "<slices><slice type=\"storage\" offset=\"0\" size=\"512\"/></slices></source>";
        let place = fdset::place("data").display().to_string();
        assert!(written.contains(&format!("<source dev=\"{place}\">{part}")), "{written}");
        let device = Moved { from_device: true, ..device };
        assert_eq!(description(&written, &[device]).unwrap().unwrap().trim_end(), written.trim_end());
        let back = description(&written, &[image]).unwrap().unwrap();
        assert!(back.contains("file=\"/var/run/kubevirt/hotplug-disks/data.img\""), "{back}");
    }

    #[test]
    fn only_what_moves_is_made_ready() {
        let (expected, held) = ([moved("data", false, true)], Held::default());
        for (said, why) in [
            ("disk other 5", "volume other does not move"),
            ("disk data many", "'disk data many' does not tell of a disk"),
            ("disk", "'disk' does not tell of a disk"),
        ] {
            assert_eq!(chain(&make_ready(said, &expected, &held).unwrap_err()), why);
        }
        let error = chain(&make_ready(&line("data", 5), &expected, &held).unwrap_err());
        assert!(error.starts_with("volume data: 5 bytes: /dev/data: "), "{error}");
    }

    #[test]
    fn an_image_gets_the_size_of_the_disk_that_comes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        for bytes in [4096, 1 << 20, 512] {
            resize(&image, bytes).unwrap();
            assert_eq!(image.metadata().unwrap().len(), bytes);
            fits(size_of(&image).unwrap(), bytes).unwrap();
        }
        assert!(fits(size_of(&image).unwrap(), 513).unwrap_err().to_string().contains("512 bytes"));
    }
}
