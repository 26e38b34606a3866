//! The cluster's configuration: the KubeVirt object, as it is now.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::StreamExt;
use kube::{Api, Client, ResourceExt};
use podvirt_api::admission::Cluster;
use podvirt_api::names;
use podvirt_api::v1::KubeVirt;
use podvirt_daemon::follow::follow as versions;
use podvirt_daemon::health::Health;
use podvirt_daemon::settings::Settings;
use tracing::{info, warn};

/// Keeps `config` and `own` at what the KubeVirt object in `namespace` says, and tells `health`; the defaults hold while
/// there is none.
pub async fn follow(
    client: Client,
    namespace: &str,
    config: Arc<ArcSwap<Cluster>>,
    own: Settings,
    health: Health,
) {
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let mut seen = Box::pin(versions(api, names::KUBEVIRT));
    while let Some(kubevirt) = seen.next().await {
        match kubevirt {
            Ok(kubevirt) => {
                info!(found = kubevirt.is_some(), "configuration taken");
                own.take(kubevirt.as_ref());
                let version = kubevirt.as_ref().and_then(ResourceExt::resource_version);
                config.store(Arc::new(kubevirt.map(Cluster::of).unwrap_or_default()));
                health.applied(version);
            }
            Err(error) => {
                health.failed(&error);
                warn!(error = &error as &dyn std::error::Error, "watching the KubeVirt object failed");
            }
        }
    }
}
