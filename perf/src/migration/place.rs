//! A guest under QEMU that moves between two pods; QEMU copies it over a UNIX socket, as between launchers.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::{Boot, Guest, Net, Vhost, peer};
use serde_json::{Value, json};

use super::helper::{link, remove};
use super::pods::{MTU, Pods, Told};
use crate::frontends::masquerade;
use crate::plan::Peer;

/// The guest's echo, by TCP and UDP.
pub(crate) const PROBE_PORT: u16 = 8001;
/// The guest's ends of streams.
pub(crate) const STREAMS_PORT: u16 = 8002;
/// Where the guest fetches the agent from.
const AGENT_PORT: u16 = 7000;
/// A socket for the guest's memory.
const STATE: &str = "state.sock";
/// For what takes no time unless something is broken.
const TIMEOUT: Duration = Duration::from_secs(30);
/// As much as fits between two processes of one machine.
const BANDWIDTH: u64 = 1 << 40;

/// How a guest's move went, by the hypervisor and the backends.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    /// When it was ordered, and when the guest ran at the target.
    pub(crate) span: (Instant, Instant),
    /// From the guest's stop to its running again, by QEMU's events.
    pub(crate) stopped: Duration,
    /// Bytes of memory that were copied.
    pub(crate) memory_bytes: f64,
    /// By netd.
    pub(crate) told: Told,
}

/// See the module; fields in the order in which they end.
pub(crate) struct Place {
    /// None after a move that failed.
    guest: Option<Guest>,
    pods: Pods,
    peer: Peer,
    downtime_limit_ms: u32,
}

impl Place {
    /// Boots the guest in the first pod.
    ///
    /// # Errors
    /// Something does not come up.
    pub(crate) fn new(peer: Peer, downtime_limit_ms: u32) -> Result<Place> {
        let pods = Pods::new(peer, "")?;
        let mut guest =
            Guest::boot(Boot::Qemu, pods.here(), &vhost(peer, false)).with_context(|| pods.log())?;
        if peer == Peer::Tap {
            guest.sh(&masquerade::addresses(MTU, true))?;
        }
        Ok(Place { guest: Some(guest), pods, peer, downtime_limit_ms })
    }

    /// The client's network.
    pub(crate) fn net(&self) -> &Net {
        self.pods.net()
    }

    /// The guest, wherever it is.
    ///
    /// # Errors
    /// A move has failed.
    pub(crate) fn guest(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().context("there is no guest")
    }

    /// Sends the agent to the guest over the network, as `/tmp/agent`.
    ///
    /// # Errors
    /// It does not arrive.
    pub(crate) fn send_agent(&mut self) -> Result<()> {
        let program = fs::read(program_dir("perf-agent")?.join("perf-agent"))?;
        let address = SocketAddr::from((self.net().client4, AGENT_PORT));
        let listener = self.net().listen(address)?;
        let sent = thread::spawn(move || -> Result<()> { Ok(peer::accept(&listener)?.write_all(&program)?) });
        let fetch = format!("socat -u TCP4:{address} CREATE:/tmp/agent && chmod +x /tmp/agent");
        self.guest()?.sh(&fetch)?;
        sent.join().ok().context("the sender panicked")?
    }

    /// What all programs that take part have printed, in short.
    pub(crate) fn log(&self) -> String {
        self.pods.log()
    }

    /// Moves the guest to the other pod.
    ///
    /// # Errors
    /// It does not arrive; what all programs that take part printed is part of the error.
    pub(crate) fn migrate(&mut self) -> Result<Moved> {
        let moved = self.migrate_to_other();
        moved.with_context(|| self.log())
    }

    fn migrate_to_other(&mut self) -> Result<Moved> {
        let helpers = self.pods.prepare()?;
        let mut target = Guest::start(Boot::Qemu, self.pods.there(), &vhost(self.peer, true))?;
        target.qmp()?.execute("migrate-incoming", json!({"uri": format!("unix:/w/{STATE}")}))?;
        let (here, there) = (self.pods.here().path(STATE), self.pods.there().path(STATE));
        link(&there, &here)?;
        let (span, stopped, memory_bytes) = self.move_to(&mut target)?;
        let mut source = self.guest.replace(target).context("no guest")?;
        // It may end before it answers.
        drop(source.qmp()?.execute("quit", json!({})));
        source.process.wait(TIMEOUT)?;
        drop(source);
        let told = self.pods.leave()?;
        drop(helpers);
        remove(&here)?;
        remove(&there)?;
        Ok(Moved { span, stopped, memory_bytes, told })
    }

    /// The hypervisors' part.
    fn move_to(&mut self, target: &mut Guest) -> Result<((Instant, Instant), Duration, f64)> {
        let limit = self.downtime_limit_ms;
        let source = self.guest()?.qmp()?;
        let events = json!({"capabilities": [{"capability": "events", "state": true}]});
        source.execute("migrate-set-capabilities", events)?;
        let parameters = json!({"downtime-limit": limit, "max-bandwidth": BANDWIDTH});
        source.execute("migrate-set-parameters", parameters)?;
        let (begin, begin_at) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        source.execute("migrate", json!({"uri": format!("unix:/w/{STATE}")}))?;
        loop {
            match source.event("MIGRATION")?["data"]["status"].as_str() {
                Some("completed") => break,
                Some(end @ ("failed" | "cancelled")) => {
                    bail!("the migration has {end}: {}", source.execute("query-migrate", json!({}))?)
                }
                _ => {}
            }
        }
        let resumed = time(&target.qmp()?.event("RESUME")?)?;
        // Answered when all devices run.
        target.qmp()?.execute("query-status", json!({}))?;
        self.pods.arrive()?;
        let source = self.guest()?.qmp()?;
        let stopped = time(&source.event("STOP")?)?;
        let told = source.execute("query-migrate", json!({}))?;
        let span = (begin, begin + resumed.saturating_sub(begin_at));
        let bytes = told["ram"]["transferred"].as_f64().unwrap_or(0.0);
        Ok((span, resumed.saturating_sub(stopped), bytes))
    }
}

/// How the guest is connected.
fn vhost(peer: Peer, incoming: bool) -> Vhost {
    let tap = (peer == Peer::Tap).then_some(masquerade::TAP);
    let kernel = if tap.is_some() { vec!["pv.dhcp=no".into()] } else { Vec::new() };
    Vhost { incoming, tap, kernel, ..Vhost::default() }
}

/// An event's time since 1970.
fn time(event: &Value) -> Result<Duration> {
    let of = |name: &str| event["timestamp"][name].as_u64().with_context(|| format!("no time in {event}"));
    let (seconds, micros) = (of("seconds")?, of("microseconds")?);
    ensure!(micros < 1_000_000, "{event}");
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// In ms.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_time() {
        let event = json!({"event": "STOP", "timestamp": {"seconds": 5, "microseconds": 250_000}});
        assert_eq!(time(&event).unwrap(), Duration::from_millis(5250));
        assert!(time(&json!({})).is_err());
    }
}
