//! The presets of all namespaces, as a cache: each new machine is looked at with those of its namespace.

use futures::{FutureExt, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client};
use podvirt_api::v1::VirtualMachineInstancePreset as Preset;
use tracing::warn;

/// Presets that may not be readable: one of these must not end the watch of all.
type Guarded = DeserializeGuard<Preset>;

/// The presets as they are now. Clones see the same.
#[derive(Clone, Debug)]
pub struct Presets(Store<Guarded>);

impl Presets {
    /// No presets, and none will come.
    pub fn none() -> Self {
        let (store, mut writer) = store();
        for event in [watcher::Event::Init, watcher::Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        Presets(store)
    }

    /// The presets, and what follows them for as long as it is polled; it calls `known` once they are known.
    pub fn follow(client: Client, known: impl Fn() + Send) -> (Self, impl Future<Output = ()> + Send) {
        let (store, writer) = store();
        let presets = Presets(store.clone());
        let follow = async move {
            let events = watcher(Api::<Guarded>::all(client), watcher::Config::default()).default_backoff();
            let mut events = Box::pin(reflector(writer, events));
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::InitDone) => known(),
                    Ok(watcher::Event::Apply(DeserializeGuard(Err(error)))) => {
                        warn!(
                            namespace = error.metadata.namespace,
                            name = error.metadata.name,
                            error = &error as &dyn std::error::Error,
                            "preset cannot be read: it is left out"
                        );
                    }
                    Ok(_) => {}
                    Err(error) => {
                        warn!(error = &error as &dyn std::error::Error, "watching the presets failed");
                    }
                }
            }
        };
        (presets, follow)
    }

    /// Those of a namespace; nothing while they are not known yet.
    pub fn of(&self, namespace: &str) -> Option<Vec<Preset>> {
        self.0.wait_until_ready().now_or_never()?.ok()?;
        let all = self.0.state().into_iter().filter_map(|guarded| guarded.0.as_ref().ok().cloned());
        Some(all.filter(|preset| preset.metadata.namespace.as_deref() == Some(namespace)).collect())
    }
}
