//! Live migration: what becomes of a guest's connections, and how long it is not heard.
//!
//! # Theory of operation
//!
//! A guest under QEMU moves between two pods, again and again ([`place`]), while connections of every shape go on
//! ([`streams`]) and two probes look how long nothing comes from it ([`probe`]). Around each move there is a span, from
//! the order to migrate until both probes are heard again and a while longer; the longest silences in it are the
//! downtime. At the end of a guest all streams are ended in order, and both ends tell what was sent and what arrived.
//!
//! netd, passt and a tap device behind the kernel's own bridge and translation, which is what there is with privilege and
//! without a backend, take turns, a guest each. With passt connections may break: a guest's later migrations then have fewer
//! of them, and the record tells of each migration how many had broken by then.
//!
//! The guest's processors are emulated: for as long as they work off what has come for the guest meanwhile, the probes hear
//! nothing. A guest whose frames are lost has less to do than one whose frames follow it. So there are guests with idle
//! connections as well, which have the same to do with netd and with a tap device.
//!
//! [`growth`] measures what thousands of connections add, without a hypervisor: its share is in the first figures.

mod growth;
mod helper;
mod place;
mod pods;
mod probe;
mod record;
mod streams;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podvirt_e2e::until;

use crate::machine::{self, Machine};
use crate::plan::Peer;
use crate::suite::passt_version;
use place::{PROBE_PORT, Place, millis};
use probe::Probes;
pub(crate) use record::Record;
use record::{One, Side};
use streams::{Load, Streams, Tally};

/// Longer than a retransmission that a migration may cause.
const AFTER: Duration = Duration::from_millis(700);
/// Bytes that the guest's echo has for datagrams: with Linux' usual ones, 166 of these, it would itself drop some of what comes at once
/// when it runs again.
const PROBE_ROOM: usize = 4 << 20;
/// Between two migrations beside it.
const BETWEEN: Duration = Duration::from_millis(300);
/// For the probes to be heard again.
const HEARD: Duration = Duration::from_secs(15);

/// Of virt-launcher, at the beginning, in ms.
const DOWNTIME_LIMIT: u32 = 80;

/// How much.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Migrations with netd
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: usize,
    /// Migrations with passt
    #[arg(long, value_name = "N", default_value_t = 40)]
    passt: usize,
    /// Migrations with a tap device
    #[arg(long, value_name = "N", default_value_t = 40)]
    tap: usize,
    /// Migrations of a guest with idle connections, with netd and as many with a tap device
    #[arg(long, value_name = "N", default_value_t = 30)]
    idle: usize,
    /// Guests with each of them, which share the migrations
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    guests: u16,
    /// Every second guest with passt, too, has connections full of data that neither end reads
    #[arg(long)]
    passt_full: bool,
    /// QEMU's downtime limit; virt-launcher begins with the default
    #[arg(long, value_name = "MS", default_value_t = DOWNTIME_LIMIT)]
    downtime_limit: u32,
    /// Numbers of idle connections of which the downtime is measured, with commas; none: 0
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [0, 1000, 5000, 9800])]
    growth: Vec<usize>,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
    /// Write no file
    #[arg(long)]
    dry: bool,
    /// Add the migrations to those that the file has
    #[arg(long)]
    more: bool,
}

impl Options {
    /// A look: what a whole measurement has room for.
    pub(crate) fn short() -> Options {
        let growth = vec![0, 1000];
        Options {
            count: 8,
            passt: 4,
            tap: 4,
            idle: 4,
            guests: 1,
            passt_full: false,
            downtime_limit: DOWNTIME_LIMIT,
            growth,
            note: Vec::new(),
            dry: true,
            more: false,
        }
    }
}

/// Measures, prints and writes the file.
///
/// # Errors
/// Something does not come up, or a migration with netd lost something.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    crate::machine::is_one_build()?;
    let before = if options.more { Record::read(results)? } else { None };
    let record = measure(options, before, out)?;
    if !options.dry {
        record.write(results)?;
    }
    writeln!(out, "\n{}", record.section())?;
    check(&record)
}

