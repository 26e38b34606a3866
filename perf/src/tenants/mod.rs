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
//! Both backends have their usual limits. What the victim reaches is measured again and again ([`victim`]); between two
//! measurements without a flood there is one beside a flood ([`attack()`]). The last one of a kind is the first one of the
//! next, in which the attacker has a fresh backend: the next kind does not begin with a flow table that this kind has filled.
//! Meanwhile it is watched what the flood takes of the node ([`watch`]). Afterwards the attacker's guest starts again and
//! has to be served.
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
    /// Length of each stream after its warm-up [default: 2, quick: 1]
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
    bulk_seconds: u32,
    warm_up_seconds: u32,
    stretch: Duration,
}

impl Options {
    fn extent(&self) -> Extent {
        Extent {
            bulk_seconds: self.seconds.unwrap_or(if self.quick { 1 } else { 2 }),
            warm_up_seconds: u32::from(!self.quick),
            stretch: Duration::from_millis(if self.quick { 300 } else { 1500 }),
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
    let mut before = victim::reaches(&mut bed, extent).context("before any flood")?;
    say(out, peer, "before", &before)?;
    for kind in options.kinds() {
        let mut row = Row { kind: kind.name().into(), before: Some(before), ..Row::default() };
        attackers.forget_memory()?;
        if let Err(error) = flooded(&mut bed, &mut attacker, (&attackers, &node), kind, extent, &mut row) {
            let error = format!("{error:#}");
            writeln!(out, "{peer}, {}: {error}", row.kind)?;
            row.error = Some(error);
        }
        if let Some(beside) = &row.beside {
            say(out, peer, &row.kind, beside)?;
        }
        let flood = &row.flood;
        writeln!(out, "  {flood:?}")?;
        let after = victim::reaches(&mut bed, extent);
        row.after = after.as_ref().ok().copied();
        rows.push(row);
        before = after.with_context(|| format!("after {}: {}", kind.name(), bed.log()))?;
        say(out, peer, "after", &before)?;
        // The next kind of flood begins without flows or processes of this kind.
        drop(attacker);
        attacker = Attacker::start(&pod, peer, &attackers)?;
        attacker.check().context("a fresh backend")?;
    }
    Ok(())
}

/// What the victim reaches beside a flood, and what that is.
fn flooded(
    bed: &mut Bed,
    attacker: &mut Attacker<'_>,
    (limits, node): (&Limits, &podvirt_e2e::Netns),
    kind: Kind,
    extent: &Extent,
    row: &mut Row,
) -> Result<()> {
    let backend = attacker.backend()?;
    let used =
        || -> Result<(Instant, f64, f64)> { Ok((Instant::now(), limits.cpu()?, usage::interrupts()?)) };
    attacker.flood(kind)?;
    std::thread::sleep(HEAD_START);
    let (before, sample) = (used()?, bed.sample()?);
    let measured = watch::beside(backend, node, || Ok(victim::reaches(bed, extent)));
    let (now, others) = (used()?, bed.since(&sample)?.others);
    let (reached, most) = measured?;
    let seconds = (now.0 - before.0).as_secs_f64();
    row.beside = reached.as_ref().ok().copied();
    row.flood = Flood {
        pod_cpus: (now.1 - before.1) / seconds,
        interrupt_cpus: (now.2 - before.2) / seconds,
        others_cpus: others / seconds,
        pod_mib: limits.most_memory_mib()?,
        most,
        ..Flood::default()
    };
    let stopped = attacker.stop()?;
    let of = |name: &str| stopped.get(name).and_then(Value::as_f64).unwrap_or_default();
    row.flood.frames_per_second = of("frames") / of("seconds").max(0.001);
    row.flood.reconnects = of("reconnects");
    let (alive, serves) = attacker.check()?;
    (row.flood.alive_after_ms, row.flood.serves_after_ms) = (Some(alive), serves);
    reached.map(drop)
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
