//! The file `perf/results/migration.json`, and what the page tells of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::streams::Tally;
use crate::machine::Machine;
use crate::report::table;
use crate::stats::percentile;

/// Where a figure of many lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of these values; none of none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        let mut at = |share| percentile(&mut values, share).map(|v| (v * 10.0).round() / 10.0);
        Some(Spread { p50: at(0.5)?, p95: at(0.95)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

/// One migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct One {
    /// Connections full of data that neither end reads were among the guest's.
    pub(crate) full: bool,
    /// The longest silence that the UDP probe found around it, in ms.
    pub(crate) udp_ms: f64,
    /// The same of the TCP probe.
    pub(crate) tcp_ms: f64,
    /// From the order until the guest ran at the target, in ms.
    pub(crate) total_ms: f64,
    /// The guest stood still, by QEMU's events, in ms.
    pub(crate) stopped_ms: f64,
    /// Memory that was copied, in MiB.
    pub(crate) memory_mib: f64,
    /// UDP probes that did not come back.
    pub(crate) udp_lost: u64,
    /// netd's own part: the state given away, taken, and connections released (in the background), in ms.
    pub(crate) netd_ms: [Option<f64>; 3],
    /// Connections that netd gave away and took.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) connections: Option<[u64; 2]>,
    /// Connections that netd reset.
    pub(crate) dropped: u64,
    /// Streams that brought nothing within 5 s after it.
    pub(crate) stalled: usize,
    /// Connections that had broken by then.
    pub(crate) broken: usize,
}

impl One {
    /// The guest was not heard by one of the probes, in ms.
    pub(crate) fn downtime(&self) -> f64 {
        self.udp_ms.max(self.tcp_ms)
    }
}

/// All migrations with one backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// Guests, each with connections of its own that live through all of its migrations.
    pub(crate) guests: u64,
    pub(crate) migrations: u64,
    pub(crate) tally: Tally,
    /// TCP probes that broke.
    pub(crate) probes_broken: u64,
    /// By figure: see [`Side::summarise`].
    pub(crate) spreads: BTreeMap<String, Spread>,
    pub(crate) runs: Vec<One>,
    /// Why a guest's migrations ended early.
    pub(crate) failures: Vec<String>,
}

impl Side {
    /// Makes the spreads of the runs.
    pub(crate) fn summarise(&mut self) {
        self.migrations = self.runs.len() as u64;
        let (full, runs): (Vec<&One>, Vec<&One>) = self.runs.iter().partition(|r| r.full);
        let step = |runs: &[&One], at: usize| runs.iter().filter_map(|r| r.netd_ms[at]).collect();
        let figures: [(&str, Vec<f64>); 14] = [
            ("downtime_ms", runs.iter().map(|r| r.downtime()).collect()),
            ("downtime_udp_ms", runs.iter().map(|r| r.udp_ms).collect()),
            ("downtime_tcp_ms", runs.iter().map(|r| r.tcp_ms).collect()),
            ("udp_lost", runs.iter().map(|r| r.udp_lost as f64).collect()),
            ("stopped_ms", runs.iter().map(|r| r.stopped_ms).collect()),
            ("total_ms", runs.iter().map(|r| r.total_ms).collect()),
            ("netd_save_ms", step(&runs, 0)),
            ("netd_load_ms", step(&runs, 1)),
            ("netd_release_ms", step(&runs, 2)),
            ("full_downtime_ms", full.iter().map(|r| r.downtime()).collect()),
            ("full_udp_lost", full.iter().map(|r| r.udp_lost as f64).collect()),
            ("full_stopped_ms", full.iter().map(|r| r.stopped_ms).collect()),
            ("full_netd_save_ms", step(&full, 0)),
            ("full_netd_load_ms", step(&full, 1)),
        ];
        let spreads = figures.into_iter().filter_map(|(n, values)| Some((n.to_owned(), Spread::of(values)?)));
        self.spreads = spreads.collect();
    }

    /// The median of the longest silences, in ms; 0 without migrations.
    pub(crate) fn downtime_p50(&self) -> f64 {
        self.spread("downtime_ms").p50
    }

    fn spread(&self, figure: &str) -> Spread {
        self.spreads.get(figure).copied().unwrap_or_default()
    }
}

/// All migrations of guests with idle connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) netd: Side,
    pub(crate) tap: Side,
}

