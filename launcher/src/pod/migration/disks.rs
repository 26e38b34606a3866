//! Which disks a migration copies.
//!
//! What becomes of a volume is virt-controller's to judge, and [`podvirt_api::storage`] reads it: what is on a claim is the
//! same at both ends, what the guest writes to a file of the pod is copied. A disk that the guest cannot write is there at
//! the other end already. Before anything moves the judgement is held against the disks as the
//! hypervisor has them: a disk whose file is on a claim is never copied unless its volume moves to another claim, and a disk that is
//! said to be shared is on its claim. A machine of which the two do not agree stays where it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use podvirt_api::names::path;
use podvirt_api::storage::{self, Fate};
use podvirt_api::v1::VirtualMachineInstance;

use crate::domain::schema::Domain;
use crate::fdset;

/// What becomes of a machine's disks.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Disks {
    /// Places of those that are copied.
    pub(super) copied: Vec<String>,
    /// Whether some are shared.
    pub(super) shared: bool,
}

/// Why it is not known what becomes of a disk, or why it cannot move.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum DisksError {
    /// virt-controller has not said it.
    #[error(transparent)]
    Unjudged(#[from] storage::Obstacle),
    /// The copy would be another disk, of which its overlay knows nothing.
    #[error(
        "disk {0}: its changed blocks are tracked, so it does not move to another claim; it does once the machine is not tracked \
         any more and was restarted"
    )]
    Tracked(String),
    /// What virt-controller says and where the disk is do not agree.
    #[error(
        "disk {place}: volume {volume} is {fate:?} by the VMI's status, which contradicts its file {}; nothing is moved",
        .file.display()
    )]
    Contradiction {
        /// The disk's place.
        place: String,
        /// Its volume.
        volume: String,
        /// What virt-controller says.
        fate: Fate,
        /// Where it is.
        file: PathBuf,
    },
    /// virt-controller knows no such volume.
    #[error(
        "disk {place}: '{alias}' names no volume of the VMI, so what becomes of {} is not known; nothing is moved",
        .file.display()
    )]
    Unknown {
        /// The disk's place.
        place: String,
        /// Its alias.
        alias: String,
        /// Where it is.
        file: PathBuf,
    },
}

/// The disks of `domain`, whose VMI is `vmi` with its status.
///
/// # Errors
///
/// virt-controller has not said what becomes of a disk, or what it says does not agree with the disk.
pub(super) fn of(domain: &Domain, vmi: &VirtualMachineInstance) -> Result<Disks, DisksError> {
    let verdict = storage::verdict(vmi)?;
    let mut disks = Disks::default();
    for disk in &domain.devices.disks {
        let Some(path) = disk.source.data().filter(|_| disk.readonly.is_none()) else { continue };
        let place = &disk.target.dev;
        let fate = fate(&verdict, &disk.alias.name, place, Path::new(path))?;
        if fate == Fate::Shared {
            disks.shared = true;
        } else if disk.is_tracked() {
            return Err(DisksError::Tracked(place.clone()));
        } else {
            disks.copied.push(place.clone());
        }
    }
    Ok(disks)
}

/// What becomes of the disk at `place` that the guest writes to `file`, or to a block device.
fn fate(verdict: &BTreeMap<&str, Fate>, alias: &str, place: &str, file: &Path) -> Result<Fate, DisksError> {
    // Our own names; libvirt leaves them alone.
    let volume = alias.strip_prefix("ua-").unwrap_or_default();
    let fate = verdict.get(volume).copied();
    let own_claim = [
        path::claim_image(volume),
        path::claim_device(volume),
        // Of a volume that was plugged.
        path::plugged_image(volume),
        fdset::place(volume),
    ];
    let on_own_claim = own_claim.iter().any(|own| file == own);
    let of_claims = [path::VMI_DISKS, path::DEV, path::HOTPLUG_DISKS];
    let on_a_claim = of_claims.iter().any(|directory| file.starts_with(directory));
    let (place, file) = (place.to_owned(), file.to_owned());
    match fate {
        Some(Fate::Shared) if on_own_claim => Ok(Fate::Shared),
        Some(Fate::Moved) if on_own_claim => Ok(Fate::Copied),
        // What is made anew lacks what the guest wrote to it.
        Some(Fate::Copied | Fate::MadeAnew) if !on_a_claim => Ok(Fate::Copied),
        Some(fate) => Err(DisksError::Contradiction { place, volume: volume.to_owned(), fate, file }),
        None => Err(DisksError::Unknown { place, alias: alias.to_owned(), file }),
    }
}

#[cfg(test)]
#[path = "disks_tests.rs"]
mod tests;
