//! What to do about a migration, from what is seen of it, of its machine and of its target pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use podvirt_api::migration::{is_final, is_under_way, migratable};
use podvirt_api::names::{MIGRATION_FINALIZER, annotation, condition, event, label, label_value};
use podvirt_api::resources::AutoLimits;
use podvirt_api::v1::{
    MigrationConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationConditionType as ConditionType,
    VirtualMachineInstanceMigrationPhase as Phase, VirtualMachineInstanceMigrationState as State,
    VirtualMachineInstancePhase as MachinePhase,
};

use super::admit::Urgency;
use super::kept::{self, Claims};
use super::others;
use super::status::{phase, remove, set_phase, set_true};
use super::{blocked, claims, handed_over, images};
use crate::settings::Settings;
use crate::template;
use crate::vmi::{Note, observe, pods};

/// How long no node may fit the target pod where the migration does not say it (upstream's limit).
pub const UNSCHEDULABLE_LIMIT: Duration = Duration::from_secs(300);
/// How long the target pod may take to run, for whatever reason, where the migration does not say it (upstream's limit).
pub const PENDING_LIMIT: Duration = Duration::from_secs(900);

/// When to look again without a change, in case one was missed.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Condition: no node fits the target pod. podvirt's own.
pub(super) const UNSCHEDULABLE: &str = "targetPodUnschedulable";
/// Condition: the target's pod, or that of its plugged volumes, does not start. podvirt's own.
pub(super) const NOT_STARTING: &str = "targetPodNotStarting";
/// Condition: post-copy was allowed and is not done. podvirt's own.
pub(super) const RESTRICTED: &str = "migrationRestricted";

/// Whether a migration may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now,
    /// Others go first, or the limits are reached.
    Later,
}

/// How the machine is migrated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Way {
    /// The cluster's configuration and the policy's over it.
    pub configuration: MigrationConfiguration,
    /// Name of the policy.
    pub policy: Option<String>,
}

/// What is seen.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The migration.
    pub migration: &'a Migration,
    /// Its machine; `None` when there is none of the name.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// The pod that the machine runs in.
    pub source: Option<&'a Pod>,
    /// Its target pod.
    pub target: Option<&'a Pod>,
    /// The pod that holds the claims of plugged volumes at the target.
    pub attachment: Option<&'a Pod>,
    /// The claims with the state of the machine's firmware and TPM.
    pub kept: Claims,
    /// All migrations of the machine, `migration` among them.
    pub siblings: &'a [Arc<Migration>],
    /// Whether it may start; asked while it is pending.
    pub turn: Turn,
    /// How the machine is migrated; asked for while the phase is Scheduled.
    pub way: Option<&'a Way>,
    /// The cluster's configuration.
    pub settings: &'a Settings,
    /// Image of the launcher.
    pub launcher_image: &'a str,
    /// Limits that the namespace wants; asked for only when a pod may be made.
    pub limits: AutoLimits,
    /// What the target's node must have for the host's own model; asked for only when a pod may be made.
    pub host_model: BTreeMap<String, String>,
}

