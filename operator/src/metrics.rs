//! virt-operator's metrics, by upstream's names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What virt-operator counts.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// 1 while this replica leads.
    pub leading: Gauge,
    /// 1 once this replica can take the lead.
    pub ready: Gauge,
    /// Passes over all objects.
    pub passes: Counter,
    /// Passes that failed.
    pub failures: Counter,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "kubevirt_virt_operator_leading_status",
            "Whether this replica of virt-operator works",
            metrics.leading.clone(),
        );
        registry.register(
            "kubevirt_virt_operator_ready_status",
            "Whether this replica of virt-operator can take the lead",
            metrics.ready.clone(),
        );
        registry.register(
            "podvirt_operator_passes",
            "Passes over all objects of podvirt",
            metrics.passes.clone(),
        );
        registry.register("podvirt_operator_failures", "Passes that failed", metrics.failures.clone());
        metrics
    }
}
