//! The run directory: everything that a machine leaves on disk while it lives.
//!
//! ```text
//!   lock                 held by the launcher
//!   x/ c/ cache/ home/   libvirt's directories (run time, configuration, cache, home)
//!   net/<interface>.*    netd's socket, control socket and configuration
//!   e/                   the link by which libvirt finds the emulator, in a pod
//!   disks/               overlays, empty disks, cloud-init disks
//!   domain.xml           what libvirt was asked for
//!   serial.sock          the serial console
//!   serial.log           what the guest sent to it
//!   vnc.sock             the display
//!   libvirtd.log, virtlogd.log
//!   virtqemud-sock       a link to libvirt's socket, for virsh in a pod
//! ```
//!
//! Paths of UNIX sockets have at most 107 bytes (unix(7)), and libvirt makes long ones below these directories;
//! hence the short names, and a limit for the directory's own path.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::emulator;

/// libvirt's socket, below the directory.
pub const SOCKET: &str = "x/libvirt/libvirt-sock";
/// Directory of the link by which libvirt finds the emulator.
const EMULATOR: &str = "e";
/// The link to libvirt's socket, as upstream's libvirt calls its own.
const LINK: &str = "virtqemud-sock";
/// Files that are not for the next machine.
const LEFTOVERS: [&str; 7] =
    ["serial.sock", "serial.log", "vnc.sock", "domain.xml", "libvirtd.log", "virtlogd.log", LINK];

/// Longest path of a run directory, bytes: the guest agent's socket takes up to 75 more.
pub const MAX_PATH: usize = 32;

/// Why there is no run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Its path is too long.
    #[error("the path {0} is too long for the sockets below it; at most {MAX_PATH} bytes are allowed")]
    TooLong(PathBuf),
    /// Another launcher has it.
    #[error("another launcher uses {0}")]
    Busy(PathBuf),
    /// A machine of an earlier launcher is still alive.
    #[error("process {pid} of an earlier machine still uses {path}")]
    Alive {
        /// The directory.
        path: PathBuf,
        /// QEMU's process.
        pid: i32,
    },
    /// The file system says no.
    #[error("cannot prepare {path}")]
    File {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The run directory, held until dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    config: PathBuf,
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes the directory, takes it and clears away what an earlier machine left.
    ///
    /// # Errors
    ///
    /// [`RunDirError`].
    pub fn open(path: &Path) -> Result<RunDir, RunDirError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| RunDirError::File { path, source }
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(file(path))?;
        let path = path.canonicalize().map_err(file(path))?;
        if path.as_os_str().len() > MAX_PATH {
            return Err(RunDirError::TooLong(path));
        }
        let lock = File::create(path.join("lock")).map_err(file(&path))?;
        let lock = match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Err(RunDirError::Busy(path)),
            Err((_, error)) => return Err(file(&path)(error.into())),
        };
        if let Some(pid) = living_machine(&path) {
            return Err(RunDirError::Alive { path, pid });
        }
        for name in ["x", "c", "net", "disks", "home"] {
            let directory = path.join(name);
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file(&directory)(error)),
                _ => builder.create(&directory).map_err(file(&directory))?,
            }
        }
        // QEMU's abilities, which cost seconds to learn, are kept: libvirt checks itself whether they still hold.
        builder.create(path.join("cache")).map_err(file(&path))?;
        for name in LEFTOVERS {
            let leftover = path.join(name);
            match std::fs::remove_file(&leftover) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file(&leftover)(error)),
                _ => {}
            }
        }
        let link = path.join(LINK);
        std::os::unix::fs::symlink(SOCKET, &link).map_err(file(&link))?;
        Ok(RunDir { config: path.join("c"), path, _lock: lock })
    }

    /// Has libvirt keep its configuration, and with it what firmware and TPMs keep, in another directory; `shared` are
    /// directories that the machine's next node has as well.
    ///
    /// # Errors
    ///
    /// The directory or libvirt's configuration cannot be written.
    pub fn with_config(self, config: &Path, shared: &[&str]) -> Result<RunDir, RunDirError> {
        let directory = config.join("libvirt");
        let file = directory.join("qemu.conf");
        // Of a machine that keeps one of them alone the other is not there, and libvirt would read no further.
        let there = shared.iter().filter(|directory| Path::new(directory).is_dir());
        let there: Vec<String> = there.map(|directory| format!("{directory:?}")).collect();
        let made = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(&file, format!("shared_filesystems = [ {} ]\n", there.join(", "))));
        made.map_err(|source| RunDirError::File { path: file, source })?;
        Ok(RunDir { config: config.to_owned(), ..self })
    }

    /// Has libvirt start QEMU by way of [`crate::emulator`].
    ///
    /// # Errors
    ///
    /// The link to this program cannot be made.
    pub fn with_emulator(self) -> Result<RunDir, RunDirError> {
        let directory = self.join(EMULATOR);
        let link = directory.join(emulator::NAME);
        let made =
            std::fs::create_dir_all(&directory).and_then(|()| std::env::current_exe()).and_then(|program| {
                match link.symlink_metadata() {
                    Ok(_) => Ok(()),
                    Err(_) => std::os::unix::fs::symlink(program, &link),
                }
            });
        made.map_err(|source| RunDirError::File { path: link.clone(), source })?;
        Ok(self)
    }

    /// A file or directory in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The environment that makes libvirt use it.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        [
            ("HOME", self.join("home")),
            ("XDG_RUNTIME_DIR", self.join("x")),
            ("XDG_CONFIG_HOME", self.config.clone()),
            ("XDG_CACHE_HOME", self.join("cache")),
        ]
        .into_iter()
        .chain(self.path_with_emulator())
        .collect()
    }

    /// `PATH`, with the directory of the emulator's link first, where there is one.
    fn path_with_emulator(&self) -> Option<(&'static str, PathBuf)> {
        let directory = Some(self.join(EMULATOR)).filter(|directory| directory.is_dir())?;
        let all = std::env::var_os("PATH").unwrap_or_default();
        let all = std::env::join_paths(std::iter::once(directory).chain(std::env::split_paths(&all))).ok()?;
        Some(("PATH", all.into()))
    }

    /// libvirt's address below it.
    pub fn libvirt_uri(&self) -> String {
        format!("qemu+unix:///session?socket={}", self.join(SOCKET).display())
    }
}

