//! What to do about a machine, from what is seen of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use podvirt_api::cdi::DataVolume;
use podvirt_api::migration::{ended_at, is_at_target, is_under_way, pod_by_migration};
use podvirt_api::names::annotation::NETWORK_STATUS;
use podvirt_api::names::condition::{self as conditions, FALSE, reason};
use podvirt_api::names::{VMI_FINALIZER, event, label, pod as pod_names};
use podvirt_api::resources::AutoLimits;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};

use super::claims::{Problem, Told};
use super::create::{OF_BACKEND, OF_CLAIMS, create};
use super::data;
use super::observe::{self, Trouble};
use super::status::{condition, is_final, phase, remove_condition, set_condition, set_phase};
use super::{backup_hooks, ends, follow, hotplug, nics};
use crate::settings::Settings;
use crate::storage::backend::Backend;
use crate::template;

/// How long virt-handler has to say how a guest ended, after its pod did. It may be restarting just then; after
/// this time the pod's own end is all that is known.
pub const HANDOVER_GRACE: Duration = Duration::from_secs(60);

/// When to look again at a machine whose guest is at a migration's target: the virt-handler that writes the end may
/// have to restart.
const MOVE_RETRY: Duration = Duration::from_secs(10);

/// Reason of [`conditions::SYNCHRONIZED`]: the pod lacks a network that Multus was asked for.
const NETWORK_MISSING: &str = "NetworkNotAttached";
const POD_DELETED: &str = "PodDeleted";
/// How a message on a refused pod begins.
const REFUSED: &str = "the launcher pod could not be made";
/// What is in it where it is about the pod's networks.
const NETWORKS_KIND: &str = "NetworkAttachmentDefinition";

/// What is seen.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The machine.
    pub vmi: &'a VirtualMachineInstance,
    /// The pods that it controls, oldest first.
    pub pods: &'a [Arc<Pod>],
    /// Its pods that are to use its claims first.
    pub consumers: &'a [Arc<Pod>],
    /// The DataVolumes of its claims.
    pub data: &'a [Arc<DataVolume>],
    /// The pods that hold the claims of volumes that are plugged, or use such claims first.
    pub attachments: &'a [Arc<Pod>],
    /// What is wrong with the claims of its own pod; looked for only while [`needs_claims`].
    pub claims: &'a [(String, Problem)],
    /// What is wrong with the claims of volumes that are plugged; looked for only while [`hotplug::needs_claims`].
    pub plug_claims: &'a [(String, Problem)],
    /// What is to be told of its claims; `None` while that is not known.
    pub claims_told: Option<&'a Told>,
    /// The claim that keeps the state of its firmware and TPM.
    pub backend: &'a Backend,
    /// How long its final phase has been seen, if it has one.
    pub end_seen: Duration,
    /// The cluster's configuration.
    pub settings: &'a Settings,
    /// Image of the launcher.
    pub launcher_image: &'a str,
    /// Limits that the namespace wants; asked for only when a pod may be made.
    pub limits: AutoLimits,
}

impl<'a> Observed<'a> {
    /// A machine without pods, claims and DataVolumes; of its claims nothing is known, and its end was not seen.
    pub fn alone(vmi: &'a VirtualMachineInstance, settings: &'a Settings, launcher_image: &'a str) -> Self {
        Observed {
            vmi,
            pods: &[],
            consumers: &[],
            data: &[],
            attachments: &[],
            claims: &[],
            plug_claims: &[],
            claims_told: None,
            backend: &Backend::Unneeded(None),
            end_seen: Duration::ZERO,
            settings,
            launcher_image,
            limits: AutoLimits::default(),
        }
    }
}

/// What to ask of the API server, besides writing the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the launcher pod.
    Create(Box<Pod>),
    /// Make the claim that keeps the state of its firmware and TPM.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Delete that claim.
    DeleteClaim {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Delete a pod.
    Delete {
        /// Its name.
        name: String,
        /// Its UID: no other pod of the same name is meant.
        uid: String,
    },
    /// Open or close the pod's readiness gate.
    Gate {
        /// The pod's name.
        name: String,
        /// The pod's UID.
        uid: String,
        /// Whether the guest can be reached as far as its machine is concerned.
        open: bool,
        /// Why.
        reason: &'static str,
    },
    /// Set annotations of the pod.
    Annotate {
        /// The pod's name.
        name: String,
        /// The pod's UID.
        uid: String,
        /// The annotations by their keys; none removes one.
        annotations: BTreeMap<&'static str, Option<String>>,
    },
    /// Set a label of the pod.
    Label {
        /// The pod's name.
        name: String,
        /// The pod's UID.
        uid: String,
        /// The label.
        key: &'static str,
        /// Its value.
        value: String,
    },
}

