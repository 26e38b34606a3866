//! Results as a person reads them: a table, and the page docs/performance.md.

use std::fmt::Write as _;

use crate::results::{NETD, PASST, Results};
use crate::stats::Summary;

/// Quantities in the order of the report: the beginning of the figure's name, what it is called, and digits after the
/// point. Those that end in `_` are followed by the MTU.
const QUANTITIES: [(&str, &str, usize); 13] = [
    ("tcp_g2h_", "guest → host, Gbit/s", 2),
    ("tcp_h2g_", "host → guest, Gbit/s", 2),
    ("cpu_per_gb_g2h_", "guest → host, backend CPU s/GB", 3),
    ("cpu_per_gb_h2g_", "host → guest, backend CPU s/GB", 3),
    ("user_per_gb_g2h_", "… of it in user space, guest → host", 3),
    ("user_per_gb_h2g_", "… of it in user space, host → guest", 3),
    ("guest_per_gb_g2h_", "guest → host, guest CPU s/GB", 3),
    ("guest_per_gb_h2g_", "host → guest, guest CPU s/GB", 3),
    ("rtt_us_", "TCP round trip, median, µs", 0),
    ("rtt_p99_us_", "TCP round trip, 99th percentile, µs", 0),
    ("idle_rss_mib", "idle, resident memory, MiB", 1),
    ("idle_private_mib", "… of it heap and stacks, MiB", 1),
    ("boot_seconds", "boot of the guest until it has an address, s", 2),
];

/// A figure's name, what it is called, and digits after the point.
pub(crate) struct Row {
    /// As in results.
    pub(crate) figure: String,
    /// For people.
    pub(crate) label: String,
    /// Digits after the point.
    pub(crate) digits: usize,
}

/// The figures a result has, in the order of the report.
pub(crate) fn rows(results: &Results) -> Vec<Row> {
    let mut mtus: Vec<u16> = results.runs.iter().map(|r| r.mtu).collect();
    mtus.sort_unstable();
    mtus.dedup();
    let mut rows = Vec::new();
    let mut push = |figure: String, label: String, digits| {
        if [NETD, PASST].iter().any(|b| results.summary(b, &figure).is_some()) {
            rows.push(Row { figure, label, digits });
        }
    };
    for mtu in &mtus {
        for (name, label, digits) in QUANTITIES.iter().filter(|(name, ..)| name.ends_with('_')) {
            let suffix = if mtus.len() > 1 { format!(" (MTU {mtu})") } else { String::new() };
            push(format!("{name}{mtu}"), format!("{label}{suffix}"), *digits);
        }
    }
    for (name, label, digits) in QUANTITIES.iter().filter(|(name, ..)| !name.ends_with('_')) {
        push((*name).to_owned(), (*label).to_owned(), *digits);
    }
    rows
}

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

/// The figures of a result: each backend's median and range, and netd's ratio to passt.
pub(crate) fn figures(results: &Results) -> String {
    let line = |row: Row| {
        let mut cells = vec![row.label];
        cells.extend([NETD, PASST].map(|b| cell(results.summary(b, &row.figure), row.digits)));
        cells.push(cell(results.summary("ratios", &row.figure), 2));
        cells
    };
    let body: Vec<_> = rows(results).into_iter().map(line).collect();
    table(&["", NETD, PASST, "netd / passt"], &body)
}

