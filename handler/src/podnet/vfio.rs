//! Devices of the node that a guest has by SR-IOV: what the launcher's container lacks for them.
//!
//! A device plugin gives the container `/dev/vfio/vfio` and the file of each device's IOMMU group. QEMU's user has to be able
//! to open them; the files get it as their owner, as `/dev/net/tun` does. And the devices reach all of the guest's memory, which
//! the kernel keeps where it is for that: QEMU locks it, more than a container may by itself. libvirt would raise that limit
//! and cannot without privilege; a limit that is high enough already is all that it needs.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};
use podvirt_api::plugin::Joint;
use podvirt_api::resources::guest_memory;
use podvirt_api::v1::VirtualMachineInstance;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::node::{own, within};
use crate::process::Process;

/// Where the devices' files are.
const DIRECTORY: &str = "dev/vfio";
/// What is locked beside the guest's memory: room for the devices' own (libvirt's and upstream's amount).
const BESIDE: u64 = 1 << 30;
/// What libvirt may count of the guest's memory beyond what the manifest says: it rounds up.
const ROUNDED: u64 = 64 << 20;
/// The limit in a file `limits` of `/proc` (proc(5)).
const LOCKED: &str = "Max locked memory";
/// What stands for no limit (the kernel's `RLIM_INFINITY`).
const UNLIMITED: u64 = u64::MAX;

/// Bytes that QEMU locks for `vmi`; none where the guest has no device of the node.
pub(super) fn locked(vmi: &VirtualMachineInstance) -> Option<u64> {
    let mut interfaces = vmi.spec.domain.devices.interfaces.iter();
    let has = interfaces.any(|interface| !interface.is_absent() && vmi.joint(interface) == Joint::Device);
    has.then(|| guest_memory(&vmi.spec).saturating_add(BESIDE + ROUNDED))
}

/// Sees to it that `owner` may open the devices in the launcher's container.
///
/// # Errors
/// The container has none, or they are not the container's own.
pub(super) fn hand_over(launcher: &Process, owner: u32) -> io::Result<()> {
    give(&launcher.root()?, owner)
}

fn give(root: &File, owner: u32) -> io::Result<()> {
    let missing = || {
        let message = format!(
            "the launcher's container has no device in /{DIRECTORY}; a pod asks for one by the resource that the \
             annotation k8s.v1.cni.cncf.io/resourceName of the NetworkAttachmentDefinition names"
        );
        io::Error::new(ErrorKind::NotFound, message)
    };
    let directory = match within(root, DIRECTORY, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing()),
        opened => opened?,
    };
    let mut given = 0;
    for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = format!("{DIRECTORY}/{name}");
        let file = within(root, &path, OFlag::O_PATH)?;
        if fstat(&file)?.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits() {
            own(root, &file, &format!("/{path}"), owner)?;
            given += 1;
        }
    }
    if given == 0 { Err(missing()) } else { Ok(()) }
}

/// Lets the processes of the launcher's container, and those that they start, lock so many bytes. A limit that is higher stays.
///
/// # Errors
/// The container has no process namespace of its own, or a process's limit is not to be changed.
pub(super) fn allow(launcher: &Process, bytes: u64) -> io::Result<()> {
    let namespace = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let container = namespace(launcher.open("ns/pid")?.metadata()?);
    if namespace(fs::metadata("/proc/self/ns/pid")?) == container {
        let message = "the launcher's container shares its process namespace with virt-handler: whose limit of locked memory is \
                       to be raised is not certain";
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ends meanwhile needs nothing.
        let Ok(own) = fs::metadata(format!("/proc/{pid}/ns/pid")) else { continue };
        if namespace(own) == container {
            raise(pid, bytes)?;
        }
    }
    Ok(())
}

fn raise(pid: i32, bytes: u64) -> io::Result<()> {
    // It may have ended.
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/limits")) else { return Ok(()) };
    let Some([soft, hard]) = locked_memory(&text) else {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("/proc/{pid}/limits has no '{LOCKED}'")));
    };
    if soft >= bytes {
        return Ok(());
    }
    let limit =
        Rlimit { current: Some(bytes), maximum: Some(hard.max(bytes)).filter(|hard| *hard != UNLIMITED) };
    match prlimit(Pid::from_raw(pid), Resource::Memlock, limit) {
        Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => {
            let message = format!(
                "a guest with a device of the node needs {bytes} bytes of locked memory, and process {pid} of its launcher may \
                 lock {soft}; virt-handler cannot raise that: {error}"
            );
            Err(io::Error::new(io::Error::from(error).kind(), message))
        }
    }
}

