//! What the machine's status tells of its pod, and what the pod shows of its machine.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podvirt_api::migration::{is_under_way, pod_by_migration};
use podvirt_api::names::condition::{self as conditions, FALSE, TRUE, reason};
use podvirt_api::names::{annotation, label, pod as pod_names};
use podvirt_api::quantity::binary_text;
use podvirt_api::v1::VirtualMachineInstancePhase as Phase;

use super::claims::volume_status;
use super::decide::{Action, Decision, Observed, is_leaving};
use super::migratable;
use super::observe;
use super::status::{condition, is_final, is_true, phase, remove_condition, set_condition};

/// Reason of events: no node can run the machine.
const FAILED_SCHEDULING: &str = "FailedScheduling";

/// Conditions of the machine that tell of its pod.
pub(super) fn pod_conditions(
    seen: &Observed<'_>,
    pod: Option<&Pod>,
    decision: &mut Decision,
    now: Timestamp,
) {
    let over = is_final(&phase(&decision.vmi));
    let leaving = is_leaving(seen.vmi, seen.pods);
    let running = phase(&decision.vmi) == Phase::Running;
    let (value, reason, message) = match pod {
        None => (FALSE, reason::POD_NOT_EXISTS, "there is no launcher pod".to_owned()),
        Some(pod) if observe::is_terminating(pod) => {
            (FALSE, reason::POD_TERMINATING, "the launcher pod is ending".to_owned())
        }
        Some(_) if !running => (FALSE, reason::GUEST_NOT_RUNNING, "the guest does not run".to_owned()),
        Some(pod) => match observe::condition(pod, "Ready") {
            Some(ready) if ready.status == TRUE => (TRUE, "", String::new()),
            Some(ready) => {
                let reason = ready.reason.as_deref().unwrap_or(reason::GUEST_NOT_RUNNING);
                (FALSE, reason, ready.message.clone().unwrap_or_default())
            }
            None => {
                let message = "the launcher pod has no condition Ready yet".to_owned();
                (FALSE, reason::POD_CONDITION_MISSING, message)
            }
        },
    };
    set_condition(&mut decision.vmi.status, conditions::READY, value, reason, &message, now);
    let unscheduled = pod
        .filter(|_| !over)
        .and_then(|pod| observe::condition(pod, conditions::POD_SCHEDULED).filter(|c| c.status == FALSE));
    scheduler(unscheduled, decision, now);
    // An entry stays until its pod is gone: it tells virt-handler where to clean up.
    if pod.is_none() && !leaving && !decision.vmi.status.active_pods.is_empty() {
        decision.vmi.status.active_pods.clear();
    }
}

/// What the status says on migrations: its volumes, whether the machine can be moved with them, and, once it was, its new
/// pod.
pub(super) fn migration(seen: &Observed<'_>, pod: Option<&Pod>, decision: &mut Decision, now: Timestamp) {
    if is_final(&phase(&decision.vmi)) {
        return;
    }
    decision.vmi.status.volume_status = volume_status(&decision.vmi, seen.claims_told, seen.backend);
    if seen.claims_told.is_some() {
        let judged = migratable::judge(&decision.vmi);
        let status = &mut decision.vmi.status;
        match judged {
            Ok(Some(method)) => {
                set_condition(status, conditions::LIVE_MIGRATABLE, TRUE, "", "", now);
                status.migration_method = Some(method);
            }
            Ok(None) => {}
            Err((reason, message)) => {
                set_condition(status, conditions::LIVE_MIGRATABLE, FALSE, reason, &message, now);
                status.migration_method = None;
            }
        }
    }
    outdated(seen, decision);
    let status = &mut decision.vmi.status;
    let Some(pod) = pod.filter(|_| pod_by_migration(seen.vmi).is_some()) else { return };
    if status.migration_state.as_ref().is_some_and(is_under_way) {
        return;
    }
    // The migration is over: pods that are gone are no place to clean up any more.
    let there = |uid: &String| seen.pods.iter().any(|pod| observe::uid(pod) == uid);
    status.active_pods.retain(|uid, _| there(uid));
    if let Some(node) = observe::node(pod) {
        status.active_pods.insert(observe::uid(pod).to_owned(), node.to_owned());
    }
    status.launcher_container_image_version = image(pod);
    outdated(seen, decision);
}

/// The annotation of a migration's target pod by which networks turn the traffic to it, once the machine is ready there.
pub(super) fn target_ready(seen: &Observed<'_>, decision: &mut Decision) {
    let Some(state) = &seen.vmi.status.migration_state else { return };
    let Some(ready) = state.target_node_domain_ready_timestamp.clone().flatten() else { return };
    let target = seen.pods.iter().find(|pod| Some(observe::name(pod)) == state.target_pod.as_deref());
    let Some(pod) = target.filter(|pod| !observe::is_done(pod)) else { return };
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_none_or(|all| !all.contains_key(annotation::MIGRATION_TARGET_READY)) {
        // Upstream's form, which is Go's.
        let text = ready.0.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string();
        decision.actions.push(Action::annotate(pod, [(annotation::MIGRATION_TARGET_READY, Some(text))]));
    }
}

