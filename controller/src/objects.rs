//! Series of what the caches hold: machines, their instances, migrations. Names and labels are KubeVirt's.
//!
//! They are made at each scrape of what the caches hold at that moment, so that no series outlives its object. The replica
//! that leads has caches; the others show none of these series.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::Store;
use podvirt_api::migration::{eviction_strategy, migratable};
use podvirt_api::names::label;
use podvirt_api::v1::{
    EvictionStrategy, KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceMigration as Migration, VirtualMachineSnapshot as Snapshot,
};
use podvirt_api::vmi_info;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::settings::Cluster;
use crate::vm::Machines;
use crate::vmi::{View, pods};

/// What stands in a label that has nothing to say; KubeVirt's.
const NONE: &str = "<none>";

/// The caches of the replica that leads.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Machines.
    pub machines: Machines,
    /// Their instances.
    pub instances: View,
    /// Migrations.
    pub migrations: Store<Migration>,
    /// Snapshots.
    pub snapshots: Store<Snapshot>,
    /// The cluster's configuration.
    pub cluster: Cluster,
}

/// Where the caches are while this replica leads. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Objects(Arc<Mutex<Option<Caches>>>);

/// Shows the caches until it is dropped.
#[derive(Debug)]
pub struct Shown(Objects);

impl Objects {
    /// Shows these caches.
    pub fn show(&self, caches: Caches) -> Shown {
        self.set(Some(caches));
        Shown(self.clone())
    }

