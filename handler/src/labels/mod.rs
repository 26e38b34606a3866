//! Labels of this node that say what QEMU can do on it. virt-controller has the scheduler select nodes by them.
//!
//! | label | says |
//! |---|---|
//! | `cpu-model.node.kubevirt.io/<model>` | a guest can have this model of a processor |
//! | `cpu-model-migration.node.kubevirt.io/<model>` | libvirt knows this model: a guest that has it as the host's own may come |
//! | `cpu-feature.node.kubevirt.io/<feature>` | a guest can have this feature |
//! | `host-model-cpu.node.kubevirt.io/<model>` | what a guest has that asks for the host's own model |
//! | `host-model-required-features.node.kubevirt.io/<feature>` | what it has beyond that model |
//! | `cpu-vendor.node.kubevirt.io/<vendor>` | that model's vendor |
//! | `machine-type.node.kubevirt.io/<type>` | QEMU has this machine type |
//! | `cpu-timer.node.kubevirt.io/tsc-frequency`, `…/tsc-scalable` | the time stamp counter, where KVM tells it |
//! | `node-labeller.kubevirt.io/obsolete-host-model` | the host's own model is among the obsolete ones |
//!
//! Obsolete models get no label of the first two. They are those that `spec.configuration.obsoleteCPUModels` names, whatever
//! value each has there, or [`OBSOLETE`] where it names none; the last label is for one that it names. All of that is upstream's. A node with the annotation `node-labeller.kubevirt.io/skip-node` keeps its labels as they
//! are.
//!
//! The facts come from a container of the launcher's image, which runs ahead of this process
//! ([`podvirt_proto::capabilities`]). It has less privilege than this process: what cannot be the name of a label is left out.

mod keep;

use std::collections::{BTreeMap, BTreeSet};

use podvirt_api::names::label;
use podvirt_api::v1::KubeVirt;
use podvirt_proto::capabilities::Capabilities;

pub use keep::{Obsolete, keep};

/// Models that are obsolete where the configuration names none, each also with `-v1` behind it; upstream's.
pub const OBSOLETE: [&str; 17] = [
    "486",
    "Conroe",
    "Opteron_G1",
    "Opteron_G2",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
];
/// Longest name of a label, behind its prefix.
const MAX_NAME: usize = 63;

/// The obsolete models that the KubeVirt object names now; none where it names none.
fn named(kubevirt: Option<&KubeVirt>) -> Option<BTreeSet<String>> {
    let models = &kubevirt?.spec.configuration.as_ref()?.obsolete_cpu_models;
    (!models.is_empty()).then(|| models.keys().cloned().collect())
}

/// The labels of a node.
fn labels(capabilities: &Capabilities, named: Option<&BTreeSet<String>>) -> BTreeMap<String, String> {
    let is_obsolete = |model: &str| match named {
        Some(named) => named.contains(model),
        None => OBSOLETE.contains(&model.strip_suffix("-v1").unwrap_or(model)),
    };
    let mut labels = BTreeMap::new();
    let mut put = |prefix: &str, name: &str| {
        if is_name(name) {
            labels.insert(format!("{prefix}{name}"), "true".to_owned());
        }
    };
    for (model, usable) in capabilities.models.iter().filter(|(model, _)| !is_obsolete(model)) {
        put(label::CPU_MODEL_MIGRATION, model);
        if *usable {
            put(label::CPU_MODEL, model);
        }
    }
    for feature in &capabilities.features {
        put(label::CPU_FEATURE, feature);
    }
    for machine in capabilities.machine_types.keys() {
        put(label::MACHINE_TYPE, machine);
    }
    if let Some(host) = &capabilities.host_model {
        put(label::HOST_MODEL_CPU, &host.name);
        put(label::CPU_VENDOR, &host.vendor);
        for feature in &host.required_features {
            put(label::HOST_MODEL_REQUIRED_FEATURES, feature);
        }
    }
    if obsolete_host_model(capabilities, named).is_some() {
        labels.insert(label::OBSOLETE_HOST_MODEL.to_owned(), "true".to_owned());
    }
    if let Some(tsc) = capabilities.tsc {
        labels.insert(format!("{}tsc-frequency", label::CPU_TIMER), tsc.frequency.to_string());
        labels.insert(format!("{}tsc-scalable", label::CPU_TIMER), tsc.scalable.to_string());
    }
    labels
}

