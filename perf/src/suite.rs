//! A whole measurement: the parts of netd, then rounds of setups, the peers taking turns on each.
//!
//! A case in whose time others kept the processors busy is done once more, and the calmer of both counts.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nix::unistd::Pid;
use podvirt_e2e::{NetOptions, Pod};

use crate::bed::{Bed, Pace};
use crate::budget::Budget;
use crate::cases::{self, Found};
use crate::frontends::Machine;
use crate::machine;
use crate::plan::{self, Case, Frontend, Peer, Setup, order};
use crate::ports::Extent;
use crate::report::figures;
use crate::results::{DISTURBED_CPUS, PARTS, Results, Run, Settings};
use crate::{machine::Machine as Computer, results_dir, usage, write_page};

/// Between two looks at a busy machine, and how long each of them is.
const PAUSE: Duration = Duration::from_millis(500);
/// A setup on which so many cases failed is given up.
const ENOUGH: usize = 2;

/// The measurements that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Everything that a peer has as well.
    Usual,
    /// What others have beside floods.
    Crowds,
}

impl Kind {
    /// The committed result of it.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Kind::Usual => "latest.json",
            Kind::Crowds => "crowds.json",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these cases, with commas
    #[arg(long = "case", value_name = "NAMES", value_delimiter = ',')]
    cases: Vec<Case>,
    /// Only these backends, with commas
    #[arg(long = "backend", value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Only these frontends, with commas
    #[arg(long = "frontend", value_name = "NAMES", value_delimiter = ',')]
    frontends: Vec<Frontend>,
    /// Only these MTUs in bytes, with commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    mtu: Vec<u16>,
    /// Length of each bulk measurement after its warm-up, or of each flood [default: 4 or 60, quick: 2]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Rounds [default: 3, of floods and quick: 1]
    #[arg(short = 'n', value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// One short round of what the required figures need; no result that stands and no page are written
    #[arg(long)]
    quick: bool,
    /// The most that all of it may take; rounds that would not end in time are left out [default: 40, quick: 4.5]
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// How long to wait before each setup for the machine to become quiet
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    quiet_timeout: u64,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
}

impl Options {
    fn pace(&self, kind: Kind) -> Pace {
        let usual = if kind == Kind::Crowds { 60 } else { 4 };
        let seconds = self.seconds.unwrap_or(if self.quick { 2 } else { usual });
        Pace {
            seconds,
            warm_up_seconds: 1,
            short: Duration::from_millis(if self.quick { 700 } else { 1500 }),
            idle: Duration::from_secs(if self.quick { 2 } else { 10 }),
            flows: if self.quick { vec![1000, 18_000] } else { vec![1, 100, 1000, 10_000, 18_000] },
        }
    }

    fn rounds(&self, kind: Kind) -> u32 {
        self.rounds.unwrap_or(if self.quick || kind == Kind::Crowds { 1 } else { 3 })
    }

    fn limit(&self) -> Duration {
        let usual = Duration::from_secs(if self.quick { 270 } else { 2400 });
        self.limit.map_or(usual, |minutes| Duration::from_secs(60 * u64::from(minutes)))
    }

    fn setups(&self, kind: Kind) -> Vec<Setup> {
        let all = match kind {
            Kind::Crowds => plan::crowds(),
            Kind::Usual if self.quick && self.is_whole() => plan::quick(),
            Kind::Usual => plan::whole(),
        };
        plan::only(all, &self.cases, &self.peers, &self.frontends, &self.mtu)
    }

    /// The parts of netd that are wanted.
    fn parts(&self, kind: Kind) -> Vec<Case> {
        if kind == Kind::Crowds {
            return Vec::new();
        }
        let unrestricted = self.peers.is_empty() && self.frontends.is_empty() && self.mtu.is_empty();
        let wanted = |case: &Case| match self.cases.as_slice() {
            // Two minutes are too long for a look.
            [] if *case == Case::Migration => unrestricted && !self.quick,
            [] => unrestricted,
            some => some.contains(case),
        };
        [Case::Micro, Case::Ports, Case::Migration].into_iter().filter(wanted).collect()
    }

    /// Nothing is left out by name.
    fn is_whole(&self) -> bool {
        self.cases.is_empty() && self.peers.is_empty() && self.frontends.is_empty() && self.mtu.is_empty()
    }

    /// Whether the result may stand for the project.
    fn is_complete(&self) -> bool {
        self.is_whole() && !self.quick
    }
}

