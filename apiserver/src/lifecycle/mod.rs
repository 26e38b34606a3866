//! What starting, stopping and restarting a VM means for each run strategy: from the stored VM and its instance to
//! the patches that virt-controller acts upon, or to the reason why not.
//!
//! | strategy | start | stop | restart |
//! |---|---|---|---|
//! | Always, Once | refused | run strategy becomes Halted | Stop + Start requests (Once: refused) |
//! | RerunOnFailure | Start request | Stop request; between two runs the run strategy becomes Halted | Stop + Start requests |
//! | Manual | Start request | Stop request | Stop + Start requests |
//! | Halted | run strategy becomes Always | only sooner than before | refused |
//!
//! What would change the run strategy is refused while a snapshot of the VM is taken, and starting it while it is restored.
//!
//! A patch first tests that what it replaces is still what was read, so two users cannot undo each other unseen: the
//! loser's patch fails, and the caller reads and decides anew.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use podvirt_api::names::condition;
use podvirt_api::v1::{
    RestartOptions, StartOptions, StateChangeRequestAction, StopOptions, VirtualMachine,
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase, VirtualMachineRunStrategy as Strategy,
    VirtualMachineStateChangeRequest, VirtualMachineStatus,
};
use serde_json::{Value, json};

use crate::status::Status;
use crate::target::Kind;

/// Key of a Start request's data that asks for a paused start.
const PAUSED_KEY: &str = "paused";
/// Seconds that an instance has to stop whose manifest says nothing.
const DEFAULT_GRACE: i64 = 30;

/// A change of a VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Of the VM itself.
    Spec(Patch),
    /// Of its status subresource.
    Status(Patch),
}

/// What stopping takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// A change of the instance that shortens its grace period, to be made first.
    pub instance: Option<Patch>,
    /// The change of the VM.
    pub vm: Change,
}

/// What restarting takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// The change of the VM.
    pub vm: Change,
    /// Whether the launcher pod is to be deleted at once.
    pub force: bool,
}

fn refuse(vm: &VirtualMachine, why: &str) -> Status {
    Status::conflict(Kind::VirtualMachine.in_errors(), name(vm), why)
}

fn name(vm: &VirtualMachine) -> &str {
    vm.metadata.name.as_deref().unwrap_or_default()
}

/// The strategy a VM has, by whichever of the two fields says it.
///
/// # Errors
///
/// Both or neither do, or it is one podvirt does not know.
pub fn run_strategy(vm: &VirtualMachine) -> Result<Strategy, Status> {
    match (vm.spec.running, &vm.spec.run_strategy) {
        (Some(true), None) => Ok(Strategy::Always),
        (Some(false), None) => Ok(Strategy::Halted),
        (None, Some(strategy)) => match strategy {
            Strategy::WaitAsReceiver => Err(Status::not_supported("spec.runStrategy WaitAsReceiver")),
            Strategy::Other(text) => {
                let message = format!("'{text}' is not allowed as spec.runStrategy of the VM");
                Err(Status::internal(message))
            }
            known => Ok(known.clone()),
        },
        (Some(_), Some(_)) => {
            Err(Status::internal("spec.running and spec.runStrategy of the VM exclude each other"))
        }
        (None, None) => Err(Status::internal("the VM has neither spec.running nor spec.runStrategy")),
    }
}

fn phase(vmi: &VirtualMachineInstance) -> Option<&Phase> {
    vmi.status.phase.as_ref().filter(|phase| !phase.is_empty())
}

/// Whether an instance has ended.
pub fn is_final(vmi: &VirtualMachineInstance) -> bool {
    matches!(phase(vmi), Some(Phase::Succeeded | Phase::Failed))
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}

pub(crate) fn test(tokens: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(tokens), value })
}

pub(crate) fn add(tokens: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(tokens), value })
}

pub(crate) fn replace(tokens: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: pointer(tokens), value })
}

pub(crate) fn remove(tokens: &[&str]) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: pointer(tokens) })
}

