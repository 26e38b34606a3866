//! The bindings of a machine's network side by side on the cluster, and machines in a service mesh.
//!
//! # Theory of operation
//!
//! ```text
//!   node 1                                   node 2
//!   a machine by each binding, a plain pod ── peer
//!   the same, each with a proxy of a mesh  ──┘
//! ```
//!
//! All of them run at the same time, and those whose turn it is not have nothing to do. In each round every subject has
//! its turn, and each round begins with another one ([`crate::sides`]). A turn ([`measure`]) is bulk by iperf3, round
//! trips and connections, out of the subject and into it, and then memory. What it costs is what the kernel accounts to
//! the pod's cgroups ([`crate::cgroups`]).
//!
//! What fails is told and does not keep the others from their turns; rounds that would not end in time are left out.

mod measure;
mod record;
mod subjects;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use podvirt_e2e::cluster::mesh::{Mesh, Proxy};
use podvirt_e2e::cluster::{Cluster, Security};

use crate::budget::Budget;
use crate::machine::{self, Machine};
use crate::sides::{Run, turns};
use measure::Pace;
pub(crate) use record::Bindings;
use subjects::{BULK, ECHO, KINDS, Kind, Peer, Subject, library};

/// The name of a round in the budget: all rounds are alike.
const ROUND: &str = "round";

/// How long and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds [default: 3, quick: 1]
    #[arg(short = 'n', value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of each bulk measurement after its warm-up [default: 3, quick: 1]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Only these subjects, with commas; no result is written
    #[arg(long = "only", value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// One short round; no result is written
    #[arg(long)]
    quick: bool,
    /// The most that all of it may take; rounds that would not end in time are left out
    #[arg(long, value_name = "MINUTES", default_value_t = 13, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
}

impl Options {
    fn pace(&self) -> Pace {
        let bulk = self.seconds.unwrap_or(if self.quick { 1 } else { 3 });
        Pace { bulk, warm_up: 1, short: if self.quick { 0.5 } else { 1.5 } }
    }

    fn kinds(&self) -> Result<Vec<Kind>> {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.key).collect();
        for name in &self.only {
            ensure!(known.contains(&name.as_str()), "--only {name}: there are {}", known.join(", "));
        }
        let wanted = |kind: &&Kind| self.only.is_empty() || self.only.iter().any(|name| name == kind.key);
        Ok(KINDS.iter().filter(wanted).copied().collect())
    }
}

/// Measures, prints, and writes the file unless it was only a look.
///
/// # Errors
/// Without a cluster with podvirt in it, or when something of netd's or the kernel's could not be measured; what could be is written.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    let (kinds, pace, began) = (options.kinds()?, options.pace(), Instant::now());
    let (commit, computer) = (machine::commit(), Machine::this()?);
    let cluster = Cluster::get_with_mesh()?;
    let namespaces = [cluster.namespace(Security::Restricted)?, cluster.namespace(Security::Privileged)?];
    let [plain, meshed] = &namespaces;
    let mesh = Mesh::new(meshed)?;
    mesh.configure("mesh", &Proxy { tcp: vec![ECHO, BULK], ..Default::default() })?;
    let library = library(cluster.address())?;
    let of = |kind: &Kind| if kind.meshed { meshed } else { plain };

    let mut runs = Vec::new();
    let mut failed = |kind: Kind, error: &anyhow::Error| {
        runs.push(Run { subject: kind.key.into(), error: Some(format!("{error:#}")), ..Run::default() });
    };
    let mut asked = Vec::new();
    for kind in kinds {
        match Subject::ask(of(&kind), kind) {
            Ok(()) => asked.push(kind),
            Err(error) => failed(kind, &error),
        }
    }
    let mut peer = Peer::start(plain, library)?;
    let mut subjects = Vec::new();
    for kind in asked {
        match Subject::ready(of(&kind), kind, library) {
            Ok(subject) => subjects.push(subject),
            Err(error) => {
                writeln!(out, "{}: {error:#}", kind.key)?;
                failed(kind, &error);
            }
        }
    }
    writeln!(out, "{} subjects are up after {:.0} s", subjects.len(), began.elapsed().as_secs_f64())?;

    let mut budget = Budget::new(Duration::from_secs(60 * options.limit));
    let mut notes = options.note.clone();
    for round in 0..options.rounds.unwrap_or(if options.quick { 1 } else { 3 }) {
        if !budget.fits(ROUND, began.elapsed()) {
            notes.push(format!("round {} was left out, there was no time for it", round + 1));
            continue;
        }
        let start = Instant::now();
        for at in turns(subjects.len(), round) {
            let Some(subject) = subjects.get_mut(at) else { continue };
            runs.push(turn(subject, &mut peer, pace, round, out)?);
        }
        budget.took(ROUND.into(), start.elapsed());
    }
    drop(subjects);
    let found =
        Bindings { date: machine::now()?, commit, machine: computer, seconds: pace.bulk, notes, runs };
    write!(out, "{}", found.section())?;
    writeln!(out, "{:.0} s in all", began.elapsed().as_secs_f64())?;
    if options.only.is_empty() && !options.quick {
        found.write(results)?;
    }
    found.check()
}

/// One turn, and a line about it.
fn turn<'n>(
    subject: &mut Subject<'n>,
    peer: &mut Peer<'n>,
    pace: Pace,
    round: u32,
    out: &mut impl Write,
) -> Result<Run> {
    let start = Instant::now();
    let mut figures = BTreeMap::new();
    let done = measure::turn(subject, peer, pace, &mut figures);
    let (others_cpus, error) = match done {
        Ok(others) => (Some(others), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let key = subject.kind.key;
    let seconds = start.elapsed().as_secs_f64();
    let told = error.as_deref().unwrap_or("done");
    writeln!(out, "round {}, {key}: {told}, {seconds:.0} s", round + 1)?;
    Ok(Run { subject: key.into(), round, others_cpus, figures, error })
}