/// Soft and hard limit of locked memory, in bytes, in a file `limits` of `/proc`.
fn locked_memory(limits: &str) -> Option<[u64; 2]> {
    let mut words = limits.lines().find_map(|line| line.strip_prefix(LOCKED))?.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    };
    Some([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use nix::sys::stat::{Mode, makedev, mknod};
    use serde_json::json;

    use super::*;

    const OWNER: u32 = 107;

    #[test]
    fn what_a_machine_locks_follows_from_its_memory() {
        let vmi = |binding: &str| -> VirtualMachineInstance {
            serde_json::from_value(json!({"spec": {
                "networks": [{"name": "blue", "multus": {"networkName": "n"}}],
                "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [{"name": "blue", binding: {}}]}},
            }}))
            .unwrap()
        };
        assert_eq!(locked(&vmi("sriov")), Some((256 + 1024 + 64) << 20));
        assert_eq!(locked(&vmi("bridge")), None);
        let wanted = super::super::wanted(&vmi("sriov"));
        assert!(wanted.locked.is_some() && !wanted.has_taps());
    }

    #[test]
    fn the_files_of_the_devices_become_the_launchers() {
        let root = tempfile::tempdir().unwrap();
        let told = |root: &Path| give(&File::open(root).unwrap(), OWNER).unwrap_err().to_string();
        let missing = "the launcher's container has no device in /dev/vfio";
        std::fs::create_dir(root.path().join("dev")).unwrap();
        assert!(told(root.path()).starts_with(missing));
        std::fs::create_dir(root.path().join("dev/vfio")).unwrap();
        assert!(told(root.path()).starts_with(missing));
        for (name, numbers) in [("vfio", (10, 196)), ("12", (511, 0))] {
            let path = root.path().join("dev/vfio").join(name);
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            if let Err(error) = mknod(&path, SFlag::S_IFCHR, mode, makedev(numbers.0, numbers.1)) {
                return eprintln!("SKIPPED: cannot make a device: {error}");
            }
        }
        give(&File::open(root.path()).unwrap(), OWNER).unwrap();
        for name in ["vfio", "12"] {
            let stat = std::fs::symlink_metadata(root.path().join("dev/vfio").join(name)).unwrap();
            assert_eq!(stat.uid(), OWNER, "{name}");
        }
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              unlimited            bytes     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(locked_memory(text), Some([8 << 20, UNLIMITED]));
        assert_eq!(locked_memory("Max locked memory         8388608\n"), None);
        assert_eq!(locked_memory(""), None);
        let own = std::fs::read_to_string("/proc/self/limits").unwrap();
        let limit = rustix::process::getrlimit(Resource::Memlock);
        let known = [limit.current, limit.maximum].map(|limit| limit.unwrap_or(UNLIMITED));
        assert_eq!(locked_memory(&own), Some(known));
    }

    /// A container's first process, which says what it may lock, in KiB, when its input ends.
    fn container(soft: u64) -> Option<(std::process::Child, i32)> {
        let script = format!("ulimit -S -l {soft}; echo; cat; ulimit -S -l; ulimit -H -l");
        let unshared = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = unshared.ok()?;
        // Its line tells that it is there, and that its limit is set.
        let mut line = [0];
        if std::io::Read::read_exact(child.stdout.as_mut()?, &mut line).is_err() {
            child.wait().unwrap();
            return None;
        }
        let inside = child_of(child.id().try_into().unwrap());
        Some((child, inside))
    }

    /// The only child of a process; waits until it is there.
    fn child_of(pid: i32) -> i32 {
        loop {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            if let Ok(child) = text.trim().parse() {
                return child;
            }
            std::thread::yield_now();
        }
    }

    fn said(mut child: std::process::Child) -> Vec<String> {
        drop(child.stdin.take());
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        said.lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_process_of_the_container_may_lock_as_much() {
        let Some((child, inside)) = container(64) else {
            return eprintln!("SKIPPED: no namespace of processes");
        };
        let limit = rustix::process::getrlimit(Resource::Memlock);
        // The shell and its cat; not beyond what every process may give itself.
        let enough = limit.maximum.unwrap_or(1 << 30) / 2;
        let cat = child_of(inside);
        allow(&Process::of(inside).unwrap(), enough).unwrap();
        let of =
            |pid| locked_memory(&std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap()).unwrap();
        assert_eq!(of(cat), [enough, limit.maximum.unwrap_or(UNLIMITED)]);
        // What is more stays.
        allow(&Process::of(inside).unwrap(), enough / 2).unwrap();
        assert_eq!(of(inside), [enough, limit.maximum.unwrap_or(UNLIMITED)]);
        assert_eq!(said(child)[0], (enough >> 10).to_string());
        assert_eq!(rustix::process::getrlimit(Resource::Memlock), limit, "no other process's changes");

        let told =
            allow(&Process::of(std::process::id().try_into().unwrap()).unwrap(), 1).unwrap_err().to_string();
        assert!(told.starts_with("the launcher's container shares its process namespace"), "{told}");
    }

    #[test]
    fn a_limit_beyond_what_a_container_has_is_raised_or_told() {
        let Some((child, inside)) = container(64) else {
            return eprintln!("SKIPPED: no namespace of processes");
        };
        let Some(hard) = rustix::process::getrlimit(Resource::Memlock).maximum else {
            drop(said(child));
            return eprintln!("SKIPPED: every process may lock as much as it wants");
        };
        match allow(&Process::of(inside).unwrap(), hard * 2) {
            Ok(()) => assert_eq!(said(child), [(hard >> 9).to_string(), (hard >> 9).to_string()], "KiB"),
            // Without CAP_SYS_RESOURCE, as on machines that lack it as a whole.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                let error = error.to_string();
                assert!(error.contains(&format!("needs {} bytes of locked memory", hard * 2)), "{error}");
                assert!(error.contains("of its launcher may lock 65536; virt-handler"), "{error}");
                drop(said(child));
            }
        }
    }
}