/// One measurement, step by step.
struct Suite<'a, W> {
    out: &'a mut W,
    pace: Pace,
    /// The result is to stand for the project.
    complete: bool,
    extent: Extent,
    quiet_timeout: Duration,
    begin: Instant,
    budget: Budget,
    steps: usize,
    step: usize,
    runs: Vec<Run>,
    /// Rounds that were left out.
    left_out: Vec<String>,
    versions: BTreeMap<String, String>,
}

/// Measures, shows the table, and writes the result.
///
/// # Errors
/// A run of netd failed (the others are written nevertheless), or the result cannot be written.
pub(crate) fn run(options: &Options, kind: Kind, out: &mut impl Write) -> Result<()> {
    machine::is_one_build()?;
    ensure!(nix::unistd::geteuid().is_root(), "this needs root: it makes network namespaces");
    let (setups, parts) = (options.setups(kind), options.parts(kind));
    let (rounds, pace) = (options.rounds(kind), options.pace(kind));
    let commit = machine::commit();
    let computer = Computer::this()?;
    writeln!(out, "{} × {}, Linux {}, commit {commit}", computer.cores, computer.cpu_model, computer.kernel)?;
    let steps = setups.iter().map(|s| s.peers.len() * s.rounds.min(rounds) as usize).sum::<usize>();
    ensure!(steps + parts.len() > 0, "nothing of that can be measured");
    let mut suite = Suite {
        out,
        pace: pace.clone(),
        complete: options.is_complete(),
        extent: if options.quick { Extent::QUICK } else { Extent::WHOLE },
        quiet_timeout: Duration::from_secs(options.quiet_timeout),
        begin: Instant::now(),
        budget: Budget::new(options.limit()),
        steps: steps + parts.len(),
        step: 0,
        runs: Vec::new(),
        left_out: Vec::new(),
        versions: BTreeMap::new(),
    };
    if setups.iter().any(|s| s.peers.contains(&Peer::Passt)) {
        suite.versions.insert("passt".into(), passt_version()?);
    }
    for case in parts {
        suite.part(case, options.quick)?;
    }
    let rounds_of = |setup: &Setup| setup.rounds.min(rounds);
    let mut left: VecDeque<(u32, &Setup)> = (0..rounds)
        .flat_map(|round| setups.iter().map(move |setup| (round, setup)))
        .filter(|(round, setup)| *round < rounds_of(setup))
        .collect();
    while let Some((round, setup)) = left.pop_front() {
        suite.round(setup, round)?;
        suite.tell_what_is_left(left.iter().map(|(_, setup)| setup.name()))?;
    }
    let Suite { runs, left_out, versions, .. } = suite;
    let failed = runs.iter().filter(|r| r.error.is_some()).count();
    let ours =
        runs.iter().filter(|r| r.error.is_some() && [PARTS, "netd"].contains(&r.peer.as_str())).count();
    ensure!(failed < runs.len(), "no run succeeded");
    let Pace { seconds, warm_up_seconds, .. } = pace;
    let settings = Settings { seconds, warm_up_seconds, rounds, quick: options.quick };
    let mut results = Results::new((machine::now()?, commit), settings, computer, versions, runs);
    results.warnings.extend(left_out.into_iter().chain(options.note.iter().cloned()));
    let missing = if options.is_whole() && kind == Kind::Usual { results.missing() } else { Vec::new() };
    write!(out, "\n{}\n", figures(&results))?;
    for warning in &results.warnings {
        writeln!(out, "note: {warning}")?;
    }
    let stands = options.is_complete() && ours == 0 && missing.is_empty();
    write_results(&results, stands.then_some(kind), out)?;
    if ours > 0 {
        bail!("{ours} runs of netd failed");
    }
    ensure!(missing.is_empty(), "required figures are missing: {}", missing.join(", "));
    Ok(())
}

