//! Two machines on a node, one of which floods: what the other keeps.
//!
//! # Theory of operation
//!
//! ```text
//!   group: limit ┌ victim's pod: guest (User Mode Linux) ── backend ── eth0 ┐        (kernel:
//!                └                                                          │ veth    routes,    veth
//!   group: limit ┌ attacker's pod: guest (a loop)        ── backend ── eth0 ┤ ────    tracks, ──────── client: peers of both
//!                └                                                          ┘ the     translates)
//!                                                                             node
//! ```
//!
//! Both backends have their usual limits. What the victim reaches is measured again and again ([`victim`]), in turns alone
//! and beside a flood ([`attack()`]), which begins and ends for each turn: what this machine can do differs from one ten
//! seconds to the next by more than what is looked for, so that only neighbours in time can be compared, and only many of
//! them. A kind of flood ends with a measurement without one, which is the first one of the next kind. That has a fresh
//! backend: it does not begin with a flow table that this kind has filled. Meanwhile it is watched what the flood takes of the
//! node ([`watch`]). After the last turn the attacker's guest starts again and has to be served.
//!
//! The peers are outside of both pods' limits: of the machine's processors they have what the two pods leave.

mod attack;
mod attacker;
mod limits;
mod record;
mod victim;
mod watch;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use podvirt_bed_tools::flood::Kind;
use podvirt_e2e::{Family, Net, NetOptions, Pod};
use serde_json::Value;

pub(crate) use attack::{Options as AttackOptions, run as attack};
pub(crate) use record::Record;

use crate::bed::Bed;
use crate::machine::{self, Machine};
use crate::plan::{Case, Frontend, Peer, Setup};
use crate::usage;
use attacker::Attacker;
use limits::Limits;
use record::{Backend, Flood, Row};
use victim::Reached;

/// The MTU of every link.
const MTU: u16 = 1500;
/// A flood goes on for so long before the victim is measured beside it.
const HEAD_START: Duration = Duration::from_millis(500);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these floods, with commas
    #[arg(long = "kind", value_name = "NAMES", value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Only these backends, with commas [default: netd,passt]
    #[arg(long = "backend", value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Processors of each of the two pods
    #[arg(long, value_name = "NUMBER", default_value_t = 0.5)]
    processors: f64,
    /// Turns alone and beside each flood [default: 5, quick: 1]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of each stream [default: 2, quick: 1]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// A look: short, and no file is written
    #[arg(long)]
    quick: bool,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
}

/// How long each thing is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    rounds: u32,
    bulk_seconds: u32,
    stretch: Duration,
}

impl Options {
    fn extent(&self) -> Extent {
        Extent {
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 5 }),
            bulk_seconds: self.seconds.unwrap_or(if self.quick { 1 } else { 2 }),
            stretch: Duration::from_millis(if self.quick { 300 } else { 2000 }),
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        if self.kinds.is_empty() { Kind::ALL.to_vec() } else { self.kinds.clone() }
    }

    fn peers(&self) -> Vec<Peer> {
        if self.peers.is_empty() { vec![Peer::Netd, Peer::Passt] } else { self.peers.clone() }
    }

    /// Whether the result may stand for the project.
    fn is_complete(&self) -> bool {
        self.kinds.is_empty() && self.peers.is_empty() && !self.quick
    }
}

/// Measures, prints, and writes the file and the page if everything was measured.
///
/// # Errors
/// netd cannot be measured, or the file cannot be written; what becomes of another backend is a part of the result.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    machine::is_one_build()?;
    ensure!(
        nix::unistd::geteuid().is_root(),
        "this needs root: it makes network namespaces and control groups"
    );
    ensure!(
        options.processors > 0.0 && options.processors < 64.0,
        "--processors {}: a number above 0 and below 64",
        options.processors
    );
    let extent = options.extent();
    let mut backends = Vec::new();
    for peer in options.peers() {
        let mut rows = Vec::new();
        let ended = measure(peer, options, &extent, &mut rows, out);
        let error = ended.err().map(|e| format!("{e:#}"));
        if let Some(error) = &error {
            writeln!(out, "{peer}: FAILED: {error}")?;
        }
        backends.push(Backend { name: peer.name().into(), rows, error });
    }
    let record = Record {
        date: machine::now()?,
        commit: machine::commit(),
        machine: Machine::this()?,
        processors: options.processors,
        rounds: extent.rounds,
        seconds: extent.bulk_seconds,
        stretch_seconds: extent.stretch.as_secs_f64(),
        backends,
        notes: options.note.clone(),
    };
    writeln!(out, "{}", record.section())?;
    let ours = record.backends.iter().find(|b| b.name == Peer::Netd.name());
    if let Some(error) = ours.and_then(|b| b.error.as_ref()) {
        bail!("netd: {error}");
    }
    if options.is_complete() {
        crate::write(&results.join("tenants.json"), &record)?;
        crate::write_page()?;
    }
    Ok(())
}

