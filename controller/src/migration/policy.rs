//! How a machine is migrated: the cluster's configuration, and the policy that selects the machine.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use podvirt_api::migration::merged;
use podvirt_api::policy::{MigrationPolicy, matching};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use super::decide::Way;

/// Asks for the policies, which a migration needs once.
///
/// # Errors
///
/// The API server could not be asked.
pub(super) async fn way(
    client: &Client,
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
) -> Result<Way, kube::Error> {
    let policies = match Api::<MigrationPolicy>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => list.items,
        // Without the kind there are none.
        Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
        Err(error) => return Err(error),
    };
    let by_namespace = |p: &MigrationPolicy| {
        p.spec.selectors.as_ref().is_some_and(|selectors| !selectors.namespace_selector.is_empty())
    };
    let namespace = if policies.iter().any(by_namespace) {
        let name = vmi.namespace().unwrap_or_default();
        let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(&name).await?;
        found.and_then(|namespace| namespace.metadata.labels).unwrap_or_default()
    } else {
        Default::default()
    };
    let policy = matching(&policies, vmi.labels(), &namespace);
    Ok(Way {
        configuration: merged(config, policy.map(|policy| &policy.spec)),
        policy: policy.map(ResourceExt::name_any),
    })
}
