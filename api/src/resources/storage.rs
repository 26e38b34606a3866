//! How much of its node's storage a machine may take: the sizes of its pod's volumes.
//!
//! A guest's writes lie on the node unless they go to a claim: those to an `emptyDisk`, and those to a `containerDisk` or
//! to an `ephemeral` claim, which go to an overlay. All of them are files in one volume of the pod. Its size limit is what
//! a guest can fill; the kubelet evicts the pod of a guest that goes beyond, before it fills the node.
//!
//! An `emptyDisk` is as large as its capacity. An overlay grows up to the size of the disk below it, which is known only
//! once the image is on the node, after the pod was made: so an overlay counts as [`OVERLAY`], and a machine that needs
//! more, or is to have less, says so by its limit of `ephemeral-storage`, which is then the size of the volume.

use crate::quantity::Quantity;
use crate::v1;

use super::{MI, STORAGE};

/// What an overlay may grow to where the machine has no limit of its own, bytes: images for the cloud have disks of 2 to
/// 10 GiB.
pub const OVERLAY: u64 = 16 << 30;
/// What each of the pod's own small volumes may grow to, bytes: sockets, cloud-init's disks, and the logs of QEMU, libvirt
/// and the serial console, which are cut at some megabytes each.
pub const OWN: u64 = 256 * MI;

/// One part in this many of a disk is for the file system's and the format's own tables.
const TABLES: u64 = 64;

/// What the volume with the guest's disks may grow to, bytes.
pub fn disks(spec: &v1::VirtualMachineInstanceSpec) -> u64 {
    let limits = spec.domain.resources.as_ref().and_then(|r| r.limits.as_ref());
    let limit = limits.and_then(|l| l.get(STORAGE)).and_then(|q| q.0.parse::<Quantity>().ok());
    if let Some(limit) = limit.filter(Quantity::is_positive) {
        return limit.value();
    }
    let of = |volume: &v1::Volume| {
        if let Some(disk) = &volume.empty_disk {
            return disk.capacity.0.parse::<Quantity>().map_or(0, |q| q.value());
        }
        if volume.container_disk.is_some() || volume.ephemeral.is_some() { OVERLAY } else { 0 }
    };
    let disks = spec.volumes.iter().map(of).fold(0, u64::saturating_add);
    // Kubernetes computes with signed numbers.
    disks.saturating_add(disks / TABLES).saturating_add(OWN).min(i64::MAX.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GI: u64 = 1 << 30;

    fn limit(volumes: Value, resources: Value) -> u64 {
        let spec = json!({"domain": {"devices": {}, "resources": resources}, "volumes": volumes});
        disks(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_guest_may_write_what_its_disks_hold_and_no_more() {
        assert_eq!(limit(json!([]), json!({})), OWN);
        let empty = json!([
            {"name": "a", "emptyDisk": {"capacity": "64Gi"}},
            {"name": "b", "emptyDisk": {"capacity": "64Gi"}},
        ]);
        assert_eq!(limit(empty.clone(), json!({})), 128 * GI + 2 * GI + OWN);
        let overlays = json!([
            {"name": "a", "containerDisk": {"image": "i"}},
            {"name": "b", "ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "d", "cloudInitNoCloud": {"userData": "u"}},
        ]);
        assert_eq!(limit(overlays, json!({})), 2 * OVERLAY + GI / 2 + OWN);
        let own = json!({"limits": {"ephemeral-storage": "3Gi"}});
        assert_eq!(limit(empty, own), 3 * GI, "the machine's own word");
        let huge = json!([{"name": "a", "emptyDisk": {"capacity": "7Ei"}}, {"name": "b", "emptyDisk": {"capacity": "7Ei"}}]);
        assert_eq!(limit(huge, json!({})), i64::MAX.unsigned_abs());
    }
}
