//! The file `perf/results/tenants.json`, and what the page tells of it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use podvirt_bed_tools::flood::Kind;
use serde::{Deserialize, Serialize};

use super::attacker::SPRAYED;
use super::victim::Reached;
use super::watch::Most;
use crate::machine::Machine;
use crate::report::table;
use crate::stats::Summary;

/// The least share of its throughput that a machine keeps.
const SHARE: f64 = 0.8;
/// The most by which its 99th percentile grows.
const LONGER: f64 = 3.0;

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// UTC.
    pub(crate) date: String,
    /// The state of the sources.
    pub(crate) commit: String,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// Processors of each pod, as limit and as request.
    pub(crate) processors: f64,
    /// Turns alone and beside each flood.
    pub(crate) rounds: u32,
    /// Length of a bulk measurement in seconds.
    pub(crate) seconds: u32,
    /// Length of a stretch of round trips or connections.
    pub(crate) stretch_seconds: f64,
    /// Of each backend, which is both machines'.
    pub(crate) backends: Vec<Backend>,
    /// What a reader must know.
    pub(crate) notes: Vec<String>,
}

/// What was measured with a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Backend {
    /// Its name.
    pub(crate) name: String,
    /// A row for each kind.
    pub(crate) rows: Vec<Row>,
    /// Why there are no more.
    pub(crate) error: Option<String>,
}

/// One kind of flood.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// By the name that the command line has for it.
    pub(crate) kind: String,
    /// What the other machine reaches without it: before each turn beside it, and after the last one.
    pub(crate) alone: Vec<Reached>,
    /// Beside it.
    pub(crate) beside: Vec<Reached>,
    /// What the flood was and took.
    pub(crate) flood: Flood,
    /// What failed.
    pub(crate) error: Option<String>,
}

/// What a flood was and took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flood {
    /// Frames a second that the backend took from the guest.
    pub(crate) frames_per_second: f64,
    /// How often the guest had to connect again.
    pub(crate) reconnects: f64,
    /// Processors that the flooding pod kept busy, as its group is charged.
    pub(crate) pod_cpus: f64,
    /// Processors that were busy with the kernel's network work in interrupts, whichever control group the kernel has charged.
    pub(crate) interrupt_cpus: f64,
    /// Processors that were busy with what this program did not start: the kernel's threads and other programs.
    pub(crate) others_cpus: f64,
    /// The most of memory of the pod, the kernel's for it included, MiB.
    pub(crate) pod_mib: f64,
    /// The most of the rest.
    pub(crate) most: Most,
    /// From its end until the backend answered its guest again, which has to connect first, ms; none: it does not.
    pub(crate) alive_after_ms: Option<f64>,
    /// And until it carried an echo and a connection that are new, ms; none: not within half a minute.
    pub(crate) serves_after_ms: Option<f64>,
}

/// A figure of [`Reached`].
type Figure = fn(&Reached) -> f64;

const OUT: Figure = |reached| reached.out_gbits;
const IN: Figure = |reached| reached.in_gbits;
const ROUND_TRIP: Figure = |reached| reached.round_trip.p99;
const CONNECTION: Figure = |reached| reached.connection.p99;

/// What became of the other machine, by turns: each figure beside the flood divided by the mean of the same figure before and
/// after that turn.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    /// Throughput, guest to host and back.
    shares: [Vec<f64>; 2],
    /// 99th percentile of round trips, also divided by that beside a neighbour that computes.
    round_trip: Vec<f64>,
    /// The same of connections.
    connection: Vec<f64>,
    /// Connections that failed beside it.
    failed: f64,
}

/// 99th percentiles beside a neighbour that computes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sharing {
    round_trip: f64,
    connection: f64,
}

/// Whether what is required beside a flood is met; of several the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// In four of five turns at least.
    Met,
    Undecided,
    /// In one of five turns at most.
    Missed,
}

impl Verdict {
    fn of(turns: &[f64], meets: impl Fn(f64) -> bool) -> Verdict {
        let met = turns.iter().filter(|value| meets(**value)).count();
        if turns.is_empty() || met * 5 <= turns.len() {
            Verdict::Missed
        } else if met * 5 >= turns.len() * 4 {
            Verdict::Met
        } else {
            Verdict::Undecided
        }
    }
}

impl Kept {
    fn verdict(&self) -> Verdict {
        let shares = self.shares.iter().map(|turns| Verdict::of(turns, |share| share >= SHARE));
        let longer =
            [&self.round_trip, &self.connection].map(|turns| Verdict::of(turns, |p99| p99 <= LONGER));
        shares.chain(longer).max().unwrap_or(Verdict::Missed)
    }

