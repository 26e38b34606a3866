//! The cluster's configuration: the KubeVirt object, watched.
//!
//! A cluster without one is configured by defaults. What changes applies to what is made from then on.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use podvirt_api::names;
use podvirt_api::v1::{KubeVirt, KubeVirtConfiguration};
use tokio::sync::watch;

/// What the KubeVirt object says to controllers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Its configuration.
    pub configuration: KubeVirtConfiguration,
    /// Secrets to pull podvirt's own images with.
    pub image_pull_secrets: Vec<String>,
}

impl Settings {
    fn of(kubevirt: &KubeVirt) -> Self {
        let secrets = kubevirt.spec.image_pull_secrets.iter().map(|s| s.name.clone());
        Self {
            configuration: kubevirt.spec.configuration.clone().unwrap_or_default(),
            image_pull_secrets: secrets.collect(),
        }
    }
}

/// The settings as they are now. Clones see the same.
#[derive(Clone, Debug)]
pub struct Cluster(watch::Receiver<Option<Arc<Settings>>>);

impl Cluster {
    /// Settings that never change.
    pub fn fixed(settings: Settings) -> Self {
        Self(watch::channel(Some(Arc::new(settings))).1)
    }

    /// The settings; waits until they were read for the first time.
    pub async fn settings(&self) -> Arc<Settings> {
        let mut receiver = self.0.clone();
        // A sender that is gone leaves the last value; without any, the process is ending.
        match receiver.wait_for(Option::is_some).await {
            Ok(there) => there.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// Follows the KubeVirt object of `namespace` for as long as the future is polled.
pub fn follow(client: Client, namespace: &str) -> (Cluster, impl Future<Output = ()> + use<>) {
    let (sender, receiver) = watch::channel(None);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", names::KUBEVIRT));
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let work = async move {
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut listed = None;
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    if let Some(settings) = step(event, &mut listed) {
                        set(&sender, settings);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "watch of the KubeVirt object");
                }
            }
        }
    };
    (Cluster(receiver), work)
}

/// What a change makes of the settings.
fn step(event: Event<KubeVirt>, listed: &mut Option<Settings>) -> Option<Settings> {
    match event {
        Event::Init => {
            *listed = None;
            None
        }
        Event::InitApply(kubevirt) => {
            *listed = Some(Settings::of(&kubevirt));
            None
        }
        Event::InitDone => Some(listed.take().unwrap_or_default()),
        Event::Apply(kubevirt) => Some(Settings::of(&kubevirt)),
        Event::Delete(kubevirt) => {
            tracing::warn!(name = kubevirt.name_any(), "KubeVirt object deleted: defaults apply");
            Some(Settings::default())
        }
    }
}

fn set(sender: &watch::Sender<Option<Arc<Settings>>>, settings: Settings) {
    let changed = sender.send_if_modified(|there| {
        let changed = there.as_deref() != Some(&settings);
        if changed {
            *there = Some(Arc::new(settings));
        }
        changed
    });
    if changed {
        tracing::info!("configuration read");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kubevirt(emulation: bool) -> KubeVirt {
        serde_json::from_value(json!({
            "metadata": {"name": "kubevirt"},
            "spec": {
                "imagePullSecrets": [{"name": "s"}],
                "configuration": {"developerConfiguration": {"useEmulation": emulation}},
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_list_without_the_object_gives_defaults_and_changes_follow() {
        let mut listed = None;
        assert_eq!(step(Event::Init, &mut listed), None);
        assert_eq!(step(Event::InitDone, &mut listed), Some(Settings::default()));
        let emulating = step(Event::Apply(kubevirt(true)), &mut listed).unwrap();
        assert_eq!(emulating.image_pull_secrets, ["s"]);
        assert_ne!(emulating, step(Event::Apply(kubevirt(false)), &mut listed).unwrap());
        assert_eq!(step(Event::Delete(kubevirt(true)), &mut listed), Some(Settings::default()));
        step(Event::Init, &mut listed);
        assert_eq!(step(Event::InitApply(kubevirt(true)), &mut listed), None, "until the list is complete");
        assert_eq!(step(Event::InitDone, &mut listed), Some(emulating));
    }
}
