//! What is measured of a subject in its turn.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podvirt_e2e::until;

use super::subjects::{AGENT, BULK, ECHO, End, GUEST_MIB, Peer, Subject};
use crate::bed::{number, parse};
use crate::iperf::Report;
use crate::sides::Way;

/// Beyond what a measurement takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where an end keeps iperf3's report until nothing is counted any more.
const REPORT: &str = "/tmp/report";

/// How long things are measured, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Bulk, after its warm-up.
    pub(super) bulk: u32,
    /// Its warm-up.
    pub(super) warm_up: u32,
    /// Anything of which there are hundreds in a second.
    pub(super) short: f64,
}

/// The figures of one turn, and the processors that were kept busy by other things than pods and this program.
///
/// # Errors
/// Something fails; `figures` has what was found before.
pub(super) fn turn<'n>(
    subject: &mut Subject<'n>,
    peer: &mut Peer<'n>,
    pace: Pace,
    figures: &mut BTreeMap<String, f64>,
) -> Result<f64> {
    let proxied = subject.proxied()?;
    let (before, peers) = (subject.cgroups.sample()?, peer.cgroups.sample()?);
    for way in [Way::Out, Way::In] {
        bulk(subject, peer, way, pace, figures).with_context(|| format!("bulk, {}", way.key()))?;
        transactions(subject, peer, way, pace, figures)
            .with_context(|| format!("transactions, {}", way.key()))?;
    }
    let (used, others) = (subject.cgroups.since(&before)?, peer.cgroups.since(&peers)?);
    memory(subject, figures)?;
    if let (Some(before), Some(now)) = (proxied, subject.proxied()?) {
        let [inwards, outwards] = [now[0] - before[0], now[1] - before[1]];
        // iperf3 has two connections each way, an echo one, and then there are those that are opened and closed.
        ensure!(inwards > 4 && outwards > 4, "past the proxy: {inwards} inwards and {outwards} outwards");
    }
    Ok(((used.machine - used.node - others.node - used.own) / used.wall).max(0.0))
}

/// The end that opens connections, and where it finds the other.
fn ends<'e, 'n>(subject: &'e mut Subject<'n>, peer: &'e mut Peer<'n>, way: Way) -> (&'e mut End<'n>, IpAddr) {
    match way {
        Way::Out => (&mut subject.end, peer.address),
        Way::In => (&mut peer.end, subject.address),
    }
}

/// One stream by iperf3, as the receiver counts it, and what it costs.
fn bulk<'n>(
    subject: &mut Subject<'n>,
    peer: &mut Peer<'n>,
    way: Way,
    pace: Pace,
    figures: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let Pace { bulk: seconds, warm_up, .. } = pace;
    let limit = Duration::from_secs((seconds + warm_up).into()) + TIMEOUT;
    let cgroups = subject.cgroups.clone();
    let (end, to) = ends(subject, peer, way);
    // Its failure is in the report.
    let command = format!(
        "iperf3 --client {to} --port {BULK} --json --get-server-output --time {seconds} --omit {warm_up} >{REPORT} 2>&1 || true"
    );
    let (report, used) = until("iperf3's report", TIMEOUT, || {
        let before = cgroups.sample()?;
        end.sh(&command, limit)?;
        // To print it costs a guest time, too.
        let used = cgroups.since(&before)?;
        let text = end.sh(&format!("cat {REPORT}"), limit)?;
        match Report::of_server(&text) {
            // The server is still ending with the one before.
            Err(error) if error.to_string().contains("busy") => Ok(None),
            report => Ok(Some((report?, used))),
        }
    })?;
    let way = way.key();
    figures.insert(format!("{way}_gbits"), report.gbits()?);
    let mut cost = |of: &str, seconds: f64| {
        figures.insert(format!("{way}_{of}_cpu"), seconds / report.gigabytes());
    };
    cost("pod", used.pod);
    cost("machine", used.machine);
    for (container, seconds) in &used.containers {
        cost(container, *seconds);
    }
    Ok(())
}

/// One byte there and back, over one connection and over a connection each, by perf-agent.
fn transactions<'n>(
    subject: &mut Subject<'n>,
    peer: &mut Peer<'n>,
    way: Way,
    pace: Pace,
    figures: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let (end, to) = ends(subject, peer, way);
    let (to, way, seconds) = (SocketAddr::new(to, ECHO), way.key(), pace.short);
    let limit = Duration::from_secs_f64(seconds) + TIMEOUT;
    for (quantity, words) in
        [("rr", format!("rr {to} {seconds} 1")), ("connect", format!("crr {to} {seconds}"))]
    {
        let answer = parse(&end.sh(&format!("{AGENT} {words}"), limit)?)?;
        let mut put = |name: &str, value| figures.insert(format!("{way}_{quantity}_{name}"), value);
        put("per_second", number(&answer, "per_second")?);
        put("p50", number(&answer, "p50")?);
        put("p99", number(&answer, "p99")?);
        ensure!(number(&answer, "failed")? < 1.0, "some of {quantity} failed: {answer}");
    }
    Ok(())
}

/// Memory of its pod beyond the guest's, when it has carried all of that.
fn memory(subject: &Subject<'_>, figures: &mut BTreeMap<String, f64>) -> Result<()> {
    let memory = subject.cgroups.memory(GUEST_MIB)?;
    figures.insert("pod_mib".into(), memory.pod);
    figures.extend(memory.containers.into_iter().map(|(name, mib)| (format!("{name}_mib"), mib)));
    Ok(())
}
