//! The conditions of a backup: what phase they say, and how they are written.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::{condition, event};
use podvirt_api::v1::{
    BackupCondition, BackupConditionType as Condition, VirtualMachineBackupStatus as Status,
};

/// How far a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits, or is prepared.
    Initializing,
    /// The machine writes it.
    Running,
    /// It has an outcome, and its machine is held still.
    Ended,
    /// Nothing is left to do.
    Done,
}

/// How far the backup with this status is.
pub(super) fn phase(status: &Status) -> Phase {
    let there = |kind: Condition| status.conditions.iter().find(|one| one.r#type == kind);
    if is(status, Condition::Done) {
        Phase::Done
    } else if is(status, Condition::Progressing) {
        Phase::Running
    } else if there(Condition::Done).is_some() {
        Phase::Ended
    } else {
        Phase::Initializing
    }
}

/// Whether a condition is there and true.
pub(super) fn is(status: &Status, kind: Condition) -> bool {
    status.conditions.iter().any(|one| one.r#type == kind && one.status == condition::TRUE)
}

/// Whether a condition is there and false.
pub(super) fn is_not(status: &Status, kind: Condition) -> bool {
    status.conditions.iter().any(|one| one.r#type == kind && one.status == condition::FALSE)
}

/// The reason of a condition.
pub(super) fn reason(status: &Status, kind: &Condition) -> Option<String> {
    status.conditions.iter().find(|one| one.r#type == *kind)?.reason.clone()
}

/// Sets a condition. Its time changes with what it says.
pub(super) fn set(status: &mut Status, kind: Condition, is: bool, reason: &str, now: Timestamp) {
    let word = if is { condition::TRUE } else { condition::FALSE };
    let wanted = BackupCondition {
        r#type: kind,
        status: word.to_owned(),
        reason: Some(reason.to_owned()),
        last_transition_time: Some(Some(Time(now))),
        ..BackupCondition::default()
    };
    match status.conditions.iter_mut().find(|one| one.r#type == wanted.r#type) {
        Some(there) if there.status == wanted.status && there.reason == wanted.reason => {}
        Some(there) => *there = wanted,
        None => status.conditions.push(wanted),
    }
}

/// Removes a condition.
pub(super) fn unset(status: &mut Status, kind: &Condition) {
    status.conditions.retain(|one| one.r#type != *kind);
}

/// What became of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All of it is on the target.
    Complete,
    /// All of it is on the target, and there is something to know.
    Warned(String),
    /// It is not to be used.
    Failed(String),
}

impl Outcome {
    /// Its reason in conditions; upstream's words.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Complete => "Successfully completed VirtualMachineBackup".to_owned(),
            Self::Warned(why) => format!("Completed VirtualMachineBackup, warning: {why}"),
            Self::Failed(why) => format!("Backup has failed: {why}"),
        }
    }

    /// The reason of its event.
    pub(super) fn event(&self) -> &'static str {
        match self {
            Self::Complete => event::BACKUP_COMPLETED,
            Self::Warned(_) => event::BACKUP_COMPLETED_WITH_WARNING,
            Self::Failed(_) => event::BACKUP_FAILED,
        }
    }
}
