//! How long a machine takes to start on a busy cluster, beside one that starts on the same cluster before the load.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use podvirt_e2e::cluster::load::{Load, Loaded, starts};
use podvirt_e2e::cluster::{Cluster, Security};
use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};

/// The file `perf/results/load.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Busy {
    /// UTC.
    date: String,
    /// The state of the sources.
    commit: String,
    /// Where it was measured.
    machine: Machine,
    /// Migrations in the queue, of machines that are said to run.
    waiting_migrations: usize,
    /// Budgets that users have labelled.
    labelled_budgets: usize,
    /// Those of them that were written again, which a migration that ends does.
    rewritten_budgets: usize,
    /// Launchers that are stopped.
    stopped_launchers: usize,
    /// From the manifest to the running machine without the load, ascending.
    before_ms: Vec<u64>,
    /// The same beside the load.
    beside_ms: Vec<u64>,
}

fn median(ascending: &[u64]) -> u64 {
    ascending.get(ascending.len() / 2).copied().unwrap_or_default()
}

impl Busy {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Busy>> {
        crate::read(&results.join("load.json"))
    }

    /// How many times as long a machine takes.
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of minutes")]
    fn ratio(&self) -> f64 {
        median(&self.beside_ms) as f64 / median(&self.before_ms).max(1) as f64
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let seconds = |ascending: &[u64]| {
            let all = ascending.iter().map(|ms| format!("{}.{}", ms / 1000, ms % 1000 / 100));
            all.collect::<Vec<_>>().join(", ")
        };
        format!(
            "\n## Start of a machine on a busy cluster\n\nBeside {} migrations that wait, {} budgets that users have labelled and {} \
             launchers that are stopped (SIGSTOP) on the machine's node: {:.2} × the time, by the medians of {} s beside the load \
             and {} s before it, on the two-node cluster of this repository without KVM. {} of the budgets were written again \
             meanwhile ({}, commit {}; `perf load`).\n",
            self.waiting_migrations,
            self.labelled_budgets,
            self.stopped_launchers,
            self.ratio(),
            seconds(&self.beside_ms),
            seconds(&self.before_ms),
            self.rewritten_budgets,
            self.date,
            self.commit,
        )
    }
}

/// Measures, prints and writes the file.
///
/// # Errors
/// Without a cluster with podvirt in it, or when the load does not come about or a machine does not start.
pub(crate) fn run(count: usize, results: &Path, out: &mut impl Write) -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = cluster.namespace(Security::Restricted)?;
    let before_ms = starts(&namespace, "before", count)?;
    writeln!(out, "without load: {before_ms:?} ms")?;
    let load = Load::LARGE;
    let loaded = Loaded::new(&namespace, load).with_context(|| namespace.report())?;
    let beside_ms = starts(&namespace, "beside", count)?;
    let (labelled_budgets, rewritten_budgets) = loaded.rewritten()?;
    let busy = Busy {
        date: machine::now()?,
        commit: machine::commit(),
        machine: Machine::this()?,
        waiting_migrations: load.parked,
        labelled_budgets,
        rewritten_budgets,
        stopped_launchers: load.hung,
        before_ms,
        beside_ms,
    };
    let text = serde_json::to_string_pretty(&busy)? + "\n";
    fs::write(results.join("load.json"), &text)?;
    Ok(out.write_all(text.as_bytes())?)
}