/// The page docs/performance.md.
pub(crate) fn page(results: &Results) -> String {
    let machine = &results.machine;
    let length = &results.settings.length;
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
        "\
# Performance

This page is written by `make perf` from `perf/results/latest.json`, which also has every single run.

netd is measured beside passt in vhost-user mode, the established program for the same task, in the same run: what
counts is the ratio. Absolute figures belong to one machine on one day.

## Result

Median and, in parentheses, range of {repeats} rounds; 1 GB is 10⁹ bytes. For throughput a ratio above 1 is good, for
everything else one below 1.

{figures}
Measured {date} at commit {commit} on {cores} × {cpu}, {memory} GiB, Linux {kernel}{versions}.

## How it is measured

- The pod is a network namespace with a veth pair to the client's; each backend runs in it as a container of a
  restricted pod: uid 107, no capability, the system call filter of RuntimeDefault (passt's also lets it make its
  user namespace). Congestion control is Reno on both sides: BBR stalls now and then on so short a link.
- The guest is a Linux with one processor and one queue pair under User Mode Linux, which connects to the vhost-user
  socket like QEMU. It needs no KVM and is fast enough to let the backend be the bottleneck, or a large part of it.
- Each round boots a fresh guest on a fresh backend, once for each of them, one after the other; every round begins
  with another backend. A ratio is taken within each round; its median over the rounds is reported.
- Throughput is one TCP stream of iperf3 over IPv4, {seconds} s after {warm_up} s of warm-up, as the receiver counts
  it. The guest connects in both directions of the payload.
- CPU time is user and system time of all threads of the backend, from before iperf3's start until after its end,
  divided by all bytes received in that time. On a veth pair the receiver's protocol work is done in the sender's
  system call: guest → host, part of the host's work is charged to the backend, for both backends alike.
- A round trip is one byte to an echo in the guest and back over one TCP connection.
- Memory is the backend's resident set when the guest is up and before any payload. It includes the pages of the guest's
  memory that the backend touched, and program text.

## What to keep in mind

- User Mode Linux is not QEMU with KVM: its kicks and interrupts are system calls, its copies are slower, and a round trip
  includes its scheduling. Figures of QEMU will differ; with more processors, backend and guest disturb each other less.
- passt does not offer checksum and segmentation offload on vhost-user; netd does. At an MTU of 1500 bytes this is much of
  the difference, and it is the guest that saves most: see its own CPU time.
- Processors are shared with whatever else the machine does. Before each run the runner waits for a while until it is
  quiet, and time that belongs to neither backend, guest nor iperf3 is recorded: see below. Kernel threads count as
  others, so a little of it is always there.

## Disturbances in this result

{disturbances}
## Doing it again

`make perf` runs everything, replaces `perf/results/latest.json` and this page, and takes {minutes} minutes. `perf run
--quick` is one short round, prints its table and leaves both alone. `perf compare A B` puts two result files side
by side and marks figures whose ranges do not overlap.
",
        repeats = results.settings.repeats,
        figures = figures(results),
        date = results.date,
        commit = results.commit,
        cores = machine.cores,
        cpu = machine.cpu_model,
        memory = machine.memory_gib,
        kernel = machine.kernel,
        seconds = length.seconds,
        warm_up = length.warm_up_seconds,
        minutes = minutes(results),
    )
}

/// How long such a measurement takes when nothing disturbs it, at least 1.
fn minutes(results: &Results) -> u32 {
    let bulk = results.settings.length.seconds + results.settings.length.warm_up_seconds;
    // Boot, idle, round trips.
    let each = 2 * bulk + 5;
    u32::try_from(results.runs.len()).unwrap_or(u32::MAX).saturating_mul(each).div_ceil(60).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn the_page_is_as_it_was() {
        insta::assert_snapshot!(page(&sample()));
    }

    #[test]
    fn the_page_in_docs_is_that_of_the_latest_result() {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let results = Results::read(&top.join("results/latest.json")).unwrap();
        let docs = std::fs::read_to_string(top.join("../docs/performance.md")).unwrap();
        let page = crate::page(&results, &top.join("results")).unwrap();
        assert_eq!(docs, page, "run: perf report");
    }

    #[test]
    fn each_mtu_has_rows_of_its_own() {
        let mut results = sample();
        results.runs[0].mtu = 9000;
        let sample = sample();
        let results = Results::new(
            (sample.date, sample.commit),
            sample.settings,
            sample.machine,
            sample.versions,
            results.runs,
        );
        let rows = rows(&results);
        let has = |label: &str| rows.iter().any(|r| r.label == label);
        assert!(has("guest → host, Gbit/s (MTU 1500)") && has("guest → host, Gbit/s (MTU 9000)"));
        assert_eq!(rows.iter().filter(|r| r.figure == "idle_rss_mib").count(), 1);
    }

    #[test]
    fn columns_stand_below_each_other() {
        let text = table(&["", "a"], &[vec!["länger".into(), "1".into()], vec!["x".into(), "100".into()]]);
        assert_eq!(text, "|        |   a |\n| ------ | --: |\n| länger |   1 |\n| x      | 100 |\n");
    }
}
