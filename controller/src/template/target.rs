//! The launcher pod that a machine is migrated into: as of a fresh start, on another node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Pod, PodAffinityTerm, PodAntiAffinity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use podvirt_api::names::{annotation, label};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration};

use super::{Identity, Images, TemplateError, launcher_pod, pod_name};

/// Label of a node with its name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The pod that `migration` moves `vmi` into, to a node that has `labels` as well. Its name follows from the migration's UID.
///
/// # Errors
///
/// As of [`launcher_pod`]; or the migration does not come from an API server.
pub fn target_pod(
    vmi: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
    config: &KubeVirtConfiguration,
    images: &Images,
    labels: &BTreeMap<String, String>,
) -> Result<Pod, TemplateError> {
    let machine = Identity::of(vmi)?;
    let get = |value: &Option<String>, field| {
        value.clone().filter(|text| !text.is_empty()).ok_or(TemplateError::Identity(field))
    };
    let (job, uid) = (get(&migration.metadata.name, "name")?, get(&migration.metadata.uid, "uid")?);
    let mut pod = launcher_pod(vmi, config, images)?;
    pod.metadata.name = Some(pod_name(machine.name, &uid));
    pod.metadata.labels.get_or_insert_default().insert(label::MIGRATION_JOB.into(), uid);
    pod.metadata.annotations.get_or_insert_default().insert(annotation::MIGRATION_JOB_NAME.into(), job);
    if let Some(spec) = &mut pod.spec {
        away_from(machine.uid, spec.affinity.get_or_insert_default());
        let selector = spec.node_selector.get_or_insert_default();
        selector.extend(labels.clone());
        for (key, value) in &migration.spec.added_node_selector {
            // The machine's own demands hold at the target, too.
            selector.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    Ok(pod)
}

/// Keeps the pod off nodes on which the machine has one.
fn away_from(machine: &str, affinity: &mut Affinity) {
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some([(label::CREATED_BY.to_owned(), machine.to_owned())].into()),
            match_expressions: None,
        }),
        topology_key: HOSTNAME.into(),
        ..PodAffinityTerm::default()
    };
    let anti: &mut PodAntiAffinity = affinity.pod_anti_affinity.get_or_insert_default();
    anti.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(term);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn render(vmi: &Value, migration: &Value) -> Result<Value, TemplateError> {
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi.clone()).unwrap();
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(migration.clone()).unwrap();
        let images = Images { launcher: "launcher:1".into(), ..Images::default() };
        let labels = BTreeMap::from([("fast".to_owned(), "true".to_owned())]);
        let pod = target_pod(&vmi, &migration, &KubeVirtConfiguration::default(), &images, &labels)?;
        Ok(serde_json::to_value(pod).unwrap())
    }

    fn machine() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1",
                "labels": {"app": "web", "kubevirt.io/nodeName": "n1", "kubevirt.io/migrationTargetNodeName": "n9"}},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {}},
                "nodeSelector": {"zone": "a"},
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "web"}}}]}},
            },
        })
    }

    #[test]
    fn a_target_is_the_machines_pod_with_another_name_on_another_node() {
        let migration = json!({"metadata": {"name": "move-1", "uid": "j1"},
            "spec": {"vmiName": "web", "addedNodeSelector": {"zone": "b", "disk": "fast"}}});
        let pod = render(&machine(), &migration).unwrap();
        let meta = &pod["metadata"];
        assert_eq!(meta["name"], pod_name("web", "j1"));
        assert_ne!(meta["name"], pod_name("web", "m1"));
        assert_eq!(meta["labels"]["kubevirt.io/migrationJobUID"], "j1");
        assert_eq!(meta["labels"]["kubevirt.io/created-by"], "m1");
        assert_eq!(meta["annotations"]["kubevirt.io/migrationJobName"], "move-1");
        for gone in ["kubevirt.io/nodeName", "kubevirt.io/migrationTargetNodeName"] {
            assert_eq!(meta["labels"].get(gone), None, "{gone}");
        }
        let spec = &pod["spec"];
        assert_eq!(
            (&spec["nodeSelector"]["zone"], &spec["nodeSelector"]["disk"]),
            (&json!("a"), &json!("fast"))
        );
        assert_eq!(spec["nodeSelector"]["fast"], "true", "what is asked for beside");
        let terms = &spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms.as_array().unwrap().len(), 2, "the machine's own wish stays");
        assert_eq!(
            terms[1],
            json!({"topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"kubevirt.io/created-by": "m1"}}})
        );
    }

    #[test]
    fn a_migration_without_identity_is_refused() {
        let error =
            render(&machine(), &json!({"metadata": {"name": "x"}, "spec": {"vmiName": "web"}})).unwrap_err();
        assert_eq!(error, TemplateError::Identity("uid"));
    }
}