    fn set(&self, caches: Option<Caches>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = caches;
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let caches = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(caches) = caches else { return Ok(()) };
        let settings = caches.cluster.now_or_default();
        let families = [
            of_machines(&caches.machines.store().state()),
            of_instances(&caches.instances.machines(), &settings.configuration, &caches.migrations.state()),
            of_migrations(&caches.migrations.state()),
            of_snapshots(&caches.snapshots.state()),
        ];
        for family in families.into_iter().flatten() {
            let kind = ConstGauge::new(0.0).metric_type();
            let mut series = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, value) in family.samples {
                ConstGauge::new(value).encode(series.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Labels of one series.
type Labels = Vec<(&'static str, String)>;

/// A family of gauges.
#[derive(Debug, PartialEq)]
struct Family {
    name: &'static str,
    help: &'static str,
    samples: Vec<(Labels, f64)>,
}

#[allow(clippy::cast_precision_loss, reason = "series have numbers of this kind")]
fn seconds(time: jiff::Timestamp) -> f64 {
    time.as_second() as f64
}

/// How statuses are grouped, each group with its family of the time since when a machine is in it.
const GROUPS: [(&str, &str, &[&str]); 5] = [
    (
        "starting",
        "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
        &["Provisioning", "Starting", "WaitingForVolumeBinding", "WaitingForReceiver"],
    ),
    ("running", "kubevirt_vm_running_status_last_transition_timestamp_seconds", &["Running"]),
    ("migrating", "kubevirt_vm_migrating_status_last_transition_timestamp_seconds", &["Migrating"]),
    (
        "non_running",
        "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
        &["Stopped", "Paused", "Stopping", "Terminating"],
    ),
    // And all others.
    ("error", "kubevirt_vm_error_status_last_transition_timestamp_seconds", &[]),
];

/// The group of a status.
fn group(status: &str) -> &'static str {
    let found = GROUPS.iter().find(|(_, _, words)| words.contains(&status));
    found.map_or("error", |(name, ..)| name)
}

fn of_machines(machines: &[Arc<VirtualMachine>]) -> Vec<Family> {
    let named = |vm: &VirtualMachine| -> Labels {
        vec![("name", vm.name_any()), ("namespace", vm.namespace().unwrap_or_default())]
    };
    let status =
        |vm: &VirtualMachine| vm.status.printable_status.as_ref().map_or("", |s| s.as_str()).to_owned();
    let infos = machines.iter().map(|vm| {
        let template = vm.spec.template.as_ref();
        let metadata = template.and_then(|template| template.metadata.as_ref());
        let annotation = |name: &str| {
            let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
            annotations.and_then(|all| all.get(&format!("vm.kubevirt.io/{name}"))).cloned()
        };
        let machine = template.and_then(|t| t.spec.as_ref()).and_then(|s| s.domain.machine.as_ref());
        let or_none = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or_else(|| NONE.into());
        let mut labels = named(vm);
        labels.extend([
            ("os", or_none(annotation("os"))),
            ("workload", or_none(annotation("workload"))),
            ("flavor", or_none(annotation("flavor"))),
            ("machine_type", or_none(machine.and_then(|machine| machine.r#type.clone()))),
            ("instance_type", or_none(vm.spec.instancetype.as_ref().and_then(|one| one.name.clone()))),
            ("preference", or_none(vm.spec.preference.as_ref().and_then(|one| one.name.clone()))),
            ("status", status(vm).to_lowercase()),
            ("status_group", group(&status(vm)).to_owned()),
        ]);
        (labels, 1.0)
    });
    let created = machines
        .iter()
        .filter_map(|vm| Some((named(vm), seconds(vm.metadata.creation_timestamp.as_ref()?.0))));
    let since = |name: &str| {
        let rows = machines.iter().map(|vm| {
            let is_in = group(&status(vm)) == name;
            (named(vm), if is_in { last_transition(vm) } else { 0.0 })
        });
        rows.collect()
    };
    let info = Family { name: "kubevirt_vm_info", help: "A machine", samples: infos.collect() };
    let created = Family {
        name: "kubevirt_vm_create_date_timestamp_seconds",
        help: "When a machine was made, in seconds since 1970",
        samples: created.collect(),
    };
    let transitions = GROUPS.iter().map(|(group, name, _)| Family {
        name,
        help: "When a machine came into a status of this group, in seconds since 1970; 0 of machines in another group",
        samples: since(group),
    });
    [info, created].into_iter().chain(transitions).collect()
}

/// When a condition that says how the machine is changed last; -1 where there is none.
fn last_transition(vm: &VirtualMachine) -> f64 {
    let telling = ["Ready", "Failure", "Paused"];
    let conditions = vm.status.conditions.iter().filter(|one| telling.contains(&one.r#type.as_str()));
    let times = conditions.filter_map(|one| Some(one.last_transition_time.as_ref()?.as_ref()?.0));
    times.max().map_or(-1.0, seconds)
}

fn of_instances(
    instances: &[Arc<VirtualMachineInstance>],
    configuration: &KubeVirtConfiguration,
    migrations: &[Arc<Migration>],
) -> Vec<Family> {
    let names: BTreeMap<String, String> =
        migrations.iter().filter_map(|one| Some((one.uid()?, one.name_any()))).collect();
    let named = |vmi: &VirtualMachineInstance| -> Labels {
        vec![
            ("node", vmi.status.node_name.clone().unwrap_or_default()),
            ("namespace", vmi.namespace().unwrap_or_default()),
            ("name", vmi.name_any()),
        ]
    };
    let bound = instances.iter().map(|vmi| {
        let must_move = eviction_strategy(vmi, configuration) == EvictionStrategy::LiveMigrate;
        (named(vmi), f64::from(u8::from(must_move && migratable(vmi).is_err())))
    });
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for vmi in instances {
        let Some(state) = &vmi.status.migration_state else { continue };
        let name = state.migration_uid.as_ref().and_then(|uid| names.get(uid));
        let mut labels = named(vmi);
        labels.push(("migration_name", name.cloned().unwrap_or_else(|| NONE.into())));
        if let Some(Some(time)) = &state.start_timestamp {
            begun.push((labels.clone(), seconds(time.0)));
        }
        if let Some(Some(time)) = &state.end_timestamp {
            let status = match (state.completed, state.failed) {
                (Some(true), Some(true)) => "failed",
                (Some(true), _) => "succeeded",
                _ => "",
            };
            labels.push(("status", status.to_owned()));
            ended.push((labels, seconds(time.0)));
        }
    }
    // virt-handler tells of those that have a node.
    let is_on_node = |vmi: &VirtualMachineInstance| vmi.labels().contains_key(label::NODE_NAME);
    let infos = instances.iter().filter(|vmi| !is_on_node(vmi)).map(|vmi| {
        let labels = vmi_info::labels(vmi, "", pods::name_of(vmi), configuration);
        (Vec::from(labels), 1.0)
    });
    vec![
        Family { name: vmi_info::NAME, help: "A VMI that is on no node yet", samples: infos.collect() },
        Family {
            name: "kubevirt_vmi_non_evictable",
            help: "Whether an eviction is to migrate the instance, and cannot",
            samples: bound.collect(),
        },
        Family {
            name: "kubevirt_vmi_migration_start_time_seconds",
            help: "When the last migration of an instance began, in seconds since 1970",
            samples: begun,
        },
        Family {
            name: "kubevirt_vmi_migration_end_time_seconds",
            help: "When the last migration of an instance ended, in seconds since 1970",
            samples: ended,
        },
    ]
}

fn of_migrations(migrations: &[Arc<Migration>]) -> Vec<Family> {
    let phase = |one: &Migration| one.status.phase.as_ref().map_or("", |phase| phase.as_str()).to_owned();
    let within = |name, help, phases: &[&str]| {
        let count = migrations.iter().filter(|one| phases.contains(&phase(one).as_str())).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Family { name, help, samples: vec![(Vec::new(), count.into())] }
    };
    let ended = |name, help, wanted: &str| {
        let samples = migrations.iter().filter(|one| phase(one) == wanted).map(|one| {
            let labels = vec![
                ("vmi", one.spec.vmi_name.clone().unwrap_or_default()),
                ("vmim", one.name_any()),
                ("namespace", one.namespace().unwrap_or_default()),
            ];
            (labels, 1.0)
        });
        Family { name, help, samples: samples.collect() }
    };
    vec![
        within("kubevirt_vmi_migrations_in_unset_phase", "Migrations that are not looked at yet", &[""]),
        within("kubevirt_vmi_migrations_in_pending_phase", "Migrations that wait for a place", &["Pending"]),
        within(
            "kubevirt_vmi_migrations_in_scheduling_phase",
            "Migrations whose target pod waits for a node",
            &["Scheduling"],
        ),
        within(
            "kubevirt_vmi_migrations_in_running_phase",
            "Migrations that have a target node and are not over",
            &["Scheduled", "PreparingTarget", "TargetReady", "Running"],
        ),
        ended("kubevirt_vmi_migration_succeeded", "A migration that has succeeded", "Succeeded"),
        ended("kubevirt_vmi_migration_failed", "A migration that has failed", "Failed"),
    ]
}

fn of_snapshots(snapshots: &[Arc<Snapshot>]) -> Vec<Family> {
    let taken = snapshots.iter().filter_map(|one| {
        let time = one.status.creation_time.as_ref()?.as_ref()?;
        let labels = vec![
            ("name", one.spec.source.name.clone()),
            ("snapshot_name", one.name_any()),
            ("namespace", one.namespace().unwrap_or_default()),
        ];
        Some((labels, seconds(time.0)))
    });
    vec![Family {
        name: "kubevirt_vmsnapshot_succeeded_timestamp_seconds",
        help: "When a snapshot of a machine was taken, in seconds since 1970",
        samples: taken.collect(),
    }]
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
