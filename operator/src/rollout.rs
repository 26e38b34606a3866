//! Whether a daemon's pods are the new ones, and what keeps them from it.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::Value;

use crate::manifests::{DAEMON_SET, Object};

/// How far a daemon is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// How people know the daemon: `Deployment virt-api`.
    pub title: String,
    /// All its pods are made from the present template, and none of an older one is left.
    pub replaced: bool,
    /// It does its work: one pod of a Deployment, every pod of a DaemonSet but for those on nodes that are away.
    pub serves: bool,
    /// Pods that are new and ready, of those that there shall be.
    pub ready: (i64, i64),
    /// The controller of Deployments has given up waiting.
    pub stuck: Option<String>,
}

/// A pod of a DaemonSet on a node that has been away for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentPod {
    /// Name of the node.
    pub node: String,
    /// Whether the pod is of the version that is wanted.
    pub is_new: bool,
}

impl Rollout {
    /// Judges a daemon as the API server has it. Of a DaemonSet the pods in `absent` are not waited for, as long as one node is left.
    pub fn judge(object: &Object, stored: &Value, absent: &[AbsentPod]) -> Self {
        let (spec, status) = (&stored["spec"], &stored["status"]);
        let number = |name: &str| status[name].as_i64().unwrap_or(0);
        let seen = number("observedGeneration") >= stored["metadata"]["generation"].as_i64().unwrap_or(0);
        if object.kind == DAEMON_SET {
            let wanted = number("desiredNumberScheduled");
            let (updated, ready) = (number("updatedNumberScheduled"), number("numberAvailable"));
            let count = |pods: usize| i64::try_from(pods).unwrap_or(i64::MAX);
            let old = count(absent.iter().filter(|pod| !pod.is_new).count());
            let needed = wanted - count(absent.len());
            let replaced = seen && updated >= wanted - old;
            return Self {
                title: object.title(),
                replaced,
                serves: replaced && ready >= needed && needed > 0,
                ready: (ready.min(updated), wanted),
                stuck: None,
            };
        }
        let wanted = spec["replicas"].as_i64().unwrap_or(1);
        let (all, updated) = (number("replicas"), number("updatedReplicas"));
        let available = number("availableReplicas");
        let replaced = seen && updated >= wanted && all == updated;
        Self {
            title: object.title(),
            replaced,
            serves: replaced && available > 0,
            ready: (available.min(updated), wanted),
            stuck: seen.then(|| deadline(status)).flatten(),
        }
    }

    /// For people: `Deployment virt-api: 1 of 2 pods are ready`.
    pub fn told(&self) -> String {
        let (ready, wanted) = self.ready;
        if wanted == 0 {
            return format!("{}: no node is chosen for it", self.title);
        }
        let old = if self.replaced { "" } else { ", others are of an older version" };
        format!("{}: {ready} of {wanted} pods are ready{old}", self.title)
    }
}

/// What the controller of Deployments says once its deadline is over.
fn deadline(status: &Value) -> Option<String> {
    let conditions = status["conditions"].as_array()?;
    let progressing = conditions.iter().find(|condition| condition["type"] == "Progressing")?;
    (progressing["reason"] == "ProgressDeadlineExceeded")
        .then(|| progressing["message"].as_str().unwrap_or("its deadline is over").to_owned())
}

