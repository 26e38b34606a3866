//! The file `perf/results/tenants.json`, and what the page tells of it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use podvirt_bed_tools::flood::Kind;
use serde::{Deserialize, Serialize};

use super::victim::{Reached, STRETCHES};
use super::watch::Most;
use crate::machine::Machine;
use crate::report::table;

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
    /// Length of a bulk measurement in seconds, after its warm-up.
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
    /// What the other machine reaches before it.
    pub(crate) before: Option<Reached>,
    /// Beside it.
    pub(crate) beside: Option<Reached>,
    /// And when it is over.
    pub(crate) after: Option<Reached>,
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
    /// Processors that were busy with what this program did not start: kernel threads above all.
    pub(crate) others_cpus: f64,
    /// The most of memory of the pod, the kernel's for it included, MiB.
    pub(crate) pod_mib: f64,
    /// The most of the rest.
    pub(crate) most: Most,
    /// From its end until the backend answered its guest again, ms; none: it does not.
    pub(crate) alive_after_ms: Option<f64>,
    /// And until it carried an echo and a connection that are new, ms; none: not within half a minute.
    pub(crate) serves_after_ms: Option<f64>,
}

/// What became of the other machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept {
    /// Share of the throughput of the direction that lost more.
    share: f64,
    /// 99th percentile of round trips, beside it by beside a neighbour that computes; of that neighbour by without any.
    round_trip: f64,
    /// The same of connections.
    connection: f64,
    /// Connections that failed beside it.
    failed: f64,
    /// The lesser share afterwards.
    recovered: f64,
}

/// What a machine reaches that no flood is beside.
struct Control {
    /// The medians of all measurements before, between and after the floods.
    alone: Reached,
    /// Beside a neighbour that computes, where that was measured.
    sharing: Reached,
}

impl Row {
    fn is_flood(&self) -> bool {
        self.kind != Kind::Computes.name()
    }

    fn kept(&self, control: &Control) -> Option<Kept> {
        let (beside, after, alone) = (self.beside?, self.after?, &control.alone);
        let times = if self.is_flood() { &control.sharing } else { alone };
        let share = |now: Reached| (now.out_gbits / alone.out_gbits).min(now.in_gbits / alone.in_gbits);
        Some(Kept {
            share: share(beside),
            round_trip: beside.round_trip.p99 / times.round_trip.p99,
            connection: beside.connection.p99 / times.connection.p99,
            failed: beside.connection.failed,
            recovered: share(after),
        })
    }

    /// Whether what is required beside a flood is met.
    fn is_met(&self, control: &Control) -> bool {
        let kept = self.kept(control).is_some_and(|kept| {
            kept.share >= SHARE
                && kept.round_trip <= LONGER
                && kept.connection <= LONGER
                && kept.failed == 0.0
        });
        kept && self.error.is_none() && self.flood.alive_after_ms.is_some()
    }
}

impl Backend {
    fn control(&self) -> Control {
        let first = self.rows.first().and_then(|row| row.before);
        let all: Vec<Reached> =
            first.into_iter().chain(self.rows.iter().filter_map(|row| row.after)).collect();
        let alone = Reached::median(&all);
        let sharing = self.row(Kind::Computes).and_then(|row| row.beside).unwrap_or(alone);
        Control { alone, sharing }
    }

    fn row(&self, kind: Kind) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind.name())
    }
}

/// What the page calls it.
fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Computes => "none: it computes",
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
             direction that loses more; *p99* is how many times as long the 99th percentile takes as beside a neighbour that sends nothing and computes, \
             which is the first row, itself compared with no neighbour at all: the price of sharing processors by limits. It is that of 400 round trips a second over one \
             connection, and of 100 connections a second, by a client outside of the node's pods. Required are ≥ {SHARE:.2} and ≤ {LONGER:.0} for both, \
             no connection that fails, and a flooded backend that lives. \
             Throughput beside a flood is compared with the median of all measurements without one, which were \
             taken before the first flood and after each of them; a stream goes on for {} s, and a 99th percentile is the median of those of {} \
             stretches of {} s ({}, commit {}; `perf tenants`).\n",
            self.processors,
            self.machine.cores,
            self.seconds,
            STRETCHES,
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
                 flooding pod, as its control group counts it; the kernel's time in interrupts, for both machines and their peers; and the time of the \
                 kernel's threads, which belongs to no pod. \
                 *Buffers* are those of all TCP sockets of the machine. Afterwards the flooding guest starts again: its backend *answers* when it does for \
                 that guest's router, and has room for *new flows* when an echo and a connection of that guest go through.\n\n{}",
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
    let control = backend.control();
    let line = |kind: &Kind| {
        let row = backend.row(*kind)?;
        let kept = row.kept(&control);
        let cells = match kept {
            Some(kept) => [kept.share, kept.round_trip, kept.connection, kept.recovered]
                .map(|value| format!("{value:.2}")),
            None => [(); 4].map(|()| "–".into()),
        };
        let failed = kept.map_or("–".into(), |kept| format!("{:.0}", kept.failed));
        let [share, round_trip, connection, recovered] = cells;
        let met = match (row.is_flood(), row.is_met(&control)) {
            (false, _) => "–",
            (true, true) => "yes",
            (true, false) => "**no**",
        };
        Some(vec![label(*kind).into(), share, round_trip, connection, failed, recovered, met.into()])
    };
    let body: Vec<_> = Kind::ALL.iter().filter_map(line).collect();
    let head = [
        "the neighbour's flood",
        "throughput",
        "p99, round trip",
        "p99, connection",
        "failed",
        "throughput after it",
        "required",
    ];
    table(&head, &body)
}

