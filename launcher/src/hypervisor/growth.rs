//! Disks that grow.

use podvirt_api::names::path;
use virt::domain::Domain;
use virt::sys;

use super::HypervisorError;
use super::libvirt::wrong;
use crate::domain::schema::{Disk, Domain as Described};

const ACTION: &str = "let a disk grow";
/// The type of a disk that is a device of the node.
const DEVICE: &str = "block";

/// The disk with this alias.
pub(super) fn disk<'a>(described: &'a Described, alias: &str) -> Result<&'a Disk, HypervisorError> {
    let disk = described.devices.disks.iter().find(|disk| disk.alias.name == alias);
    disk.ok_or_else(|| wrong(ACTION, format!("the domain has no disk {alias}")))
}

/// Bytes of a disk, as the guest sees it.
pub(super) fn capacity(domain: &Domain, disk: &Disk) -> Result<u64, HypervisorError> {
    let info = domain.get_block_info(&disk.target.dev, 0);
    Ok(info.map_err(|error| wrong(ACTION, error.message().to_owned()))?.capacity)
}

/// Has the disk with this alias grow to `size` bytes, and says whether it did. A disk that is as large already stays as it is.
///
/// So does a disk that uses a part of a plugged device: to let the disk grow, libvirt would have to open the device to see how large the
/// device is, and it may not. Such a disk becomes as large as its device when the machine is started the next time.
pub(super) fn grow(
    domain: &Domain,
    described: &Described,
    alias: &str,
    size: u64,
) -> Result<bool, HypervisorError> {
    let disk = disk(described, alias)?;
    let is_plugged = disk.source.path().is_some_and(|path| path.starts_with(path::FDSETS));
    if capacity(domain, disk)? >= size || (is_plugged && disk.source.part.is_some()) {
        return Ok(false);
    }
    // The beginning of a device, to which a smaller disk has moved, becomes the whole device.
    let whole = if disk.kind == DEVICE { sys::VIR_DOMAIN_BLOCK_RESIZE_CAPACITY } else { 0 };
    let flags = sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES | whole;
    let resized = domain.block_resize(&disk.target.dev, size, flags);
    resized.map_err(|error| wrong(ACTION, error.message().to_owned()))?;
    Ok(true)
}
