//! libvirt's bulk statistics of a domain, which the `virt` crate hands out as a bare pointer, and where its virtual CPUs may
//! run, which it lacks.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

use super::usage::{Answer, Told};

/// What is asked for.
const GROUPS: u32 = sys::VIR_DOMAIN_STATS_CPU_TOTAL
    | sys::VIR_DOMAIN_STATS_BALLOON
    | sys::VIR_DOMAIN_STATS_VCPU
    | sys::VIR_DOMAIN_STATS_INTERFACE
    | sys::VIR_DOMAIN_STATS_BLOCK;

/// libvirt's records; freed when they are dropped.
struct Records {
    list: *mut sys::virDomainStatsRecordPtr,
    count: usize,
}

impl Records {
    /// All that the records say, under libvirt's names.
    fn read(&self) -> Answer {
        let mut answer = Answer::default();
        for index in 0..self.count {
            // SAFETY: the list has `count` pointers to records that live as long as the list does.
            let record = unsafe { &**self.list.add(index) };
            for index in 0..usize::try_from(record.nparams).unwrap_or(0) {
                // SAFETY: the record has `nparams` parameters, which live as long as it does.
                let parameter = unsafe { &*record.params.add(index) };
                // SAFETY: libvirt's names are C strings that end within their field.
                let name = unsafe { text(parameter.field.as_ptr()) };
                if let Some(value) = value(parameter) {
                    answer.insert(name, value);
                }
            }
        }
        answer
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: libvirt made the list for this struct alone; null is allowed.
        unsafe { sys::virDomainStatsRecordListFree(self.list) };
    }
}

/// A copy of a C string.
///
/// # Safety
///
/// `at` is a C string that lives for the call.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// A parameter's value; none of a kind that no statistic has, or of a number below 0.
fn value(parameter: &sys::virTypedParameter) -> Option<Told> {
    let kind = u32::try_from(parameter.type_).ok()?;
    // SAFETY: `type_` says which member of the union libvirt has filled in; a string is a C string, or null.
    unsafe {
        match kind {
            sys::VIR_TYPED_PARAM_INT => u64::try_from(parameter.value.i).ok().map(Told::Number),
            sys::VIR_TYPED_PARAM_UINT => Some(Told::Number(parameter.value.ui.into())),
            sys::VIR_TYPED_PARAM_LLONG => u64::try_from(parameter.value.l).ok().map(Told::Number),
            sys::VIR_TYPED_PARAM_ULLONG => Some(Told::Number(parameter.value.ul)),
            sys::VIR_TYPED_PARAM_STRING if !parameter.value.s.is_null() => {
                Some(Told::Text(text(parameter.value.s)))
            }
            _ => None,
        }
    }
}

/// What libvirt tells of the domain. What libvirt could only tell after another call to the domain is left out: it does not wait.
///
/// # Errors
///
/// The connection broke.
pub(super) fn statistics(domain: &Domain) -> Result<Answer, Error> {
    let mut domains = [domain.as_ptr(), null_mut()];
    let mut list = null_mut();
    // SAFETY: the array ends with a null pointer and its domain is valid; both places live for the call, and what libvirt
    // puts into `list` is ours to free.
    let count = unsafe {
        sys::virDomainListGetStats(
            domains.as_mut_ptr(),
            GROUPS,
            &raw mut list,
            sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT,
        )
    };
    match usize::try_from(count) {
        Ok(count) => Ok(Records { list, count }.read()),
        Err(_) => Err(Error::last_error()),
    }
}

/// For each of the domain's `vcpus` virtual CPUs, on which of the node's `processors` it may run.
///
/// # Errors
///
/// The domain is not there.
pub(super) fn affinity(domain: &Domain, vcpus: usize, processors: usize) -> Result<Vec<Vec<bool>>, Error> {
    let length = processors.div_ceil(8);
    let mut maps = vec![0_u8; vcpus.saturating_mul(length)];
    let (Ok(rows), Ok(columns)) = (c_int::try_from(vcpus), c_int::try_from(length)) else {
        return Ok(Vec::new());
    };
    if maps.is_empty() {
        return Ok(Vec::new());
    }
    // SAFETY: the domain is valid, and `maps` has `rows` times `columns` bytes.
    let told = unsafe {
        sys::virDomainGetVcpuPinInfo(
            domain.as_ptr(),
            rows,
            maps.as_mut_ptr(),
            columns,
            sys::VIR_DOMAIN_AFFECT_CURRENT,
        )
    };
    let Ok(told) = usize::try_from(told) else { return Err(Error::last_error()) };
    let is_set = |map: &[u8], cpu: usize| map.get(cpu / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1);
    Ok(maps
        .chunks(length)
        .take(told)
        .map(|map| (0..processors).map(|cpu| is_set(map, cpu)).collect())
        .collect())
}
