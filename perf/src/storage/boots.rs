//! How long a machine takes from its manifest until its guest answers by the network, from an image and from a claim.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_e2e::artefacts;
use podvirt_e2e::cluster::talk::{GREETER, greeting};
use podvirt_e2e::cluster::{BOOT, Manifest, Namespace, SOON};
use serde::{Deserialize, Serialize};

use super::disks::{NODE, claim, copy, pod};
use crate::sides::turns;
use crate::start::{Spread, millis};

/// The image, and the size of its disk and of the claim.
const IMAGE: &str = "disk-large";
/// See [`IMAGE`].
pub(super) const GIB: u32 = 10;
/// The claim.
const ROOT: &str = "root";
/// Between two questions to a guest that boots.
const AGAIN: Duration = Duration::from_millis(20);

/// From the manifest to a guest that answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Boots {
    /// How many of each.
    pub(super) count: u32,
    /// A container disk whose image is on the node.
    pub(super) image: Spread,
    /// A claim.
    pub(super) claim: Spread,
}

/// What has been made before this process is in the cluster's network.
pub(super) struct Disk {
    /// The image.
    pub(super) image: PathBuf,
    /// The disk in it.
    file: tempfile::TempDir,
}

/// Makes the image, and takes the disk out of it.
///
/// # Errors
/// It cannot be made, or is none.
pub(super) fn prepare() -> Result<Disk> {
    let (image, file) = (artefacts::image(IMAGE)?, tempfile::tempdir()?);
    let blobs = image.join("blobs/sha256");
    for blob in std::fs::read_dir(&blobs).with_context(|| blobs.display().to_string())? {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(blob?.path()).arg("-C").arg(file.path()).arg("./disk/large.qcow2");
        // The other blobs tell of the layer.
        if tar.output()?.status.success() {
            return Ok(Disk { image, file });
        }
    }
    bail!("no disk is in {}", image.display())
}

/// Starts machines one after another, from both in turns.
///
/// # Errors
/// A machine does not come up.
pub(super) fn measure(
    namespace: &Namespace<'_>,
    disk: &Disk,
    count: u32,
    out: &mut impl Write,
) -> Result<Option<Boots>> {
    claim(namespace, ROOT, "Block", &format!("{GIB}Gi"))?;
    pod(namespace, "filler", &[ROOT], &[])?;
    copy(namespace, &disk.file.path().join("disk/large.qcow2"), "filler", "/tmp/disk")?;
    let fill = ["qemu-img", "convert", "-n", "-f", "qcow2", "-O", "host_device", "/tmp/disk", "/dev/root"];
    namespace.exec("filler", &fill)?;
    namespace.kubectl(&["delete", "pod", "filler"])?;

    let spec = format!("nodeSelector: {{kubernetes.io/hostname: {NODE}}}");
    let manifest = Manifest { name: "boots", spec: &spec, ..Default::default() }.instance();
    let [image, from_claim] = [
        format!("containerDisk: {{image: 'podvirt/{IMAGE}:dev'}}"),
        format!("persistentVolumeClaim: {{claimName: {ROOT}}}"),
    ];
    let of_tiny = "containerDisk: {image: 'podvirt/disk-tiny:dev'}";
    ensure!(manifest.contains(of_tiny), "{manifest}");
    let manifests = [image, from_claim].map(|volume| manifest.replace(of_tiny, &volume));
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..count {
        for side in turns(manifests.len(), round) {
            let (Some(manifest), Some(times)) = (manifests.get(side), times.get_mut(side)) else { continue };
            let start = Instant::now();
            namespace.apply(manifest)?;
            answers(namespace, "boots")?;
            times.push(millis(start.elapsed()));
            namespace.kubectl(&["delete", "vmi", "boots", "--wait=false"])?;
            namespace.wait_gone::<VirtualMachineInstance>("boots", SOON)?;
        }
        let last = |at: usize| times.get(at).and_then(|t| t.last()).copied().unwrap_or_default();
        writeln!(out, "boot {}: image {:.0} ms, claim {:.0} ms", round + 1, last(0), last(1))?;
    }
    let [image, claim] = times.map(Spread::of);
    Ok(image.zip(claim).map(|(image, claim)| Boots { count, image, claim }))
}

/// Waits until the guest says something at its greeter's port.
fn answers(namespace: &Namespace<'_>, name: &str) -> Result<()> {
    let vmi = namespace.wait_phase(name, "Running", BOOT)?;
    let addresses = vmi.status.interfaces.iter().filter_map(|one| one.ip_address.as_ref());
    let mut addresses = addresses.filter_map(|text| text.parse::<IpAddr>().ok());
    let address = match addresses.next() {
        Some(address) => address,
        None => {
            let pod = namespace.launcher(name)?.status.context("a pod without a status")?;
            pod.pod_ip.context("a pod without an address")?.parse()?
        }
    };
    let end = Instant::now() + BOOT;
    while greeting(address, GREETER).is_none() {
        ensure!(Instant::now() < end, "{name} does not answer at {address}");
        std::thread::sleep(AGAIN);
    }
    Ok(())
}
