//! What the processes of a pod may do, as the kernel tells.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;
use nix::unistd::Pid;

use crate::pod::Pod;

/// One process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// Its name.
    pub name: String,
    /// Its real, effective, saved and file system user.
    pub uids: Vec<u32>,
    /// All capability sets (inheritable, permitted, effective, bounding, ambient) in one.
    pub capabilities: u64,
    /// Whether no program that it executes can gain privilege.
    pub no_new_privs: bool,
    /// 2: a system call filter is installed.
    pub seccomp: u8,
}

impl Pod {
    /// Every process in the pod's network namespace, whichever program started it.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn processes(&self) -> Result<Vec<Privilege>> {
        Ok(self.statuses()?.iter().filter_map(|(_, status)| parse(status)).collect())
    }

    /// The processes of this name, as the kernel shortens it, in the pod's network namespace, ascending.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn pids(&self, name: &str) -> Result<Vec<Pid>> {
        let named = self.statuses()?.into_iter().filter(|(_, status)| field(status, "Name") == Some(name));
        let mut pids: Vec<Pid> = named.map(|(pid, _)| pid).collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Number and `/proc/PID/status` of every process.
    fn statuses(&self) -> Result<Vec<(Pid, String)>> {
        let namespace = fs::metadata(Path::new("/run/netns").join(self.net.pod.name()))?.ino();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let process = entry?.path();
            let pid = process.file_name().and_then(|n| n.to_str()?.parse().ok());
            let inside = fs::metadata(process.join("ns/net")).is_ok_and(|m| m.ino() == namespace);
            // A process may end while it is looked at.
            if let (true, Some(pid), Ok(status)) = (inside, pid, fs::read_to_string(process.join("status"))) {
                found.push((Pid::from_raw(pid), status));
            }
        }
        Ok(found)
    }
}

/// A line of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Reads `/proc/PID/status`; None for a process that is ending.
fn parse(status: &str) -> Option<Privilege> {
    let field = |name: &str| field(status, name);
    let mut capabilities = 0;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        capabilities |= u64::from_str_radix(field(set)?, 16).ok()?;
    }
    Some(Privilege {
        name: field("Name")?.to_owned(),
        uids: field("Uid")?.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
        capabilities,
        no_new_privs: field("NoNewPrivs")? == "1",
        seccomp: field("Seccomp")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_in_any_set_is_seen() {
        let status = "Name:\tx\nUid:\t107\t107\t0\t107\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
             CapEff:\t0000000000000000\nCapBnd:\t0000000000000400\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        let expected = Privilege {
            name: "x".into(),
            uids: vec![107, 107, 0, 107],
            capabilities: 0x400,
            no_new_privs: true,
            seccomp: 2,
        };
        assert_eq!(parse(status), Some(expected));
    }
}
