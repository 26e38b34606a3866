//! What is counted, under KubeVirt's names and labels where it has them; podvirt's own have the prefix `podvirt_handler_`.
//!
//! What a VMI's status says anyway (`kubevirt_vmi_info`, `kubevirt_vmi_status_addresses`) is made of the store when
//! it is asked for: no series outlives its VMI. virt-controller has the `kubevirt_vmi_info` of those that are on no node yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use podvirt_api::v1::{
    KubeVirt, KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceNetworkInterface,
};
use podvirt_api::vmi_info;
use podvirt_proto::migration::Progress;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::node::{Store, pods};
use crate::queue::Outcome;

/// The name of the work queue in its metrics.
const QUEUE: &str = "virt-handler-vm";

/// Counters and gauges. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    depth: Family<Queue, Gauge>,
    passes: Family<Passes, Counter>,
    retries: Family<Queue, Counter>,
    syncs: Family<Passes, Counter>,
    heartbeats: Family<Passes, Counter>,
    kvm: Gauge,
    deprecated: Family<MachineType, Gauge>,
    moving: Moving,
    /// What the KubeVirt object says.
    configuration: Configuration,
}

/// The configuration by which a series is made, once the KubeVirt object was seen.
type Configuration = Arc<Mutex<KubeVirtConfiguration>>;

/// How far the migrations from here are, by UID of the VMI.
type Moving = Arc<Mutex<BTreeMap<String, (String, String, Progress)>>>;

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct Queue {
    name: &'static str,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct Passes {
    result: &'static str,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct MachineType {
    machine_type: String,
    node: String,
}

impl Metrics {
    /// Metrics in `registry`, with those that are made of `store`.
    pub fn register(registry: &mut Registry, store: Store, node: String) -> Self {
        let metrics = Self::default();
        let of = |name: &'static str| format!("kubevirt_{name}");
        registry.register(of("workqueue_depth"), "VMIs that wait or are worked on", metrics.depth.clone());
        registry.register(of("workqueue_retries"), "Passes over a VMI that failed", metrics.retries.clone());
        let own = |name: &'static str| format!("podvirt_handler_{name}");
        registry.register(own("passes"), "Passes over a VMI by result", metrics.passes.clone());
        registry.register(own("syncs"), "VMIs given to their launchers by result", metrics.syncs.clone());
        registry.register(own("heartbeats"), "Heartbeats by result", metrics.heartbeats.clone());
        registry.register(own("kvm_usable"), "Whether /dev/kvm is offered to pods", metrics.kvm.clone());
        registry.register(
            of("node_deprecated_machine_types"),
            "Machine types that QEMU has on this node and means to give up",
            metrics.deprecated.clone(),
        );
        let moving = Arc::clone(&metrics.moving);
        let configuration = Arc::clone(&metrics.configuration);
        registry.register_collector(Box::new(Vmis { store, node, moving, configuration }));
        metrics
    }

    /// Takes what the KubeVirt object says now; defaults where there is none.
    pub fn configured(&self, kubevirt: Option<&KubeVirt>) {
        let configuration = kubevirt.and_then(|kubevirt| kubevirt.spec.configuration.clone());
        *self.configuration.lock().unwrap_or_else(PoisonError::into_inner) =
            configuration.unwrap_or_default();
    }

    /// The queue holds so many VMIs.
    pub fn depth(&self, depth: usize) {
        let depth = i64::try_from(depth).unwrap_or(i64::MAX);
        self.depth.get_or_create(&Queue { name: QUEUE }).set(depth);
    }

    /// A pass ended.
    pub fn passed(&self, outcome: Outcome) {
        let result = result(outcome != Outcome::Failed);
        self.passes.get_or_create(&result).inc();
        if outcome == Outcome::Failed {
            self.retries.get_or_create(&Queue { name: QUEUE }).inc();
        }
    }

    /// A launcher was given its VMI.
    pub fn synced(&self, well: bool) {
        self.syncs.get_or_create(&result(well)).inc();
    }

    /// A heartbeat was written or not.
    pub fn beat(&self, well: bool) {
        self.heartbeats.get_or_create(&result(well)).inc();
    }

    /// Whether KVM is offered.
    pub fn kvm(&self, usable: bool) {
        self.kvm.set(usable.into());
    }

    /// The machine types of this node, each with whether it is deprecated.
    pub fn machine_types(&self, node: &str, types: &BTreeMap<String, bool>) {
        for (machine_type, _) in types.iter().filter(|(_, deprecated)| **deprecated) {
            let labels = MachineType { machine_type: machine_type.clone(), node: node.to_owned() };
            self.deprecated.get_or_create(&labels).set(1);
        }
    }

    /// How far the migration of a VMI from here is; none when none runs.
    pub fn moving(&self, vmi: &VirtualMachineInstance, progress: Option<Progress>) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let mut moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = text(&vmi.metadata.uid);
        match progress {
            Some(progress) => {
                let (namespace, name) = (text(&vmi.metadata.namespace), text(&vmi.metadata.name));
                moving.insert(uid, (namespace, name, progress));
            }
            None => drop(moving.remove(&uid)),
        }
    }
}

fn result(well: bool) -> Passes {
    Passes { result: if well { "success" } else { "failure" } }
}

/// Series of the VMIs' status.
#[derive(Debug)]
struct Vmis {
    store: Store,
    node: String,
    moving: Moving,
    configuration: Configuration,
}

