//! Getting a thread out of a system call in which another process makes it wait.

use std::sync::Once;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Pid, getpid, gettid};

/// No program sends it by chance, and it is ignored where there is no handler.
const SIGNAL: Signal = Signal::SIGURG;

/// A thread of this process that can be interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Thread(Pid);

extern "C" fn nothing(_: libc::c_int) {}

impl Thread {
    /// The calling thread.
    pub fn current() -> Thread {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // Without SA_RESTART, so that the call ends.
            let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
            // SAFETY: the handler does nothing, and nothing else in the process has one for this signal.
            if let Err(error) = unsafe { sigaction(SIGNAL, &action) } {
                tracing::warn!(%error, "threads cannot be interrupted");
            }
        });
        Thread(gettid())
    }

    /// Ends the system call that the thread waits in, if it is one that a signal can end: with `EINTR`. A caller that wants to
    /// be sure does it again until the thread has answered. One that has ended is no error.
    pub fn interrupt(self) {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw(), self.0.as_raw(), SIGNAL as libc::c_int) };
    }
}
