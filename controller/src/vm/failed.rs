//! The condition Failure of a VirtualMachine.

use jiff::Timestamp;
use podvirt_api::names::condition as names_condition;
use podvirt_api::v1::{VirtualMachineConditionType, VirtualMachineStatus};

use super::condition;

/// Writes the condition Failure.
pub fn fail(status: &mut VirtualMachineStatus, reason: &str, message: &str, now: Timestamp) {
    let kind = VirtualMachineConditionType::Failure;
    condition::set(status, kind, names_condition::TRUE, reason, message, now);
}

/// Whether the condition Failure says exactly this.
pub(super) fn has_failed_so(status: &VirtualMachineStatus, reason: &str, message: &str) -> bool {
    status.conditions.iter().any(|condition| {
        condition.r#type == VirtualMachineConditionType::Failure
            && condition.reason.as_deref() == Some(reason)
            && condition.message.as_deref() == Some(message)
    })
}

/// Whether the condition Failure tells of this reason, with a message that begins with `what`.
pub fn has_failed_for(status: &VirtualMachineStatus, reason: &str, what: &str) -> bool {
    status.conditions.iter().any(|condition| {
        condition.r#type == VirtualMachineConditionType::Failure
            && condition.reason.as_deref() == Some(reason)
            && condition.message.as_deref().is_some_and(|message| message.starts_with(what))
    })
}
