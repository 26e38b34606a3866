//! The pod that floods: its backend, the process that plays its guest, and their peers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use podvirt_bed_tools::flood::{DEAF_PORT, Kind, OPEN_PORT};
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::{Backend, BackendOptions, Guest, Net, Pod, Process, RunningBackend, until};
use serde_json::Value;

use super::limits::Limits;
use crate::bed::{GUEST_PORT, TIMEOUT};
use crate::excerpt::excerpt;
use crate::frontends::BACKEND_MAC;
use crate::plan::Peer;

/// For an answer of the flooding process: a check takes up to half a minute for each of its four parts: to connect again,
/// and then the router, an echo and a connection.
const ANSWER: Duration = Duration::from_secs(135);
/// Connections that peers fill.
const POURED: usize = 1000;
/// Those of them by urgent data.
const URGENT: usize = 200;

/// Ports from which a process of the pod sends by itself: as many as a flood of datagrams opens by netd.
pub(super) const SPRAYED: usize = 12_000;

/// Fields in the order in which they end.
pub(super) struct Attacker<'p> {
    peers: Vec<Process>,
    guest: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    backend: RunningBackend,
    pod: &'p Pod,
    limits: &'p Limits,
}

impl<'p> Attacker<'p> {
    /// Starts it in its pod, under the pod's limits.
    ///
    /// # Errors
    /// Something does not come up.
    pub(super) fn start(pod: &'p Pod, peer: Peer, limits: &'p Limits) -> Result<Attacker<'p>> {
        let kind = match peer {
            Peer::Netd => Backend::Netd,
            Peer::Passt => Backend::Passt,
            Peer::Tap | Peer::Slirp | Peer::Plain => bail!("{peer} has no vhost-user socket"),
        };
        let options = BackendOptions {
            tcp: vec![GUEST_PORT],
            udp: vec![GUEST_PORT],
            mtu: Some(1500),
            config: format!("mac: \"{BACKEND_MAC}\"\nguest: {{mac: \"{}\"}}\n", Guest::MAC),
            ..Default::default()
        };
        let backend = limits.within(|| kind.start(pod, &options))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("attack").arg("--socket").arg(&backend.socket);
        command.arg("--to4").arg(pod.net.client4.to_string());
        command.arg("--to6").arg(pod.net.client6.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guest = limits.within(|| Ok(command.spawn()?))?;
        let (orders, out) = (guest.stdin.take(), guest.stdout.take());
        let (orders, out) = (orders.context("no pipe")?, out.context("no pipe")?);
        let (said, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        let mut attacker = Attacker { peers: Vec::new(), guest, orders, answers, backend, pod, limits };
        attacker.peer("open", &format!("serve {OPEN_PORT}"))?;
        attacker.peer("deaf", &format!("deaf {DEAF_PORT}"))?;
        for port in [OPEN_PORT, DEAF_PORT] {
            until("a peer's port", TIMEOUT, || Ok(pod.net.connect((pod.net.client4, port).into()).ok()))?;
        }
        Ok(attacker)
    }

    /// Starts the agent beside the client.
    fn peer(&mut self, name: &str, words: &str) -> Result<()> {
        let agent = self.pod.peer(name).ro(&program_dir("perf-agent")?, "/podvirt");
        let command: Vec<&str> = ["perf-agent"].into_iter().chain(words.split(' ')).collect();
        self.peers.push(agent.spawn(&command)?);
        Ok(())
    }

    /// The backend's sandbox.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn backend(&self) -> Result<Pid> {
        self.backend.process.init_pid()
    }

    /// Begins to flood.
    ///
    /// # Errors
    /// Its process or a peer's cannot be told.
    pub(super) fn flood(&mut self, kind: Kind) -> Result<()> {
        writeln!(self.orders, "flood {}", kind.name())?;
        let to = format!("{}:{GUEST_PORT}", Net::BESIDE4);
        match kind {
            Kind::SlowGuest => self.peer("pour", &format!("pour {to} {POURED}")),
            Kind::Urgent => self.peer("pour", &format!("pour {to} {URGENT} urgent")),
            Kind::Plain => {
                let to = format!("{}:{OPEN_PORT}", self.pod.net.client4);
                let agent = self.pod.container("spray")?.ro(&program_dir("perf-agent")?, "/podvirt");
                let command = ["perf-agent", "spray", &to, &SPRAYED.to_string()];
                self.peers.push(self.limits.within(|| agent.spawn(&command))?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends the flood and tells what it was.
    ///
    /// # Errors
    /// Its process has ended: the backend is gone, and does not come back.
    pub(super) fn stop(&mut self) -> Result<Value> {
        // Those that were started for the flood.
        for mut peer in self.peers.drain(2..) {
            if let Some(status) = peer.ended()? {
                bail!("a process of the flood has ended ({status}): {}", excerpt(&peer.log()));
            }
        }
        self.ask("stop")
    }

    /// After how many milliseconds the backend answers its guest, and carries what is new; the latter may be never.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn check(&mut self) -> Result<(f64, Option<f64>)> {
        let answer = self.ask("check")?;
        let of = |name| answer.get(name).and_then(Value::as_f64);
        Ok((of("alive_ms").with_context(|| format!("not alive: {answer}"))?, of("serves_ms")))
    }

    fn ask(&mut self, order: &str) -> Result<Value> {
        let told = writeln!(self.orders, "{order}");
        match self.answers.recv_timeout(ANSWER) {
            Ok(line) => serde_json::from_str(&line).with_context(|| line),
            Err(RecvTimeoutError::Timeout) => bail!("{order}: no answer within {ANSWER:?}: {}", self.log()),
            Err(RecvTimeoutError::Disconnected) => {
                drop(told);
                let ended = self.backend.process.ended()?;
                bail!(
                    "{order}: the flooding guest has lost its backend, which has {}: {}",
                    match ended {
                        Some(status) => format!("ended ({status})"),
                        None => "not ended".into(),
                    },
                    self.log()
                )
            }
        }
    }

    /// What the backend printed, in short.
    pub(super) fn log(&self) -> String {
        excerpt(&self.backend.process.log())
    }
}

impl Drop for Attacker<'_> {
    fn drop(&mut self) {
        drop(self.guest.kill());
        drop(self.guest.wait());
    }
}
