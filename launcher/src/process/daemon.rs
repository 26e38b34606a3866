//! Daemons that are kept running.
//!
//! A daemon that ends is started again, at first after 100 ms, then after twice the last pause and at most after
//! 5 s; once it ran for 30 s the pauses begin anew. It is stopped by SIGTERM and, if it does not end in 5 s,
//! by SIGKILL. Each daemon has a process group of its own, so that an interrupt typed at the launcher's terminal
//! reaches the launcher alone: a libvirtd that ended with it could not shut the guest down.
//!
//! The launcher waits for its daemons by their pids and for nothing else. When it is process 1, [`super::init`] waits
//! for all other processes, in a process apart from it, so neither takes the other's exit statuses.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{Instrument, info, warn};

use crate::rundir::RunDir;

/// The first pause before a daemon is started again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A daemon that ran this long is well.
const WELL: Duration = Duration::from_secs(30);
/// How long a daemon may take to end by SIGTERM.
const END: Duration = Duration::from_secs(5);
/// The kernel's table of UNIX sockets.
const UNIX_SOCKETS: &str = "/proc/net/unix";
/// Between two looks for a socket that is to come.
const SOCKET_INTERVAL: Duration = Duration::from_millis(50);

/// What is run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name, for the log.
    pub name: String,
    /// File.
    pub path: PathBuf,
    /// Arguments.
    pub args: Vec<OsString>,
    /// Environment beside the launcher's own.
    pub env: Vec<(&'static str, PathBuf)>,
    /// File for its output; none lets it go where the launcher's goes.
    pub log: Option<PathBuf>,
}

/// A daemon that is kept running; it ends with [`Daemon::stop`].
#[derive(Debug)]
pub struct Daemon {
    name: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The pauses between two starts.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Backoff { next: FIRST_PAUSE }
    }

    /// The pause after a run of this length.
    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= WELL {
            self.next = FIRST_PAUSE;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

impl Daemon {
    /// Starts `program` and keeps it running.
    ///
    /// # Errors
    ///
    /// It cannot be started the first time: a program that is missing should be told at once.
    pub fn start(program: Program) -> io::Result<Daemon> {
        let child = spawn(&program)?;
        let (stop, stopping) = watch::channel(false);
        let name = program.name.clone();
        let task = tokio::spawn(keep_running(program, child, stopping).in_current_span());
        Ok(Daemon { name, stop, task })
    }

    /// Ends it.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            warn!(daemon = self.name, %error, "its keeper failed");
        }
    }
}

/// The daemons of one machine, in the order of their starts.
#[derive(Debug, Default)]
pub struct Daemons(Vec<Daemon>);

impl Daemons {
    /// Starts one more.
    ///
    /// # Errors
    ///
    /// As [`Daemon::start`], with the daemon's name.
    pub fn start(&mut self, program: Program) -> anyhow::Result<()> {
        let name = program.name.clone();
        self.0.push(Daemon::start(program).with_context(|| format!("cannot start {name}"))?);
        Ok(())
    }

    /// Starts virtlogd, which keeps the console's log, and libvirtd, which keeps QEMU.
    ///
    /// # Errors
    ///
    /// One cannot be started, or the launcher is root: session daemons are an ordinary user's.
    pub fn libvirt(&mut self, rundir: &RunDir) -> anyhow::Result<()> {
        if nix::unistd::geteuid().is_root() {
            bail!("libvirt is started for an ordinary user only; run as one, or give --connect");
        }
        for name in ["virtlogd", "libvirtd"] {
            self.start(Program {
                name: name.into(),
                path: find(Path::new(name))?,
                args: Vec::new(),
                env: rundir.environment(),
                log: Some(rundir.join(&format!("{name}.log"))),
            })?;
        }
        Ok(())
    }

    /// Stops them, the last one first.
    pub async fn stop(self) {
        for daemon in self.0.into_iter().rev() {
            daemon.stop().await;
        }
    }
}

/// Waits until the daemon has made a socket. Connecting would tell more, but a vhost-user backend would take it for
/// its frontend.
pub async fn wait_for_socket(path: &Path) {
    while !path.metadata().is_ok_and(|m| m.file_type().is_socket()) {
        sleep(SOCKET_INTERVAL).await;
    }
}

/// Waits until a program of this network name space accepts connections at a socket. Connecting would tell as much, but
/// virtiofsd ends when its first client leaves.
pub async fn wait_for_listener(path: &Path) {
    while !fs::read_to_string(UNIX_SOCKETS).is_ok_and(|table| listens(&table, path)) {
        sleep(SOCKET_INTERVAL).await;
    }
}

/// Whether the kernel's table of UNIX sockets has one at `path` that accepts connections.
fn listens(table: &str, path: &Path) -> bool {
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path (the kernel's net/unix/af_unix.c).
    const FLAGS: usize = 3;
    const PATH: usize = 7;
    const ACCEPTS: u32 = 1 << 16;
    table.lines().any(|line| {
        let mut words = line.split_whitespace();
        let flags = words.nth(FLAGS).and_then(|word| u32::from_str_radix(word, 16).ok());
        let at = words.nth(PATH - FLAGS - 1);
        flags.is_some_and(|flags| flags & ACCEPTS != 0) && at.is_some_and(|at| Path::new(at) == path)
    })
}

/// Finds a program as a shell does: by path if it has a slash, else in the directories of `PATH`.
///
/// # Errors
///
/// There is none.
pub fn find(program: &Path) -> io::Result<PathBuf> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{} is not found", program.display()));
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned()).ok_or_else(missing);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file()).ok_or_else(missing)
}

