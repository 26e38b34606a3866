//! A whole measurement: rounds of runs, one for each backend and MTU, the backends taking turns.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use podvirt_e2e::{Backend, NetOptions, Pod};

use crate::bench::{self, Length, Run};
use crate::machine::{self, Machine};
use crate::report::figures;
use crate::results::{DISTURBED_CPUS, Results, Settings};
use crate::{results_dir, write_page};

/// How long the warm-up of a bulk measurement is.
const WARM_UP_SECONDS: u32 = 1;
/// Between two looks at a busy machine.
const PAUSE: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Backends, with commas: netd, passt
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = backend, default_value = "netd,passt")]
    backends: Vec<Backend>,
    /// MTUs of the guest in bytes, with commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1500")]
    mtu: Vec<u16>,
    /// Length of each bulk measurement after its warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Rounds
    #[arg(short = 'n', value_name = "ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// One round of 2 s; no latest.json and no page are written
    #[arg(long, conflicts_with_all = ["repeats", "seconds"])]
    quick: bool,
    /// How long to wait before each run for the machine to become quiet
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    patience: u64,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
}

fn backend(name: &str) -> Result<Backend> {
    [Backend::Netd, Backend::Passt]
        .into_iter()
        .find(|b| b.to_string() == name)
        .context("the backends are netd and passt")
}

impl Options {
    fn settings(&self) -> Settings {
        let (seconds, repeats) = if self.quick { (2, 1) } else { (self.seconds, self.repeats) };
        Settings { length: Length { seconds, warm_up_seconds: WARM_UP_SECONDS }, repeats, quick: self.quick }
    }

    /// Whether the result may stand for the project: both backends, at the MTU every pod has, not quick.
    fn is_complete(&self) -> bool {
        let both = [Backend::Netd, Backend::Passt].iter().all(|b| self.backends.contains(b));
        both && self.mtu.contains(&1500) && !self.quick
    }
}

/// The backends of a round: each round begins with another one, so that none always follows the same.
fn order(backends: &[Backend], round: u32) -> Vec<Backend> {
    let mut order = backends.to_vec();
    if !order.is_empty() {
        order.rotate_left(round as usize % backends.len());
    }
    order
}

/// Measures, shows the table, and writes the result.
///
/// # Errors
/// Runs failed (the others are written nevertheless), or the result cannot be written.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "this needs root: it makes network namespaces");
    let settings = options.settings();
    let commit = machine::commit();
    let machine = Machine::this()?;
    writeln!(out, "{} × {}, Linux {}, commit {commit}", machine.cores, machine.cpu_model, machine.kernel)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut failures = Vec::new();
    for round in 0..settings.repeats {
        for &mtu in &options.mtu {
            for backend in order(&options.backends, round) {
                let others = wait_until_quiet(Duration::from_secs(options.patience))?;
                if others > DISTURBED_CPUS {
                    writeln!(out, "the machine is not quiet: {others:.1} processors are busy otherwise")?;
                }
                match bench::run(backend, round, mtu, settings.length) {
                    Ok(run) => {
                        tell(out, &run, settings.repeats)?;
                        runs.push(run);
                    }
                    Err(error) => {
                        writeln!(out, "round {}, {backend}, MTU {mtu} FAILED: {error:#}", round + 1)?;
                        failures.push(format!("round {}, {backend}, MTU {mtu} failed", round + 1));
                    }
                }
            }
        }
    }
    ensure!(!runs.is_empty(), "no run succeeded");
    let mut versions = BTreeMap::from([("passt".to_owned(), passt_version()?)]);
    versions.extend(runs.first().map(|r| ("guest kernel".to_owned(), r.guest_kernel.clone())));
    let mut results = Results::new((machine::now()?, commit), settings, machine, versions, runs);
    results.warnings.extend(options.note.iter().chain(&failures).cloned());
    write!(out, "\n{}\n", figures(&results))?;
    for warning in &results.warnings {
        writeln!(out, "note: {warning}")?;
    }
    write_results(&results, options.is_complete() && failures.is_empty(), out)?;
    if !failures.is_empty() {
        bail!("{} runs failed", failures.len());
    }
    Ok(())
}

fn write_results(results: &Results, complete: bool, out: &mut impl Write) -> Result<()> {
    fs::create_dir_all(results_dir())?;
    let kind = if complete { "" } else { "-partial" };
    let path = results_dir().join(format!("{}-{}{kind}.json", results.date.replace(':', ""), results.commit));
    results.write(&path)?;
    writeln!(out, "{}", path.display())?;
    if complete {
        results.write(&results_dir().join("latest.json"))?;
        write_page(results)?;
    }
    Ok(())
}

/// One line for a run that is done.
fn tell(out: &mut impl Write, run: &Run, rounds: u32) -> Result<()> {
    write!(out, "round {}/{rounds} {:5} MTU {}:", run.round + 1, run.backend, run.mtu)?;
    for test in &run.tests {
        let (key, gbits, cost) = (test.direction.key(), test.gbits, test.cpu_per_gb());
        write!(out, "  {key} {gbits:.2} Gbit/s {cost:.3} s/GB,")?;
    }
    writeln!(out, "  {:.0} µs, {:.1} MiB", run.round_trip.median_us, run.idle.rss_mib)?;
    Ok(())
}

/// Waits until nothing else keeps the processors busy, at most `patience`; returns how many are still busy.
fn wait_until_quiet(patience: Duration) -> Result<f64> {
    let end = Instant::now() + patience;
    loop {
        let others = bench::others()?;
        if others <= DISTURBED_CPUS || Instant::now() > end {
            return Ok(others);
        }
        sleep(PAUSE);
    }
}

/// The version of the peer's package: passt itself tells none.
fn passt_version() -> Result<String> {
    let query = ["dpkg-query", "--show", "--showformat", "${Version}", "passt"];
    Ok(Pod::new(NetOptions::default())?.peer("version").run(&query)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Result<Options, clap::Error> {
        Line::try_parse_from(["perf"].iter().chain(words)).map(|l| l.options)
    }

    #[test]
    fn backends_take_turns_at_being_first() {
        let both = [Backend::Netd, Backend::Passt];
        assert_eq!(order(&both, 0), both);
        assert_eq!(order(&both, 1), [Backend::Passt, Backend::Netd]);
        assert_eq!(order(&both, 2), both);
        assert_eq!(order(&[], 1), []);
    }

    #[test]
    fn only_a_whole_measurement_stands_for_the_project() {
        assert!(options(&[]).unwrap().is_complete());
        assert!(options(&["--mtu", "1500,65520", "-n", "5"]).unwrap().is_complete());
        for partial in [&["--quick"] as &[_], &["--backends", "passt"], &["--mtu", "9000"]] {
            assert!(!options(partial).unwrap().is_complete(), "{partial:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for words in
            [&["--backends", "slirp"] as &[_], &["-n", "0"], &["--seconds", "0"], &["--quick", "-n", "2"]]
        {
            assert!(options(words).is_err(), "{words:?}");
        }
    }
}
