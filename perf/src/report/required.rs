//! What is required of netd and what is aimed at, and whether a result reaches it.

use super::table;
use crate::results::{NETD, PARTS, Results, TO_PASST, TO_PLAIN};

/// Where a required figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// netd's divided by passt's.
    Ratio,
    /// netd's divided by that of the pod without a guest.
    Plain,
    /// Among the absolute figures.
    Absolute,
    /// netd's median.
    Netd,
    /// The median of a part of netd.
    Part,
}

/// A figure with its limits.
struct Requirement {
    label: &'static str,
    of: Of,
    figure: &'static str,
    /// Whether more is better.
    least: bool,
    required: f64,
    aim: f64,
}

const fn requirement(
    label: &'static str,
    of: Of,
    figure: &'static str,
    least: bool,
    [required, aim]: [f64; 2],
) -> Requirement {
    Requirement { label, of, figure, least, required, aim }
}

/// Of round trips, the limit and the aim.
const RTT: [f64; 2] = [0.95, 0.7];

const REQUIREMENTS: [Requirement; 29] = [
    requirement("guest → host at MTU 1500 ÷ passt", Of::Ratio, "tcp_g2h_1500", true, [3.5, 3.5]),
    requirement("guest → host at MTU 1500 ÷ plain", Of::Plain, "tcp_g2h_1500", true, [0.9, 1.2]),
    requirement("host → guest at MTU 1500 ÷ passt", Of::Ratio, "tcp_h2g_1500", true, [1.5, 2.0]),
    requirement("host → guest at MTU 1500, 4 streams, ÷ passt", Of::Ratio, "tcp4_h2g_1500", true, [1.5, 2.0]),
    requirement("guest → host at MTU 65520 ÷ passt", Of::Ratio, "tcp_g2h_65520", true, [1.2, 1.5]),
    requirement("host → guest at MTU 65520 ÷ passt", Of::Ratio, "tcp_h2g_65520", true, [1.1, 1.3]),
    requirement("CPU s/GB, guest → host, ÷ passt", Of::Ratio, "cpu_per_gb_g2h_1500", false, [0.55, 0.4]),
    requirement("CPU s/GB, host → guest, ÷ passt", Of::Ratio, "cpu_per_gb_h2g_1500", false, [0.6, 0.45]),
    requirement(
        "CPU s/GB, host → guest at MTU 65520, ÷ passt",
        Of::Ratio,
        "cpu_per_gb_h2g_65520",
        false,
        [0.9, 0.7],
    ),
    requirement("share in user space, guest → host", Of::Netd, "user_share_g2h_1500", false, [0.06, 0.05]),
    requirement("share in user space, host → guest", Of::Netd, "user_share_h2g_1500", false, [0.06, 0.05]),
    requirement("UDP echo, packets a second ÷ passt", Of::Ratio, "udp_echo_pps", true, [3.0, 10.0]),
    requirement("UDP echo, median round trip ÷ passt", Of::Ratio, "udp_echo_rtt_p50", false, [1.0, 0.7]),
    requirement(
        "datagrams of 1400 bytes, guest → host, ÷ passt",
        Of::Ratio,
        "udp_g2h_1400_pps",
        true,
        [1.0, 1.5],
    ),
    requirement("TCP round trip, median, worse direction, ÷ passt", Of::Ratio, "tcp_rr_p50", false, RTT),
    requirement("… 99th percentile", Of::Ratio, "tcp_rr_p99", false, RTT),
    requirement(
        "datagram's round trip, median, worse direction, ÷ passt",
        Of::Ratio,
        "udp_rr_p50",
        false,
        RTT,
    ),
    requirement("connections a second, worse direction, ÷ passt", Of::Ratio, "tcp_crr", true, [1.3, 2.0]),
    requirement("opening connections, 18,000 ÷ 1,000", Of::Netd, "flows_setup_slope", true, [0.95, 0.95]),
    requirement("guest → host beside 18,000 ÷ 1,000", Of::Netd, "flows_tcp_g2h_slope", true, [0.9, 0.9]),
    requirement("host → guest beside 18,000 ÷ 1,000", Of::Netd, "flows_tcp_h2g_slope", true, [0.9, 0.9]),
    requirement("table look-up, 131k ÷ 1k flows", Of::Part, "flow_find_slope", false, [4.0, 2.0]),
    requirement("two queue pairs ÷ one, datagrams taken", Of::Netd, "pairs_udp_scale", true, [1.6, 1.9]),
    requirement(
        "live update beside 1,000 connections, median pause, ms",
        Of::Netd,
        "update_pause_ms_1000",
        false,
        [10.0, 5.0],
    ),
    requirement("bytes of netd for a flow", Of::Absolute, "bytes_per_flow", false, [1024.0, 512.0]),
    requirement("idle, resident MiB", Of::Absolute, "idle_rss_mib", false, [6.0, 5.0]),
    requirement("idle, wake-ups in 10 s", Of::Netd, "idle_wakeups_per_10s", false, [0.0, 0.0]),
    requirement("all ports open, MiB", Of::Absolute, "all_ports_mib", false, [1.0, 0.0977]),
    requirement("ring: pop and push, ns", Of::Absolute, "ring_pop_push_ns", false, [30.0, 10.0]),
];

