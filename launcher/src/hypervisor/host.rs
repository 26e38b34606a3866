//! What libvirt tells of the host, and of what a domain could be there.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr::null;

use virt::connect::Connect;
use virt::error::Error;
use virt_sys as sys;

use super::{HypervisorError, events};
use crate::capabilities::Source;

/// A connection to libvirt that is asked about the host.
pub(super) struct Host {
    connection: Connect,
}

impl Host {
    /// Connects to `uri`.
    pub(super) fn open(uri: &str) -> Result<Self, HypervisorError> {
        events::start_loop()?;
        // libvirt would print each error to stderr beside returning it.
        virt::error::clear_error_callback();
        let connection = Connect::open(Some(uri)).map_err(|error| refused("connect", &error))?;
        Ok(Self { connection })
    }
}

fn refused(action: &'static str, error: &Error) -> HypervisorError {
    HypervisorError::Refused { action, message: error.message().to_owned() }
}

/// Texts for libvirt, which end with a zero byte and have none before.
fn texts<const N: usize>(action: &'static str, texts: [&str; N]) -> Result<[CString; N], HypervisorError> {
    let made: Result<Vec<_>, _> = texts.into_iter().map(CString::new).collect();
    made.ok()
        .and_then(|made| made.try_into().ok())
        .ok_or_else(|| HypervisorError::Refused { action, message: "a zero byte is in the text".into() })
}

impl Source for Host {
    fn host(&self) -> Result<String, HypervisorError> {
        self.connection.get_capabilities().map_err(|error| refused("ask for capabilities", &error))
    }

    fn domain(&self, arch: &str, machine: &str, kind: &str) -> Result<String, HypervisorError> {
        self.connection
            .get_domain_capabilities(None, Some(arch), Some(machine), Some(kind), 0)
            .map_err(|error| refused("ask for a domain's capabilities", &error))
    }

    fn expanded(&self, arch: &str, machine: &str, kind: &str, cpu: &str) -> Result<String, HypervisorError> {
        const ACTION: &str = "take a processor apart";
        let [arch, machine, kind, cpu] = texts(ACTION, [arch, machine, kind, cpu])?;
        let mut cpus = [cpu.as_ptr()];
        // SAFETY: the connection is valid, all texts are C strings that live for the call, and the array has one of them.
        let told = unsafe {
            sys::virConnectBaselineHypervisorCPU(
                self.connection.as_ptr(),
                null(),
                arch.as_ptr(),
                machine.as_ptr(),
                kind.as_ptr(),
                cpus.as_mut_ptr(),
                1,
                sys::VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES,
            )
        };
        if told.is_null() {
            return Err(refused(ACTION, &Error::last_error()));
        }
        // SAFETY: libvirt returns a C string, which is ours to free.
        let text = unsafe { CStr::from_ptr(told) }.to_string_lossy().into_owned();
        // SAFETY: libvirt allocated the string with malloc and keeps no pointer to it; `text` is a copy.
        unsafe { nix::libc::free(told.cast()) };
        Ok(text)
    }
}
