//! Reading and writing a migration's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationCondition as Condition,
    VirtualMachineInstanceMigrationConditionType as ConditionType,
    VirtualMachineInstanceMigrationPhase as Phase,
    VirtualMachineInstanceMigrationPhaseTransitionTimestamp as Transition,
    VirtualMachineInstanceMigrationStatus as Status,
};

/// The phase; none is `Other("")`.
pub(super) fn phase(migration: &Migration) -> Phase {
    migration.status.phase.clone().unwrap_or_default()
}

/// Sets the phase and notes when it was reached.
pub(super) fn set_phase(status: &mut Status, phase: Phase, now: Timestamp) {
    if status.phase.as_ref() == Some(&phase) {
        return;
    }
    if reached(status, &phase).is_none() {
        status.phase_transition_timestamps.push(Transition {
            phase: Some(phase.clone()),
            phase_transition_timestamp: Some(Some(Time(now))),
        });
    }
    status.phase = Some(phase);
}

/// When a phase was reached.
pub(super) fn reached(status: &Status, phase: &Phase) -> Option<Timestamp> {
    let entry = status.phase_transition_timestamps.iter().find(|t| t.phase.as_ref() == Some(phase))?;
    Some(entry.phase_transition_timestamp.as_ref()?.as_ref()?.0)
}

/// When the condition became what it is, if it is true.
pub(super) fn true_since(status: &Status, kind: &ConditionType) -> Option<Timestamp> {
    let found = status.conditions.iter().find(|c| c.r#type == *kind && c.status == "True")?;
    Some(found.last_transition_time.as_ref()?.as_ref()?.0)
}

/// Notes that something is so, and why. Whether that is new.
pub(super) fn set_true(
    status: &mut Status,
    kind: &ConditionType,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    if status.conditions.iter().any(|c| c.r#type == *kind && c.status == "True") {
        return false;
    }
    remove(status, kind);
    status.conditions.push(Condition {
        r#type: kind.clone(),
        status: "True".into(),
        last_probe_time: None,
        last_transition_time: Some(Some(Time(now))),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    });
    true
}

/// Takes a condition back.
pub(super) fn remove(status: &mut Status, kind: &ConditionType) {
    status.conditions.retain(|c| c.r#type != *kind);
}
