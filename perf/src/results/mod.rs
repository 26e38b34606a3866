//! The format of a result: the raw runs, and the figures made of them.
//!
//! A run is one case on one setup with one peer; its figures are named as [`crate::plan`] tells. `medians` has each
//! peer's medians, `ratios` netd's figures divided by passt's, `absolute` the figures that stand for themselves: these
//! two have the figures of [`RATIOS`] and [`ABSOLUTE`] and no others, as far as they were measured. A ratio is taken
//! within each round, from runs that follow each other, and the median of the rounds' ratios is the result: what slowed a
//! whole round down slowed both. The ratios of all other figures are in `spread`, and so are netd's divided by those of the
//! pod without a guest (`ratios_plain`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::stats::Summary;

/// Version of the format. A reader refuses others.
const SCHEMA: u32 = 2;
/// Beyond this many processors busy with other things, a run is mentioned as disturbed.
pub(crate) const DISTURBED_CPUS: f64 = 0.2;
/// netd's name among the peers.
pub(crate) const NETD: &str = "netd";
/// The peer's it is divided by.
pub(crate) const PASST: &str = "passt";
/// The pod without a guest, by which it is divided too.
pub(crate) const PLAIN: &str = "plain";
/// Where ratios to passt stand among the ranges, and ratios to the pod without a guest.
pub(crate) const TO_PASST: &str = "ratios";
pub(crate) const TO_PLAIN: &str = "ratios_plain";
/// Where figures stand that are of no peer: parts of netd alone.
pub(crate) const PARTS: &str = "parts";

/// Figures by their names.
pub(crate) type Figures = BTreeMap<String, f64>;
/// Ranges of figures by their names.
pub(crate) type Summaries = BTreeMap<String, Summary>;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// How long each bulk measurement was after its warm-up, in seconds.
    pub(crate) seconds: u32,
    /// What went before, in seconds.
    pub(crate) warm_up_seconds: u32,
    /// Rounds, at most: some setups have fewer.
    pub(crate) rounds: u32,
    /// Too short to be quoted.
    pub(crate) quick: bool,
}

/// One case on one setup with one peer in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Counted from 0; runs of the same round are compared with each other.
    pub(crate) round: u32,
    /// Frontend, MTU and family, e.g. `uml-1500-v4`.
    pub(crate) setup: String,
    /// `netd`, `passt`, `tap`, `slirp`, `plain`, or `parts`.
    pub(crate) peer: String,
    /// What was measured.
    pub(crate) case: String,
    /// How long it took.
    pub(crate) seconds: f64,
    /// Processors that were busy with other things in that time.
    pub(crate) others_cpus: f64,
    /// It was done again because others kept the processors busy; this is the least disturbed time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) repeated: bool,
    /// What was found.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: Figures,
    /// A bulk throughput second by second, by the figure's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) course: BTreeMap<String, Vec<f64>>,
    /// Why nothing was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// What a run is called in messages.
impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "round {}, {}, {}, {}", self.round + 1, self.setup, self.peer, self.case)
    }
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
    /// netd's figures that are limits by themselves.
    pub(crate) absolute: Figures,
    /// Each peer's medians.
    pub(crate) medians: BTreeMap<String, Figures>,
    /// Median and range of all the above; `ratios`, or a peer's name.
    pub(crate) spread: BTreeMap<String, Summaries>,
    /// What a reader of the figures must know.
    pub(crate) warnings: Vec<String>,
    /// What they were made of.
    pub(crate) runs: Vec<Run>,
}

/// The figures that are required as netd's divided by passt's.
pub(crate) const RATIOS: [&str; 15] = [
    "tcp_g2h_1500",
    "tcp_h2g_1500",
    "tcp4_h2g_1500",
    "tcp_g2h_65520",
    "tcp_h2g_65520",
    "cpu_per_gb_g2h_1500",
    "cpu_per_gb_h2g_1500",
    "cpu_per_gb_h2g_65520",
    "udp_echo_pps",
    "udp_echo_rtt_p50",
    "udp_g2h_1400_pps",
    "tcp_rr_p50",
    "tcp_rr_p99",
    "udp_rr_p50",
    "tcp_crr",
];

/// Figures of netd, or of its parts, that are limits by themselves: the name among `absolute`, and where from.
pub(crate) const ABSOLUTE: [(&str, &str, &str); 4] = [
    ("idle_rss_mib", NETD, "idle_rss_mib"),
    ("all_ports_mib", PARTS, "all_ports_mib"),
    ("bytes_per_flow", NETD, "flows_bytes_18000"),
    ("ring_pop_push_ns", PARTS, "ring_pop_push_ns"),
];

/// Figures made of two of the same peer and round, from different setups: the name, over, under.
const QUOTIENTS: [(&str, &str, &str); 3] = [
    ("pairs_discard_scale", "pairs_2_discard_pps", "pairs_1_discard_pps"),
    ("pairs_udp_scale", "pairs_2_udp_pps", "pairs_1_udp_pps"),
    ("flow_find_slope", "flow_find_131k_ns", "flow_find_1k_ns"),
];