impl Action {
    /// Sets annotations of `pod`.
    pub(super) fn annotate(
        pod: &Pod,
        annotations: impl Into<BTreeMap<&'static str, Option<String>>>,
    ) -> Self {
        let (name, uid) = (observe::name(pod).to_owned(), observe::uid(pod).to_owned());
        Self::Annotate { name, uid, annotations: annotations.into() }
    }
}

/// Something that a user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is something to look at.
    pub warning: bool,
    /// Reason of the event.
    pub reason: String,
    /// Message of the event.
    pub message: String,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The machine as it should be written.
    pub vmi: VirtualMachineInstance,
    /// What to ask for, in this order, after the machine was written.
    pub actions: Vec<Action>,
    /// Events, once the machine was written.
    pub notes: Vec<Note>,
    /// When to look again although nothing changed.
    pub look_again: Option<Duration>,
}

impl Decision {
    pub(super) fn warn(&mut self, reason: &str, message: impl Into<String>) {
        self.notes.push(Note { warning: true, reason: reason.to_owned(), message: message.into() });
    }

    pub(super) fn fail(&mut self, trouble: &Trouble, now: Timestamp) {
        let status = &mut self.vmi.status;
        set_phase(status, Phase::Failed, now);
        status.reason = Some(trouble.reason.clone());
        set_condition(status, conditions::SYNCHRONIZED, FALSE, &trouble.reason, &trouble.message, now);
        self.warn(&trouble.reason, &trouble.message);
    }

    /// The specification cannot be met now, which a condition and one event say.
    pub(super) fn unsynchronized(&mut self, trouble: &Trouble, now: Timestamp) {
        let before = condition(&self.vmi.status, conditions::SYNCHRONIZED)
            .filter(|c| c.status == FALSE)
            .and_then(|c| c.reason.clone());
        let status = &mut self.vmi.status;
        set_condition(status, conditions::SYNCHRONIZED, FALSE, &trouble.reason, &trouble.message, now);
        // An image that cannot be pulled is told in turns by two reasons: one event is enough for both.
        let images = [reason::ERR_IMAGE_PULL, reason::IMAGE_PULL_BACK_OFF];
        let same = |a: &str, b: &str| a == b || (images.contains(&a) && images.contains(&b));
        if !before.is_some_and(|before| same(&before, &trouble.reason)) {
            self.warn(&trouble.reason, &trouble.message);
        }
    }
}

/// Whether the machine's claims matter for the next decision.
pub fn needs_claims(vmi: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> bool {
    vmi.metadata.deletion_timestamp.is_none() && pods.is_empty() && phase(vmi) == Phase::Pending
}

/// Decides.
pub fn decide(seen: &Observed<'_>, now: Timestamp) -> Decision {
    let mut decision =
        Decision { vmi: seen.vmi.clone(), actions: Vec::new(), notes: Vec::new(), look_again: None };
    let pod = current(seen.vmi, seen.pods);
    if seen.vmi.metadata.deletion_timestamp.is_some() {
        delete(seen, &mut decision, now);
    } else {
        live(seen, pod, &mut decision, now);
        drop_others(seen, pod, &mut decision, now);
    }
    if phase(&decision.vmi) != Phase::default() {
        follow::pod_conditions(seen, pod, &mut decision, now);
        follow::migration(seen, pod, &mut decision, now);
        follow::target_ready(seen, &mut decision);
        hotplug::follow(seen, pod, &mut decision, now);
    }
    if seen.vmi.metadata.deletion_timestamp.is_none() {
        nics::tell(seen.pods, &mut decision);
        data::tell(seen.data, &mut decision, now);
    }
    if let Some(pod) = pod.filter(|pod| !observe::is_done(pod)) {
        follow::machine(pod, &mut decision);
        follow::eviction(pod, &mut decision, now);
        backup_hooks::follow(pod, seen.settings, &mut decision);
        nics::follow(pod, &mut decision, now);
    }
    decision
}

/// The pod that runs the machine: the one that its last migration names, else the one that it was handed over in, else
/// the oldest that lives. The target of a migration runs it only once the machine's status says so.
pub fn current<'a>(vmi: &VirtualMachineInstance, pods: &'a [Arc<Pod>]) -> Option<&'a Pod> {
    if let Some(name) = pod_by_migration(vmi) {
        return pods.iter().find(|pod| observe::name(pod) == name).map(AsRef::as_ref);
    }
    let active = &vmi.status.active_pods;
    let own = || pods.iter().filter(|pod| !observe::is_target(pod));
    let handed_over = own().find(|pod| active.contains_key(observe::uid(pod)));
    let living = || own().find(|pod| !observe::is_terminating(pod));
    handed_over.or_else(living).or_else(|| own().next()).map(AsRef::as_ref)
}

