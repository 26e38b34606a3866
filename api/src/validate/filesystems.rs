//! File systems.

use std::collections::BTreeMap;

use crate::problem::{Problems, Reason};
use crate::vmi::{VirtualMachineInstance, Volume};

use super::is_dns_label;

const FILESYSTEMS: &str = "spec.domain.devices.filesystems";
/// Most bytes of a tag, by which a guest mounts a file system (virtio 1.2, section 5.11.4).
const TAG_MAX: usize = 36;
/// What a guest may have as a file system.
const SOURCES: &str = "persistentVolumeClaim, dataVolume, configMap, secret, serviceAccount and downwardAPI";

pub(super) fn check(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let mut seen = BTreeMap::new();
    for (n, filesystem) in vmi.spec.domain.devices.filesystems.iter().enumerate() {
        let (path, name) = (format!("{FILESYSTEMS}[{n}]"), &filesystem.name);
        let field = format!("{path}.name");
        if filesystem.virtiofs.is_none() {
            problems.required(format!("{path}.virtiofs"), "virtiofs is required");
        }
        if !is_dns_label(name) || name.len() > TAG_MAX {
            problems.invalid(&field, name, "at most 36 of a-z, 0-9 and '-' are allowed");
        }
        if let Some(other) = seen.insert(name, n) {
            problems.duplicate(&field, name, &format!("{FILESYSTEMS}[{other}].name"));
        }
        let Some((place, volume)) =
            vmi.spec.volumes.iter().enumerate().find(|(_, volume)| volume.name == *name)
        else {
            let message = format!("'{name}' is not the name of a volume in spec.volumes");
            problems.add(Reason::FieldValueNotFound, field, message);
            continue;
        };
        if !has_files(volume) {
            let allowed = format!("the source of spec.volumes[{place}] is no directory; allowed: {SOURCES}");
            problems.invalid(&field, name, &allowed);
        } else if volume.is_hotpluggable() {
            let allowed = format!("spec.volumes[{place}] is hotpluggable, and a file system is not plugged");
            problems.invalid(&field, name, &allowed);
        } else if volume.is_claim() && vmi.is_disk(volume) {
            let allowed = format!(
                "spec.volumes[{place}] is a disk as well, whose image the guest could change under itself; either is allowed"
            );
            problems.invalid(&field, name, &allowed);
        }
    }
}

fn has_files(volume: &Volume) -> bool {
    volume.is_claim()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.service_account.is_some()
        || volume.downward_api.is_some()
}
