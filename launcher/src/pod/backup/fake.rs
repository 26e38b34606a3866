//! The backups of the tests' hypervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use crate::hypervisor::{BackupEnd, Backups, HypervisorError};

/// Backups that end as they are told to.
#[derive(Debug, Default)]
pub(in crate::pod) struct Jobs {
    /// How the job has ended, if it has.
    pub(super) end: Mutex<Option<BackupEnd>>,
    /// Aborts that are refused, before one ends the job.
    pub(super) refusals: Mutex<u32>,
    /// Aborts that were asked for.
    pub(super) aborts: Mutex<u32>,
    /// The checkpoints that were last to be kept.
    pub(super) kept: Mutex<Option<BTreeSet<String>>>,
    /// Whether the machine has ended.
    pub(super) gone: Mutex<bool>,
}

impl Backups for Jobs {
    fn begin(&self, _: &str, _: &str) -> Result<(), HypervisorError> {
        Ok(())
    }

    fn end(&self) -> Result<Option<BackupEnd>, HypervisorError> {
        match *self.gone.lock().unwrap() {
            true => Err(HypervisorError::NotRunning("x".into())),
            false => Ok(self.end.lock().unwrap().clone()),
        }
    }

    fn abort(&self) -> Result<(), HypervisorError> {
        *self.aborts.lock().unwrap() += 1;
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals > 0 {
            *refusals -= 1;
            return Err(HypervisorError::Refused { action: "give the backup up", message: "no".into() });
        }
        // As libvirt calls the end of a job in pull mode.
        *self.end.lock().unwrap() = Some(BackupEnd::Complete);
        Ok(())
    }

    fn bitmaps(&self) -> Result<BTreeMap<String, BTreeSet<String>>, HypervisorError> {
        Ok(BTreeMap::new())
    }

    fn knows(&self, _: &str) -> Result<bool, HypervisorError> {
        Ok(true)
    }

    fn redefine(&self, _: &str) -> Result<bool, HypervisorError> {
        Ok(true)
    }

    fn forget_all_but(&self, keep: &BTreeSet<String>) -> Result<BTreeSet<String>, HypervisorError> {
        *self.kept.lock().unwrap() = Some(keep.clone());
        Ok(BTreeSet::from(["older".to_owned()]))
    }
}
