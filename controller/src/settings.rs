//! The cluster's configuration: the KubeVirt object, watched.
//!
//! A cluster without one is configured by defaults. What changes applies to what is made from then on.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::annotation;
use podvirt_api::resources::AutoLimits;
use podvirt_api::rotation::Rotation;
use podvirt_api::v1::{KubeVirt, KubeVirtConfiguration, WorkloadUpdateMethod};
use podvirt_api::{duration, names, netd};
use podvirt_daemon::follow::follow as versions;
use podvirt_daemon::health::Health;
use podvirt_daemon::settings::Settings as Own;
use tokio::sync::watch;

use crate::template::{self, Images};

/// What the KubeVirt object says to controllers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Its configuration.
    pub configuration: KubeVirtConfiguration,
    /// Secrets to pull podvirt's own images with.
    pub image_pull_secrets: Vec<String>,
    /// Whether machines that have to move, or whose launcher is of an older image, are migrated without being asked for
    /// it.
    pub live_migrates: bool,
    /// Whether those of them that cannot be migrated are evicted.
    pub evicts: bool,
    /// Most machines to evict at once.
    pub batch: usize,
    /// Time between two batches.
    pub batch_interval: Duration,
    /// How long certificates live.
    pub rotation: Rotation,
    /// Whether pods of machines that do not say it have no hooks for backup tools.
    pub backup_hooks_are_off: bool,
    /// How many flows each netd of a machine that does not say it carries; none leaves netd's own number.
    pub netd_flows: Option<u32>,
    /// Whether virt-operator, where there is one, has replaced all daemons.
    pub is_rolled_out: bool,
    /// Whether there is a KubeVirt object.
    pub is_there: bool,
    /// How many machines with an older launcher the object's status tells of.
    pub outdated: Option<i64>,
}

/// Machines that are evicted at once where the KubeVirt object says nothing; upstream's.
const BATCH: usize = 10;
/// Time between two batches where the KubeVirt object says nothing; upstream's.
const BATCH_INTERVAL: Duration = Duration::from_secs(60);

impl Settings {
    fn of(kubevirt: &KubeVirt) -> Self {
        let strategy = kubevirt.spec.workload_update_strategy.clone().unwrap_or_default();
        let method = |method| strategy.workload_update_methods.contains(&method);
        let (size, interval) = (strategy.batch_eviction_size, &strategy.batch_eviction_interval);
        let hooks = kubevirt.annotations().get(annotation::SKIP_BACKUP_HOOKS);
        // What is no number of flows came past admission, which refuses it.
        let netd_flows = kubevirt.annotations().get(annotation::NETD_FLOWS);
        let secrets = kubevirt.spec.image_pull_secrets.iter().map(|s| s.name.clone());
        Self {
            configuration: kubevirt.spec.configuration.clone().unwrap_or_default(),
            image_pull_secrets: secrets.collect(),
            live_migrates: method(WorkloadUpdateMethod::LiveMigrate),
            evicts: method(WorkloadUpdateMethod::Evict),
            batch: size.and_then(|size| size.try_into().ok()).unwrap_or(BATCH),
            batch_interval: interval.as_deref().and_then(duration::parse).unwrap_or(BATCH_INTERVAL),
            rotation: rotation(kubevirt),
            backup_hooks_are_off: hooks.is_some_and(|value| template::are_off(value)),
            netd_flows: netd_flows.and_then(|value| netd::parse_flows(value)),
            is_rolled_out: kubevirt.status.target_deployment_id == kubevirt.status.observed_deployment_id,
            is_there: true,
            outdated: kubevirt.status.outdated_virtual_machine_instance_workloads,
        }
    }

    /// What launcher pods get of them; `limits` are the namespace's.
    pub fn images(&self, launcher: &str, limits: AutoLimits) -> Images {
        Images {
            launcher: launcher.to_owned(),
            pull_secrets: self.image_pull_secrets.clone(),
            limits,
            backup_hooks_are_off: self.backup_hooks_are_off,
            netd_flows: self.netd_flows,
        }
    }
}

fn rotation(kubevirt: &KubeVirt) -> Rotation {
    let strategy = kubevirt.spec.certificate_rotate_strategy.as_ref();
    strategy.and_then(|strategy| strategy.self_signed.as_ref()).map(Rotation::of).unwrap_or_default()
}

