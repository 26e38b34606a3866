//! A netd process, what it uses, and an honest frontend.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use frontend_double::{Double, HEADER, Options};
use tempfile::TempDir;

use super::daemon::Daemon;

/// How long anything may take that does happen: longer than netd waits for a client or frontend that has stalled.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x11, 0x22, 0x33];

/// A running netd.
pub(crate) struct Netd {
    daemon: Daemon,
    dir: TempDir,
}

impl Netd {
    pub(crate) fn start() -> Netd {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(|command| {
            command
                .args(["--log", "info", "--guest-mac", "52:54:00:11:22:33", "-t", "none", "-u", "none"])
                .arg("--socket")
                .arg(dir.path().join("vm.sock"))
                .arg("--control")
                .arg(dir.path().join("control.sock"))
        });
        Netd { daemon, dir }
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    /// A connection to the vhost-user socket on which nothing waits for ever.
    pub(crate) fn dial(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("vm.sock")).expect("netd does not listen");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// An honest frontend. Once it is there, all that came before it has been served and is gone.
    pub(crate) fn plug(&mut self) -> Double {
        let alive = self.daemon.0.try_wait().unwrap();
        assert!(alive.is_none(), "netd has ended: {alive:?}");
        let mut double = Double::from_stream(self.dial(), &Options::default()).unwrap();
        works(&mut double);
        double
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.daemon.0.id()).into()
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
        let frame = double.recv(TIMEOUT).unwrap().expect("no answer came");
        // Router advertisements come by themselves.
        if frame[HEADER + 12..].starts_with(&[8, 6]) {
            return;
        }
    }
}
