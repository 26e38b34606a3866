//! The one word that `kubectl get vm` shows.
//!
//! Several can be true at once; the first in this order is shown. `DataVolumeError`, `WaitingForVolumeBinding`
//! and `WaitingForReceiver` speak of data volumes and of migrations between clusters, which podvirt refuses: they
//! never occur.

use podvirt_api::names::condition;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachinePrintableStatus as Printable, VirtualMachineStatus,
};

use super::is_final;

/// The word for a machine, its new status and its instance.
pub fn printable(
    vm: &VirtualMachine,
    status: &VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
) -> Printable {
    if vm.metadata.deletion_timestamp.is_some() {
        return Printable::Terminating;
    }
    let Some(vmi) = vmi.filter(|vmi| !is_final(vmi)) else {
        return if status.start_failure.is_some() { Printable::CrashLoopBackOff } else { Printable::Stopped };
    };
    if vmi.metadata.deletion_timestamp.is_some() {
        return Printable::Stopping;
    }
    let running = vmi.status.phase == Some(Phase::Running);
    let migrating = vmi.status.migration_state.as_ref().is_some_and(|migration| {
        migration.start_timestamp.clone().flatten().is_some()
            && !migration.completed.unwrap_or(false)
            && !migration.failed.unwrap_or(false)
    });
    if running && migrating {
        return Printable::Migrating;
    }
    if is_true(vmi, condition::PAUSED) {
        return Printable::Paused;
    }
    if running {
        return Printable::Running;
    }
    if vmi.status.phase == Some(Phase::Unknown) {
        return Printable::Unknown;
    }
    for (reason, printable) in [
        (condition::reason::FAILED_PVC_NOT_FOUND, Printable::ErrorPvcNotFound),
        (condition::reason::UNSCHEDULABLE, Printable::ErrorUnschedulable),
        (condition::reason::ERR_IMAGE_PULL, Printable::ErrImagePull),
        (condition::reason::IMAGE_PULL_BACK_OFF, Printable::ImagePullBackOff),
    ] {
        if is_held_up(vmi, reason) {
            return printable;
        }
    }
    if is_true(vmi, condition::PROVISIONING) {
        return Printable::Provisioning;
    }
    Printable::Starting
}

fn is_true(vmi: &VirtualMachineInstance, kind: &str) -> bool {
    vmi.status
        .conditions
        .iter()
        .any(|condition| condition.r#type.as_str() == kind && condition.status == condition::TRUE)
}

/// Whether a condition is false for this reason.
fn is_held_up(vmi: &VirtualMachineInstance, reason: &str) -> bool {
    vmi.status
        .conditions
        .iter()
        .any(|condition| condition.status == condition::FALSE && condition.reason.as_deref() == Some(reason))
}
