//! The metrics against OpenMetrics' rules, the documentation and the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Metrics;
use crate::counters::Reason;
use crate::ctl::tests::Fake;

/// A family as its comment lines describe it.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    unit: String,
    help: String,
    labels: BTreeSet<String>,
    series: BTreeSet<String>,
}

fn families() -> BTreeMap<String, Family> {
    let text = Metrics::new(Arc::new(Fake::new()), "default/vm1").text();
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines().filter(|l| *l != "# EOF") {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.splitn(3, ' ');
            let (what, name, value) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            last = name.to_owned();
            let family = families.entry(last.clone()).or_default();
            match what {
                "TYPE" => family.kind = value.to_owned(),
                "UNIT" => family.unit = value.to_owned(),
                "HELP" => family.help = value.to_owned(),
                other => panic!("{other}"),
            }
            continue;
        }
        let (series, _value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let family = families.get_mut(&last).unwrap();
        family.series.insert(name.to_owned());
        for label in labels.split(',').filter_map(|l| l.split_once('=')) {
            family.labels.insert(label.0.to_owned());
        }
    }
    families
}

#[test]
fn every_metric_has_a_help_a_unit_in_its_name_and_the_suffix_of_its_kind() {
    for (name, f) in families() {
        assert!(f.help.ends_with('.') && f.help.len() > 10, "{name}: {}", f.help);
        for unit in ["bytes", "seconds"] {
            assert_eq!(name.ends_with(&format!("_{unit}")), f.unit == unit, "{name}: {}", f.unit);
            // OpenMetrics: the unit is the last word of the family's name.
            assert!(!name.contains(&format!("_{unit}_")), "{name}");
        }
        assert!(!["milli", "micro", "_ms", "_us", "kib"].iter().any(|w| name.contains(w)), "{name}");
        let expected: &[&str] = match f.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => panic!("{name} is a {other}"),
        };
        let expected: BTreeSet<String> = expected.iter().map(|s| format!("{name}{s}")).collect();
        assert_eq!(f.series, expected);
    }
}

#[test]
fn a_histogram_ends_with_everything() {
    let fake = Fake::new();
    fake.counters.tcp_connect.observe(std::time::Duration::from_millis(3));
    let text = Metrics::new(Arc::new(fake), "").text();
    for line in [
        "netd_tcp_connect_seconds_bucket{le=\"0.002\"} 0",
        "netd_tcp_connect_seconds_bucket{le=\"0.005\"} 1",
        "netd_tcp_connect_seconds_bucket{le=\"+Inf\"} 1",
        "netd_tcp_connect_seconds_count 1",
        "netd_tcp_connect_seconds_sum 0.003",
        "netd_guest_info{name=\"\"} 1",
        "netd_tcp_connections{state=\"ESTABLISHED\"} 2",
        "netd_tcp_connections{state=\"LAST-ACK\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares, or writes, what stands between two marks of the documentation.
fn check_documented(mark: &str, table: &str) {
    let path = project("docs/netd-observability.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark}: written by a test -->\n"), format!("<!-- /{mark} -->"));
    let start = text.find(&begin).unwrap() + begin.len();
    let stop = start + text[start..].find(&end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [&text[..start], table, &text[stop..]].concat()).unwrap();
        return;
    }
    let stale = "docs/netd-observability.md is stale: UPDATE_DOCS=1 cargo test -p netd documented -- --test-threads 1";
    assert!(&text[start..stop] == table, "{stale}\n{table}");
}

#[test]
fn metrics_and_reasons_are_documented() {
    let mut table = "| metric | kind | meaning |\n|---|---|---|\n".to_owned();
    for (name, f) in families() {
        let labels: Vec<&str> = f.labels.iter().map(String::as_str).filter(|l| *l != "le").collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let name = match f.kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name,
        };
        writeln!(table, "| `{name}{labels}` | {} | {} |", f.kind, f.help).unwrap();
    }
    check_documented("metrics", &table);
    let mut table = "| reason | what was not carried |\n|---|---|\n".to_owned();
    for reason in Reason::ALL {
        writeln!(table, "| `{}` | {} |", reason.label(), reason.help()).unwrap();
    }
    check_documented("reasons", &table);
}

#[test]
fn the_dashboard_shows_metrics_that_exist_from_a_source_that_can_be_chosen() {
    let text = std::fs::read_to_string(project("deploy/grafana/netd.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let known: BTreeSet<String> = families().into_values().flat_map(|f| f.series).collect();
    let labels: BTreeSet<String> = families().into_values().flat_map(|f| f.labels).collect();
    let mut expressions = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have the same id");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            expressions.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|v| v["name"] == "datasource" && v["type"] == "datasource"));
    expressions.extend(variables.iter().filter_map(|v| v["query"]["query"].as_str().map(str::to_owned)));
    let mut used = BTreeSet::new();
    for expression in &expressions {
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let names = expression.split(word).filter(|w| w.starts_with("netd_") || w.starts_with("process_"));
        let mut any = false;
        for name in names {
            any = true;
            assert!(known.contains(name), "{name} in {expression} does not exist");
            used.insert(name.to_owned());
        }
        assert!(any, "{expression}");
        for by in expression.split(" by (").skip(1) {
            for label in by.split(')').next().unwrap().split(',').map(str::trim) {
                let of_scrape = ["namespace", "pod", "instance"].contains(&label);
                assert!(of_scrape || labels.contains(label), "{label} in {expression} does not exist");
            }
        }
    }
    assert!(used.len() > 25, "{used:?}");
}