fn floods(backend: &Backend) -> String {
    let line = |kind: &Kind| {
        let flood = &backend.row(*kind)?.flood;
        let most = flood.most;
        let after = |ms: Option<f64>, never: &str| ms.map_or(never.into(), |ms| format!("{ms:.0}"));
        let (alive, serves) =
            (after(flood.alive_after_ms, "**never**"), after(flood.serves_after_ms, "> 30,000"));
        let cpus = [flood.pod_cpus, flood.interrupt_cpus, flood.others_cpus].map(|n| format!("{n:.2}"));
        let counts = [
            flood.reconnects,
            most.backend_mib,
            flood.pod_mib,
            most.sockets,
            most.tcp_buffers_mib,
            most.tracked,
            most.neighbours,
        ];
        let mut cells = vec![label(*kind).into(), format!("{:.0}", flood.frames_per_second / 1000.0)];
        cells.push(cpus.join(" / "));
        cells.extend(counts.map(|n| format!("{n:.0}")));
        cells.extend([alive, serves]);
        Some(cells)
    };
    let body: Vec<_> = Kind::ALL.iter().filter_map(line).collect();
    let head = [
        "flood",
        "1000 frames a second",
        "processors: pod / interrupts / threads",
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
mod tests {
    use super::*;
    use crate::tenants::victim::Times;

    fn reached(share: f64, longer: f64, failed: f64) -> Reached {
        Reached {
            out_gbits: 4.0 * share,
            in_gbits: 3.0,
            round_trip: Times { p50: 200.0, p99: 500.0 * longer, failed: 0.0 },
            connection: Times { p50: 800.0, p99: 1500.0, failed },
        }
    }

    fn row(kind: Kind, beside: Reached) -> Row {
        Row {
            kind: kind.name().into(),
            before: Some(reached(1.0, 1.0, 0.0)),
            beside: Some(beside),
            after: Some(reached(0.99, 1.0, 0.0)),
            flood: Flood {
                frames_per_second: 250_000.0,
                pod_cpus: 0.6,
                interrupt_cpus: 0.2,
                alive_after_ms: Some(1.0),
                serves_after_ms: Some(12.0),
                most: Most { sockets: 16_384.0, backend_mib: 18.2, ..Most::default() },
                ..Flood::default()
            },
            error: None,
        }
    }

    fn sample() -> Record {
        let rows = vec![
            row(Kind::Computes, reached(0.97, 1.0, 0.0)),
            row(Kind::Syn, reached(0.79, 1.0, 0.0)),
            row(Kind::Udp, reached(0.9, 3.1, 0.0)),
            row(Kind::Flows, reached(0.8, 3.0, 0.0)),
            row(Kind::Urgent, reached(1.0, 1.0, 1.0)),
        ];
        let dead = Row {
            error: Some("it ended: signal 6\nand its log".into()),
            beside: None,
            flood: Flood::default(),
            ..row(Kind::Garbage, reached(1.0, 1.0, 0.0))
        };
        Record {
            date: "2026-01-31T12:00Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine::sample(),
            processors: 0.6,
            seconds: 3,
            stretch_seconds: 2.0,
            backends: vec![
                Backend { name: "netd".into(), rows, error: None },
                Backend { name: "passt".into(), rows: vec![dead], error: Some("no guest\nat all".into()) },
            ],
            notes: vec!["A note.".into()],
        }
    }

    #[test]
    fn the_section_is_as_it_was() {
        insta::assert_snapshot!(sample().section().trim());
    }

    #[test]
    fn what_is_required_is_all_of_it() {
        let backend = &sample().backends[0];
        let control = backend.control();
        let met = backend.rows.iter().map(|row| row.is_met(&control)).collect::<Vec<_>>();
        assert_eq!(met, [true, false, false, true, false]);
        let mut dead = row(Kind::Syn, reached(1.0, 1.0, 0.0));
        assert!(dead.is_met(&control));
        dead.flood.serves_after_ms = None;
        assert!(dead.is_met(&control));
        dead.flood.alive_after_ms = None;
        assert!(!dead.is_met(&control));
    }

    #[test]
    fn one_disturbed_measurement_without_a_flood_does_not_decide() {
        let mut backend = sample().backends.remove(0);
        let alone = backend.control().alone;
        backend.rows[1].after = Some(reached(0.1, 30.0, 0.0));
        assert_eq!(backend.control().alone, alone);
    }

    #[test]
    fn percentiles_are_compared_with_those_beside_a_neighbour_that_computes() {
        let mut backend = sample().backends.remove(0);
        backend.rows[0].beside = Some(reached(1.0, 4.0, 0.0));
        let control = backend.control();
        let kept = |row: usize| backend.rows[row].kept(&control).unwrap().round_trip;
        assert_eq!((kept(0), kept(3)), (4.0, 3.0 / 4.0));
    }

    #[test]
    fn a_record_survives_its_file() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), sample());
    }
}
