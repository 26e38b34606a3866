//! What processes cost: CPU time and memory of a process and all its descendants, read from /proc.
//!
//! Each `stat` covers all threads of its process; the time of children that have ended and were waited for is in their
//! parent's. A process that ends while the tree is read is left out.

use std::fs;
use std::ops::Sub;
use std::path::Path;

use anyhow::{Context, Result};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    /// In the program itself.
    pub(crate) user: f64,
    /// In the kernel on its behalf: system calls, and the protocol work they bring along.
    pub(crate) system: f64,
}

impl Cpu {
    /// Both together, in seconds.
    pub(crate) fn total(self) -> f64 {
        self.user + self.system
    }
}

impl Sub for Cpu {
    type Output = Cpu;
    fn sub(self, before: Cpu) -> Cpu {
        Cpu { user: self.user - before.user, system: self.system - before.system }
    }
}

/// Resident memory in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) rss_mib: f64,
    /// Its heap and stacks.
    pub(crate) anonymous_mib: f64,
    /// Program text and libraries.
    pub(crate) file_mib: f64,
    /// The guest's memory, as far as it was touched.
    pub(crate) shared_mib: f64,
}

/// The process and all its descendants that live.
fn tree(root: Pid) -> Vec<Pid> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|c| c.parse().ok()).map(Pid::from_raw));
        }
    }
    all
}

/// The processes below another one.
pub(crate) fn descendants(root: Pid) -> Vec<Pid> {
    tree(root).split_off(1)
}

/// CPU time the process and its descendants have used so far.
///
/// # Errors
/// The kernel does not say how long a tick is.
pub(crate) fn cpu(root: Pid) -> Result<Cpu> {
    let ticks = ticks_per_second()?;
    let mut sum = Cpu::default();
    for pid in tree(root) {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some([user, system]) = times(&stat) else { continue };
        sum.user += user / ticks;
        sum.system += system / ticks;
    }
    Ok(sum)
}

/// The unit of CPU times in /proc.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn ticks_per_second() -> Result<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")?;
    #[allow(clippy::cast_precision_loss, reason = "100 on every Linux")]
    Ok(ticks as f64)
}

/// User and system time in ticks, with those of children waited for, from /proc/PID/stat (proc(5): fields 14 to 17).
fn times(stat: &str) -> Option<[f64; 2]> {
    // The program's name is in parentheses and may contain anything, also parentheses and spaces.
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    let mut fields = rest.split_whitespace().skip(11).map(|f| f.parse::<f64>().ok());
    let mut field = || fields.next().flatten();
    let (user, system, children_user, children_system) = (field()?, field()?, field()?, field()?);
    Some([user + children_user, system + children_system])
}

/// Resident memory of the process's descendants, without the process itself: it is the container's init.
///
/// # Errors
/// A descendant's status cannot be understood.
pub(crate) fn memory(init: Pid) -> Result<Memory> {
    let mut sum = Memory::default();
    for pid in descendants(init) {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let memory = resident(&status).with_context(|| format!("memory of process {pid}"))?;
        sum.rss_mib += memory.rss_mib;
        sum.anonymous_mib += memory.anonymous_mib;
        sum.file_mib += memory.file_mib;
        sum.shared_mib += memory.shared_mib;
    }
    Ok(sum)
}

fn resident(status: &str) -> Option<Memory> {
    let mib = |name| kib(status, name).map(|kib| kib / 1024.0);
    Some(Memory {
        rss_mib: mib("VmRSS")?,
        anonymous_mib: mib("RssAnon")?,
        file_mib: mib("RssFile")?,
        shared_mib: mib("RssShmem")?,
    })
}

/// How often threads of the process's descendants have gone to sleep and been woken, without the process itself.
///
/// # Errors
/// A thread's status cannot be understood.
pub(crate) fn wakeups(init: Pid) -> Result<f64> {
    let mut sum = 0.0;
    for pid in descendants(init) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            sum += kib(&status, "voluntary_ctxt_switches").context("no switches in a thread's status")?;
        }
    }
    Ok(sum)
}

/// The kernel's slab in bytes.
///
/// # Errors
/// /proc/meminfo cannot be read.
pub(crate) fn slab_bytes() -> Result<f64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    Ok(kib(&meminfo, "Slab").context("/proc/meminfo")? * 1024.0)
}

/// A value, mostly in kB, from a file of `Name:  number kB` lines.
pub(crate) fn kib(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPU seconds all processors together have spent working, for whomever, since boot.
///
/// # Errors
/// /proc/stat cannot be read.
pub(crate) fn busy() -> Result<f64> {
    let stat = fs::read_to_string(Path::new("/proc/stat"))?;
    Ok(busy_ticks(&stat).context("/proc/stat")? / ticks_per_second()?)
}

/// CPU seconds all processors together have spent in interrupts and what they defer: the kernel's network work,
/// whichever control group the kernel has charged.
///
/// # Errors
/// /proc/stat cannot be read.
pub(crate) fn interrupts() -> Result<f64> {
    let stat = fs::read_to_string(Path::new("/proc/stat"))?;
    Ok(interrupt_ticks(&stat).context("/proc/stat")? / ticks_per_second()?)
}

/// The sixth and the seventh number (proc(5): irq softirq).
fn interrupt_ticks(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let mut ticks = fields.split_whitespace().skip(5).map(|f| f.parse::<f64>().ok());
    Some(ticks.next()?? + ticks.next()??)
}

/// All but idle and waiting for a disk (proc(5): user nice system idle iowait irq softirq steal).
fn busy_ticks(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<f64>> = fields.split_whitespace().take(8).map(|f| f.parse().ok()).collect();
    let ticks = ticks.filter(|t| t.len() == 8)?;
    Some(ticks.iter().enumerate().filter(|(at, _)| ![3, 4].contains(at)).map(|(_, t)| t).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_be_called_anything() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 150 250 3 4 20 0 5 0 1000 0 0";
        assert_eq!(times(stat), Some([153.0, 254.0]));
        assert_eq!(times("42 (short) S 1"), None);
        assert_eq!(times(""), None);
    }

    #[test]
    fn memory_is_split_by_its_kind() {
        let status = "Name:\tnetd\nVmRSS:\t    4096 kB\nRssAnon:\t    1024 kB\nRssFile:\t    2048 kB\nRssShmem:\t 1024 kB\n";
        let expected = Memory { rss_mib: 4.0, anonymous_mib: 1.0, file_mib: 2.0, shared_mib: 1.0 };
        assert_eq!(resident(status), Some(expected));
        // A process that is ending has no memory lines.
        assert_eq!(resident("Name:\tnetd\n"), None);
    }

    #[test]
    fn idle_and_disk_are_not_work_but_stolen_time_is() {
        let stat = "cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy_ticks(stat), Some(63.0));
        assert_eq!(busy_ticks("intr 5\n"), None);
        assert_eq!(interrupt_ticks(stat), Some(24.0));
        assert_eq!(interrupt_ticks("cpu  1 2 4\n"), None);
    }

    #[test]
    fn this_process_has_used_time_and_its_child_is_in_its_tree() {
        let me = Pid::this();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = tree(me);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.contains(&me));
        assert!(tree.iter().any(|p| p.as_raw().unsigned_abs() == child.id()), "{tree:?}");
        assert!(cpu(me).unwrap().total() >= 0.0);
    }
}
