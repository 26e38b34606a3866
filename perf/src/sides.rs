//! Subjects that take turns, and their figures side by side.
//!
//! A ratio is taken within each round, from runs that follow each other, and the median of the rounds' ratios is the result:
//! what slowed a whole round down slowed both.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::report::{cell, table};
use crate::stats::Summary;

/// One subject in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Its key.
    pub(crate) subject: String,
    /// From 0.
    pub(crate) round: u32,
    /// Processors that other programs kept busy meanwhile, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) others_cpus: Option<f64>,
    /// What was found, by name.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Why something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Seen from a subject: whether it opens connections and sends, or its peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The subject.
    Out,
    /// Its peer.
    In,
}

impl Way {
    /// As names of figures have it.
    pub(crate) fn key(self) -> &'static str {
        if self == Way::Out { "out" } else { "in" }
    }
}

/// Whether all runs found what they should.
///
/// # Errors
/// Some did not.
pub(crate) fn check<'r>(runs: impl IntoIterator<Item = &'r Run>) -> Result<()> {
    let all: Vec<&Run> = runs.into_iter().collect();
    let failed = all.iter().filter(|run| run.error.is_some()).count();
    ensure!(failed == 0, "{failed} of {} turns failed", all.len());
    Ok(())
}

/// A subject's key, and what it is called.
pub(crate) type Subject<'a> = (&'a str, &'a str);

/// What is measured: a figure's name, what it is called, and digits behind the point.
pub(crate) type Row<'a> = (&'a str, &'a str, usize);

fn of<'r>(runs: &'r [Run], subject: &'r str, figure: &'r str) -> impl Iterator<Item = (u32, f64)> + 'r {
    let runs = runs.iter().filter(move |run| run.subject == subject);
    runs.filter_map(move |run| Some((run.round, *run.figures.get(figure)?)))
}

/// The median and range of a subject's figure.
pub(crate) fn summary(runs: &[Run], subject: &str, figure: &str) -> Option<Summary> {
    Summary::of(of(runs, subject, figure).map(|(_, value)| value))
}

/// A figure of one subject divided by the same figure of the other subject, for each round that has both.
pub(crate) fn ratio(runs: &[Run], [over, under]: [&str; 2], figure: &str) -> Option<Summary> {
    let under: BTreeMap<u32, f64> = of(runs, under, figure).collect();
    Summary::of(of(runs, over, figure).filter_map(|(round, value)| {
        let by = under.get(&round).filter(|by| **by > 0.0)?;
        Some(value / by)
    }))
}

/// A table of the figures that were measured, and the ratio between two of the subjects.
pub(crate) fn side_by_side(
    runs: &[Run],
    subjects: &[Subject<'_>],
    rows: &[Row<'_>],
    (label, pair): (&str, [&str; 2]),
) -> String {
    let line = |&(figure, what, digits): &Row<'_>| {
        let summaries: Vec<_> = subjects.iter().map(|(key, _)| summary(runs, key, figure)).collect();
        summaries.iter().any(Option::is_some).then(|| {
            let mut cells = vec![what.to_owned()];
            cells.extend(summaries.into_iter().map(|s| cell(s, digits)));
            cells.push(cell(ratio(runs, pair, figure), 2));
            cells
        })
    };
    let body: Vec<_> = rows.iter().filter_map(line).collect();
    let mut head = vec![""];
    head.extend(subjects.iter().map(|(_, name)| *name));
    head.push(label);
    table(&head, &body)
}

/// What went wrong, a line each, for the page.
pub(crate) fn failures(runs: &[Run]) -> String {
    let failed = runs.iter().filter_map(|run| {
        let first = run.error.as_ref()?.lines().next()?;
        Some(format!("- round {}, {}: {first}\n", run.round + 1, run.subject))
    });
    failed.collect()
}

/// How many rounds there were.
pub(crate) fn rounds(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.round).collect::<BTreeSet<_>>().len()
}

/// The turns of a round: each round begins with another subject, so that none always follows the same.
pub(crate) fn turns(subjects: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..subjects).map(move |turn| (turn + round as usize) % subjects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(subject: &str, round: u32, value: f64) -> Run {
        let figures = [("rate".to_owned(), value)].into();
        Run { subject: subject.into(), round, figures, ..Run::default() }
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        // The second round is slow for both, and the third has only one of them.
        let runs =
            [run("a", 0, 10.0), run("b", 0, 5.0), run("a", 1, 2.0), run("b", 1, 1.0), run("a", 2, 99.0)];
        let ratio = ratio(&runs, ["a", "b"], "rate").unwrap();
        assert_eq!([ratio.min, ratio.median, ratio.max], [2.0; 3]);
        assert_eq!(summary(&runs, "a", "rate").unwrap().median, 10.0);
        assert_eq!(rounds(&runs), 3);
    }

    #[test]
    fn what_was_not_measured_has_no_row_and_a_lack_shows() {
        let runs = [run("a", 0, 10.0)];
        let text = side_by_side(
            &runs,
            &[("a", "one"), ("b", "other")],
            &[("rate", "a second", 1), ("size", "bytes", 0)],
            ("one ÷ other", ["a", "b"]),
        );
        assert!(text.contains("| a second | 10.0 (10.0–10.0) |     – |           – |"), "{text}");
        assert!(!text.contains("bytes"), "{text}");
    }

    #[test]
    fn each_round_begins_with_another_subject() {
        assert_eq!(turns(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(3, 2).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(turns(0, 1).count(), 0);
    }
}
