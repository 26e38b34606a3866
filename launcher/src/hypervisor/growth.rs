//! Disks that grow.

use virt::domain::Domain;
use virt::sys;

use super::HypervisorError;
use super::libvirt::wrong;
use crate::domain::schema::Domain as Described;

const ACTION: &str = "let a disk grow";

/// Has the disk with this alias grow to `size` bytes, and says whether it did; one that is as large stays.
pub(super) fn grow(
    domain: &Domain,
    described: &Described,
    alias: &str,
    size: u64,
) -> Result<bool, HypervisorError> {
    let disk = described.devices.disks.iter().find(|disk| disk.alias.name == alias);
    let disk = disk.ok_or_else(|| wrong(ACTION, format!("the domain has no disk {alias}")))?;
    let place = &disk.target.dev;
    let refused = |error: virt::error::Error| wrong(ACTION, error.message().to_owned());
    if domain.get_block_info(place, 0).map_err(refused)?.capacity >= size {
        return Ok(false);
    }
    domain.block_resize(place, size, sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES).map_err(refused)?;
    Ok(true)
}
