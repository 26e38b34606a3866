//! The sandbox: what netd gives up before it meets a guest, a peer or a frontend.
//!
//! # Theory of operation
//!
//! [`enter`] is called once, while the process has one thread and nothing from outside has been read but the
//! configuration. Threads that are made later inherit all of it. In this order, since each step needs what a later
//! one takes away:
//!
//! 1. `PR_SET_NO_NEW_PRIVS`: no program that is executed gains privilege, and the filters need no capability;
//! 2. Landlock ([`files`]): of the file system only what is configured can be opened, and sockets can be made and
//!    removed in the directories of the configured ones only. Kernels without Landlock go without, said in the log;
//! 3. capabilities: every set is emptied;
//! 4. limits: no core dump (it would hold guest memory), and a bound on private memory ([`data_limit`]);
//! 5. `PR_SET_DUMPABLE` off: other processes of the same user, QEMU above all, cannot trace netd or read its memory;
//! 6. seccomp ([`calls`]): a list of system calls; whatever is not on it is refused.
//!
//! Whatever comes after finds its files by descriptors that others pass, or in those directories.
//!
//! # What a forbidden system call does
//!
//! Calls that only an intruder makes (execute a program, trace, mount, load code into the kernel ...) kill the
//! process: no library ever tries them for another reason, so there is nothing to go on with. Every other call that
//! is not on the list fails with `EPERM` and stands in the audit log. It is not worth a kill, because libraries try
//! calls that a later kernel or C library brought, and fall back: a kill would let a library's new version, or a rare
//! path that a guest finds, end every connection of that guest, while the refusal protects as well.
//!
//! `docs/netd-security.md` justifies the list line by line; a test keeps both the same.

pub mod calls;
pub mod files;

mod process;

use std::io;

pub use process::data_limit;

use crate::config::{Config, SandboxMode};
use files::{Confined, Files};

/// Why there is no sandbox. netd does not start without one that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refused a step.
    #[error("sandbox: the kernel refuses {step}; 'sandbox: off' starts netd without")]
    Refused {
        /// What was refused.
        step: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The list of files cannot be enforced though the kernel has Landlock.
    #[error("sandbox: the list of files cannot be enforced")]
    Files(#[from] landlock::RulesetError),
    /// The list of system calls cannot be compiled: this processor is not known.
    #[error("sandbox: the list of system calls cannot be compiled for this processor")]
    Calls(#[from] seccompiler::BackendError),
}

impl SandboxError {
    fn refused(step: &'static str) -> impl FnOnce(io::Error) -> SandboxError {
        move |source| SandboxError::Refused { step, source }
    }
}

/// A sandbox that is in force. Keep it to the end: it pins files that may be read.
#[derive(Debug, Default)]
pub struct Sandbox {
    _confined: Option<Confined>,
}

/// Enters the sandbox that the configuration asks for. To be called before the process has a second thread: Landlock
/// confines the caller's thread and those that it makes.
///
/// # Errors
/// [`SandboxError`].
pub fn enter(config: &Config) -> Result<Sandbox, SandboxError> {
    confine(config.sandbox, &Files::of(config), data_limit(&config.limits, config.vhost_user.queue_pairs))
}

/// As [`enter`], of these files and with this bound on private memory in bytes.
///
/// # Errors
/// [`SandboxError`].
pub fn confine(mode: SandboxMode, files: &Files, data_bytes: u64) -> Result<Sandbox, SandboxError> {
    if mode == SandboxMode::Off {
        tracing::warn!("no sandbox: 'sandbox: off'");
        return Ok(Sandbox::default());
    }
    process::no_new_privileges().map_err(SandboxError::refused("no_new_privs"))?;
    let confined = match mode {
        SandboxMode::Enforce => Some(files.confine()?),
        SandboxMode::Log | SandboxMode::Off => None,
    };
    process::drop_capabilities().map_err(SandboxError::refused("to drop capabilities"))?;
    process::limit(data_bytes).map_err(SandboxError::refused("the limits of memory and core dumps"))?;
    process::hide().map_err(SandboxError::refused("PR_SET_DUMPABLE"))?;
    for (program, flags) in calls::programs(mode)? {
        crate::sys::install_filter(&program, flags)
            .map_err(SandboxError::refused("the system call filter"))?;
    }
    let landlock = confined.as_ref().map_or("not used", Confined::describe);
    tracing::info!(?mode, landlock, "sandbox entered");
    Ok(Sandbox { _confined: confined })
}
