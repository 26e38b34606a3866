//! The file of a measurement of many machines, and what the page tells of it.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::GUEST_MIB;
use crate::machine::Machine;
use crate::report::{cell, table};
use crate::sides::{Run, check, failures, rounds, summary};

/// The file `perf/results/scale.json`: the subjects of its runs are numbers of machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// UTC.
    pub(super) date: String,
    /// The state of the sources.
    pub(super) commit: String,
    /// Where it was measured.
    pub(super) machine: Machine,
    /// Length of each transfer after its warm-up.
    pub(super) seconds: u32,
    /// What a reader must know.
    #[serde(default)]
    pub(super) notes: Vec<String>,
    /// All rounds.
    pub(super) runs: Vec<Run>,
}

/// A figure's name, what it is called, and digits behind the point.
const ROWS: [(&str, &str, usize); 17] = [
    ("out_gbits", "guests → pod, all together, Gbit/s", 2),
    ("out_fairness", "… Jain's index of fairness", 3),
    ("out_netd_cpu", "… CPU of the netds, s/GB", 2),
    ("out_pod_cpu", "… CPU of the machines' pods, s/GB", 2),
    ("out_netd_processors", "… processors that a machine's netd kept busy, median", 3),
    ("in_gbits", "pod → guests, all together, Gbit/s", 2),
    ("in_fairness", "… Jain's index of fairness", 3),
    ("in_netd_cpu", "… CPU of the netds, s/GB", 2),
    ("in_pod_cpu", "… CPU of the machines' pods, s/GB", 2),
    ("in_netd_processors", "… processors that a machine's netd kept busy, median", 3),
    ("idle_netd_percent", "idle: all netds together, % of a processor", 3),
    ("idle_machine_percent", "idle: a machine's pod, median, % of a processor", 1),
    ("pod_mib", "memory of a machine's pod beyond the guest's, median, MiB", 1),
    ("netd_mib", "… of it netd's container", 1),
    ("compute_mib", "… of it virt-launcher's, QEMU and libvirt in it", 1),
    ("translated_mib", "… of it guest code that QEMU has translated; none with KVM", 1),
    ("volumeroot_mib", "… of it the container disk's", 1),
];

impl Scale {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Scale>> {
        crate::read(&results.join("scale.json"))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, results: &Path) -> Result<()> {
        crate::write(&results.join("scale.json"), self)
    }

    /// Whether everything was measured.
    ///
    /// # Errors
    /// Something was not.
    pub(super) fn check(&self) -> Result<()> {
        check(&self.runs)
    }

    /// The numbers of machines, in their order.
    fn levels(&self) -> Vec<&str> {
        let mut levels: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !levels.contains(&run.subject.as_str()) {
                levels.push(&run.subject);
            }
        }
        levels
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("- {note}\n")).collect();
        let told = failures(&self.runs) + &notes;
        let told = if told.is_empty() { told } else { format!("\n{told}") };
        let levels = self.levels();
        let line = |&(figure, what, digits): &(&str, &str, usize)| {
            let each: Vec<_> = levels.iter().map(|level| summary(&self.runs, level, figure)).collect();
            each.iter().any(Option::is_some).then(|| {
                [what.to_owned()]
                    .into_iter()
                    .chain(each.into_iter().map(|s| cell(s, digits)))
                    .collect::<Vec<_>>()
            })
        };
        let body: Vec<_> = ROWS.iter().filter_map(line).collect();
        let head: Vec<String> = levels.iter().map(|level| format!("{level} at once")).collect();
        let head: Vec<&str> = [""].into_iter().chain(head.iter().map(String::as_str)).collect();
        format!(
            "\n## Many machines on a node\n\nMachines with netd (`passtBinding`), one processor and {GUEST_MIB} MiB each, on one node of the \
             two-node cluster of this repository, and a pod on the other node; all do the same at once: nothing for half a minute, \
             then {seconds} s of iperf3 each way. {rounds} rounds, median and range ({date}, commit {commit}, {cores} × {cpu}, Linux \
             {kernel}; `perf scale`). **There is no KVM: the guests' processors are emulated and share the machine's with \
             everything else, so the throughput is theirs; what counts is how it is shared, and what netd takes.**\n{told}\n{table}",
            seconds = self.seconds,
            rounds = rounds(&self.runs),
            date = self.date,
            commit = self.commit,
            cores = self.machine.cores,
            cpu = self.machine.cpu_model,
            kernel = self.machine.kernel,
            table = table(&head, &body),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(subject: &str, round: u32, figures: &[(&str, f64)], error: Option<&str>) -> Run {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Run { subject: subject.into(), round, figures, error: error.map(str::to_owned), ..Run::default() }
    }

    fn sample() -> Scale {
        Scale {
            date: "2026-01-01T00:00Z".into(),
            commit: "abc".into(),
            machine: Machine::sample(),
            seconds: 10,
            notes: vec!["something".into()],
            runs: vec![
                run("4", 0, &[("out_gbits", 2.0), ("netd_mib", 9.0)], None),
                run("4", 1, &[("out_gbits", 4.0)], None),
                run("16", 0, &[("out_gbits", 5.0)], None),
            ],
        }
    }

    #[test]
    fn levels_stand_side_by_side_in_their_order() {
        let text = sample().section();
        let has =
            |line: &str| text.lines().any(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(has("| | 4 at once | 16 at once |"), "{text}");
        let row = "| guests → pod, all together, Gbit/s | 3.00 (2.00–4.00) | 5.00 (5.00–5.00) |";
        assert!(has(row) && has("| … of it netd's container | 9.0 (9.0–9.0) | – |"), "{text}");
        assert!(text.contains("- something\n") && !text.contains("fairness"), "{text}");
    }

    #[test]
    fn a_round_that_failed_is_told_and_fails_the_whole() {
        let mut scale = sample();
        assert!(scale.check().is_ok());
        scale.runs.push(run("16", 1, &[], Some("m3: no report")));
        assert!(scale.check().is_err());
        assert!(scale.section().contains("- round 2, 16: m3: no report\n"));
    }
}
