//! The status of a replica set.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::{condition, event};
use podvirt_api::v1::{
    VirtualMachineInstanceReplicaSet as ReplicaSet, VirtualMachineInstanceReplicaSetCondition as Condition,
    VirtualMachineInstanceReplicaSetConditionType as Kind, VirtualMachineInstanceReplicaSetStatus as Status,
};

use super::decide::Plan;
use crate::attempt::Outcome;
use crate::vm::decide::INVALID_SPEC;

/// The status after a pass, and the event that tells people of it: reason and message.
pub fn status(
    set: &ReplicaSet,
    plan: &Plan,
    outcome: Outcome,
    now: Timestamp,
) -> (Status, Option<(&'static str, &'static str)>) {
    let mut status = set.status.clone();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    if plan.invalid.is_none() {
        status.replicas = Some(count(plan.replicas));
        status.ready_replicas = Some(count(plan.ready));
    }
    status.label_selector = Some(plan.selector.clone());
    let outcome = match &plan.invalid {
        Some(why) => Outcome::Failed { reason: INVALID_SPEC, message: why.clone() },
        None => outcome,
    };
    match outcome {
        Outcome::Waited => {}
        Outcome::Done => clear(&mut status, &Kind::ReplicaFailure),
        // Texts of one refusal may differ each time: writing them anew would wake the next attempt before its time.
        Outcome::Failed { reason, message } => {
            set_once(&mut status, Kind::ReplicaFailure, reason, &message, now);
        }
    }
    let (paused, was_paused) = (set.spec.paused == Some(true), has(&status, &Kind::ReplicaPaused));
    let note = match (paused, was_paused) {
        (true, false) => {
            set_once(&mut status, Kind::ReplicaPaused, "Paused", "Controller got paused", now);
            Some((event::SUCCESSFUL_PAUSED, "Paused"))
        }
        (false, true) => {
            clear(&mut status, &Kind::ReplicaPaused);
            Some((event::SUCCESSFUL_RESUMED, "Resumed"))
        }
        _ => None,
    };
    (status, note)
}

fn has(status: &Status, kind: &Kind) -> bool {
    status.conditions.iter().any(|condition| condition.r#type == *kind)
}

fn clear(status: &mut Status, kind: &Kind) {
    status.conditions.retain(|condition| condition.r#type != *kind);
}

/// Sets a condition, unless it is there with this reason.
fn set_once(status: &mut Status, kind: Kind, reason: &str, message: &str, now: Timestamp) {
    if status.conditions.iter().any(|one| one.r#type == kind && one.reason.as_deref() == Some(reason)) {
        return;
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
}
