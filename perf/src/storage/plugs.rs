//! How long it takes to plug a disk into a running machine, and to unplug it.

use std::io::Write;
use std::time::Instant;

use anyhow::Result;
use podvirt_api::v1::{VirtualMachineInstance, VolumePhase};
use podvirt_e2e::cluster::{BOOT, Manifest, Namespace, SOON};
use serde::{Deserialize, Serialize};

use super::disks::{NODE, claim};
use crate::start::{Spread, millis};

/// The volume that comes and goes.
const VOLUME: &str = "plugged";

/// What a client sees: virtctl is started, and a watch shows the instance as it should be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plugs {
    /// How many times.
    pub(super) count: u32,
    /// Until the instance says that the guest has the disk.
    pub(super) plug: Spread,
    /// Until the instance no longer tells of it.
    pub(super) unplug: Spread,
}

/// Plugs and unplugs, on both buses in turns.
///
/// # Errors
/// A disk does not come or go.
pub(super) fn measure(namespace: &Namespace<'_>, count: u32, out: &mut impl Write) -> Result<Option<Plugs>> {
    claim(namespace, VOLUME, "Filesystem", "64Mi")?;
    let spec = format!("nodeSelector: {{kubernetes.io/hostname: {NODE}}}");
    namespace.apply(&Manifest { name: "plugs", spec: &spec, ..Default::default() }.machine())?;
    namespace.wait_phase("plugs", "Running", BOOT)?;
    // A guest that is not up yet does not take a disk away.
    let shell = namespace.shell("plugs")?;
    let (mut plug, mut unplug) = (Vec::new(), Vec::new());
    for cycle in 0..count {
        let bus = if cycle % 2 == 0 { "--bus=virtio" } else { "--bus=scsi" };
        let named = format!("--volume-name={VOLUME}");
        plug.push(timed(namespace, &["addvolume", "plugs", &named, bus], |phase| {
            phase == Some(&VolumePhase::Ready)
        })?);
        unplug.push(timed(namespace, &["removevolume", "plugs", &named], |phase| phase.is_none())?);
        writeln!(out, "{bus}: plugged in {:.0} ms, unplugged in {:.0} ms", last(&plug), last(&unplug))?;
    }
    drop(shell);
    namespace.kubectl(&["delete", "vm", "plugs", "--wait=false"])?;
    namespace.wait_gone::<VirtualMachineInstance>("plugs", SOON)?;
    let spreads = Spread::of(plug).zip(Spread::of(unplug));
    Ok(spreads.map(|(plug, unplug)| Plugs { count, plug, unplug }))
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or_default()
}

/// Milliseconds from the start of virtctl until the volume's phase is as wanted.
fn timed(
    namespace: &Namespace<'_>,
    virtctl: &[&str],
    wanted: impl Fn(Option<&VolumePhase>) -> bool,
) -> Result<f64> {
    let start = Instant::now();
    namespace.virtctl(virtctl)?;
    namespace.wait(
        "plugs",
        virtctl.first().copied().unwrap_or_default(),
        BOOT,
        |vmi: &VirtualMachineInstance| {
            // One that is still told of has a phase.
            let volume = vmi.status.volume_status.iter().find(|volume| volume.name == VOLUME);
            wanted(volume.and_then(|volume| volume.phase.as_ref()))
                && (volume.is_none() || volume.is_some_and(|volume| !volume.target.is_empty()))
        },
    )?;
    Ok(millis(start.elapsed()))
}
