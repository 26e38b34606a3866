//! What to do with a machine: a pure function of what is there and the time.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use podvirt_api::names::{self, condition as names_condition, event};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineConditionType, VirtualMachineInstance,
    VirtualMachineInstancePhase as Phase, VirtualMachineRunStrategy, VirtualMachineStatus,
};
use serde_json::Value;

use super::failed::{fail, has_failed_so};
use super::instance::{self, Link, generation_of, has_other_metadata, is_outdated, links, render};
use super::instancetype::Problem;
use super::moves::{self, Moves};
use super::printable::{Start, printable};
use super::{Strategy, condition, failure, is_final, request};
use super::{memory_dump, nics, placement, volumes};
use crate::claim::{controller_of, owners_with};
use crate::data::Look;

/// Finalizer of an object whose dependents shall stay (`kubectl delete --cascade=orphan`).
const ORPHAN: &str = "orphan";
/// Reason of the condition Failure for a specification that cannot be carried out.
pub const INVALID_SPEC: &str = "InvalidSpec";

/// What is there under the machine's name.
#[derive(Clone, Copy, Debug)]
pub enum Instance<'a> {
    /// Nothing.
    None,
    /// The machine's own instance.
    Own(&'a VirtualMachineInstance),
    /// An instance without a controller, which is not being deleted: it becomes the machine's own.
    Orphan(&'a VirtualMachineInstance),
    /// An instance that another object controls, or that has no controller and is being deleted.
    Foreign(&'a VirtualMachineInstance),
}

impl<'a> Instance<'a> {
    /// Judges by the controller reference whose `vmi` is.
    pub fn of(vm: &VirtualMachine, vmi: Option<&'a VirtualMachineInstance>) -> Self {
        let Some(vmi) = vmi else { return Self::None };
        match controller_of(&vmi.metadata) {
            Some(owner) if Some(&owner.uid) == vm.uid().as_ref() => Self::Own(vmi),
            None if vmi.metadata.deletion_timestamp.is_none() => Self::Orphan(vmi),
            _ => Self::Foreign(vmi),
        }
    }

    /// Why the machine cannot be started with the instance's name; none where it can.
    fn obstacle(&self) -> Option<String> {
        let Self::Foreign(vmi) = self else { return None };
        let name = vmi.name_any();
        Some(match controller_of(&vmi.metadata) {
            Some(owner) => format!(
                "a VirtualMachineInstance {name:?} that the {} {:?} with UID {} controls, and not this VirtualMachine, is in the way",
                owner.kind, owner.name, owner.uid
            ),
            None => format!(
                "a VirtualMachineInstance {name:?} that this VirtualMachine does not own is in the way until it is deleted"
            ),
        })
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put the finalizer on the machine, so that its instance can end before it is gone.
    AddFinalizer,
    /// Take the finalizer away: nothing is left to wait for.
    RemoveFinalizer,
    /// Make the DataVolumes of these places in `spec.dataVolumeTemplates`.
    MakeDataVolumes(Vec<usize>),
    /// Become the controller of the instance.
    Adopt {
        /// The instance's UID.
        uid: String,
        /// The instance's resource version: what it was judged by.
        version: Option<String>,
        /// Its owners from then on.
        owners: Vec<OwnerReference>,
    },
    /// Make this instance.
    Start(Box<VirtualMachineInstance>),
    /// Delete the instance with this UID.
    Stop {
        /// The instance's UID.
        uid: String,
        /// Its resource version: what it was judged by.
        version: Option<String>,
        /// Why, for people.
        because: &'static str,
    },
    /// Write `runStrategy: Always`: a halted machine is asked to start.
    BecomeAlways,
    /// Write the states of links into the instance, which takes them over while it runs.
    SetLinks {
        /// The instance's UID.
        uid: String,
        /// The links.
        links: Vec<Link>,
    },
    /// Write interfaces and networks into the instance, which takes them over while it runs.
    SetInterfaces {
        /// The instance's UID.
        uid: String,
        /// What is to be changed.
        change: Box<nics::Change>,
    },
    /// Bring the running instance to the template.
    SetInstance {
        /// The instance's UID.
        uid: String,
        /// Operations of a JSON patch.
        operations: Vec<Value>,
        /// Reason of the event that tells of them.
        reason: &'static str,
        /// What they come to, for people.
        message: String,
    },
    /// Change the volumes of the template.
    SetTemplate {
        /// Operations of a JSON patch.
        operations: Vec<Value>,
        /// What they come to, for people.
        message: String,
    },
    /// Take unplugged interfaces out of the template.
    ClearTemplate(Box<nics::Change>),
    /// Write the machine's generation on its instance: nothing that the instance was made from has changed.
    NoteGeneration {
        /// The instance's UID.
        uid: String,
        /// The generation.
        generation: i64,
    },
}

/// What a pass leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The status as it shall be. Written before the action.
    pub status: VirtualMachineStatus,
    /// What to do.
    pub action: Option<Action>,
    /// When to look again if nothing happens before.
    pub again_after: Option<Duration>,
    /// Warnings for people: reason and message of an event.
    pub warnings: Vec<(&'static str, String)>,
}

/// Decides on `vm`, which is its own shape and has no DataVolumes, with what is there under its name, at `now`.
pub fn decide(vm: &VirtualMachine, instance: Instance<'_>, now: Timestamp) -> Plan {
    decide_by(vm, Ok(vm), instance, &Look::default(), &Moves::None, now)
}

/// Decides on `vm` by its shape, or without one, by its DataVolumes, and by its volumes that are to move to other claims.
pub fn decide_by(
    vm: &VirtualMachine,
    shape: Result<&VirtualMachine, &Problem>,
    instance: Instance<'_>,
    data: &Look,
    moves: &Moves,
    now: Timestamp,
) -> Plan {
    let mut status = shape.unwrap_or(vm).status.clone();
    moves::tell(vm, vmi_of(instance), moves, &mut status, now);
    let vmi = vmi_of(instance);
    memory_dump::follow(vm, vmi_of(instance), &mut status);
    let strategy = Strategy::of(vm);
    request::drop_done(&mut status, vmi);
    let was_halted =
        status.run_strategy.as_ref().is_none_or(|before| *before == VirtualMachineRunStrategy::Halted);
    if strategy == Ok(Strategy::Halted) && !was_halted {
        request::drop_starts(&mut status);
    }
    if let Ok(strategy) = strategy {
        failure::count(&mut status, strategy, vmi, now);
    }

    let mut problem = None;
    let step = if vm.metadata.deletion_timestamp.is_some() {
        end(vm, vmi)
    } else if !has_finalizer(vm, names::VM_FINALIZER) {
        Step::Do(Action::AddFinalizer)
    } else {
        match (&strategy, &vm.spec.template) {
            (Err(error), _) => {
                problem = Some((INVALID_SPEC, error.to_string()));
                Step::None
            }
            (_, None) => {
                problem = Some((INVALID_SPEC, "spec.template: required".to_owned()));
                Step::None
            }
            (Ok(strategy), Some(_)) => match instance {
                Instance::Orphan(orphan) => adopt(vm, orphan),
                _ => keep(*strategy, &mut status, shape.unwrap_or(vm), vmi, now),
            },
        }
    };
    let starts = matches!(step, Step::Do(Action::Start(_)))
        && vm.status.restore_in_progress.is_none()
        && !moves::needs_recovery(&status);
    let mut waits = false;
    let step = match (step, shape) {
        (Step::Do(Action::Start(_)) | Step::Later(_), Err(_)) => Step::None,
        // Its disks are being replaced: it starts, if it is to, once its status does not say so any more.
        (Step::Do(Action::Start(_) | Action::BecomeAlways), _) if vm.status.restore_in_progress.is_some() => {
            Step::None
        }
        // Its claims hold parts of disks.
        (Step::Do(Action::Start(_)), _) if moves::needs_recovery(&status) => Step::None,
        (Step::Do(Action::Start(_)), _) if !data.ready => {
            waits = true;
            Step::None
        }
        (step, _) => step,
    };
    if let (Err(Problem { reason, message }), None) = (shape, &problem) {
        problem = Some((reason, message.clone()));
    }
    if waits || data.immediate {
        problem =
            problem.or_else(|| data.problem.clone().filter(|_| vm.metadata.deletion_timestamp.is_none()));
    }
    let (mut action, again_after) = match step {
        Step::None => (None, None),
        Step::Do(action) => (Some(action), None),
        Step::Later(left) => (None, Some(left)),
    };
    // It is told of a machine that rests as well: the next start would fail.
    if vm.metadata.deletion_timestamp.is_none()
        && let Some(obstacle) = instance.obstacle()
    {
        if matches!(action, Some(Action::Start(_))) {
            action = None;
        }
        problem = problem.or(Some((event::FAILED_CREATE, obstacle)));
    }
    let makes = shape.is_ok() && vm.metadata.deletion_timestamp.is_none() && (waits || data.immediate);
    if action.is_none() && makes && !data.missing.is_empty() && problem.is_none() {
        action = Some(Action::MakeDataVolumes(data.missing.clone()));
    }
    if action.is_none() && vm.metadata.deletion_timestamp.is_none() {
        let clear = || nics::of_template(vm, vmi).map(|change| Action::ClearTemplate(Box::new(change)));
        let shape = shape.ok();
        let dump = memory_dump::of_template(vm, vmi);
        let dump = dump.map(|(operations, message)| Action::SetTemplate { operations, message });
        let of_instance = || {
            shape.zip(vmi).and_then(|(shape, vmi)| {
                changed_links(shape, vmi)
                    .or_else(|| changed_interfaces(shape, vmi))
                    .or_else(|| changed_volumes(shape, vmi))
                    .or_else(|| moved_volumes(vmi, moves))
                    .or_else(|| changed_placement(shape, vmi))
            })
        };
        action = dump.or_else(of_instance).or_else(clear).or_else(|| unchanged_generation(shape?, vmi?));
    }

    let is_foreign = matches!(instance, Instance::Foreign(_));
    let seen = Seen { vm, shape: shape.ok(), vmi, is_foreign, data, moves, waits, starts };
    let warnings = tell(&seen, &mut status, strategy.ok(), &action, problem, now);
    Plan { status, action, again_after, warnings }
}

fn vmi_of(instance: Instance<'_>) -> Option<&VirtualMachineInstance> {
    match instance {
        Instance::Own(vmi) => Some(vmi),
        Instance::None | Instance::Orphan(_) | Instance::Foreign(_) => None,
    }
}

enum Step {
    None,
    Do(Action),
    Later(Duration),
}

/// The machine becomes the controller of an instance of its name that has none.
fn adopt(vm: &VirtualMachine, orphan: &VirtualMachineInstance) -> Step {
    match (orphan.uid(), instance::owner(vm)) {
        (Some(uid), Some(owner)) => {
            let owners = owners_with(&orphan.metadata, owner);
            Step::Do(Action::Adopt { uid, version: orphan.resource_version(), owners })
        }
        _ => Step::None,
    }
}

/// The machine is deleted: its instance goes first.
fn end(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Step {
    if !has_finalizer(vm, names::VM_FINALIZER) {
        return Step::None;
    }
    match vmi {
        Some(vmi) if !has_finalizer(vm, ORPHAN) => stop(vmi, "the VirtualMachine is deleted"),
        _ => Step::Do(Action::RemoveFinalizer),
    }
}

/// The next step of a machine that stays; the table is in the module's documentation.
fn keep(
    strategy: Strategy,
    status: &mut VirtualMachineStatus,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    now: Timestamp,
) -> Step {
    let new_here = status.run_strategy != Some(strategy.word());
    let Some(vmi) = vmi else {
        let asked = request::start(status);
        return match strategy {
            Strategy::Halted if asked => Step::Do(Action::BecomeAlways),
            Strategy::Halted => Step::None,
            Strategy::Manual if !asked => Step::None,
            Strategy::RerunOnFailure | Strategy::Once if !asked && !new_here => Step::None,
            _ => start(status, vm, now),
        };
    };
    // A run that ended before the machine was given this strategy does not count as its start.
    let ends = is_final(vmi) || vmi.metadata.deletion_timestamp.is_some();
    let older = generation_of(vmi).zip(vm.metadata.generation).is_some_and(|(made, now)| made < now);
    let starts = new_here && matches!(strategy, Strategy::RerunOnFailure | Strategy::Once);
    let left_over = starts && ends && older;
    if left_over {
        request::add_start(status);
    }
    if vmi.metadata.deletion_timestamp.is_some() {
        return Step::None;
    }
    if left_over {
        return stop(vmi, "the run ended before the run strategy was changed");
    }
    if request::stop(status, vmi) {
        return stop(vmi, "a stop was requested");
    }
    match strategy {
        Strategy::Halted => stop(vmi, "the run strategy is Halted"),
        Strategy::Always if is_final(vmi) => stop(vmi, "the run ended and the run strategy is Always"),
        Strategy::RerunOnFailure if is_final(vmi) => {
            if vmi.status.phase == Some(Phase::Failed) {
                request::add_start(status);
                stop(vmi, "the run failed and the run strategy is RerunOnFailure")
            } else if vmi.status.reason.as_deref() == Some(names_condition::reason::SHUT_DOWN_WITH_POD) {
                request::add_start(status);
                stop(vmi, "the pod was ended under the guest and the run strategy is RerunOnFailure")
            } else {
                stop(vmi, "the run ended well and the run strategy is RerunOnFailure")
            }
        }
        Strategy::Manual | Strategy::Once if is_final(vmi) && request::start(status) => {
            stop(vmi, "the run ended and a start was requested")
        }
        _ => Step::None,
    }
}

fn start(status: &VirtualMachineStatus, vm: &VirtualMachine, now: Timestamp) -> Step {
    match failure::time_left(status, now) {
        Some(left) => Step::Later(left.unsigned_abs()),
        None => Step::Do(Action::Start(Box::new(render(vm, request::start_paused(status))))),
    }
}

fn stop(vmi: &VirtualMachineInstance, because: &'static str) -> Step {
    match vmi.uid() {
        Some(uid) if vmi.metadata.deletion_timestamp.is_none() => {
            Step::Do(Action::Stop { uid, version: vmi.resource_version(), because })
        }
        _ => Step::None,
    }
}

/// The instance was made from an older generation, but from the template as it still is.
fn unchanged_generation(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let generation = vm.metadata.generation?;
    let ends = is_final(vmi) || vmi.metadata.deletion_timestamp.is_some();
    let noted = generation_of(vmi) == Some(generation);
    (!ends && !noted && !is_outdated(vm, vmi) && !has_other_metadata(vm, vmi)).then_some(())?;
    Some(Action::NoteGeneration { uid: vmi.uid()?, generation })
}

/// Links that the template has otherwise than the instance, which is running on.
fn changed_links(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let ends = is_final(vmi) || vmi.metadata.deletion_timestamp.is_some();
    let links = links(vm, vmi);
    (!ends && !links.is_empty()).then_some(())?;
    Some(Action::SetLinks { uid: vmi.uid()?, links })
}

/// Interfaces and networks that the template has otherwise than the instance, which is running on.
fn changed_interfaces(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let change = Box::new(nics::of_instance(vm, vmi)?);
    Some(Action::SetInterfaces { uid: vmi.uid()?, change })
}

/// Where the template lets the machine run, otherwise than the instance, which is running on.
fn changed_placement(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let operations = placement::of_instance(vm, vmi)?;
    let goes_by_it = match vmi.status.node_name {
        Some(_) => "its next migration goes by it",
        None => "a pod that has no node yet is made anew",
    };
    let message = format!("where the machine may run is changed: {goes_by_it}");
    Some(Action::SetInstance { operations, uid: vmi.uid()?, reason: event::PLACEMENT_CHANGED, message })
}

/// Volumes that come and go, which the template has otherwise than the instance, which is running on.
fn changed_volumes(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let (operations, message) = volumes::of_instance(vm, vmi)?;
    Some(Action::SetInstance { operations, uid: vmi.uid()?, reason: event::VOLUMES_CHANGED, message })
}

/// Volumes of the instance, which is running on, that move to other claims.
fn moved_volumes(vmi: &VirtualMachineInstance, moves: &Moves) -> Option<Action> {
    let Moves::Change { operations, message, .. } = moves else { return None };
    let (operations, message) = (operations.clone(), message.clone());
    Some(Action::SetInstance { operations, uid: vmi.uid()?, reason: event::VOLUMES_CHANGED, message })
}

/// What a pass looks at.
struct Seen<'a> {
    vm: &'a VirtualMachine,
    shape: Option<&'a VirtualMachine>,
    vmi: Option<&'a VirtualMachineInstance>,
    /// Whether another object's instance has the machine's name.
    is_foreign: bool,
    data: &'a Look,
    moves: &'a Moves,
    /// Whether a start waits for DataVolumes.
    waits: bool,
    /// Whether the machine is to be started now, also where that fails.
    starts: bool,
}

/// Writes into `status` how the machine is. Returns what people should be told of.
fn tell(
    seen: &Seen<'_>,
    status: &mut VirtualMachineStatus,
    strategy: Option<Strategy>,
    action: &Option<Action>,
    problem: Option<(&'static str, String)>,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let &Seen { vm, shape, vmi, is_foreign, data, moves, waits, starts } = seen;
    let mut warnings = Vec::new();
    // An absent field is upstream's way to write a false.
    status.created = vmi.is_some().then_some(true);
    status.desired_generation = vm.metadata.generation;
    status.observed_generation = vmi.and_then(generation_of).or(vm.metadata.generation);
    // A strategy counts as begun once what it starts with is there: a start that fails is tried again.
    if let Some(strategy) = strategy
        && !matches!(action, Some(Action::Adopt { .. } | Action::Start(_) | Action::AddFinalizer))
        && problem.is_none()
        && !waits
        && failure::time_left(status, now).is_none()
        && vm.status.restore_in_progress.is_none()
    {
        status.run_strategy = Some(strategy.word());
    }

    let kind = VirtualMachineConditionType::from(names_condition::DATA_VOLUMES_READY);
    let waited = status.conditions.iter().find(|condition| condition.r#type == kind).cloned();
    condition::follow(status, vmi, is_foreign, now);
    // The instance will say it; a machine without one says what its start waits for.
    if let (true, None, Some(message)) = (waits, vmi, &data.waits_for) {
        status.conditions.extend(waited);
        let reason = names_condition::reason::NOT_ALL_DATA_VOLUMES_READY;
        condition::set(status, kind, names_condition::FALSE, reason, message, now);
    }
    let is_ready = |condition: &podvirt_api::v1::VirtualMachineCondition| {
        condition.r#type == VirtualMachineConditionType::Ready && condition.status == names_condition::TRUE
    };
    status.ready = status.conditions.iter().any(is_ready).then_some(true);

    match problem {
        Some((reason, message)) => {
            if !has_failed_so(status, reason, &message) {
                warnings.push((reason, message.clone()));
            }
            fail(status, reason, &message, now);
        }
        // What is about to be tried again has not got better yet.
        None if !matches!(
            action,
            Some(
                Action::MakeDataVolumes(_)
                    | Action::Adopt { .. }
                    | Action::Start(_)
                    | Action::Stop { .. }
                    | Action::BecomeAlways
            )
        ) =>
        {
            condition::clear(status, &VirtualMachineConditionType::Failure);
        }
        None => {}
    }

    let lives = |vmi: &&VirtualMachineInstance| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none();
    // Without a shape there is nothing to compare with: what was told before stands while the instance lives.
    // So it is with a machine that is being deleted, of which no shape is made.
    let shape = shape.filter(|_| vm.metadata.deletion_timestamp.is_none());
    let outdated = vmi.filter(lives).map(|vmi| shape.map(|shape| is_outdated(shape, vmi)));
    let refused = match moves {
        Moves::Refused(why) if outdated == Some(Some(false)) => Some(why.as_str()),
        _ => None,
    };
    if outdated == Some(Some(true)) || refused.is_some() {
        let message = refused
            .unwrap_or("the template changed: it takes effect when the machine is started the next time");
        let known =
            status.conditions.iter().any(|c| c.r#type == VirtualMachineConditionType::RestartRequired);
        if !known {
            warnings.push((event::RESTART_REQUIRED, message.to_owned()));
        }
        let kind = VirtualMachineConditionType::RestartRequired;
        condition::set(status, kind, names_condition::TRUE, event::RESTART_REQUIRED, message, now);
    } else if outdated != Some(None) {
        condition::clear(status, &VirtualMachineConditionType::RestartRequired);
    }

    let failures = |status: &VirtualMachineStatus| status.start_failure.as_ref()?.consecutive_fail_count;
    if let (Some(count), before) = (failures(status), failures(&vm.status))
        && before != Some(count)
    {
        let seconds = failure::time_left(status, now).unwrap_or_default().as_secs();
        warnings.push((
            event::CRASH_LOOP_BACK_OFF,
            format!("start {count} in a row ended before the guest ran, the next one is in {seconds} s"),
        ));
    }
    status.printable_status = Some(printable(vm, status, vmi, data, Start { waits, starts }));
    warnings
}

fn has_finalizer(vm: &VirtualMachine, finalizer: &str) -> bool {
    vm.finalizers().iter().any(|name| name == finalizer)
}
