//! `perf`: measures netd beside its peers, and writes down what it found.
//!
//! `perf run` measures (root, the artefacts of `make setup`, release binaries; inside `e2e/jail`, so that nothing stays
//! behind); `perf report` writes docs/performance.md anew from the latest result; `perf compare` puts two results side
//! by side. See [`mod@bench`] for what one run is and [`results`] for the format.

mod bench;
mod compare;
mod iperf;
mod machine;
mod report;
mod results;
mod stats;
mod suite;
mod usage;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::results::Results;

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

/// Writes docs/performance.md.
///
/// # Errors
/// The file cannot be written.
fn write_page(results: &Results) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
    Ok(fs::write(path, report::page(results))?)
}

fn main() -> Result<()> {
    let mut out = io::stdout();
    match Args::parse().command {
        Command::Run(options) => suite::run(&options, &mut out)?,
        Command::Report => write_page(&Results::read(&results_dir().join("latest.json"))?)?,
        Command::Compare { a, b } => {
            out.write_all(compare::compare(&Results::read(&a)?, &Results::read(&b)?).as_bytes())?;
        }
    }
    Ok(())
}
