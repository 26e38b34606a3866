//! Counters, and what was dropped.

use std::time::Duration;

use podvirt_proto::netd::v1 as proto;
use serde::Serialize;

use super::table::Table;

/// One counter.
#[derive(Debug, Serialize)]
pub struct CounterRow {
    name: String,
    value: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
}

/// The rows of all counters; drops are called `dropped.REASON`.
pub fn counter_rows(c: proto::CountersResponse) -> Vec<CounterRow> {
    let row = |prefix: &str, c: proto::Counter| CounterRow {
        name: format!("{prefix}{}", c.name),
        value: c.value,
        help: c.help,
    };
    let plain = c.counters.into_iter().map(|c| row("", c));
    plain.chain(c.dropped.into_iter().map(|c| row("dropped.", c))).collect()
}

/// Counters as lines of a name, a value and a help text.
pub fn counters(rows: &[CounterRow]) -> String {
    let mut table = Table::new(&["Counter", ">Value", "Meaning"]);
    for c in rows {
        table.row([c.name.as_str(), &c.value.to_string(), &c.help]);
    }
    table.text()
}

/// What was dropped for one reason.
#[derive(Debug, Serialize)]
pub struct DropRow {
    reason: String,
    total: u64,
    /// Since the last time it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    meaning: String,
}

impl DropRow {
    /// Whether anything was dropped for this reason.
    pub fn happened(&self) -> bool {
        self.total > 0
    }
}

/// The rows of all reasons, with rates if it is known what was there some time ago.
pub fn drop_rows(
    now: &proto::CountersResponse,
    before: Option<(&proto::CountersResponse, Duration)>,
) -> Vec<DropRow> {
    let row = |c: &proto::Counter| {
        let per_second = before.and_then(|(b, elapsed)| {
            let old = b.dropped.iter().find(|o| o.name == c.name)?;
            Some(c.value.saturating_sub(old.value) as f64 / elapsed.as_secs_f64().max(1e-3))
        });
        DropRow { reason: c.name.clone(), total: c.value, per_second, meaning: c.help.clone() }
    };
    now.dropped.iter().map(row).collect()
}

/// Drops as lines of a reason, a total, a rate and a help text.
pub fn drops(rows: &[DropRow]) -> String {
    if rows.is_empty() {
        return "Nothing was dropped.\n".into();
    }
    let mut table = Table::new(&["Reason", ">Total", ">Per second", "Meaning"]);
    for d in rows {
        let rate = d.per_second.map(|r| format!("{r:.1}")).unwrap_or_default();
        table.row([d.reason.as_str(), &d.total.to_string(), &rate, &d.meaning]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_have_rates_once_they_were_seen_twice() {
        let response = |spoofed, denied| {
            let counter = |(name, value): (&str, u64)| proto::Counter {
                name: name.into(),
                help: format!("About {name}."),
                value,
            };
            let dropped = [("spoofed", spoofed), ("denied", denied)].map(counter).to_vec();
            proto::CountersResponse { counters: vec![], dropped }
        };
        let (before, now) = (response(10, 0), response(25, 0));
        let mut rows = drop_rows(&now, Some((&before, Duration::from_secs(2))));
        rows.retain(DropRow::happened);
        assert_eq!(
            drops(&rows),
            "Reason   Total  Per second  Meaning\nspoofed     25         7.5  About spoofed.\n"
        );
        assert!(drops(&drop_rows(&now, None)).contains("denied       0              About denied."));
        assert_eq!(drops(&[]), "Nothing was dropped.\n");
    }
}
