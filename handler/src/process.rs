//! A process that is held: its number can be given to another one, the hold cannot.
//!
//! The hold is a descriptor of the process's directory in `/proc`. The kernel binds it to that very process: when the
//! process has ended every look into it fails, also when another process has its number by then.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

/// Longest control group file that is read, in bytes.
const GROUPS_MAX: u64 = 64 << 10;

/// A process that is held. Clones hold the same one.
#[derive(Clone, Debug)]
pub struct Process {
    pid: i32,
    directory: Arc<OwnedFd>,
}

impl Process {
    /// Holds the process that has this number now.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        let path = Path::new("/proc").join(pid.to_string());
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { pid, directory: Arc::new(open(&path, flags, Mode::empty())?) })
    }

    /// Its number, for the log: it may be another process's by now.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A file of it, `ns/net` or `cgroup`.
    ///
    /// # Errors
    ///
    /// The process has ended (`ESRCH`, `ENOENT`), or the file cannot be read.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&*self.directory, name, flags, Mode::empty())?))
    }

    /// The root of its file system, to look for files beneath.
    ///
    /// # Errors
    ///
    /// As [`Process::open`].
    pub fn root(&self) -> io::Result<File> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&*self.directory, "root", flags, Mode::empty())?))
    }

    /// Its control groups, in the form of `/proc/<pid>/cgroup`.
    ///
    /// # Errors
    ///
    /// As [`Process::open`].
    pub fn groups(&self) -> io::Result<String> {
        let mut groups = String::new();
        self.open("cgroup")?.take(GROUPS_MAX).read_to_string(&mut groups)?;
        Ok(groups)
    }
}

#[cfg(test)]
impl Process {
    /// The same process as if its number were that of another one by now.
    pub(crate) fn renumbered(&self, pid: u32) -> Self {
        Self { pid: i32::try_from(pid).unwrap_or_default(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_has_ended_leads_to_nothing() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let held = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        held.open("ns/net").unwrap();
        assert!(!held.groups().unwrap().is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        let gone = held.open("ns/net").unwrap_err();
        assert!(matches!(gone.raw_os_error(), Some(2 | 3)), "{gone}");
        held.groups().unwrap_err();
        Process::of(held.pid()).unwrap_err();
        // Its number may be that of a process that lives by now: the hold does not lead there.
        let reused = held.renumbered(std::process::id());
        Process::of(reused.pid()).unwrap();
        reused.open("ns/net").unwrap_err();
        reused.groups().unwrap_err();
        let namespace = crate::ports::Namespace::of(&reused).unwrap_err();
        assert!(matches!(namespace, crate::ports::Error::Kernel { .. }), "{namespace}");
    }
}