/// Downtime with so many connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth {
    pub(crate) connections: usize,
    /// The guest stood still, in ms: median and the longest of [`Growth::migrations`].
    pub(crate) downtime_ms: f64,
    pub(crate) longest_ms: f64,
    /// More than with none, in ms.
    pub(crate) added_ms: f64,
    /// netd gave its state away, in ms: median, as the next two.
    pub(crate) save_ms: f64,
    /// netd took it.
    pub(crate) load_ms: f64,
    /// All connections went on, beside the guest that runs.
    pub(crate) release_ms: f64,
    /// Bytes of netd's state.
    pub(crate) state_bytes: u64,
    pub(crate) migrations: usize,
}

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// UTC.
    pub(crate) date: String,
    /// The state of the sources.
    pub(crate) commit: String,
    pub(crate) machine: Machine,
    pub(crate) versions: BTreeMap<String, String>,
    /// What a reader must know.
    pub(crate) notes: Vec<String>,
    /// With netd, of which the next are as well.
    pub(crate) migrations: u64,
    pub(crate) bytes_lost: u64,
    pub(crate) bytes_duplicated: u64,
    pub(crate) connections_reset: u64,
    pub(crate) connections_hung: u64,
    pub(crate) downtime_p50_ms: f64,
    pub(crate) downtime_p95_ms: f64,
    pub(crate) downtime_p99_ms: f64,
    pub(crate) total_p50_ms: f64,
    pub(crate) passt_migrations: u64,
    pub(crate) passt_bytes_lost: u64,
    pub(crate) passt_connections_reset: u64,
    pub(crate) passt_connections_hung: u64,
    pub(crate) passt_downtime_p50_ms: f64,
    pub(crate) passt_downtime_p95_ms: f64,
    pub(crate) passt_downtime_p99_ms: f64,
    pub(crate) passt_total_p50_ms: f64,
    #[serde(default)]
    pub(crate) tap_downtime_p50_ms: f64,
    /// QEMU's `downtime-limit`, in ms.
    pub(crate) downtime_limit_ms: u32,
    /// Connections of each guest.
    pub(crate) connections: u64,
    pub(crate) growth: Vec<Growth>,
    pub(crate) netd: Side,
    pub(crate) passt: Side,
    #[serde(default)]
    pub(crate) tap: Side,
    #[serde(default)]
    pub(crate) idle: Idle,
}

impl Record {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Record>> {
        crate::read(&results.join("migration.json"))
    }

    /// Fills in what the sides say.
    pub(crate) fn summarise(&mut self) {
        self.netd.summarise();
        self.passt.summarise();
        self.tap.summarise();
        self.idle.netd.summarise();
        self.idle.tap.summarise();
        let (netd, passt) = (&self.netd, &self.passt);
        let (down, total) = (netd.spread("downtime_ms"), netd.spread("total_ms"));
        self.migrations = netd.migrations;
        self.bytes_lost = netd.tally.bytes_lost;
        self.bytes_duplicated = netd.tally.bytes_duplicated;
        self.connections_reset = netd.tally.connections_reset;
        self.connections_hung = netd.tally.connections_hung;
        (self.downtime_p50_ms, self.downtime_p95_ms, self.downtime_p99_ms) = (down.p50, down.p95, down.p99);
        self.total_p50_ms = total.p50;
        let (down, total) = (passt.spread("downtime_ms"), passt.spread("total_ms"));
        self.passt_migrations = passt.migrations;
        self.passt_bytes_lost = passt.tally.bytes_lost;
        self.passt_connections_reset = passt.tally.connections_reset;
        self.passt_connections_hung = passt.tally.connections_hung;
        (self.passt_downtime_p50_ms, self.passt_downtime_p95_ms, self.passt_downtime_p99_ms) =
            (down.p50, down.p95, down.p99);
        self.passt_total_p50_ms = total.p50;
        self.tap_downtime_p50_ms = self.tap.downtime_p50();
        self.connections = netd.tally.connections.checked_div(netd.guests).unwrap_or(0);
    }

