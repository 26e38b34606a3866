//! What it costs that netd asks the guest on which of the listed ports it listens, and what a client has of it.
//!
//! One netd asks (`ports.ask_guest`, podvirt's default for lists of up to 256 ports), the other accepts every connection to a
//! listed port; they take turns, a fresh pod and guest each, User Mode Linux. Two lists: one port, which the guest serves, and
//! 256 ports, of which it serves one. Connections to the served port are as everywhere opened, used for a byte and closed.
//! With the long list there is a port that is shut: a client is refused, or accepted and reset. Then nothing is done for
//! a while, and all that netd and guest use is what the questions cost.

use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podvirt_e2e::until;
use serde::{Deserialize, Serialize};

use crate::bed::{Bed, GUEST_PORT, TIMEOUT, number};
use crate::machine::{self, Machine};
use crate::plan::{self, Peer};
use crate::sides::{Row, Run, Subject, rounds, side_by_side, turns};

/// The two that are compared, and netd's argument.
const SUBJECTS: [Subject<'_>; 2] = [("asks", "asks"), ("accepts", "accepts")];
/// How many ports are listed, and what figures of it begin with.
const LISTS: [(u16, &str); 2] = [(1, "one"), (256, "many")];
/// All that is told.
const ROWS: [Row<'_>; 13] = [
    ("one_per_second", "1 port, served: connections a second", 0),
    ("one_p50", "… median time of one, µs", 0),
    ("one_p99", "… 99th percentile", 0),
    ("many_per_second", "256 ports, one of them served: connections a second to it", 0),
    ("many_p50", "… median time of one, µs", 0),
    ("many_p99", "… 99th percentile", 0),
    ("shut_per_second", "… attempts a second at a port that is shut", 0),
    ("shut_p50", "… median time until the client knows, µs", 0),
    ("shut_p99", "… 99th percentile", 0),
    ("shut_refused", "… share that is refused, not accepted and reset", 2),
    ("idle_netd_ms", "… nothing to do: netd's CPU, ms a second", 2),
    ("idle_guest_ms", "… nothing to do: the guest's, ms a second", 2),
    ("netd_mib", "… netd's heap and stacks, MiB", 2),
];

/// How long and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds [default: 3, quick: 1]
    #[arg(short = 'n', value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// One short round; no result is written
    #[arg(long)]
    quick: bool,
}

/// The file `perf/results/asking.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asking {
    /// UTC.
    date: String,
    /// The state of the sources.
    commit: String,
    /// Where it was measured.
    machine: Machine,
    /// All turns.
    runs: Vec<Run>,
}

impl Asking {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Asking>> {
        crate::read(&results.join("asking.json"))
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        format!(
            "\n## Asking the guest about its ports\n\nA client of a listed TCP port on which the guest does not listen is \
             refused, since netd asks the guest ahead of its clients; with the annotation `podvirt.io/closed-ports: accept` it \
             is accepted and reset ([configuration](netd-configuration.md#ports)). What that costs: one netd that asks \
             beside one that accepts, {} rounds in turns, under User Mode Linux, by IPv6. A port that is open is not asked about; each that is \
             shut costs a question a second in each family, 510 of them here. Asking is \
             the default for lists of up to 256 ports; what connections to open ports have of it, and what the questions \
             take, is in the table ({}, commit {}, {} × {}; `perf asking`).\n\n{}",
            rounds(&self.runs),
            self.date,
            self.commit,
            self.machine.cores,
            self.machine.cpu_model,
            side_by_side(&self.runs, &SUBJECTS, &ROWS, ("asks ÷ accepts", ["asks", "accepts"])),
        )
    }
}