/// Whether the guest is, or may be, at the target of a migration whose end is not written yet: the machine's own pod
/// says nothing on it any more. A source that ended well has moved its guest as like as not; the target's virt-handler
/// will say so, if it has to start anew first.
pub(super) fn is_leaving(vmi: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> bool {
    let Some(state) = vmi.status.migration_state.as_ref().filter(|state| is_under_way(state)) else {
        return false;
    };
    let lives = |pod: &Arc<Pod>| {
        Some(observe::name(pod)) == state.target_pod.as_deref()
            && !observe::is_done(pod)
            && !observe::is_terminating(pod)
            && observe::compute_end(pod).is_none()
    };
    let started = state.start_timestamp.clone().flatten().is_some();
    let left = || current(vmi, pods).is_none_or(observe::succeeded);
    is_at_target(state) || (started && pods.iter().any(lives) && left())
}

fn delete(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) {
    for pod in seen.pods.iter().filter(|p| !observe::is_terminating(p)) {
        decision.actions.push(delete_action(pod));
    }
    data::delete(seen.consumers, decision);
    if seen.pods.is_empty() && seen.consumers.is_empty() {
        let ended = is_final(&phase(&decision.vmi));
        if !ended {
            set_phase(&mut decision.vmi.status, Phase::Failed, now);
        }
        let left = ends::left(seen.vmi, if ended { seen.end_seen } else { Duration::ZERO });
        if !left.is_zero() {
            decision.look_again = Some(left);
            return;
        }
        if let Some(finalizers) = &mut decision.vmi.metadata.finalizers {
            finalizers.retain(|f| f != VMI_FINALIZER);
        }
    }
}

fn delete_action(pod: &Pod) -> Action {
    Action::Delete { name: observe::name(pod).to_owned(), uid: observe::uid(pod).to_owned() }
}

fn live(seen: &Observed<'_>, pod: Option<&Pod>, decision: &mut Decision, now: Timestamp) {
    match (phase(seen.vmi), pod) {
        (Phase::Succeeded | Phase::Failed, _) => data::delete(seen.consumers, decision),
        (Phase::Pending, None) => create(seen, decision, now),
        // A pod that was deleted because of where it could run; it is made anew.
        (Phase::Pending, Some(pod)) if observe::is_terminating(pod) => {}
        (Phase::Pending | Phase::Scheduling, Some(pod)) if is_replaced(seen.vmi, pod) => {
            replace(pod, decision, now);
        }
        (Phase::Pending, Some(pod)) => {
            set_phase(&mut decision.vmi.status, Phase::Scheduling, now);
            scheduling(pod, decision, now);
        }
        (Phase::Scheduling, Some(pod)) => scheduling(pod, decision, now),
        (Phase::Other(text), _) if text.is_empty() => begin(decision, now),
        (_, Some(pod)) => handed_over(seen, pod, decision, now),
        (_, None) if is_leaving(seen.vmi, seen.pods) => decision.look_again = Some(MOVE_RETRY),
        (_, None) => {
            let message = "the launcher pod is gone: it was deleted, or its node was removed".to_owned();
            decision.fail(&Trouble { reason: POD_DELETED.into(), message }, now);
        }
    }
}

fn begin(decision: &mut Decision, now: Timestamp) {
    let finalizers = decision.vmi.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == VMI_FINALIZER) {
        finalizers.push(VMI_FINALIZER.to_owned());
    }
    let status = &mut decision.vmi.status;
    status.runtime_user = u64::try_from(pod_names::UID).ok();
    set_phase(status, Phase::Pending, now);
}

