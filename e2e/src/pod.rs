//! Containers of the pod and commands of the client.

use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use podvirt_bed_tools::Console;
use tempfile::TempDir;

use crate::artefacts::{program_dir, script};
use crate::net::{Net, NetOptions, Netns};
use crate::process::Process;

/// The user a restricted pod of a virtual machine runs as.
const POD_UID: u32 = 107;

/// A pod: a network and a directory that its containers share as `/w`.
#[derive(Debug)]
pub struct Pod {
    /// Its network.
    pub net: Net,
    work: TempDir,
}

impl Pod {
    /// A new pod with nothing in it.
    ///
    /// # Errors
    /// The network or the directory cannot be made.
    pub fn new(options: NetOptions) -> Result<Pod> {
        Pod::at(Net::up(options)?)
    }

    /// A new pod with nothing in it in a network that is there.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn at(net: Net) -> Result<Pod> {
        // Short, for the sockets in it: their paths may have 107 bytes.
        let work = tempfile::Builder::new().prefix("pv").tempdir()?;
        chown(work.path(), Some(POD_UID), Some(POD_UID))?;
        Ok(Pod { net, work })
    }

    /// The shared directory as the test sees it.
    pub fn dir(&self) -> &Path {
        self.work.path()
    }

    /// A file of the shared directory as the test sees it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// A container of the pod.
    ///
    /// # Errors
    /// The helper that installs the system call filter is not built.
    pub fn container(&self, name: &str) -> Result<Sandbox> {
        let mut sandbox = Sandbox::new(name, &self.net.pod, self.dir());
        let helper = program_dir("seccomp-exec")?.join("seccomp-exec");
        sandbox.command.env("SECCOMP_EXEC", helper);
        Ok(sandbox)
    }

    /// A command of the client: root, outside the pod.
    pub fn peer(&self, name: &str) -> Sandbox {
        self.peer_at(name, &self.net.client)
    }

    /// A command of another peer: root, outside the pod.
    pub fn peer_at(&self, name: &str, netns: &Netns) -> Sandbox {
        let mut sandbox = Sandbox::new(name, netns, self.dir());
        sandbox.options.push("--root".into());
        sandbox
    }
}

/// A sandbox to be started: `e2e/sandbox` with its options.
#[derive(Debug)]
pub struct Sandbox {
    name: String,
    netns: String,
    dir: PathBuf,
    options: Vec<String>,
    command: Command,
}

impl Sandbox {
    fn new(name: &str, netns: &Netns, dir: &Path) -> Sandbox {
        let options = vec!["--rw".into(), format!("{}:/w", dir.display())];
        let command = Command::new(script("sandbox"));
        Sandbox { name: name.into(), netns: netns.name().into(), dir: dir.into(), options, command }
    }

    /// Shows a directory or file of the machine inside, read-only. See the script for where.
    #[must_use]
    pub fn ro(mut self, outside: &Path, inside: &str) -> Sandbox {
        self.options.extend(["--ro".into(), format!("{}:{inside}", outside.display())]);
        self
    }

    /// Shows a directory of the machine inside, as it is. See the script for where.
    #[must_use]
    pub fn rw(mut self, outside: &Path, inside: &str) -> Sandbox {
        self.options.extend(["--rw".into(), format!("{}:{inside}", outside.display())]);
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Sandbox {
        self.options.extend(["--env".into(), format!("{name}={value}")]);
        self
    }

    /// The name server in `/etc/resolv.conf`.
    #[must_use]
    pub fn dns(mut self, address: &str) -> Sandbox {
        self.options.extend(["--dns".into(), address.into()]);
        self
    }

    /// The container may make user namespaces; RuntimeDefault refuses that.
    #[must_use]
    pub fn userns(mut self) -> Sandbox {
        self.options.extend(["--seccomp".into(), "userns".into()]);
        self
    }

    /// The program is process 1 itself.
    #[must_use]
    pub fn no_init(mut self) -> Sandbox {
        self.options.push("--no-init".into());
        self
    }

    fn command(mut self, program: &[impl AsRef<OsStr>]) -> (String, PathBuf, Command) {
        self.command.args(&self.options).arg(&self.netns).args(program);
        (self.name, self.dir, self.command)
    }

    /// Starts a program in it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(self, program: &[impl AsRef<OsStr>]) -> Result<Process> {
        let (name, dir, command) = self.command(program);
        Process::spawn(&name, command, &dir, None)
    }

    /// Starts a program whose standard input and output are a console.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_with_console(self, program: &[impl AsRef<OsStr>]) -> Result<(Process, Console)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (name, dir, command) = self.command(program);
        let process = Process::spawn(&name, command, &dir, Some(theirs))?;
        Ok((process, Console::new(ours.try_clone()?, ours)))
    }

    /// Runs a program to its end and returns what it printed.
    ///
    /// # Errors
    /// It cannot be started or says that it failed.
    pub fn run(self, program: &[impl AsRef<OsStr>]) -> Result<String> {
        let (name, _, mut command) = self.command(program);
        let out = command.output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "{name}: {}\n{text}{errors}", out.status);
        Ok(text)
    }
}