/// Measures, prints, and writes the file unless it was only a look.
///
/// # Errors
/// Without root, or when something does not come up.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    let (commit, machine) = (machine::commit(), Machine::this()?);
    let (short, idle) = if options.quick { (0.5, 1.0) } else { (1.5, 5.0) };
    let mut runs = Vec::new();
    for round in 0..options.rounds.unwrap_or(if options.quick { 1 } else { 3 }) {
        for (ports, list) in LISTS {
            for at in turns(SUBJECTS.len(), round) {
                let (subject, _) = SUBJECTS[at];
                let mut run = Run { subject: subject.into(), round, ..Run::default() };
                let start = Instant::now();
                measure(&mut run, (ports, list), short, idle)
                    .with_context(|| format!("round {}, {subject}, {ports} ports", round + 1))?;
                let seconds = start.elapsed().as_secs_f64();
                writeln!(out, "round {}, {subject}, {ports} ports: {seconds:.0} s", round + 1)?;
                runs.push(run);
            }
        }
    }
    let found = Asking { date: machine::now()?, commit, machine, runs };
    write!(out, "{}", found.section())?;
    if !options.quick {
        crate::write(&results.join("asking.json"), &found)?;
    }
    Ok(())
}

/// One turn: `short` seconds for each that there are many of, `idle` for nothing.
fn measure(run: &mut Run, (ports, list): (u16, &str), short: f64, idle: f64) -> Result<()> {
    let asks = run.subject == SUBJECTS[0].0;
    let last = GUEST_PORT + (ports - 1);
    let mut bed = Bed::start_with(
        &plan::asking(),
        Peer::Netd,
        &format!("-t {GUEST_PORT}-{last} -u none --ask-guest {asks}"),
    )?;
    bed.serve_in_guest()?;
    let at = |bed: &Bed, port| bed.guest_address(port);
    // It was shut until now.
    let served = at(&bed, GUEST_PORT);
    until("the port that is served", TIMEOUT, || Ok(bed.pod.net.connect(served).ok()))?;
    if ports > 1 {
        // Until netd knows of all of them; the last is as good as any other.
        let look = format!("refusals {} 0.1", at(&bed, last));
        until("ports that are shut", TIMEOUT, || {
            let share = number(&bed.ask_client(&look)?, "refused_share")?;
            Ok((!asks || share >= 1.0).then_some(()))
        })?;
    }
    let found = bed.ask_client(&format!("crr {served} {short}"))?;
    let mut put = |name: String, value| run.figures.insert(name, value);
    for name in ["per_second", "p50", "p99"] {
        put(format!("{list}_{name}"), number(&found, name)?);
    }
    if ports == 1 {
        return Ok(());
    }
    let found = bed.ask_client(&format!("refusals {} {short}", at(&bed, last)))?;
    for name in ["per_second", "p50", "p99"] {
        put(format!("shut_{name}"), number(&found, name)?);
    }
    put("shut_refused".into(), number(&found, "refused_share")?);
    let before = bed.sample()?;
    sleep(Duration::from_secs_f64(idle));
    let used = bed.since(&before)?;
    let netd = used.backend.context("netd is no program")?;
    put("idle_netd_ms".into(), netd.total() * 1000.0 / used.wall);
    put("idle_guest_ms".into(), used.frontend.total() * 1000.0 / used.wall);
    let backend = bed.backend.as_ref().context("netd is no program")?;
    put("netd_mib".into(), crate::usage::memory(backend.process.init_pid()?)?.anonymous_mib);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rounds in which one that asks is a little slower, in figures that no file rounds, and the third is slow for both.
    fn sample() -> Asking {
        let run = |round, speed: f64, (key, _): Subject<'_>| {
            let speed = if key == "asks" { speed * 0.8 } else { speed };
            let value = |&(name, _, _): &Row<'_>| {
                (name.to_owned(), if name.ends_with("per_second") { 1000.0 * speed } else { 100.0 / speed })
            };
            let figures = ROWS.iter().map(value).collect();
            Run { subject: key.into(), round, figures, ..Run::default() }
        };
        let runs = [(0, 1.0), (1, 1.25), (2, 0.5)];
        let runs = runs.iter().flat_map(|&(round, speed)| SUBJECTS.map(|s| run(round, speed, s)));
        Asking {
            date: "2026-01-31T12:00Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine::sample(),
            runs: runs.collect(),
        }
    }

    #[test]
    fn the_section_is_as_it_was() {
        insta::assert_snapshot!(sample().section());
    }

    #[test]
    fn a_result_survives_its_file() {
        let (dir, found) = (tempfile::tempdir().unwrap(), sample());
        crate::write(&dir.path().join("asking.json"), &found).unwrap();
        assert_eq!(Asking::read(dir.path()).unwrap(), Some(found));
    }
}
