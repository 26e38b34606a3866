//! The format of a result: the raw runs, and the figures made of them.
//!
//! A figure is named `<quantity>_<direction>_<mtu>`, e.g. `cpu_per_gb_g2h_1500`. `absolute` has each backend's medians,
//! `ratios` netd's figure divided by passt's. A ratio is taken within each round, from runs that follow each other, and
//! the median of the rounds' ratios is the result: what slowed a whole round down slowed both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::{Length, Run, Test};
use crate::machine::Machine;
use crate::stats::Summary;

/// Version of the format. A reader refuses others.
const SCHEMA: u32 = 1;
/// Beyond this many processors busy with other things, a run is mentioned as disturbed.
pub(crate) const DISTURBED_CPUS: f64 = 0.2;
/// netd's name among the backends.
pub(crate) const NETD: &str = "netd";
/// The peer's it is divided by.
pub(crate) const PASST: &str = "passt";

/// Figures by their names.
pub(crate) type Figures = BTreeMap<String, f64>;
/// Ranges of figures by their names.
pub(crate) type Summaries = BTreeMap<String, Summary>;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// How long each bulk measurement was.
    #[serde(flatten)]
    pub(crate) length: Length,
    /// Rounds.
    pub(crate) repeats: u32,
    /// Too short to be quoted.
    pub(crate) quick: bool,
}

/// A result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Version of the format.
    pub(crate) schema: u32,
    /// UTC.
    pub(crate) date: String,
    /// The state of the sources.
    pub(crate) commit: String,
    /// What was asked for.
    pub(crate) settings: Settings,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// What else took part, by name.
    pub(crate) versions: BTreeMap<String, String>,
    /// netd's figures divided by passt's.
    pub(crate) ratios: Figures,
    /// Figures in their units.
    pub(crate) absolute: Absolute,
    /// Median and range of all the above; `ratios`, or a backend's name.
    pub(crate) spread: BTreeMap<String, Summaries>,
    /// What a reader of the figures must know.
    pub(crate) warnings: Vec<String>,
    /// What they were made of.
    pub(crate) runs: Vec<Run>,
}

/// Medians in their units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Absolute {
    /// netd's idle memory in MiB.
    pub(crate) idle_rss_mib: Option<f64>,
    /// Each backend's figures.
    #[serde(flatten)]
    pub(crate) backends: BTreeMap<String, Figures>,
}

impl Results {
    /// Makes the figures of the runs.
    pub(crate) fn new(
        (date, commit): (String, String),
        settings: Settings,
        machine: Machine,
        versions: BTreeMap<String, String>,
        runs: Vec<Run>,
    ) -> Results {
        let names: BTreeSet<&str> = runs.iter().map(|r| r.backend.as_str()).collect();
        let mut spread = BTreeMap::new();
        for name in names {
            let figures = runs.iter().filter(|r| r.backend == name).map(figures);
            spread.insert(name.to_owned(), summarise(figures));
        }
        let absolute = Absolute {
            idle_rss_mib: spread.get(NETD).and_then(|s| s.get("idle_rss_mib")).map(|s| s.median),
            backends: spread.iter().map(|(name, s)| (name.clone(), medians(s))).collect(),
        };
        let ratios = summarise(runs.iter().filter(|r| r.backend == NETD).filter_map(|netd| {
            let same = |r: &&Run| r.backend == PASST && r.round == netd.round && r.mtu == netd.mtu;
            runs.iter().find(same).map(|passt| quotients(&figures(netd), &figures(passt)))
        }));
        let warnings = warnings(&runs);
        let medians = medians(&ratios);
        spread.insert("ratios".into(), ratios);
        let schema = SCHEMA;
        Results {
            schema,
            date,
            commit,
            settings,
            machine,
            versions,
            ratios: medians,
            absolute,
            spread,
            warnings,
            runs,
        }
    }

    /// Reads a result file.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub(crate) fn read(path: &Path) -> Result<Results> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let results: Results = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(results.schema == SCHEMA, "{}: schema {}, not {SCHEMA}", path.display(), results.schema);
        Ok(results)
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| path.display().to_string())
    }

    /// A backend's figure, or a ratio, with its range.
    pub(crate) fn summary(&self, of: &str, figure: &str) -> Option<Summary> {
        self.spread.get(of)?.get(figure).copied()
    }
}

