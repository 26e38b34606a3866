//! The file of a measurement of storage, and what the page tells of it.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::boots::{self, Boots};
use super::disks::DISKS;
use super::exports::{self, RATE, SIDES};
use super::fio::{AREA_MIB, figures};
use super::plugs::Plugs;
use super::snapshots::Frozen;
use super::{MACHINE, PLAIN_QEMU, SHARED};
use crate::machine::Machine;
use crate::report::{cell, table};
use crate::sides::{Run, check, failures, ratio, rounds, side_by_side, summary};
use crate::stats::Summary;

/// What the page tells of [`SHARED`].
const OF_SHARED: &str = " *Plain, shared memory*: its guest's memory is in a memfd that others may map, as that of podvirt's guests is \
                         for netd.";

/// The file `perf/results/storage.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Storage {
    /// UTC.
    pub(super) date: String,
    /// The state of the sources.
    pub(super) commit: String,
    /// Where it was measured.
    pub(super) machine: Machine,
    /// Length of each of fio's jobs.
    pub(super) seconds: f64,
    /// What a reader must know.
    #[serde(default)]
    pub(super) notes: Vec<String>,
    /// Each round of disks had guests that were started for it, which in older results it had not.
    #[serde(default)]
    pub(super) guests_anew: bool,
    /// fio in guests, each side's turns.
    pub(super) disks: Vec<Run>,
    /// Machines that start.
    pub(super) boots: Option<Boots>,
    /// Disks that come and go.
    pub(super) plugs: Option<Plugs>,
    /// Snapshots of a guest that writes.
    pub(super) frozen: Option<Frozen>,
    /// Downloads.
    pub(super) exports: Vec<Run>,
}

impl Storage {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Storage>> {
        crate::read(&results.join("storage.json"))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, results: &Path) -> Result<()> {
        crate::write(&results.join("storage.json"), self)
    }

    /// Whether everything was measured.
    ///
    /// # Errors
    /// Something was not.
    pub(super) fn check(&self) -> Result<()> {
        check(self.disks.iter().chain(&self.exports))
    }

    /// Whether plain QEMU with shared memory was measured as well, which older results have not.
    fn has_shared(&self) -> bool {
        self.disks.iter().any(|run| run.subject == SHARED)
    }

    /// Disks and jobs, the sides and their ratio.
    fn disks_table(&self) -> String {
        let mut sides = vec![(MACHINE, "podvirt"), (PLAIN_QEMU, "plain QEMU")];
        sides.extend(self.has_shared().then_some((SHARED, "plain, shared memory")));
        let mut body = Vec::new();
        for disk in DISKS {
            for (key, name, _) in figures() {
                let figure = format!("{}.{key}", disk.key);
                let of: Vec<_> = sides.iter().map(|(side, _)| summary(&self.disks, side, &figure)).collect();
                if of.iter().all(Option::is_none) {
                    continue;
                }
                let mut row = vec![format!("{}: {name}", disk.name)];
                row.extend(of.into_iter().map(|side| cell(side, 0)));
                row.push(cell(ratio(&self.disks, [MACHINE, PLAIN_QEMU], &figure), 2));
                body.push(row);
            }
        }
        let names = sides.iter().map(|(_, name)| *name);
        let head: Vec<_> = [""].into_iter().chain(names).chain(["podvirt ÷ plain"]).collect();
        table(&head, &body)
    }

    /// The geometric mean of a job's ratios over all disks, as "better than 1 is faster".
    fn means(&self) -> String {
        let mut pairs = vec![([MACHINE, PLAIN_QEMU], "podvirt ÷ plain")];
        if self.has_shared() {
            pairs.push(([SHARED, PLAIN_QEMU], "plain, shared memory ÷ plain"));
            pairs.push(([MACHINE, SHARED], "podvirt ÷ plain, shared memory"));
        }
        let mut body = Vec::new();
        for (key, name, more_is_better) in figures() {
            let means: Vec<_> = pairs.iter().map(|(pair, _)| self.mean(*pair, key, more_is_better)).collect();
            if means.iter().all(Option::is_none) {
                continue;
            }
            let cells = means
                .into_iter()
                .map(|mean| mean.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}")));
            body.push([name.to_owned()].into_iter().chain(cells).collect());
        }
        let names = pairs.iter().map(|(_, name)| *name);
        let head: Vec<_> = ["speed, all disks"].into_iter().chain(names).collect();
        table(&head, &body)
    }

    /// The geometric mean of one job's ratios of two sides.
    fn mean(&self, pair: [&str; 2], key: &str, more_is_better: bool) -> Option<f64> {
        let ratios = DISKS.iter().filter_map(|disk| {
            let ratio = ratio(&self.disks, pair, &format!("{}.{key}", disk.key))?.median;
            Some(if more_is_better { ratio } else { 1.0 / ratio })
        });
        let logs: Vec<f64> = ratios.map(f64::ln).collect();
        #[allow(clippy::cast_precision_loss, reason = "six disks")]
        let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        (!logs.is_empty()).then(|| mean.exp())
    }

    fn boots_text(&self) -> String {
        let Some(Boots { count, image, claim }) = &self.boots else { return String::new() };
        let rows = [image.row("container disk, its image on the node"), claim.row("claim, a device")];
        format!(
            "\n### Machines that start\n\nSeconds from the manifest until the guest answers a connection, from disks of {} GiB with the tiny \
             guest on them; {count} machines of each, in turns:\n\n{}",
            boots::GIB,
            table(&["", "p50", "p95"], &rows)
        )
    }

