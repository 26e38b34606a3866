//! What to do for a clone: a pure function of what is there and the time.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use podvirt_api::names::{condition, event};
use podvirt_api::snapshot::{claim, has_failed, volumes};
use podvirt_api::state;
use podvirt_api::v1::{
    CloneCondition, CloneConditionType as Condition, SnapshotConditionType, VirtualMachine,
    VirtualMachineClone as Clone_, VirtualMachineClonePhase as Phase, VirtualMachineCloneStatus as Status,
    VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content, VirtualMachineSnapshotPhase as SnapshotPhase,
};

use super::make;
use crate::restore::is_kept;

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The clone.
    pub clone: &'a Clone_,
    /// The machine that is its source, if it is one and there.
    pub source: Option<&'a VirtualMachine>,
    /// The snapshot that is its source, or that it has made.
    pub snapshot: Option<&'a Snapshot>,
    /// What the snapshot holds.
    pub content: Option<&'a Content>,
    /// The restore that it has made.
    pub restore: Option<&'a Restore>,
    /// The new machine.
    pub target: Option<&'a VirtualMachine>,
    /// Whether all claims that the restore has made are bound.
    pub bound: bool,
    /// Now.
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the snapshot.
    Take(Box<Snapshot>),
    /// Make the restore.
    Restore(Box<Restore>),
    /// Delete the restore, and the snapshot if the clone has made it.
    CleanUp {
        /// The restore.
        restore: String,
        /// The snapshot.
        snapshot: Option<String>,
    },
    /// Delete the clone: its machine has gone.
    DeleteSelf,
}

/// What a pass leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to do, before the status is written.
    pub action: Option<Action>,
    /// The status as it shall be.
    pub status: Status,
    /// What people are told: reason and message of an event.
    pub notes: Vec<(&'static str, String)>,
    /// Whether what the clone has made is not in the cache yet: it is looked at again soon.
    pub awaits: bool,
}

