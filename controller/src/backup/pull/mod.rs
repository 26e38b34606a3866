//! Backups in pull mode: nothing is copied; what the disks were at the begin is read from an endpoint until the backup ends.
//!
//! # Theory of operation
//!
//! ```text
//!  VirtualMachineBackup b ── makes, owns ──> VirtualMachineExport b ──> exporter pod <── clients, with a token
//!        │ subresource: Start, Export, Abort                               ^
//!        v                                                                 │ tunnel, with a certificate of the exports' CA
//!  virt-launcher ── has QEMU offer the disks as they were ─────────────────┘
//! ```
//!
//! The begin is as in push mode ([`super`]); the target's claim takes what the guest overwrites meanwhile. What is different in the
//! phase Running goes by two conditions, which say what has been done for the present export:
//!
//! ```text
//!  the export of the backup's name        ExportInitiated  ExportReady   step
//!  is not there                           not False        any           both become False, which is told
//!  is not there                           False            False         it is made
//!  is of another owner                    any              any           both become False, the reason names it; it is waited for
//!  is the backup's, and is being deleted  any              any           both become False; its end is waited for
//!  is the backup's                        not True         any           subresource Export, once the machine tells of volumes
//!                                                                        -> ExportInitiated
//!  ... is not reached by the machine      True             any           ExportReady becomes False, the reason says why; an event
//!  ... is Ready, and has links            True             not True      endpoints, endpointCert -> ExportReady
//!  ... has other links                    True             True          endpoints, endpointCert
//! ```
//!
//! **Its end** is a deletion of the backup, or the end of its life (`ttlDuration`, two hours where it says none, from its creation
//! on). The machine is asked to abort; of a backup in pull mode that is its orderly end, so the machine tells of no failure, and the
//! tracker gets the checkpoint. Then the export is deleted, and all goes on as in push mode. A backup whose life is over before
//! the machine was asked to begin has failed.
//!
//! **Not twice, not lost.** That there is no export is stored before one is made: so the machine is told of each export, and no
//! condition is of an earlier one. A pass that has told the machine, and could not write so, tells it again, with another key; the
//! launcher goes by the later word. The export's life ends with the backup's. What is refused stands in the conditions as well, and
//! is tried again, later each time.

mod export;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use podvirt_api::backup::{Command, Options, UNREACHED, expires, is_pulled};
use podvirt_api::export::host;
use podvirt_api::names::event;
use podvirt_api::v1::{
    BackupConditionType as Condition, BackupMode, BackupVolumeInfo, VirtualMachineBackup as Backup,
    VirtualMachineBackupStatus as Status, VirtualMachineInstanceBackupStatus as Told,
};

use self::export::{is_own, offer, wanted};
pub(super) use self::export::{with_endpoints, without_endpoints};
use super::decide::{Observed, options};
use super::instance;
use super::plan::{Action, Note, Step};
use super::status::{self, Phase, phase, set};

// Reasons of conditions; upstream's words.
const PREPARING: &str = "Backup export is being initialized";
const INITIATED: &str = "Backup export has been initiated, waiting for export links";
const READY: &str = "Backup export is ready to pull";
/// Why a backup ends by itself.
pub(super) const EXPIRED: &str = "pull mode backup TTL has expired";

/// When a backup in pull mode ends; a backup in push mode has no such time.
fn end(backup: &Backup) -> Option<Timestamp> {
    expires(backup).filter(|_| is_pulled(backup))
}

/// Whether the backup's life is over.
pub(super) fn is_over(seen: &Observed<'_>) -> bool {
    end(seen.backup).is_some_and(|end| end <= seen.now)
}

