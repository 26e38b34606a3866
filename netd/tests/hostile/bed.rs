//! A netd process in a network namespace, what it uses, and an honest frontend.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use frontend_double::{Double, HEADER, Options};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

/// How long anything may take that does happen: longer than netd waits for somebody who has stalled.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x11, 0x22, 0x33];

/// Runs `test` on a thread in a network namespace with one interface, eth0 with 10.9.0.2/24.
pub(crate) fn in_pod(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
            return;
        }
        for line in [
            "link add eth0 type veth peer name peer",
            "addr add 10.9.0.2/24 dev eth0",
            "link set eth0 up",
            "link set peer up",
        ] {
            let status = Command::new("ip").args(line.split(' ')).status().expect("ip does not run");
            assert!(status.success(), "ip {line}");
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A running netd.
pub(crate) struct Netd {
    child: Child,
    dir: TempDir,
}

impl Drop for Netd {
    fn drop(&mut self) {
        // Both fail when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Netd {
    pub(crate) fn start() -> Netd {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_netd"))
            .args([
                "--log",
                "info",
                "--guest-mac",
                "52:54:00:11:22:33",
                "-t",
                "none",
                "-u",
                "none",
                "--socket",
            ])
            .arg(dir.path().join("vm.sock"))
            .arg("--control")
            .arg(dir.path().join("control.sock"))
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        while !(seen.contains("waiting for a frontend") && seen.contains("serving the control interface")) {
            let line = log.next().unwrap_or_else(|| panic!("netd ended: {seen}")).unwrap();
            seen = seen + &line + "\n";
        }
        // Nobody reads the rest; it must not fill the pipe.
        std::thread::spawn(move || log.for_each(drop));
        Netd { child, dir }
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    /// A connection to the vhost-user socket on which nothing waits for ever.
    pub(crate) fn dial(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("vm.sock")).expect("nobody listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// An honest frontend. Once it is there, all that came before it has been served and is gone.
    pub(crate) fn plug(&mut self) -> Double {
        let alive = self.child.try_wait().unwrap();
        assert!(alive.is_none(), "netd has ended: {alive:?}");
        let mut double = Double::from_stream(self.dial(), &Options::default()).unwrap();
        works(&mut double);
        double
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.child.id()).into()
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap().count()
    }

    /// What the process has of its own in memory, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let mut status = String::new();
        fs::File::open(self.proc("status")).unwrap().read_to_string(&mut status).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// The device carries frames both ways: an ARP request is answered.
pub(crate) fn works(double: &mut Double) {
    let mut request = vec![0; HEADER];
    request.extend([0xff; 6]);
    request.extend(GUEST);
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(GUEST);
    request.extend([10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1]);
    assert!(double.send(&request).unwrap(), "the transmit ring is full");
    loop {
        let frame = double.recv(PATIENCE).unwrap().expect("no answer came");
        // Router advertisements come by themselves.
        if frame[HEADER + 12..].starts_with(&[8, 6]) {
            return;
        }
    }
}
