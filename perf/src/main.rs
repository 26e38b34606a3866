//! `perf`: measures netd beside its peers, and writes down what it found.
//!
//! `perf run` measures (root, the artefacts of `make setup`, release binaries; inside `e2e/jail`, so that nothing stays
//! behind); `perf report` writes docs/performance.md anew from the latest result; `perf compare` puts two results side
//! by side. See [`plan`] for what is measured, [`bed`] for how, and [`results`] for the format.

mod asking;
mod bed;
mod bindings;
mod budget;
mod cases;
mod cgroups;
mod compare;
mod excerpt;
mod frontends;
mod instructions;
mod iperf;
mod load;
mod machine;
mod migration;
mod plan;
mod ports;
mod report;
mod results;
mod scale;
mod sides;
mod start;
mod stats;
mod storage;
mod suite;
mod tenants;
mod usage;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::results::Results;
use crate::suite::Kind;

/// Measures netd beside its peers.
#[derive(Debug, Parser)]
#[command(name = "perf", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure; needs root
    Run(suite::Options),
    /// Measure what others have beside floods of short UDP flows; needs root
    Crowds(suite::Options),
    /// Measure what all ports cost, with listeners and steered; needs root
    Ports,
    /// Measure how long machines on the cluster take to start; needs root and podvirt in the cluster
    Start {
        /// How many
        #[arg(long, default_value_t = 20)]
        count: usize,
    },
    /// Measure how long a machine takes to start while much else waits and hangs; needs root and podvirt in the cluster
    Load {
        /// How many machines, before the load and beside it
        #[arg(long, default_value_t = 5)]
        count: usize,
    },
    /// Measure the bindings of a machine's network side by side, and machines in a mesh; needs root and podvirt in the cluster
    Bindings(bindings::Options),
    /// Measure what many machines of one node do at once, and what they cost; needs root and podvirt in the cluster
    Scale(scale::Options),
    /// Measure what machines' disks do beside plain QEMU, plugs, snapshots and exports; needs root, fio and podvirt in the cluster
    Storage(storage::Options),
    /// Measure what it costs to ask the guest about its listed ports; needs root
    Asking(asking::Options),
    /// Measure what live migration does to a guest's connections, with netd and with passt; needs root
    Migration(migration::Options),
    /// Measure what a machine keeps beside one that floods; needs root and control groups of version 1
    Tenants(tenants::Options),
    /// The guest that floods, told what to do on its standard input
    #[command(hide = true)]
    Attack(tenants::AttackOptions),
    /// Count the instructions of netd's inner loops and compare them with those committed; needs valgrind
    Instructions {
        /// Write the counts instead of comparing them
        #[arg(long)]
        update: bool,
    },
    /// Write docs/performance.md from the latest result
    Report,
    /// Two result files side by side
    Compare {
        /// The earlier one
        a: PathBuf,
        /// The later one
        b: PathBuf,
    },
}

/// Where results are kept.
fn results_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// Writes docs/performance.md and its plots from the results that stand; plots that they have no figures for are removed.
///
/// # Errors
/// A file cannot be read or written.
fn write_page() -> Result<()> {
    let results = Results::read(&results_dir().join(Kind::Usual.file()))?;
    let plots = docs().join("performance");
    if plots.exists() {
        fs::remove_dir_all(&plots)?;
    }
    fs::create_dir_all(&plots)?;
    for (path, text) in files(&results, &results_dir())? {
        fs::write(path, text)?;
    }
    Ok(())
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// The page and its plots, with what else was measured.
fn files(results: &Results, dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut text = report::page(results);
    if let Some(crowds) = read::<Results>(&dir.join(Kind::Crowds.file()))? {
        text += &report::crowds(&crowds);
    }
    if let Some(tenants) = tenants::Record::read(dir)? {
        text += &tenants.section();
    }
    if let Some(ports) = ports::Ports::read(dir)? {
        text += &ports.section();
    }
    if let Some(start) = start::Start::read(dir)? {
        text += &start.section();
    }
    if let Some(busy) = load::Busy::read(dir)? {
        text += &busy.section();
    }
    if let Some(bindings) = bindings::Bindings::read(dir)? {
        text += &bindings.section();
    }
    if let Some(scale) = scale::Scale::read(dir)? {
        text += &scale.section();
    }
    if let Some(asking) = asking::Asking::read(dir)? {
        text += &asking.section();
    }
    if let Some(migration) = migration::Record::read(dir)? {
        text += &migration.section();
    }
    if let Some(storage) = storage::Storage::read(dir)? {
        text += &storage.section();
    }
    let plots = report::plots(results).into_iter();
    let plots = plots.map(|(name, svg)| (docs().join(format!("performance/{name}.svg")), svg));
    Ok([(docs().join("performance.md"), text)].into_iter().chain(plots).collect())
}

/// Reads a result that may not be there.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Writes a result.
fn write<T: serde::Serialize>(path: &Path, result: &T) -> Result<()> {
    Ok(fs::write(path, serde_json::to_string_pretty(result)? + "\n")?)
}

fn main() -> Result<()> {
    let mut out = io::stdout();
    match Args::parse().command {
        Command::Run(options) => suite::run(&options, Kind::Usual, &mut out)?,
        Command::Crowds(options) => suite::run(&options, Kind::Crowds, &mut out)?,
        Command::Ports => ports::run(&results_dir(), &mut out)?,
        Command::Start { count } => start::run(count, &results_dir(), &mut out)?,
        Command::Load { count } => load::run(count, &results_dir(), &mut out)?,
        Command::Bindings(options) => bindings::run(&options, &results_dir(), &mut out)?,
        Command::Scale(options) => scale::run(&options, &results_dir(), &mut out)?,
        Command::Storage(options) => storage::run(&options, &results_dir(), &mut out)?,
        Command::Asking(options) => asking::run(&options, &results_dir(), &mut out)?,
        Command::Migration(options) => migration::run(&options, &results_dir(), &mut out)?,
        Command::Tenants(options) => tenants::run(&options, &results_dir(), &mut out)?,
        Command::Attack(options) => tenants::attack(&options, &mut out)?,
        Command::Instructions { update } => instructions::run(update, &mut out)?,
        Command::Report => write_page()?,
        Command::Compare { a, b } => {
            out.write_all(compare::compare(&Results::read(&a)?, &Results::read(&b)?).as_bytes())?;
        }
    }
    Ok(())
}
