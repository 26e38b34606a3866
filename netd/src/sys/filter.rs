//! System call filters: seccomp(2) with the flags that no crate passes on.

use std::io;

use seccompiler::sock_filter;

/// `SECCOMP_FILTER_FLAG_TSYNC`: every thread of the process gets the filter.
pub const FILTER_ALL_THREADS: u32 = 1;
/// `SECCOMP_FILTER_FLAG_LOG`: what the filter refuses stands in the audit log.
pub const FILTER_LOG: u32 = 1 << 1;
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: no mitigation of speculation for the filter's sake.
pub const FILTER_SPECULATION: u32 = 1 << 2;

/// `SECCOMP_SET_MODE_FILTER`.
const SET_MODE_FILTER: libc::c_uint = 1;

/// Loads a filter on top of those that there are.
///
/// # Errors
/// As seccomp(2); without `no_new_privs` it needs a capability.
pub fn install_filter(program: &[sock_filter], flags: u32) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: both types are C's struct sock_filter; the kernel reads `len` of them and writes nothing.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const filter) };
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} cannot get the filter"))),
    }
}
