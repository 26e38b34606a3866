//! Families of series of what launchers have told.
//!
//! Names, kinds, labels and units are KubeVirt's: bytes and seconds, where launchers tell KiB and nanoseconds. A number that a
//! launcher does not know has no series.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use podvirt_proto::stats::{Block, Cpu, Load, MAX_ROWS, Memory, Net, Vcpu, state};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Filesystem, Report};

/// Bytes of the series of one VMI. A machine with two hundred disks and ordinary labels has them all.
const MAX_SERIES_BYTES: usize = 1 << 20;
/// Bytes of a series beside its family's name and its labels: the value, braces, an end.
const VALUE_BYTES: usize = 32;
/// Bytes of a label beside its name and value.
const LABEL_BYTES: usize = 4;

/// Labels of a series beside those of its VMI.
type Labels = Vec<(&'static str, String)>;

/// A series of a report: the labels beside those of the VMI, and the value.
type Sample = (Labels, f64);

/// Takes a family's samples out of a report.
type Samples = Box<dyn Fn(&Report) -> Vec<Sample>>;

/// One family: name behind `kubevirt_vmi_`, without `_total`; help; kind; and its samples of one report.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Samples,
}

/// The reports of one scrape, to be encoded.
#[derive(Debug)]
pub struct Reports(pub Arc<[Report]>);

