//! Two pods with the same addresses at one bridge, of which one is heard, and their backends.
//!
//! ```text
//!   backend, pod 0 ── eth0 ─┐
//!   backend, pod 1 ── eth0 ─┴─ br0  the client
//!      10.9.0.2, fd00:9::2          10.9.0.1, fd00:9::1
//! ```
//!
//! The pod that the guest is to come to is silent, as podvirt-cni makes it, until its helper says otherwise; the one that
//! it has left becomes silent when its backend has ended.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use podvirt_cni::net::silence;
use podvirt_e2e::{Backend, BackendOptions, Net, NetOptions, Pod, RunningBackend, until};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::helper::{Helper, activate, remove};
use super::place::{PROBE_PORT, STREAMS_PORT};
use crate::excerpt::excerpt;
use crate::frontends::masquerade;
use crate::plan::Peer;

/// Of the guest's link in bytes.
pub(crate) const MTU: u16 = 1500;
/// For what takes no time unless something is broken.
const TIMEOUT: Duration = Duration::from_secs(30);
/// More than the measurement needs.
const LIMITS: &str = "limits: {flows: 19000, new_flows_per_second: 1000000, new_flows_burst: 1000000}\n";

/// A pod and what is in it; fields in the order in which they end.
struct Side {
    backend: Option<RunningBackend>,
    pod: Pod,
}

/// What netd tells of a move.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Its own part in ms: the state given away, taken, and all connections released.
    pub(crate) steps_ms: [Option<f64>; 3],
    /// Connections that it gave away and took.
    pub(crate) connections: Option<[u64; 2]>,
    /// Connections that it reset.
    pub(crate) dropped: u64,
}

/// See the module.
pub(crate) struct Pods {
    sides: [Side; 2],
    /// The pod in which the guest is.
    at: usize,
    peer: Peer,
    config: String,
    runtime: Runtime,
}

impl Pods {
    /// Both pods, and the backend of the first; `config` are further lines of netd's configuration.
    ///
    /// # Errors
    /// Something does not come up.
    pub(crate) fn new(peer: Peer, config: &str) -> Result<Pods> {
        let net = Net::up(NetOptions::default())?;
        let twin = net.twin(|| Ok(silence::silence("eth0")?))?;
        let side = |net| -> Result<Side> { Ok(Side { backend: None, pod: Pod::at(net)? }) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let sides = [side(net)?, side(twin)?];
        let mut pods = Pods { sides, at: 0, peer, config: format!("{LIMITS}{config}"), runtime };
        if peer == Peer::Tap {
            pods.sides
                .iter()
                .try_for_each(|s| masquerade::set_up(&s.pod, MTU, &[PROBE_PORT, STREAMS_PORT]))?;
        }
        pods.start_backend(0)?;
        Ok(pods)
    }

    /// The client's network.
    pub(crate) fn net(&self) -> &Net {
        &self.sides[0].pod.net
    }

    /// The pod in which the guest is.
    pub(crate) fn here(&self) -> &Pod {
        &self.sides[self.at].pod
    }

    /// The other one.
    pub(crate) fn there(&self) -> &Pod {
        &self.sides[1 - self.at].pod
    }

    fn start_backend(&mut self, at: usize) -> Result<()> {
        let backend = match self.peer {
            Peer::Netd => Backend::Netd,
            Peer::Passt => Backend::Passt,
            // The kernel's is there.
            Peer::Tap | Peer::Slirp | Peer::Plain => return Ok(()),
        };
        let side = &mut self.sides[at];
        let options = BackendOptions {
            tcp: vec![PROBE_PORT, STREAMS_PORT],
            udp: vec![PROBE_PORT],
            mtu: Some(MTU),
            config: self.config.clone(),
            ..BackendOptions::default()
        };
        for suffix in ["", ".move", ".repair"] {
            remove(&side.pod.path(&format!("{}{suffix}", Backend::SOCKET)))?;
        }
        side.backend = Some(backend.start(&side.pod, &options)?);
        Ok(())
    }

    /// A backend in the other pod, and repair in both, until what this returns is dropped.
    ///
    /// # Errors
    /// Something does not come up.
    pub(crate) fn prepare(&mut self) -> Result<Vec<Helper>> {
        self.start_backend(1 - self.at)?;
        if self.peer == Peer::Tap {
            return Ok(Vec::new());
        }
        let helper = |(at, incoming): (usize, bool)| {
            let Side { pod, backend } = &self.sides[at];
            Helper::new(self.peer, &self.runtime, pod, backend.as_ref().context("no backend")?, incoming)
        };
        [(self.at, false), (1 - self.at, true)].into_iter().map(helper).collect()
    }

    /// The guest runs in the other pod, whose address speaks now, unless its helper has seen to that.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn arrive(&self) -> Result<()> {
        activate(&self.runtime, self.there())
    }

