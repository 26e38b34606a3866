//! The duties of process 1.
//!
//! Process 1 of a container inherits every orphan and must wait for each, or the dead pile up; libvirt makes
//! QEMU an orphan on purpose and waits until it is gone. Waiting for *any* child would take away the exit
//! statuses that the launcher's own supervision waits for, therefore the launcher splits: process 1 stays this
//! loop and starts the same program again as its child, which does everything else.
//!
//! ```text
//!   init ── fork+exec ──> launcher ──> libvirtd, virtlogd, netd   (waited for by the launcher, by pid)
//!    │  ^                                  └──> QEMU, daemonised: an orphan
//!    │  └── every orphan, waited for here <────────┘
//!    └── signals are passed on to the launcher; its exit code becomes init's
//! ```
//!
//! The loop has no handlers and no threads: all signals are blocked and taken one by one with sigwait(3), so
//! none is lost between two steps. Where the launcher is not process 1 but no process near it reaps, `--init` makes
//! init a child subreaper (prctl(2)) with the same duties.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Signals that are the launcher's to answer.
const FORWARDED: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Signals that ask for the end.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];

/// How init's own child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, 128 + the signal's number when a signal ended it.
    pub code: u8,
    /// Whether init had got SIGTERM, SIGINT or SIGQUIT before the child ended.
    pub asked: bool,
}

/// Runs `command` as init's only own child until it ends.
///
/// # Errors
///
/// The command cannot be started, or the kernel refuses a step.
pub fn run(command: &mut Command, subreaper: bool) -> io::Result<Ended> {
    if subreaper {
        nix::sys::prctl::set_child_subreaper(true)?;
    }
    let signals = signals();
    // Blocked before the child is there: its death must not come before it is waited for.
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
    let child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let mut asked = false;
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(code) = reap(pid)? {
                    return Ok(Ended { code, asked });
                }
            }
            // A launcher that is gone is told by SIGCHLD.
            signal => {
                asked |= ENDS.contains(&signal);
                match kill(pid, signal) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Waits, after [`run`] has returned, until init gets SIGTERM, SIGINT or SIGQUIT. Meanwhile it goes on reaping orphans.
///
/// # Errors
///
/// The kernel refuses a step.
pub fn linger() -> io::Result<()> {
    let signals = signals();
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => drop(reap(Pid::from_raw(0))?),
            signal if ENDS.contains(&signal) => return Ok(()),
            _ => {}
        }
    }
}

/// What init waits for.
fn signals() -> SigSet {
    FORWARDED.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Waits for every dead child; one signal may stand for several. Answers the exit code if `main` was among them.
fn reap(main: Pid) -> io::Result<Option<u8>> {
    let mut code = None;
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == main => {
                code = Some(exit_code(ExitStatus::from_raw(status << 8)));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                code = Some(exit_code(ExitStatus::from_raw(signal as i32)));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(code),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Lets every signal in again: the mask that init set is inherited by what it starts.
///
/// # Errors
///
/// The kernel refuses.
pub fn unblock_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_becomes_128_and_its_number() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