impl Record {
    /// A few migrations, no file.
    ///
    /// # Errors
    /// As [`run`].
    pub(crate) fn short(out: &mut impl Write) -> Result<Record> {
        let record = measure(&Options::short(), None, out)?;
        check(&record)?;
        Ok(record)
    }

    /// Figures by their names.
    pub(crate) fn figures(&self) -> Vec<(String, f64)> {
        let of = [
            ("downtime_p50_ms", self.downtime_p50_ms),
            ("downtime_p99_ms", self.downtime_p99_ms),
            ("total_p50_ms", self.total_p50_ms),
            ("passt_downtime_p50_ms", self.passt_downtime_p50_ms),
            ("tap_downtime_p50_ms", self.tap_downtime_p50_ms),
            ("idle_downtime_p50_ms", self.idle.netd.downtime_p50()),
            ("idle_tap_downtime_p50_ms", self.idle.tap.downtime_p50()),
        ];
        let growth = self.growth.iter().filter(|g| g.connections > 0);
        let added = growth.map(|g| (format!("migration_added_ms_{}", g.connections), g.added_ms));
        of.into_iter().map(|(name, value)| (format!("migration_{name}"), value)).chain(added).collect()
    }
}

/// Nothing may be lost with netd.
///
/// # Errors
/// Something was.
fn check(record: &Record) -> Result<()> {
    for netd in [&record.netd, &record.idle.netd] {
        ensure!(netd.failures.is_empty(), "a migration failed: {}", netd.failures.join("; "));
        ensure!(netd.tally.is_clean(), "connections did not survive: {}", netd.tally.errors.join("; "));
        ensure!(netd.probes_broken == 0, "the TCP probe broke {} times", netd.probes_broken);
    }
    Ok(())
}

/// Measures.
///
/// # Errors
/// Something does not come up.
fn measure(options: &Options, before: Option<Record>, out: &mut impl Write) -> Result<Record> {
    let growth = growth::measure(&options.growth, out)?;
    let (mut netd, mut passt, mut tap, mut idle) =
        before.map_or_else(Default::default, |b| (b.netd, b.passt, b.tap, b.idle));
    for guest in 0..usize::from(options.guests) {
        for (peer, side, all) in [
            (Peer::Netd, &mut netd, options.count),
            (Peer::Passt, &mut passt, options.passt),
            (Peer::Tap, &mut tap, options.tap),
        ] {
            let share = |n: usize| all * n / usize::from(options.guests);
            let count = share(guest + 1) - share(guest);
            if count > 0 {
                let full = guest % 2 == 1 && (peer != Peer::Passt || options.passt_full);
                let load = if full { Load::Full } else { Load::Streams };
                one_guest(peer, (count, load), options, side, out)?;
            }
        }
    }
    for (peer, side) in [(Peer::Netd, &mut idle.netd), (Peer::Tap, &mut idle.tap)] {
        if options.idle > 0 {
            one_guest(peer, (options.idle, Load::Idle), options, side, out)?;
        }
    }
    let mut record = Record {
        date: machine::now()?,
        commit: machine::commit(),
        machine: Machine::this()?,
        versions: BTreeMap::from([("passt".into(), passt_version()?)]),
        notes: options.note.clone(),
        migrations: 0,
        bytes_lost: 0,
        bytes_duplicated: 0,
        connections_reset: 0,
        connections_hung: 0,
        downtime_p50_ms: 0.0,
        downtime_p95_ms: 0.0,
        downtime_p99_ms: 0.0,
        total_p50_ms: 0.0,
        passt_migrations: 0,
        passt_bytes_lost: 0,
        passt_connections_reset: 0,
        passt_connections_hung: 0,
        passt_downtime_p50_ms: 0.0,
        passt_downtime_p95_ms: 0.0,
        passt_downtime_p99_ms: 0.0,
        passt_total_p50_ms: 0.0,
        tap_downtime_p50_ms: 0.0,
        downtime_limit_ms: options.downtime_limit,
        connections: 0,
        growth,
        netd,
        passt,
        tap,
        idle,
    };
    record.summarise();
    Ok(record)
}