    /// Of the direction that has lost more.
    fn share(&self) -> Option<Summary> {
        let of = |turns: &Vec<f64>| Summary::of(turns.iter().copied());
        self.shares.iter().filter_map(of).min_by(|a, b| a.median.total_cmp(&b.median))
    }
}

impl Row {
    fn is_flood(&self) -> bool {
        ![Kind::Computes, Kind::Plain].map(Kind::name).contains(&self.kind.as_str())
    }

    /// A figure of each turn, divided by the mean of the turns alone before it and after it.
    fn turns(&self, figure: Figure) -> Vec<f64> {
        let neighbours = self.alone.windows(2);
        let relative = |(beside, alone): (&Reached, &[Reached])| match alone {
            [before, after] => Some(figure(beside) / f64::midpoint(figure(before), figure(after))),
            _ => None,
        };
        self.beside.iter().zip(neighbours).filter_map(relative).collect()
    }

    fn kept(&self, sharing: Option<Sharing>) -> Option<Kept> {
        let sharing = sharing.filter(|_| self.is_flood());
        let price = |of: fn(&Sharing) -> f64| sharing.as_ref().map_or(1.0, of);
        let without = |figure, price: f64| self.turns(figure).into_iter().map(|p99| p99 / price).collect();
        (!self.beside.is_empty()).then(|| Kept {
            shares: [self.turns(OUT), self.turns(IN)],
            round_trip: without(ROUND_TRIP, price(|sharing| sharing.round_trip)),
            connection: without(CONNECTION, price(|sharing| sharing.connection)),
            failed: self.beside.iter().map(|reached| reached.connection.failed).sum(),
        })
    }

    /// Whether what is required beside a flood is met.
    fn verdict(&self, sharing: Option<Sharing>) -> Verdict {
        match self.kept(sharing) {
            Some(kept)
                if self.error.is_none() && self.flood.alive_after_ms.is_some() && kept.failed == 0.0 =>
            {
                kept.verdict()
            }
            _ => Verdict::Missed,
        }
    }
}

impl Backend {
    /// None: it was not measured.
    fn sharing(&self) -> Option<Sharing> {
        let row = self.row(Kind::Computes)?;
        let of = |figure| Summary::of(row.turns(figure)).map(|summary| summary.median);
        Some(Sharing { round_trip: of(ROUND_TRIP)?, connection: of(CONNECTION)? })
    }

    fn row(&self, kind: Kind) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind.name())
    }
}

/// What the page calls it.
fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Computes => "none: it computes",
        Kind::Plain => "none: its pod sends UDP by itself",
        Kind::Syn => "SYNs",
        Kind::Udp => "UDP, changing ports",
        Kind::Flows => "100,000 flows",
        Kind::Neighbours => "neighbours that are not there",
        Kind::Fragments => "fragments",
        Kind::Garbage => "garbage frames",
        Kind::Descriptors => "bad descriptors",
        Kind::Urgent => "urgent data",
        Kind::SlowPeers => "peers that do not read",
        Kind::SlowGuest => "a guest that does not read",
    }
}

