//! How long a guest cannot write while a snapshot of its disks is taken.
//!
//! A program in the guest writes and flushes all the time and tells of its longest pause: the agent's freeze and thaw are in it,
//! and what the control plane and the storage do between them.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineSnapshot};
use podvirt_e2e::cluster::{BOOT, Manifest, Namespace, SOON};
use serde::{Deserialize, Serialize};

use super::disks::{NODE, claim, pod};
use crate::start::millis;
use crate::stats::Summary;

/// A boot of Debian by an emulated processor.
const LONG_BOOT: Duration = Duration::from_secs(400);
/// All of the disk is written.
const FILLED: Duration = Duration::from_secs(300);
/// Between snapshots, and how long is looked at without one.
const QUIET: Duration = Duration::from_secs(10);
/// The writer. It ends when the file is gone that says that it is wanted.
const WRITER: &str = "import os, time\n\
    out = os.open('/mnt/written', os.O_CREAT | os.O_WRONLY | os.O_DSYNC)\n\
    worst = count = 0; last = time.monotonic()\n\
    while os.path.exists('/run/wanted'):\n\
    \x20 os.pwrite(out, b'x' * 512, 0); now = time.monotonic(); worst = max(worst, now - last); last = now; count += 1\n\
    print(count, round(worst * 1000))\n";

/// The pauses of a guest that writes, in ms.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Frozen {
    /// Size of the disk, all of it written, GiB.
    pub(super) gib: u32,
    /// How many snapshots.
    pub(super) count: u32,
    /// Its longest pause in ten seconds without a snapshot.
    pub(super) quiet: Summary,
    /// Its longest pause during a snapshot.
    pub(super) pause: Summary,
    /// From the manifest of the snapshot until it can be used.
    pub(super) ready: Summary,
}

/// Takes snapshots of a machine of Debian, whose image is in the cluster.
///
/// # Errors
/// The machine does not come up, its agent does not answer, or a snapshot is not taken.
pub(super) fn measure(
    namespace: &Namespace<'_>,
    gib: u32,
    count: u32,
    out: &mut impl Write,
) -> Result<Option<Frozen>> {
    claim(namespace, "large", "Block", &format!("{gib}Gi"))?;
    pod(namespace, "filler", &["large"], &[])?;
    let start = Instant::now();
    let fill = format!("dd if=/dev/zero of=/dev/large bs=4M count={} oflag=direct 2>&1", gib * 256);
    namespace.exec("filler", &["timeout", &FILLED.as_secs().to_string(), "sh", "-c", &fill])?;
    namespace.kubectl(&["delete", "pod", "filler"])?;
    writeln!(out, "{gib} GiB written in {:.0} s", start.elapsed().as_secs_f64())?;

    let spec = format!("nodeSelector: {{kubernetes.io/hostname: {NODE}}}");
    let manifest = Manifest {
        name: "debian",
        spec: &spec,
        volumes: "{name: large, persistentVolumeClaim: {claimName: large}}",
        disks: "{name: large, serial: large, disk: {bus: virtio}}",
        ..Default::default()
    };
    let of_debian = manifest.machine().replace("disk-tiny", "disk-debian");
    namespace.apply(&of_debian.replace("guest: 256Mi", "guest: 512Mi"))?;
    namespace.wait_phase("debian", "Running", BOOT)?;
    let (mut console, _running) =
        namespace.until("a shell", LONG_BOOT, || Ok(namespace.shell("debian").ok()))?;
    let agent = |vmi: &VirtualMachineInstance| {
        vmi.status.conditions.iter().any(|c| c.r#type.as_str() == "AgentConnected" && c.status == "True")
    };
    namespace.wait("debian", "a connected agent", LONG_BOOT, agent)?;
    let device = "/dev/disk/by-id/virtio-large";
    console.sh(&format!("mkfs.ext4 -q -E nodiscard {device} && mount {device} /mnt"), LONG_BOOT)?;
    console.sh(&format!("cat >/run/writer <<'EOF'\n{WRITER}EOF"), SOON)?;

    let (mut quiet, mut pauses, mut readies) = (Vec::new(), Vec::new(), Vec::new());
    let begin = "touch /run/wanted; python3 /run/writer >/run/told 2>&1 &";
    let end = "rm /run/wanted; wait; cat /run/told";
    for taken in 0..count {
        console.sh(begin, SOON)?;
        std::thread::sleep(QUIET);
        quiet.push(pause(&console.sh(end, SOON)?)?);

        console.sh(begin, SOON)?;
        let (name, start) = (format!("taken{taken}"), Instant::now());
        namespace.apply(&format!(
            "{{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineSnapshot, metadata: {{name: {name}}}, \
             spec: {{source: {{apiGroup: kubevirt.io, kind: VirtualMachine, name: debian}}}}}}"
        ))?;
        let ready = |one: &VirtualMachineSnapshot| one.status.ready_to_use == Some(true);
        let snapshot = namespace.wait(&name, "a snapshot", LONG_BOOT, ready)?;
        readies.push(millis(start.elapsed()));
        let frozen = snapshot.status.indications.iter().any(|one| one.as_str() == "GuestAgent");
        ensure!(frozen, "the guest was not frozen: {:?}", snapshot.status.indications);
        let thawed = |vmi: &VirtualMachineInstance| vmi.status.fs_freeze_status.is_none();
        namespace.wait("debian", "a guest that is thawed", SOON, thawed)?;
        pauses.push(pause(&console.sh(end, SOON)?)?);
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        writeln!(out, "{name}: paused for {:.0} ms, ready after {:.0} ms", last(&pauses), last(&readies))?;
        namespace.kubectl(&["delete", "vmsnapshot", &name])?;
    }
    let all = Summary::of(quiet).zip(Summary::of(pauses)).zip(Summary::of(readies));
    Ok(all.map(|((quiet, pause), ready)| Frozen { gib, count, quiet, pause, ready }))
}

/// The writer's longest pause in ms; it has to have written.
fn pause(told: &str) -> Result<f64> {
    // The shell may tell before it that the program has ended.
    let mut words = told.lines().last().unwrap_or_default().split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(count)), Some(Ok(worst))) = (words.next(), words.next()) else {
        bail!("the writer says: {told}")
    };
    ensure!(count >= 1.0, "the writer has written nothing");
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_failed_or_wrote_nothing_has_no_pause() {
        assert_eq!(pause("[1]+  Done   python3\n8021 512\n").unwrap(), 512.0);
        assert!(pause("0 0").is_err());
        assert!(pause("Traceback (most recent call last):").is_err());
    }
}