/// The label of a machine whose launcher is of another image than new machines' are.
fn outdated(seen: &Observed<'_>, decision: &mut Decision) {
    let vmi = &mut decision.vmi;
    let is_outdated = vmi
        .status
        .launcher_container_image_version
        .as_deref()
        .is_some_and(|image| image != seen.launcher_image);
    if is_outdated {
        vmi.metadata
            .labels
            .get_or_insert_default()
            .insert(label::OUTDATED_LAUNCHER_IMAGE.into(), String::new());
    } else if let Some(labels) = &mut vmi.metadata.labels {
        labels.remove(label::OUTDATED_LAUNCHER_IMAGE);
    }
}

/// Image of virt-launcher.
pub(super) fn image(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.containers.iter().find(|c| c.name == pod_names::COMPUTE)?.image.clone()
}

/// Memory that the pod asks for beside the guest's.
pub(super) fn memory_overhead(pod: &Pod) -> Option<Quantity> {
    let bytes = pod.metadata.annotations.as_ref()?.get(annotation::MEMORY_OVERHEAD_BYTES)?;
    bytes.parse::<u64>().ok().map(|bytes| Quantity(binary_text(bytes)))
}

fn scheduler(
    unscheduled: Option<&k8s_openapi::api::core::v1::PodCondition>,
    decision: &mut Decision,
    now: Timestamp,
) {
    let status = &mut decision.vmi.status;
    let Some(pod) = unscheduled else {
        let told = condition(status, conditions::POD_SCHEDULED).and_then(|c| c.reason.clone());
        if told.is_some() && status.reason == told {
            status.reason = None;
        }
        remove_condition(status, conditions::POD_SCHEDULED);
        return;
    };
    let known = condition(status, conditions::POD_SCHEDULED).is_some();
    let reason = pod.reason.as_deref().unwrap_or(reason::UNSCHEDULABLE);
    let message = pod.message.as_deref().unwrap_or("no node was found");
    set_condition(status, conditions::POD_SCHEDULED, FALSE, reason, message, now);
    status.reason = Some(reason.to_owned());
    if !known {
        let message = format!("no node can run the machine: {message}");
        decision.warn(FAILED_SCHEDULING, message);
    }
}

/// What the pod shows of its machine: the readiness gate, the node's label.
///
/// Until the guest runs the gate was never opened, and the pod receives no traffic.
pub(super) fn machine(pod: &Pod, decision: &mut Decision) {
    let (name, uid) = (observe::name(pod).to_owned(), observe::uid(pod).to_owned());
    let paused = is_true(&decision.vmi.status, conditions::PAUSED);
    let gate = observe::condition(pod, conditions::VIRTUAL_MACHINE_UNPAUSED).map(|c| c.status == TRUE);
    let running = phase(&decision.vmi) == Phase::Running;
    let (open, why) = if paused { (false, reason::PAUSED) } else { (true, reason::NOT_PAUSED) };
    if running && gate != Some(open) {
        decision.actions.push(Action::Gate { name: name.clone(), uid: uid.clone(), open, reason: why });
    }
    let labels = decision.vmi.metadata.labels.as_ref();
    if let Some(node) = labels.and_then(|l| l.get(label::NODE_NAME)) {
        let there = pod.metadata.labels.as_ref().and_then(|l| l.get(label::NODE_NAME));
        if there != Some(node) {
            decision.actions.push(Action::Label { name, uid, key: label::NODE_NAME, value: node.clone() });
        }
    }
}

/// A machine that is to leave its node says so, and so does its pod: the descheduler counts it as leaving then.
pub(super) fn eviction(pod: &Pod, decision: &mut Decision, now: Timestamp) {
    const WORD: &str = conditions::EVICTION_REQUESTED;
    let status = &mut decision.vmi.status;
    let is_asked = status.evacuation_node_name.as_ref().is_some_and(|node| !node.is_empty());
    if is_asked {
        set_condition(status, WORD, TRUE, WORD, "an eviction of the machine's pod was asked for", now);
    } else {
        remove_condition(status, WORD);
    }
    let told = pod.metadata.annotations.as_ref();
    if is_asked != told.is_some_and(|told| told.contains_key(annotation::EVICTION_IN_PROGRESS)) {
        let value = is_asked.then(|| "true".to_owned());
        decision.actions.push(Action::annotate(pod, [(annotation::EVICTION_IN_PROGRESS, value)]));
    }
}
