//! Where the pod may run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use podvirt_api::names::{annotation, label};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use crate::vm::instance;

/// Architecture of a machine that names none, where the configuration names none either.
const DEFAULT_ARCHITECTURE: &str = "amd64";
/// Models of processors that stand for whatever a node has.
const ANY_NODES: [&str; 4] = ["", HOST_MODEL, "host-passthrough", "maximum"];
/// The model that is nearest to the node's own.
pub(crate) const HOST_MODEL: &str = "host-model";
/// Value of a label that says that a node can do something.
const ABLE: &str = "true";

/// Labels that the node must have: a living virt-handler, the architecture, what the machine's processor and board need,
/// the configuration's and the manifest's own. The manifest's win over the configuration's, podvirt's over both.
pub(super) fn node_selector(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
) -> BTreeMap<String, String> {
    let mut selector = config
        .developer_configuration
        .as_ref()
        .map(|developer| developer.node_selectors.clone())
        .unwrap_or_default();
    selector.extend(vmi.spec.node_selector.clone());
    selector.insert(label::SCHEDULABLE.into(), ABLE.into());
    selector.insert(label::ARCH.into(), architecture(vmi, config).into());
    selector.extend(needs(vmi).map(|key| (key, ABLE.to_owned())));
    selector
}

/// Digest of where the machine's manifest lets it run, for [`annotation::PLACEMENT_DIGEST`].
pub(super) fn digest(vmi: &VirtualMachineInstance) -> String {
    let spec = &vmi.spec;
    instance::digest(Some((&spec.affinity, &spec.node_selector, &spec.tolerations)))
}

/// Whether the pod has no node, and was made before the machine was let run elsewhere.
pub(crate) fn is_misplaced(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let made_from = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotation::PLACEMENT_DIGEST));
    !has_node && made_from.is_some_and(|made_from| *made_from != digest(vmi))
}

fn architecture<'a>(vmi: &'a VirtualMachineInstance, config: &'a KubeVirtConfiguration) -> &'a str {
    let given = vmi.spec.architecture.as_deref();
    let default = config.architecture_configuration.as_ref().and_then(|a| a.default_architecture.as_deref());
    given.into_iter().chain(default).find(|a| !a.is_empty()).unwrap_or(DEFAULT_ARCHITECTURE)
}

/// The machine's model of a processor, as it says it.
pub(crate) fn model(vmi: &VirtualMachineInstance) -> &str {
    vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref()).unwrap_or_default()
}

/// Labels of nodes that can give the machine its model, its features and its machine type: that of the running machine, once it
/// runs, which is more exact than what its manifest says.
fn needs(vmi: &VirtualMachineInstance) -> impl Iterator<Item = String> {
    let (running, asked) = (&vmi.status.machine, &vmi.spec.domain.machine);
    let machine = [running, asked]
        .into_iter()
        .flatten()
        .find_map(|machine| machine.r#type.as_deref().filter(|text| !text.is_empty()));
    let machine = machine.map(|machine| format!("{}{machine}", label::MACHINE_TYPE));
    let model = Some(model(vmi)).filter(|model| !ANY_NODES.contains(model));
    let model = model.map(|model| format!("{}{model}", label::CPU_MODEL));
    let features = features(vmi, &["", "require"]).map(|name| format!("{}{name}", label::CPU_FEATURE));
    machine.into_iter().chain(model).chain(features)
}

/// Names of the features with one of these policies.
fn features<'a>(vmi: &'a VirtualMachineInstance, policies: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let features = vmi.spec.domain.cpu.iter().flat_map(|cpu| &cpu.features);
    features
        .filter(|feature| policies.contains(&feature.policy.as_deref().unwrap_or_default()))
        .map(|feature| feature.name.as_str())
}

