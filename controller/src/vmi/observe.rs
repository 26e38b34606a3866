//! What a launcher pod's status tells.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, Volume};
use podvirt_api::names::condition::reason::{CONTAINER_CREATING, CRASH_LOOP_BACK_OFF, OF_CONTAINERS};
use podvirt_api::names::pod::{COMPUTE, ENDED_WITH_POD, eviction};
use podvirt_api::names::{annotation, condition as conditions, label};

/// How long a pod may be on its node before its containers are begun, until that is told: an image is pulled meanwhile,
/// or a volume waits for what it is made of.
pub(crate) const BEGIN_TOLD: SignedDuration = SignedDuration::from_secs(15);

/// A container that ended badly before and has run for this long does not end at its start again.
pub(crate) const RECOVERED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// How long a launcher that a migration leaves without a machine may take to end by itself.
const LEAVING: SignedDuration = SignedDuration::from_secs(15);

/// A container that does not start, or a pod that ended: a word and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Whether `reason` is one that [`waiting`] or [`begins`] gives.
pub(crate) fn is_waiting_reason(reason: &str) -> bool {
    OF_CONTAINERS.contains(&reason)
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod only uses the machine's claims, before the launcher pod does.
pub(crate) fn is_consumer(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotation::EPHEMERAL_PROVISIONING))
}

/// Whether the pod holds claims for a running machine, beside its launcher pod.
pub(crate) fn is_attachment(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(label::APP)).is_some_and(|app| app == label::APP_HOTPLUG)
}

/// Whether this pod controls the other one.
pub(crate) fn controls(pod: &Pod, other: &Pod) -> bool {
    let owners = other.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid(pod))
}

/// Whether all containers of the pod are ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == conditions::TRUE)
}

/// Whether the pod was made as the target of a migration.
pub(crate) fn is_target(pod: &Pod) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::MIGRATION_JOB))
}

pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether the pod ended as a whole.
pub(crate) fn is_done(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

/// Whether virt-launcher, or the pod where that is not known, ended well.
pub(crate) fn succeeded(pod: &Pod) -> bool {
    compute_end(pod).map_or(phase(pod) == Some("Succeeded"), |end| end.exit_code == 0)
}

/// Whether the guest shut down, as far as the pod tells: also where it did because its pod was told to end, but not for an
/// eviction by the kubelet.
pub(crate) fn guest_shut_down(pod: &Pod) -> bool {
    succeeded(pod) || (shut_down_with_pod(pod) && eviction(pod).is_none())
}

/// Whether the guest shut down because its pod was told to end.
pub(crate) fn shut_down_with_pod(pod: &Pod) -> bool {
    compute_end(pod).is_some_and(|end| end.exit_code == i32::from(ENDED_WITH_POD))
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// The pod's condition of a type.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == kind)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_ref());
    let main = status.and_then(|s| s.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

/// Whether virt-launcher's container runs.
pub(crate) fn compute_runs(pod: &Pod) -> bool {
    let runs = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some());
    containers(pod).any(|c| c.name == COMPUTE && runs(c))
}

/// How virt-launcher's container ended.
pub(crate) fn compute_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    containers(pod).find(|c| c.name == COMPUTE)?.state.as_ref()?.terminated.as_ref()
}

/// How long to wait yet before deleting a pod whose launcher is about to end by itself, as the migration that ended at
/// `since` has left it without a machine.
///
/// A container that is stopped in the moment in which it ends can make the runtime answer with an error, and then the
/// kubelet has the pod's sidecars wait for its whole grace period.
pub(crate) fn leaving(pod: &Pod, since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let passed = now.duration_since(since?);
    // Another node's clock wrote the time.
    let waits = compute_runs(pod) && !is_done(pod) && passed.abs() < LEAVING;
    waits.then(|| (LEAVING - passed.max(SignedDuration::ZERO)).unsigned_abs())
}

/// When virt-launcher ended; a pod that ended without it (it was refused, or an init container failed) did so
/// when its last condition changed.
pub(crate) fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let changes = conditions.into_iter().flatten().filter_map(|c| Some(c.last_transition_time.as_ref()?.0));
    let ended = compute_end(pod).and_then(|end| Some(end.finished_at.as_ref()?.0));
    ended.or_else(|| changes.max())
}

/// A container that does not start, or that starts only to end again.
pub(crate) fn waiting(pod: &Pod, now: Timestamp) -> Option<Trouble> {
    containers(pod).find_map(|container| {
        let (reason, message) = held_up(container, now)?;
        Some(Trouble {
            reason,
            message: format!("container {} (image {}): {message}", container.name, container.image),
        })
    })
}

