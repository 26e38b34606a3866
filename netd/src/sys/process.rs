//! A second process.

use std::io;

use nix::unistd::{ForkResult, Pid};

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The one that was there before; the new one has this number.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Makes a copy of this process, which must have one thread only.
///
/// # Errors
/// When it has several, or the system has no room for another process.
pub fn fork() -> io::Result<Fork> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("a process with {threads} threads cannot be copied")));
    }
    // SAFETY: there is no other thread, so no lock is held by one that the child does not have; no thread is made
    // between the count and this call, since only the caller could.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Fork::Parent(child)),
        ForkResult::Child => Ok(Fork::Child),
    }
}
