//! Which nodes are silent and which pods may run: pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use podvirt_api::names::annotation;

/// Taint by which a person vouches that a node is switched off (Kubernetes' non-graceful node shutdown).
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A heartbeat that changed within this time is alive whatever it says. Two heartbeats are at most 132 s apart.
pub const STEADY: Duration = Duration::from_secs(150);

/// Why a node cannot speak for its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The node is not in the cluster any more.
    Gone,
    /// virt-handler's heartbeat stopped.
    Heartbeat,
    /// Kubernetes has no word from the node's kubelet.
    Kubelet,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the node is gone from the cluster",
            Self::Heartbeat => "virt-handler's heartbeat stopped",
            Self::Kubelet => "the kubelet does not answer",
        })
    }
}

/// Since when each node's heartbeat has been as it is, by this process's clock.
#[derive(Debug, Default)]
pub struct Heartbeats(BTreeMap<String, (String, Instant)>);

impl Heartbeats {
    /// Looks at a node's heartbeat and returns for how long it has not changed.
    pub fn observe(&mut self, node: &Node, now: Instant) -> Duration {
        let beat = node.annotations().get(annotation::HEARTBEAT).cloned().unwrap_or_default();
        let seen = self.0.entry(node.name_any()).or_insert_with(|| (beat.clone(), now));
        if seen.0 != beat {
            *seen = (beat, now);
        }
        now.saturating_duration_since(seen.1)
    }

    /// Forgets all nodes but these.
    pub fn keep(&mut self, nodes: &BTreeSet<String>) {
        self.0.retain(|name, _| nodes.contains(name));
    }
}

/// Whether a node is silent, and why. `steady`: for how long its heartbeat has not changed, as seen from here.
///
/// A node that never had a heartbeat has no machines of podvirt's, and is not silent for the want of one.
pub fn silence(node: Option<&Node>, steady: Duration, now: Timestamp, limit: Duration) -> Option<Silence> {
    let Some(node) = node else { return Some(Silence::Gone) };
    if let Some(beat) = node.annotations().get(annotation::HEARTBEAT) {
        // What cannot be read is as old as can be.
        let age = beat.parse().map_or(SignedDuration::MAX, |beat| now.duration_since(beat));
        let is_old = age > SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        if steady >= limit || (is_old && steady >= STEADY.min(limit)) {
            return Some(Silence::Heartbeat);
        }
    }
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let lost = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown");
    lost.then_some(Silence::Kubelet)
}

/// Whether an operator vouches that nothing runs on the node.
pub fn is_vouched_for(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether a machine with this launcher pod has ended for certain, without a word left on how. `vouched`: an operator
/// vouches that nothing runs on its node.
pub fn has_ended(pod: Option<&Pod>, vouched: bool) -> bool {
    // One that ended in order tells by its exit code, which the controller of instances reads.
    pod.is_none_or(|pod| vouched && may_run(pod))
}

/// Whether a launcher pod may run as far as is known.
pub fn may_run(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    // A pod without a word on its containers may be just starting.
    let all_ended = !containers.is_empty()
        && containers
            .iter()
            .all(|container| container.state.as_ref().is_some_and(|state| state.terminated.is_some()));
    !all_ended && !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}