    /// The guest runs in the other pod, and its hypervisor here has ended: so does the backend, and then no peer
    /// hears this pod.
    ///
    /// # Errors
    /// It does not come to that.
    pub(crate) fn leave(&mut self) -> Result<Told> {
        let (from, to) = (self.at, 1 - self.at);
        let mut told = Ok(Told::default());
        if let Some(mut backend) = self.sides[from].backend.take() {
            if self.peer == Peer::Netd {
                told = ask(&backend, self.sides[to].backend.as_ref().context("no backend")?);
            }
            if backend.process.ended()?.is_none() {
                drop(backend.process.signal(Signal::SIGTERM));
                drop(backend.process.wait(TIMEOUT));
            }
            fs::write(self.sides[from].pod.path("last.log"), backend.process.log())?;
        }
        self.sides[from].pod.net.pod.enter(|| Ok(silence::silence("eth0")?))?;
        self.at = to;
        told
    }

    /// What all programs that take part have printed, in short.
    pub(crate) fn log(&self) -> String {
        self.sides.iter().map(log).collect()
    }
}

/// What two netds tell after a guest has moved from one to the other.
fn ask(source: &RunningBackend, target: &RunningBackend) -> Result<Told> {
    until("the end at the source", TIMEOUT, || {
        Ok((source.ask("status")?["frontend_connected"] == Value::Bool(false)).then_some(()))
    })?;
    let out = source.counter("migrated_connections_out")?;
    // Released in the background.
    until("all connections at the target", TIMEOUT, || {
        Ok((target.counter("migrated_connections_in")? + lost(target)? >= out).then_some(()))
    })?;
    let (here, there) = (source.process.log(), target.process.log());
    Ok(Told {
        steps_ms: [
            took(&here, "the state was given away"),
            took(&there, "a state has come"),
            took(&there, "connections go on"),
        ],
        connections: Some([out, target.counter("migrated_connections_in")?]),
        dropped: lost(source)? + lost(target)?,
    })
}

/// Connections that netd has reset because of a migration.
fn lost(netd: &RunningBackend) -> Result<u64> {
    let counters = netd.ask("counters")?;
    let rows = counters.as_array().context("netctl counters")?;
    let of = |row: &&Value| row["name"].as_str().is_some_and(|name| name.starts_with("dropped.migration_"));
    Ok(rows.iter().filter(of).filter_map(|r| r["value"].as_u64()).sum())
}

fn log(side: &Side) -> String {
    let backend = side.backend.as_ref().map(|b| excerpt(&b.process.log())).unwrap_or_default();
    let of = |name: &str| excerpt(&fs::read_to_string(side.pod.path(name)).unwrap_or_default());
    format!("{}:\nbackend: {backend}\nthe one before: {}\n", side.pod.net.pod.name(), of("last.log"))
        + &format!("QEMU: {}\npasst-repair: {}\n", of("qemu.log"), of("passt-repair.log"))
}

/// The `took_us` of the last line of the log that has `text`, in ms.
fn took(log: &str, text: &str) -> Option<f64> {
    let line = log.lines().rev().find(|l| l.contains(text))?;
    let digits = line.split("took_us").nth(1)?.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    Some(digits.get(..end)?.parse::<f64>().ok()? / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_netd_took_is_found_in_either_form_of_its_log() {
        let log =
            "INFO a state has come connections=2 took_us=1500 x=1\n{\"message\":\"other\",\"took_us\":7}\n";
        assert_eq!(took(log, "a state has come"), Some(1.5));
        assert_eq!(took(log, "other"), Some(0.007));
        assert_eq!(took(log, "nothing"), None);
    }
}