impl Record {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Record>> {
        crate::read(&results.join("tenants.json"))
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let mut text = format!(
            "\n## Beside a machine that floods\n\nTwo pods of one node, each with a limit of {} processors of {} (`cpu.cfs_quota_us`, as \
             for a container with such a limit; in a cluster the machine's container and netd's have one each): a Linux guest (User Mode Linux) and a guest that floods, each behind a backend of its \
             own with its usual limits, and the node's kernel routes and translates for both. The flood is made by this project's own frontend in a \
             loop: any frame as fast as the ring takes them. *Throughput* is what the other machine keeps of a TCP stream as fast as it goes, in the \
             direction that loses more; *p99* is how many times as long the 99th percentile takes, of 400 round trips a second over one \
             connection, and of 100 connections a second, by a client outside of the node's pods. \
             Turns beside the flood and alone alternate, {} of them; each figure beside it is divided by the mean of the same figure just before and just after \
             that turn; a p99 is then divided by the median of that of the first row, whose neighbour sends nothing and computes, as the price of sharing processors by limits is not \
             the flood's. In the second row a plain process of the neighbour's pod sends datagrams from {SPRAYED} ports, without guest and backend: what any pod can do to its neighbours. \
             The table has the median of the turns and their range. \
             Required are a throughput ≥ {SHARE:.2} in both directions, both p99 ≤ {LONGER:.0}, no connection that fails, and a flooded backend that lives. *Yes*: at least four of \
             five turns meet each requirement. *No*: there is a requirement that at most one of five turns meets. All else is *undecided*. \
             A turn has a stream of {} s each way and a stretch of {} s of round trips and of connections each \
             ({}, commit {}; `perf tenants`).\n",
            self.processors,
            self.machine.cores,
            self.rounds,
            self.seconds,
            self.stretch_seconds,
            self.date,
            self.commit,
        );
        for backend in &self.backends {
            _ = write!(text, "\nBoth behind {}:\n\n{}", backend.name, shares(backend));
            if let Some(error) = &backend.error {
                _ = write!(text, "\n{} went no further: {}\n", backend.name, first_line(error));
            }
            for row in &backend.rows {
                if let Some(error) = &row.error {
                    _ = write!(text, "\n{}, {}: {}\n", backend.name, row.kind, first_line(error));
                }
            }
        }
        for backend in &self.backends {
            _ = write!(
                text,
                "\nEach flood behind {}: its frames, and what of the node it used. *Processors* has three figures, in processors: the time of the \
                 flooding pod, as its control group counts it; the kernel's time in interrupts, for both machines and their peers; and *others*, the time of \
                 what this program did not start: the kernel's threads and other programs. \
                 *Buffers* are those of all TCP sockets of the machine. Afterwards the flooding guest starts again: its backend *answers* when it does for \
                 that guest's router, and has room for *new flows* when an echo and a connection of that guest go through; both times begin at the flood's end. \
                 Where the backend was lost, – stands for 0 and for what could not be measured.\n\n{}",
                backend.name,
                floods(backend)
            );
        }
        for note in &self.notes {
            _ = write!(text, "\n{note}\n");
        }
        text
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn shares(backend: &Backend) -> String {
    let sharing = backend.sharing();
    let line = |kind: &Kind| {
        let row = backend.row(*kind)?;
        let kept = row.kept(sharing);
        let cell = |summary: Option<Summary>| {
            summary.map_or("–".into(), |s| format!("{:.2} ({:.2}–{:.2})", s.median, s.min, s.max))
        };
        let of = |turns: fn(&Kept) -> &Vec<f64>| {
            kept.as_ref().and_then(|kept| Summary::of(turns(kept).iter().copied()))
        };
        let failed = kept.as_ref().map_or("–".into(), |kept| format!("{:.0}", kept.failed));
        let met = match row.verdict(sharing) {
            _ if !row.is_flood() => "–",
            Verdict::Met => "yes",
            Verdict::Undecided => "undecided",
            Verdict::Missed => "**no**",
        };
        Some(vec![
            label(*kind).into(),
            cell(kept.as_ref().and_then(Kept::share)),
            cell(of(|kept| &kept.round_trip)),
            cell(of(|kept| &kept.connection)),
            failed,
            met.into(),
        ])
    };
    let body: Vec<_> = Kind::ALL.iter().filter_map(line).collect();
    let head =
        ["the neighbour's flood", "throughput", "p99, round trip", "p99, connection", "failed", "required"];
    table(&head, &body)
}

fn floods(backend: &Backend) -> String {
    let line = |kind: &Kind| {
        let row = backend.row(*kind)?;
        let flood = &row.flood;
        let most = flood.most;
        // What could not be measured of a backend that was lost is 0 in the record.
        let lost = row.error.is_some() && flood.alive_after_ms.is_none();
        let count = |n: f64| {
            let text = format!("{n:.0}");
            if lost && text == "0" { "–".to_owned() } else { text }
        };
        let watched = !lost || flood.pod_cpus > 0.0;
        let after = |ms: Option<f64>, never: &str| ms.map_or(never.into(), |ms| format!("{ms:.0}"));
        let alive = after(flood.alive_after_ms, if watched { "**never**" } else { "–" });
        let serves = after(flood.serves_after_ms, if lost { "–" } else { "> 30,000" });
        let cpus = [flood.pod_cpus, flood.interrupt_cpus, flood.others_cpus]
            .map(|n| if watched { format!("{n:.2}") } else { "–".into() });
        let counts = [
            flood.reconnects,
            most.backend_mib,
            flood.pod_mib,
            most.sockets,
            most.tcp_buffers_mib,
            most.tracked,
            most.neighbours,
        ];
        let mut cells = vec![label(*kind).into(), count(flood.frames_per_second / 1000.0)];
        cells.push(cpus.join(" / "));
        cells.extend(counts.map(count));
        cells.extend([alive, serves]);
        Some(cells)
    };
    let body: Vec<_> = Kind::ALL.iter().filter_map(line).collect();
    let head = [
        "flood",
        "1000 frames a second",
        "processors: pod / interrupts / others",
        "guest connected again",
        "backend, MiB",
        "pod, MiB",
        "its sockets",
        "buffers, MiB",
        "connections tracked",
        "neighbours",
        "answers after, ms",
        "new flows after, ms",
    ];
    table(&head, &body)
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