/// The figures of one run.
fn figures(run: &Run) -> Figures {
    let mtu = run.mtu;
    let mut figures = BTreeMap::from([
        ("idle_rss_mib".to_owned(), run.idle.rss_mib),
        ("idle_private_mib".to_owned(), run.idle.anonymous_mib),
        ("idle_cpus".to_owned(), run.idle_cpus),
        ("boot_seconds".to_owned(), run.boot_seconds),
        (format!("rtt_us_{mtu}"), run.round_trip.median_us),
        (format!("rtt_p99_us_{mtu}"), run.round_trip.p99_us),
    ]);
    for test in &run.tests {
        let suffix = format!("{}_{mtu}", test.direction.key());
        figures.insert(format!("tcp_{suffix}"), test.gbits);
        figures.insert(format!("cpu_per_gb_{suffix}"), test.cpu_per_gb());
        figures.insert(format!("user_per_gb_{suffix}"), test.backend.user / test.gigabytes);
        figures.insert(format!("guest_per_gb_{suffix}"), test.guest.total() / test.gigabytes);
    }
    figures
}

fn quotients(over: &Figures, under: &Figures) -> Figures {
    let quotient = |(name, value): (&String, &f64)| {
        let under = *under.get(name)?;
        (under > 0.0).then(|| (name.clone(), value / under))
    };
    over.iter().filter_map(quotient).collect()
}

fn summarise(runs: impl IntoIterator<Item = Figures>) -> Summaries {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in runs.into_iter().flatten() {
        values.entry(name).or_default().push(value);
    }
    values.into_iter().filter_map(|(name, values)| Some((name, Summary::of(values)?))).collect()
}

fn medians(summaries: &Summaries) -> Figures {
    summaries.iter().map(|(name, s)| (name.clone(), s.median)).collect()
}

