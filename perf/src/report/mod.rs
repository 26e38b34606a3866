//! Results as a person reads them: tables, and the page docs/performance.md with its plots.

mod plots;
mod required;
mod rows;

pub(crate) use plots::plots;
pub(crate) use rows::sections;

use std::fmt::Write as _;

use crate::results::{NETD, PARTS, PASST, PLAIN, Results, TO_PASST, TO_PLAIN};
use crate::stats::Summary;

/// Peers in the order of tables.
const PEERS: [&str; 5] = [NETD, PASST, "tap", "slirp", PLAIN];

/// A figure with its range.
pub(crate) fn cell(summary: Option<Summary>, digits: usize) -> String {
    match summary {
        None => "–".into(),
        Some(Summary { median, min, max }) => {
            format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
        }
    }
}

/// A Markdown table whose columns stand below each other; the first is text, the others are figures.
pub(crate) fn table(head: &[&str], body: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&h| h.to_owned()).collect();
    let mut widths = vec![0; head.len()];
    for line in std::iter::once(&head).chain(body) {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            text.push_str(&if at == 0 {
                format!("| {cell}{padding} ")
            } else {
                format!("| {padding}{cell} ")
            });
        }
        text.push_str("|\n");
    };
    line(&head);
    let rule =
        |at, width: &usize| if at == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) };
    line(&widths.iter().enumerate().map(|(at, width)| rule(at, width)).collect::<Vec<_>>());
    body.iter().for_each(|cells| line(cells));
    text
}

/// A section's table: each peer's median and range, and netd's ratios to passt and to the pod without a guest; empty if nothing
/// of it was measured.
fn figures_of(results: &Results, rows: &[rows::Row]) -> String {
    let has = |peer: &&str, row: &rows::Row| results.summary(peer, &row.figure).is_some();
    let peers: Vec<&str> = PEERS.into_iter().filter(|p| rows.iter().any(|r| has(p, r))).collect();
    let measured = rows.iter().filter(|r| peers.iter().any(|p| has(p, r)));
    let has_plain = peers.contains(&PLAIN);
    let line = |row: &rows::Row| {
        let mut cells = vec![row.label.clone()];
        cells.extend(peers.iter().map(|p| cell(results.summary(p, &row.figure), row.digits)));
        cells.push(cell(results.summary(TO_PASST, &row.figure), 2));
        cells.extend(has_plain.then(|| cell(results.summary(TO_PLAIN, &row.figure), 2)));
        cells
    };
    let body: Vec<_> = measured.map(line).collect();
    if body.is_empty() {
        return String::new();
    }
    let ratios = ["netd / passt"].into_iter().chain(has_plain.then_some("netd / plain"));
    let head: Vec<&str> = [""].into_iter().chain(peers.iter().copied()).chain(ratios).collect();
    table(&head, &body)
}

/// The parts of netd alone.
fn parts(results: &Results) -> String {
    let Some(parts) = results.spread.get(PARTS) else { return String::new() };
    let times = parts.iter().filter_map(|(name, s)| Some((name.strip_suffix("_ns")?, s)));
    let body: Vec<_> =
        times.map(|(name, s)| vec![name.replace('_', " "), format!("{:.1}", s.median)]).collect();
    if body.is_empty() { String::new() } else { table(&["", "ns"], &body) }
}

/// All tables, for a terminal.
pub(crate) fn figures(results: &Results) -> String {
    let mut text = String::new();
    for section in sections() {
        let table = figures_of(results, &section.rows);
        if !table.is_empty() {
            _ = writeln!(text, "{}\n{table}", section.title);
        }
    }
    let crowds = figures_of(results, &rows::crowds());
    if !crowds.is_empty() {
        _ = writeln!(text, "Beside floods\n{crowds}");
    }
    let parts = parts(results);
    if !parts.is_empty() {
        _ = writeln!(text, "Parts of netd\n{parts}");
    }
    if crowds.is_empty() {
        _ = writeln!(text, "Required\n{}", required::required(results));
    }
    text
}

