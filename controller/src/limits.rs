//! What a namespace wants of the limits of its machines' pods, asked for when a pod is to be made.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::api::ListParams;
use kube::{Api, Client};
use podvirt_api::resources::AutoLimits;
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

/// Limits of the pod of `vmi` where it says none.
///
/// # Errors
///
/// The API server could not be asked.
pub async fn of_namespace(
    client: &Client,
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
) -> Result<AutoLimits, kube::Error> {
    let name = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let quotas = Api::<ResourceQuota>::namespaced(client.clone(), name).list(&ListParams::default()).await?;
    // The labels matter to a limit of memory, and to a selector of the KubeVirt object.
    let found = AutoLimits::of(&quotas.items, &BTreeMap::new(), config);
    if found.memory.is_none() && config.auto_cpu_limit_namespace_label_selector.is_none() {
        return Ok(found);
    }
    let namespace = Api::<Namespace>::all(client.clone()).get_metadata_opt(name).await?;
    let labels = namespace.and_then(|namespace| namespace.metadata.labels).unwrap_or_default();
    Ok(AutoLimits::of(&quotas.items, &labels, config))
}
