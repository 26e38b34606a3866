//! What to do for a pool: a pure function of what is there and the time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use podvirt_api::selector::{Labels, Selector};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool,
    VirtualMachinePoolSelectionPolicy as Policy,
};

use super::revision::{self, Revisions};
use super::update::{self, Need};
use super::{choose, heal, machine};
use crate::claim::{self, Claim};
use crate::replicaset::BURST;

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The VMs of its namespace.
    pub machines: &'a [Arc<VirtualMachine>],
    /// The instances of its VMs, by their names.
    pub instances: &'a HashMap<String, Arc<VirtualMachineInstance>>,
    /// Its revisions.
    pub revisions: &'a Revisions,
    /// Whether something that was asked for is not seen yet.
    pub waits: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Let go of a VM that the selector does not find any more.
    Release {
        /// Which VM.
        vm: Target,
        /// Its owners from now on.
        owners: Vec<OwnerReference>,
    },
    /// Write down the pool's specification as it is.
    Remember,
    /// Make this VM.
    Create(Box<VirtualMachine>),
    /// Delete a VM.
    Delete(Target),
    /// Write labels, annotations and specification of a VM anew.
    Update(Target, Box<VirtualMachine>),
    /// Delete an instance, which its VM starts anew.
    Restart(Target),
    /// Name another revision in an instance's label.
    Label(Target, String),
    /// Delete this revision.
    Forget(String),
}

/// An object that something is done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its resource version: what it was judged by.
    pub version: Option<String>,
}

impl Target {
    fn of(object: &impl ResourceExt) -> Self {
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            version: object.resource_version(),
        }
    }
}

/// What a pass is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is to be done.
    #[default]
    Rest,
    /// VMs are made.
    ScaleOut,
    /// VMs are deleted.
    ScaleIn,
    /// VMs and instances are brought up to date.
    Update,
    /// Revisions are deleted.
    Prune,
}

/// What a pass leads to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What the actions are for.
    pub stage: Stage,
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// VMs of the pool, those on their way out among them.
    pub replicas: usize,
    /// Those of them that are ready.
    pub ready: usize,
    /// The selector, as a scale tells it.
    pub selector: String,
    /// Why what is to be done cannot be, for people.
    pub obstacle: Option<String>,
    /// Why the specification cannot be carried out.
    pub invalid: Option<String>,
    /// When to look again if nothing happens before.
    pub look_again: Option<Duration>,
}

/// Decides on what is seen, at `now`.
pub fn decide(seen: &Observed<'_>, now: Timestamp) -> Plan {
    let pool = seen.pool;
    let none = Labels::new();
    let template = pool.spec.virtual_machine_template.as_ref();
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref()).unwrap_or(&none);
    let selector = match Selector::of(pool.spec.selector.as_ref()) {
        Ok(selector) if !labels.is_empty() && selector.matches(labels) => selector,
        // Admission refuses these; the object came past it.
        Ok(selector) => {
            let why = "spec.selector: has to match spec.virtualMachineTemplate.metadata.labels, of which one at least is required";
            return Plan { selector: selector.to_string(), invalid: Some(why.into()), ..Plan::default() };
        }
        Err(error) => return Plan { invalid: Some(format!("spec.selector: {error}")), ..Plan::default() },
    };
    let mut plan = Plan { selector: selector.to_string(), ..Plan::default() };
    let own = owned(pool, &selector, seen.machines, &mut plan.actions);
    plan.replicas = own.len();
    plan.ready = own.iter().filter(|vm| update::is_ready(vm)).count();
    let paused = pool.spec.paused == Some(true);
    if seen.waits || paused || pool.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let staying: Vec<&VirtualMachine> =
        own.iter().copied().filter(|vm| vm.metadata.deletion_timestamp.is_none()).collect();
    if heals(seen, &staying, &mut plan, now) {
        return plan;
    }
    let wanted = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
    if own.len() < wanted {
        scale_out(seen, (wanted - own.len()).min(BURST), &mut plan);
    } else if own.len() > wanted && scales_in(pool) {
        // Those on their way out are a part of what is too many.
        let going = own.len() - staying.len();
        let excess = (own.len() - wanted).min(BURST).saturating_sub(going);
        scale_in(pool, staying, excess, &mut plan);
    } else if !renews(seen, &staying, &mut plan) {
        prune(seen, &own, &mut plan);
    }
    plan
}

/// The pool's VMs. Those that are released are added to `actions`; a pool adopts none.
fn owned<'a>(
    pool: &Pool,
    selector: &Selector,
    machines: &'a [Arc<VirtualMachine>],
    actions: &mut Vec<Action>,
) -> Vec<&'a VirtualMachine> {
    let mut own = Vec::new();
    for vm in machines {
        match claim::claim(&pool.metadata, selector, &vm.metadata) {
            Claim::Own => own.push(vm.as_ref()),
            Claim::Release => {
                let owners = claim::owners_without(&vm.metadata, &pool.uid().unwrap_or_default());
                actions.push(Action::Release { vm: Target::of(vm.as_ref()), owners });
            }
            Claim::Adopt | Claim::Leave => {}
        }
    }
    own
}

/// Deletes VMs that do not come up, if the pool wants it. Whether there are any.
fn heals(seen: &Observed<'_>, staying: &[&VirtualMachine], plan: &mut Plan, now: Timestamp) -> bool {
    let Some(healing) = &seen.pool.spec.autohealing else { return false };
    let mut found = false;
    for vm in staying {
        match heal::verdict(vm, healing, now) {
            Ok(()) => {
                found = true;
                plan.stage = Stage::ScaleIn;
                plan.actions.push(Action::Delete(Target::of(*vm)));
            }
            Err(left) => plan.look_again = plan.look_again.into_iter().chain(left).min(),
        }
    }
    found
}

