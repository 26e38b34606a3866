//! What an eviction of a launcher pod, or of an attachment pod, means for its machine.
//!
//! An attachment pod holds the claims of disks that are plugged into a running machine. Its eviction is held back for as long as its
//! launcher pod, which owns it, lives: without the pod the node unmounts the disks under the guest. It goes with the launcher.
//! A launcher's eviction goes by the machine's strategy:
//!
//! | strategy | the machine can be migrated | it cannot |
//! |---|---|---|
//! | `None`, or nothing said | the pod is evicted | the pod is evicted |
//! | `LiveMigrate` | held back, the machine is marked | held back, the machine is marked |
//! | `LiveMigrateIfPossible` | held back, the machine is marked | the pod is evicted |
//! | `External` | held back, the machine is marked | held back, the machine is marked |
//!
//! The mark is `status.evacuationNodeName`: virt-controller migrates the machine off that node, or with `External`
//! another controller sees to it. A client that evicts gets 429 and asks again until the pod is gone, as
//! `kubectl drain` does. Pods that the machine is not in (the target of a migration, the source of one that has moved it)
//! are evicted.

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::migration::{eviction_strategy, migratable, pod_by_migration};
use podvirt_api::names::{annotation, label};
use podvirt_api::v1::{
    EvictionStrategy, KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
};

/// Start of the launcher pods' names.
pub const LAUNCHER_PREFIX: &str = "virt-launcher-";

/// Whether a pod may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow,
    /// Not now.
    Deny {
        /// Why, and what happens now.
        message: String,
        /// The node that the machine is to be marked with.
        mark: Option<String>,
    },
}

/// Name of the machine that a pod was made for, if it is a launcher's.
pub fn machine_of(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    if labels.get(label::APP).map(String::as_str) != Some(label::APP_LAUNCHER) {
        return None;
    }
    pod.metadata.annotations.as_ref()?.get(annotation::DOMAIN).map(String::as_str)
}

/// Name and UID of the launcher pod that owns `pod`, if it is an attachment pod.
pub fn launcher_of(pod: &Pod) -> Option<(&str, &str)> {
    let labels = pod.metadata.labels.as_ref()?;
    if labels.get(label::APP).map(String::as_str) != Some(label::APP_HOTPLUG) {
        return None;
    }
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Pod")?;
    Some((&owner.name, &owner.uid))
}

/// Whether all containers of a pod have ended for good.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Judges the eviction of `pod`.
pub fn judge(pod: &Pod, vmi: &VirtualMachineInstance, config: &KubeVirtConfiguration) -> Verdict {
    if !is_in(vmi, pod) {
        return Verdict::Allow;
    }
    let meta = &vmi.metadata;
    let machine = format!(
        "\"{}/{}\"",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    );
    let movable = migratable(vmi);
    let waits = match (eviction_strategy(vmi, config), movable) {
        (EvictionStrategy::LiveMigrate, Err(why)) => {
            Err(format!("VMI {machine} must be migrated and cannot be: {why}"))
        }
        (EvictionStrategy::LiveMigrate | EvictionStrategy::LiveMigrateIfPossible, Ok(())) => Ok(""),
        (EvictionStrategy::External, _) => Ok(" (evictionStrategy External: another controller moves it)"),
        _ => return Verdict::Allow,
    };
    let node = vmi.status.node_name.clone();
    let marked = node.is_some() && vmi.status.evacuation_node_name == node;
    let message = match waits {
        // The descheduler looks for these words.
        Ok(more) => {
            let again = if marked { "Evacuation in progress: " } else { "" };
            format!("{again}Eviction triggered evacuation of VMI {machine}{more}")
        }
        Err(why) => why,
    };
    Verdict::Deny { message, mark: node.filter(|_| !marked) }
}