/// All kinds with one backend.
fn measure(
    peer: Peer,
    options: &Options,
    extent: &Extent,
    rows: &mut Vec<Row>,
    out: &mut impl Write,
) -> Result<()> {
    let limits = ["victim", "attacker"].map(|what| Limits::new(what, options.processors));
    let [victims, attackers] = limits;
    let (victims, attackers) = (victims?, attackers?);
    let net = Net::up(NetOptions { mtu: Some(MTU), hop: Some(MTU), ..Default::default() })?;
    let (beside, node) = (net.beside()?, net.router());
    let pod = Pod::at(beside)?;
    let setup = Setup {
        frontend: Frontend::Uml,
        mtu: MTU,
        link_mtu: MTU,
        family: Family::V4,
        cases: vec![Case::Tcp],
        peers: vec![peer],
        sizes: Vec::new(),
        steered: false,
        pairs: 1,
        rounds: 1,
    };
    let victim = Pod::at(net)?;
    let mut bed = victims.within(|| Bed::at(&setup, peer, victim, "", ""))?;
    bed.serve_in_guest()?;
    let mut attacker = Attacker::start(&pod, peer, &attackers)?;
    ensure!(attacker.check()?.1.is_some(), "the flooding guest is not served before any flood");
    let mut alone = victim::reaches(&mut bed, extent).context("before any flood")?;
    say(out, peer, "alone", &alone)?;
    for kind in options.kinds() {
        let mut row = Row { kind: kind.name().into(), alone: vec![alone], ..Row::default() };
        attackers.forget_memory()?;
        let mut used = Used::default();
        for _ in 0..extent.rounds {
            if let Err(error) =
                turn(&mut bed, &mut attacker, (&attackers, &node), kind, extent, (&mut row, &mut used))
            {
                row.error = Some(format!("{error:#}"));
            } else if let Some(beside) = row.beside.last() {
                say(out, peer, &row.kind, beside)?;
            }
            alone = victim::reaches(&mut bed, extent)
                .with_context(|| format!("after {}: {}", kind.name(), bed.log()))?;
            say(out, peer, "alone", &alone)?;
            row.alone.push(alone);
            if row.error.is_some() {
                break;
            }
        }
        used.tell(&mut row.flood);
        row.flood.pod_mib = attackers.most_memory_mib()?;
        match attacker.check() {
            Ok((alive, serves)) => {
                (row.flood.alive_after_ms, row.flood.serves_after_ms) = (Some(alive), serves);
            }
            Err(error) => row.error = Some(row.error.take().unwrap_or_else(|| format!("{error:#}"))),
        }
        if let Some(error) = &row.error {
            writeln!(out, "{peer}, {}: {error}", row.kind)?;
        }
        writeln!(out, "  {:?}", row.flood)?;
        rows.push(row);
        // The next kind of flood begins without flows or processes of this kind.
        drop(attacker);
        attacker = Attacker::start(&pod, peer, &attackers)?;
        attacker.check().context("a fresh backend")?;
    }
    Ok(())
}

/// What the turns beside a flood have used, all together.
#[derive(Debug, Default)]
struct Used {
    seconds: f64,
    pod: f64,
    interrupts: f64,
    others: f64,
    frames: f64,
    flood_seconds: f64,
}

impl Used {
    fn tell(&self, flood: &mut Flood) {
        let a_second = |total: f64| total / self.seconds.max(0.001);
        flood.pod_cpus = a_second(self.pod);
        flood.interrupt_cpus = a_second(self.interrupts);
        flood.others_cpus = a_second(self.others);
        flood.frames_per_second = self.frames / self.flood_seconds.max(0.001);
    }
}

/// A turn beside a flood: what the victim reaches, and what the flood is.
fn turn(
    bed: &mut Bed,
    attacker: &mut Attacker<'_>,
    (limits, node): (&Limits, &podvirt_e2e::Netns),
    kind: Kind,
    extent: &Extent,
    (row, used): (&mut Row, &mut Used),
) -> Result<()> {
    let backend = attacker.backend()?;
    let now = || -> Result<(Instant, f64, f64)> { Ok((Instant::now(), limits.cpu()?, usage::interrupts()?)) };
    attacker.flood(kind)?;
    std::thread::sleep(HEAD_START);
    let (begin, sample) = (now()?, bed.sample()?);
    let reached = watch::beside(backend, node, &mut row.flood.most, || victim::reaches(bed, extent));
    let (end, others) = (now()?, bed.since(&sample)?.others);
    used.seconds += (end.0 - begin.0).as_secs_f64();
    used.pod += end.1 - begin.1;
    used.interrupts += end.2 - begin.2;
    used.others += others;
    let stopped = attacker.stop()?;
    let of = |name: &str| stopped.get(name).and_then(Value::as_f64).unwrap_or_default();
    used.frames += of("frames");
    used.flood_seconds += of("seconds");
    row.flood.reconnects += of("reconnects");
    row.beside.push(reached?);
    Ok(())
}

fn say(out: &mut impl Write, peer: Peer, what: &str, reached: &Reached) -> Result<()> {
    let Reached { out_gbits, in_gbits, round_trip, connection } = reached;
    writeln!(
        out,
        "{peer}, {what}: out {out_gbits:.2} in {in_gbits:.2} Gbit/s, round trip {:.0}/{:.0}, connection {:.0}/{:.0} µs, {} failed",
        round_trip.p50, round_trip.p99, connection.p50, connection.p99, connection.failed
    )?;
    Ok(out.flush()?)
}
