//! What a pod costs on its node: processor time as the kernel accounts it to the pod's cgroups, and memory of its processes.
//!
//! Work that the kernel does in a pod's name (a tap device's packets, translation, the other end of a veth pair) is accounted
//! to the process in whose context it is done, and not at all where a kernel thread does it: the machine's own time is
//! told beside the pod's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use nix::unistd::Pid;

use crate::usage;

/// Where the kernel accounts processor time (cgroups v1, which the cluster's nodes need).
const ACCOUNTS: &str = "/sys/fs/cgroup/cpuacct";
/// From there to a pod: node, `kubepods`, class of service, pod.
const DEPTH: usize = 4;
/// What the directory of a node is called.
const NODE: &str = "podvirt-";
/// The guest's memory where netd has to see it, as QEMU names it.
const SHARED: &str = "/memfd:memory-backend";

/// A pod's cgroups.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    pod: PathBuf,
    containers: BTreeMap<String, PathBuf>,
}

/// Seconds of processor time, all of them.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    at: Instant,
    machine: f64,
    own: f64,
    node: f64,
    pod: f64,
    containers: BTreeMap<String, f64>,
}

/// What was used between two samples, in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    /// On the clock.
    pub(crate) wall: f64,
    /// By everything on the machine.
    pub(crate) machine: f64,
    /// By this program and what it started.
    pub(crate) own: f64,
    /// By all pods of the pod's node.
    pub(crate) node: f64,
    /// By the pod.
    pub(crate) pod: f64,
    /// By each of its containers.
    pub(crate) containers: BTreeMap<String, f64>,
}

/// Resident memory without the guest's, in MiB; what processes share is divided among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// All of the pod's.
    pub(crate) pod: f64,
    /// What QEMU has translated of the guest's code, where it emulates the processor; a part of the pod's.
    pub(crate) translated: f64,
    /// Each container's.
    pub(crate) containers: BTreeMap<String, f64>,
}

/// Memory of processes without the guest's, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Resident {
    all: f64,
    translated: f64,
}

impl Cgroups {
    /// Those of a pod that runs.
    ///
    /// # Errors
    /// The kernel has none for it.
    pub(crate) fn of(pod: &Pod) -> Result<Cgroups> {
        let uid = pod.metadata.uid.as_deref().context("a pod without an identity")?;
        let dir = find(Path::new(ACCOUNTS), &format!("pod{uid}"), DEPTH);
        let dir = dir.with_context(|| format!("{ACCOUNTS} has no pod{uid}"))?;
        let status = pod.status.as_ref().context("a pod without a status")?;
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let of = |status: &ContainerStatus| {
            let id = status.container_id.as_deref()?.rsplit('/').next()?;
            let path = dir.join(id);
            path.is_dir().then(|| (status.name.clone(), path))
        };
        Ok(Cgroups { containers: all.filter_map(of).collect(), pod: dir })
    }

    /// Processor time so far.
    ///
    /// # Errors
    /// The pod is gone.
    pub(crate) fn sample(&self) -> Result<Sample> {
        let containers = self.containers.iter().map(|(name, dir)| Ok((name.clone(), seconds(dir)?)));
        let node = self
            .pod
            .ancestors()
            .find(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NODE)));
        Ok(Sample {
            at: Instant::now(),
            machine: usage::busy()?,
            own: usage::cpu(Pid::this())?.total(),
            node: seconds(node.context("a pod on no node")?)?,
            pod: seconds(&self.pod)?,
            containers: containers.collect::<Result<_>>()?,
        })
    }

    /// What has been used since.
    ///
    /// # Errors
    /// The pod is gone.
    pub(crate) fn since(&self, before: &Sample) -> Result<Used> {
        let now = self.sample()?;
        let container = |(name, now): (&String, &f64)| {
            (name.clone(), now - before.containers.get(name).copied().unwrap_or_default())
        };
        Ok(Used {
            wall: (now.at - before.at).as_secs_f64(),
            machine: now.machine - before.machine,
            own: now.own - before.own,
            node: now.node - before.node,
            pod: now.pod - before.pod,
            containers: now.containers.iter().map(container).collect(),
        })
    }

    /// Memory of the pod's processes without the guest's, whose size in MiB is `guest`.
    ///
    /// # Errors
    /// The pod is gone.
    pub(crate) fn memory(&self, guest: u64) -> Result<Memory> {
        let mut memory = Memory::default();
        for dir in fs::read_dir(&self.pod)?.flatten() {
            if dir.path().is_dir() {
                let found = resident(&dir.path(), guest)?;
                memory.pod += found.all / 1024.0;
                memory.translated += found.translated / 1024.0;
            }
        }
        for (name, dir) in &self.containers {
            memory.containers.insert(name.clone(), resident(dir, guest)?.all / 1024.0);
        }
        Ok(memory)
    }
}

