//! Writing into a machine's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceCondition as Condition,
    VirtualMachineInstanceConditionType as ConditionType, VirtualMachineInstancePhase as Phase,
    VirtualMachineInstancePhaseTransitionTimestamp as Transition, VirtualMachineInstanceStatus as Status,
};

/// The phase; none is `Other("")`.
pub(super) fn phase(vmi: &VirtualMachineInstance) -> Phase {
    vmi.status.phase.clone().unwrap_or_default()
}

/// Whether nothing happens to a machine in this phase any more.
pub(super) fn is_final(phase: &Phase) -> bool {
    matches!(phase, Phase::Succeeded | Phase::Failed)
}

/// Sets the phase and notes when it was reached first.
pub(super) fn set_phase(status: &mut Status, phase: Phase, now: Timestamp) {
    if status.phase.as_ref() == Some(&phase) {
        return;
    }
    if !status.phase_transition_timestamps.iter().any(|t| t.phase.as_ref() == Some(&phase)) {
        status.phase_transition_timestamps.push(Transition {
            phase: Some(phase.clone()),
            phase_transition_timestamp: Some(Some(Time(now))),
        });
    }
    status.phase = Some(phase);
}

/// The condition of a type.
pub(super) fn condition<'a>(status: &'a Status, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.r#type.as_str() == kind)
}

/// Whether the condition is there and true.
pub(super) fn is_true(status: &Status, kind: &str) -> bool {
    condition(status, kind).is_some_and(|c| c.status == "True")
}

/// Sets a condition; the transition's time changes with the status only. Whether anything changed.
pub(crate) fn set_condition(
    status: &mut Status,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let text = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
    let (reason, message) = (text(reason), text(message));
    if let Some(there) = status.conditions.iter_mut().find(|c| c.r#type.as_str() == kind) {
        if there.status == value && there.reason == reason && there.message == message {
            return false;
        }
        if there.status != value {
            value.clone_into(&mut there.status);
            there.last_transition_time = Some(Some(Time(now)));
        }
        (there.reason, there.message) = (reason, message);
        return true;
    }
    status.conditions.push(Condition {
        r#type: ConditionType::from(kind),
        status: value.to_owned(),
        last_probe_time: None,
        last_transition_time: Some(Some(Time(now))),
        reason,
        message,
    });
    true
}

/// Removes the condition of a type.
pub(super) fn remove_condition(status: &mut Status, kind: &str) {
    status.conditions.retain(|c| c.r#type.as_str() != kind);
}
