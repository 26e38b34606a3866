//! Disks that grow while the machine runs, because their claims were expanded.
//!
//! virt-controller tells of a claim's new capacity in the VMI's status, for which virt-handler gives the VMI again. The device has
//! grown by then, or the file system around the disk image. QEMU makes the image larger, and tells the guest.

use std::sync::Arc;

use podvirt_api::names::path;
use podvirt_api::storage::{claim, is_block, is_hotpluggable, told};
use podvirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance};
use tracing::{info, warn};

use super::held::size;
use super::shared::Shared;
use crate::domain::alias_of;
use crate::hypervisor::HypervisorError;
use crate::media::claims::possible;

/// Why a disk does not grow.
#[derive(Debug, thiserror::Error)]
pub(super) enum GrowthError {
    /// The VMI cannot be read.
    #[error("vmi")]
    Vmi(#[from] serde_json::Error),
    /// The hypervisor refuses.
    #[error("volume {volume}")]
    Refused {
        /// The disk's volume.
        volume: String,
        /// Why.
        source: HypervisorError,
    },
}

/// Has the disks of the running machine grow as far as their claims have.
///
/// # Errors
///
/// The hypervisor refuses; the volume is named.
pub(super) async fn follow(shared: &Arc<Shared>, json: &[u8]) -> Result<(), GrowthError> {
    let Written { told, plugged } = written(json)?;
    for (volume, told) in told {
        let device = shared.held.device(&volume);
        let path = match shared.held.has(&volume) {
            true => path::plugged_image(&volume),
            false if plugged.contains(&volume) => continue,
            false if is_block(&told) => path::claim_device(&volume),
            false => path::claim_image(&volume),
        };
        let size = match device.map_or_else(|| possible(&path, &told), |device| size(&device).map(Some)) {
            Ok(Some(size)) => size,
            Ok(None) => continue,
            Err(error) => {
                warn!(volume, %error, "whether the disk's claim has grown cannot be seen");
                continue;
            }
        };
        let alias = alias_of(&volume);
        let grown = shared.call(move |hypervisor| hypervisor.grow(&alias, size)).await;
        match grown {
            Ok(true) => info!(volume, size, "the disk has grown with its claim"),
            Ok(false) => {}
            Err(source) => return Err(GrowthError::Refused { volume, source }),
        }
    }
    Ok(())
}

/// Volumes on claims that the guest writes to.
#[derive(Debug, Default)]
struct Written {
    /// What is told of each claim, with the volume's name.
    told: Vec<(String, PersistentVolumeClaimInfo)>,
    /// Names of the volumes that are plugged once the machine runs.
    plugged: Vec<String>,
}

/// The volumes of a VMI on claims that the guest writes to.
fn written(json: &[u8]) -> serde_json::Result<Written> {
    let vmi: Box<VirtualMachineInstance> = serde_json::from_slice(json)?;
    let mut told = told(&vmi);
    let disks = vmi.spec.domain.devices.disks.iter().filter(|disk| disk.cdrom.is_none());
    let volumes = disks.filter_map(|disk| vmi.spec.volumes.iter().find(|volume| volume.name == disk.name));
    let volumes = volumes.filter(|volume| claim(volume).is_some_and(|claim| !claim.read_only));
    let mut written = Written::default();
    for volume in volumes {
        if is_hotpluggable(volume) {
            written.plugged.push(volume.name.clone());
        }
        written.told.extend(told.remove_entry(&volume.name));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disks_on_claims_that_the_guest_writes_may_grow() {
        let claim = |name: &str| json!({"claimName": name});
        let status = ["data", "books", "over", "image", "films", "unused"]
            .map(|name| json!({"name": name, "target": "", "persistentVolumeClaimInfo": claim(name)}));
        let vmi = json!({
            "metadata": {"name": "web"},
            "spec": {
                "domain": {"devices": {"disks": [
                    {"name": "data"}, {"name": "books"}, {"name": "over"}, {"name": "image"}, {"name": "films", "cdrom": {}},
                ]}},
                "volumes": [
                    {"name": "data", "dataVolume": {"name": "data", "hotpluggable": true}},
                    {"name": "books", "persistentVolumeClaim": {"claimName": "books", "readOnly": true}},
                    {"name": "over", "ephemeral": {"persistentVolumeClaim": claim("over")}},
                    {"name": "image", "containerDisk": {"image": "i"}},
                    {"name": "films", "persistentVolumeClaim": claim("films")},
                    {"name": "unused", "persistentVolumeClaim": claim("unused")},
                ],
            },
            "status": {"volumeStatus": status},
        });
        let found = written(&serde_json::to_vec(&vmi).unwrap()).unwrap();
        assert_eq!(found.told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["data"]);
        assert_eq!(found.plugged, ["data"]);
    }
}
