//! The system calls that netd may make, as filters of seccomp(2).
//!
//! Three filters are loaded; of what they say the kernel takes the strictest:
//!
//! 1. clone3 fails with `ENOSYS`, silently: its arguments lie in memory where no filter can see them, and the C
//!    library then makes threads by clone. It asks for `ENOSYS`, nothing else will do, so the third filter lets it be;
//! 2. [`FATAL`] calls kill the process;
//! 3. calls that are not [`ALLOWED`] fail with `EPERM`, and the kernel logs them (`SECCOMP_FILTER_FLAG_LOG`). It comes
//!    last, since seccomp(2) is not allowed either.
//!
//! The calls of the packet path are allowed without a look at their arguments: the kernel then answers from a bitmap
//! (since 5.11) and runs no filter. `SECCOMP_FILTER_FLAG_SPEC_ALLOW` keeps older kernels from slowing down
//! everything else with it: netd runs no code of other people that could speculate.

use std::collections::BTreeMap;

use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::config::SandboxMode;

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Its number on this processor.
    pub number: i64,
}

macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident)*) => {
        &[$($(#[$attribute])* Call { name: stringify!($name).split_at("SYS_".len()).1, number: libc::$name },)*]
    };
}

/// What netd and the libraries that it stands on call; `docs/netd-security.md` says why, call by call.
pub const ALLOWED: &[Call] = calls![
    // Memory. mmap and mprotect: not executable.
    SYS_brk SYS_mmap SYS_mprotect SYS_munmap SYS_mremap SYS_madvise SYS_memfd_create
    // Threads and time. clone: threads only; prctl: names, slack of timers; tgkill: own process.
    SYS_clone SYS_set_robust_list SYS_rseq SYS_futex SYS_sched_yield SYS_sched_getaffinity SYS_gettid SYS_getpid
    SYS_exit SYS_exit_group SYS_prctl SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep SYS_getrandom
    SYS_restart_syscall
    // Signals: handlers, and the end by a panic.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_tgkill
    // Descriptors.
    SYS_read SYS_readv SYS_pread64 SYS_write SYS_writev SYS_close SYS_lseek SYS_fcntl SYS_ioctl SYS_dup SYS_dup3
    SYS_eventfd2 SYS_pipe2 SYS_ftruncate
    // Waiting.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_ppoll
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait
    #[cfg(target_arch = "x86_64")]
    SYS_poll
    // Sockets. socket: IPv4, IPv6, UNIX, route and sock_diag netlink.
    SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname
    SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg
    SYS_recvmmsg
    // Files; which ones is Landlock's business. openat: reading only.
    SYS_openat SYS_fstat SYS_newfstatat SYS_statx SYS_readlinkat SYS_getdents64 SYS_fchmodat SYS_unlinkat
    SYS_getcwd SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    #[cfg(target_arch = "x86_64")]
    SYS_readlink
    #[cfg(target_arch = "x86_64")]
    SYS_chmod
    #[cfg(target_arch = "x86_64")]
    SYS_unlink
    // The system, the process's user and group, its limits.
    SYS_uname SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_prlimit64
];

/// What only an intruder calls.
pub const FATAL: &[Call] = calls![
    // Another program, or the memory of another process. clone: all but threads.
    SYS_execve SYS_execveat SYS_clone SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_getfd
    #[cfg(target_arch = "x86_64")]
    SYS_fork
    #[cfg(target_arch = "x86_64")]
    SYS_vfork
    // Another world: namespaces and mounts.
    SYS_setns SYS_unshare SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_move_mount SYS_fsopen
    SYS_open_by_handle_at
    // The kernel itself.
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup SYS_init_module SYS_finit_module
    SYS_kexec_load SYS_reboot SYS_keyctl SYS_add_key SYS_request_key
    // Another user.
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups SYS_capset
];

/// Names memory for /proc/PID/maps; the C library and the allocator of Rust use it where it is.
const PR_SET_VMA: u32 = 0x5356_4d41;
/// Bytes that the peer has not acknowledged, without those not sent (sockios.h).
const SIOCOUTQNSD: u32 = 0x894b;

/// Whether a call is decided by its arguments, and how: any of the rules, each a conjunction.
fn rules(call: &str) -> Result<Vec<SeccompRule>, BackendError> {
    let one = |argument: u8, op: SeccompCmpOp, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, Dword, op, value)?])
    };
    let any = |argument: u8, values: &[u64]| values.iter().map(|v| one(argument, Eq, *v)).collect();
    let bits = |n: i32| u64::from(n.cast_unsigned());
    match call {
        "mmap" | "mprotect" => Ok(vec![one(2, MaskedEq(bits(libc::PROT_EXEC)), 0)?]),
        "clone" => Ok(vec![one(0, MaskedEq(bits(libc::CLONE_THREAD)), bits(libc::CLONE_THREAD))?]),
        "prctl" => any(0, &[bits(libc::PR_SET_NAME), bits(libc::PR_SET_TIMERSLACK), PR_SET_VMA.into()]),
        "tgkill" => any(0, &[std::process::id().into()]),
        "ioctl" => {
            let of = [libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::TIOCOUTQ, libc::TCGETS];
            let mut values: Vec<u64> = of.iter().map(|n| *n & u64::from(u32::MAX)).collect();
            values.push(SIOCOUTQNSD.into());
            any(1, &values)
        }
        "socket" => {
            let mut rules: Vec<SeccompRule> =
                any(0, &[bits(libc::AF_INET), bits(libc::AF_INET6), bits(libc::AF_UNIX)])?;
            rules.push(SeccompRule::new(vec![
                SeccompCondition::new(0, Dword, Eq, bits(libc::AF_NETLINK))?,
                SeccompCondition::new(2, Dword, Eq, bits(libc::NETLINK_ROUTE))?,
            ])?);
            rules.push(SeccompRule::new(vec![
                SeccompCondition::new(0, Dword, Eq, bits(libc::AF_NETLINK))?,
                SeccompCondition::new(2, Dword, Eq, bits(libc::NETLINK_SOCK_DIAG))?,
            ])?);
            Ok(rules)
        }
        "openat" => {
            let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
            Ok(vec![one(2, MaskedEq(bits(writing)), 0)?])
        }
        _ => Ok(Vec::new()),
    }
}