/// Whether the machine lives in the pod.
fn is_in(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    let over = matches!(vmi.status.phase, Some(Phase::Succeeded | Phase::Failed));
    let is_target = || pod.metadata.labels.as_ref().is_some_and(|l| l.contains_key(label::MIGRATION_JOB));
    let own = match pod_by_migration(vmi) {
        Some(name) => pod.metadata.name.as_deref() == Some(name),
        None => !is_target(),
    };
    let made_for =
        pod.metadata.labels.as_ref().and_then(|l| l.get(label::CREATED_BY)) == vmi.metadata.uid.as_ref();
    own && made_for && !over && vmi.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(more: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "virt-launcher-web-p1", "labels": {"kubevirt.io": "virt-launcher",
                "kubevirt.io/created-by": "m1"}, "annotations": {"kubevirt.io/domain": "web"}},
            "spec": {"containers": [], "nodeName": "n1"}, "status": {"phase": "Running"},
        });
        json_patch::merge(&mut pod, &more);
        serde_json::from_value(pod).unwrap()
    }

    fn vmi(strategy: &str, migratable: &str, more: Value) -> VirtualMachineInstance {
        let mut vmi = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1"},
            "spec": {"domain": {"devices": {}}, "evictionStrategy": strategy},
            "status": {"phase": "Running", "nodeName": "n1", "conditions": [
                {"type": "LiveMigratable", "status": migratable, "message": "volume root: local"}]},
        });
        json_patch::merge(&mut vmi, &more);
        serde_json::from_value(vmi).unwrap()
    }

    fn judged(pod: &Pod, vmi: &VirtualMachineInstance) -> Verdict {
        judge(pod, vmi, &KubeVirtConfiguration::default())
    }

    #[test]
    fn the_strategy_decides_and_the_machine_is_marked_once() {
        for (strategy, migratable, told) in [
            ("LiveMigrate", "True", Some("triggered evacuation of VMI \"shop/web\"")),
            ("LiveMigrate", "False", Some("cannot be: volume root: local")),
            ("LiveMigrateIfPossible", "True", Some("triggered evacuation")),
            ("LiveMigrateIfPossible", "False", None),
            ("External", "True", Some("another controller")),
            ("External", "False", Some("another controller")),
            ("None", "True", None),
        ] {
            let verdict = judged(&pod(json!({})), &vmi(strategy, migratable, json!({})));
            match told {
                None => assert_eq!(verdict, Verdict::Allow, "{strategy} {migratable}"),
                Some(told) => {
                    let Verdict::Deny { message, mark } = verdict else { panic!("{strategy} {migratable}") };
                    assert!(message.contains(told), "{message}");
                    assert_eq!(mark.as_deref(), Some("n1"));
                    let marked = vmi(strategy, migratable, json!({"status": {"evacuationNodeName": "n1"}}));
                    let Verdict::Deny { mark, .. } = judged(&pod(json!({})), &marked) else { panic!() };
                    assert_eq!(mark, None);
                }
            }
        }
        let silent = vmi("None", "True", json!({"spec": {"evictionStrategy": null}}));
        let cluster = KubeVirtConfiguration {
            eviction_strategy: Some(EvictionStrategy::LiveMigrate),
            ..KubeVirtConfiguration::default()
        };
        assert_eq!(judged(&pod(json!({})), &silent), Verdict::Allow);
        assert!(matches!(judge(&pod(json!({})), &silent, &cluster), Verdict::Deny { .. }));
    }

    #[test]
    fn a_mark_of_another_node_is_replaced() {
        let before = vmi("LiveMigrate", "True", json!({"status": {"evacuationNodeName": "n0"}}));
        let Verdict::Deny { mark, .. } = judged(&pod(json!({})), &before) else { panic!() };
        assert_eq!(mark.as_deref(), Some("n1"));
    }

    #[test]
    fn pods_that_the_machine_is_not_in_are_evicted() {
        let own = vmi("LiveMigrate", "True", json!({}));
        for other in [
            json!({"status": {"phase": "Succeeded"}}),
            json!({"metadata": {"labels": {"kubevirt.io/created-by": "m0"}}}),
            json!({"metadata": {"name": "virt-launcher-web-p2", "labels": {"kubevirt.io/migrationJobUID": "j1"}}}),
        ] {
            assert_eq!(judged(&pod(other.clone()), &own), Verdict::Allow, "{other}");
        }
        for ended in [
            json!({"status": {"phase": "Failed"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            assert_eq!(judged(&pod(json!({})), &vmi("LiveMigrate", "True", ended)), Verdict::Allow);
        }
        let moved = vmi(
            "LiveMigrate",
            "True",
            json!({"status": {"nodeName": "n2", "migrationState": {"completed": true,
            "sourceNode": "n1", "sourcePod": "virt-launcher-web-p1", "targetNode": "n2",
            "targetPod": "virt-launcher-web-p2"}}}),
        );
        let target = json!({"metadata": {"name": "virt-launcher-web-p2", "labels": {"kubevirt.io/migrationJobUID": "j1"}}});
        assert_eq!(judged(&pod(json!({})), &moved), Verdict::Allow);
        assert!(matches!(judged(&pod(target), &moved), Verdict::Deny { .. }));
    }

    #[test]
    fn only_attachment_pods_have_a_launcher() {
        let owner = |kind: &str, controls: bool| {
            json!({"metadata": {"labels": {"kubevirt.io": "hotplug-disk"}, "ownerReferences": [{"apiVersion": "v1",
                "kind": kind, "name": "virt-launcher-web-p1", "uid": "p1", "controller": controls}]}})
        };
        assert_eq!(launcher_of(&pod(owner("Pod", true))), Some(("virt-launcher-web-p1", "p1")));
        assert_eq!(launcher_of(&pod(owner("Pod", false))), None);
        assert_eq!(launcher_of(&pod(owner("Job", true))), None);
        assert_eq!(launcher_of(&pod(json!({}))), None);
    }

    #[test]
    fn only_launchers_have_a_machine() {
        assert_eq!(machine_of(&pod(json!({}))), Some("web"));
        assert_eq!(machine_of(&pod(json!({"metadata": {"labels": {"kubevirt.io": "virt-api"}}}))), None);
        assert_eq!(
            machine_of(&pod(json!({"metadata": {"annotations": {"kubevirt.io/domain": null}}}))),
            None
        );
    }
}
