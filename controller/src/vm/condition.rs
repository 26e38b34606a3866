//! Conditions of a VirtualMachine.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::condition;
use podvirt_api::v1::{
    VirtualMachineCondition, VirtualMachineConditionType, VirtualMachineInstance,
    VirtualMachineInstanceCondition, VirtualMachineStatus,
};

/// Reason of the condition Ready of a machine without an instance (upstream's word).
const INSTANCE_MISSING: &str = "VMINotExists";
/// Reason of the condition Ready of a machine whose instance does not say whether it is ready (upstream's word).
const CONDITION_MISSING: &str = "VMIConditionMissing";

/// Conditions that speak of the VirtualMachine itself; all others are its instance's.
fn is_own(kind: &VirtualMachineConditionType) -> bool {
    matches!(
        kind,
        VirtualMachineConditionType::Ready
            | VirtualMachineConditionType::Failure
            | VirtualMachineConditionType::RestartRequired
            | VirtualMachineConditionType::ManualRecoveryRequired
    )
}

/// Sets a condition. Its time changes only with its status, so that setting it again changes nothing.
pub fn set(
    status: &mut VirtualMachineStatus,
    kind: VirtualMachineConditionType,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let found = status.conditions.iter_mut().find(|condition| condition.r#type == kind);
    let since =
        found.as_ref().filter(|old| old.status == value).and_then(|old| old.last_transition_time.clone());
    let condition = VirtualMachineCondition {
        r#type: kind,
        status: value.to_owned(),
        last_transition_time: since.or(Some(Some(Time(now)))),
        reason: text(reason),
        message: text(message),
        ..VirtualMachineCondition::default()
    };
    match found {
        Some(old) => {
            *old = VirtualMachineCondition { last_probe_time: old.last_probe_time.clone(), ..condition }
        }
        None => status.conditions.push(condition),
    }
}

/// Takes a condition away.
pub fn clear(status: &mut VirtualMachineStatus, kind: &VirtualMachineConditionType) {
    status.conditions.retain(|condition| condition.r#type != *kind);
}

/// Takes the instance's conditions over, Ready among them; without an instance only Ready is left, as false. `is_foreign`: an
/// instance has the machine's name and is not its own.
pub fn follow(
    status: &mut VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
    is_foreign: bool,
    now: Timestamp,
) {
    let theirs: &[VirtualMachineInstanceCondition] = vmi.map_or(&[], |vmi| &vmi.status.conditions);
    status.conditions.retain(|condition| {
        is_own(&condition.r#type)
            || theirs.iter().any(|other| other.r#type.as_str() == condition.r#type.as_str())
    });
    for condition in theirs {
        let kind = VirtualMachineConditionType::from(condition.r#type.as_str());
        if !is_own(&kind) {
            let reason = condition.reason.as_deref().unwrap_or_default();
            let message = condition.message.as_deref().unwrap_or_default();
            set(status, kind, &condition.status, reason, message, now);
        }
    }
    let ready = theirs.iter().find(|condition| condition.r#type.as_str() == condition::READY);
    let (value, reason, message) = match (vmi, ready) {
        (None, _) if is_foreign => {
            (condition::FALSE, INSTANCE_MISSING, "the VMI of this name is not this VirtualMachine's")
        }
        (None, _) => (condition::FALSE, INSTANCE_MISSING, "VMI does not exist"),
        (Some(_), None) => (condition::FALSE, CONDITION_MISSING, "VMI does not tell whether it is ready"),
        (Some(_), Some(ready)) => (
            ready.status.as_str(),
            ready.reason.as_deref().unwrap_or_default(),
            ready.message.as_deref().unwrap_or_default(),
        ),
    };
    set(status, VirtualMachineConditionType::Ready, value, reason, message, now);
}
