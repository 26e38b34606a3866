//! Disks that are measured, the claims behind them, and the guests that have them: machines of podvirt's, and QEMU as a person
//! would start it, in a pod beside them on the same node.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_e2e::Console;
use podvirt_e2e::artefacts::artefact;
use podvirt_e2e::cluster::{BOOT, Manifest, Namespace, Running, SOON};

/// Where all of it runs.
pub(super) const NODE: &str = "node1";
/// The pod with plain QEMU, which also fills the claims.
pub(super) const PLAIN: &str = "plain";
/// The claim with the programs of the measurement, as an archive on a device.
pub(super) const PROGRAMS: &str = "programs";
/// Memory of each guest, MiB: the programs of the measurement are in it.
const GUEST_MIB: u32 = 512;
/// What is copied into a pod or out of it.
const COPIED: Duration = Duration::from_secs(120);

/// A disk of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// The name of its claim, its serial number, and in results.
    pub(super) key: &'static str,
    /// For people.
    pub(super) name: &'static str,
    /// The claim is a device, not a file system with a disk image.
    pub(super) device: bool,
    /// On the SCSI bus, not one of virtio-blk.
    scsi: bool,
    /// A thread of QEMU's serves it and nothing else.
    thread: bool,
}

/// In this order in the tables.
pub(super) const DISKS: [Disk; 6] = [
    disk("file-virtio", "file, virtio-blk", false, false, false),
    disk("file-thread", "file, virtio-blk, IO thread", false, false, true),
    disk("file-scsi", "file, SCSI", false, true, false),
    disk("device-virtio", "device, virtio-blk", true, false, false),
    disk("device-thread", "device, virtio-blk, IO thread", true, false, true),
    disk("device-scsi", "device, SCSI", true, true, false),
];

const fn disk(key: &'static str, name: &'static str, device: bool, scsi: bool, thread: bool) -> Disk {
    Disk { key, name, device, scsi, thread }
}

impl Disk {
    /// Inside of a machine's `volumes` and `disks`.
    fn entries(&self) -> (String, String) {
        let Disk { key, .. } = self;
        let bus = if self.scsi { "scsi" } else { "virtio" };
        let thread = if self.thread { ", dedicatedIOThread: true" } else { "" };
        (
            format!("{{name: {key}, persistentVolumeClaim: {{claimName: {key}}}}}"),
            format!("{{name: {key}, serial: {key}, disk: {{bus: {bus}}}{thread}}}"),
        )
    }

    /// Where the pod of plain QEMU has it.
    fn path(&self) -> String {
        if self.device { format!("/dev/{}", self.key) } else { format!("/disks/{}/disk.img", self.key) }
    }

    /// Arguments of QEMU's that are to it what podvirt's defaults are: past the page cache, by the kernel's asynchronous calls on a
    /// device, by threads on a file with holes.
    fn arguments(&self) -> Vec<String> {
        let Disk { key, .. } = self;
        let (driver, aio) = if self.device { ("host_device", "native") } else { ("file", "threads") };
        let path = self.path();
        let protocol = format!(
            "driver={driver},filename={path},node-name={key}-storage,cache.direct=on,aio={aio},locking=off,discard=unmap"
        );
        let format =
            format!("driver=raw,file={key}-storage,node-name={key}-format,cache.direct=on,discard=unmap");
        let thread = if self.thread { format!(",iothread={key}-thread") } else { String::new() };
        let front = if self.scsi { "scsi-hd,bus=scsi.0" } else { "virtio-blk-pci" };
        let device = format!("{front},drive={key}-format,serial={key},write-cache=on{thread}");
        let object = self.thread.then(|| ["-object".to_owned(), format!("iothread,id={key}-thread")]);
        let words = ["-blockdev".into(), protocol, "-blockdev".into(), format, "-device".into(), device];
        object.into_iter().flatten().chain(words).collect()
    }
}

/// Makes a claim and waits for its volume.
///
/// # Errors
/// There is none.
pub(super) fn claim(namespace: &Namespace<'_>, name: &str, mode: &str, size: &str) -> Result<()> {
    namespace.apply(&format!(
        "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{storageClassName: bed-block, \
         volumeMode: {mode}, accessModes: [ReadWriteMany], resources: {{requests: {{storage: {size}}}}}}}}}"
    ))?;
    let bound = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
    };
    namespace.wait(name, "a bound claim", SOON, bound).map(drop)
}

