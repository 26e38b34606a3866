//! The metrics of one netd in the OpenMetrics text format.
//!
//! Nothing is accumulated here: each scrape reads the datapath's own [`Counters`](crate::counters::Counters) and
//! its [`Status`](crate::control::Status).

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::control::Control;
use crate::counters::{Histogram, Reason};
use crate::tcp::State;

/// The `Content-Type` of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one netd.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// The metrics of what `control` tells, and of this process, of a guest with this name. Opens what it reads of the
    /// process now.
    pub fn new(control: Arc<dyn Control>, name: &str) -> Metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process::open()));
        let datapath = Datapath { control, name: name.to_owned() };
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

struct Datapath {
    control: Arc<dyn Control>,
    name: String,
}

impl fmt::Debug for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Datapath")
    }
}

impl Collector for Datapath {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counters = self.control.counters();
        for (name, help, value) in counters.totals() {
            // The encoder writes the unit at the end of the name itself.
            let (name, unit) = match name.strip_suffix("_bytes") {
                Some(name) => (name, Some(&Unit::Bytes)),
                None => (name, None),
            };
            single(&mut encoder, (name, help, unit), &ConstCounter::new(value))?;
        }
        let help = "How long the pod's network took to accept connections of the guest.";
        single(&mut encoder, ("tcp_connect", help, Some(&Unit::Seconds)), &Times(&counters.tcp_connect))?;
        let help = "Frames, segments and datagrams that were not carried, by reason.";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor("dropped", help, None, kind)?;
        for reason in Reason::ALL {
            let value = ConstCounter::new(counters.dropped(*reason));
            value.encode(family.encode_family(&[("reason", reason.label())])?)?;
        }

        let status = self.control.status();
        let up = i64::from(status.is_some());
        single(&mut encoder, ("worker_running", "Whether the worker runs.", None), &gauge(up))?;
        let Some(status) = status else { return Ok(()) };
        let help = "Flows in the flow table, by kind.";
        let mut family = encoder.encode_descriptor("flows", help, None, gauge(0).metric_type())?;
        for (kind, count) in ["tcp", "udp", "echo"].into_iter().zip(status.flows) {
            gauge(count).encode(family.encode_family(&[("kind", kind)])?)?;
        }
        single(&mut encoder, ("listeners", "Open listeners.", None), &gauge(status.listeners))?;
        let help = "Whether TCP listeners leave clients without an answer, as the guest does not run.";
        single(&mut encoder, ("listeners_silent", help, None), &gauge(i64::from(status.silent)))?;
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
        let help = "TCP connections in the flow table, by the state of the side that faces the guest.";
        let mut family = encoder.encode_descriptor("tcp_connections", help, None, gauge(0).metric_type())?;
        for state in State::ALL {
            let count = status.tcp_states.iter().find(|(name, _)| *name == state.name()).map_or(0, |s| s.1);
            gauge(count).encode(family.encode_family(&[("state", state.name())])?)?;
        }
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        single(&mut encoder, ("build", "The version of netd.", None), &version)?;
        let guest = Info::new([("name", self.name.clone())]);
        single(&mut encoder, ("guest", "The guest's name in the configuration.", None), &guest)
    }
}

/// A histogram as the encoder takes it.
struct Times<'a>(&'a Histogram);

impl EncodeMetric for Times<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets = self.0.buckets();
        let count = buckets.iter().map(|b| b.1).sum();
        encoder.encode_histogram::<NoLabelSet>(self.0.sum(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// What the kernel tells of the process. The files are opened once: a process that has shut itself in opens no more.
#[derive(Debug)]
struct Process {
    statm: Option<File>,
    descriptors: Option<File>,
    most_descriptors: Option<u64>,
}

impl Process {
    fn open() -> Process {
        Process {
            statm: File::open("/proc/self/statm").ok(),
            descriptors: File::open("/proc/self/fd").ok(),
            most_descriptors: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        }
    }

    /// The second number of statm, which is in pages (proc(5)).
    fn resident_bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let n = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let pages = std::str::from_utf8(&text[..n]).ok()?.split(' ').nth(1)?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
        pages.parse::<u64>().ok()?.checked_mul(u64::try_from(page).ok()?)
    }

    /// The directory's size is their number since Linux 6.2; before it is zero, and nothing is told.
    fn open_descriptors(&self) -> Option<u64> {
        self.descriptors.as_ref()?.metadata().ok().map(|m| m.len()).filter(|n| *n > 0)
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let whole = |n: u64| gauge(i64::try_from(n).unwrap_or(i64::MAX));
        if let Some(bytes) = self.resident_bytes() {
            let help = "Resident memory of the process, guest memory that it touched included.";
            let described = ("process_resident_memory", help, Some(&Unit::Bytes));
            single(&mut encoder, described, &whole(bytes))?;
        }
        if let Some(count) = self.open_descriptors() {
            let help = "Open file descriptors of the process.";
            single(&mut encoder, ("process_open_fds", help, None), &whole(count))?;
        }
        if let Some(count) = self.most_descriptors {
            let help = "Most file descriptors that the process may open.";
            single(&mut encoder, ("process_max_fds", help, None), &whole(count))?;
        }
        if let Ok(time) = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID) {
            let seconds = ConstCounter::new(std::time::Duration::from(time).as_secs_f64());
            let help = "Processor time that the process has used.";
            single(&mut encoder, ("process_cpu", help, Some(&Unit::Seconds)), &seconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
