//! What the process gives up of itself: privilege, capabilities, memory without bound, being looked into.

use std::io;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::limits::{Limits, MAX_CAPTURE_KIB, MAX_CAPTURES};

/// Private memory beside flows and fragments: code, heap, buffers, stacks of threads (2 MiB each).
const BASE_BYTES: u64 = 256 << 20;
/// Private memory that one flow may cost at the very most, its gathered frames included.
const FLOW_BYTES: u64 = 32 << 10;
/// Private memory that one worker may keep for all its flows together: payload out of order, frames that wait for a
/// flow, the backlog of its mailbox.
const WORKER_BYTES: u64 = 16 << 20;
/// Bits of a set of capabilities.
const CAPABILITIES: u32 = 64;

pub(super) fn no_new_privileges() -> io::Result<()> {
    Ok(prctl::set_no_new_privs()?)
}

/// Empties every set of capabilities. The bounding set needs one of them to be changed; without it nothing can be
/// gained from that set either, since `no_new_privs` is on.
pub(super) fn drop_capabilities() -> io::Result<()> {
    for bit in 0..CAPABILITIES {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // Beyond the last capability that the kernel knows, or no right to change the set.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// How many bytes of private memory netd may have with these limits and this many queue pairs.
///
/// Guest memory is shared and does not count (RLIMIT_DATA, getrlimit(2)). RLIMIT_AS would count it, however large the
/// guest is; RLIMIT_NPROC counts every process of the user, the hypervisor's too: neither can be used.
pub fn data_limit(limits: &Limits, pairs: usize) -> u64 {
    let fragments = u64::try_from(limits.fragment_bytes).unwrap_or(u64::MAX);
    let pairs = u64::try_from(pairs).unwrap_or(u64::MAX);
    (BASE_BYTES + MAX_CAPTURES as u64 * u64::from(MAX_CAPTURE_KIB) * 1024)
        .saturating_add(pairs.saturating_mul(WORKER_BYTES))
        .saturating_add(u64::from(limits.flows) * FLOW_BYTES)
        .saturating_add(fragments.saturating_mul(2))
}

pub(super) fn limit(data_bytes: u64) -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // A limit that is lower already stays.
    let (_, hard) = getrlimit(Resource::RLIMIT_DATA)?;
    let bytes = data_bytes.min(hard);
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?)
}

pub(super) fn hide() -> io::Result<()> {
    match prctl::set_dumpable(false) {
        Ok(()) | Err(Errno::ENOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
