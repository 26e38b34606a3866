//! Many machines of one node at once: what they carry together to a pod of the other node and from it, how evenly, and what each
//! of them costs.
//!
//! # Theory of operation
//!
//! ```text
//!   node 1                            node 2
//!   machine 0 ── port 5201 ──┐
//!   machine 1 ── port 5202 ──┼── a pod with an iperf3 server for each
//!   ...                      ┘
//! ```
//!
//! Machines are added until there are as many as a level wants. All of a level first do nothing for a while, then all send at
//! once, then all receive at once; iperf3's reports are read when the last of them has ended. What a machine costs is what
//! the kernel accounts to its pod's cgroups ([`crate::cgroups`]).

mod record;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, ClientPod, Cluster, Manifest, Namespace, Running, Security};

use crate::cgroups::{Cgroups, Used};
use crate::iperf::Report;
use crate::machine::{self, Machine};
use crate::sides::{Run, Way};
use crate::stats::Summary;
pub(crate) use record::Scale;

/// The port of the first machine's iperf3 server; each machine has the next.
const PORT: u16 = 5201;
/// Memory of a machine in MiB.
const GUEST_MIB: u64 = 128;
/// Where a guest keeps iperf3's report until nothing is counted any more.
const REPORT: &str = "/tmp/report";
/// Beyond what a measurement takes: all guests share few processors.
const TIMEOUT: Duration = Duration::from_secs(120);
/// From the last machine's start until idle machines are measured: guests still have something to do right after their boot.
const CALM: Duration = Duration::from_secs(10);
/// netd's container.
const NETD: &str = "netd";

/// How long, how often and how many.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// How many machines at once, with commas, ascending
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,4,16")]
    counts: Vec<usize>,
    /// Rounds of each level
    #[arg(short = 'n', value_name = "ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each transfer after a second of warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How long machines that do nothing are looked at
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    idle: u64,
    /// Something a reader of the result must know
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
    /// Print the result and do not write it
    #[arg(long)]
    look: bool,
}

impl Options {
    fn check(&self) -> Result<()> {
        let ascends = self.counts.windows(2).all(|pair| matches!(pair, [few, many] if few < many));
        let known = self.counts.first().is_some_and(|few| *few > 0);
        ensure!(
            ascends && known,
            "--counts {:?}: numbers above 0, each larger than the one before",
            self.counts
        );
        Ok(())
    }
}

/// A machine with a shell in it.
struct Guest {
    name: String,
    port: u16,
    console: Console,
    cgroups: Cgroups,
    /// Behind the console: it ends with what shows it.
    _running: Running,
}

/// Measures, prints, and writes the file unless it was only a look.
///
/// # Errors
/// Without a cluster with podvirt in it, or when something could not be measured; what could be is written.
pub(crate) fn run(options: &Options, results: &Path, out: &mut impl Write) -> Result<()> {
    options.check()?;
    let (commit, computer, began) = (machine::commit(), Machine::this()?, Instant::now());
    let cluster = Cluster::get()?;
    let namespace = cluster.namespace(Security::Restricted)?;
    let most = options.counts.last().copied().unwrap_or_default();
    let (_peer, to) = peer(&namespace, most)?;
    let (mut guests, mut runs) = (Vec::new(), Vec::new());
    for count in options.counts.iter().copied() {
        add(&namespace, &mut guests, count).with_context(|| format!("{count} machines"))?;
        writeln!(out, "{count} machines are up after {:.0} s", began.elapsed().as_secs_f64())?;
        thread::sleep(CALM);
        for round in 0..options.rounds {
            let (mut figures, start) = (BTreeMap::new(), Instant::now());
            let done = level(&mut guests, to, options, &mut figures);
            let error = done.err().map(|error| format!("{error:#}"));
            let told = error.as_deref().unwrap_or("done");
            let seconds = start.elapsed().as_secs_f64();
            writeln!(out, "{count} machines, round {}: {told}, {seconds:.0} s", round + 1)?;
            let subject = count.to_string();
            runs.push(Run { subject, round, others_cpus: None, figures, error });
        }
    }
    let scale = Scale {
        date: machine::now()?,
        commit,
        machine: computer,
        seconds: options.seconds,
        notes: options.note.clone(),
        runs,
    };
    write!(out, "{}", scale.section())?;
    writeln!(out, "{:.0} s in all", began.elapsed().as_secs_f64())?;
    if !options.look {
        scale.write(results)?;
    }
    scale.check()
}

/// The pod on the other node, with so many servers, and its address.
fn peer<'n>(namespace: &'n Namespace<'n>, servers: usize) -> Result<(ClientPod<'n>, IpAddr)> {
    let peer = ClientPod::start(namespace, "peer", "node2", "")?;
    for port in ports().take(servers) {
        peer.sh(&format!("iperf3 --server --json --port {port} >/dev/null 2>&1 &"))?;
    }
    let to = peer.addresses()?.into_iter().find(IpAddr::is_ipv4).context("the peer has no IPv4 address")?;
    Ok((peer, to))
}

fn ports() -> impl Iterator<Item = u16> {
    PORT..
}

