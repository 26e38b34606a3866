//! Calls about a domain's job that the `virt` crate lacks, or makes with a null pointer where there is no job.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use podvirt_proto::migration::Progress;
use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

/// Aborts the domain's present job.
///
/// # Errors
///
/// There is none, or it cannot be aborted any more.
pub(super) fn abort(domain: &Domain) -> Result<(), Error> {
    // SAFETY: the domain is a valid reference for as long as `domain` lives; the call keeps nothing.
    match unsafe { sys::virDomainAbortJob(domain.as_ptr()) } {
        -1 => Err(Error::last_error()),
        _ => Ok(()),
    }
}

/// What libvirt tells of a job; freed when it is dropped.
struct Parameters {
    list: sys::virTypedParameterPtr,
    count: c_int,
}

impl Parameters {
    /// A number; 0 where it is not told.
    fn number(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: `list` has `count` elements (null when that is 0, which libvirt takes), `name` is a C string, and
        // `value` lives for the call.
        let found =
            unsafe { sys::virTypedParamsGetULLong(self.list, self.count, name.as_ptr(), &raw mut value) };
        if found == 1 { value } else { 0 }
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        // SAFETY: libvirt made the list and nobody else has it; null is allowed.
        unsafe { sys::virTypedParamsFree(self.list, self.count) };
    }
}

/// How far the domain's present job is; none when there is none.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn progress(domain: &Domain) -> Result<Option<Progress>, Error> {
    let (mut kind, mut list, mut count) = (0, null_mut(), 0);
    // SAFETY: the domain is valid, the three places live for the call; what libvirt puts there is ours to free.
    let result = unsafe {
        sys::virDomainGetJobStats(domain.as_ptr(), &raw mut kind, &raw mut list, &raw mut count, 0)
    };
    if result == -1 {
        return Err(Error::last_error());
    }
    let told = Parameters { list, count };
    if u32::try_from(kind).ok().is_none_or(|kind| kind == sys::VIR_DOMAIN_JOB_NONE) {
        return Ok(None);
    }
    let page = match told.number(c"memory_page_size") {
        0 => 4096,
        size => size,
    };
    Ok(Some(Progress {
        total: told.number(c"data_total"),
        processed: told.number(c"data_processed"),
        remaining: told.number(c"data_remaining"),
        dirty_rate: told.number(c"memory_dirty_rate").saturating_mul(page),
        transfer_rate: told.number(c"memory_bps").saturating_add(told.number(c"disk_bps")),
        iteration: told.number(c"memory_iteration"),
        downtime_ms: told.number(c"downtime"),
    }))
}