/// The host's own model, if it is among the obsolete ones that the configuration names.
fn obsolete_host_model<'a>(
    capabilities: &'a Capabilities,
    named: Option<&BTreeSet<String>>,
) -> Option<&'a str> {
    let host = capabilities.host_model.as_ref()?;
    named?.contains(&host.name).then_some(host.name.as_str())
}

/// Whether Kubernetes takes the text for a label's name, behind the prefix.
fn is_name(text: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= MAX_NAME
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Whether the label is of a kind that virt-handler writes. Another program may have written it.
fn is_own(label: &str) -> bool {
    label::OF_NODES.iter().any(|prefix| label.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use podvirt_proto::capabilities::{HostModel, Tsc};
    use serde_json::json;

    use super::*;

    fn capabilities() -> Capabilities {
        Capabilities {
            machine_types: [("q35".to_owned(), false)].into(),
            models: [("Nehalem", true), ("Broadwell", false), ("qemu64-v1", true)]
                .map(|(model, usable)| (model.to_owned(), usable))
                .into(),
            features: ["sse4.1", "a/b", "-x", ""].map(str::to_owned).into(),
            host_model: Some(HostModel {
                name: "EPYC".into(),
                vendor: "AMD".into(),
                required_features: ["x2apic".to_owned()].into(),
            }),
            tsc: Some(Tsc { frequency: 2_000_000_000, scalable: false }),
        }
    }

    fn by(configuration: &serde_json::Value) -> Option<BTreeSet<String>> {
        let kubevirt = json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
            "spec": {"configuration": configuration}});
        named(Some(&serde_json::from_value(kubevirt).unwrap()))
    }

    #[test]
    fn a_node_says_what_it_can_do_but_for_obsolete_models() {
        let labels = labels(&capabilities(), named(None).as_ref());
        let labels: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            labels,
            [
                ("cpu-feature.node.kubevirt.io/sse4.1", "true"),
                ("cpu-model-migration.node.kubevirt.io/Broadwell", "true"),
                ("cpu-model-migration.node.kubevirt.io/Nehalem", "true"),
                ("cpu-model.node.kubevirt.io/Nehalem", "true"),
                ("cpu-timer.node.kubevirt.io/tsc-frequency", "2000000000"),
                ("cpu-timer.node.kubevirt.io/tsc-scalable", "false"),
                ("cpu-vendor.node.kubevirt.io/AMD", "true"),
                ("host-model-cpu.node.kubevirt.io/EPYC", "true"),
                ("host-model-required-features.node.kubevirt.io/x2apic", "true"),
                ("machine-type.node.kubevirt.io/q35", "true"),
            ]
        );
        assert!(labels.iter().all(|(key, _)| is_own(key)));
        assert!(!is_own("kubevirt.io/schedulable") && !is_own("cpumanager"));
    }

    #[test]
    fn the_models_that_the_configuration_names_take_the_place_of_the_usual_ones() {
        let named = by(&json!({"obsoleteCPUModels": {"EPYC": true, "Nehalem": true}}));
        let labels = labels(&capabilities(), named.as_ref());
        assert_eq!(labels.get("node-labeller.kubevirt.io/obsolete-host-model").unwrap(), "true");
        let models: Vec<_> = labels.keys().filter(|key| key.starts_with("cpu-model.")).collect();
        assert_eq!(models, ["cpu-model.node.kubevirt.io/qemu64-v1"]);
        assert!(is_own("node-labeller.kubevirt.io/obsolete-host-model"));
        assert_eq!(by(&json!({"obsoleteCPUModels": {}})), None);
    }

    #[test]
    fn nothing_known_is_nothing_said() {
        assert!(labels(&Capabilities::default(), None).is_empty());
        assert!(is_name("3dnow") && !is_name(&"x".repeat(64)) && !is_name("x."));
    }
}
