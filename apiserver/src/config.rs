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
/// there is none. It calls `known` once the API server has answered: until then nothing says that the defaults hold.
pub async fn follow(
    client: Client,
    namespace: &str,
    config: Arc<ArcSwap<Cluster>>,
    own: Settings,
    health: Health,
    known: impl Fn() + Send,
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
                known();
            }
            Err(error) => {
                health.failed(&error);
                warn!(error = &error as &dyn std::error::Error, "watching the KubeVirt object failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use podvirt_api::verbosity::Component;
    use podvirt_daemon::telemetry::Logs;
    use podvirt_daemon::testing;
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_configuration_is_known_once_the_api_server_has_answered() {
        let answers = Arc::new(AtomicBool::new(false));
        let server = Arc::clone(&answers);
        let client = testing::client("kubevirt", move |_, _, _| {
            if !server.load(Ordering::Relaxed) {
                return testing::failure(429, "TooManyRequests", "later");
            }
            let meta = json!({"name": "kubevirt", "namespace": "kubevirt", "resourceVersion": "7"});
            let spec = json!({"configuration": {"evictionStrategy": "LiveMigrate"}});
            let kubevirt =
                json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": meta, "spec": spec});
            (200, json!({"metadata": {"resourceVersion": "7"}, "items": [kubevirt]}))
        });
        let (own, _policies) = Settings::new(Component::Api, Logs::fixed());
        let (config, known) = (Arc::new(ArcSwap::<Cluster>::default()), Notify::new());
        let following = follow(client, "kubevirt", Arc::clone(&config), own, Health::default(), || {
            known.notify_one();
        });
        let mut following = Box::pin(following);
        // Longer than the watch rests between two attempts.
        let mut is_known = async || {
            tokio::select! {
                () = &mut following => false,
                () = known.notified() => true,
                () = tokio::time::sleep(Duration::from_secs(600)) => false,
            }
        };
        assert!(!is_known().await, "reviews would be answered by the defaults");
        answers.store(true, Ordering::Relaxed);
        assert!(is_known().await);
        assert!(config.load().configuration.eviction_strategy.is_some());
    }
}