fn warnings(runs: &[Run]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut busy = |what: &str, others: Vec<f64>| {
        let disturbed: Vec<f64> = others.iter().copied().filter(|&o| o > DISTURBED_CPUS).collect();
        if let Some(most) = Summary::of(disturbed.iter().copied()).map(|s| s.max) {
            let (some, all) = (disturbed.len(), others.len());
            warnings.push(format!(
                "{what}: in {some} of {all}, others kept more than {DISTURBED_CPUS} processors busy, {most:.1} at most"
            ));
        }
    };
    busy("before a run", runs.iter().map(|r| r.others_cpus).collect());
    busy("bulk measurements", runs.iter().flat_map(|r| &r.tests).map(Test::others_cpus).collect());
    for run in runs {
        for test in &run.tests {
            let slowest = Summary::of(test.course_gbits.iter().copied()).map_or(test.gbits, |s| s.min);
            if slowest < test.gbits / 2.0 {
                let Run { round, backend, mtu, .. } = run;
                let (round, key, gbits) = (round + 1, test.direction.key(), test.gbits);
                warnings.push(format!(
                    "round {round}, {backend}, MTU {mtu}, {key}: one second had {slowest:.2} Gbit/s, the mean is {gbits:.2}"
                ));
            }
        }
    }
    warnings
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::{Direction, RoundTrip};
    use crate::usage::{Cpu, Memory};

    /// A run in which everything is as fast as `speed`.
    fn run(backend: &str, round: u32, speed: f64) -> Run {
        let test = |direction, gbits: f64| Test {
            direction,
            gbits,
            course_gbits: vec![gbits; 4],
            retransmits: Some(0),
            gigabytes: gbits * 5.0 / 8.0,
            wall_seconds: 5.0,
            backend: Cpu { user: 0.5, system: 1.5 },
            guest: Cpu { user: 4.0, system: 1.0 },
            peer: Cpu { user: 0.25, system: 1.0 },
            others_seconds: 0.25,
        };
        Run {
            round,
            backend: backend.into(),
            mtu: 1500,
            others_cpus: 0.0,
            boot_seconds: 1.25,
            guest_kernel: "7.2.7".into(),
            idle: Memory { rss_mib: 8.0, anonymous_mib: 2.0, file_mib: 5.0, shared_mib: 1.0 },
            idle_cpus: 0.0,
            round_trip: RoundTrip { median_us: 400.0 / speed, p99_us: 900.0 / speed, count: 2500 },
            tests: vec![test(Direction::G2h, 4.0 * speed), test(Direction::H2g, 8.0 * speed)],
        }
    }

    /// A result in which netd is twice as fast as passt, and the third round is slow for both.
    pub(crate) fn sample() -> Results {
        let mut runs = Vec::new();
        for (round, speed) in [(0, 1.0), (1, 1.125), (2, 0.5)] {
            runs.extend([run(NETD, round, 2.0 * speed), run(PASST, round, speed)]);
        }
        let settings =
            Settings { length: Length { seconds: 4, warm_up_seconds: 1 }, repeats: 3, quick: false };
        let machine =
            Machine { kernel: "6.18.0".into(), cpu_model: "Some CPU".into(), cores: 2, memory_gib: 23.5 };
        let versions = [("passt", "20250503"), ("guest kernel", "7.2.7")];
        let versions = versions.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        Results::new(("2026-01-31T12:00Z".into(), "0123456789ab".into()), settings, machine, versions, runs)
    }

    #[test]
    fn a_slow_round_does_not_change_the_ratio() {
        let results = sample();
        for (key, ratio) in [
            ("tcp_g2h_1500", 2.0),
            ("tcp_h2g_1500", 2.0),
            ("cpu_per_gb_g2h_1500", 0.5),
            ("cpu_per_gb_h2g_1500", 0.5),
        ] {
            assert_eq!(results.ratios.get(key), Some(&ratio), "{key}");
            assert_eq!(results.summary("ratios", key).map(|s| [s.min, s.max]), Some([ratio, ratio]), "{key}");
        }
        assert_eq!(results.absolute.backends[PASST]["tcp_g2h_1500"], 4.0);
        assert_eq!(results.absolute.idle_rss_mib, Some(8.0));
    }

    #[test]
    fn figures_are_where_readers_look_for_them() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["ratios"]["tcp_g2h_1500"], 2.0);
        assert_eq!(json["absolute"]["netd"]["tcp_g2h_1500"], 8.0);
        assert_eq!(json["absolute"]["passt"]["cpu_per_gb_g2h_1500"], 0.8);
        assert_eq!(json["absolute"]["idle_rss_mib"], 8.0);
        assert_eq!(json["machine"]["cores"], 2);
        assert_eq!(json["settings"]["seconds"], 4);
        assert_eq!(json["runs"][0]["tests"][0]["backend"]["user"], 0.5);
    }

    #[test]
    fn a_result_survives_its_file() {
        let results = sample();
        let text = serde_json::to_string(&results).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
    }

    #[test]
    fn one_backend_alone_has_no_ratio() {
        let sample = sample();
        let runs = sample.runs.into_iter().filter(|r| r.backend == PASST).collect();
        let results = Results::new(
            (sample.date, sample.commit),
            sample.settings,
            sample.machine,
            sample.versions,
            runs,
        );
        assert!(results.ratios.is_empty());
        assert_eq!(results.absolute.idle_rss_mib, None);
        assert!(results.absolute.backends[PASST].contains_key("tcp_h2g_1500"));
    }

    #[test]
    fn disturbance_and_stalls_are_told() {
        let mut sample = sample();
        assert_eq!(sample.warnings, [""; 0]);
        let run = &mut sample.runs[0];
        run.others_cpus = 1.5;
        run.tests[0].others_seconds = 5.0;
        run.tests[1].course_gbits = vec![16.0, 0.5, 16.0, 16.0];
        assert_eq!(
            warnings(&sample.runs),
            [
                "before a run: in 1 of 6, others kept more than 0.2 processors busy, 1.5 at most",
                "bulk measurements: in 1 of 12, others kept more than 0.2 processors busy, 1.0 at most",
                "round 1, netd, MTU 1500, h2g: one second had 0.50 Gbit/s, the mean is 16.00",
            ]
        );
    }
}
