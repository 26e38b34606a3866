//! Where a machine with the host's own model may move: to nodes that can give it what it has had at its start.
//!
//! The node where it started says by its labels what that was. The first target pod selects nodes by it, and every later one
//! by what the pod before it did: a node in between may have more, which the guest has not seen.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use podvirt_api::names::label;
use podvirt_api::v1::VirtualMachineInstance;

use crate::template::{HOST_MODEL, model};

/// Whether the label selects nodes by what a machine with the host's own model has had.
fn is_of_host_model(key: &str) -> bool {
    key.starts_with(label::CPU_FEATURE) || key.starts_with(label::CPU_MODEL_MIGRATION)
}

/// What the target's node must have, by the pod in which `vmi` runs and its node. Nothing where the machine has another
/// model, or the node does not say what it has.
pub(super) fn selector(
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    node: Option<&Node>,
) -> BTreeMap<String, String> {
    if !["", HOST_MODEL].contains(&model(vmi)) {
        return BTreeMap::new();
    }
    let own = |key: &str| vmi.spec.node_selector.contains_key(key);
    let before = pod.and_then(|pod| pod.spec.as_ref()?.node_selector.as_ref()).into_iter().flatten();
    let before: BTreeMap<_, _> = before
        .filter(|(key, _)| is_of_host_model(key) && !own(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // Features that the machine itself asks for are in any pod of it.
    if before.keys().any(|key| key.starts_with(label::CPU_MODEL_MIGRATION)) {
        return before;
    }
    let Some(node) = node else { return BTreeMap::new() };
    let named = |prefix: &'static str, into: &'static str| {
        node.labels().iter().filter_map(move |(key, value)| {
            let name = key.strip_prefix(prefix)?;
            Some((format!("{into}{name}"), value.clone()))
        })
    };
    let models: BTreeMap<_, _> = named(label::HOST_MODEL_CPU, label::CPU_MODEL_MIGRATION).collect();
    if models.is_empty() {
        return models;
    }
    models.into_iter().chain(named(label::HOST_MODEL_REQUIRED_FEATURES, label::CPU_FEATURE)).collect()
}

/// What of the target pod's selector is of the host's model, if no node but `source` has all of it.
pub(super) fn nowhere<'a>(
    pod: &Pod,
    source: &str,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Option<Vec<String>> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref()?;
    let of_model: Vec<_> = selector.iter().filter(|(key, _)| is_of_host_model(key)).collect();
    if !of_model.iter().any(|(key, _)| key.starts_with(label::CPU_MODEL_MIGRATION)) {
        return None;
    }
    let fits = |node: &Node| of_model.iter().all(|(key, value)| node.labels().get(*key) == Some(*value));
    let found = nodes.into_iter().any(|node| node.name_any() != source && fits(node));
    (!found).then(|| of_model.into_iter().map(|(key, _)| key.clone()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, labels: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn pod(selector: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [], "nodeSelector": selector}}))
            .unwrap()
    }

    fn machine(cpu: &str) -> VirtualMachineInstance {
        let spec = json!({"domain": {"devices": {}, "cpu": {"model": cpu}}});
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": spec})).unwrap()
    }

    fn source() -> Node {
        node(
            "n1",
            &json!({"host-model-cpu.node.kubevirt.io/EPYC": "true", "cpu-vendor.node.kubevirt.io/AMD": "true",
                "host-model-required-features.node.kubevirt.io/x2apic": "true"}),
        )
    }

    #[test]
    fn a_machine_takes_along_what_it_had_at_its_start() {
        let first = selector(&machine("host-model"), Some(&pod(&json!({"zone": "a"}))), Some(&source()));
        let expected = json!({"cpu-feature.node.kubevirt.io/x2apic": "true",
            "cpu-model-migration.node.kubevirt.io/EPYC": "true"});
        assert_eq!(json!(first), expected);
        let other = node("n2", &json!({"host-model-cpu.node.kubevirt.io/Genoa": "true"}));
        let second = selector(&machine("host-model"), Some(&pod(&json!(first))), Some(&other));
        assert_eq!(json!(second), expected, "not what the node has that it came to");
    }

    #[test]
    fn other_machines_and_nodes_that_say_nothing_have_no_part_in_it() {
        assert!(selector(&machine("Nehalem"), None, Some(&source())).is_empty());
        assert!(selector(&machine("host-model"), None, Some(&node("n1", &json!({})))).is_empty());
        assert!(selector(&machine("host-model"), None, None).is_empty());
    }

    #[test]
    fn it_is_told_when_no_other_node_has_it() {
        let target = pod(&json!({"cpu-model-migration.node.kubevirt.io/EPYC": "true", "zone": "a"}));
        let able = |name| node(name, &json!({"cpu-model-migration.node.kubevirt.io/EPYC": "true"}));
        assert_eq!(nowhere(&target, "n1", &[able("n1"), able("n2")]), None);
        assert_eq!(
            nowhere(&target, "n1", &[able("n1"), node("n2", &json!({}))]),
            Some(vec!["cpu-model-migration.node.kubevirt.io/EPYC".to_owned()])
        );
        assert_eq!(nowhere(&pod(&json!({"zone": "a"})), "n1", &[]), None);
    }
}
