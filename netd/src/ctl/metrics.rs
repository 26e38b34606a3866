//! The metrics of one netd in the OpenMetrics text format.
//!
//! Nothing is accumulated here: each scrape reads the datapath's own [`Counters`](crate::counters::Counters) and
//! its [`Status`](super::Status).

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::Control;
use crate::counters::Reason;

/// The `Content-Type` of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one netd.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// The metrics of what `control` tells.
    pub fn new(control: Arc<dyn Control>) -> Metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let datapath = Datapath(control);
        registry.sub_registry_with_prefix("netd").register_collector(Box::new(datapath));
        Metrics(registry)
    }

    /// The text of one scrape. Blocks as [`Control::status`] does.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail, and a collector here has no other error.
        if encode(&mut text, &self.0).is_err() {
            tracing::warn!("the metrics are incomplete");
        }
        text
    }
}

/// Writes one metric without labels.
fn single(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<&Unit>),
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

fn gauge(value: impl Into<i64>) -> ConstGauge<i64> {
    ConstGauge::new(value.into())
}

struct Datapath(Arc<dyn Control>);

impl fmt::Debug for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Datapath")
    }
}

impl Collector for Datapath {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counters = self.0.counters();
        for (name, help, value) in counters.totals() {
            single(&mut encoder, (name, help, None), &ConstCounter::new(value))?;
        }
        let help = "Frames, segments and datagrams that were not carried, by reason.";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor("dropped", help, None, kind)?;
        for reason in Reason::ALL {
            let value = ConstCounter::new(counters.dropped(*reason));
            value.encode(family.encode_family(&[("reason", reason.label())])?)?;
        }

        let status = self.0.status();
        let up = i64::from(status.is_some());
        single(&mut encoder, ("worker_running", "Whether the worker runs.", None), &gauge(up))?;
        let Some(status) = status else { return Ok(()) };
        let help = "Flows in the flow table, by kind.";
        let mut family = encoder.encode_descriptor("flows", help, None, gauge(0).metric_type())?;
        for (kind, count) in ["tcp", "udp", "echo"].into_iter().zip(status.flows) {
            gauge(count).encode(family.encode_family(&[("kind", kind)])?)?;
        }
        single(&mut encoder, ("listeners", "Open listeners.", None), &gauge(status.listeners))?;
        let help = "Whether a vhost-user frontend is connected.";
        single(
            &mut encoder,
            ("frontend_connected", help, None),
            &gauge(i64::from(status.frontend_connected)),
        )?;
        let rings = i64::try_from(status.running_rings.len()).unwrap_or(i64::MAX);
        single(&mut encoder, ("running_rings", "Rings that run.", None), &gauge(rings))?;
        let uptime = ConstGauge::new(status.uptime.as_secs_f64());
        single(&mut encoder, ("uptime", "Time since start.", Some(&Unit::Seconds)), &uptime)?;
        let help = "MTU of the guest's link.";
        single(&mut encoder, ("link_mtu", help, Some(&Unit::Bytes)), &gauge(status.link.mtu))?;
        let help = "The version of netd; always 1.";
        let mut family = encoder.encode_descriptor("build", help, None, gauge(1).metric_type())?;
        gauge(1).encode(family.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?)
    }
}

#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(bytes) = resident_bytes() {
            let help = "Resident memory of the process, guest memory that it touched included.";
            single(
                &mut encoder,
                ("process_resident_memory", help, Some(&Unit::Bytes)),
                &gauge(i64::try_from(bytes).unwrap_or(i64::MAX)),
            )?;
        }
        if let Some(count) = open_descriptors() {
            let help = "Open file descriptors of the process.";
            single(&mut encoder, ("process_open_fds", help, None), &gauge(count))?;
        }
        Ok(())
    }
}

/// VmRSS of /proc/self/status, which is in KiB (proc(5)).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn open_descriptors() -> Option<u32> {
    // The directory's own descriptor is among them while it is read.
    u32::try_from(std::fs::read_dir("/proc/self/fd").ok()?.count().checked_sub(1)?).ok()
}