/// A directory of that name below another.
fn find(dir: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let all = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let all: Vec<PathBuf> = all.collect();
    let here = all.iter().find(|path| path.file_name().is_some_and(|n| n == name));
    here.cloned().or_else(|| {
        let depth = depth.checked_sub(1)?;
        all.iter().find_map(|path| find(path, name, depth))
    })
}

/// Processor time of a cgroup and those below it.
fn seconds(dir: &Path) -> Result<f64> {
    let path = dir.join("cpuacct.usage");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().parse::<f64>()? / 1e9)
}

/// Memory of a cgroup's processes without the guest's.
fn resident(dir: &Path, guest: u64) -> Result<Resident> {
    let path = dir.join("cgroup.procs");
    let processes = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    // One that ends meanwhile has none.
    let maps = processes.lines().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/smaps")).ok());
    Ok(maps.map(|text| proportional(&text, guest * 1024)).fold(Resident::default(), |sum, each| Resident {
        all: sum.all + each.all,
        translated: sum.translated + each.translated,
    }))
}

/// What a process has as /proc/PID/smaps tells it (proc(5)), without mappings of the guest's memory: those that QEMU names so,
/// and a nameless one of its size. Translated code is what a nameless mapping lets a processor write and execute.
fn proportional(smaps: &str, guest: u64) -> Resident {
    let (mut found, mut rights, mut name, mut size) = (Resident::default(), "", "", 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
        match first {
            "Size:" => size = number(),
            "Pss:" => {
                let code = name.is_empty() && rights.starts_with("rwx");
                let guests = name.starts_with(SHARED) || (name.is_empty() && !code && size == guest);
                #[allow(clippy::cast_precision_loss, reason = "KiB of one process")]
                let kib = if guests { 0.0 } else { number() as f64 };
                found.all += kib;
                found.translated += if code { kib } else { 0.0 };
            }
            // The mapping's head: addresses, rights, offset, device, inode, and perhaps a name.
            _ if !first.ends_with(':') => {
                rights = words.next().unwrap_or_default();
                name = words.nth(3).unwrap_or_default();
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d000000000-55d000100000 r-xp 00000000 08:01 1234   /usr/bin/qemu-system-x86_64
Size:               1024 kB
Rss:                1000 kB
Pss:                 500 kB
Pss_Dirty:            10 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0010000000 rw-s 00000000 00:01 77     /memfd:memory-backend-memfd (deleted)
Size:             262144 kB
Pss:              100000 kB
7f0020000000-7f0030000000 rw-p 00000000 00:00 0
Size:             262144 kB
Pss:              200000 kB
7f0040000000-7f0040001000 rw-p 00000000 00:00 0
Size:                  4 kB
Pss:                   4 kB
7f0050000000-7f0058000000 rwxp 00000000 00:00 0
Size:             131072 kB
Pss:               90000 kB
";

    #[test]
    fn the_guests_memory_is_not_the_pods_own() {
        let own = Resident { all: 90_504.0, translated: 90_000.0 };
        assert_eq!(proportional(SMAPS, 256 * 1024), own);
        // A guest of another size is not told from the process's own memory by its size.
        assert_eq!(proportional(SMAPS, 512 * 1024), Resident { all: 290_504.0, ..own });
    }

    #[test]
    fn a_pod_is_found_below_its_node() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("podvirt-1-node1/kubepods/burstable/pod42");
        fs::create_dir_all(&pod).unwrap();
        fs::write(pod.join("cpuacct.usage"), "1500000000\n").unwrap();
        assert_eq!(find(dir.path(), "pod42", DEPTH), Some(pod.clone()));
        assert_eq!(find(dir.path(), "pod43", DEPTH), None);
        assert_eq!(seconds(&pod).unwrap(), 1.5);
    }
}