/// Whether a pod that no node takes is to be made anew: the machine may run elsewhere by now.
fn is_replaced(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    !observe::is_done(pod) && !observe::is_terminating(pod) && template::is_misplaced(vmi, pod)
}

/// Deletes a pod that has no node. The next pod has the same name, and is made once the deleted pod is gone.
fn replace(pod: &Pod, decision: &mut Decision, now: Timestamp) {
    if phase(&decision.vmi) != Phase::Pending {
        set_phase(&mut decision.vmi.status, Phase::Pending, now);
        let message = format!(
            "launcher pod {} is made anew: where the machine may run was changed",
            observe::name(pod)
        );
        decision.notes.push(Note { warning: false, reason: event::PLACEMENT_CHANGED.to_owned(), message });
    }
    decision.actions.push(delete_action(pod));
}

/// A pod is there, and virt-handler has not got the machine yet.
fn scheduling(pod: &Pod, decision: &mut Decision, now: Timestamp) {
    if observe::is_done(pod) || observe::is_terminating(pod) || observe::compute_end(pod).is_some() {
        decision.fail(&observe::end(pod), now);
        return;
    }
    let node = observe::node(pod).filter(|_| observe::compute_runs(pod));
    if let Some(node) = node {
        // Multus says what it did before any container starts.
        let attached = template::attached(&decision.vmi, pod);
        let missing = template::asked(&decision.vmi)
            .map(|network| network.name.clone())
            .find(|name| !attached.iter().any(|interface| interface.name.as_ref() == Some(name)));
        if let Some(name) = missing {
            let message = format!(
                "launcher pod {} is not attached to the network {name}: its annotation {NETWORK_STATUS} does not have it; \
                 is Multus on node {node}?",
                observe::name(pod)
            );
            decision.unsynchronized(&Trouble { reason: NETWORK_MISSING.into(), message }, now);
            return;
        }
        hand_over(pod, node, &mut decision.vmi, now);
        return;
    }
    if !held_up(pod, decision, now) {
        match observe::begins(pod, now) {
            Some(Ok(trouble)) => decision.unsynchronized(&trouble, now),
            Some(Err(left)) => {
                forget_trouble(&mut decision.vmi);
                decision.look_again = Some(left);
            }
            None => forget_trouble(&mut decision.vmi),
        }
    }
}

/// Says which container of the pod does not start; whether there is one.
fn held_up(pod: &Pod, decision: &mut Decision, now: Timestamp) -> bool {
    let Some(trouble) = observe::waiting(pod, now) else { return false };
    decision.unsynchronized(&trouble, now);
    // A container that goes on running changes nothing that would be told.
    decision.look_again = Some(observe::RECOVERED_AFTER.unsigned_abs());
    true
}

/// Removes what this controller said about a pod that does not start. What virt-handler says stays.
pub(super) fn forget_trouble(vmi: &mut VirtualMachineInstance) {
    let ours = |r: &str| {
        observe::is_waiting_reason(r)
            || [reason::FAILED_CREATE, NETWORK_MISSING].contains(&r)
            || OF_CLAIMS.contains(&r)
            || OF_BACKEND.contains(&r)
    };
    let told = condition(&vmi.status, conditions::SYNCHRONIZED).and_then(|c| c.reason.as_deref());
    if told.is_some_and(ours) {
        remove_condition(&mut vmi.status, conditions::SYNCHRONIZED);
    }
}

/// Launcher and node are there: virt-handler takes over.
fn hand_over(pod: &Pod, node: &str, vmi: &mut VirtualMachineInstance, now: Timestamp) {
    forget_trouble(vmi);
    let interfaces = template::attached(vmi, pod);
    let labels = vmi.metadata.labels.get_or_insert_default();
    labels.insert(label::NODE_NAME.into(), node.to_owned());
    let status = &mut vmi.status;
    status.node_name = Some(node.to_owned());
    status.active_pods.insert(observe::uid(pod).to_owned(), node.to_owned());
    status.qos_class = pod.status.as_ref().and_then(|s| s.qos_class.clone());
    status.launcher_container_image_version = follow::image(pod);
    if let Some(bytes) = follow::memory_overhead(pod) {
        status.memory.get_or_insert_default().memory_overhead = Some(bytes);
    }
    if !interfaces.is_empty() {
        status.interfaces = interfaces;
    }
    set_phase(status, Phase::Scheduled, now);
}