/// The QEMU of an earlier launcher, if it lives: libvirt leaves its pid in the run directory.
fn living_machine(path: &Path) -> Option<i32> {
    let entries = std::fs::read_dir(path.join("x/libvirt/qemu/run")).ok()?;
    entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "pid"))
        .filter_map(|e| std::fs::read_to_string(e.path()).ok()?.trim().parse::<i32>().ok())
        .find(|pid| {
            // A pid is used again some time: QEMU itself names the directory on its command line.
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.windows(path.as_os_str().len()).any(|w| w == path.as_os_str().as_encoded_bytes())
        })
}

/// Kills the machine whose run directory this is, without asking libvirt.
///
/// # Errors
///
/// No machine is found, or it cannot be killed.
pub fn end_machine(path: &Path) -> io::Result<()> {
    let pid = living_machine(&path.canonicalize()?);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no machine is found"))?;
    Ok(kill(Pid::from_raw(pid), Signal::SIGKILL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_by_one_launcher_and_cleared_for_the_next() {
        let dir = tempfile::Builder::new().prefix("r").tempdir_in("/tmp").unwrap();
        let first = RunDir::open(dir.path()).unwrap();
        assert!(matches!(RunDir::open(dir.path()), Err(RunDirError::Busy(_))));
        std::fs::write(first.join("disks/a.qcow2"), "x").unwrap();
        std::fs::write(first.join("serial.log"), "x").unwrap();
        std::fs::write(first.join("cache/known"), "x").unwrap();
        drop(first);
        let second = RunDir::open(dir.path()).unwrap();
        assert!(!second.join("disks/a.qcow2").exists());
        assert!(!second.join("serial.log").exists());
        assert_eq!(second.join("virtqemud-sock").read_link().unwrap(), Path::new("x/libvirt/libvirt-sock"));
        assert!(second.join("cache/known").exists());
    }

    #[test]
    fn libvirt_is_told_what_the_next_node_has_as_well() {
        let dir = tempfile::Builder::new().prefix("r").tempdir_in("/tmp").unwrap();
        let (config, kept) = (dir.path().join("config"), dir.path().join("kept"));
        std::fs::create_dir(&kept).unwrap();
        let rundir = RunDir::open(&dir.path().join("run")).unwrap();
        let rundir = rundir.with_config(&config, &[kept.to_str().unwrap(), "/nonexistent"]).unwrap();
        let written = std::fs::read_to_string(config.join("libvirt/qemu.conf")).unwrap();
        assert_eq!(written, format!("shared_filesystems = [ {kept:?} ]\n"));
        assert!(rundir.environment().contains(&("XDG_CONFIG_HOME", config)));
    }

    #[test]
    fn a_path_that_sockets_do_not_fit_below_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(MAX_PATH));
        assert!(matches!(RunDir::open(&long), Err(RunDirError::TooLong(_))));
    }

    #[test]
    fn a_machine_that_still_lives_keeps_its_directory() {
        let dir = tempfile::Builder::new().prefix("r").tempdir_in("/tmp").unwrap();
        drop(RunDir::open(dir.path()).unwrap());
        let run = dir.path().join("x/libvirt/qemu/run");
        std::fs::create_dir_all(&run).unwrap();
        // Not one of ours: nothing in this process's command line names the directory.
        std::fs::write(run.join("vm.pid"), std::process::id().to_string()).unwrap();
        drop(RunDir::open(dir.path()).unwrap());
        std::fs::create_dir_all(&run).unwrap();
        let path = dir.path().canonicalize().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").arg0_of(&path).spawn().unwrap();
        // The command line appears a moment after the process.
        let command = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&command).unwrap().is_empty() {
            std::thread::yield_now();
        }
        std::fs::write(run.join("vm.pid"), child.id().to_string()).unwrap();
        let opened = RunDir::open(dir.path());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(opened, Err(RunDirError::Alive { .. })), "{opened:?}");
    }

    trait Arg0 {
        fn arg0_of(&mut self, path: &Path) -> &mut Self;
    }

    impl Arg0 for std::process::Command {
        fn arg0_of(&mut self, path: &Path) -> &mut Self {
            std::os::unix::process::CommandExt::arg0(self, format!("guest={}", path.display()))
        }
    }
}