/// Makes the VM run or halt by whichever field it uses, unless a snapshot or a restore holds it. What users write themselves is
/// refused by the webhook in the same words.
fn set_running(vm: &VirtualMachine, running: bool) -> Result<Change, Status> {
    if let Some(name) = &vm.status.snapshot_in_progress {
        return Err(refuse(vm, &format!("Cannot update vm running state until snapshot {name:?} completes")));
    }
    // To stop it may be what the restore waits for.
    if let Some(name) = vm.status.restore_in_progress.as_ref().filter(|_| running) {
        return Err(refuse(vm, &format!("Cannot update VM runStrategy until restore {name:?} completes")));
    }
    let (field, old, new) = match vm.spec.running {
        Some(old) => ("running", json!(old), json!(running)),
        None => {
            let new = if running { Strategy::Always } else { Strategy::Halted };
            ("runStrategy", json!(vm.spec.run_strategy), json!(new))
        }
    };
    let path = ["spec", field];
    Ok(Change::Spec(Patch(vec![test(&path, old), replace(&path, new)])))
}

fn request(
    action: StateChangeRequestAction,
    vmi: Option<&VirtualMachineInstance>,
) -> VirtualMachineStateChangeRequest {
    VirtualMachineStateChangeRequest {
        action,
        uid: vmi.and_then(|vmi| vmi.metadata.uid.clone()),
        ..VirtualMachineStateChangeRequest::default()
    }
}

fn start_request(paused: bool) -> VirtualMachineStateChangeRequest {
    let mut request = request(StateChangeRequestAction::Start, None);
    if paused {
        request.data.insert(PAUSED_KEY.to_owned(), "true".to_owned());
    }
    request
}

/// Writes requests for virt-controller. A lone Stop replaces what is under way; nothing else may.
fn ask(vm: &VirtualMachine, requests: &[VirtualMachineStateChangeRequest]) -> Result<Change, Status> {
    let new = json!(requests);
    if vm.status == VirtualMachineStatus::default() {
        let status = json!({ "stateChangeRequests": new });
        return Ok(Change::Status(Patch(vec![add(&["status"], status)])));
    }
    let path = ["status", "stateChangeRequests"];
    let old = &vm.status.state_change_requests;
    if old.is_empty() {
        return Ok(Change::Status(Patch(vec![test(&path, Value::Null), add(&path, new)])));
    }
    let is_stop = matches!(requests, [one] if one.action == StateChangeRequestAction::Stop);
    if !is_stop {
        return Err(refuse(vm, "unable to complete request: stop/start already underway"));
    }
    Ok(Change::Status(Patch(vec![test(&path, json!(old)), replace(&path, new)])))
}

/// Starts a VM.
///
/// # Errors
///
/// It runs already, its strategy leaves starting to virt-controller, or a snapshot or a restore holds it.
pub fn start(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    options: &StartOptions,
) -> Result<Change, Status> {
    let runs = vmi.is_some_and(|vmi| !is_final(vmi) && !matches!(phase(vmi), None | Some(Phase::Unknown)));
    if runs {
        return Err(refuse(vm, "VM is already running"));
    }
    whole(vm, condition::MANUAL_RECOVERY_REQUIRED)?;
    let strategy = run_strategy(vm)?;
    let paused = options.paused.unwrap_or(false);
    let ended = vmi.filter(|vmi| is_final(vmi));
    match strategy {
        // Only virt-controller can both change the strategy and remember that the first start is a paused one.
        Strategy::Halted if paused => ask(vm, &[start_request(true)]),
        Strategy::Halted => set_running(vm, true),
        Strategy::RerunOnFailure if ended.is_some_and(|vmi| phase(vmi) == Some(&Phase::Failed)) => {
            Err(refuse(vm, "RerunOnFailure does not support starting VM from failed state"))
        }
        Strategy::RerunOnFailure | Strategy::Manual => match ended {
            // What is left of the last run has to go first.
            Some(vmi) => {
                ask(vm, &[request(StateChangeRequestAction::Stop, Some(vmi)), start_request(paused)])
            }
            None => ask(vm, &[start_request(paused)]),
        },
        other => Err(refuse(vm, &format!("{other} does not support manual start requests"))),
    }
}

/// Refuses what would use claims that hold parts of disks, because a move of volumes to them was not or is not over: this condition is
/// true then. In upstream's words.
fn whole(vm: &VirtualMachine, kind: &str) -> Result<(), Status> {
    let mut conditions = vm.status.conditions.iter();
    match conditions.any(|one| one.r#type.as_str() == kind && one.status == condition::TRUE) {
        true => Err(refuse(
            vm,
            "VM recovery required: Volume migration failed, leaving some volumes pointing to non-consistent targets; manual \
             intervention is needed to reassign them to their original volumes.",
        )),
        false => Ok(()),
    }
}