/// What of a pod is not begun on its node: once that lasts, as trouble; before, the time after which to look again.
pub(crate) fn begins(pod: &Pod, now: Timestamp) -> Option<Result<Trouble, Duration>> {
    let since = condition(pod, conditions::POD_SCHEDULED).filter(|c| c.status == conditions::TRUE)?;
    let since = since.last_transition_time.as_ref()?.0;
    let status = |name: &str| containers(pod).find(|c| c.name == name).and_then(|c| c.state.as_ref());
    let spec = pod.spec.as_ref()?;
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let begun = |name: &str| status(name).is_some_and(|s| s.running.is_some() || s.terminated.is_some());
    let next = all.into_iter().find(|c| !begun(&c.name))?;
    let passed = now.duration_since(since).max(SignedDuration::ZERO);
    if passed < BEGIN_TOLD {
        return Some(Err((BEGIN_TOLD - passed).unsigned_abs()));
    }
    let image = next.image.as_deref().unwrap_or_default();
    let volumes: Vec<String> = spec.volumes.iter().flatten().flat_map(mount_sources).collect();
    let volumes = if volumes.is_empty() {
        String::new()
    } else {
        format!(", or waits for what its volumes are made of: {}", volumes.join(", "))
    };
    Some(Ok(Trouble {
        reason: CONTAINER_CREATING.to_owned(),
        message: format!(
            "{} s after launcher pod {} came to node {} its container {} has not begun: the kubelet pulls image {image}{volumes}; \
             the events of the pod tell more",
            BEGIN_TOLD.as_secs(),
            name(pod),
            node(pod).unwrap_or_default(),
            next.name,
        ),
    }))
}

/// Objects without which a volume cannot be mounted.
fn mount_sources(volume: &Volume) -> Vec<String> {
    let claim =
        volume.persistent_volume_claim.iter().map(|c| format!("PersistentVolumeClaim {}", c.claim_name));
    let secret = volume.secret.iter().map(|s| (s.secret_name.as_deref().unwrap_or_default(), s.optional));
    let map = volume.config_map.iter().map(|map| (map.name.as_str(), map.optional));
    let projected = || volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    let secrets = projected().filter_map(|source| source.secret.as_ref());
    let secrets = secret.chain(secrets.map(|secret| (secret.name.as_str(), secret.optional)));
    let maps = projected().filter_map(|source| source.config_map.as_ref());
    let maps = map.chain(maps.map(|map| (map.name.as_str(), map.optional)));
    let needed = |kind: &'static str, (name, optional): (&str, Option<bool>)| {
        (optional != Some(true)).then(|| format!("{kind} {name}"))
    };
    let secrets = secrets.filter_map(|secret| needed("Secret", secret));
    claim.chain(secrets).chain(maps.filter_map(|map| needed("ConfigMap", map))).collect()
}

fn held_up(container: &ContainerStatus, now: Timestamp) -> Option<(String, String)> {
    let state = container.state.as_ref()?;
    let last = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let crash = |end: &ContainerStateTerminated| (CRASH_LOOP_BACK_OFF.to_owned(), ended_with(end));
    if let Some(waiting) = &state.waiting {
        // That it is being created is nothing to tell at first: see `begins`.
        let reason = waiting.reason.as_deref();
        let reason = reason.filter(|r| is_waiting_reason(r) && *r != CONTAINER_CREATING)?;
        return Some(match last {
            Some(last) if reason == CRASH_LOOP_BACK_OFF => crash(last),
            _ => (reason.to_owned(), waiting.message.clone().unwrap_or_else(|| "no details".into())),
        });
    }
    if let Some(end) = state.terminated.as_ref() {
        return (end.exit_code != 0).then(|| crash(end));
    }
    // It may have been started again just to end again: that is no recovery yet.
    let started = state.running.as_ref()?.started_at.as_ref()?.0;
    let fresh = now.duration_since(started) < RECOVERED_AFTER;
    last.filter(|end| fresh && end.exit_code != 0).map(crash)
}

/// How a container ended, with what it said last in one line: kubectl shows no more of an event.
fn ended_with(end: &ContainerStateTerminated) -> String {
    let mut text = format!("ended with code {}", end.exit_code);
    let said = end.message.as_deref().unwrap_or_default();
    for (n, line) in said.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
        text.push_str(if n == 0 { ": " } else { "; " });
        text.push_str(line);
    }
    text
}

/// Why a pod ended that should not have.
pub(crate) fn end(pod: &Pod) -> Trouble {
    if let Some(why) = eviction(pod) {
        return Trouble {
            reason: "Evicted".into(),
            message: format!("the kubelet ended launcher pod {}: {why}", name(pod)),
        };
    }
    let status = pod.status.as_ref();
    if let Some(reason) = status.and_then(|s| s.reason.as_ref()).filter(|r| !r.is_empty()) {
        let message = status.and_then(|s| s.message.as_deref()).unwrap_or("no details");
        return Trouble {
            reason: reason.clone(),
            message: format!("launcher pod {} failed: {message}", name(pod)),
        };
    }
    let failed = containers(pod).find_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref()?;
        (end.exit_code != 0).then_some((container, end))
    });
    if let Some((container, end)) = failed {
        let message = format!("launcher pod {}: container {} {}", name(pod), container.name, ended_with(end));
        return Trouble { reason: "PodFailed".into(), message };
    }
    if is_terminating(pod) {
        return Trouble {
            reason: "PodTerminating".into(),
            message: format!("launcher pod {} was deleted before the guest was started", name(pod)),
        };
    }
    Trouble {
        reason: "PodFailed".into(),
        message: format!("launcher pod {} ended before the guest was started", name(pod)),
    }
}