/// Starts a pod that is confined as a machine's is, with the test bed's programs and these claims: devices as /dev/NAME, file
/// systems as /disks/NAME.
///
/// # Errors
/// It does not start.
pub(super) fn pod(namespace: &Namespace<'_>, name: &str, devices: &[&str], files: &[&str]) -> Result<()> {
    let volume = |claim: &&str| format!("{{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}}");
    let device = |claim: &&str| format!("{{name: {claim}, devicePath: /dev/{claim}}}");
    let file = |claim: &&str| format!("{{name: {claim}, mountPath: /disks/{claim}}}");
    let list =
        |all: &[&str], item: &dyn Fn(&&str) -> String| all.iter().map(item).collect::<Vec<_>>().join(", ");
    namespace.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{nodeName: {NODE}, terminationGracePeriodSeconds: 1, \
         automountServiceAccountToken: false, securityContext: {{runAsUser: 107, runAsGroup: 107, fsGroup: 107, runAsNonRoot: true, \
         seccompProfile: {{type: RuntimeDefault}}}}, volumes: [{}], containers: [{{name: tools, image: 'podvirt/tools:dev', \
         command: [sleep, infinity], securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}, \
         volumeDevices: [{}], volumeMounts: [{}]}}]}}}}",
        list(&[devices, files].concat(), &volume),
        list(devices, &device),
        list(files, &file),
    ))?;
    namespace.wait_pod(name, SOON).map(drop)
}

/// Copies a file of this machine into a pod.
///
/// # Errors
/// The pod does not take it.
pub(super) fn copy(namespace: &Namespace<'_>, from: &Path, pod: &str, to: &str) -> Result<()> {
    let mut kubectl = namespace.cluster().kubectl_command();
    let write = format!("cat >{to}");
    kubectl.args(["--namespace", namespace.name(), "exec", "-i", pod, "--", "sh", "-c", &write]);
    let source = File::open(from).with_context(|| from.display().to_string())?;
    let out = kubectl.stdin(source).output()?;
    ensure!(out.status.success(), "{} to {pod}: {}", from.display(), String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// A guest that runs, and its console.
pub(super) struct Guest {
    disks: Vec<Disk>,
    console: Console,
    /// Behind the console: it ends with what shows it.
    _running: Running,
}

impl Guest {
    /// Whether it has this disk.
    pub(super) fn has(&self, disk: &Disk) -> bool {
        self.disks.contains(disk)
    }

    /// Runs a command that must succeed, and returns what it printed.
    ///
    /// # Errors
    /// It fails, or takes longer than `limit`.
    pub(super) fn sh(&mut self, command: &str, limit: Duration) -> Result<String> {
        self.console.sh(command, limit)
    }

    /// The block device with this serial number.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn device(&mut self, serial: &str) -> Result<String> {
        let find = format!(
            "for d in /sys/block/[sv]d*; do cat $d/serial $d/device/vpd_pg80 2>/dev/null | grep -q {serial} && echo /dev/${{d##*/}}; done; true"
        );
        let found = self.sh(&find, SOON)?;
        ensure!(found.starts_with("/dev/") && found.lines().count() == 1, "a disk {serial}: {found:?}");
        Ok(found)
    }

    /// Unpacks the programs.
    ///
    /// # Errors
    /// The disk with them is not there, or the guest has no room for them.
    pub(super) fn equip(&mut self) -> Result<()> {
        let device = self.device(PROGRAMS)?;
        self.sh(&format!("mkdir -p /tmp/bin && tar -xf {device} -C /tmp/bin"), COPIED).map(drop)
    }
}

/// The machines: their names, and whether each disk has an IO thread.
const KINDS: [(&str, bool); 2] = [("usual", false), ("threads", true)];

/// Starts the machines: one with an IO thread for each disk, and one without.
///
/// # Errors
/// One does not come up.
pub(super) fn machines(namespace: &Namespace<'_>) -> Result<Vec<Guest>> {
    let of = |threads: bool| DISKS.into_iter().filter(move |disk| disk.thread == threads);
    for (name, threads) in KINDS {
        let (volumes, disks): (Vec<_>, Vec<_>) = of(threads).map(|disk| disk.entries()).unzip();
        let volumes = format!(
            "{{name: {PROGRAMS}, persistentVolumeClaim: {{claimName: {PROGRAMS}}}}}, {}",
            volumes.join(", ")
        );
        let disks =
            format!("{{name: {PROGRAMS}, serial: {PROGRAMS}, disk: {{bus: virtio}}}}, {}", disks.join(", "));
        let manifest = Manifest {
            name,
            spec: &format!("nodeSelector: {{kubernetes.io/hostname: {NODE}}}"),
            volumes: &volumes,
            disks: &disks,
            ..Default::default()
        };
        namespace.apply(&manifest.instance().replace("guest: 256Mi", &format!("guest: {GUEST_MIB}Mi")))?;
    }
    let up = |(name, threads): (&str, bool)| {
        namespace.wait_phase(name, "Running", BOOT)?;
        let (console, running) = namespace.shell(name)?;
        let mut guest = Guest { disks: of(threads).collect(), console, _running: running };
        guest.equip().with_context(|| name.to_owned())?;
        Ok(guest)
    };
    KINDS.into_iter().map(up).collect()
}

/// Ends the machines and the pod with plain QEMU, and waits until they have gone; the claims stay.
///
/// # Errors
/// One of them does not go.
pub(super) fn end_all(namespace: &Namespace<'_>) -> Result<()> {
    namespace.kubectl(&["delete", "vmi", "--all", "--wait=false"])?;
    namespace.kubectl(&["delete", "pod", PLAIN, "--grace-period=1"])?;
    KINDS.into_iter().try_for_each(|(name, _)| namespace.wait_gone::<VirtualMachineInstance>(name, SOON))
}

/// Whose a guest's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// QEMU's own, as QEMU has it by default.
    Own,
    /// In a file of the kernel's memory (memfd) that other processes may map, as a guest of podvirt's has it for netd.
    Shared,
}

