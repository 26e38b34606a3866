//! Nodes that have been away for long, as far as pods of podvirt's DaemonSets are on them.
//!
//! In a large cluster some node is always away: switched off, cut off, or broken. Its pod of virt-handler can neither be replaced
//! nor become ready, and must not hold up an update of all others. Pods that have not been ready for [`MIN_ABSENCE`] point to
//! such nodes; a node counts as away once it has not been ready itself for so long. A pod that is not ready on a node that
//! is ready is waited for.
//!
//! Kubernetes as well counts the pod of such a node as unavailable, whether the pod is old, is being deleted or is not there, and replaces no
//! other pod while as many are unavailable as the DaemonSet allows. So the DaemonSet allows as many more as nodes are away.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;

use crate::cluster::Cluster;
use crate::customize::IDENTIFIER;
use crate::manifests::Object;
use crate::rollout::AbsentPod;
use crate::target::Target;

/// Time that a node is not ready until it is not waited for: a node that starts again takes less.
const MIN_ABSENCE: Duration = Duration::from_secs(300);
/// Most nodes that are asked for in a pass. Where more are away, the cluster as a whole is ill, and an update waits.
const MAX_ABSENT_NODES: usize = 32;

/// Whether a condition `Ready`, its status and its last transition, has been other than True for [`MIN_ABSENCE`].
fn is_long(ready: Option<(&str, Option<&Time>)>, now: Timestamp) -> bool {
    let Some((status, Some(since))) = ready else { return false };
    status != "True"
        && now.duration_since(since.0) >= jiff::SignedDuration::try_from(MIN_ABSENCE).unwrap_or_default()
}

fn is_pod_unready(pod: &Pod, now: Timestamp) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    is_long(ready.map(|ready| (ready.status.as_str(), ready.last_transition_time.as_ref())), now)
}

fn is_node_away(node: &Node, now: Timestamp) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    is_long(ready.map(|ready| (ready.status.as_str(), ready.last_transition_time.as_ref())), now)
}

/// Those of `pods` that are the DaemonSet `daemon`'s, on nodes that have been away for long. A node that cannot be read counts as there.
pub async fn find(cluster: &Cluster, pods: &[Pod], daemon: &str, target: &Target) -> Vec<AbsentPod> {
    let now = Timestamp::now();
    let is_daemons = |pod: &&Pod| {
        let labels = pod.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get("kubevirt.io").is_some_and(|name| name == daemon))
    };
    let unready: Vec<&Pod> = pods.iter().filter(is_daemons).filter(|pod| is_pod_unready(pod, now)).collect();
    if unready.len() > MAX_ABSENT_NODES {
        return Vec::new();
    }
    let nodes: Api<Node> = Api::all(cluster.client().clone());
    let mut absent: Vec<AbsentPod> = Vec::new();
    for pod in unready {
        let Some(name) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else { continue };
        let identifier = pod.metadata.annotations.as_ref().and_then(|all| all.get(IDENTIFIER));
        let is_new = identifier == Some(&target.id);
        if let Some(known) = absent.iter_mut().find(|known| known.node == name) {
            // The old pod of a node stays beside the new one until its kubelet is back.
            known.is_new |= is_new;
        } else if nodes.get(name).await.is_ok_and(|node| is_node_away(&node, now)) {
            absent.push(AbsentPod { node: name.to_owned(), is_new });
        }
    }
    absent.sort_by(|a, b| a.node.cmp(&b.node));
    absent
}

/// The DaemonSet with as many more pods that may be unavailable as nodes are away. A percentage, which only a user's patch sets, stays.
pub fn with_room(daemon: &Object, away: usize) -> Object {
    let mut daemon = daemon.clone();
    let most = daemon.value.pointer_mut("/spec/updateStrategy/rollingUpdate/maxUnavailable");
    if let Some(most) = most
        && let Some(count) = most.as_u64()
    {
        *most = count.saturating_add(u64::try_from(away).unwrap_or(u64::MAX)).into();
    }
    daemon
}

/// For people: which nodes are not waited for.
pub fn message(absent: &[AbsentPod]) -> String {
    let nodes: Vec<&str> = absent.iter().map(|pod| pod.node.as_str()).collect();
    format!(
        "All components are ready, but for virt-handler on nodes that have been NotReady for minutes: {}",
        nodes.join(", ")
    )
}