    fn plugs_text(&self) -> String {
        let Some(Plugs { count, plug, unplug }) = &self.plugs else { return String::new() };
        let rows = [plug.row("until the guest has the disk"), unplug.row("until nothing is left of it")];
        format!(
            "\n### Disks that come and go\n\nSeconds from the start of `virtctl addvolume` or `removevolume` to the instance's \
             status that shows it, {count} times each, on both buses in turns:\n\n{}",
            table(&["", "p50", "p95"], &rows)
        )
    }

    fn frozen_text(&self) -> String {
        let Some(frozen) = &self.frozen else { return String::new() };
        let row = |what: &str, summary: Summary| vec![what.to_owned(), cell(Some(summary), 0)];
        let rows = [
            row("longest pause of the writer in ten seconds without a snapshot", frozen.quiet),
            row("longest pause during a snapshot", frozen.pause),
            row("from the snapshot's manifest until it can be used", frozen.ready),
        ];
        format!(
            "\n### Snapshots of a guest that writes\n\nA Debian guest with its agent, a disk of {} GiB that is full, {} snapshots; a \
             program in the guest writes and flushes 512 bytes all the time. Milliseconds:\n\n{}",
            frozen.gib,
            frozen.count,
            table(&["", "median (range)"], &rows)
        )
    }

    fn exports_text(&self) -> String {
        if self.exports.is_empty() {
            return String::new();
        }
        let rows = [(RATE, "MiB/s", 0)];
        let mib = exports::MIB;
        format!(
            "\n### Downloads\n\nAn exported disk of {mib} MiB of random bytes, and `cat` of the same bytes by socat over TLS, with the \
             same client in a pod, {} rounds in turns:\n\n{}",
            rounds(&self.exports),
            side_by_side(&self.exports, &SIDES, &rows, ("export ÷ cat", ["export", "cat"]))
        )
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("- {note}\n")).collect();
        let told = failures(&self.disks) + &failures(&self.exports) + &notes;
        let told = if told.is_empty() { told } else { format!("\n{told}") };
        let disks = if self.disks.is_empty() {
            String::new()
        } else {
            format!(
                "\n### Disks of a machine beside plain QEMU\n\nfio in the guest, on claims of the test bed's own storage: a file system \
                 with a disk image, and a device, each on virtio-blk without and with a thread of its own, and on the SCSI bus. *Plain* is \
                 the same guest in the same version of QEMU, started by hand in a pod on the same node with the same claims, and told what \
                 podvirt tells it by default: `cache=none`, `aio=native` on devices and `threads` on files with holes.{shared} They take turns on \
                 each disk; while one works the others are idle. {AREA_MIB} MiB of each disk, past all caches, {seconds} s each after half \
                 a second; {rounds} rounds{anew}, median and range, ratios within a round. **There is no KVM: the guest's processor is \
                 emulated and bounds the operations a second; the ratios count, not the figures.**\n\n{means}\n{table}",
                shared = if self.has_shared() { OF_SHARED } else { "" },
                seconds = self.seconds,
                rounds = rounds(&self.disks),
                anew = if self.guests_anew { ", each with guests that are started for it" } else { "" },
                means = self.means(),
                table = self.disks_table(),
            )
        };
        format!(
            "\n## Storage\n\nOn the two-node cluster of this repository with its own storage, whose volumes are files of an XFS on a loop \
             device ({date}, commit {commit}, {cores} × {cpu}, Linux {kernel}; `perf storage`).\n{told}{disks}{boots}{plugs}{frozen}{exports}",
            date = self.date,
            commit = self.commit,
            cores = self.machine.cores,
            cpu = self.machine.cpu_model,
            kernel = self.machine.kernel,
            boots = self.boots_text(),
            plugs = self.plugs_text(),
            frozen = self.frozen_text(),
            exports = self.exports_text(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(subject: &str, figures: &[(&str, f64)]) -> Run {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Run { subject: subject.into(), figures, ..Run::default() }
    }

    fn sample() -> Storage {
        Storage {
            date: "2026-01-01T00:00Z".into(),
            commit: "abc".into(),
            machine: Machine::sample(),
            seconds: 2.0,
            notes: vec!["something".into()],
            guests_anew: true,
            disks: vec![
                run(MACHINE, &[("file-scsi.random-read", 990.0), ("file-scsi.one-read", 50.0)]),
                run(PLAIN_QEMU, &[("file-scsi.random-read", 1000.0), ("file-scsi.one-read", 40.0)]),
                run(SHARED, &[("file-scsi.random-read", 900.0)]),
            ],
            boots: None,
            plugs: None,
            frozen: None,
            exports: vec![run("export", &[(RATE, 450.0)]), run("cat", &[(RATE, 500.0)])],
        }
    }

    #[test]
    fn a_latency_counts_the_other_way_round() {
        let text = sample().section();
        let has =
            |line: &str| text.lines().any(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(has("| random reads of 4 KiB, 32 at a time, a second | 0.99 | 0.90 | 1.10 |"), "{text}");
        assert!(has("| one random read of 4 KiB, median, µs | 0.80 | – | – |"), "{text}");
        assert!(
            has(
                "| file, SCSI: one random read of 4 KiB, median, µs | 50 (50–50) | 40 (40–40) | – | 1.25 (1.25–1.25) |"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_told_of() {
        let text = sample().section();
        assert!(text.contains("### Downloads") && text.contains("- something\n"), "{text}");
        assert!(!text.contains("### Snapshots") && !text.contains("file, virtio-blk"), "{text}");
    }

    #[test]
    fn a_turn_that_failed_is_told_and_fails_the_whole() {
        let mut storage = sample();
        assert!(storage.check().is_ok());
        storage.disks.push(Run { subject: MACHINE.into(), error: Some("no disk".into()), ..Run::default() });
        assert!(storage.check().is_err());
        assert!(storage.section().contains("- round 1, podvirt: no disk\n"));
    }
}