/// What the step of a pass is.
enum Step {
    /// As it is.
    Goes(Option<Action>),
    /// What is not there is waited for.
    Pends(&'static str, String),
    /// It is over.
    Fails(&'static str, String),
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Plan {
    let clone = seen.clone;
    let mut plan = Plan { action: None, status: clone.status.clone(), notes: Vec::new(), awaits: false };
    if clone.metadata.deletion_timestamp.is_some() || plan.status.phase == Some(Phase::Failed) {
        return plan;
    }
    if plan.status.phase == Some(Phase::Succeeded) && seen.target.is_none() {
        plan.action = Some(Action::DeleteSelf);
        return plan;
    }
    let step = step(seen, &mut plan);
    let (progresses, why, ready, reason) = match step {
        Step::Goes(action) => {
            plan.action = action;
            if plan.status.phase == Some(Phase::Succeeded) {
                (false, "Ready", true, "Ready".to_owned())
            } else {
                (true, "Still processing", false, "Still processing".to_owned())
            }
        }
        Step::Pends(event, reason) => {
            note_once(&mut plan, clone, event, &reason);
            (false, "Pending", false, reason)
        }
        Step::Fails(event, reason) => {
            plan.status.phase = Some(Phase::Failed);
            note_once(&mut plan, clone, event, &reason);
            (false, "Failed", false, reason)
        }
    };
    let waits = seen.restore.filter(|_| !ready).and_then(held_up);
    set(&mut plan.status, Condition::Progressing, progresses, why, None, seen.now);
    set(&mut plan.status, Condition::Ready, ready, &reason, waits, seen.now);
    plan
}

/// What the restore waits for, or cannot do.
fn held_up(restore: &Restore) -> Option<String> {
    let mut all = restore.status.conditions.iter();
    all.find(|one| one.r#type == SnapshotConditionType::Ready && one.status != condition::TRUE)?
        .reason
        .clone()
}

fn note_once(plan: &mut Plan, clone: &Clone_, event: &'static str, reason: &str) {
    let told = clone.status.conditions.iter().find(|one| one.r#type == Condition::Ready);
    if told.and_then(|one| one.reason.as_deref()) != Some(reason) {
        plan.notes.push((event, reason.to_owned()));
    }
}

fn step(seen: &Observed<'_>, plan: &mut Plan) -> Step {
    let clone = seen.clone;
    let name = clone.name_any();
    let is_of_machine = clone.spec.source.as_ref().is_some_and(|source| source.kind == "VirtualMachine");
    let phase = |plan: &Plan| plan.status.phase.clone().filter(|phase| !phase.is_empty());
    if matches!(phase(plan), None | Some(Phase::SnapshotInProgress)) {
        if is_of_machine && plan.status.snapshot_name.is_none() {
            let Some(source) = seen.source else { return missing(clone) };
            let kept = source.spec.template.as_ref().and_then(|template| template.spec.as_ref());
            if kept.is_some_and(state::is_kept) {
                return of_state(clone, "VM", &source.name_any());
            }
            let wrong = not_taken(source);
            if !wrong.is_empty() {
                return Step::Pends(event::CLONE_VOLUMES_INVALID, wrong.join("\n"));
            }
            let made = make::snapshot(clone);
            plan.status.phase = Some(Phase::SnapshotInProgress);
            plan.status.snapshot_name = made.metadata.name.clone();
            return Step::Goes(Some(Action::Take(Box::new(made))));
        }
        let Some(snapshot) = seen.snapshot else {
            plan.awaits = is_of_machine;
            return if is_of_machine { Step::Goes(None) } else { missing(clone) };
        };
        plan.status.phase = Some(Phase::SnapshotInProgress);
        plan.status.snapshot_name = Some(snapshot.name_any());
        if snapshot.status.phase == Some(SnapshotPhase::Failed) {
            return Step::Fails(
                event::CLONE_CONTENT_INVALID,
                format!("snapshot {} has failed", snapshot.name_any()),
            );
        }
        if snapshot.status.ready_to_use != Some(true) {
            return Step::Goes(None);
        }
        let Some(content) = seen.content else {
            plan.awaits = true;
            return Step::Goes(None);
        };
        if content.spec.source.virtual_machine.as_ref().is_some_and(is_kept) {
            return of_state(clone, "snapshot", &snapshot.name_any());
        }
        let lacking = not_held(content);
        if !lacking.is_empty() {
            return Step::Fails(event::CLONE_CONTENT_INVALID, lacking.join("\n"));
        }
        let message = format!("snapshot {} for clone {name} is ready to use", snapshot.name_any());
        plan.notes.push((event::CLONE_SNAPSHOT_READY, message));
        plan.status.phase = Some(Phase::RestoreInProgress);
    }
    if phase(plan) == Some(Phase::RestoreInProgress) {
        let of = plan.status.snapshot_name.clone().unwrap_or_default();
        if plan.status.restore_name.is_none() {
            let held = seen.content.and_then(|content| content.spec.source.virtual_machine.as_ref());
            let Some(vm) = seen.snapshot.and(held) else {
                return Step::Fails(
                    event::CLONE_SNAPSHOT_DELETED,
                    format!("snapshot {of} does not exist anymore"),
                );
            };
            let made = match make::restore(clone, &of, vm) {
                Ok(made) => made,
                Err(error) => return Step::Fails(event::CLONE_RESTORE_FAILED, error.to_string()),
            };
            plan.status.restore_name = made.metadata.name.clone();
            return Step::Goes(Some(Action::Restore(Box::new(made))));
        }
        let Some(restore) = seen.restore else {
            plan.awaits = true;
            return Step::Goes(None);
        };
        if has_failed(restore) {
            let message = format!("restore {} for clone {name} has failed", restore.name_any());
            return Step::Fails(event::CLONE_RESTORE_FAILED, message);
        }
        if restore.status.complete != Some(true) {
            return Step::Goes(None);
        }
        let message = format!("restore {} for clone {name} is ready to use", restore.name_any());
        plan.notes.push((event::CLONE_RESTORE_READY, message));
        plan.status.target_name = Some(restore.spec.target.name.clone());
        plan.status.phase = Some(Phase::CreatingTargetVm);
    }
    if phase(plan) == Some(Phase::CreatingTargetVm) {
        let Some(target) = seen.target else {
            plan.awaits = true;
            return Step::Goes(None);
        };
        let message = format!("created target VM {} for clone {name}", target.name_any());
        plan.notes.push((event::CLONE_TARGET_CREATED, message));
        plan.status.phase = Some(Phase::Succeeded);
    }
    if phase(plan) == Some(Phase::Succeeded)
        && seen.bound
        && let Some(restore) = plan.status.restore_name.take()
    {
        plan.notes.push((event::CLONE_CLAIMS_BOUND, format!("all PVC for clone {name} are bound")));
        let snapshot = plan.status.snapshot_name.take().filter(|_| is_of_machine);
        return Step::Goes(Some(Action::CleanUp { restore, snapshot }));
    }
    Step::Goes(None)
}

fn missing(clone: &Clone_) -> Step {
    let source = clone.spec.source.clone().unwrap_or_default();
    let namespace = clone.namespace().unwrap_or_default();
    let message = format!("Source doesnt exist: {} {namespace}/{}", source.kind, source.name);
    Step::Pends(event::CLONE_SOURCE_MISSING, message)
}

/// The source keeps the state of its firmware or TPM, which would be another machine's identity; upstream's words.
fn of_state(clone: &Clone_, kind: &str, name: &str) -> Step {
    let namespace = clone.namespace().unwrap_or_default();
    let message = format!("Clone of source with backendstorage is not supported: {kind} {namespace}/{name}");
    Step::Fails(event::CLONE_STATE_INVALID, message)
}

/// What is wrong with the volumes of a machine of which a snapshot is to be taken.
fn not_taken(vm: &VirtualMachine) -> Vec<String> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.into_iter().flat_map(|spec| &spec.volumes).filter(|volume| claim(volume).is_some());
    let wrong = volumes.filter_map(|volume| {
        let name = &volume.name;
        match vm.status.volume_snapshot_statuses.iter().find(|one| one.name == *name) {
            Some(one) if one.enabled => None,
            Some(_) => Some(format!("Virtual Machine volume {name} does not support snapshots")),
            None => Some(format!("Virtual Machine volume {name} snapshot support unknown")),
        }
    });
    wrong.collect()
}

/// The volumes that a content does not hold and should.
fn not_held(content: &Content) -> Vec<String> {
    let Some(vm) = &content.spec.source.virtual_machine else {
        return vec!["unexpected snapshot source".into()];
    };
    let snapshot = content.spec.virtual_machine_snapshot_name.as_deref().unwrap_or_default();
    let held = |name: &str| content.spec.volume_backups.iter().any(|one| one.volume_name == name);
    let lacking = volumes(vm).iter().filter(|volume| claim(volume).is_some() && !held(&volume.name));
    lacking.map(|volume| format!("volume {} is not backed up in snapshot {snapshot}", volume.name)).collect()
}

fn set(
    status: &mut Status,
    kind: Condition,
    is: bool,
    reason: &str,
    message: Option<String>,
    now: Timestamp,
) {
    let word = if is { condition::TRUE } else { condition::FALSE };
    let wanted = CloneCondition {
        r#type: kind,
        status: word.to_owned(),
        reason: Some(reason.to_owned()),
        message,
        last_transition_time: Some(Some(Time(now))),
        ..CloneCondition::default()
    };
    let same = |a: &CloneCondition, b: &CloneCondition| {
        a.status == b.status && a.reason == b.reason && a.message == b.message
    };
    match status.conditions.iter_mut().find(|one| one.r#type == wanted.r#type) {
        Some(there) if same(there, &wanted) => {}
        Some(there) => *there = wanted,
        None => status.conditions.push(wanted),
    }
}