/// One guest with its connections, through so many migrations.
fn one_guest(
    peer: Peer,
    (count, load): (usize, Load),
    options: &Options,
    side: &mut Side,
    out: &mut impl Write,
) -> Result<()> {
    side.guests += 1;
    let mut place =
        Place::new(peer, options.downtime_limit).with_context(|| format!("a guest with {peer}"))?;
    place.send_agent()?;
    place.guest()?.serve(PROBE_PORT, &format!("/tmp/agent serve {PROBE_PORT} {PROBE_ROOM}"))?;
    let streams = Streams::open(&mut place, load).with_context(|| place.log())?;
    let probes = Probes::start(place.net())?;
    ensure!(streams.stalled()? == 0, "not every stream runs before the first migration");
    for number in 1..=count {
        thread::sleep(BETWEEN);
        let one = match migration(&mut place, &streams, &probes) {
            Ok(one) => One { full: load == Load::Full, ..one },
            Err(error) => {
                writeln!(out, "{peer} {number}/{count}: FAILED: {error:#}")?;
                side.failures.push(format!("{error:#}"));
                break;
            }
        };
        writeln!(out, "{peer} {number}/{count}: {}", line(&one))?;
        out.flush()?;
        side.runs.push(one);
    }
    side.probes_broken += probes.broken();
    drop(probes);
    let tally = streams.finish(&place);
    let tally = tally.unwrap_or_else(|error| {
        side.failures.push(format!("the end: {error:#}"));
        Tally::default()
    });
    writeln!(out, "{peer}: {tally:?}")?;
    side.tally.join(tally);
    Ok(())
}

/// One migration with what the probes find around it.
fn migration(place: &mut Place, streams: &Streams, probes: &Probes) -> Result<One> {
    let missing = probes.missing();
    let moved = place.migrate()?;
    let (begin, arrived) = moved.span;
    // A probe that stays silent has the whole time as its downtime.
    drop(until("the probes", HEARD, || Ok(probes.alive_since(arrived).then_some(()))));
    let heard = Instant::now().max(arrived);
    thread::sleep((heard + AFTER).saturating_duration_since(Instant::now()));
    let gaps = probes.gaps(begin, Instant::now());
    let round = |ms: f64| (ms * 10.0).round() / 10.0;
    Ok(One {
        full: false,
        udp_ms: round(millis(gaps.udp)),
        tcp_ms: round(millis(gaps.tcp)),
        total_ms: round(millis(arrived - begin)),
        stopped_ms: round(millis(moved.stopped)),
        memory_mib: round(moved.memory_bytes / f64::from(1 << 20)),
        udp_lost: probes.missing().saturating_sub(missing),
        netd_ms: moved.told.steps_ms,
        connections: moved.told.connections,
        dropped: moved.told.dropped,
        stalled: streams.stalled()?,
        broken: streams.broken(),
    })
}

fn line(one: &One) -> String {
    let steps: Vec<String> =
        one.netd_ms.iter().map(|ms| ms.map_or("–".into(), |ms| format!("{ms:.1}"))).collect();
    let mut line = format!(
        "not heard {:.0} ms by UDP, {:.0} by TCP; stopped {:.0} ms, {:.0} in all; {:.0} MiB; netd {}; {} datagrams lost",
        one.udp_ms,
        one.tcp_ms,
        one.stopped_ms,
        one.total_ms,
        one.memory_mib,
        steps.join("/"),
        one.udp_lost
    );
    if let Some([out, into]) = one.connections {
        line += &format!("; {into} of {out} connections");
    }
    if one.dropped + one.stalled as u64 + one.broken as u64 > 0 {
        line += &format!("; {} reset, {} streams stand, {} broken", one.dropped, one.stalled, one.broken);
    }
    line
}
