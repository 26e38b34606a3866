//! Two results side by side.

use std::collections::BTreeSet;

use crate::report::{cell, sections, table};
use crate::results::{PARTS, Results};
use crate::stats::Summary;

/// Every figure that both results have, what became of it, and whether their ranges are apart.
pub(crate) fn compare(a: &Results, b: &Results) -> String {
    let mut text = String::new();
    if a.machine != b.machine {
        text.push_str("The machines differ: only ratios can be compared.\n\n");
    }
    let mut body = Vec::new();
    let backends: BTreeSet<&String> = a.spread.keys().chain(b.spread.keys()).collect();
    let rows: Vec<_> =
        sections().into_iter().flat_map(|s| s.rows.into_iter().map(move |r| (s.title, r))).collect();
    for backend in backends {
        for (title, row) in &rows {
            let digits = if backend == "ratios" { 2 } else { row.digits };
            let (Some(before), Some(after)) =
                (a.summary(backend, &row.figure), b.summary(backend, &row.figure))
            else {
                continue;
            };
            let cells = [cell(Some(before), digits), cell(Some(after), digits), change(&before, &after)];
            let label = format!("{backend}: {title}: {}", row.label);
            body.push([label].into_iter().chain(cells).collect());
        }
        if backend == PARTS {
            for (name, before) in a.spread.get(backend).into_iter().flatten() {
                let Some(after) = b.summary(backend, name) else { continue };
                let cells = [cell(Some(*before), 2), cell(Some(after), 2), change(before, &after)];
                body.push([format!("{PARTS}: {name}")].into_iter().chain(cells).collect());
            }
        }
    }
    text.push_str(&table(&["", &a.commit, &b.commit, "change"], &body));
    text.push_str("\n* the ranges do not overlap\n");
    text
}

fn change(before: &Summary, after: &Summary) -> String {
    if before.median == 0.0 {
        return "–".into();
    }
    let mark = if before.is_apart_from(after) { '*' } else { ' ' };
    format!("{:+.0} % {mark}", (after.median / before.median - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{of, sample};

    #[test]
    fn a_change_beyond_the_ranges_is_marked() {
        let a = sample();
        let mut runs = sample().runs;
        for run in runs.iter_mut().filter(|r| r.peer == "netd") {
            run.figures.insert("idle_rss_mib".into(), 6.0);
        }
        let b = Results { commit: "ba9876543210".into(), ..of(runs) };
        insta::assert_snapshot!(compare(&a, &b));
    }

    #[test]
    fn other_machines_are_pointed_out() {
        let a = sample();
        let mut b = sample();
        b.machine.cores = 64;
        assert!(compare(&a, &b).starts_with("The machines differ"));
        assert!(compare(&a, &a).starts_with('|'));
    }
}
