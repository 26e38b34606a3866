//! The one word that `kubectl get vm` shows.
//!
//! Several can be true at once; the first in this order is shown. `WaitingForReceiver` speaks of migrations between
//! clusters, which podvirt refuses: it never occurs.

use podvirt_api::names::condition;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachinePrintableStatus as Printable, VirtualMachineStatus,
};

use super::is_final;
use crate::data::Look;

/// Whether a machine without an instance is to be started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The start waits for DataVolumes.
    pub waits: bool,
    /// The instance is being made, also where that fails and is tried again: the condition Failure says why.
    pub starts: bool,
}

/// The word for a machine, its new status, its instance and its DataVolumes.
pub fn printable(
    vm: &VirtualMachine,
    status: &VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
    data: &Look,
    Start { waits, starts }: Start,
) -> Printable {
    if vm.metadata.deletion_timestamp.is_some() {
        return Printable::Terminating;
    }
    let Some(vmi) = vmi.filter(|vmi| !is_final(vmi)) else {
        if data.fails {
            return Printable::DataVolumeError;
        }
        if data.fills || waits {
            return Printable::Provisioning;
        }
        if status.start_failure.is_some() {
            return Printable::CrashLoopBackOff;
        }
        return if starts { Printable::Starting } else { Printable::Stopped };
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
    let held_up = |reason: &str| is_held_up(vmi, reason);
    let words = [
        (held_up(condition::reason::FAILED_PVC_NOT_FOUND), Printable::ErrorPvcNotFound),
        (data.fails, Printable::DataVolumeError),
        (held_up(condition::reason::UNSCHEDULABLE), Printable::ErrorUnschedulable),
        (data.fills || is_true(vmi, condition::PROVISIONING), Printable::Provisioning),
        (data.unbound, Printable::WaitingForVolumeBinding),
        (held_up(condition::reason::ERR_IMAGE_PULL), Printable::ErrImagePull),
        (held_up(condition::reason::IMAGE_PULL_BACK_OFF), Printable::ImagePullBackOff),
    ];
    words.into_iter().find_map(|(holds, word)| holds.then_some(word)).unwrap_or(Printable::Starting)
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