impl Collector for Reports {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Each report with the bytes of its VMI's labels, and the bytes that its series may still have.
        let labels =
            |report: &Report| report.labels.iter().map(|(key, value)| bytes(key, value)).sum::<usize>();
        let mut reports: Vec<_> =
            self.0.iter().map(|report| (report, labels(report), MAX_SERIES_BYTES)).collect();
        for family in families() {
            let name = format!("kubevirt_vmi_{}", family.name);
            let mut series = encoder.encode_descriptor(&name, family.help, None, family.kind)?;
            for (report, own, left) in &mut reports {
                let mut seen = BTreeSet::new();
                for (mut more, value) in (family.samples)(report) {
                    more.iter_mut().for_each(|(_, value)| value.retain(|c| !c.is_control()));
                    let text = name.len() + *own + VALUE_BYTES;
                    let text = text + more.iter().map(|(key, value)| bytes(key, value)).sum::<usize>();
                    // A launcher may tell the same disk twice; the first one counts.
                    if text > *left || !seen.insert(more.clone()) {
                        continue;
                    }
                    *left -= text;
                    let labels = (report.labels.as_slice(), more.as_slice());
                    let metric = series.encode_family(&labels)?;
                    match family.kind {
                        MetricType::Counter => ConstCounter::new(value).encode(metric)?,
                        _ => ConstGauge::new(value).encode(metric)?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a label in a series.
fn bytes(name: &str, value: &str) -> usize {
    let escaped = value.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    name.len() + value.len() + escaped + LABEL_BYTES
}

/// How a number that a launcher tells becomes one of a series.
#[derive(Clone, Copy)]
enum Unit {
    One,
    KiB,
    Nanoseconds,
}

impl Unit {
    #[allow(clippy::cast_precision_loss, reason = "series have numbers of this kind")]
    fn value(self, number: u64) -> f64 {
        let number = number as f64;
        match self {
            Unit::One => number,
            Unit::KiB => number * 1024.0,
            Unit::Nanoseconds => number / 1e9,
        }
    }
}

/// A family with one series of each VMI.
fn single(
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    unit: Unit,
    of: impl Fn(&Report) -> Option<u64> + 'static,
) -> Family {
    let samples = move |report: &Report| {
        of(report).map(|number| (Vec::new(), unit.value(number))).into_iter().collect()
    };
    Family { name, help, kind, samples: Box::new(samples) }
}

fn families() -> Vec<Family> {
    let mut families = Vec::new();
    families.extend(MEMORY.iter().map(|(name, help, kind, unit, of)| {
        single(name, help, *kind, *unit, |report| of(report.stats.memory.as_ref()?))
    }));
    families.extend(CPU.iter().map(|(name, help, of)| {
        single(name, help, MetricType::Counter, Unit::Nanoseconds, |report| of(report.stats.cpu.as_ref()?))
    }));
    families.extend(LOAD.iter().map(|(name, help, of)| Family {
        name,
        help,
        kind: MetricType::Gauge,
        samples: Box::new(move |report| {
            let load = report.stats.load.as_ref().and_then(*of);
            load.map(|load| (Vec::new(), load)).into_iter().collect()
        }),
    }));
    families.extend(VCPU.iter().map(|(name, help, with_state, of)| Family {
        name,
        help,
        kind: MetricType::Counter,
        samples: Box::new(|report| vcpus(&report.stats.vcpu, *with_state, *of)),
    }));
    families.extend(BLOCK.iter().map(|(name, help, unit, of)| Family {
        name,
        help,
        kind: MetricType::Counter,
        samples: Box::new(|report| disks(&report.stats.block, *unit, *of)),
    }));
    families.extend(NET.iter().map(|(name, help, of)| Family {
        name,
        help,
        kind: MetricType::Counter,
        samples: Box::new(|report| interfaces(&report.stats.net, *of)),
    }));
    families.push(Family {
        name: "network_traffic_bytes",
        help: "Bytes that an interface has sent or received; deprecated",
        kind: MetricType::Counter,
        samples: Box::new(|report| {
            let of = |way: &str, of: fn(&Net) -> Option<u64>| {
                let mut samples = interfaces(&report.stats.net, of);
                samples.iter_mut().for_each(|(labels, _)| labels.push(("type", way.to_owned())));
                samples
            };
            [of("rx", |net| net.rx_bytes), of("tx", |net| net.tx_bytes)].concat()
        }),
    });
    families.push(single(
        "node_cpu_affinity",
        "Pairs of a virtual CPU and a processor of the node on which it may run",
        MetricType::Gauge,
        Unit::One,
        |report| {
            let pairs = || report.stats.cpu_map.iter().flatten().filter(|may| **may).count() as u64;
            report.stats.cpu_map_set.then(pairs)
        },
    ));
    families.extend(FILESYSTEM.iter().map(|(name, help, of)| Family {
        name,
        help,
        kind: MetricType::Gauge,
        samples: Box::new(|report| filesystems(report, *of)),
    }));
    families
}

/// Name, help, kind, unit, and value.
type OfMemory = (&'static str, &'static str, MetricType, Unit, fn(&Memory) -> Option<u64>);

const MEMORY: [OfMemory; 11] = [
    (
        "memory_resident_bytes",
        "Memory of the node that the machine's process occupies",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.rss,
    ),
    (
        "memory_available_bytes",
        "Memory that the guest's kernel has in all",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.available,
    ),
    (
        "memory_unused_bytes",
        "Memory that the guest uses for nothing, not even for caches",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.unused,
    ),
    (
        "memory_cached_bytes",
        "Memory of the guest's caches, which it can give up",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.cached,
    ),
    (
        "memory_swap_in_traffic_bytes",
        "Memory that the guest has read from its swap so far",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.swap_in,
    ),
    (
        "memory_swap_out_traffic_bytes",
        "Memory that the guest has written to its swap so far",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.swap_out,
    ),
    (
        "memory_pgmajfault",
        "Page faults of the guest that had to read a disk",
        MetricType::Counter,
        Unit::One,
        |m| m.major_fault,
    ),
    ("memory_pgminfault", "Page faults of the guest without a disk", MetricType::Counter, Unit::One, |m| {
        m.minor_fault
    }),
    (
        "memory_actual_balloon_bytes",
        "Memory that the balloon leaves to the guest",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.actual_balloon,
    ),
    (
        "memory_usable_bytes",
        "Memory that the balloon could take without having the guest swap",
        MetricType::Gauge,
        Unit::KiB,
        |m| m.usable,
    ),
    ("memory_domain_bytes", "Memory that the machine has", MetricType::Gauge, Unit::KiB, |m| m.total),
];

/// Name, help, and value.
type Of<T, N = u64> = (&'static str, &'static str, fn(&T) -> Option<N>);

const CPU: [Of<Cpu>; 3] = [
    (
        "cpu_usage_seconds",
        "Processor time of the machine's process, the guest's and the hypervisor's",
        |cpu| cpu.time,
    ),
    ("cpu_user_usage_seconds", "Processor time of the machine's process in user mode", |cpu| cpu.user),
    ("cpu_system_usage_seconds", "Processor time of the machine's process in the node's kernel", |cpu| {
        cpu.system
    }),
];

const LOAD: [Of<Load, f64>; 3] = [
    ("guest_load_1m", "The guest's load over a minute, which its agent tells since version 10", |load| {
        load.one
    }),
    ("guest_load_5m", "The guest's load over five minutes, which its agent tells since version 10", |load| {
        load.five
    }),
    (
        "guest_load_15m",
        "The guest's load over a quarter of an hour, which its agent tells since version 10",
        |load| load.fifteen,
    ),
];

/// Name, help, whether the state is a label, and value.
type OfVcpu = (&'static str, &'static str, bool, fn(&Vcpu) -> Option<u64>);

const VCPU: [OfVcpu; 3] = [
    (
        "vcpu_seconds",
        "Time of a virtual CPU on a processor, by its number and its present state",
        true,
        |vcpu| vcpu.time,
    ),
    ("vcpu_wait_seconds", "Time of a virtual CPU that waits for input and output", false, |vcpu| vcpu.wait),
    ("vcpu_delay_seconds", "Time of a virtual CPU that could run and has no processor", false, |vcpu| {
        vcpu.delay
    }),
];

/// Name, help, unit, and value.
type OfDisk = (&'static str, &'static str, Unit, fn(&Block) -> Option<u64>);

const BLOCK: [OfDisk; 8] = [
    ("storage_iops_read", "Requests of the guest that read a disk", Unit::One, |disk| disk.read_requests),
    ("storage_iops_write", "Requests of the guest that write to a disk", Unit::One, |disk| {
        disk.write_requests
    }),
    ("storage_read_traffic_bytes", "Bytes that the guest has read from a disk", Unit::One, |disk| {
        disk.read_bytes
    }),
    ("storage_write_traffic_bytes", "Bytes that the guest has written to a disk", Unit::One, |disk| {
        disk.write_bytes
    }),
    ("storage_read_times_seconds", "Time that requests to read have taken", Unit::Nanoseconds, |disk| {
        disk.read_time
    }),
    ("storage_write_times_seconds", "Time that requests to write have taken", Unit::Nanoseconds, |disk| {
        disk.write_time
    }),
    ("storage_flush_requests", "Requests of the guest to write a disk's cache out", Unit::One, |disk| {
        disk.flush_requests
    }),
    ("storage_flush_times_seconds", "Time that such requests have taken", Unit::Nanoseconds, |disk| {
        disk.flush_time
    }),
];

const NET: [Of<Net>; 8] = [
    ("network_receive_bytes", "Bytes that the guest has received", |net| net.rx_bytes),
    ("network_transmit_bytes", "Bytes that the guest has sent", |net| net.tx_bytes),
    ("network_receive_packets", "Packets that the guest has received", |net| net.rx_packets),
    ("network_transmit_packets", "Packets that the guest has sent", |net| net.tx_packets),
    ("network_receive_errors", "Packets to the guest that were damaged", |net| net.rx_errors),
    ("network_transmit_errors", "Packets of the guest that were damaged", |net| net.tx_errors),
    ("network_receive_packets_dropped", "Packets that did not reach the guest", |net| net.rx_dropped),
    ("network_transmit_packets_dropped", "Packets of the guest that were not carried", |net| net.tx_dropped),
];

/// Name, help, and value.
type OfFilesystem = (&'static str, &'static str, fn(&Filesystem) -> i64);

const FILESYSTEM: [OfFilesystem; 2] = [
    ("filesystem_capacity_bytes", "Size of a file system of the guest, as its agent tells it", |one| {
        one.total_bytes
    }),
    ("filesystem_used_bytes", "What is used of a file system of the guest, as its agent tells it", |one| {
        one.used_bytes
    }),
];

fn vcpus(vcpus: &[Vcpu], with_state: bool, of: fn(&Vcpu) -> Option<u64>) -> Vec<Sample> {
    let samples = vcpus.iter().take(MAX_ROWS).enumerate().filter_map(|(id, vcpu)| {
        let mut labels = vec![("id", id.to_string())];
        if with_state {
            labels.push(("state", word(vcpu.state).to_owned()));
        }
        Some((labels, Unit::Nanoseconds.value(of(vcpu)?)))
    });
    samples.collect()
}

fn word(state: Option<i64>) -> &'static str {
    match state {
        Some(state::OFFLINE) => "offline",
        Some(state::RUNNING) => "running",
        Some(state::BLOCKED) => "blocked",
        _ => "unknown",
    }
}

fn disks(disks: &[Block], unit: Unit, of: fn(&Block) -> Option<u64>) -> Vec<Sample> {
    let samples = disks.iter().take(MAX_ROWS).filter_map(|disk| {
        let alias = Some(&disk.alias).filter(|alias| !alias.is_empty());
        let drive = alias.or(disk.name.as_ref())?;
        Some((vec![("drive", drive.clone())], unit.value(of(disk)?)))
    });
    samples.collect()
}

fn interfaces(nets: &[Net], of: fn(&Net) -> Option<u64>) -> Vec<Sample> {
    let samples = nets.iter().take(MAX_ROWS).filter_map(|net| {
        let interface = net.alias.as_ref().or(net.name.as_ref())?;
        Some((vec![("interface", interface.clone())], Unit::One.value(of(net)?)))
    });
    samples.collect()
}

#[allow(clippy::cast_precision_loss, reason = "series have numbers of this kind")]
fn filesystems(report: &Report, of: fn(&Filesystem) -> i64) -> Vec<Sample> {
    let samples = report.filesystems.iter().take(MAX_ROWS).map(|one| {
        let labels = vec![
            ("disk_name", one.disk_name.clone()),
            ("mount_point", one.mount_point.clone()),
            ("file_system_type", one.file_system_type.clone()),
        ];
        (labels, of(one) as f64)
    });
    samples.collect()
}

#[cfg(test)]
#[path = "families_tests.rs"]
mod tests;
