//! iperf3's JSON report, as far as it is used.
//!
//! The receiver's report says what arrived. Intervals of the warm-up are
//! in it too, marked as omitted: they do not count for the throughput but their bytes cost CPU time like any others.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One end's report.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Report {
    #[serde(default)]
    intervals: Vec<Interval>,
    error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Interval {
    sum: Sum,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Sum {
    seconds: f64,
    bytes: f64,
    #[serde(default)]
    omitted: bool,
    /// Datagrams that came, and those that should have come between them; a UDP receiver tells.
    packets: Option<f64>,
    lost_packets: Option<f64>,
}

/// A tick's worth of an interval at the end of the test says nothing about the rate.
const SHORTEST_SECONDS: f64 = 0.1;

impl Report {
    /// Reads what `iperf3 --json` printed.
    ///
    /// # Errors
    /// It is not a report, or it reports that the test failed.
    pub(crate) fn parse(text: &str) -> Result<Report> {
        // A warning, such as one of datagrams larger than a segment, may stand in front.
        let json = text.find('{').map_or(text, |at| &text[at..]);
        let report: Report =
            serde_json::from_str(json).with_context(|| format!("not iperf3's report: {text}"))?;
        if let Some(error) = &report.error {
            bail!("iperf3: {error}");
        }
        Ok(report)
    }

    /// The server's own report, which a client prints that was told `--json --get-server-output`, of a server with `--json`.
    ///
    /// # Errors
    /// It is not in there, or one of the two reports that the test failed.
    pub(crate) fn of_server(text: &str) -> Result<Report> {
        Report::parse(text)?;
        let json = text.find('{').map_or(text, |at| &text[at..]);
        let mut all: serde_json::Value = serde_json::from_str(json)?;
        let server = all.get_mut("server_output_json").context("iperf3 has no report of its server")?;
        let report: Report = serde_json::from_value(server.take())?;
        if let Some(error) = &report.error {
            bail!("iperf3's server: {error}");
        }
        Ok(report)
    }

    fn measured(&self) -> impl Iterator<Item = &Sum> {
        self.intervals.iter().map(|i| &i.sum).filter(|s| !s.omitted)
    }

    /// Throughput after the warm-up in Gbit/s.
    ///
    /// # Errors
    /// Nothing was measured.
    pub(crate) fn gbits(&self) -> Result<f64> {
        let seconds: f64 = self.measured().map(|s| s.seconds).sum();
        let bytes: f64 = self.measured().map(|s| s.bytes).sum();
        if seconds <= 0.0 || bytes <= 0.0 {
            bail!("iperf3 moved nothing after the warm-up");
        }
        Ok(bytes * 8.0 / seconds / 1e9)
    }

    /// Throughput of each interval after the warm-up in Gbit/s: a stall shows here.
    pub(crate) fn course(&self) -> Vec<f64> {
        self.measured()
            .filter(|s| s.seconds > SHORTEST_SECONDS)
            .map(|s| s.bytes * 8.0 / s.seconds / 1e9)
            .collect()
    }

    /// All bytes, those of the warm-up too, in GB of 10^9 bytes.
    pub(crate) fn gigabytes(&self) -> f64 {
        self.intervals.iter().map(|i| i.sum.bytes).sum::<f64>() / 1e9
    }

    /// Datagrams a second after the warm-up, and the share (0 to 1) of those sent that did not come, as the receiver
    /// tells.
    ///
    /// # Errors
    /// It is no receiver's report of datagrams, or none came.
    pub(crate) fn datagrams(&self) -> Result<(f64, f64)> {
        let sum = |value: fn(&Sum) -> Option<f64>| self.measured().filter_map(value).sum::<f64>();
        let (seconds, packets, lost) =
            (sum(|s| Some(s.seconds)), sum(|s| s.packets), sum(|s| s.lost_packets));
        if seconds <= 0.0 || packets <= 0.0 {
            bail!("iperf3 received no datagram after the warm-up");
        }
        // The receiver counts all numbers up to the last that came, the lost ones too.
        Ok(((packets - lost).max(0.0) / seconds, lost.max(0.0) / packets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{
        "start": {"version": "iperf 3.18"},
        "intervals": [
            {"streams": [], "sum": {"start": 0, "end": 1, "seconds": 1.0, "bytes": 1000000000, "omitted": true}},
            {"streams": [], "sum": {"start": 0, "end": 1, "seconds": 1.0, "bytes": 500000000, "omitted": false}},
            {"streams": [], "sum": {"start": 1, "end": 2, "seconds": 1.0, "bytes": 250000000, "omitted": false}},
            {"streams": [], "sum": {"start": 2, "end": 2, "seconds": 0.001, "bytes": 0, "omitted": false}}
        ],
        "end": {"sum_sent": {"bytes": 750000000, "retransmits": 7}}
    }"#;

    #[test]
    fn the_warm_up_costs_but_does_not_count() {
        let report = Report::parse(REPORT).unwrap();
        assert!((report.gbits().unwrap() - 6.0 / 2.001).abs() < 1e-9);
        assert!((report.gigabytes() - 1.75).abs() < 1e-9);
        assert_eq!(report.course(), [4.0, 2.0]);
        assert!(report.datagrams().is_err());
    }

    #[test]
    fn a_warning_in_front_of_a_report_is_passed_over() {
        let text = format!("warning: UDP block size 8972 exceeds TCP MSS 8960\n{REPORT}");
        assert_eq!(Report::parse(&text).unwrap(), Report::parse(REPORT).unwrap());
        assert!(Report::parse("warning: alone").unwrap_err().to_string().contains("warning: alone"));
    }

    #[test]
    fn lost_datagrams_are_those_that_were_numbered_and_did_not_come() {
        let sum = r#"{"sum": {"seconds": 2.0, "bytes": 640, "packets": 100, "lost_packets": 20, "omitted": OMITTED}}"#;
        let intervals = [sum.replace("OMITTED", "true"), sum.replace("OMITTED", "false")].join(",");
        let report = Report::parse(&format!(r#"{{"intervals": [{intervals}], "end": {{}}}}"#)).unwrap();
        assert_eq!(report.datagrams().unwrap(), (40.0, 0.2));
    }

    #[test]
    fn a_servers_report_is_inside_of_its_clients() {
        let text = format!(r#"{{"intervals": [], "end": {{}}, "server_output_json": {REPORT}}}"#);
        assert_eq!(Report::of_server(&text).unwrap(), Report::parse(REPORT).unwrap());
        assert!(Report::of_server(REPORT).unwrap_err().to_string().contains("no report of its server"));
        let busy = r#"{"intervals": [], "error": "the server is busy running a test. try again later"}"#;
        assert!(Report::of_server(busy).unwrap_err().to_string().contains("busy"));
    }

    #[test]
    fn a_failed_test_is_an_error() {
        let text = r#"{"start": {}, "intervals": [], "end": {}, "error": "unable to connect"}"#;
        assert!(Report::parse(text).unwrap_err().to_string().contains("unable to connect"));
        assert!(Report::parse("iperf3: not found").is_err());
    }

    #[test]
    fn a_test_that_moved_nothing_has_no_throughput() {
        assert!(Report::parse(r#"{"intervals": [], "end": {}}"#).unwrap().gbits().is_err());
    }
}
