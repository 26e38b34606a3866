//! Calls about a domain's job that the `virt` crate lacks, or makes with a null pointer where there is no job.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};

use podvirt_proto::migration::Progress;
use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

use super::BackupEnd;

/// The operation of a backup job.
const BACKUP: u32 = sys::VIR_DOMAIN_JOB_OPERATION_BACKUP;

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

    /// A small number; 0 where it is not told.
    fn integer(&self, name: &CStr) -> u32 {
        let mut value = 0;
        // SAFETY: as in `number`.
        let found =
            unsafe { sys::virTypedParamsGetInt(self.list, self.count, name.as_ptr(), &raw mut value) };
        if found == 1 { u32::try_from(value).unwrap_or(0) } else { 0 }
    }

    /// A text.
    fn text(&self, name: &CStr) -> Option<String> {
        let mut value = null();
        // SAFETY: as in `number`.
        let found =
            unsafe { sys::virTypedParamsGetString(self.list, self.count, name.as_ptr(), &raw mut value) };
        if found != 1 || value.is_null() {
            return None;
        }
        // SAFETY: libvirt has put a C string there, which lives as long as the list.
        Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        // SAFETY: libvirt made the list and no other code has it; null is allowed.
        unsafe { sys::virTypedParamsFree(self.list, self.count) };
    }
}

/// How the domain's last backup job ended; none while it runs.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn backup_end(domain: &Domain) -> Result<Option<BackupEnd>, Error> {
    let (kind, told) = stats(domain, 0)?;
    if told.integer(c"operation") == BACKUP && kind != sys::VIR_DOMAIN_JOB_NONE {
        return Ok(None);
    }
    let flags = sys::VIR_DOMAIN_JOB_STATS_COMPLETED | sys::VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED;
    let (kind, told) = stats(domain, flags)?;
    if told.integer(c"operation") != BACKUP {
        return Ok(Some(BackupEnd::Failed("the hypervisor knows nothing of it any more".to_owned())));
    }
    let message = told.text(sys::VIR_DOMAIN_JOB_ERRMSG);
    Ok(Some(match kind {
        sys::VIR_DOMAIN_JOB_COMPLETED => BackupEnd::Complete,
        sys::VIR_DOMAIN_JOB_CANCELLED => BackupEnd::Aborted,
        _ => BackupEnd::Failed(message.unwrap_or_else(|| "the hypervisor does not say why".to_owned())),
    }))
}

/// Kind and parameters of the domain's present job, or by `flags` of its last one.
fn stats(domain: &Domain, flags: u32) -> Result<(u32, Parameters), Error> {
    let (mut kind, mut list, mut count) = (0, null_mut(), 0);
    // SAFETY: the domain is valid, the three places live for the call; what libvirt puts there is ours to free.
    let result = unsafe {
        sys::virDomainGetJobStats(domain.as_ptr(), &raw mut kind, &raw mut list, &raw mut count, flags)
    };
    if result == -1 {
        return Err(Error::last_error());
    }
    Ok((u32::try_from(kind).unwrap_or(sys::VIR_DOMAIN_JOB_NONE), Parameters { list, count }))
}

/// How far the domain's present job is; none when there is none.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn progress(domain: &Domain) -> Result<Option<Progress>, Error> {
    let (kind, told) = stats(domain, 0)?;
    if kind == sys::VIR_DOMAIN_JOB_NONE {
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
