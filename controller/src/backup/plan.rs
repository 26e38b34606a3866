//! What a pass leads to: one thing to do, and the status as it is to be.

use std::time::Duration;

use podvirt_api::backup::{Options, is_pulled};
use podvirt_api::names::event;
use podvirt_api::v1::{
    BackupCheckpoint, BackupConditionType as Condition, BackupType, BackupVolumeInfo,
    VirtualMachineBackupStatus as Status, VirtualMachineExport,
};

use super::decide::{Observed, has_finalizer, is_deleted, own};
use super::status::{self, Outcome, set, unset};
use super::{instance, pull};

// Reasons of conditions; upstream's words.
const IN_PROGRESS: &str = "Backup is in progress";
const ABORTING: &str = "Backup is aborting";
const DELETING: &str = "Backup is being deleted";

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Give the backup its finalizer.
    AddFinalizer,
    /// Give the instance the target's claim.
    Attach,
    /// Have the backup hold the instance.
    Hold,
    /// Have the machine begin.
    Start(Options),
    /// Make the export that the backup is read from.
    MakeExport(Box<VirtualMachineExport>),
    /// Have the machine offer its disks to the export; its key and its certificate are made with it.
    Export(Options),
    /// Delete the export.
    DeleteExport,
    /// Have the machine end before it is complete.
    Abort(Options),
    /// Write the checkpoint into the tracker.
    Remember(BackupCheckpoint),
    /// Take the target's claim out of the instance.
    Detach,
    /// Let go of the instance.
    Release,
    /// Take the finalizer off the backup.
    RemoveFinalizer,
}

/// An event of the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub warns: bool,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// What a pass leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to do, before the status is written.
    pub action: Option<Action>,
    /// The status as it shall be.
    pub status: Status,
    /// What people are told once it is written.
    pub note: Option<Note>,
    /// When to look again.
    pub again_after: Option<Duration>,
}

/// The step of a pass.
pub(super) enum Step {
    /// The phase stays, and its reason.
    Stays(Option<Action>),
    /// It does not run yet: why.
    Waits(Option<Action>, String),
    /// It runs from now on.
    Begins(Option<Action>, BackupType),
    /// It runs, and cannot be read: why.
    Prepares(Option<Action>, String),
    /// It runs, and the machine offers its disks to the export.
    Initiates(Action),
    /// It runs, and cannot be read, since the machine does not reach the exporter: why.
    Unreached(String),
    /// It runs, and can be read: its volumes with their endpoints, and the certificates of these.
    Offers(Vec<BackupVolumeInfo>, String),
    /// It is ended, and why, where that was not asked for.
    Aborts(Action, Option<&'static str>),
    /// It has an outcome.
    Ends(Outcome),
    /// Nothing is left to do.
    Rests(Option<Action>),
}

/// What a step leads to.
pub(super) fn plan(seen: &Observed<'_>, step: Step) -> Plan {
    let (backup, now) = (seen.backup, seen.now);
    let mut status = backup.status.clone();
    let (mut action, mut note) = (None, None);
    if let Some(volumes) = own(seen).map(instance::volumes).filter(|all| !all.is_empty()) {
        status.included_volumes = pull::with_endpoints(volumes, &status.included_volumes);
    }
    match step {
        Step::Stays(next) => action = next,
        Step::Waits(next, why) => {
            action = next;
            set(&mut status, Condition::Initializing, true, &why, now);
            set(&mut status, Condition::Progressing, false, &why, now);
        }
        Step::Begins(next, kind) => {
            action = next;
            unset(&mut status, &Condition::Initializing);
            set(&mut status, Condition::Progressing, true, IN_PROGRESS, now);
            set(&mut status, Condition::Done, false, IN_PROGRESS, now);
            status.r#type = Some(kind);
        }
        Step::Prepares(next, why) => {
            action = next;
            note = pull::prepares(&mut status, why, now);
        }
        Step::Initiates(next) => {
            action = Some(next);
            note = Some(pull::initiates(&mut status, now));
        }
        Step::Unreached(why) => note = Some(pull::is_unreached(&mut status, why, now)),
        Step::Offers(volumes, certificates) => {
            note = pull::offers(&mut status, volumes, certificates, now);
        }
        Step::Aborts(next, why) => {
            action = Some(next);
            let reason = why.map_or_else(|| ABORTING.to_owned(), |why| format!("{why}: {ABORTING}"));
            set(&mut status, Condition::Progressing, true, &reason, now);
            set(&mut status, Condition::Aborting, true, &reason, now);
            note = Some(Note { warns: !is_pulled(backup), reason: event::BACKUP_ABORTING, message: reason });
        }
        Step::Ends(outcome) => {
            let reason = outcome.reason();
            unset(&mut status, &Condition::Initializing);
            set(&mut status, Condition::Progressing, false, &reason, now);
            set(&mut status, Condition::Done, false, &reason, now);
            if status::is(&status, Condition::Aborting) {
                set(&mut status, Condition::Aborting, false, &reason, now);
            }
            if seen.tracker.is_some() && !matches!(outcome, Outcome::Failed(_)) {
                status.checkpoint_name = own(seen).and_then(|told| told.checkpoint_name.clone());
            }
            status.included_volumes = pull::without_endpoints(std::mem::take(&mut status.included_volumes));
            note =
                Some(Note { warns: outcome != Outcome::Complete, reason: outcome.event(), message: reason });
        }
        Step::Rests(next) => {
            action = next;
            let outcome = status::reason(&status, &Condition::Progressing).unwrap_or_default();
            set(&mut status, Condition::Done, true, &outcome, now);
        }
    }
    // What is about to go is not written any more.
    if is_deleted(backup) && has_finalizer(backup) && action != Some(Action::RemoveFinalizer) {
        set(&mut status, Condition::Deleting, true, DELETING, now);
    }
    let again_after = pull::until_end(seen, &status);
    Plan { action, status, note, again_after }
}