impl Collector for Vmis {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let one = ConstGauge::new(1_i64);
        let mut vmis = self.store.all();
        // One that comes from another node is counted there until it is here.
        vmis.retain(|vmi| vmi.status.node_name.as_deref().is_none_or(|on| on == self.node));
        let mut info =
            encoder.encode_descriptor(vmi_info::NAME, "A VMI of this node", None, one.metric_type())?;
        let configuration = self.configuration.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for vmi in &vmis {
            let labels = vmi_info::labels(vmi, &self.node, pods::name_of(vmi), &configuration);
            one.encode(info.encode_family(&labels)?)?;
        }
        let mut addresses = encoder.encode_descriptor(
            "kubevirt_vmi_status_addresses",
            "An address of a VMI of this node",
            None,
            one.metric_type(),
        )?;
        for vmi in &vmis {
            // A guest may tell the same address of two interfaces; a series that is there twice would spoil the scrape.
            let labels: BTreeSet<_> =
                vmi.status.interfaces.iter().flat_map(|card| address_labels(vmi, &self.node, card)).collect();
            for labels in &labels {
                one.encode(addresses.encode_family(labels)?)?;
            }
        }
        self.encode_moving(&mut encoder)
    }
}

type AddressLabels = [(&'static str, String); 7];

/// Labels of the addresses of an interface, as upstream's; one without an address has a series as well.
fn address_labels(
    vmi: &VirtualMachineInstance,
    node: &str,
    card: &VirtualMachineInstanceNetworkInterface,
) -> Vec<AddressLabels> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let labels = |address: &str, kind: &str| {
        [
            ("node", node.to_owned()),
            ("namespace", text(&vmi.metadata.namespace)),
            ("name", text(&vmi.metadata.name)),
            ("vnic_name", text(&card.name)),
            ("interface_name", text(&card.interface_name)),
            ("address", address.to_owned()),
            ("type", kind.to_owned()),
        ]
    };
    let is_named = !text(&card.name).is_empty() || !text(&card.interface_name).is_empty();
    match card.ip_addresses.as_slice() {
        [] if is_named => vec![labels("", "SystemInterface")],
        addresses => addresses.iter().map(|address| labels(address, "ExternalInterface")).collect(),
    }
}

/// Name, help and value of a gauge of a migration's progress.
type OfMove = (&'static str, &'static str, fn(&Progress) -> u64);

const OF_MOVES: [OfMove; 5] = [
    ("data_bytes_total", "Memory and disks that a migration from this node has to copy, bytes", |p| p.total),
    ("data_processed_bytes", "Memory and disks that it has copied, bytes", |p| p.processed),
    ("data_remaining_bytes", "Memory and disks that it has left to copy, bytes", |p| p.remaining),
    ("dirty_memory_rate_bytes", "Memory that the guest writes meanwhile, bytes per second", |p| p.dirty_rate),
    ("memory_transfer_rate_bytes", "What is copied, bytes per second", |p| p.transfer_rate),
];

impl Vmis {
    fn encode_moving(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, help, value) in OF_MOVES {
            let name = format!("kubevirt_vmi_migration_{name}");
            let kind = ConstGauge::new(0_i64).metric_type();
            let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
            for (namespace, vmi, progress) in moving.values() {
                let labels =
                    [("node", self.node.clone()), ("namespace", namespace.clone()), ("name", vmi.clone())];
                let gauge = ConstGauge::new(i64::try_from(value(progress)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use podvirt_api::v1;
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn series_have_the_names_that_dashboards_know() {
        let store = Store::default();
        let mut vmi = v1::VirtualMachineInstance::default();
        vmi.metadata.uid = Some("u".into());
        vmi.metadata.name = Some("a".into());
        vmi.status.phase = Some(v1::VirtualMachineInstancePhase::Running);
        let card = |name: &str, guest: &str, addresses: &[&str]| VirtualMachineInstanceNetworkInterface {
            name: Some(name.into()),
            interface_name: Some(guest.into()),
            ip_addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            ..Default::default()
        };
        let first = card("default", "eth0", &["10.0.0.1"]);
        vmi.status.interfaces = vec![first.clone(), first, card("late", "", &[])];
        store.put(vmi);
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, store.clone(), "node1".into());
        metrics.synced(true);
        metrics.passed(Outcome::Failed);
        metrics.depth(3);
        let text = |registry: &Registry| {
            let mut text = String::new();
            encode(&mut text, registry).expect("encodes");
            text
        };
        let all = text(&registry);
        assert_eq!(all.matches("address=\"10.0.0.1\"").count(), 1);
        // virt-api counts consoles and screens, with the machine's name.
        assert!(!all.contains("active_connections"));
        for series in [
            r#"kubevirt_workqueue_depth{name="virt-handler-vm"} 3"#,
            r#"kubevirt_workqueue_retries_total{name="virt-handler-vm"} 1"#,
            r#"podvirt_handler_syncs_total{result="success"} 1"#,
            r#"podvirt_handler_passes_total{result="failure"} 1"#,
            r#"name="a",phase="running""#,
            r#"vnic_name="default",interface_name="eth0",address="10.0.0.1",type="ExternalInterface"} 1"#,
            r#"vnic_name="late",interface_name="",address="",type="SystemInterface"} 1"#,
        ] {
            assert!(all.contains(series), "{series} in\n{all}");
        }
        let progress = Progress { remaining: 7, ..Progress::default() };
        metrics.moving(&store.get("u").unwrap(), Some(progress));
        let all = text(&registry);
        assert!(all.contains(
            r#"kubevirt_vmi_migration_data_remaining_bytes{node="node1",namespace="",name="a"} 7"#
        ));
        metrics.moving(&store.get("u").unwrap(), None);
        assert!(!text(&registry).contains("data_remaining_bytes{"));
        store.remove("u");
        assert!(!text(&registry).contains("phase="));
    }
}
