//! libvirt's backup jobs and checkpoints, for which the `virt` crate has no words.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use serde_json::Value;
use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt_sys as sys;

use super::libvirt::{Libvirt, wrong};
use super::{BackupEnd, Backups, HypervisorError, job};

/// What libvirt is told as a C string.
fn text(action: &'static str, text: &str) -> Result<CString, HypervisorError> {
    CString::new(text).map_err(|_| wrong(action, "a zero byte is in it".to_owned()))
}

impl Backups for Libvirt {
    fn begin(&self, backup: &str, checkpoint: &str) -> Result<(), HypervisorError> {
        begin(&self.domain()?, backup, checkpoint)
    }

    fn end(&self) -> Result<Option<BackupEnd>, HypervisorError> {
        let domain = self.domain()?;
        job::backup_end(&domain).map_err(|e| self.failed(&domain, "ask how the backup is", &e))
    }

    fn abort(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        job::abort(&domain).map_err(|e| self.failed(&domain, "give the backup up", &e))
    }

    fn bitmaps(&self) -> Result<BTreeMap<String, BTreeSet<String>>, HypervisorError> {
        bitmaps(&self.domain()?)
    }

    fn knows(&self, checkpoint: &str) -> Result<bool, HypervisorError> {
        knows(&self.domain()?, checkpoint)
    }

    fn redefine(&self, checkpoint: &str) -> Result<bool, HypervisorError> {
        redefine(&self.domain()?, checkpoint)
    }
}

/// Begins a backup job, and makes the checkpoint from which on changes are tracked for the next one.
fn begin(domain: &Domain, backup: &str, checkpoint: &str) -> Result<(), HypervisorError> {
    const ACTION: &str = "begin the backup";
    let (backup, checkpoint) = (text(ACTION, backup)?, text(ACTION, checkpoint)?);
    // SAFETY: the domain is valid, and both are C strings, for the call; it keeps nothing.
    match unsafe { sys::virDomainBackupBegin(domain.as_ptr(), backup.as_ptr(), checkpoint.as_ptr(), 0) } {
        -1 => Err(wrong(ACTION, Error::last_error().message().to_owned())),
        _ => Ok(()),
    }
}

/// A checkpoint of a domain; let go of when it is dropped.
struct Checkpoint(sys::virDomainCheckpointPtr);

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // SAFETY: libvirt has given this reference, and nothing else has it.
        unsafe { sys::virDomainCheckpointFree(self.0) };
    }
}

/// Whether libvirt knows a checkpoint of this name.
fn knows(domain: &Domain, checkpoint: &str) -> Result<bool, HypervisorError> {
    const ACTION: &str = "look for the checkpoint";
    let name = text(ACTION, checkpoint)?;
    // SAFETY: the domain is valid and the name a C string, for the call.
    let found = unsafe { sys::virDomainCheckpointLookupByName(domain.as_ptr(), name.as_ptr(), 0) };
    if found.is_null() {
        let error = Error::last_error();
        return match error.code() {
            ErrorNumber::NoDomainCheckpoint => Ok(false),
            _ => Err(wrong(ACTION, error.message().to_owned())),
        };
    }
    drop(Checkpoint(found));
    Ok(true)
}

/// Makes a checkpoint known to libvirt, whose bitmaps are in the disks. Whether they are, and are sound.
fn redefine(domain: &Domain, checkpoint: &str) -> Result<bool, HypervisorError> {
    const ACTION: &str = "make the checkpoint known";
    let xml = text(ACTION, checkpoint)?;
    let flags =
        sys::VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE | sys::VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE_VALIDATE;
    // SAFETY: the domain is valid and the description a C string, for the call.
    let made = unsafe { sys::virDomainCheckpointCreateXML(domain.as_ptr(), xml.as_ptr(), flags) };
    if !made.is_null() {
        drop(Checkpoint(made));
        return Ok(true);
    }
    let error = Error::last_error();
    match error.code() {
        ErrorNumber::InvalidDomainCheckpoint
        | ErrorNumber::NoDomainCheckpoint
        | ErrorNumber::CheckpointInconsistent => Ok(false),
        _ => Err(wrong(ACTION, error.message().to_owned())),
    }
}

/// The bitmaps of each disk that can be used, by the disk's alias.
fn bitmaps(domain: &Domain) -> Result<BTreeMap<String, BTreeSet<String>>, HypervisorError> {
    const ACTION: &str = "read the bitmaps of the disks";
    let answer = domain.qemu_monitor_command("{\"execute\": \"query-block\"}", 0);
    let answer = answer.map_err(|error| wrong(ACTION, error.message().to_owned()))?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| wrong(ACTION, error.to_string()))?;
    Ok(of_devices(&answer))
}

/// What QEMU's answer to `query-block` tells. A device is named by its alias, or by a path with that in it.
fn of_devices(answer: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let devices = answer["return"].as_array().into_iter().flatten();
    let all = devices.filter_map(|device| {
        let alias = device["qdev"].as_str()?.split('/').find(|part| part.starts_with("ua-"))?;
        let bitmaps = device["inserted"]["dirty-bitmaps"].as_array().into_iter().flatten();
        let sound = bitmaps.filter(|bitmap| bitmap["inconsistent"] != Value::Bool(true));
        let names = sound.filter_map(|bitmap| bitmap["name"].as_str()).map(ToOwned::to_owned);
        Some((alias.to_owned(), names.collect()))
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bitmaps_are_told_of_each_disk() {
        let answer = json!({"return": [
            {"device": "", "qdev": "/machine/peripheral/ua-root/virtio-backend", "inserted": {"dirty-bitmaps": [
                {"name": "a", "recording": true}, {"name": "b", "inconsistent": true}, {"granularity": 65536},
            ]}},
            {"device": "", "qdev": "ua-data", "inserted": {"node-name": "libvirt-2-format"}},
            {"device": "", "qdev": "ua-drive"},
            {"device": "pflash0", "inserted": {}},
        ]});
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let expected = [("root", names(&["a"])), ("data", names(&[])), ("drive", names(&[]))]
            .map(|(volume, bitmaps)| (format!("ua-{volume}"), bitmaps));
        assert_eq!(of_devices(&answer), expected.into());
    }
}