fn scale_out(seen: &Observed<'_>, missing: usize, plan: &mut Plan) {
    let taken: HashSet<String> = seen.machines.iter().map(|vm| vm.name_any()).collect();
    plan.stage = Stage::ScaleOut;
    remember(seen, plan);
    let names = machine::new_names(seen.pool, missing, &taken);
    let made = names.iter().map(|name| Action::Create(Box::new(machine::render(seen.pool, name))));
    plan.actions.extend(made);
}

/// Whether the pool deletes VMs by itself when it has too many.
fn scales_in(pool: &Pool) -> bool {
    let strategy = pool.spec.scale_in_strategy.as_ref();
    strategy.is_none_or(|strategy| strategy.unmanaged.is_none() && strategy.opportunistic.is_none())
}

fn scale_in(pool: &Pool, mut staying: Vec<&VirtualMachine>, excess: usize, plan: &mut Plan) {
    if excess == 0 {
        return;
    }
    let strategy = pool.spec.scale_in_strategy.as_ref();
    let policy = strategy.and_then(|strategy| strategy.proactive.as_ref()?.selection_policy.as_ref());
    plan.stage = Stage::ScaleIn;
    choose::sort(&mut staying, policy);
    match choose::selected(staying, policy) {
        Ok(found) => {
            plan.actions.extend(found.iter().take(excess).map(|vm| Action::Delete(Target::of(*vm))));
            if found.len() < excess {
                let (some, selected) = (excess, found.len());
                plan.obstacle = Some(format!(
                    "{some} VMs are to go, and spec.scaleInStrategy.proactive.selectionPolicy.selectors selects {selected}"
                ));
            }
        }
        Err(error) => {
            plan.obstacle =
                Some(format!("spec.scaleInStrategy.proactive.selectionPolicy.selectors: {error}"));
        }
    }
}

/// Brings VMs and their instances up to date. Whether something is to be done, or is in the way.
fn renews(seen: &Observed<'_>, staying: &[&VirtualMachine], plan: &mut Plan) -> bool {
    let pool = seen.pool;
    let strategy = pool.spec.update_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.unmanaged.is_some()) {
        return false;
    }
    let policy = strategy.and_then(|strategy| strategy.proactive.as_ref()?.selection_policy.as_ref());
    let candidates = match choose::selected(staying.to_vec(), policy) {
        Ok(candidates) => candidates,
        Err(error) => {
            plan.stage = Stage::Update;
            plan.obstacle = Some(format!("spec.updateStrategy.proactive.selectionPolicy.selectors: {error}"));
            return true;
        }
    };
    let (outdated, current): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|vm| update::is_outdated(pool, vm, seen.revisions));
    let before = plan.actions.len();
    if !outdated.is_empty() {
        remember(seen, plan);
        let renewed = outdated.iter().take(BURST);
        let renewed = renewed.map(|vm| Action::Update(Target::of(*vm), Box::new(machine::renewed(pool, vm))));
        plan.actions.extend(renewed);
    }
    if strategy.is_none_or(|strategy| strategy.opportunistic.is_none()) {
        restart(seen, current, policy, plan);
    }
    if plan.actions.len() > before {
        plan.stage = Stage::Update;
    }
    plan.actions.len() > before
}

/// Restarts the instances of VMs that are up to date, as far as others may be away.
fn restart(seen: &Observed<'_>, mut current: Vec<&VirtualMachine>, policy: Option<&Policy>, plan: &mut Plan) {
    let instance = |vm: &VirtualMachine| {
        let vmi = seen.instances.get(&vm.name_any())?;
        claim::controller_of(&vmi.metadata).filter(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())?;
        Some(vmi.as_ref())
    };
    let away = current.iter().filter(|vm| !instance(vm).is_some_and(update::serves)).count();
    let mut left = update::max_unavailable(seen.pool).saturating_sub(away);
    choose::sort(&mut current, policy);
    for vm in current {
        let Some(vmi) = instance(vm).filter(|vmi| vmi.metadata.deletion_timestamp.is_none()) else {
            continue;
        };
        match update::need(vm, vmi, seen.revisions) {
            Need::None => {}
            Need::Label(revision) => plan.actions.push(Action::Label(Target::of(vmi), revision)),
            // It has no clients.
            Need::Restart if !update::is_ready(vm) => plan.actions.push(Action::Restart(Target::of(vmi))),
            Need::Restart if left > 0 => {
                left -= 1;
                plan.actions.push(Action::Restart(Target::of(vmi)));
            }
            Need::Restart => {}
        }
    }
}

/// Deletes revisions that neither a VM nor an instance names.
fn prune(seen: &Observed<'_>, own: &[&VirtualMachine], plan: &mut Plan) {
    let of_machines = own.iter().filter_map(|vm| update::revision_of(vm.metadata.labels.as_ref()));
    let instances = own.iter().filter_map(|vm| seen.instances.get(&vm.name_any()));
    let of_instances = instances.filter_map(|vmi| update::revision_of(vmi.metadata.labels.as_ref()));
    let used: BTreeSet<&String> = of_machines.chain(of_instances).collect();
    let unused = seen.revisions.keys().filter(|name| !used.contains(name));
    let before = plan.actions.len();
    plan.actions.extend(unused.map(|name| Action::Forget(name.clone())));
    if plan.actions.len() > before {
        plan.stage = Stage::Prune;
    }
}

/// Has the pool's specification written down, before a VM names it.
fn remember(seen: &Observed<'_>, plan: &mut Plan) {
    if !seen.revisions.contains_key(&revision::name(seen.pool)) {
        plan.actions.push(Action::Remember);
    }
}
