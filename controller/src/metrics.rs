//! What the controllers count, under upstream's names where there are any.

use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus as Status};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::objects::Objects;

/// Seconds: from an idle cluster's tenths to an image that takes long to pull, and what is stuck.
const BUCKETS: [f64; 14] =
    [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabels {
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabels {
    phase: String,
    last: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MigrationLabels {
    result: &'static str,
}

/// Counters of the process. Clones count into the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    from_creation: Family<PhaseLabels, Histogram>,
    between: Family<TransitionLabels, Histogram>,
    reconciles: Family<ReconcileLabels, Counter>,
    migrations: Family<MigrationLabels, Counter>,
    outdated: Gauge,
    /// What the caches hold.
    pub objects: Objects,
    /// 1 while this replica works.
    pub leading: Gauge,
    /// 1 once this replica can take the lead.
    pub ready: Gauge,
}

impl Metrics {
    /// Counters that `registry` shows.
    pub fn new(registry: &mut Registry) -> Self {
        let histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            from_creation: Family::new_with_constructor(histogram),
            between: Family::new_with_constructor(histogram),
            reconciles: Family::default(),
            migrations: Family::default(),
            outdated: Gauge::default(),
            objects: Objects::default(),
            leading: Gauge::default(),
            ready: Gauge::default(),
        };
        registry.register_collector(Box::new(metrics.objects.clone()));
        for name in ["kubevirt_virt_controller_leading_status", "podvirt_controller_leading"] {
            registry.register(name, "Whether this replica works", metrics.leading.clone());
        }
        registry.register(
            "kubevirt_virt_controller_ready_status",
            "Whether this replica can take the lead",
            metrics.ready.clone(),
        );
        registry.register(
            "kubevirt_vmi_number_of_outdated",
            "Machines that need another pod: their launcher is of an older image, or they wait for a migration",
            metrics.outdated.clone(),
        );
        registry.register(
            "kubevirt_vmi_phase_transition_time_from_creation_seconds",
            "Time from a machine's creation until it reached a phase",
            metrics.from_creation.clone(),
        );
        registry.register(
            "kubevirt_vmi_phase_transition_time_seconds",
            "Time that a machine took from one phase to the next",
            metrics.between.clone(),
        );
        registry.register(
            "podvirt_controller_reconciles",
            "Reconciliations by controller and result",
            metrics.reconciles.clone(),
        );
        registry.register(
            "podvirt_controller_migrations",
            "Migrations that ended, by result",
            metrics.migrations.clone(),
        );
        metrics
    }

    /// Tells how many machines need another pod.
    pub fn outdated(&self, machines: usize) {
        self.outdated.set(i64::try_from(machines).unwrap_or(i64::MAX));
    }

    /// Counts a migration that ended.
    pub fn migrated(&self, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        self.migrations.get_or_create(&MigrationLabels { result }).inc();
    }

    /// Counts a reconciliation; `error` is what failed.
    pub fn reconciled(&self, controller: &'static str, error: Option<&'static str>) {
        let labels = ReconcileLabels { controller, result: error.unwrap_or("success") };
        self.reconciles.get_or_create(&labels).inc();
    }

    /// Counts a machine's step from the phase in `before` to the one in `after`.
    pub fn transition(&self, before: &VirtualMachineInstance, after: &VirtualMachineInstance) {
        let (old, new) = (phase(&before.status), phase(&after.status));
        let Some(reached) = time_of(&after.status, &new) else { return };
        if let Some(created) = &after.metadata.creation_timestamp {
            let labels = PhaseLabels { phase: new.clone() };
            self.from_creation.get_or_create(&labels).observe(seconds(created.0, reached));
        }
        if let Some(last) = time_of(&before.status, &old) {
            let labels = TransitionLabels { phase: new, last: old };
            self.between.get_or_create(&labels).observe(seconds(last, reached));
        }
    }
}

fn phase(status: &Status) -> String {
    status.phase.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn time_of(status: &Status, phase: &str) -> Option<jiff::Timestamp> {
    let is = |p: &&podvirt_api::v1::VirtualMachineInstancePhaseTransitionTimestamp| {
        p.phase.as_ref().is_some_and(|p| p.as_str() == phase)
    };
    let entry = status.phase_transition_timestamps.iter().find(is)?;
    Some(entry.phase_transition_timestamp.as_ref()?.as_ref()?.0)
}

/// Never below zero: the API server's clock made the one, ours the other.
fn seconds(from: jiff::Timestamp, to: jiff::Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}