/// Starts QEMU in the pod of that name with all disks, the same guest and the same program as the machines have.
///
/// # Errors
/// The guest does not come up.
pub(super) fn plain(namespace: &Namespace<'_>, memory: Memory) -> Result<Guest> {
    let tiny = artefact("tiny")?;
    for file in ["vmlinuz", "initrd.img"] {
        copy(namespace, &tiny.join(file), PLAIN, &format!("/tmp/{file}"))?;
    }
    let machine = match memory {
        Memory::Own => "-machine q35".to_owned(),
        Memory::Shared => format!(
            "-object memory-backend-memfd,id=ram,size={GUEST_MIB}M,share=on -machine q35,memory-backend=ram"
        ),
    };
    let fixed = format!(
        "qemu-system-x86_64 {machine} -accel tcg -cpu {CPU} -m {GUEST_MIB} -smp 1 -nodefaults -display none -no-user-config \
         -chardev stdio,id=console,signal=off -serial chardev:console -device virtio-scsi-pci,id=scsi \
         -kernel /tmp/vmlinuz -initrd /tmp/initrd.img"
    );
    let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    // As e2e/cluster/mk-disks has it, but for what is for the network.
    let line = "console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 pv.dhcp=no";
    words.extend(["-append".to_owned(), line.to_owned()]);
    let programs = format!("driver=host_device,filename=/dev/{PROGRAMS},node-name={PROGRAMS},locking=off");
    let device = format!("virtio-blk-pci,drive={PROGRAMS},serial={PROGRAMS}");
    words.extend(["-blockdev".into(), programs, "-device".into(), device]);
    words.extend(DISKS.iter().flat_map(Disk::arguments));

    let (ours, theirs) = UnixStream::pair()?;
    let mut kubectl = namespace.cluster().kubectl_command();
    kubectl.args(["--namespace", namespace.name(), "exec", "-i", PLAIN, "--"]).args(&words);
    let output = theirs.try_clone()?;
    kubectl.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(output)).stderr(Stdio::inherit());
    let running = Running(kubectl.spawn().context("cannot start kubectl")?);
    let console = Console::new(ours.try_clone()?, ours);
    if let Err(error) = console.wait_for("GUEST-READY", BOOT) {
        bail!("plain QEMU: {error}\n{}", console.screen());
    }
    let mut guest = Guest { disks: DISKS.to_vec(), console, _running: running };
    guest.equip().context("plain QEMU")?;
    Ok(guest)
}

/// The processor that machines have by default where it is emulated.
const CPU: &str = "max";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_is_told_by_its_serial_number() {
        for disk in DISKS {
            // virtio-blk has room for 20 bytes of it (virtio 1.2, section 5.2.6).
            assert!(disk.key.len() <= 20, "{}", disk.key);
            assert_eq!(disk.arguments().concat().matches(&format!("serial={},", disk.key)).count(), 1);
            let others = DISKS.iter().filter(|other| other.key.contains(disk.key)).count();
            assert_eq!(others, 1, "{}", disk.key);
        }
    }

    #[test]
    fn a_thread_is_there_for_the_disks_that_have_one() {
        for disk in DISKS {
            let all = disk.arguments().join(" ");
            assert_eq!(all.contains("-object iothread,id="), disk.thread, "{all}");
            assert_eq!(disk.entries().1.contains("dedicatedIOThread"), disk.thread);
        }
    }
}