impl Results {
    /// Makes the figures of the runs.
    pub(crate) fn new(
        (date, commit): (String, String),
        settings: Settings,
        machine: Machine,
        versions: BTreeMap<String, String>,
        runs: Vec<Run>,
    ) -> Results {
        let mut spread = BTreeMap::new();
        for peer in runs.iter().map(|r| r.peer.as_str()).collect::<BTreeSet<_>>() {
            spread.insert(peer.to_owned(), summarise(rounds(&runs, peer).into_values()));
        }
        let to = |peer: &str| {
            let peers = rounds(&runs, peer);
            summarise(rounds(&runs, NETD).into_iter().filter_map(|(round, mut netd)| {
                let mut peer = peers.get(&round)?.clone();
                worse_direction(&mut netd, &mut peer);
                Some(quotients(&netd, &peer))
            }))
        };
        let (ratios, to_plain) = (to(PASST), to(PLAIN));
        let medians: BTreeMap<String, Figures> =
            spread.iter().map(|(p, s)| (p.clone(), middles(s))).collect();
        let absolute = ABSOLUTE.iter().filter_map(|(name, peer, figure)| {
            Some(((*name).to_owned(), *medians.get(*peer)?.get(*figure)?))
        });
        let required = RATIOS.iter().filter_map(|name| Some(((*name).to_owned(), ratios.get(*name)?.median)));
        Results {
            schema: SCHEMA,
            date,
            commit,
            settings,
            machine,
            versions,
            absolute: absolute.collect(),
            ratios: required.collect(),
            medians,
            warnings: warnings(&runs),
            spread: spread
                .into_iter()
                .chain([(TO_PASST.to_owned(), ratios), (TO_PLAIN.to_owned(), to_plain)])
                .collect(),
            runs,
        }
    }

    /// Reads a result file.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub(crate) fn read(path: &Path) -> Result<Results> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        match serde_json::from_str::<Head>(&text).with_context(|| path.display().to_string())?.schema {
            SCHEMA => serde_json::from_str(&text).with_context(|| path.display().to_string()),
            other => bail!("{}: schema {other}, only {SCHEMA} can be read", path.display()),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| path.display().to_string())
    }

    /// A peer's figure, or a ratio, with its range.
    pub(crate) fn summary(&self, of: &str, figure: &str) -> Option<Summary> {
        self.spread.get(of)?.get(figure).copied()
    }

    /// The required figures that are missing.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let ratios = RATIOS.into_iter().filter(|name| !self.ratios.contains_key(*name));
        let absolute = ABSOLUTE.into_iter().map(|(name, ..)| name);
        ratios.chain(absolute.filter(|name| !self.absolute.contains_key(*name))).collect()
    }

    /// A figure's median, of a peer or of the ratios.
    pub(crate) fn median(&self, of: &str, figure: &str) -> Option<f64> {
        Some(self.summary(of, figure)?.median)
    }
}

/// A peer's figures in each round. Different setups have different names for their figures.
fn rounds(runs: &[Run], peer: &str) -> BTreeMap<u32, Figures> {
    let mut rounds: BTreeMap<u32, Figures> = BTreeMap::new();
    for run in runs.iter().filter(|r| r.peer == peer) {
        rounds.entry(run.round).or_default().extend(run.figures.clone());
    }
    for figures in rounds.values_mut() {
        for (name, over, under) in QUOTIENTS {
            if let (Some(over), Some(under)) = (figures.get(over), figures.get(under)) {
                let quotient = over / under;
                figures.insert(name.to_owned(), quotient);
            }
        }
    }
    rounds
}

/// Figures that are required in both directions: under the name without a direction stands the one in which netd is
/// further behind.
fn worse_direction(netd: &mut Figures, passt: &mut Figures) {
    for (name, directions, larger_is_better) in [
        ("tcp_rr_p50", ["tcp_rr_g2h_p50", "tcp_rr_h2g_p50"], false),
        ("tcp_rr_p99", ["tcp_rr_g2h_p99", "tcp_rr_h2g_p99"], false),
        ("udp_rr_p50", ["udp_rr_g2h_p50", "udp_rr_h2g_p50"], false),
        ("tcp_crr", ["tcp_crr_g2h", "tcp_crr_h2g"], true),
    ] {
        let pair = |at: &str| Some((*netd.get(at)?, *passt.get(at)?));
        let [Some(a), Some(b)] = directions.map(pair) else { continue };
        let first_is_worse = (a.0 * b.1 < b.0 * a.1) == larger_is_better;
        let (ours, theirs) = if first_is_worse { a } else { b };
        netd.insert(name.to_owned(), ours);
        passt.insert(name.to_owned(), theirs);
    }
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

fn middles(summaries: &Summaries) -> Figures {
    summaries.iter().map(|(name, s)| (name.clone(), s.median)).collect()
}

fn warnings(runs: &[Run]) -> Vec<String> {
    let mut warnings = Vec::new();
    let again = runs.iter().filter(|r| r.repeated).count();
    if again > 0 {
        warnings.push(format!("{again} of {} runs were disturbed and done again", runs.len()));
    }
    for run in runs.iter().filter(|r| r.others_cpus > DISTURBED_CPUS) {
        warnings.push(format!("{run}: others kept {:.1} processors busy", run.others_cpus));
    }
    for run in runs {
        if let Some(error) = &run.error {
            let first = error.lines().next().unwrap_or_default();
            warnings.push(format!("{run}: failed: {first}"));
        }
        for (figure, course) in &run.course {
            let (Some(s), Some(mean)) = (Summary::of(course.iter().copied()), run.figures.get(figure)) else {
                continue;
            };
            if s.min < mean / 2.0 {
                let min = s.min;
                warnings
                    .push(format!("{run}, {figure}: one second had {min:.2} Gbit/s, the mean is {mean:.2}"));
            }
        }
    }
    warnings
}

#[cfg(test)]
pub(crate) mod tests;