/// The machine is virt-handler's. Only a pod that ended long ago is judged here; and what virt-handler does not see, a
/// sidecar without which the machine cannot start and which does not start itself, is told until the guest runs.
fn handed_over(seen: &Observed<'_>, pod: &Pod, decision: &mut Decision, now: Timestamp) {
    // The pod as a whole ends after its sidecars; the guest ended with virt-launcher.
    if !observe::is_done(pod) && observe::compute_end(pod).is_none() {
        if phase(seen.vmi) == Phase::Scheduled && !held_up(pod, decision, now) {
            forget_trouble(&mut decision.vmi);
        }
        return;
    }
    if is_leaving(seen.vmi, seen.pods) {
        decision.look_again = Some(MOVE_RETRY);
        return;
    }
    let since = observe::ended_at(pod)
        .map_or(Duration::ZERO, |ended| Duration::try_from(now.duration_since(ended)).unwrap_or_default());
    let left = HANDOVER_GRACE.saturating_sub(since);
    if !left.is_zero() {
        decision.look_again = Some(left);
    } else if observe::guest_shut_down(pod) {
        set_phase(&mut decision.vmi.status, Phase::Succeeded, now);
        if observe::shut_down_with_pod(pod) {
            decision.vmi.status.reason = Some(reason::SHUT_DOWN_WITH_POD.to_owned());
        }
    } else {
        decision.fail(&observe::end(pod), now);
    }
}

/// A machine has one pod. What is there besides is deleted, unless the machine itself is over: then pods are
/// kept for users who want to read their logs. Targets of migrations are the migrations' to delete, but for the one that
/// the machine has left by now.
fn drop_others(seen: &Observed<'_>, pod: Option<&Pod>, decision: &mut Decision, now: Timestamp) {
    if is_final(&phase(seen.vmi)) {
        return;
    }
    // Which pod is whose is not certain then.
    if pod.is_none() && pod_by_migration(seen.vmi).is_some() {
        return;
    }
    let kept = pod.map(observe::uid);
    let state = seen.vmi.status.migration_state.as_ref();
    let left = state.and_then(|state| state.source_pod.as_deref());
    let others = seen.pods.iter().filter(|p| {
        Some(observe::uid(p)) != kept
            && !observe::is_terminating(p)
            && (!observe::is_target(p) || Some(observe::name(p)) == left)
    });
    for other in others {
        let ended = state.filter(|_| Some(observe::name(other)) == left).and_then(ended_at);
        match observe::leaving(other, ended, now) {
            Some(wait) => {
                decision.look_again = Some(decision.look_again.map_or(wait, |other| other.min(wait)));
            }
            None => decision.actions.push(delete_action(other)),
        }
    }
}

/// The machine after the API server refused its pod.
pub fn refused(vmi: &VirtualMachineInstance, why: &str, now: Timestamp) -> Decision {
    let mut decision =
        Decision { vmi: vmi.clone(), actions: Vec::new(), notes: Vec::new(), look_again: None };
    let message = format!("{REFUSED}: {why}");
    let told = condition(&vmi.status, conditions::SYNCHRONIZED)
        .filter(|told| told.status == FALSE && told.reason.as_deref() == Some(event::FAILED_CREATE))
        .and_then(|told| told.message.as_deref())
        .filter(|told| told.starts_with(REFUSED));
    // Texts of one refusal may differ each time (a quota's, with what is used now): each would wake the next attempt
    // before its time. The first one stays. What is said of networks differs only when something has changed.
    let of_networks = |text: &str| text.contains(NETWORKS_KIND);
    if told.is_some_and(|told| told == message || !(of_networks(told) || of_networks(&message))) {
        return decision;
    }
    let trouble = Trouble { reason: event::FAILED_CREATE.into(), message };
    decision.unsynchronized(&trouble, now);
    if told.is_some() {
        // The reason is as before, but not what it is about.
        decision.warn(&trouble.reason, &trouble.message);
    }
    decision
}
