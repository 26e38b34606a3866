//! The file of a measurement of bindings, and what the page tells of it.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::subjects::KINDS;
use crate::machine::Machine;
use crate::sides::{Row, Run, Subject, check, failures, rounds, side_by_side};
use crate::stats::Summary;

/// The file `perf/results/bindings.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bindings {
    /// UTC.
    pub(super) date: String,
    /// The state of the sources.
    pub(super) commit: String,
    /// Where it was measured.
    pub(super) machine: Machine,
    /// A bulk measurement after its warm-up.
    pub(super) seconds: u32,
    /// What a reader must know.
    #[serde(default)]
    pub(super) notes: Vec<String>,
    /// All turns.
    pub(super) runs: Vec<Run>,
}

/// Bulk and its cost by direction, then transactions, then memory.
const ROWS: [Row<'_>; 27] = [
    ("out_gbits", "guest → pod, Gbit/s", 2),
    ("in_gbits", "pod → guest, Gbit/s", 2),
    ("out_pod_cpu", "CPU of its pod, guest → pod, s/GB", 2),
    ("out_netd_cpu", "… of it netd's container", 2),
    ("out_compute_cpu", "… of it virt-launcher's, QEMU in it", 2),
    ("out_istio-proxy_cpu", "… of it the proxy's", 2),
    ("out_machine_cpu", "CPU of the machine, guest → pod, s/GB", 2),
    ("in_pod_cpu", "CPU of its pod, pod → guest, s/GB", 2),
    ("in_netd_cpu", "… of it netd's container", 2),
    ("in_compute_cpu", "… of it virt-launcher's, QEMU in it", 2),
    ("in_istio-proxy_cpu", "… of it the proxy's", 2),
    ("in_machine_cpu", "CPU of the machine, pod → guest, s/GB", 2),
    ("out_rr_p50", "round trip, the guest asks, median, µs", 0),
    ("out_rr_p99", "… 99th percentile", 0),
    ("in_rr_p50", "round trip, the pod asks, median, µs", 0),
    ("in_rr_p99", "… 99th percentile", 0),
    ("out_connect_per_second", "connections a second, the guest opens them", 0),
    ("out_connect_p50", "… median time of one, µs", 0),
    ("out_connect_p99", "… 99th percentile", 0),
    ("in_connect_per_second", "connections a second, the pod opens them", 0),
    ("in_connect_p50", "… median time of one, µs", 0),
    ("in_connect_p99", "… 99th percentile", 0),
    ("pod_mib", "memory of its pod beyond the guest's, MiB", 1),
    ("netd_mib", "… of it netd's container", 1),
    ("compute_mib", "… of it virt-launcher's, QEMU in it", 1),
    ("istio-proxy_mib", "… of it the proxy's", 1),
    ("client_mib", "… of it the programs of the measurement", 1),
];

/// The two carriers of one binding, which are compared.
const RATIO: &str = "netd ÷ kernel";

/// What no measurement tells, by binding.
const BESIDE: &str = "\
| | what a mesh sees of it | what survives a migration |
| --- | --- | --- |
| `passtBinding`, netd | a process of the pod, as of any container | nothing on the pod's own network, whose address changes; on a network of [podvirt-cni](cni.md) the address and all connections |
| `masquerade`, netd | the same | the guest's own addresses, no connection |
| `masquerade`, kernel | packets that the pod forwards; Istio's sidecar takes them by the name of the pod's bridge | the guest's own addresses, no connection |
| `bridge` | nothing: a machine with a sidecar is refused | on the pod's own network it does not move unless the annotation allows it; on a network of [Multus](bridge.md) the address and all connections |
";

impl Bindings {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Bindings>> {
        crate::read(&results.join("bindings.json"))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, results: &Path) -> Result<()> {
        crate::write(&results.join("bindings.json"), self)
    }

    /// Whether everything was measured.
    ///
    /// # Errors
    /// Something was not.
    pub(super) fn check(&self) -> Result<()> {
        check(&self.runs)
    }

    fn table(&self, meshed: bool, pair: [&str; 2]) -> String {
        let subjects = KINDS.iter().filter(|kind| kind.meshed == meshed);
        let subjects: Vec<Subject<'_>> = subjects.map(|kind| (kind.key, kind.name)).collect();
        side_by_side(&self.runs, &subjects, &ROWS, (RATIO, pair))
    }