impl<W: Write> Suite<'_, W> {
    /// One round of a setup: each of its peers, unless there is no time for all of them.
    fn round(&mut self, setup: &Setup, round: u32) -> Result<()> {
        let begin = Instant::now();
        if !self.budget.fits(&setup.name(), self.begin.elapsed()) {
            self.step += setup.peers.len();
            let line = format!("round {}, {}: left out, there was no time for it", round + 1, setup.name());
            writeln!(self.out, "{line}")?;
            self.left_out.push(line);
            return Ok(());
        }
        for peer in order(&setup.peers, round) {
            self.setup(setup, peer, round)?;
        }
        self.budget.took(setup.name(), begin.elapsed());
        Ok(())
    }

    /// A line about the time that these rounds will take, when it is known.
    fn tell_what_is_left(&mut self, setups: impl Iterator<Item = String>) -> Result<()> {
        match self.budget.left(setups) {
            Some(left) if !left.is_zero() => {
                writeln!(self.out, "about {} min left", left.as_secs().div_ceil(60))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// One setup with one peer.
    fn setup(&mut self, setup: &Setup, peer: Peer, round: u32) -> Result<()> {
        self.step += 1;
        let busy = wait_until_quiet(self.quiet_timeout)?;
        if busy > DISTURBED_CPUS {
            writeln!(self.out, "the machine is not quiet: {busy:.1} processors are busy otherwise")?;
        }
        let run = |case: Case| Run {
            round,
            setup: setup.name(),
            peer: peer.name().into(),
            case: case.to_string(),
            ..Run::default()
        };
        let mut bed = match Bed::start(setup, peer) {
            Ok(bed) => bed,
            Err(error) => {
                for case in &setup.cases {
                    self.done(Run { error: Some(format!("{error:#}")), ..run(*case) })?;
                }
                return Ok(());
            }
        };
        if let Machine::Linux(guest) = &mut bed.machine {
            let name = format!("guest kernel ({})", setup.frontend);
            if !self.versions.contains_key(&name)
                && let Ok(kernel) = guest.kernel()
            {
                self.versions.insert(name, kernel);
            }
        }
        let mut failures = 0;
        for &case in &setup.cases {
            if failures >= ENOUGH {
                self.done(Run { error: Some("given up after other failures".into()), ..run(case) })?;
                continue;
            }
            let mut done = self.case(&mut bed, case, run(case));
            let disturbed = done.error.is_none() && done.others_cpus > DISTURBED_CPUS;
            if disturbed && case.is_repeatable() && self.budget.again(Duration::from_secs_f64(done.seconds)) {
                writeln!(self.out, "{done}: others kept {:.1} processors busy: once more", done.others_cpus)?;
                wait_until_quiet(self.quiet_timeout)?;
                let again = self.case(&mut bed, case, run(case));
                done = calmer(done, again);
            }
            failures += usize::from(done.error.is_some());
            self.done(done)?;
        }
        Ok(())
    }

    /// One case.
    fn case(&self, bed: &mut Bed, case: Case, run: Run) -> Run {
        let (begin, before) = (Instant::now(), bed.sample());
        let mut found = Found::default();
        let ended = cases::run(bed, case, &self.pace, &mut found);
        let used = before.and_then(|before| bed.since(&before));
        let error = ended.err().map(|e| format!("{e:#}\n{}", bed.log()).trim().to_owned());
        Run {
            seconds: begin.elapsed().as_secs_f64(),
            others_cpus: used.map_or(0.0, |u| u.others / u.wall.max(0.01)),
            figures: found.figures,
            course: found.course,
            error,
            ..run
        }
    }

    /// A part of netd alone.
    fn part(&mut self, case: Case, quick: bool) -> Result<()> {
        self.step += 1;
        wait_until_quiet(self.quiet_timeout)?;
        let (begin, busy, ours) = (Instant::now(), usage::busy()?, usage::cpu(Pid::this())?);
        let results = self.complete.then(results_dir);
        let found = match case {
            Case::Micro => cases::micro(quick),
            Case::Migration => cases::migrations(self.out),
            _ => cases::all_ports(self.extent, results.as_deref()),
        };
        let seconds = begin.elapsed().as_secs_f64();
        let others = usage::busy()? - busy - (usage::cpu(Pid::this())? - ours).total();
        let done = Run {
            setup: "none".into(),
            peer: PARTS.into(),
            case: case.to_string(),
            seconds,
            others_cpus: others.max(0.0) / seconds,
            ..Run::default()
        };
        self.done(match found {
            Ok(Found { figures, course }) => Run { figures, course, ..done },
            Err(error) => Run { error: Some(format!("{error:#}")), ..done },
        })
    }

    /// Keeps a run and shows a line of it.
    fn done(&mut self, run: Run) -> Result<()> {
        let seconds = self.begin.elapsed().as_secs();
        write!(self.out, "[{}/{} {:02}:{:02}] {run}:", self.step, self.steps, seconds / 60, seconds % 60)?;
        if let Some(error) = &run.error {
            writeln!(self.out, " FAILED: {error}")?;
        }
        for (name, value) in &run.figures {
            write!(self.out, "  {name} {}", brief(*value))?;
        }
        writeln!(self.out)?;
        self.out.flush()?;
        self.runs.push(run);
        Ok(())
    }
}

/// Of two runs of the same, the one that others disturbed less; one that failed does not count.
fn calmer(first: Run, second: Run) -> Run {
    let better = second.error.is_none() && second.others_cpus < first.others_cpus;
    Run { repeated: true, ..if better { second } else { first } }
}

/// Three digits or so.
fn brief(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn write_results(results: &Results, stands_for: Option<Kind>, out: &mut impl Write) -> Result<()> {
    fs::create_dir_all(results_dir())?;
    let part = if stands_for.is_some() { "" } else { "-partial" };
    let path = results_dir().join(format!("{}-{}{part}.json", results.date.replace(':', ""), results.commit));
    results.write(&path)?;
    writeln!(out, "{}", path.display())?;
    if let Some(kind) = stands_for {
        results.write(&results_dir().join(kind.file()))?;
        write_page()?;
    }
    Ok(())
}

/// Waits until nothing else keeps the processors busy, at most `quiet_timeout`; returns how many are still busy.
fn wait_until_quiet(quiet_timeout: Duration) -> Result<f64> {
    let end = Instant::now() + quiet_timeout;
    loop {
        let (begin, before) = (Instant::now(), usage::busy()?);
        sleep(PAUSE);
        let others = (usage::busy()? - before).max(0.0) / begin.elapsed().as_secs_f64();
        if others <= DISTURBED_CPUS || Instant::now() > end {
            return Ok(others);
        }
    }
}

/// The version of the peer's package: passt itself tells none.
pub(crate) fn passt_version() -> Result<String> {
    let query = ["dpkg-query", "--show", "--showformat", "${Version}", "passt"];
    Ok(Pod::new(NetOptions::default())?.peer("version").run(&query)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Parser, ValueEnum};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Result<Options, clap::Error> {
        Line::try_parse_from(["perf"].iter().chain(words)).map(|l| l.options)
    }

    #[test]
    fn only_a_whole_measurement_stands_for_the_project() {
        assert!(options(&[]).unwrap().is_complete());
        assert!(options(&["-n", "5", "--seconds", "2"]).unwrap().is_complete());
        for partial in [&["--quick"] as &[_], &["--backend", "passt"], &["--mtu", "9000"], &["--case", "tcp"]]
        {
            assert!(!options(partial).unwrap().is_complete(), "{partial:?}");
        }
    }

    #[test]
    fn every_case_can_be_asked_for_alone() {
        for name in Case::value_variants().iter().map(Case::to_string) {
            let options = options(&["--case", &name]).unwrap();
            let kinds = [Kind::Usual, Kind::Crowds];
            let has = |kind| !options.setups(kind).is_empty() || !options.parts(kind).is_empty();
            assert_eq!(kinds.into_iter().filter(|kind| has(*kind)).count(), 1, "{name}");
            let setups = kinds.into_iter().flat_map(|kind| options.setups(kind)).collect::<Vec<_>>();
            assert!(setups.iter().all(|s| s.cases.len() == 1), "{name}");
        }
        let parts = |words| options(words).unwrap().parts(Kind::Usual);
        assert_eq!(parts(&[]), [Case::Micro, Case::Ports, Case::Migration]);
        assert_eq!(parts(&["--quick"]), [Case::Micro, Case::Ports]);
        assert!(parts(&["--frontend", "uml"]).is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            &["--backend", "vde"] as &[_],
            &["-n", "0"],
            &["--limit", "0"],
            &["--seconds", "0"],
            &["--case", "x"],
        ] {
            assert!(options(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn of_two_runs_the_calmer_counts_unless_it_failed() {
        let run = |others_cpus, error: Option<&str>| Run {
            others_cpus,
            error: error.map(str::to_owned),
            ..Run::default()
        };
        assert_eq!(calmer(run(0.5, None), run(0.1, None)), Run { repeated: true, ..run(0.1, None) });
        assert_eq!(calmer(run(0.5, None), run(0.9, None)), Run { repeated: true, ..run(0.5, None) });
        assert_eq!(calmer(run(0.5, None), run(0.0, Some("x"))), Run { repeated: true, ..run(0.5, None) });
    }

    #[test]
    fn there_is_a_limit_even_when_none_is_named() {
        for (words, seconds) in [(&[] as &[_], 2400), (&["--quick"], 270), (&["--limit", "7"], 420)] {
            assert_eq!(options(words).unwrap().limit(), Duration::from_secs(seconds), "{words:?}");
        }
    }

    #[test]
    fn a_line_of_progress_has_few_digits() {
        assert_eq!([0.0, 0.01634, 7.6834, 14_249.4].map(brief), ["0", "0.0163", "7.68", "14249"]);
    }
}
