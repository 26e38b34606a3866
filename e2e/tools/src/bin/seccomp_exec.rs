//! `seccomp-exec PROFILE CMD ARG...`: runs CMD under the system call filter that a container without capabilities has.
//!
//! PROFILE `default` is containerd's RuntimeDefault for an empty capability set, as of containerd 2.1 (which, unlike
//! 1.7, refuses io_uring); `userns` also allows unshare, mount, umount2 and pivot_root. A call that is not in the
//! list fails with EPERM, clone3 with ENOSYS so that the C library falls back to clone, and a call newer than
//! anything in the list with ENOSYS, as runc arranges it. Both filters are installed: of their verdicts the kernel
//! takes the stricter one. no_new_privs is set on the way.

#[path = "seccomp_exec/calls.rs"]
mod calls;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Namespace flags of clone(2): CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
const AF_VSOCK: u64 = 40;

fn on_argument(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule> {
    // Flags and domains are 32 bit wide for the kernel: the upper half of the register is not looked at.
    Ok(SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)?])?)
}

fn allowed(userns: bool) -> Result<Rules> {
    let mut rules: Rules = calls::ALLOWED.iter().map(|&call| (call, vec![])).collect();
    rules.insert(libc::SYS_clone3, vec![]); // The other filter answers.
    rules.insert(libc::SYS_socket, vec![on_argument(0, SeccompCmpOp::Ne, AF_VSOCK)?]);
    rules.insert(libc::SYS_clone, vec![on_argument(0, SeccompCmpOp::MaskedEq(NAMESPACE_FLAGS), 0)?]);
    let personalities = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
    let personalities = personalities.iter().map(|&p| on_argument(0, SeccompCmpOp::Eq, p));
    rules.insert(libc::SYS_personality, personalities.collect::<Result<_>>()?);
    if userns {
        for call in [libc::SYS_unshare, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root] {
            rules.insert(call, vec![]);
        }
    }
    // Calls too new for the list pass here and meet the other filter.
    rules.extend(too_new().map(|call| (call, vec![])));
    Ok(rules)
}

fn too_new() -> impl Iterator<Item = i64> {
    let newest = calls::ALLOWED.iter().copied().max().unwrap_or_default();
    newest + 1..600
}

fn compile(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

fn confine(profile: &str) -> Result<()> {
    let userns = match profile {
        "default" => false,
        "userns" => true,
        other => bail!("no profile is called {other}"),
    };
    let errno = |e: i32| SeccompAction::Errno(e.unsigned_abs());
    let missing = too_new().chain([libc::SYS_clone3]).map(|call| (call, vec![])).collect();
    apply_filter(&compile(missing, SeccompAction::Allow, errno(libc::ENOSYS))?)?;
    apply_filter(&compile(allowed(userns)?, errno(libc::EPERM), SeccompAction::Allow)?)?;
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(profile), Some(program)) = (arguments.next(), arguments.next()) else {
        bail!("usage: seccomp-exec default|userns CMD ARG...");
    };
    confine(profile.to_str().unwrap_or_default())?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
