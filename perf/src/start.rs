//! From a manifest to a running machine on the cluster: how long each step takes.
//!
//! Machines are made one after another, each in an empty namespace with its image on the node, and deleted before the
//! next. What is timed is what a client sees: the creation is the API server's answer, the other steps are the first
//! object of a watch that shows them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, SOON, Security};
use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};
use crate::report::table;
use crate::stats::percentile;

/// Milliseconds at the middle and near the end of the order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    p50_ms: f64,
    p95_ms: f64,
}

impl Spread {
    /// That of these values, in milliseconds; `None` without any.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Spread> {
        Some(Spread { p50_ms: percentile(&mut values, 0.5)?, p95_ms: percentile(&mut values, 0.95)? })
    }

    /// The middle and near the end, in seconds, for a table's row.
    pub(crate) fn row(&self, what: &str) -> Vec<String> {
        vec![what.to_owned(), format!("{:.1}", self.p50_ms / 1000.0), format!("{:.1}", self.p95_ms / 1000.0)]
    }
}

/// The file `perf/results/start.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// UTC.
    pub(crate) date: String,
    /// The state of the sources.
    pub(crate) commit: String,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// How many machines.
    pub(crate) count: usize,
    /// From the manifest to the launcher's container running.
    pub(crate) create_to_pod: Spread,
    /// From there to the domain running.
    pub(crate) pod_to_running: Spread,
    /// Both.
    pub(crate) create_to_running: Spread,
}

impl Start {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Start>> {
        crate::read(&results.join("start.json"))
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let rows = [
            self.create_to_pod.row("manifest to the launcher's container running"),
            self.pod_to_running.row("from there to the guest's processor running"),
            self.create_to_running.row("both"),
        ];
        format!(
            "\n## Start of a machine on the cluster\n\nSeconds as a client sees them, {} machines one after another on the two-node \
             cluster of this repository, without KVM, images on the nodes ({}, commit {}; `perf start`):\n\n{}",
            self.count,
            self.date,
            self.commit,
            table(&["", "p50", "p95"], &rows)
        )
    }
}

/// Measures, prints and writes the file.
///
/// # Errors
/// Without a cluster with podvirt in it, or when a machine does not start.
pub(crate) fn run(count: usize, results: &Path, out: &mut impl Write) -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = cluster.namespace(Security::Restricted)?;
    let (mut to_pod, mut to_running, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..count {
        let name = format!("vm{i}");
        let manifest = Manifest { name: &name, ..Default::default() }.instance();
        let start = Instant::now();
        namespace.apply(&manifest)?;
        let (pod, running) = cluster
            .block_on(async {
                let pod = started(namespace.api(), &name, start);
                let running = running(namespace.api(), &name, start);
                tokio::time::timeout(BOOT, futures::future::try_join(pod, running)).await
            })
            .with_context(|| format!("{name} does not run\n{}", namespace.report()))??;
        to_pod.push(millis(pod));
        to_running.push(millis(running.saturating_sub(pod)));
        whole.push(millis(running));
        writeln!(out, "{name}: pod {:.0} ms, running {:.0} ms", millis(pod), millis(running))?;
        namespace.kubectl(&["delete", "vmi", &name, "--wait=false"])?;
        namespace.wait_gone::<VirtualMachineInstance>(&name, SOON)?;
    }
    let start = Start {
        date: machine::now()?,
        commit: machine::commit(),
        machine: Machine::this()?,
        count,
        create_to_pod: Spread::of(to_pod).context("no machine")?,
        pod_to_running: Spread::of(to_running).context("no machine")?,
        create_to_running: Spread::of(whole).context("no machine")?,
    };
    let text = serde_json::to_string_pretty(&start)? + "\n";
    fs::write(results.join("start.json"), &text)?;
    Ok(out.write_all(text.as_bytes())?)
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round()
}

/// When the machine's compute container runs.
async fn started(pods: Api<Pod>, name: &str, start: Instant) -> Result<Duration> {
    let config = watcher::Config::default().labels(&format!("vm.kubevirt.io/name={name}"));
    let mut pods = watcher(pods, config).default_backoff().applied_objects().boxed();
    while let Some(pod) = pods.try_next().await? {
        let statuses = pod.status.into_iter().flat_map(|s| s.container_statuses.unwrap_or_default());
        let runs = |s: &k8s_openapi::api::core::v1::ContainerStatus| {
            s.name == "compute" && s.state.as_ref().is_some_and(|s| s.running.is_some())
        };
        if statuses.into_iter().any(|s| runs(&s)) {
            return Ok(start.elapsed());
        }
    }
    bail!("the watch ended")
}

/// When the machine's phase is Running.
async fn running(machines: Api<VirtualMachineInstance>, name: &str, start: Instant) -> Result<Duration> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut machines = watcher(machines, config).default_backoff().applied_objects().boxed();
    while let Some(machine) = machines.try_next().await? {
        match machine.status.phase.as_ref().map(|p| p.as_str().to_owned()).as_deref() {
            Some("Running") => return Ok(start.elapsed()),
            Some(end @ ("Failed" | "Succeeded")) => bail!("{name} has {end}"),
            _ => {}
        }
    }
    bail!("the watch ended")
}
