//! The regression gate of netd's inner loops: instructions counted under valgrind by `netd/benches/instructions.rs`, compared
//! with the committed `instructions.json`.
//!
//! Counts do not depend on what else the machine does. One that has grown fails, and so does one that is not in both; one
//! that has shrunk is pointed out: until it is committed, a later loss of it would go unnoticed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::report::table;

/// By how much a count may grow, as a share: allocators and hash seeds leave a little.
const TOLERANCE: f64 = 0.03;

/// Counts by the benchmark's name.
type Counts = BTreeMap<String, f64>;

/// Counts, compares and shows; with `update` writes the file anew instead of comparing.
///
/// # Errors
/// Counting fails, or a count has grown.
pub(crate) fn run(update: bool, out: &mut impl Write) -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = top.join("netd/benches/instructions.json");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| top.join("target"), PathBuf::from);
    let results = target.join("gungraun/netd/instructions");
    if results.exists() {
        // Benchmarks that are no more would be read as well.
        fs::remove_dir_all(&results)?;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut bench = Command::new(cargo);
    bench.args(["bench", "--quiet", "--locked", "--package", "netd", "--bench", "instructions"]);
    bench.args(["--", "--save-summary=json"]).current_dir(&top).stdin(Stdio::null());
    let ran = bench.output()?;
    ensure!(
        ran.status.success(),
        "netd's benchmarks: {}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    let mut counts = Counts::new();
    collect(&results, &mut counts)?;
    ensure!(!counts.is_empty(), "{}: no summary was written", results.display());
    if update {
        fs::write(&file, serde_json::to_string_pretty(&counts)? + "\n")?;
        return Ok(writeln!(out, "{} counts in {}", counts.len(), file.display())?);
    }
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let (shown, changes) = compare(&serde_json::from_str(&text)?, &counts);
    write!(out, "{shown}")?;
    let limit = TOLERANCE * 100.0;
    if !changes.better.is_empty() {
        let better = changes.better.join(", ");
        writeln!(out, "more than {limit:.0} % fewer: {better}; to keep them so: make bench UPDATE=1")?;
    }
    if !changes.worse.is_empty() {
        bail!(
            "regression: more than {limit:.0} % more instructions than committed: {}; if that is meant: make bench UPDATE=1",
            changes.worse.join(", ")
        );
    }
    if !changes.unknown.is_empty() {
        bail!("committed or counted, not both: {}; run: make bench UPDATE=1", changes.unknown.join(", "));
    }
    Ok(())
}

/// Reads every `summary.json` below a directory.
fn collect(dir: &Path, counts: &mut Counts) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, counts)?;
        } else if path.file_name().is_some_and(|n| n == "summary.json") {
            let summary: Value = serde_json::from_slice(&fs::read(&path)?)?;
            let (name, count) = counted(&summary).with_context(|| path.display().to_string())?;
            counts.insert(name, count);
        }
    }
    Ok(())
}

/// A benchmark's name and its instructions.
fn counted(summary: &Value) -> Option<(String, f64)> {
    let function = summary["function_name"].as_str()?;
    let name = match summary["id"].as_str() {
        Some(id) => format!("{function}.{id}"),
        None => function.to_owned(),
    };
    Some((name, instructions(summary)?))
}

/// The first `Ir` of the total: new counts stand left, without anything to compare with.
fn instructions(value: &Value) -> Option<f64> {
    match value {
        Value::Object(map) => match map.get("Ir") {
            Some(ir) => number(ir),
            None => map.values().find_map(instructions),
        },
        Value::Array(list) => list.iter().find_map(instructions),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::Object(map) => map.values().find_map(number),
        Value::Array(list) => list.iter().find_map(number),
        _ => None,
    }
}

/// Names of counts that are not as committed.
#[derive(Debug, Default, PartialEq)]
struct Changes {
    /// With a growth beyond the tolerance, in words.
    worse: Vec<String>,
    /// Smaller beyond the tolerance.
    better: Vec<String>,
    /// Not in both.
    unknown: Vec<String>,
}

/// The table, and what has changed.
fn compare(committed: &Counts, counts: &Counts) -> (String, Changes) {
    let mut changes = Changes::default();
    let mut body = Vec::new();
    let names: std::collections::BTreeSet<&String> = committed.keys().chain(counts.keys()).collect();
    for name in names {
        let (before, now) = (committed.get(name), counts.get(name));
        let change = match (before, now) {
            (Some(before), Some(now)) if *before > 0.0 => {
                let change = now / before - 1.0;
                let words = format!("{:+.1} %", change * 100.0);
                if change > TOLERANCE {
                    changes.worse.push(format!("{name} ({words})"));
                } else if change < -TOLERANCE {
                    changes.better.push(name.clone());
                }
                words
            }
            _ => {
                changes.unknown.push(name.clone());
                "–".into()
            }
        };
        let show = |count: Option<&f64>| count.map_or("–".into(), |c| format!("{c:.0}"));
        body.push(vec![name.clone(), show(before), show(now), change]);
    }
    (table(&["instructions", "committed", "now", "change"], &body), changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, f64)]) -> Counts {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_few_percent_more_are_a_regression_and_fewer_are_not() {
        let committed = counts(&[("a", 1000.0), ("b", 1000.0), ("c", 1000.0), ("gone", 1.0)]);
        let now = counts(&[("a", 1029.0), ("b", 1031.0), ("c", 900.0), ("new", 1.0)]);
        let (shown, changes) = compare(&committed, &now);
        assert_eq!((changes.worse, changes.better), (vec!["b (+3.1 %)".to_owned()], vec!["c".to_owned()]));
        assert_eq!(changes.unknown, ["gone", "new"]);
        assert!(shown.contains("+2.9 %") && shown.contains("-10.0 %"), "{shown}");
        assert_eq!(compare(&committed, &committed).1, Changes::default());
    }

    #[test]
    fn a_summary_has_a_name_and_a_count() {
        let text = r#"{"function_name": "f", "id": "one", "profiles": [{"summaries": {"parts": [], "total":
            {"summary": {"Callgrind": {"Ir": {"diffs": null, "metrics": {"Left": {"Int": 4711}}}}}}}}]}"#;
        let summary: Value = serde_json::from_str(text).unwrap();
        assert_eq!(counted(&summary), Some(("f.one".to_owned(), 4711.0)));
        assert_eq!(counted(&serde_json::json!({"function_name": "f"})), None);
    }
}
