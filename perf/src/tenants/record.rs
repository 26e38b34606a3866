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

/// A measurement divided by the mean of the one before it and the one after it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Relative {
    /// Throughput, of the direction that has less of it.
    share: f64,
    /// 99th percentile of round trips.
    round_trip: f64,
    /// The same of connections.
    connection: f64,
}

/// What became of the other machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept {
    /// Beside the flood; its percentiles are also divided by those beside a neighbour that computes.
    beside: Relative,
    /// Connections that failed beside it.
    failed: f64,
    /// The lesser share afterwards of what was reached before.
    recovered: f64,
}

/// What the rows of a backend are compared with.
struct Control {
    /// Beside a neighbour that computes, where that was measured.
    sharing: Option<Relative>,
    /// The measurements without a flood that lie between two others.
    alone: Vec<Relative>,
}

/// Whether what is required beside a flood is met; of several the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Met,
    /// A figure is as near to its limit as measurements without a flood are to each other.
    Undecided,
    Missed,
}

impl Relative {
    fn of(before: &Reached, now: &Reached, after: &Reached) -> Relative {
        let by = |figure: fn(&Reached) -> f64| figure(now) / f64::midpoint(figure(before), figure(after));
        Relative {
            share: by(|reached| reached.out_gbits).min(by(|reached| reached.in_gbits)),
            round_trip: by(|reached| reached.round_trip.p99),
            connection: by(|reached| reached.connection.p99),
        }
    }
}

impl Control {
    /// Between which values the measurements without a flood are; none: there were too few.
    fn range(&self, figure: fn(&Relative) -> f64) -> Option<Summary> {
        Summary::of(self.alone.iter().map(figure))
    }

    /// The ends of that range, stretched to have 1 in it; 1 and 1 if there is none.
    fn ends(&self, figure: fn(&Relative) -> f64) -> (f64, f64) {
        self.range(figure).map_or((1.0, 1.0), |range| (range.min.min(1.0), range.max.max(1.0)))
    }

    fn at_least(&self, limit: f64, kept: &Relative, figure: fn(&Relative) -> f64) -> Verdict {
        let (low, high) = self.ends(figure);
        let value = figure(kept);
        if value >= limit * high {
            Verdict::Met
        } else if value >= limit * low {
            Verdict::Undecided
        } else {
            Verdict::Missed
        }
    }

    fn at_most(&self, limit: f64, kept: &Relative, figure: fn(&Relative) -> f64) -> Verdict {
        let (low, high) = self.ends(figure);
        let value = figure(kept);
        if value <= limit * low {
            Verdict::Met
        } else if value <= limit * high {
            Verdict::Undecided
        } else {
            Verdict::Missed
        }
    }
}

impl Row {
    fn is_flood(&self) -> bool {
        self.kind != Kind::Computes.name()
    }

    fn relative(&self) -> Option<Relative> {
        Some(Relative::of(self.before.as_ref()?, self.beside.as_ref()?, self.after.as_ref()?))
    }

    fn kept(&self, control: &Control) -> Option<Kept> {
        let (before, beside, after) = (self.before?, self.beside?, self.after?);
        let mut relative = self.relative()?;
        if let Some(sharing) = control.sharing.filter(|_| self.is_flood()) {
            relative.round_trip /= sharing.round_trip;
            relative.connection /= sharing.connection;
        }
        Some(Kept {
            beside: relative,
            failed: beside.connection.failed,
            recovered: (after.out_gbits / before.out_gbits).min(after.in_gbits / before.in_gbits),
        })
    }

    /// Whether what is required beside a flood is met.
    fn verdict(&self, control: &Control) -> Verdict {
        let Some(kept) = self.kept(control) else { return Verdict::Missed };
        if self.error.is_some() || self.flood.alive_after_ms.is_none() || kept.failed > 0.0 {
            return Verdict::Missed;
        }
        control
            .at_least(SHARE, &kept.beside, |relative| relative.share)
            .max(control.at_most(LONGER, &kept.beside, |relative| relative.round_trip))
            .max(control.at_most(LONGER, &kept.beside, |relative| relative.connection))
    }
}