/// Reasons of waiting containers that do not go away by waiting.
const TROUBLE: &[&str] = &[
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// Why a pod of a daemon does not come up, in a sentence.
pub fn trouble(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let containers = || {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        lists.into_iter().flatten().flatten()
    };
    let waiting = containers().find_map(|container: &ContainerStatus| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| TROUBLE.contains(reason))?;
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("pod {name}: {reason}: {message}"))
    });
    let unschedulable = || {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        (scheduled.reason.as_deref() == Some("Unschedulable"))
            .then(|| format!("pod {name}: {}", scheduled.message.as_deref().unwrap_or("Unschedulable")))
    };
    waiting.or_else(unschedulable)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifests::all;

    fn daemon(name: &str) -> Object {
        all().unwrap().into_iter().find(|o| o.is_daemon() && o.name() == name).unwrap()
    }

    fn deployment(status: Value) -> Rollout {
        let stored = json!({"metadata": {"generation": 3}, "spec": {"replicas": 2}, "status": status});
        Rollout::judge(&daemon("virt-api"), &stored, &[])
    }

    #[test]
    fn a_deployment_serves_by_one_pod_once_every_pod_is_new() {
        let counts = |seen: i64, all: i64, updated: i64, available: i64| {
            deployment(json!({"observedGeneration": seen, "replicas": all, "updatedReplicas": updated,
                "availableReplicas": available}))
        };
        assert!(counts(3, 2, 2, 2).serves);
        assert!(!counts(2, 2, 2, 2).serves, "the numbers are of an older template");
        assert!(!counts(3, 3, 2, 3).serves, "an old pod is left");
        assert!(!counts(3, 2, 2, 0).serves);
        let half = counts(3, 2, 2, 1);
        assert!(half.serves);
        assert_eq!(half.told(), "Deployment virt-api: 1 of 2 pods are ready");
        assert!(!deployment(json!({})).serves);
    }

    #[test]
    fn a_daemon_set_serves_when_every_node_does() {
        let counts = |updated: i64, available: i64, wanted: i64| {
            let stored = json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1,
                "desiredNumberScheduled": wanted, "updatedNumberScheduled": updated, "numberAvailable": available}});
            Rollout::judge(&daemon("virt-handler"), &stored, &[])
        };
        assert!(counts(2, 2, 2).serves);
        assert!(!counts(1, 2, 2).serves, "one is of an older version");
        assert!(!counts(2, 1, 2).serves);
        assert_eq!(
            counts(1, 2, 2).told(),
            "DaemonSet virt-handler: 1 of 2 pods are ready, others are of an older version"
        );
        assert!(!counts(0, 0, 0).serves);
        assert_eq!(counts(0, 0, 0).told(), "DaemonSet virt-handler: no node is chosen for it");
    }

    #[test]
    fn a_daemon_set_does_not_wait_for_nodes_that_are_away() {
        let counts = |updated: i64, available: i64, absent: &[AbsentPod]| {
            let stored = json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1,
                "desiredNumberScheduled": 3, "updatedNumberScheduled": updated, "numberAvailable": available}});
            Rollout::judge(&daemon("virt-handler"), &stored, absent).serves
        };
        let absent = |is_new| AbsentPod { node: "n1".into(), is_new };
        assert!(counts(2, 2, &[absent(false)]));
        assert!(!counts(2, 2, &[]), "the node is back");
        assert!(!counts(1, 2, &[absent(false)]), "an old pod is left on a node that is there");
        assert!(!counts(2, 2, &[absent(true)]), "the new pod is the absent node's, the old one another's");
        assert!(!counts(2, 1, &[absent(false)]), "another pod is not ready");
        assert!(!counts(0, 0, &[absent(false), absent(false), absent(false)]), "no node is left");
    }

    #[test]
    fn a_deployment_that_is_given_up_says_so() {
        let status = json!({"observedGeneration": 3, "conditions": [{"type": "Progressing", "status": "False",
            "reason": "ProgressDeadlineExceeded", "message": "ReplicaSet \"x\" has timed out progressing."}]});
        assert_eq!(deployment(status).stuck.as_deref(), Some("ReplicaSet \"x\" has timed out progressing."));
    }

    #[test]
    fn a_pod_that_does_not_come_up_says_why() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
        };
        let waiting = |reason: &str| {
            pod(json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "m"}}}]}))
        };
        assert_eq!(trouble(&waiting("ImagePullBackOff")).as_deref(), Some("pod p: ImagePullBackOff: m"));
        assert_eq!(trouble(&waiting("ContainerCreating")), None);
        let nowhere = pod(json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]}));
        assert_eq!(trouble(&nowhere).as_deref(), Some("pod p: 0/2 nodes are available"));
        assert_eq!(trouble(&pod(json!({}))), None);
    }
}
