//! Downward metrics: what a guest's node and the guest use, for the guest; in the form of vhostmd, which guests of other hypervisors
//! have, and with upstream's names.
//!
//! ```text
//! /proc, /sys of the node ──> host ──┐                  ┌──> disk     a disk of the guest, written anew every few seconds
//! the hypervisor's counts ───────────┴──> Metrics, XML ─┤
//!                                                       └──> request  answers on a serial port of the guest
//! ```
//!
//! A container sees the node's counts in /proc, so that no right is needed. They tell nothing of other machines or pods by itself,
//! but how busy the node is: hence the cluster's administrator allows it, by the feature gate `DownwardMetrics`.

pub mod disk;
pub mod host;
pub mod request;

use podvirt_proto::stats::DomainStats;
use serde::Serialize;

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename = "metrics")]
pub struct Metrics {
    #[serde(rename = "metric")]
    metrics: Vec<Metric>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Metric {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@context")]
    context: &'static str,
    #[serde(rename = "@unit", skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    name: &'static str,
    value: String,
}

/// A number or a text, and vhostmd's word for its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number that may be below zero.
    Signed(i64),
    /// A whole number.
    Unsigned(u64),
    /// Seconds, with their millionths.
    Seconds(f64),
}

impl Metric {
    fn new(context: &'static str, name: &'static str, unit: Option<&'static str>, value: Value) -> Metric {
        let (kind, value) = match value {
            Value::Text(text) => ("string", text),
            Value::Signed(number) => ("int64", number.to_string()),
            Value::Unsigned(number) => ("uint64", number.to_string()),
            Value::Seconds(seconds) => ("real64", format!("{seconds:.6}")),
        };
        Metric { kind, context, unit, name, value }
    }

    /// One of the node.
    pub fn host(name: &'static str, unit: Option<&'static str>, value: Value) -> Metric {
        Metric::new("host", name, unit, value)
    }

    /// One of the guest.
    pub fn guest(name: &'static str, unit: Option<&'static str>, value: Value) -> Metric {
        Metric::new("vm", name, unit, value)
    }
}

/// What stays as it is while the machine runs here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The node's name.
    pub node: String,
    /// The hypervisor and its version.
    pub hypervisor: String,
}

impl Metrics {
    /// The metrics of a guest that has used this, at a place whose node has used that.
    pub fn new(place: &Place, guest: &DomainStats, host: Vec<Metric>) -> Metrics {
        let text = |name, value: &str| Metric::host(name, None, Value::Text(value.to_owned()));
        let ran: u64 = guest.vcpu.iter().filter_map(|cpu| cpu.time).fold(0, u64::saturating_add);
        let memory = guest.memory.as_ref().and_then(|memory| memory.actual_balloon).unwrap_or(0);
        let mut metrics = vec![
            text("HostName", &place.node),
            text("HostSystemInfo", "linux"),
            text("VirtualizationVendor", "kubevirt.io"),
            text("VirtProductInfo", &place.hypervisor),
            Metric::guest("TotalCPUTime", Some("s"), Value::Seconds(seconds(ran))),
            Metric::guest("ResourceProcessorLimit", None, Value::Unsigned(guest.vcpus)),
            Metric::guest("PhysicalMemoryAllocatedToVirtualSystem", Some("KiB"), Value::Unsigned(memory)),
            Metric::guest("ResourceMemoryLimit", Some("KiB"), Value::Unsigned(memory)),
        ];
        metrics.extend(host);
        Metrics { metrics }
    }

    /// The document as XML.
    ///
    /// # Errors
    ///
    /// Something cannot be written as XML.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        let mut out = String::new();
        let mut serializer = quick_xml::se::Serializer::new(&mut out);
        serializer.indent(' ', 2);
        self.serialize(serializer)?;
        out.push('\n');
        Ok(out)
    }
}

/// Seconds of so many nanoseconds.
fn seconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use podvirt_proto::stats::{Memory, Vcpu};

    use super::*;

    #[test]
    fn the_document_is_upstreams() {
        let place = Place { node: "node1".into(), hypervisor: "QEMU <10>".into() };
        let vcpu = |time| Vcpu { time: Some(time), ..Vcpu::default() };
        let guest = DomainStats {
            vcpus: 2,
            vcpu: vec![vcpu(1_500_000_000), vcpu(250_000)],
            memory: Some(Memory { actual_balloon: Some(262_144), ..Memory::default() }),
            ..DomainStats::default()
        };
        let host = vec![Metric::host("Time", Some("s"), Value::Signed(7))];
        let xml = Metrics::new(&place, &guest, host).to_xml().unwrap();
        let metric = |head: &str, name: &str, value: &str| {
            format!("  <metric {head}>\n    <name>{name}</name>\n    <value>{value}</value>\n  </metric>\n")
        };
        let (text, memory) = (r#"type="string" context="host""#, r#"type="uint64" context="vm" unit="KiB""#);
        let all = [
            metric(text, "HostName", "node1"),
            metric(text, "HostSystemInfo", "linux"),
            metric(text, "VirtualizationVendor", "kubevirt.io"),
            metric(text, "VirtProductInfo", "QEMU &lt;10&gt;"),
            metric(r#"type="real64" context="vm" unit="s""#, "TotalCPUTime", "1.500250"),
            metric(r#"type="uint64" context="vm""#, "ResourceProcessorLimit", "2"),
            metric(memory, "PhysicalMemoryAllocatedToVirtualSystem", "262144"),
            metric(memory, "ResourceMemoryLimit", "262144"),
            metric(r#"type="int64" context="host" unit="s""#, "Time", "7"),
        ];
        assert_eq!(xml, format!("<metrics>\n{}</metrics>\n", all.concat()));
    }
}
