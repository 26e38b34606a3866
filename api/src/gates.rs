//! Feature gates: what the cluster's administrator allows by `developerConfiguration.featureGates` of the KubeVirt object.
//!
//! Most of what podvirt carries out needs none. Those that are here let users do what upstream leaves to the administrator.

use crate::problem::{Problems, Reason};
use crate::v1;
use crate::vmi::{VirtualMachineInstance, Volume};

/// Hook sidecars.
pub const SIDECAR: &str = "Sidecar";
/// Claims as file systems of guests.
pub const FILESYSTEMS_OF_CLAIMS: &str = "EnableVirtioFsStorageVolumes";

/// Metrics of the node in its guests.
pub const DOWNWARD_METRICS: &str = "DownwardMetrics";

/// Whether the cluster's administrator has opened a gate.
pub fn is_open(config: &v1::KubeVirtConfiguration, gate: &str) -> bool {
    let developer = config.developer_configuration.as_ref();
    developer.is_some_and(|developer| developer.feature_gates.iter().any(|open| open == gate))
}

/// Judges what a machine has that a gate is before; in upstream's words.
pub(crate) fn check(
    vmi: &VirtualMachineInstance,
    config: &v1::KubeVirtConfiguration,
    problems: &mut Problems,
) {
    let on_claims = vmi.spec.domain.devices.filesystems.iter().filter(|filesystem| {
        let mut volumes = vmi.spec.volumes.iter();
        let of = volumes.find(|volume| volume.name == filesystem.name);
        of.is_some_and(Volume::is_claim)
    });
    if !is_open(config, FILESYSTEMS_OF_CLAIMS) {
        for _ in on_claims {
            let told = "virtiofs is not allowed: virtiofs feature gate is not enabled for PVC";
            problems.add(Reason::FieldValueInvalid, "spec.domain.devices.filesystems", told);
        }
    }
    if is_open(config, DOWNWARD_METRICS) {
        return;
    }
    if vmi.spec.domain.devices.downward_metrics.is_some() {
        let told =
            "downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled";
        problems.add(Reason::FieldValueInvalid, "spec.domain.devices.downwardMetrics", told);
    }
    for (n, _) in vmi.spec.volumes.iter().enumerate().filter(|(_, volume)| volume.downward_metrics.is_some())
    {
        let told = "downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.";
        problems.add(Reason::FieldValueInvalid, format!("spec.volumes[{n}]"), told);
    }
}
