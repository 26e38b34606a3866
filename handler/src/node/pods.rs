//! The pods of a machine, as the API server knows them.
//!
//! What a VMI says of its pods is not believed: a pod whose directories this process opens, and whose processes it hears,
//! is looked up by the name that the controller gave it, and must be the machine's and on this node ([`check`]).

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use podvirt_api::migration::pod_by_migration;
use podvirt_api::names::{label, launcher_name};
use podvirt_api::v1::{GROUP, VirtualMachineInstance};

use super::Node;
use super::pass::within;

/// Why a pod is not taken for a machine's.
#[derive(Debug, thiserror::Error, PartialEq)]
pub(super) enum ForeignPod {
    /// The machine does not control it.
    #[error("pod {pod}: metadata.ownerReferences: the controller is not the VMI with UID {vmi}")]
    Owner { pod: String, vmi: String },
    /// It was not made for the machine.
    #[error("pod {pod}: label {}: it is not {vmi}", label::CREATED_BY)]
    Label { pod: String, vmi: String },
    /// It is elsewhere.
    #[error("pod {pod}: spec.nodeName: it is not {node}")]
    Node { pod: String, node: String },
    /// It does not hold claims for the launcher pod.
    #[error(
        "pod {pod}: metadata.ownerReferences: the controller is not the launcher pod with UID {launcher}"
    )]
    Attachment { pod: String, launcher: String },
    /// Another pod has the name by now.
    #[error("pod {pod}: metadata.uid: it is not {uid}")]
    Uid { pod: String, uid: String },
    /// It was not made for the migration.
    #[error("pod {pod}: label {}: it is not {migration}", label::MIGRATION_JOB)]
    Migration { pod: String, migration: String },
}

/// Name of the pod that the machine runs in.
pub(crate) fn name_of(vmi: &VirtualMachineInstance) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let first = || launcher_name(&text(&vmi.metadata.name), &text(&vmi.metadata.uid));
    pod_by_migration(vmi).map_or_else(first, ToOwned::to_owned)
}

/// The pod with this name in the namespace of `vmi`.
pub(super) async fn get(
    node: &Node,
    vmi: &VirtualMachineInstance,
    name: &str,
) -> anyhow::Result<Option<Pod>> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    within(api.get_opt(name)).await
}

/// Whether a pod is a launcher's of the machine `vmi`, on `node`.
///
/// # Errors
///
/// It is not, and why.
pub(super) fn check(pod: &Pod, vmi: &VirtualMachineInstance, node: &str) -> Result<(), ForeignPod> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let uid = vmi.metadata.uid.clone().unwrap_or_default();
    let owned = pod.metadata.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "VirtualMachineInstance"
            && owner.api_version.split('/').next() == Some(GROUP)
            && owner.uid == uid
    });
    if uid.is_empty() || !owned {
        return Err(ForeignPod::Owner { pod: name, vmi: uid });
    }
    if labelled(pod, label::CREATED_BY) != Some(&uid) {
        return Err(ForeignPod::Label { pod: name, vmi: uid });
    }
    on(pod, node)
}

/// Whether a pod is the target of this migration of `vmi`, on `node`.
///
/// # Errors
///
/// It is not, and why.
pub(super) fn check_target(
    pod: &Pod,
    vmi: &VirtualMachineInstance,
    node: &str,
    migration: &str,
) -> Result<(), ForeignPod> {
    check(pod, vmi, node)?;
    if labelled(pod, label::MIGRATION_JOB).is_none_or(|uid| uid != migration) {
        let pod = pod.metadata.name.clone().unwrap_or_default();
        return Err(ForeignPod::Migration { pod, migration: migration.to_owned() });
    }
    Ok(())
}

/// Finds the attachment pod `name` with this UID, which holds claims for the launcher pod with `launcher_uid` on this node.
///
/// # Errors
///
/// It is not there, or is none for that launcher pod.
pub(super) async fn attachment(
    node: &Node,
    vmi: &VirtualMachineInstance,
    name: &str,
    uid: &str,
    launcher_uid: &str,
) -> anyhow::Result<()> {
    let pod = get(node, vmi, name).await?;
    let pod = pod.with_context(|| format!("the attachment pod {name} is not there"))?;
    Ok(check_attachment(&pod, uid, launcher_uid, &node.name)?)
}

