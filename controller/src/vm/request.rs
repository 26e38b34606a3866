//! Requests to start and stop in `status.stateChangeRequests`, which virt-api writes.
//!
//! A stop names the instance it is for, so that it cannot stop the one that follows. A restart is a stop and a
//! start. Only the first request counts; the next one's turn comes when it is done.

use kube::ResourceExt;
use podvirt_api::v1::{
    StateChangeRequestAction, VirtualMachineInstance, VirtualMachineStateChangeRequest, VirtualMachineStatus,
};

use super::is_final;

/// Key of a start request's data: `true` starts the guest paused.
const PAUSED: &str = "paused";

/// Takes the requests away that are done or can never be.
pub fn drop_done(status: &mut VirtualMachineStatus, vmi: Option<&VirtualMachineInstance>) {
    while status.state_change_requests.first().is_some_and(|request| is_done(request, vmi)) {
        status.state_change_requests.remove(0);
    }
}

/// Takes starts away that were asked for before the machine was halted, which is the later word.
pub fn drop_starts(status: &mut VirtualMachineStatus) {
    status.state_change_requests.retain(|request| request.action != StateChangeRequestAction::Start);
}

/// Whether a request of `before` is missing in `after`.
pub fn drops(before: &VirtualMachineStatus, after: &VirtualMachineStatus) -> bool {
    let (before, after) = (&before.state_change_requests, &after.state_change_requests);
    after.len() < before.len() || before.iter().any(|request| !after.contains(request))
}

fn is_done(request: &VirtualMachineStateChangeRequest, vmi: Option<&VirtualMachineInstance>) -> bool {
    match request.action {
        StateChangeRequestAction::Stop => {
            vmi.is_none_or(|vmi| request.uid.is_none() || request.uid != vmi.uid())
        }
        // One that ended or is about to is what the request is to replace.
        StateChangeRequestAction::Start => {
            vmi.is_some_and(|vmi| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none())
        }
        StateChangeRequestAction::Other(_) => true,
    }
}

/// Whether `vmi` is asked to stop.
pub fn stop(status: &VirtualMachineStatus, vmi: &VirtualMachineInstance) -> bool {
    status.state_change_requests.first().is_some_and(|request| {
        request.action == StateChangeRequestAction::Stop && request.uid.is_some() && request.uid == vmi.uid()
    })
}

/// Whether a start is asked for.
pub fn start(status: &VirtualMachineStatus) -> bool {
    first_start(status).is_some()
}

/// Whether a paused start is asked for.
pub fn start_paused(status: &VirtualMachineStatus) -> bool {
    first_start(status).and_then(|request| request.data.get(PAUSED)).is_some_and(|value| value == "true")
}

/// Asks for a start on the controller's own account, unless one is asked for.
pub fn add_start(status: &mut VirtualMachineStatus) {
    if status.state_change_requests.iter().all(|request| request.action != StateChangeRequestAction::Start) {
        status.state_change_requests.push(VirtualMachineStateChangeRequest {
            action: StateChangeRequestAction::Start,
            ..VirtualMachineStateChangeRequest::default()
        });
    }
}

fn first_start(status: &VirtualMachineStatus) -> Option<&VirtualMachineStateChangeRequest> {
    status.state_change_requests.first().filter(|request| request.action == StateChangeRequestAction::Start)
}
