//! A process of the test, with everything it started.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_bed_tools::wait;

/// A running sandbox. Dropping it ends all that runs inside; if the test is failing, its log is shown.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, whose output goes to `<dir>/<name>.log`; if it has a console, standard input and output are
    /// that socket and only errors go to the log.
    ///
    /// # Errors
    /// The command or the log file cannot be started or made.
    pub(crate) fn spawn(
        name: &str,
        mut command: Command,
        dir: &Path,
        console: Option<UnixStream>,
    ) -> Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stderr(file.try_clone()?);
        match console {
            Some(socket) => {
                command.stdin(OwnedFd::from(socket.try_clone()?)).stdout(OwnedFd::from(socket));
            }
            None => {
                command.stdin(Stdio::null()).stdout(file);
            }
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Whether it has ended, and how. A sandbox ends with its first process.
    ///
    /// # Errors
    /// The system call failed.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It goes on for longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        wait::until(&format!("end of {name}"), limit, || self.ended())
    }

    /// The sandbox's first process, as the test sees it: its number in the test's pid namespace.
    ///
    /// # Errors
    /// It has ended.
    pub fn init_pid(&self) -> Result<Pid> {
        let me = self.child.id();
        let children = fs::read_to_string(format!("/proc/{me}/task/{me}/children"))?;
        let first = children.split_whitespace().next();
        Ok(Pid::from_raw(first.with_context(|| format!("{} has ended", self.name))?.parse()?))
    }

    /// Sends a signal to the sandbox's first process.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(self.init_pid()?, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child is unshare(1), which takes the pid namespace down with it.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("---- {} ----\n{}", self.name, self.log());
        }
    }
}