/// Whether a pod is the one with this UID and holds claims for the launcher pod with `launcher_uid`, on `node`.
fn check_attachment(pod: &Pod, uid: &str, launcher_uid: &str, node: &str) -> Result<(), ForeignPod> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    if uid.is_empty() || pod.metadata.uid.as_deref() != Some(uid) {
        return Err(ForeignPod::Uid { pod: name, uid: uid.to_owned() });
    }
    let owned = pod.metadata.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "Pod"
            && owner.api_version == "v1"
            && owner.uid == launcher_uid
    });
    if launcher_uid.is_empty() || !owned {
        return Err(ForeignPod::Attachment { pod: name, launcher: launcher_uid.to_owned() });
    }
    on(pod, node)
}

/// Whether a pod is on `node`.
fn on(pod: &Pod, node: &str) -> Result<(), ForeignPod> {
    if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
        return Ok(());
    }
    Err(ForeignPod::Node { pod: pod.metadata.name.clone().unwrap_or_default(), node: node.to_owned() })
}

fn labelled<'a>(pod: &'a Pod, label: &str) -> Option<&'a String> {
    pod.metadata.labels.as_ref()?.get(label)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi() -> VirtualMachineInstance {
        let spec = json!({"domain": {"devices": {}}});
        serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "n", "uid": "v"}, "spec": spec}))
            .unwrap()
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "a", "uid": "v",
            "controller": true});
        let labels = json!({"kubevirt.io/created-by": "v", "kubevirt.io/migrationJobUID": "m"});
        let mut pod = json!({
            "metadata": {"name": "p", "uid": "u", "labels": labels, "ownerReferences": [owner]},
            "spec": {"nodeName": "node1", "containers": []},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn an_attachment_pod_is_controlled_by_the_launcher_pod_on_its_node() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let attachment = |owner: Value, node: &str| {
            let pod = json!({"metadata": {"name": "a", "uid": "x", "ownerReferences": [owner]},
                "spec": {"nodeName": node, "containers": []}});
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let own = attachment(owner.clone(), "node1");
        check_attachment(&own, "x", "u", "node1").unwrap();
        let mut foreign_pod = owner.clone();
        foreign_pod["kind"] = "Job".into();
        for (pod, uid, launcher) in [
            (own.clone(), "y", "u"),
            (own.clone(), "", "u"),
            (own, "x", "w"),
            (attachment(owner, "node2"), "x", "u"),
            (attachment(foreign_pod, "node1"), "x", "u"),
        ] {
            assert!(check_attachment(&pod, uid, launcher, "node1").is_err(), "{uid} {launcher}");
        }
    }

    #[test]
    fn a_pod_is_the_machines_by_owner_label_and_node() {
        check(&pod(|_| {}), &vmi(), "node1").unwrap();
        check_target(&pod(|_| {}), &vmi(), "node1", "m").unwrap();
        let owner = |field: &'static str, value: Value| {
            pod(move |pod| pod["metadata"]["ownerReferences"][0][field] = value)
        };
        let foreign = [
            (owner("uid", "another".into()), "ownerReferences"),
            (owner("controller", false.into()), "ownerReferences"),
            (owner("kind", "ReplicaSet".into()), "ownerReferences"),
            (owner("apiVersion", "apps/v1".into()), "ownerReferences"),
            (pod(|pod| pod["metadata"]["ownerReferences"] = Value::Null), "ownerReferences"),
            (pod(|pod| pod["metadata"]["labels"]["kubevirt.io/created-by"] = "w".into()), "created-by"),
            (pod(|pod| pod["spec"]["nodeName"] = "node2".into()), "nodeName"),
            (pod(|pod| pod["spec"]["nodeName"] = Value::Null), "nodeName"),
        ];
        for (foreign_pod, field) in foreign {
            let refused = check(&foreign_pod, &vmi(), "node1").unwrap_err().to_string();
            assert!(refused.contains(field), "{field}: {refused}");
        }
        check_target(&pod(|_| {}), &vmi(), "node1", "another").unwrap_err();
        let mut without_uid = vmi();
        without_uid.metadata.uid = None;
        check(&pod(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "".into()), &without_uid, "node1")
            .unwrap_err();
    }
}