/// The filters of a mode, in the order in which they are loaded, each with its flags for seccomp(2).
///
/// # Errors
/// When the processor is not known.
pub fn programs(mode: SandboxMode) -> Result<Vec<(BpfProgram, u32)>, BackendError> {
    let quiet = crate::sys::FILTER_ALL_THREADS | crate::sys::FILTER_SPECULATION;
    let logged = quiet | crate::sys::FILTER_LOG;
    let (refused, killed) = match mode {
        SandboxMode::Off => return Ok(Vec::new()),
        SandboxMode::Log => (SeccompAction::Log, None),
        SandboxMode::Enforce => {
            (SeccompAction::Errno(libc::EPERM.cast_unsigned()), Some(SeccompAction::KillProcess))
        }
    };
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let mut programs = vec![(compile(clone3.clone(), SeccompAction::Allow, missing)?, quiet)];
    if let Some(killed) = killed {
        let mut fatal = BTreeMap::new();
        for call in FATAL {
            let rules = match call.name {
                "clone" => vec![SeccompRule::new(vec![SeccompCondition::new(
                    0,
                    Dword,
                    MaskedEq(u64::from(libc::CLONE_THREAD.cast_unsigned())),
                    0,
                )?])?],
                _ => Vec::new(),
            };
            fatal.insert(call.number, rules);
        }
        programs.push((compile(fatal, SeccompAction::Allow, killed)?, logged));
    }
    let mut allowed = clone3;
    for call in ALLOWED {
        allowed.insert(call.number, rules(call.name)?);
    }
    programs.push((compile(allowed, refused, SeccompAction::Allow)?, logged));
    Ok(programs)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_list_is_justified_line_by_line() {
        let page = include_str!("../../../docs/netd-security.md");
        let section = |title: &str| {
            let (_, rest) = page.split_once(&format!("### {title}\n")).unwrap();
            let text = rest.split("\n#").next().unwrap();
            let rows = text.lines().filter(|l| l.starts_with("| `"));
            rows.flat_map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                assert!(cells.len() >= 4 && cells[2].len() > 10, "no reason: {row}");
                cells[1].split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>()
            })
            .collect::<BTreeSet<String>>()
        };
        let names = |calls: &[Call]| calls.iter().map(|c| c.name.to_owned()).collect::<BTreeSet<String>>();
        // Those of x86-64 alone stand on the page on every processor.
        let old = ["epoll_wait", "poll", "readlink", "chmod", "unlink", "fork", "vfork"].map(str::to_owned);
        let but_old = |names: BTreeSet<String>| -> BTreeSet<String> {
            names.into_iter().filter(|n| !old.contains(n)).collect()
        };
        assert_eq!(but_old(names(ALLOWED)), but_old(section("Allowed")));
        assert_eq!(but_old(names(FATAL)), but_old(section("Fatal")));
        assert!(section("Allowed").is_superset(&names(ALLOWED)));
        assert!(section("Fatal").is_superset(&names(FATAL)));
    }

    #[test]
    fn no_call_is_on_both_lists_but_the_one_that_its_arguments_decide() {
        let fatal: BTreeSet<i64> = FATAL.iter().map(|c| c.number).collect();
        let both: Vec<&str> = ALLOWED.iter().filter(|c| fatal.contains(&c.number)).map(|c| c.name).collect();
        assert_eq!(both, ["clone"]);
        let unique: BTreeSet<i64> = ALLOWED.iter().map(|c| c.number).collect();
        assert_eq!(unique.len(), ALLOWED.len());
    }

    #[test]
    fn every_mode_compiles_to_filters_that_the_kernel_takes() {
        /// The most instructions of one filter (BPF_MAXINSNS).
        const MOST: usize = 4096;
        for (mode, count) in [(SandboxMode::Enforce, 3), (SandboxMode::Log, 2), (SandboxMode::Off, 0)] {
            let programs = programs(mode).unwrap();
            assert_eq!(programs.len(), count, "{mode:?}");
            assert!(programs.iter().all(|(p, _)| (1..MOST).contains(&p.len())));
        }
    }
}
