//! What of the KubeVirt object virt-operator carries out in every replica, also in one that does not lead.

use futures::StreamExt;
use kube::{Api, Client};
use podvirt_api::names;
use podvirt_api::v1::KubeVirt;
use podvirt_daemon::follow::follow as versions;
use podvirt_daemon::settings::Settings;

/// Tells `own` of each version of the KubeVirt object in `namespace`, for as long as it is polled.
pub async fn follow(client: Client, namespace: &str, own: Settings) {
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let mut seen = Box::pin(versions(api, names::KUBEVIRT));
    while let Some(kubevirt) = seen.next().await {
        match kubevirt {
            Ok(kubevirt) => own.take(kubevirt.as_ref()),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "watch of the KubeVirt object");
            }
        }
    }
}