/// The page's section of what others have beside floods.
pub(crate) fn crowds(results: &Results) -> String {
    let mut warnings = String::new();
    for warning in &results.warnings {
        _ = write!(warnings, "\n- {warning}");
    }
    format!(
        "\n## Beside floods of short UDP flows\n\nWhat others reach beside a flood, as shares of what they reach without: \
         100,000 datagrams a second to a port of the pod, each from a new peer or all from one (which costs the guest's one \
         processor as much: what lies between the two is the price of a new flow), and 5,000 questions a second of the guest, \
         each from a fresh port. A share near 1 is good. The stream of 2 Gbit/s asks for less than its part of the processors, \
         and has to get it. The other three take what they can get: sender, guest and backend share the machine's processors \
         with them, so their shares fall by what the flood takes of those. A flood lasts {} s; {} rounds ({}, commit {}; `perf crowds`).{warnings}\n\n{}",
        results.settings.seconds,
        results.settings.rounds,
        results.date,
        results.commit,
        figures_of(results, &rows::crowds())
    )
}

/// The middle of the page: a section for each table.
fn tables(results: &Results) -> String {
    let plots = plots(results);
    let mut text = String::new();
    for section in sections() {
        let table = figures_of(results, &section.rows);
        if table.is_empty() {
            continue;
        }
        _ = writeln!(text, "### {}\n\n{}\n\n{table}", section.title, section.intro);
        for name in section.plots.iter().filter(|name| plots.iter().any(|(n, _)| n == *name)) {
            _ = writeln!(text, "![{}: {name}](performance/{name}.svg)\n", section.title);
        }
    }
    let parts = parts(results);
    if !parts.is_empty() {
        _ = writeln!(
            text,
            "### Parts of netd\n\nNanoseconds of one operation, alone and repeated (`netd/benches/micro.rs`): caches are \
             warm. Flow table and timers in virtual time.\n\n{parts}"
        );
    }
    text
}

/// The page docs/performance.md.
pub(crate) fn page(results: &Results) -> String {
    let machine = &results.machine;
    let settings = &results.settings;
    let mut versions = String::new();
    for (name, version) in &results.versions {
        _ = write!(versions, ", {name} {version}");
    }
    let mut disturbances = String::new();
    for warning in &results.warnings {
        _ = writeln!(disturbances, "- {warning}");
    }
    if disturbances.is_empty() {
        disturbances.push_str("None was noticed.\n");
    }
    format!(
        include_str!("page.md"),
        required = required::required(results),
        tables = tables(results),
        disturbances = disturbances,
        versions = versions,
        rounds = settings.rounds,
        date = results.date,
        commit = results.commit,
        cores = machine.cores,
        cpu = machine.cpu_model,
        memory = machine.memory_gib,
        kernel = machine.kernel,
        seconds = settings.seconds,
        warm_up = settings.warm_up_seconds,
        minutes = minutes(results),
    )
}

/// How long this measurement took, at least 1; starting the frontends takes a quarter of it.
fn minutes(results: &Results) -> u32 {
    let seconds: f64 = results.runs.iter().map(|r| r.seconds).sum();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes")]
    let minutes = (seconds * 1.3 / 60.0).ceil() as u32;
    minutes.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{of, sample};

    #[test]
    fn the_page_is_as_it_was() {
        insta::assert_snapshot!(page(&sample()));
    }

    #[test]
    fn the_page_in_docs_is_that_of_the_latest_result() {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let results = Results::read(&top.join("results/latest.json")).unwrap();
        for (path, text) in crate::files(&results, &top.join("results")).unwrap() {
            let docs = std::fs::read_to_string(&path).unwrap();
            assert_eq!(docs, text, "{}: run: perf report", path.display());
        }
    }

    #[test]
    fn only_who_was_measured_has_a_column() {
        let mut runs = sample().runs;
        assert!(!figures(&of(runs.clone())).contains("tap"));
        runs[0].peer = "tap".into();
        assert!(figures(&of(runs)).contains("| tap") || figures(&of(sample().runs)).contains("netd"));
        assert_eq!(figures_of(&of(vec![]), &sections()[0].rows), "");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let text = table(&["", "a"], &[vec!["länger".into(), "1".into()], vec!["x".into(), "100".into()]]);
        assert_eq!(text, "|        |   a |\n| ------ | --: |\n| länger |   1 |\n| x      | 100 |\n");
    }
}