/// The settings as they are now. Clones see the same.
#[derive(Clone, Debug)]
pub struct Cluster(watch::Receiver<Option<Arc<Settings>>>);

impl Cluster {
    /// Settings that never change.
    pub fn fixed(settings: Settings) -> Self {
        Self(watch::channel(Some(Arc::new(settings))).1)
    }

    /// Settings that were not read yet, and what tells them.
    #[cfg(test)]
    pub(crate) fn changing() -> (watch::Sender<Option<Arc<Settings>>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The settings; defaults before they were read for the first time. What is written to the cluster goes by
    /// [`Cluster::settings`].
    pub fn now_or_default(&self) -> Arc<Settings> {
        self.0.borrow().clone().unwrap_or_default()
    }

    /// Word of each change.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<Settings>>> {
        self.0.clone()
    }

    /// The settings; waits until they were read for the first time.
    pub async fn settings(&self) -> Arc<Settings> {
        let mut receiver = self.0.clone();
        // A sender that is gone leaves the last value; without any, the process is ending.
        let there = receiver.wait_for(Option::is_some).await.map(|there| there.clone().unwrap_or_default());
        match there {
            Ok(there) => there,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Follows the KubeVirt object of `namespace` for as long as the future is polled, and tells `own` and `health`.
pub fn follow(
    client: Client,
    namespace: &str,
    own: Own,
    health: Health,
) -> (Cluster, impl Future<Output = ()> + Send + use<>) {
    let (sender, receiver) = watch::channel(None);
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let work = async move {
        let mut versions = Box::pin(versions(api, names::KUBEVIRT));
        let mut found = false;
        while let Some(seen) = versions.next().await {
            match seen {
                Ok(kubevirt) => {
                    if found && kubevirt.is_none() {
                        tracing::warn!("KubeVirt object deleted: defaults apply");
                    }
                    found = kubevirt.is_some();
                    own.take(kubevirt.as_ref());
                    set(&sender, kubevirt.as_ref().map(Settings::of).unwrap_or_default());
                    health.applied(kubevirt.as_ref().and_then(ResourceExt::resource_version));
                }
                Err(error) => {
                    health.failed(&error);
                    tracing::warn!(error = &error as &dyn std::error::Error, "watch of the KubeVirt object");
                }
            }
        }
    };
    (Cluster(receiver), work)
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
    fn backup_hooks_are_off_where_the_annotation_says_true() {
        for (value, off) in [(None, false), (Some("false"), false), (Some("true"), true)] {
            let mut kubevirt = kubevirt(false);
            kubevirt.metadata.annotations =
                value.map(|value| [("kubevirt.io/skip-backup-hooks".to_owned(), value.to_owned())].into());
            let settings = Settings::of(&kubevirt);
            assert_eq!(settings.backup_hooks_are_off, off, "{value:?}");
            let images = settings.images("launcher:1", AutoLimits::default());
            assert_eq!((images.pull_secrets, images.backup_hooks_are_off), (vec!["s".to_owned()], off));
        }
    }

    #[test]
    fn the_annotation_is_the_clusters_number_of_flows() {
        for (value, flows) in
            [(None, None), (Some("50000"), Some(50_000)), (Some("131073"), None), (Some("many"), None)]
        {
            let mut kubevirt = kubevirt(false);
            kubevirt.metadata.annotations =
                value.map(|value| [("podvirt.io/netd-flows".to_owned(), value.to_owned())].into());
            let images = Settings::of(&kubevirt).images("launcher:1", AutoLimits::default());
            assert_eq!(images.netd_flows, flows, "{value:?}");
        }
    }

    #[test]
    fn settings_are_told_once_and_each_change_of_them() {
        let (sender, mut receiver) = watch::channel(None);
        set(&sender, Settings::default());
        assert_eq!(receiver.borrow_and_update().as_deref(), Some(&Settings::default()));
        set(&sender, Settings::of(&kubevirt(true)));
        let emulating = receiver.borrow_and_update().clone().unwrap();
        assert_eq!(emulating.image_pull_secrets, ["s"]);
        set(&sender, Settings::of(&kubevirt(true)));
        assert!(!receiver.has_changed().unwrap(), "nothing changed");
        set(&sender, Settings::of(&kubevirt(false)));
        assert_ne!(*receiver.borrow_and_update().clone().unwrap(), *emulating);
    }
}
