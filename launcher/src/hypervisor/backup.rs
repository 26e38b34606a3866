//! libvirt's backup jobs and checkpoints, for which the `virt` crate has no words.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt_sys as sys;

use super::bitmaps::{self, Bitmap};
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
        bitmaps::sound(&self.domain()?)
    }

    fn knows(&self, checkpoint: &str) -> Result<bool, HypervisorError> {
        Ok(find(&self.domain()?, checkpoint)?.is_some())
    }

    fn redefine(&self, checkpoint: &str) -> Result<bool, HypervisorError> {
        redefine(&self.domain()?, checkpoint)
    }

    fn forget_all_but(&self, keep: &BTreeSet<String>) -> Result<BTreeSet<String>, HypervisorError> {
        forget_all_but(&self.domain()?, keep)
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

/// The checkpoint of this name, if libvirt knows it.
fn find(domain: &Domain, checkpoint: &str) -> Result<Option<Checkpoint>, HypervisorError> {
    const ACTION: &str = "look for the checkpoint";
    let name = text(ACTION, checkpoint)?;
    // SAFETY: the domain is valid and the name a C string, for the call.
    let found = unsafe { sys::virDomainCheckpointLookupByName(domain.as_ptr(), name.as_ptr(), 0) };
    if found.is_null() {
        let error = Error::last_error();
        return match error.code() {
            ErrorNumber::NoDomainCheckpoint => Ok(None),
            _ => Err(wrong(ACTION, error.message().to_owned())),
        };
    }
    Ok(Some(Checkpoint(found)))
}

/// Removes the bitmaps of other checkpoints than those of `keep`, with what libvirt knows of these checkpoints. Names of the
/// checkpoints that are gone.
fn forget_all_but(domain: &Domain, keep: &BTreeSet<String>) -> Result<BTreeSet<String>, HypervisorError> {
    let (mut deleted, mut gone) = (BTreeSet::new(), BTreeSet::new());
    let superseded = |bitmap: &Bitmap| bitmap.is_stored && !keep.contains(&bitmap.name);
    for bitmap in bitmaps::all(domain)?.into_iter().filter(superseded) {
        match find(domain, &bitmap.name)? {
            // All of its bitmaps go with it.
            Some(checkpoint) => {
                delete(&checkpoint)?;
                deleted.insert(bitmap.name.clone());
            }
            None if deleted.contains(&bitmap.name) => {}
            None => bitmaps::remove(domain, &bitmap)?,
        }
        gone.insert(bitmap.name);
    }
    Ok(gone)
}

/// Has libvirt delete a checkpoint and its bitmaps.
fn delete(checkpoint: &Checkpoint) -> Result<(), HypervisorError> {
    // SAFETY: the checkpoint is valid for the call, and is let go of by its owner alone.
    match unsafe { sys::virDomainCheckpointDelete(checkpoint.0, 0) } {
        -1 => Err(wrong("delete the checkpoint", Error::last_error().message().to_owned())),
        _ => Ok(()),
    }
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