/// How long it is until a backup with this status is to be ended.
pub(super) fn until_end(seen: &Observed<'_>, status: &Status) -> Option<Duration> {
    let is_open = matches!(phase(status), Phase::Initializing | Phase::Running);
    let lives = is_open && !status::is(status, Condition::Aborting);
    let left = end(seen.backup).filter(|_| lives)?.duration_since(seen.now);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// What is done for a backup that runs, and is to run on.
pub(super) fn step(seen: &Observed<'_>, told: &Told) -> Step {
    let (backup, status) = (seen.backup, &seen.backup.status);
    let name = backup.name_any();
    let Some(export) = seen.export else {
        let is_stored = status::is_not(status, Condition::ExportInitiated);
        let make = is_stored.then(|| Action::MakeExport(Box::new(wanted(backup, seen.now))));
        return Step::Prepares(make, PREPARING.to_owned());
    };
    if !is_own(export, backup) {
        let why = format!("VMExport {name} already exists but is not owned by backup {name}");
        return Step::Prepares(None, why);
    }
    if export.metadata.deletion_timestamp.is_some() {
        return Step::Prepares(None, PREPARING.to_owned());
    }
    if !status::is(status, Condition::ExportInitiated) {
        let tell = || Step::Initiates(Action::Export(initiate(backup)));
        return if instance::has_begun(told) { tell() } else { Step::Stays(None) };
    }
    if let Some(why) = told.backup_msg.as_ref().filter(|why| why.starts_with(UNREACHED)) {
        let is_known = status::reason(status, &Condition::ExportReady).as_ref() == Some(why);
        return if is_known { Step::Stays(None) } else { Step::Unreached(why.clone()) };
    }
    match offer(told, export) {
        Some((volumes, certificates)) if !is_offered(status, &volumes, &certificates) => {
            Step::Offers(volumes, certificates)
        }
        _ => Step::Stays(None),
    }
}

/// What the machine is told of the export.
fn initiate(backup: &Backup) -> Options {
    let host = host(&backup.name_any(), &backup.namespace().unwrap_or_default());
    Options {
        mode: Some(BackupMode::Pull),
        export_server_name: Some(host.clone()),
        export_server_addr: Some(host),
        ..options(backup, Command::Export)
    }
}

fn is_offered(status: &Status, volumes: &[BackupVolumeInfo], certificates: &str) -> bool {
    status::is(status, Condition::ExportReady)
        && status.included_volumes == volumes
        && status.endpoint_cert.as_deref() == Some(certificates)
}

/// What is left to do of a backup that does not run any more: its export goes.
pub(super) fn left(seen: &Observed<'_>) -> Option<Action> {
    let export = seen.export.filter(|export| is_pulled(seen.backup) && is_own(export, seen.backup))?;
    export.metadata.deletion_timestamp.is_none().then_some(Action::DeleteExport)
}

/// Says that the backup cannot be read; what people are told, unless they know.
pub(super) fn prepares(status: &mut Status, why: String, now: Timestamp) -> Option<Note> {
    let is_known = status::is_not(status, Condition::ExportInitiated);
    progresses(status, (false, false), &why, now);
    let warns = why != PREPARING;
    (!is_known).then_some(Note { warns, reason: event::BACKUP_PREPARING_EXPORT, message: why })
}

/// Says that the machine offers its disks to the export; what people are told.
pub(super) fn initiates(status: &mut Status, now: Timestamp) -> Note {
    progresses(status, (true, false), INITIATED, now);
    Note { warns: false, reason: event::BACKUP_EXPORT_INITIATED, message: INITIATED.to_owned() }
}

/// Says that the backup cannot be read since the machine does not reach the exporter; what people are told.
pub(super) fn is_unreached(status: &mut Status, why: String, now: Timestamp) -> Note {
    progresses(status, (true, false), &why, now);
    Note { warns: true, reason: event::BACKUP_EXPORT_UNREACHED, message: why }
}

/// Says where the backup can be read; what people are told, unless they know.
pub(super) fn offers(
    status: &mut Status,
    volumes: Vec<BackupVolumeInfo>,
    certificates: String,
    now: Timestamp,
) -> Option<Note> {
    let is_known = status::is(status, Condition::ExportReady);
    progresses(status, (true, true), READY, now);
    (status.included_volumes, status.endpoint_cert) = (volumes, Some(certificates));
    let note = Note { warns: false, reason: event::BACKUP_EXPORT_READY, message: READY.to_owned() };
    (!is_known).then_some(note)
}

/// Sets the conditions of a backup that runs: whether its export is initiated, and whether it is ready.
fn progresses(status: &mut Status, (is_initiated, is_ready): (bool, bool), reason: &str, now: Timestamp) {
    set(status, Condition::Progressing, true, reason, now);
    set(status, Condition::ExportInitiated, is_initiated, reason, now);
    set(status, Condition::ExportReady, is_ready, reason, now);
    set(status, Condition::Done, false, reason, now);
}
