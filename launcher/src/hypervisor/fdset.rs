//! QEMU's sets of descriptors, by which it has a device that it may not open itself.
//!
//! A container may open the devices that it was started with and no others (the kernel's control group of devices); a descriptor
//! that was opened elsewhere it may use. QEMU's monitor takes descriptors into numbered sets (`add-fd`), and the path
//! `/dev/fdset/<number>` stands for them. The `virt` crate has no words for a monitor command with descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use serde_json::json;
use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

use super::HypervisorError;

fn refused(action: &'static str, message: impl Into<String>) -> HypervisorError {
    HypervisorError::Refused { action, message: message.into() }
}

/// Adds a copy of `disk` to QEMU's set with this number.
pub(super) fn add(domain: &Domain, disk: BorrowedFd<'_>, set: u64) -> Result<(), HypervisorError> {
    const ACTION: &str = "hand QEMU a disk";
    let command = json!({"execute": "add-fd", "arguments": {"fdset-id": set}}).to_string();
    let command = CString::new(command).map_err(|_| refused(ACTION, "a zero byte is in the command"))?;
    let mut files = [disk.as_raw_fd()];
    let mut answer = null_mut();
    // SAFETY: the domain is valid, the command is a C string and the array has one open descriptor, for the call; libvirt writes
    // a pointer to `answer`, and returns no descriptors where it is given no place for them.
    let code = unsafe {
        sys::virDomainQemuMonitorCommandWithFiles(
            domain.as_ptr(),
            command.as_ptr(),
            1,
            files.as_mut_ptr(),
            null_mut(),
            null_mut(),
            &raw mut answer,
            0,
        )
    };
    if code < 0 || answer.is_null() {
        return Err(refused(ACTION, Error::last_error().message()));
    }
    // SAFETY: libvirt returns a C string, which is ours to free.
    let text = unsafe { CStr::from_ptr(answer) }.to_string_lossy().into_owned();
    // SAFETY: libvirt allocated the string with malloc and keeps no pointer to it; `text` is a copy.
    unsafe { nix::libc::free(answer.cast()) };
    judge(ACTION, &text)
}

/// Has QEMU close what is in the set with this number, once nothing uses it.
pub(super) fn remove(domain: &Domain, set: u64) -> Result<(), HypervisorError> {
    const ACTION: &str = "take a disk back from QEMU";
    let command = json!({"execute": "remove-fd", "arguments": {"fdset-id": set}}).to_string();
    let answer = domain.qemu_monitor_command(&command, 0);
    judge(ACTION, &answer.map_err(|error| refused(ACTION, error.message()))?)
}

/// Whether the monitor has done what it was told; an error is in its answer.
fn judge(action: &'static str, answer: &str) -> Result<(), HypervisorError> {
    let answer: serde_json::Value =
        serde_json::from_str(answer).map_err(|error| refused(action, error.to_string()))?;
    match answer.pointer("/error/desc").and_then(serde_json::Value::as_str) {
        Some(why) => Err(refused(action, why)),
        None => Ok(()),
    }
}