    /// Writes the file and returns its text.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, results: &Path) -> Result<String> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(results.join("migration.json"), &text)?;
        Ok(text)
    }

    /// A table of all backends.
    pub(crate) fn table(&self) -> String {
        let sides = [&self.netd, &self.passt, &self.tap];
        let mut body = Vec::from([
            row(sides, "migrations", &|s| s.migrations.to_string()),
            row(sides, "guests, connections of each", &|s| {
                format!("{}, {}", s.guests, s.tally.connections.checked_div(s.guests).unwrap_or(0))
            }),
            row(sides, "MiB that arrived", &|s| (s.tally.bytes >> 20).to_string()),
            row(sides, "bytes lost", &|s| s.tally.bytes_lost.to_string()),
            row(sides, "bytes doubled or wrong", &|s| {
                (s.tally.bytes_duplicated + s.tally.bytes_wrong).to_string()
            }),
        ]);
        body.extend(outcome(sides));
        let spreads = [
            ("from order to arrival, ms", "total_ms"),
            ("with full connections: not heard, ms", "full_downtime_ms"),
            ("with full connections: stands still, ms", "full_stopped_ms"),
            ("with full connections: datagrams lost", "full_udp_lost"),
        ];
        body.extend(spreads.map(|(what, figure)| spread(sides, what, figure)));
        table(&[HEAD, "netd", "passt", "tap, privileged"], &body)
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let mut text = format!(
            "\n## Live migration\n\nA guest with 256 MiB of memory, under QEMU without KVM, is migrated between two pods that have the same addresses, to the other pod and \
             back again. The guest has connections with a client outside of the pods, which the client and the guest go on using while the guest is migrated. The connections are of both families; \
             some were opened by the guest and some by the client; some carry data in one direction, some in both, sixteen of them side by side; some are idle, and some half-closed. Every second \
             guest, but no guest with passt, has four more connections: on these the client and the guest send data that the other end's program never reads, so that megabytes wait in the \
             sockets' buffers. The client and the guest compare every byte that they receive with the byte that was sent. The client also sends a datagram and a TCP message each millisecond, which a \
             program in the guest sends back; *not heard* is the longest time without an answer. The socket of that program has room for the datagrams of some seconds. With netd, virt-handler repairs the \
             connections: it makes the target's address speak before it releases the first connection, and it sends to the target what the client has sent to the source meanwhile. With passt, \
             passt-repair repairs the connections, and the target's address speaks when the guest runs there: a datagram that comes earlier keeps this version of passt in an endless loop. With the tap \
             device there is no backend: the node's kernel leads packets to the guest by its bridge and its address translation, which takes a privileged agent of the node. The tap's column shows for \
             how long the client hears nothing because of QEMU and the emulated processor alone; connections that only the source pod's kernel can translate break. \
             QEMU's downtime limit is {} ms ({}, commit {}; `perf migration`):\n\n{}",
            self.downtime_limit_ms,
            self.date,
            self.commit,
            self.table()
        );
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        if self.idle.netd.migrations > 0 {
            let sides = [&self.idle.netd, &self.idle.tap];
            let mut body = vec![row(sides, "migrations", &|s| s.migrations.to_string())];
            body.extend(outcome(sides));
            text += &format!(
                "\nThe same with guests whose {} connections are idle, so that their emulated processors have the same work with either backend when the guest runs again: what the client's \
                 program asks. In the table above they have not: before a guest with netd answers, it works off what all of its connections have received meanwhile, and with the tap device \
                 that was lost, and with it the connections themselves.\n\n{}",
                self.idle.netd.tally.connections.checked_div(self.idle.netd.guests).unwrap_or(0),
                table(&[HEAD, "netd", "tap, privileged"], &body)
            );
        }
        if !self.growth.is_empty() {
            let rows: Vec<Vec<String>> = self.growth.iter().map(Growth::row).collect();
            text += "\nWith many connections, without QEMU (a frontend of this repository copies some MiB), what netd adds:\n\n";
            let head = [
                "idle connections",
                "stands still, ms",
                "longest",
                "added",
                "given away",
                "taken",
                "all go on",
                "state, MiB",
            ];
            text += &table(&head, &rows);
        }
        text
    }
}

/// What a table's cells are.
const HEAD: &str = "p50 / p95 / p99";

fn row<const N: usize>(sides: [&Side; N], what: &str, of: &dyn Fn(&Side) -> String) -> Vec<String> {
    [what.to_owned()].into_iter().chain(sides.map(of)).collect()
}

fn spread<const N: usize>(sides: [&Side; N], what: &str, figure: &str) -> Vec<String> {
    row(sides, what, &|side| match side.spreads.get(figure) {
        Some(s) => format!("{:.0} / {:.0} / {:.0}", s.p50, s.p95, s.p99),
        None => "–".into(),
    })
}

/// What became of connections, and for how long the guest was silent.
fn outcome<const N: usize>(sides: [&Side; N]) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(sides, "connections reset", &|s| s.tally.connections_reset.to_string()),
        row(sides, "connections that hang", &|s| s.tally.connections_hung.to_string()),
    ];
    let spreads = [
        ("not heard by UDP or TCP, ms", "downtime_ms"),
        ("not heard by UDP, ms", "downtime_udp_ms"),
        ("not heard by TCP, ms", "downtime_tcp_ms"),
        ("datagrams lost, of one a millisecond", "udp_lost"),
        ("guest stands still, ms", "stopped_ms"),
    ];
    rows.extend(spreads.map(|(what, figure)| spread(sides, what, figure)));
    rows
}

impl Growth {
    fn row(&self) -> Vec<String> {
        #[allow(clippy::cast_precision_loss, reason = "some MiB")]
        let mib = self.state_bytes as f64 / f64::from(1 << 20);
        vec![
            self.connections.to_string(),
            format!("{:.1}", self.downtime_ms),
            format!("{:.1}", self.longest_ms),
            format!("{:.1}", self.added_ms),
            format!("{:.1}", self.save_ms),
            format!("{:.1}", self.load_ms),
            format!("{:.1}", self.release_ms),
            format!("{mib:.2}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_made_of_values_that_were_found() {
        let spread = Spread::of((1..=100).map(f64::from)).unwrap();
        assert_eq!((spread.p50, spread.p95, spread.p99, spread.max), (51.0, 95.0, 99.0, 100.0));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn the_longer_silence_is_the_downtime() {
        let one = One { udp_ms: 3.0, tcp_ms: 5.0, ..One::default() };
        let mut side = Side { runs: vec![one.clone(), One { udp_ms: 9.0, ..one }], ..Side::default() };
        side.summarise();
        assert_eq!((side.migrations, side.spreads["downtime_ms"].max), (2, 9.0));
        assert!(!side.spreads.contains_key("netd_save_ms"));
    }
}
