//! The status of a pool.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::{condition, event};
use podvirt_api::v1::{
    VirtualMachinePool as Pool, VirtualMachinePoolCondition as Condition,
    VirtualMachinePoolConditionType as Kind, VirtualMachinePoolStatus as Status,
};

use super::decide::{Plan, Stage};
use crate::attempt::Outcome;
use crate::vm::decide::INVALID_SPEC;

impl Stage {
    /// Reason of the condition ReplicaFailure, and of the event that tells of it, when the stage fails.
    pub(super) fn failure(self) -> &'static str {
        match self {
            Stage::ScaleOut => "FailedScaleOut",
            Stage::ScaleIn => "FailedScaleIn",
            Stage::Rest | Stage::Update => "FailedUpdate",
            Stage::Prune => "FailedRevisionPruning",
        }
    }
}

/// An event that tells people of a change of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The status after a pass, and what people are told of it.
pub(super) fn status(pool: &Pool, plan: &Plan, outcome: Outcome, now: Timestamp) -> (Status, Vec<Note>) {
    let mut status = pool.status.clone();
    let mut notes = Vec::new();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    if plan.invalid.is_none() {
        status.replicas = Some(count(plan.replicas));
        status.ready_replicas = Some(count(plan.ready));
    }
    status.label_selector = Some(plan.selector.clone());
    let outcome = match (&plan.invalid, &plan.obstacle) {
        (Some(why), _) => Outcome::Failed { reason: INVALID_SPEC, message: why.clone() },
        (None, Some(why)) if outcome == Outcome::Done => {
            Outcome::Failed { reason: plan.stage.failure(), message: why.clone() }
        }
        _ => outcome,
    };
    match outcome {
        Outcome::Waited => {}
        Outcome::Done => clear(&mut status, &Kind::ReplicaFailure),
        Outcome::Failed { reason, message } => {
            // Texts of one refusal may differ each time: writing them anew would wake the next attempt before its time.
            if set_once(&mut status, Kind::ReplicaFailure, reason, &message, now) {
                notes.push(Note { warning: true, reason, message });
            }
        }
    }
    let note = |reason, message: &str| Note { warning: false, reason, message: message.to_owned() };
    if pool.spec.paused == Some(true) {
        let message = "Pool controller is paused";
        if set_once(&mut status, Kind::ReplicaPaused, event::SUCCESSFUL_PAUSED, message, now) {
            notes.push(note(event::SUCCESSFUL_PAUSED, "Pool is paused"));
        }
    } else if status.conditions.iter().any(|one| one.r#type == Kind::ReplicaPaused) {
        clear(&mut status, &Kind::ReplicaPaused);
        notes.push(note(event::SUCCESSFUL_RESUME, "Pool is unpaused"));
    }
    (status, notes)
}

fn clear(status: &mut Status, kind: &Kind) {
    status.conditions.retain(|condition| condition.r#type != *kind);
}

/// Sets a condition, unless it is there with this reason. Whether it was not.
fn set_once(status: &mut Status, kind: Kind, reason: &str, message: &str, now: Timestamp) -> bool {
    if status.conditions.iter().any(|one| one.r#type == kind && one.reason.as_deref() == Some(reason)) {
        return false;
    }
    clear(status, &kind);
    status.conditions.push(Condition {
        r#type: kind,
        status: condition::TRUE.to_owned(),
        last_transition_time: Some(Some(Time(now))),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..Condition::default()
    });
    true
}
