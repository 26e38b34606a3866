//! Where the pod may run.

use std::collections::BTreeMap;

use podvirt_api::names::label;
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

/// Architecture of a machine that names none, where the configuration names none either.
const DEFAULT_ARCHITECTURE: &str = "amd64";

/// Labels that the node must have: a living virt-handler, the architecture, the configuration's and the
/// manifest's own. The manifest's win over the configuration's, podvirt's over both.
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
    selector.insert(label::SCHEDULABLE.into(), "true".into());
    selector.insert(label::ARCH.into(), architecture(vmi, config).into());
    selector
}

fn architecture<'a>(vmi: &'a VirtualMachineInstance, config: &'a KubeVirtConfiguration) -> &'a str {
    let given = vmi.spec.architecture.as_deref();
    let default = config.architecture_configuration.as_ref().and_then(|a| a.default_architecture.as_deref());
    given.into_iter().chain(default).find(|a| !a.is_empty()).unwrap_or(DEFAULT_ARCHITECTURE)
}
