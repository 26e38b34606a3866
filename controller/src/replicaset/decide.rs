//! What to do for a replica set: a pure function of what is there.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use podvirt_api::names;
use podvirt_api::names::condition::{self, reason};
use podvirt_api::selector::{Labels, Selector};
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachineInstanceReplicaSet as ReplicaSet,
};

use crate::claim::{self, Claim};
use crate::vm::is_final;

/// Instances that a pass makes or deletes at most: upstream's number.
pub const BURST: usize = 250;

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The replica set.
    pub set: &'a ReplicaSet,
    /// The instances of its namespace.
    pub instances: &'a [Arc<VirtualMachineInstance>],
    /// Whether something that was asked for is not seen yet.
    pub waits: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make an instance the replica set's, or not any more.
    Own {
        /// The instance's name.
        name: String,
        /// Its UID.
        uid: String,
        /// Its resource version: what it was judged by.
        version: Option<String>,
        /// Its owners from now on.
        owners: Vec<OwnerReference>,
    },
    /// Make this instance.
    Create(Box<VirtualMachineInstance>),
    /// Delete an instance.
    Delete {
        /// The instance's name.
        name: String,
        /// Its UID.
        uid: String,
        /// Whether it had ended.
        finished: bool,
    },
}

/// What a pass leads to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// Active instances.
    pub replicas: usize,
    /// Those of them that are ready.
    pub ready: usize,
    /// The selector, as a scale tells it.
    pub selector: String,
    /// Whether the number of instances is left as it is.
    pub rests: bool,
    /// Why the specification cannot be carried out.
    pub invalid: Option<String>,
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Plan {
    let set = seen.set;
    let none = Labels::new();
    let template = set.spec.template.as_ref();
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref()).unwrap_or(&none);
    let selector = match Selector::of(set.spec.selector.as_ref()) {
        Ok(selector) if !labels.is_empty() && selector.matches(labels) => selector,
        // Admission refuses these; the object came past it.
        Ok(selector) => {
            let why = "spec.selector: has to match spec.template.metadata.labels, of which one at least is required";
            return Plan { selector: selector.to_string(), invalid: Some(why.into()), ..Plan::default() };
        }
        Err(error) => return Plan { invalid: Some(format!("spec.selector: {error}")), ..Plan::default() },
    };
    let mut plan = Plan { selector: selector.to_string(), ..Plan::default() };
    let own = claimed(set, &selector, seen.instances, &mut plan.actions);
    let mut active: Vec<&VirtualMachineInstance> = own.iter().copied().filter(|vmi| is_active(vmi)).collect();
    plan.replicas = active.len();
    plan.ready = active.iter().filter(|vmi| is_ready(vmi)).count();
    let paused = set.spec.paused == Some(true);
    plan.rests = seen.waits || paused || set.metadata.deletion_timestamp.is_some();
    if plan.rests {
        return plan;
    }
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        let instance = Action::Create(Box::new(render(set)));
        plan.actions.extend(std::iter::repeat_n(instance, missing));
    } else {
        active.sort_by_key(|vmi| dispensable(vmi));
        let excess = (active.len() - wanted).min(BURST);
        plan.actions.extend(active.iter().take(excess).filter_map(|vmi| delete(vmi, false)));
    }
    let finished = own.iter().filter(|vmi| is_finished(vmi)).take(BURST);
    plan.actions.extend(finished.filter_map(|vmi| delete(vmi, true)));
    plan
}

/// The replica set's instances. Those that become its own, or are no longer, are added to `actions`.
fn claimed<'a>(
    set: &ReplicaSet,
    selector: &Selector,
    instances: &'a [Arc<VirtualMachineInstance>],
    actions: &mut Vec<Action>,
) -> Vec<&'a VirtualMachineInstance> {
    let mut own = Vec::new();
    for vmi in instances {
        let owners = match claim::claim(&set.metadata, selector, &vmi.metadata) {
            Claim::Leave => continue,
            Claim::Own => {
                own.push(vmi.as_ref());
                continue;
            }
            Claim::Adopt => {
                let Some(reference) = reference(set) else { continue };
                own.push(vmi.as_ref());
                claim::owners_with(&vmi.metadata, reference)
            }
            Claim::Release => claim::owners_without(&vmi.metadata, &set.uid().unwrap_or_default()),
        };
        let (name, uid, version) = (vmi.name_any(), vmi.uid().unwrap_or_default(), vmi.resource_version());
        actions.push(Action::Own { name, uid, version, owners });
    }
    own
}

fn delete(vmi: &VirtualMachineInstance, finished: bool) -> Option<Action> {
    Some(Action::Delete { name: vmi.name_any(), uid: vmi.uid()?, finished })
}

/// Whether a machine runs, or is on its way.
fn is_active(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.deletion_timestamp.is_none() && !is_final(vmi) && !loses_pod(vmi)
}

/// Whether a machine has ended, and nothing has deleted it yet.
fn is_finished(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.deletion_timestamp.is_none() && (is_final(vmi) || loses_pod(vmi))
}

fn is_ready(vmi: &VirtualMachineInstance) -> bool {
    ready_is(vmi, condition::TRUE, None)
}

/// Whether the machine's pod is being deleted under it.
fn loses_pod(vmi: &VirtualMachineInstance) -> bool {
    ready_is(vmi, condition::FALSE, Some(reason::POD_TERMINATING))
}

fn ready_is(vmi: &VirtualMachineInstance, value: &str, reason: Option<&str>) -> bool {
    vmi.status.conditions.iter().any(|condition| {
        condition.r#type.as_str() == condition::READY
            && condition.status == value
            && (reason.is_none() || condition.reason.as_deref() == reason)
    })
}

/// The order in which machines are given up: what has no clients yet first, of equals the youngest.
fn dispensable(vmi: &VirtualMachineInstance) -> impl Ord + use<> {
    let runs = vmi.status.phase == Some(Phase::Running);
    let created = vmi.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (is_ready(vmi), runs, Reverse(created), vmi.name_any())
}

fn reference(set: &ReplicaSet) -> Option<OwnerReference> {
    set.controller_owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner })
}

/// An instance of the replica set, to which the API server gives its name.
fn render(set: &ReplicaSet) -> VirtualMachineInstance {
    let template = set.spec.template.clone().unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let base = named(&given.name).or_else(|| named(&given.generate_name)).unwrap_or_else(|| set.name_any());
    let metadata = ObjectMeta {
        generate_name: Some(base),
        namespace: set.namespace(),
        labels: given.labels,
        annotations: given.annotations,
        owner_references: reference(set).map(|owner| vec![owner]),
        finalizers: Some(vec![names::VMI_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    let spec = template.spec.unwrap_or_default();
    VirtualMachineInstance { metadata, spec, ..VirtualMachineInstance::default() }
}
