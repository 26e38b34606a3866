//! What the cluster's configuration adds to a machine, which its launcher gets with the VMI.

use std::time::Duration;

use podvirt_api::v1::{KubeVirt, KubeVirtConfiguration};
use podvirt_proto::cmd::v1::{SmBios, VirtualMachineOptions};
use podvirt_proto::cmd::{BALLOON_PERIOD, default_smbios};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a machine waits for the KubeVirt object after the start of virt-handler; then it has the defaults.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The options of machines that start from now on. Clones share them.
#[derive(Clone, Debug)]
pub struct Options(watch::Sender<Option<VirtualMachineOptions>>);

impl Default for Options {
    /// Those of a cluster whose configuration says nothing.
    fn default() -> Self {
        Self(watch::Sender::new(Some(of(&KubeVirtConfiguration::default()))))
    }
}

impl Options {
    /// None yet: the KubeVirt object has not been seen.
    pub fn unknown() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Takes what the KubeVirt object says now; defaults where there is none.
    pub fn take(&self, kubevirt: Option<&KubeVirt>) {
        let configuration = kubevirt.and_then(|kubevirt| kubevirt.spec.configuration.as_ref());
        self.0.send_replace(Some(configuration.map_or_else(|| of(&KubeVirtConfiguration::default()), of)));
    }

    /// The present options.
    pub async fn get(&self) -> VirtualMachineOptions {
        let mut known = self.0.subscribe();
        let options = timeout(TIMEOUT, known.wait_for(Option::is_some)).await;
        let options = options.ok().and_then(|known| known.ok().and_then(|options| options.clone()));
        options.unwrap_or_else(|| of(&KubeVirtConfiguration::default()))
    }
}

/// The options by a configuration. A configuration with `smbios` replaces all of the default texts: a field that it leaves out
/// is an empty text.
fn of(configuration: &KubeVirtConfiguration) -> VirtualMachineOptions {
    let smbios = configuration.smbios.clone().map(|given| SmBios {
        manufacturer: given.manufacturer.unwrap_or_default(),
        product: given.product.unwrap_or_default(),
        version: given.version.unwrap_or_default(),
        sku: given.sku.unwrap_or_default(),
        family: given.family.unwrap_or_default(),
    });
    VirtualMachineOptions {
        virtual_machine_sm_bios: Some(smbios.unwrap_or_else(default_smbios)),
        mem_balloon_stats_period: configuration.mem_balloon_stats_period.unwrap_or(BALLOON_PERIOD),
        ..VirtualMachineOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kubevirt(period: &serde_json::Value) -> KubeVirt {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
            "spec": {"configuration": {"memBalloonStatsPeriod": period}},
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_period_is_the_kubevirt_objects_once_that_was_seen() {
        let options = Options::unknown();
        let period = async || options.get().await.mem_balloon_stats_period;
        assert_eq!(period().await, 10, "a machine does not wait for ever");
        let waiting = options.clone();
        let waiting = tokio::spawn(async move { waiting.get().await.mem_balloon_stats_period });
        tokio::task::yield_now().await;
        options.take(Some(&kubevirt(&json!(3))));
        assert_eq!(waiting.await.unwrap(), 3);
        options.take(Some(&kubevirt(&json!(0))));
        assert_eq!(period().await, 0);
        options.take(Some(&kubevirt(&json!(null))));
        assert_eq!(period().await, 10);
        options.take(None);
        assert_eq!(period().await, 10);
    }

    #[test]
    fn the_tables_are_the_configurations_or_upstreams() {
        let smbios = |configuration: serde_json::Value| {
            of(&serde_json::from_value(configuration).unwrap()).virtual_machine_sm_bios.unwrap()
        };
        assert_eq!(smbios(json!({})), default_smbios());
        let own = smbios(json!({"smbios": {"manufacturer": "Acme", "sku": "7"}}));
        assert_eq!(own, SmBios { manufacturer: "Acme".into(), sku: "7".into(), ..SmBios::default() });
    }
}
