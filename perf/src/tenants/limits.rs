//! A pod's share of the machine, as a container runtime sets it: a group of each of the kernel's controllers (version 1),
//! with a quota of processor time in every tenth of a second.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Where the controllers are.
const CONTROLLERS: &str = "/sys/fs/cgroup";
/// The controllers that a pod's processes are under here.
const USED: [&str; 3] = ["cpu", "cpuacct", "memory"];
/// The quota's period in microseconds: the kubelet's.
const PERIOD_US: f64 = 100_000.0;
/// The weight of one processor that is asked for: Kubernetes'.
const SHARES: f64 = 1024.0;
/// For the last process of a group to be gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A pod's group; dropping it removes it, when its processes are gone.
#[derive(Debug)]
pub(super) struct Limits {
    name: String,
}

impl Limits {
    /// A group of so many processors, as limit and as request.
    ///
    /// # Errors
    /// The machine has no such controllers, or they are not this process's to use.
    pub(super) fn new(what: &str, processors: f64) -> Result<Limits> {
        let limits = Limits { name: format!("podvirt-perf-{}-{what}", std::process::id()) };
        for controller in USED {
            let path = limits.path(controller);
            match fs::create_dir(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(e).with_context(|| {
                        format!(
                            "{}: this needs the controllers cpu, cpuacct and memory of cgroups version 1",
                            path.display()
                        )
                    });
                }
                _ => {}
            }
        }
        limits.write("cpu", "cpu.cfs_period_us", &format!("{PERIOD_US:.0}"))?;
        limits.write("cpu", "cpu.cfs_quota_us", &format!("{:.0}", PERIOD_US * processors))?;
        limits.write("cpu", "cpu.shares", &format!("{:.0}", SHARES * processors))?;
        Ok(limits)
    }

    fn path(&self, controller: &str) -> PathBuf {
        PathBuf::from(CONTROLLERS).join(controller).join(&self.name)
    }

    fn write(&self, controller: &str, file: &str, text: &str) -> Result<()> {
        let path = self.path(controller).join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    fn number(&self, controller: &str, file: &str) -> Result<f64> {
        let path = self.path(controller).join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        text.trim().parse().with_context(|| format!("{}: {text}", path.display()))
    }

    /// Does something whose processes belong to the group: what this thread starts meanwhile.
    ///
    /// # Errors
    /// What it returned, or the thread cannot be moved.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        for controller in USED {
            // This thread, by the number that each thread has for itself.
            self.write(controller, "tasks", "0")?;
        }
        let done = work();
        for controller in USED {
            let root = PathBuf::from(CONTROLLERS).join(controller).join("tasks");
            fs::write(&root, "0").with_context(|| root.display().to_string())?;
        }
        done
    }

    /// Processor seconds that its processes have used.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn cpu(&self) -> Result<f64> {
        Ok(self.number("cpuacct", "cpuacct.usage")? / 1e9)
    }

    /// Begins to look for the most memory anew.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn forget_memory(&self) -> Result<()> {
        self.write("memory", "memory.max_usage_in_bytes", "0")
    }

    /// The most memory since then in MiB, the kernel's for its processes included, but for what TCP holds in sockets.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn most_memory_mib(&self) -> Result<f64> {
        Ok(self.number("memory", "memory.max_usage_in_bytes")? / 1048576.0)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for controller in USED {
            let begin = Instant::now();
            while fs::remove_dir(self.path(controller)).is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
                if begin.elapsed() > TIMEOUT {
                    eprintln!("{} is left", self.path(controller).display());
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