    /// Processors that other things kept busy, in a phrase.
    fn others(&self) -> String {
        match Summary::of(self.runs.iter().filter_map(|run| run.others_cpus)) {
            Some(s) => format!("{:.2} ({:.2}–{:.2})", s.median, s.min, s.max),
            None => "an unknown number of".into(),
        }
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("- {note}\n")).collect();
        let told = failures(&self.runs) + &notes;
        let told = if told.is_empty() { told } else { format!("\n{told}") };
        format!(
            "\n## Bindings on the cluster\n\nMachines on one node of the two-node cluster of this repository, one by each binding, and a \
             plain pod, each against a pod on the other node, by IPv4 at an MTU of 1500. **There is no KVM: the guest's \
             processor is emulated (TCG) and is the bottleneck of every machine's figures. The ratios count, not the figures; \
             with KVM the distance to the plain pod is another.** All of them run at the same time, those whose turn it is not \
             are idle; {rounds} rounds in turns, median and range; a ratio is taken within each round, of `masquerade` by netd \
             and by the kernel. Bulk is one TCP stream of iperf3 for {seconds} s, as the receiver counts it. CPU is what the kernel \
             accounts to the pod's cgroups; that of the machine is all that both of its processors did, the other pod's part in it \
             and kernel threads'. Kernel work for a tap device, a bridge and nftables is done in QEMU's name, in that of the sender, or by a kernel \
             thread. Round trips are of one byte; a connection is opened, used for one byte and closed. \
             Memory is that of the processes, what they share divided among them, without the guest's own {guest} MiB: \
             QEMU and libvirt are most of it, and what TCG has translated; the kernel's own for bridge, rules and connections is in no process. \
             Beside pods and this program, other things kept {others} processors busy ({date}, commit {commit}, {cores} × {cpu}, \
             Linux {kernel}; `perf bindings`).\n{told}\n{bindings}\n\
             What is not a figure, in short; the tests that have seen it are in the [matrix](networking.md), more in the pages about \
             [meshes](service-mesh.md) and [migration](migration.md):\n\n{BESIDE}\n\
             ### Through a mesh\n\nThe same with the sidecar of the tests' mesh, a real Envoy with one worker and Istio's rules \
             ([what is real in it](service-mesh.md#what-is-real-in-the-tests-and-what-is-rebuilt)): everything in and out passes \
             it, which its counters confirm, as plain TCP at ports that are declared to be that. Both machines have `masquerade`.\n\n{meshed}",
            rounds = rounds(&self.runs),
            seconds = self.seconds,
            guest = super::subjects::GUEST_MIB,
            others = self.others(),
            date = self.date,
            commit = self.commit,
            cores = self.machine.cores,
            cpu = self.machine.cpu_model,
            kernel = self.machine.kernel,
            bindings = self.table(false, ["masquerade", "nftables"]),
            meshed = self.table(true, ["mesh-masquerade", "mesh-nftables"]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every subject's turn in three rounds, each as fast as `speed`; the kernel takes twice as long as netd.
    fn sample() -> Bindings {
        let run = |round, speed: f64| {
            move |kind: &super::super::subjects::Kind| {
                let speed = if kind.key.contains("nftables") { speed / 2.0 } else { speed };
                let machine = !kind.key.ends_with("pod");
                let own = |of: &str| match of {
                    "netd" => kind.key.contains("masquerade") || kind.key == "passt",
                    "compute" => machine,
                    "istio-proxy" => kind.meshed,
                    "client" => !machine,
                    _ => true,
                };
                let value = |&(name, _, _): &Row<'_>| {
                    let of = name.trim_start_matches("out_").trim_start_matches("in_");
                    let of = of.trim_end_matches("_cpu").trim_end_matches("_mib");
                    let rate = name.contains("gbits") || name.contains("per_second");
                    own(of).then(|| (name.to_owned(), if rate { speed } else { 8.0 / speed }))
                };
                let figures = ROWS.iter().filter_map(value).collect();
                Run { subject: kind.key.into(), round, others_cpus: Some(0.25), figures, error: None }
            }
        };
        let runs = [(0, 1.0), (1, 1.25), (2, 0.5)];
        let runs = runs.into_iter().flat_map(|(round, speed)| KINDS.iter().map(run(round, speed)));
        Bindings {
            date: "2026-01-31T12:00Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine::sample(),
            seconds: 3,
            notes: Vec::new(),
            runs: runs.collect(),
        }
    }

    #[test]
    fn the_section_is_as_it_was() {
        insta::assert_snapshot!(sample().section());
    }

    #[test]
    fn what_failed_is_told_and_the_rest_stands() {
        let mut found = sample();
        assert!(found.check().is_ok());
        found.runs[1].error = Some("no route\nand more".into());
        found.runs[1].figures.clear();
        found.notes.push("round 4 was left out".into());
        let text = found.section();
        assert!(text.contains("\n- round 1, masquerade: no route\n- round 4 was left out\n\n|"), "{text}");
        assert!(text.contains("| `masquerade`, kernel"), "{text}");
        assert!(found.check().unwrap_err().to_string().contains("1 of 24"));
    }

    #[test]
    fn a_result_survives_its_file() {
        let (dir, found) = (tempfile::tempdir().unwrap(), sample());
        assert!(Bindings::read(dir.path()).unwrap().is_none());
        found.write(dir.path()).unwrap();
        assert_eq!(Bindings::read(dir.path()).unwrap(), Some(found));
    }
}