/// Starts machines until there are so many.
fn add(namespace: &Namespace<'_>, guests: &mut Vec<Guest>, count: usize) -> Result<()> {
    let new =
        || ports().enumerate().take(count).skip(guests.len()).map(|(at, port)| (format!("m{at}"), port));
    for (name, _) in new() {
        let manifest = Manifest {
            name: &name,
            spec: "nodeSelector: {kubernetes.io/hostname: node1}",
            devices: "interfaces: [{name: default, passtBinding: {}}]",
            ..Default::default()
        };
        namespace.apply(&manifest.instance().replace("guest: 256Mi", &format!("guest: {GUEST_MIB}Mi")))?;
    }
    let mut added = Vec::new();
    for (name, port) in new() {
        namespace.wait_phase(&name, "Running", BOOT * 2)?;
        let (console, running) = namespace.shell(&name)?;
        let cgroups = Cgroups::of(&namespace.launcher(&name)?)?;
        added.push(Guest { name, port, console, cgroups, _running: running });
    }
    guests.extend(added);
    Ok(())
}

/// One round of a level.
fn level(
    guests: &mut [Guest],
    to: IpAddr,
    options: &Options,
    figures: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let idle = watch(guests, |_| {
        thread::sleep(Duration::from_secs(options.idle));
        Ok(())
    })?;
    figures.insert("idle_netd_percent".into(), 100.0 * idle.iter().map(netd).sum::<f64>());
    figures
        .insert("idle_machine_percent".into(), 100.0 * median(idle.iter().map(|used| used.pod / used.wall))?);
    for way in [Way::Out, Way::In] {
        let command = |port: u16| {
            let reverse = if way == Way::In { " --reverse" } else { "" };
            let seconds = options.seconds;
            format!(
                "iperf3 --client {to} --port {port} --json --get-server-output --time {seconds} --omit 1{reverse} >{REPORT} 2>&1 || true"
            )
        };
        let limit = Duration::from_secs(options.seconds.into()) + TIMEOUT;
        let used =
            watch(guests, |guests| at_once(guests, |guest| guest.console.sh(&command(guest.port), limit)))?;
        let reports = guests.iter_mut().map(|guest| {
            let text = guest.console.sh(&format!("cat {REPORT}"), TIMEOUT)?;
            let report = if way == Way::Out { Report::of_server(&text) } else { Report::parse(&text) };
            report.with_context(|| format!("{}, {}", guest.name, way.key()))
        });
        let reports = reports.collect::<Result<Vec<_>>>()?;
        let rates = reports.iter().map(Report::gbits).collect::<Result<Vec<_>>>()?;
        let gigabytes: f64 = reports.iter().map(Report::gigabytes).sum();
        let mut put = |what: &str, value: f64| figures.insert(format!("{}_{what}", way.key()), value);
        put("gbits", rates.iter().sum());
        put("fairness", fairness(&rates));
        put("netd_cpu", used.iter().map(|used| netd(used) * used.wall).sum::<f64>() / gigabytes);
        put("pod_cpu", used.iter().map(|used| used.pod).sum::<f64>() / gigabytes);
        put("netd_processors", median(used.iter().map(netd))?);
    }
    let memory = guests.iter().map(|guest| guest.cgroups.memory(GUEST_MIB)).collect::<Result<Vec<_>>>()?;
    figures.insert("pod_mib".into(), median(memory.iter().map(|memory| memory.pod))?);
    figures.insert("translated_mib".into(), median(memory.iter().map(|memory| memory.translated))?);
    for container in memory.first().map(|memory| memory.containers.keys()).into_iter().flatten() {
        let each = memory.iter().filter_map(|memory| memory.containers.get(container).copied());
        figures.insert(format!("{container}_mib"), median(each)?);
    }
    Ok(())
}

/// What each machine's pod uses while something is done.
fn watch(guests: &mut [Guest], run: impl FnOnce(&mut [Guest]) -> Result<()>) -> Result<Vec<Used>> {
    let before = guests.iter().map(|guest| guest.cgroups.sample()).collect::<Result<Vec<_>>>()?;
    run(guests)?;
    guests.iter().zip(&before).map(|(guest, before)| guest.cgroups.since(before)).collect()
}

/// The same for all machines, each on a thread of its own.
fn at_once(guests: &mut [Guest], run: impl Fn(&mut Guest) -> Result<String> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = guests.iter_mut().map(|guest| scope.spawn(move || run(guest))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?.map(drop))
    })
}

/// Processors that netd's container kept busy.
fn netd(used: &Used) -> f64 {
    used.containers.get(NETD).copied().unwrap_or_default() / used.wall
}

fn median(values: impl Iterator<Item = f64>) -> Result<f64> {
    Ok(Summary::of(values).context("no value")?.median)
}

/// Jain's index: 1 where all have the same, 1/n where one of n has all (Jain, Chiu and Hawe, 1984).
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (rates.iter().sum(), rates.iter().map(|rate| rate * rate).sum());
    #[allow(clippy::cast_precision_loss, reason = "a few machines")]
    let count = rates.len() as f64;
    sum * sum / (count * squares).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_evenly_is_fair() {
        assert!((fairness(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-9);
        assert!((fairness(&[3.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn levels_ascend() {
        let of = |counts: &[usize]| Options {
            counts: counts.to_vec(),
            rounds: 1,
            seconds: 1,
            idle: 1,
            note: Vec::new(),
            look: true,
        };
        assert!(of(&[1, 4, 16]).check().is_ok());
        for wrong in [[].as_slice(), &[0, 1], &[4, 4], &[4, 1]] {
            assert!(of(wrong).check().is_err(), "{wrong:?}");
        }
    }
}