impl Backend {
    fn control(&self) -> Control {
        let first = self.rows.first().and_then(|row| row.before);
        let all: Vec<Reached> =
            first.into_iter().chain(self.rows.iter().filter_map(|row| row.after)).collect();
        let neighbours = |three: &[Reached]| match three {
            [before, now, after] => Some(Relative::of(before, now, after)),
            _ => None,
        };
        Control {
            sharing: self.row(Kind::Computes).and_then(Row::relative),
            alone: all.windows(3).filter_map(neighbours).collect(),
        }
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
             direction that loses more; *p99* is how many times as long the 99th percentile takes, of 400 round trips a second over one \
             connection, and of 100 connections a second, by a client outside of the node's pods. \
             Each figure beside a flood is divided by the mean of the same figure just before and just after it, without a flood; a p99 is then divided \
             by that of the first row, whose neighbour sends nothing and computes, as the price of sharing processors by limits is not the flood's. \
             Required are a throughput ≥ {SHARE:.2}, both p99 ≤ {LONGER:.0}, no connection that fails, and a flooded backend that lives. \
             *Undecided* means that a figure lies between its limit times the lower end and its limit times the upper end of the range below the table: measurements without a flood \
             differ as much. \
             *Throughput after it* is divided by that before it. \
             A stream goes on for {} s, and a 99th percentile is the median of those of {} \
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
            _ = write!(text, "\nBoth behind {}:\n\n{}{}", backend.name, shares(backend), range(backend));
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
    let control = backend.control();
    let line = |kind: &Kind| {
        let row = backend.row(*kind)?;
        let kept = row.kept(&control);
        let cells = match kept {
            Some(Kept { beside, recovered, .. }) => {
                [beside.share, beside.round_trip, beside.connection, recovered]
                    .map(|value| format!("{value:.2}"))
            }
            None => [(); 4].map(|()| "–".into()),
        };
        let failed = kept.map_or("–".into(), |kept| format!("{:.0}", kept.failed));
        let [share, round_trip, connection, recovered] = cells;
        let met = match row.verdict(&control) {
            _ if !row.is_flood() => "–",
            Verdict::Met => "yes",
            Verdict::Undecided => "undecided",
            Verdict::Missed => "**no**",
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

/// How far measurements without a flood are from each other.
fn range(backend: &Backend) -> String {
    let control = backend.control();
    let of = |figure: fn(&Relative) -> f64| {
        control.range(figure).map(|range| format!("{:.2}–{:.2}", range.min, range.max))
    };
    let (Some(share), Some(round_trip), Some(connection)) = (
        of(|relative| relative.share),
        of(|relative| relative.round_trip),
        of(|relative| relative.connection),
    ) else {
        return String::new();
    };
    format!(
        "\nRange of the measurements without a flood, each divided by the mean of the one before it and the one after it: throughput {share}, \
         p99 of round trips {round_trip}, of connections {connection}.\n"
    )
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
            flood: Flood { pod_cpus: 0.1, pod_mib: 23.2, ..Flood::default() },
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
        use Verdict::{Met, Missed};
        let backend = &sample().backends[0];
        let control = backend.control();
        let verdicts = backend.rows.iter().map(|row| row.verdict(&control)).collect::<Vec<_>>();
        assert_eq!(verdicts, [Met, Missed, Missed, Met, Missed]);
        let mut dead = row(Kind::Syn, reached(1.0, 1.0, 0.0));
        assert_eq!(dead.verdict(&control), Met);
        dead.flood.serves_after_ms = None;
        assert_eq!(dead.verdict(&control), Met);
        dead.flood.alive_after_ms = None;
        assert_eq!(dead.verdict(&control), Missed);
    }

    /// Rows of SYNs as they follow each other: throughput before the first, and beside and after each.
    fn backend(first: f64, shares: &[(f64, f64)]) -> Backend {
        let mut before = reached(first, 1.0, 0.0);
        let mut rows = Vec::new();
        for &(beside, after) in shares {
            let after = reached(after, 1.0, 0.0);
            let row = row(Kind::Syn, reached(beside, 1.0, 0.0));
            rows.push(Row { before: Some(before), after: Some(after), ..row });
            before = after;
        }
        Backend { name: "netd".into(), rows, error: None }
    }

    fn verdicts(backend: &Backend) -> Vec<Verdict> {
        let control = backend.control();
        backend.rows.iter().map(|row| row.verdict(&control)).collect()
    }

    #[test]
    fn a_row_is_compared_with_its_own_neighbours() {
        let backend = backend(0.25, &[(0.25, 0.25), (0.25, 0.25), (0.25, 0.25), (0.2, 0.5), (0.5, 0.5)]);
        let control = backend.control();
        let shares = backend.rows.iter().map(|row| row.kept(&control).unwrap().beside.share);
        assert_eq!(shares.collect::<Vec<_>>(), [1.0, 1.0, 1.0, 0.2 / 0.375, 1.0]);
    }

    #[test]
    fn what_is_within_the_range_without_a_flood_is_undecided() {
        use Verdict::{Met, Missed, Undecided};
        let calm = backend(1.0, &[(0.9, 1.0), (0.85, 1.0), (0.75, 1.0), (0.3, 1.0)]);
        assert_eq!(verdicts(&calm), [Met, Met, Missed, Missed]);
        // The second measurement without a flood is half of its neighbours' mean.
        let restless = backend(1.0, &[(0.9, 0.5), (0.85, 1.0), (0.75, 1.0), (0.3, 1.0)]);
        let range = restless.control().range(|relative| relative.share).unwrap();
        assert_eq!((range.min, range.max), (0.5, 1.0));
        assert_eq!(verdicts(&restless), [Met, Met, Undecided, Missed]);
    }

    #[test]
    fn percentiles_that_differ_without_a_flood_decide_nothing() {
        let mut backend = backend(1.0, &[(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
        backend.rows[2].beside = Some(reached(1.0, 3.5, 0.0));
        assert_eq!(verdicts(&backend)[2], Verdict::Missed);
        let slow = Some(reached(1.0, 2.0, 0.0));
        (backend.rows[0].after, backend.rows[1].before) = (slow, slow);
        assert_eq!(verdicts(&backend)[2], Verdict::Undecided);
    }

    #[test]
    fn without_other_measurements_the_limit_alone_decides() {
        let one = backend(1.0, &[(0.81, 1.0)]);
        assert_eq!(one.control().range(|relative| relative.share), None);
        assert_eq!(verdicts(&one), [Verdict::Met]);
        assert_eq!(verdicts(&backend(1.0, &[(0.79, 1.0)])), [Verdict::Missed]);
    }

    #[test]
    fn percentiles_are_compared_with_those_beside_a_neighbour_that_computes() {
        let mut backend = sample().backends.remove(0);
        backend.rows[0].beside = Some(reached(1.0, 4.0, 0.0));
        let control = backend.control();
        let kept = |row: usize| backend.rows[row].kept(&control).unwrap().beside.round_trip;
        assert_eq!((kept(0), kept(3)), (4.0, 3.0 / 4.0));
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let text = floods(&sample().backends[1]);
        let line = text.lines().next_back().unwrap();
        let cells = line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
        let cpus = "0.10 / 0.00 / 0.00";
        let kept = ["garbage frames", "–", cpus, "–", "–", "23", "–", "–", "–", "–", "**never**", "–"];
        assert_eq!(cells, kept);
    }

    #[test]
    fn a_record_survives_its_file() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), sample());
    }
}
