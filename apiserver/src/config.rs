//! The cluster's configuration: the KubeVirt object, as it is now.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use podvirt_api::names;
use podvirt_api::v1::{KubeVirt, KubeVirtConfiguration};
use tracing::{info, warn};

/// Keeps `config` at what the KubeVirt object in `namespace` says; the defaults hold while there is none.
pub async fn follow(client: Client, namespace: &str, config: Arc<ArcSwap<KubeVirtConfiguration>>) {
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let fields = watcher::Config::default().fields(&format!("metadata.name={}", names::KUBEVIRT));
    let mut events = Box::pin(watcher(api, fields).default_backoff());
    let mut listed = false;
    while let Some(event) = events.next().await {
        let seen = match event {
            Ok(watcher::Event::Init) => {
                listed = false;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = true;
                Some(object)
            }
            Ok(watcher::Event::Apply(object)) => Some(object),
            Ok(watcher::Event::InitDone) if listed => continue,
            Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => None,
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "watching the KubeVirt object failed");
                continue;
            }
        };
        info!(found = seen.is_some(), "configuration taken");
        config.store(Arc::new(seen.and_then(|object| object.spec.configuration).unwrap_or_default()));
    }
}