/// What to ask of the API server, besides writing machine and migration.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the target pod.
    Create(Box<Pod>),
    /// Make the target's claim for the state of the machine's firmware and TPM.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Make that claim the machine's.
    KeepClaim {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Name of the machine.
        machine: String,
    },
    /// Delete such a claim.
    DeleteClaim {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Delete the target pod.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Delete an ended migration.
    DeleteMigration {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The migration as it should be written.
    pub migration: Migration,
    /// The machine as it should be written, before the migration is.
    pub vmi: Option<VirtualMachineInstance>,
    /// What to ask for, in this order, after both were written.
    pub actions: Vec<Action>,
    /// Events of the migration; what is an end is told on the machine, too.
    pub notes: Vec<Note>,
    /// When to look again although nothing changed.
    pub look_again: Option<Duration>,
}

impl Decision {
    pub(super) fn note(&mut self, warning: bool, reason: &str, message: impl Into<String>) {
        self.notes.push(Note { warning, reason: reason.to_owned(), message: message.into() });
    }

    pub(super) fn fail(&mut self, why: &str, now: Timestamp) {
        set_phase(&mut self.migration.status, Phase::Failed, now);
        self.note(true, event::FAILED_MIGRATION, format!("the machine was not migrated: {why}"));
    }

    pub(super) fn aborted(&mut self, now: Timestamp) {
        set_phase(&mut self.migration.status, Phase::Failed, now);
        self.note(false, event::SUCCESSFUL_ABORT_MIGRATION, "the migration was ended because it was deleted");
    }

    pub(super) fn look_in(&mut self, delay: Duration) {
        self.look_again = Some(self.look_again.map_or(delay, |known| known.min(delay)));
    }
}

/// Decides.
pub fn decide(seen: &Observed<'_>, now: Timestamp) -> Decision {
    let mut decision = Decision {
        migration: seen.migration.clone(),
        vmi: None,
        actions: Vec::new(),
        notes: Vec::new(),
        look_again: None,
    };
    if is_final(seen.migration) {
        others::finish(seen, &mut decision, now);
        return decision;
    }
    decision.look_in(LOOK_AGAIN);
    let Some(vmi) = seen.vmi else {
        decision.fail("there is no such machine", now);
        return decision;
    };
    let name = vmi.name_any();
    let over = matches!(vmi.status.phase, Some(MachinePhase::Succeeded | MachinePhase::Failed));
    if vmi.metadata.deletion_timestamp.is_some() || over {
        decision.fail(&format!("machine {name} has ended"), now);
        return decision;
    }
    match phase(seen.migration) {
        Phase::Other(text) if text.is_empty() => begin(seen, &mut decision, now),
        Phase::Pending => pending(seen, vmi, &mut decision, now),
        Phase::Scheduling => scheduling(seen, &mut decision, now),
        Phase::Scheduled => hand_over(seen, vmi, &mut decision, now),
        Phase::PreparingTarget | Phase::TargetReady | Phase::Running => {
            handed_over::follow(seen, vmi, &mut decision, now);
        }
        other => decision.fail(&format!("phase {other} is of a migration between clusters"), now),
    }
    decision
}

/// Whether the target pod must be asked of the API server before it is taken for gone.
pub fn believes_in_target(migration: &Migration) -> bool {
    let finalizers = migration.metadata.finalizers.as_deref().unwrap_or_default();
    match phase(migration) {
        Phase::Pending => migration.metadata.deletion_timestamp.is_some(),
        Phase::Other(text) if text.is_empty() => false,
        Phase::Succeeded | Phase::Failed => finalizers.iter().any(|f| f == MIGRATION_FINALIZER),
        _ => true,
    }
}

fn begin(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) {
    let meta = &mut decision.migration.metadata;
    let finalizers = meta.finalizers.get_or_insert_default();
    // What is being deleted takes no finalizer.
    if meta.deletion_timestamp.is_none() && !finalizers.iter().any(|f| f == MIGRATION_FINALIZER) {
        finalizers.push(MIGRATION_FINALIZER.to_owned());
    }
    let machine = label_value(seen.migration.spec.vmi_name.as_deref().unwrap_or_default());
    meta.labels.get_or_insert_default().insert(label::MIGRATION_VMI.into(), machine);
    set_phase(&mut decision.migration.status, Phase::Pending, now);
}

fn pending(seen: &Observed<'_>, vmi: &VirtualMachineInstance, decision: &mut Decision, now: Timestamp) {
    if seen.migration.metadata.deletion_timestamp.is_some() {
        decision.aborted(now);
        return;
    }
    if seen.target.is_some() {
        let quota = ConditionType::MigrationRejectedByResourceQuota;
        remove(&mut decision.migration.status, &quota);
        set_phase(&mut decision.migration.status, Phase::Scheduling, now);
        return;
    }
    let spec = &seen.migration.spec;
    if spec.send_to.is_some() || spec.receive.is_some() {
        decision.fail("spec.sendTo and spec.receive are not supported by podvirt", now);
        return;
    }
    if let Some(rival) = others::rival(seen) {
        decision.fail(&format!("migration {rival} of the same machine has not ended"), now);
        return;
    }
    let starting = ConditionType::from(event::MACHINE_NOT_RUNNING);
    if vmi.status.phase != Some(MachinePhase::Running) {
        let message = format!("machine {} does not run yet: its migration waits", vmi.name_any());
        if set_true(&mut decision.migration.status, &starting, event::MACHINE_NOT_RUNNING, &message, now) {
            decision.note(false, event::MACHINE_NOT_RUNNING, message);
        }
        return;
    }
    remove(&mut decision.migration.status, &starting);
    if let Err(why) = migratable(vmi) {
        decision.fail(&why, now);
        return;
    }
    if let Some(left) = others::backoff(seen.migration, seen.siblings, now) {
        let kind = ConditionType::from(event::MIGRATION_BACKOFF);
        let message = format!("earlier evacuations failed: the next is tried in {} s", left.as_secs());
        if set_true(&mut decision.migration.status, &kind, event::MIGRATION_BACKOFF, &message, now) {
            decision.note(true, event::MIGRATION_BACKOFF, message);
        }
        decision.look_in(left);
        return;
    }
    remove(&mut decision.migration.status, &ConditionType::from(event::MIGRATION_BACKOFF));
    if is_blocked(vmi, decision, now) {
        return;
    }
    if seen.turn == Turn::Later {
        decision.look_in(Duration::from_secs(Urgency::of(seen.migration).retry_seconds()));
        return;
    }
    let images = seen.settings.images(seen.launcher_image, seen.limits);
    let configuration = &seen.settings.configuration;
    let moved = match kept::prepare(seen, vmi, decision) {
        Ok(moved) => moved,
        Err(why) => return decision.fail(&why, now),
    };
    match template::target_pod(&moved, seen.migration, configuration, &images, &seen.host_model) {
        Ok(mut pod) => match images::pin(&mut pod, seen.source) {
            Ok(()) => decision.actions.push(Action::Create(Box::new(pod))),
            Err(why) => other_image(decision, &why, now),
        },
        Err(error) => decision.fail(&error.to_string(), now),
    }
}

/// Whether something keeps the machine from moving for a while, which is told.
fn is_blocked(vmi: &VirtualMachineInstance, decision: &mut Decision, now: Timestamp) -> bool {
    let Some((kind, message)) = blocked::why(vmi) else {
        blocked::KINDS.iter().for_each(|kind| remove(&mut decision.migration.status, kind));
        return false;
    };
    if set_true(&mut decision.migration.status, &kind, kind.as_str(), &message, now) {
        decision.note(true, event::MIGRATION_BLOCKED, message);
    }
    true
}

/// The machine's disks would be other ones at the target.
fn other_image(decision: &mut Decision, why: &str, now: Timestamp) {
    let kind = ConditionType::from(images::IMAGE_MISMATCH);
    set_true(&mut decision.migration.status, &kind, event::FAILED_MIGRATION, why, now);
    decision.actions.clear();
    decision.fail(why, now);
}

/// Time from one to the other, never negative.
pub(super) fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

/// The target pod is there, and the nodes know nothing of it yet.
fn scheduling(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) {
    if seen.migration.metadata.deletion_timestamp.is_some() {
        decision.aborted(now);
        return;
    }
    let Some(pod) = seen.target else {
        decision.fail("the target pod is gone", now);
        return;
    };
    if let Some(why) = lost(Some(pod)) {
        decision.fail(&why, now);
        return;
    }
    if observe::node(pod).is_some() && observe::compute_runs(pod) {
        for kind in [UNSCHEDULABLE, NOT_STARTING] {
            remove(&mut decision.migration.status, &ConditionType::from(kind));
        }
        set_phase(&mut decision.migration.status, Phase::Scheduled, now);
        return;
    }
    let unscheduled = observe::condition(pod, condition::POD_SCHEDULED).filter(|c| {
        c.status == condition::FALSE && c.reason.as_deref() == Some(condition::reason::UNSCHEDULABLE)
    });
    let limit = |annotation: &str, otherwise: Duration| {
        let told = seen.migration.annotations().get(annotation).and_then(|text| text.parse().ok());
        told.map_or(otherwise, Duration::from_secs)
    };
    let (limit, why) = match unscheduled {
        Some(told) => {
            let told = told.message.as_deref().unwrap_or("no node was found");
            let kind = ConditionType::from(UNSCHEDULABLE);
            let message = format!("no node fits the target pod: {told}");
            if set_true(
                &mut decision.migration.status,
                &kind,
                condition::reason::UNSCHEDULABLE,
                &message,
                now,
            ) {
                decision.note(true, event::MIGRATION_TARGET_UNSCHEDULABLE, &message);
            }
            (limit(annotation::UNSCHEDULABLE_SECONDS, UNSCHEDULABLE_LIMIT), message)
        }
        None => {
            remove(&mut decision.migration.status, &ConditionType::from(UNSCHEDULABLE));
            let why = not_starting(pod, decision, now);
            (
                limit(annotation::PENDING_SECONDS, PENDING_LIMIT),
                why.unwrap_or_else(|| "the target pod does not start".into()),
            )
        }
    };
    let made = pod.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
    let left = limit.saturating_sub(since(made, now));
    if left.is_zero() {
        decision.fail(&format!("{why} (waited {} s)", limit.as_secs()), now);
    } else {
        decision.look_in(left);
    }
}

/// Why a pod at the target does not start, once that lasts, which a condition and an event say.
fn not_starting(pod: &Pod, decision: &mut Decision, now: Timestamp) -> Option<String> {
    let kind = ConditionType::from(NOT_STARTING);
    let trouble = match observe::waiting(pod, now).map(Ok).or_else(|| observe::begins(pod, now)) {
        Some(Ok(trouble)) => trouble,
        begins => {
            if let Some(Err(left)) = begins {
                decision.look_in(left);
            }
            remove(&mut decision.migration.status, &kind);
            return None;
        }
    };
    let status = &mut decision.migration.status;
    if !status.conditions.iter().any(|c| c.r#type == kind && c.reason.as_ref() == Some(&trouble.reason)) {
        remove(status, &kind);
    }
    if set_true(status, &kind, &trouble.reason, &trouble.message, now) {
        decision.note(true, &trouble.reason, &trouble.message);
    }
    Some(trouble.message)
}

/// Why a target pod cannot take the machine any more.
pub(super) fn lost(pod: Option<&Pod>) -> Option<String> {
    let Some(pod) = pod else { return Some("the target pod is gone".into()) };
    if observe::is_done(pod) || observe::compute_end(pod).is_some() {
        return Some(format!("the target pod ended: {}", observe::end(pod).message));
    }
    observe::is_terminating(pod).then(|| "the target pod is being deleted".into())
}

/// The target pod runs: one write of the machine gives it to the nodes.
fn hand_over(seen: &Observed<'_>, vmi: &VirtualMachineInstance, decision: &mut Decision, now: Timestamp) {
    let uid = seen.migration.uid().unwrap_or_default();
    let state = vmi.status.migration_state.as_ref();
    if state.is_some_and(|state| state.migration_uid.as_ref() == Some(&uid)) {
        set_phase(&mut decision.migration.status, Phase::PreparingTarget, now);
        decision.migration.status.migration_state = vmi.status.migration_state.clone();
        let target = state.and_then(|s| s.target_node.as_deref()).unwrap_or_default();
        decision.note(
            false,
            event::SUCCESSFUL_HAND_OVER,
            format!("the target pod was handed to node {target}"),
        );
        return;
    }
    if seen.migration.metadata.deletion_timestamp.is_some() {
        decision.aborted(now);
        return;
    }
    if let Some(why) = lost(seen.target) {
        decision.fail(&why, now);
        return;
    }
    if state.is_some_and(is_under_way) {
        decision.fail("another migration of the machine is under way", now);
        return;
    }
    let target = seen.target.and_then(|pod| Some((pod, observe::node(pod)?)));
    let (Some((pod, node)), Some(source)) = (target, vmi.status.node_name.clone()) else { return };
    if node == source {
        decision.fail(&format!("the target pod is on node {node}, which the machine is on already"), now);
        return;
    }
    if let Some(why) = claims::of_launcher(pod, vmi) {
        decision.fail(&why, now);
        return;
    }
    if let Some(why) = images::mismatch(pod, seen.source) {
        other_image(decision, &why, now);
        return;
    }
    // A backup may have begun while the target pod came: libvirt does one at a time.
    if is_blocked(vmi, decision, now) {
        let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let left = PENDING_LIMIT.saturating_sub(age(made, now));
        match blocked::why(vmi) {
            Some((_, why)) if left.is_zero() => decision.fail(&why, now),
            _ => decision.look_in(left),
        }
        return;
    }
    let attachment = match claims::of_attachment(seen.attachment, vmi) {
        Ok(attachment) => attachment,
        Err(why) => {
            let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let trouble = seen.attachment.and_then(|attachment| not_starting(attachment, decision, now));
            if age(made, now) >= PENDING_LIMIT {
                decision.fail(&trouble.map_or(why.clone(), |trouble| format!("{why}: {trouble}")), now);
            }
            return;
        }
    };
    remove(&mut decision.migration.status, &ConditionType::from(NOT_STARTING));
    let Some(way) = seen.way else { return };
    let mut configuration = way.configuration.clone();
    if configuration.allow_post_copy == Some(true) {
        configuration.allow_post_copy = Some(false);
        let message = "allowPostCopy is not carried out: the guest is copied before it moves";
        let kind = ConditionType::from(RESTRICTED);
        if set_true(&mut decision.migration.status, &kind, event::MIGRATION_RESTRICTED, message, now) {
            decision.note(true, event::MIGRATION_RESTRICTED, message);
        }
    }
    // Post-copy is a disruption by itself; without it none was allowed.
    configuration.allow_workload_disruption =
        configuration.allow_workload_disruption.or(configuration.allow_post_copy).or(Some(false));
    let mut handed = vmi.clone();
    let labels = handed.metadata.labels.get_or_insert_default();
    labels.insert(label::MIGRATION_TARGET_NODE_NAME.into(), node.to_owned());
    handed.status.active_pods.insert(observe::uid(pod).to_owned(), node.to_owned());
    let state = handed.status.migration_state.insert(State {
        migration_uid: Some(uid),
        source_node: Some(source),
        source_pod: Some(pods::name_of(vmi)),
        target_node: Some(node.to_owned()),
        target_pod: Some(observe::name(pod).to_owned()),
        target_attachment_pod_uid: attachment,
        migration_configuration: Some(configuration),
        migration_policy_name: way.policy.clone(),
        ..State::default()
    });
    kept::hand_over(seen.migration, state);
    decision.vmi = Some(handed);
}

/// The migration after the API server refused its pod.
pub fn refused(migration: &Migration, why: &str, forbidden: bool, now: Timestamp) -> Decision {
    let mut decision = Decision {
        migration: migration.clone(),
        vmi: None,
        actions: Vec::new(),
        notes: Vec::new(),
        look_again: None,
    };
    let message = format!("the target pod could not be made: {why}");
    let kind = if forbidden {
        ConditionType::MigrationRejectedByResourceQuota
    } else {
        ConditionType::from(event::FAILED_CREATE)
    };
    if set_true(&mut decision.migration.status, &kind, event::FAILED_CREATE, &message, now) {
        decision.note(true, event::FAILED_CREATE, message);
    }
    decision
}

/// How long ago a time was; no time is now.
pub(super) fn age(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.map_or(Duration::ZERO, |then| since(then, now))
}
