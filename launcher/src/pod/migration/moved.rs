//! Volumes that move to other claims together with their machine.
//!
//! The target's pod has the other claims, under the paths that the source's have: each disk is copied from the one to the other as
//! disks of the pod are. QEMU copies onto images of the same size alone. So before anything moves the source tells the target how
//! large each disk is ([`super::word`]), and the target makes a disk image of that size; of a device that is larger, libvirt uses
//! the beginning. Where the one claim is a device and the other has a disk image, the machine gets another description, too.

use std::fs::OpenOptions;
use std::io::{self, Seek as _, SeekFrom};
use std::path::PathBuf;

use podvirt_api::names::path;
use podvirt_api::storage::{is_block, moving};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::migration::word::DISK;

use crate::domain::alias_of;
use crate::xml_tree::Document;

/// A volume that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pod) struct Moved {
    /// Its name.
    pub(in crate::pod) volume: String,
    /// Whether the claim that it moves to is a device.
    pub(in crate::pod) to_device: bool,
    /// Whether the claim that it leaves is a device.
    from_device: bool,
}

/// The volumes of `vmi` that move.
pub(in crate::pod) fn all(vmi: &VirtualMachineInstance) -> Vec<Moved> {
    let moved = |volume: &podvirt_api::v1::Volume| {
        let info = moving(vmi, volume)?;
        Some(Moved {
            volume: volume.name.clone(),
            to_device: is_block(info.destination_pvc_info.as_ref()?),
            from_device: is_block(info.source_pvc_info.as_ref()?),
        })
    };
    vmi.spec.volumes.iter().filter_map(moved).collect()
}

/// What the source says of a disk of `bytes`.
pub(super) fn line(volume: &str, bytes: u64) -> String {
    format!("{DISK} {volume} {bytes}")
}

/// Makes ready what the source's `line` says, if it speaks of one of `expected`, the volumes that move here.
///
/// # Errors
///
/// The line is none of these, or there is no room for the disk.
pub(super) fn make_ready(line: &str, expected: &[Moved]) -> Result<(), String> {
    let parsed = line.strip_prefix(DISK).and_then(|rest| rest.trim_start().split_once(' '));
    let parsed = parsed.and_then(|(volume, bytes)| Some((volume, bytes.parse::<u64>().ok()?)));
    let (volume, bytes) = parsed.ok_or_else(|| format!("'{line}' does not tell of a disk"))?;
    let moved = expected.iter().find(|moved| moved.volume == volume);
    let moved = moved.ok_or_else(|| format!("volume {volume} does not move"))?;
    let place = place(volume, moved.to_device);
    let ready = if moved.to_device { fits(&place, bytes) } else { resize(&place, bytes) };
    ready.map_err(|error| format!("volume {volume}: {bytes} bytes: {}: {error}", place.display()))
}

fn place(volume: &str, device: bool) -> PathBuf {
    if device { path::claim_device(volume) } else { path::claim_image(volume) }
}

/// Gives a disk image this size. What is in it is written over.
fn resize(image: &std::path::Path, bytes: u64) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(image)?.set_len(bytes)
}

/// Whether a disk of this size fits a device.
fn fits(device: &std::path::Path, bytes: u64) -> io::Result<()> {
    let size = OpenOptions::new().read(true).open(device)?.seek(SeekFrom::End(0))?;
    if size < bytes {
        return Err(io::Error::other(format!("the device has {size} bytes")));
    }
    Ok(())
}

/// The machine's description for the target, where it is another one than `xml`, the source's.
///
/// # Errors
///
/// It cannot be read.
pub(super) fn description(xml: &str, moved: &[Moved]) -> Result<Option<String>, String> {
    let changed: Vec<&Moved> = moved.iter().filter(|moved| moved.from_device != moved.to_device).collect();
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
            let path = place(&moved.volume, moved.to_device).display().to_string();
            for source in disk.all_mut("source") {
                source.attributes = vec![(attribute.to_owned(), path.clone())];
                source.children.clear();
            }
        }
    }
    Ok(Some(document.write()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(volume: &str, from_device: bool, to_device: bool) -> Moved {
        Moved { volume: volume.into(), to_device, from_device }
    }

    const XML: &str = "<domain type=\"kvm\"><devices><disk type=\"file\" device=\"disk\"><driver name=\"qemu\" type=\"raw\"/>\
        <source file=\"/var/run/kubevirt-private/vmi-disks/data/disk.img\" index=\"1\"/><target dev=\"vda\" bus=\"virtio\"/>\
        <alias name=\"ua-data\"/></disk><disk type=\"file\" device=\"disk\"><source file=\"/a\"/><alias name=\"ua-root\"/></disk>\
        </devices></domain>";

    #[test]
    fn a_disk_image_that_becomes_a_device_is_described_anew() {
        assert_eq!(description(XML, &[moved("data", false, false)]), Ok(None));
        let written = description(XML, &[moved("data", false, true)]).unwrap().unwrap();
        let expected = XML.replacen("type=\"file\"", "type=\"block\"", 1).replace(
            "file=\"/var/run/kubevirt-private/vmi-disks/data/disk.img\" index=\"1\"",
            "dev=\"/dev/data\"",
        );
        assert_eq!(written.trim_end(), expected);
        let back = description(&written, &[moved("data", true, false)]).unwrap().unwrap();
        assert_eq!(back.trim_end(), XML.replace(" index=\"1\"", ""));
    }

    #[test]
    fn only_what_moves_is_made_ready() {
        let expected = [moved("data", false, true)];
        for (said, why) in [
            ("disk other 5", "volume other does not move"),
            ("disk data many", "'disk data many' does not tell of a disk"),
            ("disk", "'disk' does not tell of a disk"),
        ] {
            assert_eq!(make_ready(said, &expected), Err(why.to_owned()));
        }
        assert!(
            make_ready(&line("data", 5), &expected)
                .unwrap_err()
                .starts_with("volume data: 5 bytes: /dev/data: ")
        );
    }

    #[test]
    fn an_image_gets_the_size_of_the_disk_that_comes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        for bytes in [4096, 1 << 20, 512] {
            resize(&image, bytes).unwrap();
            assert_eq!(image.metadata().unwrap().len(), bytes);
            fits(&image, bytes).unwrap();
        }
        assert!(fits(&image, 513).unwrap_err().to_string().contains("512 bytes"));
    }
}