/// Digits that tell a figure from its limit.
fn digits(limit: f64) -> usize {
    if limit >= 30.0 { 0 } else { 2 }
}

/// The table of required figures.
pub(crate) fn required(results: &Results) -> String {
    let body: Vec<Vec<String>> = REQUIREMENTS.iter().map(|r| line(results, r)).collect();
    table(&["", "required", "aim", "measured", "range", "reached"], &body)
}

fn line(results: &Results, r: &Requirement) -> Vec<String> {
    let (value, range) = match r.of {
        Of::Ratio => (results.ratios.get(r.figure).copied(), results.summary(TO_PASST, r.figure)),
        Of::Plain => (results.median(TO_PLAIN, r.figure), results.summary(TO_PLAIN, r.figure)),
        Of::Absolute => (results.absolute.get(r.figure).copied(), None),
        Of::Netd => (results.median(NETD, r.figure), results.summary(NETD, r.figure)),
        Of::Part => (results.median(PARTS, r.figure), None),
    };
    let digits = digits(r.required);
    let (sign, reaches): (&str, fn(f64, f64) -> bool) =
        if r.least { ("≥", |v, l| v >= l) } else { ("≤", |v, l| v <= l) };
    let verdict = match value {
        None => "not measured",
        Some(v) if reaches(v, r.aim) => "aim",
        Some(v) if reaches(v, r.required) => "yes",
        Some(_) => "**no**",
    };
    vec![
        r.label.into(),
        format!("{sign} {:.digits$}", r.required),
        format!("{sign} {:.digits$}", r.aim),
        value.map_or("–".into(), |v| format!("{v:.digits$}")),
        range.map_or("–".into(), |s| format!("{:.digits$}–{:.digits$}", s.min, s.max)),
        verdict.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{of, sample};

    #[test]
    fn each_figure_is_judged_by_its_own_limits() {
        let text = required(&sample());
        let verdict = |label: &str| {
            let line = text.lines().find(|l| l.contains(label)).unwrap();
            line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap().trim().to_owned()
        };
        // Twice as fast: short of 2.2, beyond 1.7.
        assert_eq!(verdict("guest → host at MTU 1500"), "**no**");
        assert_eq!(verdict("host → guest at MTU 1500"), "aim");
        assert_eq!(verdict("CPU s/GB, guest → host"), "yes");
        assert_eq!(verdict("guest → host at MTU 65520"), "not measured");
        assert_eq!(verdict("bytes of netd"), "yes");
        assert_eq!(verdict("ring: pop and push"), "aim");
    }

    #[test]
    fn every_figure_of_the_result_has_its_limits() {
        for figure in crate::results::RATIOS {
            assert!(REQUIREMENTS.iter().any(|r| r.of == Of::Ratio && r.figure == figure), "{figure}");
        }
        for (figure, ..) in crate::results::ABSOLUTE {
            assert!(REQUIREMENTS.iter().any(|r| r.of == Of::Absolute && r.figure == figure), "{figure}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_reached() {
        let empty = of(vec![]);
        assert_eq!(required(&empty).matches("not measured").count(), REQUIREMENTS.len());
    }
}
