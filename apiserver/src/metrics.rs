//! Metrics, with upstream's names where upstream has them.

use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::limits::Side;

/// The instance a stream leads to.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct InstanceLabels {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub vmi: String,
}

/// A question to a webhook.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AdmissionLabels {
    /// Name of the webhook.
    pub webhook: &'static str,
    /// `CREATE`, `UPDATE`; `other` for what the webhook is not asked for, and for reviews at paths that are not registered.
    pub operation: &'static str,
    /// `true`, `false`.
    pub allowed: &'static str,
}

/// A request for a subresource.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    /// Plural of the kind.
    pub resource: &'static str,
    /// Subresource.
    pub subresource: &'static str,
    /// HTTP status of the answer.
    pub code: u32,
}

/// Whose share of the server something takes.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SideLabels {
    /// `apiserver`, `other`.
    pub caller: &'static str,
}

impl From<Side> for SideLabels {
    fn from(side: Side) -> Self {
        SideLabels { caller: side.label() }
    }
}

/// All metrics of virt-api.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Open consoles.
    pub consoles: Family<InstanceLabels, Gauge>,
    /// Open VNC connections.
    pub vncs: Family<InstanceLabels, Gauge>,
    /// Open port-forwards.
    pub tunnels: Family<InstanceLabels, Gauge>,
    /// Answers of the webhooks.
    pub admissions: Family<AdmissionLabels, Counter>,
    /// Answers of the aggregated API.
    pub requests: Family<RequestLabels, Counter>,
    /// Bytes of requests' bodies that are in memory.
    pub buffered_bytes: Family<SideLabels, Gauge>,
    /// Connections for which there was no place.
    pub refused_connections: Family<SideLabels, Counter>,
}

impl Metrics {
    /// Metrics that are known to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        registry.register(
            "kubevirt_console_active_connections",
            "Open serial consoles",
            metrics.consoles.clone(),
        );
        registry.register("kubevirt_vnc_active_connections", "Open VNC connections", metrics.vncs.clone());
        registry.register(
            "kubevirt_portforward_active_tunnels",
            "Open port-forward tunnels",
            metrics.tunnels.clone(),
        );
        registry.register(
            "podvirt_api_admission_reviews",
            "Objects that the webhooks judged",
            metrics.admissions.clone(),
        );
        registry.register(
            "podvirt_api_subresource_requests",
            "Requests for subresources of objects",
            metrics.requests.clone(),
        );
        registry.register(
            "podvirt_api_buffered_bytes",
            "Bytes of requests' bodies that are in memory",
            metrics.buffered_bytes.clone(),
        );
        registry.register(
            "podvirt_api_refused_connections",
            "Connections that were closed because their caller has enough, or all places are taken",
            metrics.refused_connections.clone(),
        );
        metrics
    }
}

/// Held while streams are counted: a series that is about to be removed is not counted up meanwhile.
static COUNTING: Mutex<()> = Mutex::new(());

/// Counts a stream as open as long as it lives. An instance without streams has no series.
#[derive(Debug)]
pub struct Open {
    family: Family<InstanceLabels, Gauge>,
    labels: InstanceLabels,
}

impl Open {
    /// Counts one more stream to an instance.
    pub fn new(family: &Family<InstanceLabels, Gauge>, namespace: &str, vmi: &str) -> Self {
        let labels = InstanceLabels { namespace: namespace.to_owned(), vmi: vmi.to_owned() };
        let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        family.get_or_create(&labels).inc();
        Open { family: family.clone(), labels }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.family.get_or_create(&self.labels).dec();
        if before <= 1 {
            self.family.remove(&self.labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_while_they_live() {
        let metrics = Metrics::register(&mut Registry::default());
        let labels = InstanceLabels { namespace: "ns".into(), vmi: "vm1".into() };
        let (one, two) =
            (Open::new(&metrics.consoles, "ns", "vm1"), Open::new(&metrics.consoles, "ns", "vm1"));
        assert_eq!(metrics.consoles.get_or_create(&labels).get(), 2);
        drop(one);
        assert_eq!(metrics.consoles.get_or_create(&labels).get(), 1);
        drop(two);
        assert!(metrics.consoles.get(&labels).is_none(), "the series is gone");
    }
}