/// Whether a VM with the strategy RerunOnFailure that does not run is going to: its last run failed, or its pod was ended under it.
fn runs_again(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let again = |vmi: &VirtualMachineInstance| {
        phase(vmi) == Some(&Phase::Failed)
            || is_final(vmi) && vmi.status.reason.as_deref() == Some(condition::reason::SHUT_DOWN_WITH_POD)
    };
    vm.status.start_failure.is_some() || vmi.is_some_and(again)
}

/// Stops a VM.
///
/// # Errors
///
/// It does not run, a snapshot of it is being taken, or the grace period is negative or longer than the instance's, or a halted VM would be stopped no
/// sooner.
pub fn stop(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    options: &StopOptions,
) -> Result<Stop, Status> {
    if let Some(grace) = options.grace_period.filter(|grace| *grace < 0) {
        return Err(Status::bad_request(format!(
            "gracePeriod {grace} is not allowed; 0 or more seconds are"
        )));
    }
    let strategy = run_strategy(vm)?;
    let running = vmi.filter(|vmi| !is_final(vmi));
    if let (Some(vmi), Some(grace)) = (running, options.grace_period) {
        // The instance's pod was made for the time it has: the kubelet ends it then.
        let allowed = vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        if grace > allowed {
            return Err(Status::bad_request(format!(
                "gracePeriod {grace} is not allowed; 0 to {allowed} seconds are, which is what the running instance has"
            )));
        }
    }
    let instance = running.zip(options.grace_period).and_then(|(vmi, grace)| grace_patch(vmi, grace));
    let vm_change = match (strategy, running) {
        // Also without an instance: another one may be about to be made.
        (Strategy::Always | Strategy::Once, _) => set_running(vm, false)?,
        // There is no instance to stop, and virt-controller is about to make the next one.
        (Strategy::RerunOnFailure, None) if runs_again(vm, vmi) => set_running(vm, false)?,
        (_, None) => {
            return Err(refuse(vm, "VM is not running"));
        }
        (Strategy::Manual | Strategy::RerunOnFailure, Some(vmi)) => {
            ask(vm, &[request(StateChangeRequestAction::Stop, Some(vmi))])?
        }
        (_, Some(vmi)) => {
            // It is stopping already: asking again makes sense only to get it over sooner.
            let old = vmi.spec.termination_grace_period_seconds;
            let sooner = options.grace_period.is_some_and(|new| old.is_none_or(|old| new < old));
            if !sooner {
                let why = "Halted only supports manual stop requests with a shorter graceperiod";
                return Err(refuse(vm, why));
            }
            ask(vm, &[request(StateChangeRequestAction::Stop, Some(vmi))])?
        }
    };
    Ok(Stop { instance, vm: vm_change })
}

fn grace_patch(vmi: &VirtualMachineInstance, grace: i64) -> Option<Patch> {
    let path = ["spec", "terminationGracePeriodSeconds"];
    match vmi.spec.termination_grace_period_seconds {
        Some(old) if old == grace => None,
        Some(old) => Some(Patch(vec![test(&path, json!(old)), replace(&path, json!(grace))])),
        None => Some(Patch(vec![add(&path, json!(grace))])),
    }
}

/// Restarts a VM.
///
/// # Errors
///
/// It does not run, its strategy has no restarts, or another grace period than 0 is asked for.
pub fn restart(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    options: &RestartOptions,
) -> Result<Restart, Status> {
    match options.grace_period_seconds {
        Some(grace) if grace < 0 => {
            return Err(Status::bad_request("gracePeriod has to be greater or equal to 0"));
        }
        Some(grace) if grace > 0 => {
            return Err(Status::bad_request("For force restart, only gracePeriod=0 is supported for now"));
        }
        _ => {}
    }
    whole(vm, condition::VOLUMES_CHANGE)?;
    let strategy = run_strategy(vm)?;
    if matches!(strategy, Strategy::Halted | Strategy::Once) {
        return Err(refuse(vm, &format!("{strategy} does not support manual restart requests")));
    }
    let vmi = vmi.ok_or_else(|| refuse(vm, "VM is not running"))?;
    let requests = [request(StateChangeRequestAction::Stop, Some(vmi)), start_request(false)];
    Ok(Restart { vm: ask(vm, &requests)?, force: options.grace_period_seconds == Some(0) })
}

#[cfg(test)]
mod tests;