/// The manifest's affinity, away from nodes with a feature that the machine forbids. A machine with the processor model
/// of its host also keeps away from nodes whose own model is obsolete.
pub(super) fn affinity(vmi: &VirtualMachineInstance) -> Option<Affinity> {
    let forbidden = features(vmi, &["forbid"]).map(|name| format!("{}{name}", label::CPU_FEATURE));
    let obsolete = ["", HOST_MODEL].contains(&model(vmi)).then(|| label::OBSOLETE_HOST_MODEL.to_owned());
    let without: Vec<_> = forbidden
        .chain(obsolete)
        .map(|key| NodeSelectorRequirement { key, operator: "DoesNotExist".into(), values: None })
        .collect();
    let mut affinity = vmi.spec.affinity.clone();
    if without.is_empty() {
        return affinity;
    }
    let nodes = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = nodes.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // One of the terms is enough for the scheduler, so each of them has to say it.
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().extend(without.iter().cloned());
    }
    affinity
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(spec: &Value, status: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": spec, "status": status})).unwrap()
    }

    fn selected(cpu: &Value, board: &Value, status: &Value) -> Vec<String> {
        let domain = json!({"devices": {}, "cpu": cpu, "machine": board});
        let vmi = machine(&json!({"domain": domain}), status);
        let selector = node_selector(&vmi, &KubeVirtConfiguration::default());
        assert!(selector.iter().all(|(key, value)| value == "true" || key == label::ARCH));
        selector.into_keys().filter(|key| key.contains(".node.")).collect()
    }

    #[test]
    fn nodes_can_give_the_machine_its_processor_and_its_board() {
        let none = json!({});
        for any in ["host-model", "host-passthrough", "maximum", ""] {
            assert!(selected(&json!({"model": any}), &none, &none).is_empty(), "{any}");
        }
        let features = json!([{"name": "aes"}, {"name": "vmx", "policy": "require"},
            {"name": "hle", "policy": "optional"}, {"name": "svm", "policy": "forbid"}]);
        let cpu = json!({"model": "Nehalem", "features": features});
        assert_eq!(
            selected(&cpu, &json!({"type": "q35"}), &none),
            [
                "cpu-feature.node.kubevirt.io/aes",
                "cpu-feature.node.kubevirt.io/vmx",
                "cpu-model.node.kubevirt.io/Nehalem",
                "machine-type.node.kubevirt.io/q35",
            ]
        );
        let status = json!({"machine": {"type": "pc-q35-10.0"}});
        assert_eq!(
            selected(&none, &json!({"type": "q35"}), &status),
            ["machine-type.node.kubevirt.io/pc-q35-10.0"],
            "it moves"
        );
    }

    #[test]
    fn what_the_machine_forbids_is_forbidden_in_each_term_of_its_own() {
        let cpu = json!({"model": "Nehalem", "features": [{"name": "svm", "policy": "forbid"}]});
        let spec = |cpu: Value, affinity: Value| json!({"domain": {"devices": {}, "cpu": cpu}, "affinity": affinity});
        let of = |spec: Value| serde_json::to_value(affinity(&machine(&spec, &json!({})))).unwrap();
        let terms = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let svm = json!({"key": "cpu-feature.node.kubevirt.io/svm", "operator": "DoesNotExist"});
        assert_eq!(
            of(spec(cpu.clone(), Value::Null)).pointer(terms),
            Some(&json!([{"matchExpressions": [svm]}]))
        );
        let zone = json!({"key": "zone", "operator": "Exists"});
        let given = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [zone]}, {"matchFields": [zone]}]}}});
        let both = of(spec(cpu, given));
        assert_eq!(both.pointer(terms).unwrap()[0]["matchExpressions"], json!([zone, svm]));
        assert_eq!(both.pointer(terms).unwrap()[1]["matchExpressions"], json!([svm]));
        assert_eq!(of(spec(json!({"model": "Nehalem"}), Value::Null)), Value::Null);
        let obsolete =
            json!({"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"});
        for host in ["", "host-model"] {
            let own = of(spec(json!({"model": host}), Value::Null));
            assert_eq!(own.pointer(terms), Some(&json!([{"matchExpressions": [obsolete]}])));
        }
    }
}