fn spawn(program: &Program) -> io::Result<Child> {
    let mut command = Command::new(&program.path);
    command
        .args(&program.args)
        .envs(program.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(log) = &program.log {
        let file = fs::OpenOptions::new().create(true).append(true).open(log)?;
        command.stdout(file.try_clone()?).stderr(file);
    } else {
        // Standard output belongs to the guest's console.
        command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
    }
    command.spawn()
}

async fn keep_running(program: Program, mut child: Child, mut stopping: watch::Receiver<bool>) {
    let name = program.name.as_str();
    let mut backoff = Backoff::new();
    loop {
        info!(daemon = name, pid = child.id(), "runs");
        let started = Instant::now();
        tokio::select! {
            status = child.wait() => warn!(daemon = name, status = %text(&status), "ended by itself"),
            () = asked(&mut stopping) => return end(name, &mut child).await,
        }
        // Another try at what cannot be started counts as a run of no length.
        let mut ran = started.elapsed();
        loop {
            tokio::select! {
                () = sleep(backoff.after(ran)) => {}
                () = asked(&mut stopping) => return,
            }
            match spawn(&program) {
                Ok(new) => {
                    child = new;
                    break;
                }
                Err(error) => warn!(daemon = name, %error, "cannot be started again"),
            }
            ran = Duration::ZERO;
        }
    }
}

/// Until the daemon is to end, or no owner is left.
async fn asked(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

fn text(status: &io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Ends `child` and takes its status.
async fn end(name: &str, child: &mut Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    // Without a pid it was waited for already.
    let Some(pid) = pid else { return };
    if let Err(error) = kill(pid, Signal::SIGTERM) {
        warn!(daemon = name, %error, "cannot be asked to end");
    }
    match timeout(END, child.wait()).await {
        Ok(status) => info!(daemon = name, status = %text(&status), "stopped"),
        Err(_) => {
            warn!(daemon = name, "does not end; killed");
            if let Err(error) = child.kill().await {
                warn!(daemon = name, %error, "cannot be killed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tokio::io::{AsyncBufReadExt, BufReader, Lines};
    use tokio::net::unix::pipe::{OpenOptions, Receiver};

    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_good_run() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(WELL).as_millis(), 100);
        assert_eq!(backoff.after(Duration::ZERO).as_millis(), 200);
    }

    #[tokio::test]
    async fn a_socket_is_waited_for_until_it_accepts_connections_and_is_not_connected_to() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00000000 0001 01 11 /run/bound\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12 /run/listens\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 13\n";
        for (path, expected) in [("/run/bound", false), ("/run/listens", true), ("/run", false)] {
            assert_eq!(listens(table, Path::new(path)), expected, "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let waits = timeout(Duration::from_millis(200), wait_for_listener(&path));
        assert!(waits.await.is_err());
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        timeout(Duration::from_secs(10), wait_for_listener(&path)).await.unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// A daemon's voice: a FIFO that its script knows as `$OUT`.
    struct Voice {
        dir: tempfile::TempDir,
        lines: Lines<BufReader<Receiver>>,
    }

    impl Voice {
        fn new() -> Voice {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("out");
            mkfifo(&path, Mode::S_IRWXU).unwrap();
            // Open for writing, too: there is no end of file between two writers.
            let receiver = OpenOptions::new().read_write(true).open_receiver(&path).unwrap();
            Voice { dir, lines: BufReader::new(receiver).lines() }
        }

        fn program(&self, script: &str) -> Program {
            Program {
                name: "sh".into(),
                path: find(Path::new("sh")).unwrap(),
                args: vec!["-c".into(), script.into()],
                env: vec![("OUT", self.dir.path().join("out"))],
                log: Some(self.dir.path().join("log")),
            }
        }

        async fn says(&mut self, wanted: &str) {
            assert_eq!(self.lines.next_line().await.unwrap().as_deref(), Some(wanted));
        }
    }

    #[tokio::test]
    async fn a_daemon_that_ends_is_started_again() {
        let mut voice = Voice::new();
        let daemon = Daemon::start(voice.program("echo run >$OUT; exit 3")).unwrap();
        for _ in 0..3 {
            voice.says("run").await;
        }
        daemon.stop().await;
    }

    #[tokio::test]
    async fn a_daemon_is_stopped_by_sigterm() {
        let mut voice = Voice::new();
        let script = "trap 'echo stopped >$OUT; exit 0' TERM; echo ready >$OUT; while :; do sleep 0.05; done";
        let daemon = Daemon::start(voice.program(script)).unwrap();
        voice.says("ready").await;
        daemon.stop().await;
        voice.says("stopped").await;
    }

    #[tokio::test]
    async fn a_missing_program_is_told_at_once() {
        let program = Program { path: "/nonexistent/netd".into(), ..Voice::new().program("") };
        assert_eq!(Daemon::start(program).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(find(Path::new("no-such-program-here")).is_err());
        assert!(find(Path::new("/nonexistent/x")).is_err());
    }
}
