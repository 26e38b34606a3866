//! netd as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A netd that is killed if a test leaves it behind.
pub(crate) struct Daemon(pub(crate) Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts netd with the arguments that `set` adds, which ask for both sockets and a log that tells of them, and
    /// waits until both are there.
    pub(crate) fn start(set: impl FnOnce(&mut Command) -> &mut Command) -> Daemon {
        Daemon::launch(Command::new(env!("CARGO_BIN_EXE_netd")), set)
    }

    /// The same with another program.
    pub(crate) fn launch(mut command: Command, set: impl FnOnce(&mut Command) -> &mut Command) -> Daemon {
        let mut child = set(&mut command).env_remove("RUST_LOG").stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let daemon = Daemon(child);
        let mut seen = String::new();
        while !(seen.contains("waiting for a frontend") && seen.contains("serving the control interface")) {
            let line = log.next().unwrap_or_else(|| panic!("netd ended: {seen}")).unwrap();
            seen = seen + &line + "\n";
        }
        // The rest must not fill the pipe, so a thread reads it, and shows it if that is asked for.
        let shown = std::env::var_os("PODVIRT_SHOW_LOG").is_some();
        std::thread::spawn(move || {
            for line in log.map_while(Result::ok).filter(|_| shown) {
                eprintln!("{line}");
            }
        });
        daemon
    }
}
