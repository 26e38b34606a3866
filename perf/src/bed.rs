//! A setup at work with one peer: a fresh pod, its backend, its frontend, and programs at both ends.
//!
//! The client's end is in the client's network namespace, across a veth pair from the pod; the guest's end is typed on
//! the guest's console. CPU time is read before a measurement starts and after it has reported, so that it belongs to
//! all of its bytes, those of a warm-up too. What the machine's processors did beside all that this program started is
//! the time of others: kernel threads and other people's programs.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::unistd::Pid;
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::{
    Backend, BackendOptions, Family, Guest, Net, NetOptions, Netns, Pod, Process, RunningBackend, peer, until,
};
use serde_json::Value;
use virt_handler::ports::{Namespace, Steering};

use crate::excerpt::excerpt;
use crate::frontends::{BACKEND_MAC, Machine, double, linux, testpmd};
use crate::plan::{Case, Frontend, Peer, Setup};
use crate::usage::{self, Cpu};

/// For what takes no time unless something is broken.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The port of the echo in the guest, by TCP and UDP.
pub(crate) const GUEST_PORT: u16 = 8001;
/// A port that leads to the guest, where no program serves it.
pub(crate) const CROWD_PORT: u16 = 8002;
/// The port of the echo of the client.
pub(crate) const CLIENT_PORT: u16 = 7001;
/// Where the guest fetches the agent from.
const AGENT_PORT: u16 = 7000;
/// Every port leads to the guest.
const STEERED: &str = "-t all -u all --steering /w/ports.sock";
/// More than any case needs: what is measured are not the limits. The rate is that of new flows a second.
const LIMITS: &str = "limits: {flows: 19000, new_flows_per_second: 1000000, new_flows_burst: 1000000}\n";
/// Ports of connections that are opened one after another; the kernel's default is half of it.
const PORT_RANGE: &str = "10000 65535";

/// How long things are measured.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// A bulk measurement after its warm-up, in seconds.
    pub(crate) seconds: u32,
    /// Its warm-up, in seconds.
    pub(crate) warm_up_seconds: u32,
    /// Anything of which there are thousands in a second.
    pub(crate) short: Duration,
    /// Watching something idle.
    pub(crate) idle: Duration,
    /// How many connections at once, ascending.
    pub(crate) flows: Vec<usize>,
}

/// Seconds, all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    at: Instant,
    /// All that the processors did.
    busy: f64,
    /// All that this program started, and itself.
    ours: f64,
    backend: Option<Cpu>,
    frontend: Cpu,
}

/// What was used between two samples, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// By the backend, if it is a program of its own.
    pub(crate) backend: Option<Cpu>,
    /// By the guest: for the host, the guest's kernel is a program too.
    pub(crate) frontend: Cpu,
    /// By everything on the machine.
    pub(crate) machine: f64,
    /// On the clock.
    pub(crate) wall: f64,
    /// By what this program did not start.
    pub(crate) others: f64,
}

/// See the module. Fields in the order in which they end.
pub(crate) struct Bed {
    servers: Vec<Process>,
    /// The frontend.
    pub(crate) machine: Machine,
    /// The node agent's part, where every port is steered.
    _steering: Option<Steering>,
    /// The backend, if it is a program of its own.
    pub(crate) backend: Option<RunningBackend>,
    /// The pod.
    pub(crate) pod: Pod,
    /// What it was made from.
    pub(crate) setup: Setup,
    /// From the frontend's start until it had its addresses.
    pub(crate) boot_seconds: f64,
    guest_serves: bool,
    has_agent: bool,
}

impl Bed {
    /// Starts everything.
    ///
    /// # Errors
    /// Something does not come up; the backend's log is part of the error.
    pub(crate) fn start(setup: &Setup, peer: Peer) -> Result<Bed> {
        Bed::start_with(setup, peer, "")
    }

    /// The same with further arguments of netd's, which win over all others.
    ///
    /// # Errors
    /// Something does not come up; the backend's log is part of the error.
    pub(crate) fn start_with(setup: &Setup, peer: Peer, arguments: &str) -> Result<Bed> {
        let link_mtu = if peer == Peer::Tap { setup.mtu.max(1500) } else { setup.link_mtu };
        let pod = Pod::new(NetOptions { mtu: Some(link_mtu), ..Default::default() })?;
        Bed::at(setup, peer, pod, LIMITS, arguments)
    }

    /// Starts everything in a pod that is there, with these lines of netd's configuration, and further arguments.
    ///
    /// # Errors
    /// As [`Bed::start`].
    pub(crate) fn at(setup: &Setup, peer: Peer, pod: Pod, config: &str, arguments: &str) -> Result<Bed> {
        for side in [&pod.net.pod, &pod.net.client] {
            side.enter(|| Ok(fs::write("/proc/sys/net/ipv4/ip_local_port_range", PORT_RANGE)?))?;
        }
        let backend = match peer {
            Peer::Netd => Some(Backend::Netd),
            Peer::Passt => Some(Backend::Passt),
            Peer::Tap | Peer::Slirp | Peer::Plain => None,
        };
        let mut options = BackendOptions {
            tcp: vec![GUEST_PORT],
            udp: vec![GUEST_PORT, CROWD_PORT],
            mtu: Some(setup.mtu),
            config: config.into(),
            ..Default::default()
        };
        if setup.steered {
            (options.tcp, options.udp) = (Vec::new(), Vec::new());
            options.arguments.extend(STEERED.split_whitespace().map(str::to_owned));
        }
        if setup.pairs > 1 {
            options.arguments.extend(["--queue-pairs".into(), setup.pairs.to_string()]);
        }
        if matches!(setup.frontend, Frontend::Testpmd | Frontend::Double) {
            options.config += &format!("mac: \"{BACKEND_MAC}\"\nguest: {{mac: \"{}\"}}\n", Guest::MAC);
        }
        options.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        let backend = backend.map(|b| b.start(&pod, &options)).transpose()?;
        let steering = setup.steered.then(|| steer(&pod)).transpose()?;
        let begin = Instant::now();
        let log = |e: anyhow::Error| match &backend {
            Some(backend) => anyhow!("{e:#}\nthe backend says:\n{}", excerpt(&backend.process.log())),
            None => e,
        };
        let machine = match setup.frontend {
            Frontend::Uml | Frontend::Tcg => linux::start(&pod, setup, peer).map(Machine::Linux),
            Frontend::Testpmd => testpmd::start(&pod, setup).map(Machine::Testpmd),
            Frontend::Double => backend
                .as_ref()
                .context("the double needs a vhost-user socket")
                .and_then(|b| double::connect(&b.socket, setup.pairs))
                .map(|double| Machine::Double(Box::new(double))),
        };
        let machine = machine.map_err(log)?;
        Ok(Bed {
            servers: Vec::new(),
            machine,
            _steering: steering,
            backend,
            pod,
            setup: setup.clone(),
            boot_seconds: begin.elapsed().as_secs_f64(),
            guest_serves: false,
            has_agent: false,
        })
    }

    /// A figure's full name: what begins and ends it is the setup's.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{}{of}{}", self.setup.prefix(), self.setup.suffix())
    }

    /// The same with the MTU.
    pub(crate) fn name_with_mtu(&self, of: &str) -> String {
        format!("{}{of}_{}{}", self.setup.prefix(), self.setup.mtu, self.setup.suffix())
    }

    /// Where the client reaches a port of the guest.
    pub(crate) fn guest_address(&self, port: u16) -> SocketAddr {
        let [v4, v6] = Net::pod_addresses(port);
        if self.setup.family == Family::V4 { v4 } else { v6 }
    }

    /// Where the guest reaches the client.
    pub(crate) fn client(&self) -> IpAddr {
        match self.setup.family {
            Family::V4 => self.pod.net.client4.into(),
            Family::V6 => self.pod.net.client6.into(),
        }
    }

    /// Runs a measurement of the agent in the client's network.
    ///
    /// # Errors
    /// It fails.
    pub(crate) fn ask_client(&self, words: &str) -> Result<Value> {
        let agent = self.pod.peer("agent").ro(&program_dir("perf-agent")?, "/podvirt");
        let command: Vec<&str> = ["perf-agent"].into_iter().chain(words.split(' ')).collect();
        parse(&agent.run(&command)?)
    }

    /// Starts the agent in the client's network.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start_at_client(&self, name: &str, words: &str) -> Result<Process> {
        self.start_at(&self.pod.net.client, name, words)
    }

    /// Starts the agent in the network of a peer.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start_at(&self, netns: &Netns, name: &str, words: &str) -> Result<Process> {
        let agent = self.pod.peer_at(name, netns).ro(&program_dir("perf-agent")?, "/podvirt");
        let command: Vec<&str> = ["perf-agent"].into_iter().chain(words.split(' ')).collect();
        agent.spawn(&command)
    }

    /// Runs a measurement of the agent in the guest.
    ///
    /// # Errors
    /// It fails, or takes longer than `limit` beyond [`TIMEOUT`].
    pub(crate) fn ask_guest(&mut self, words: &str, limit: Duration) -> Result<Value> {
        self.send_agent()?;
        parse(&self.machine.linux()?.sh(&format!("/tmp/agent {words}"), limit + TIMEOUT)?)
    }

    /// The echo of the client serves, once and for all.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn serve_at_client(&mut self) -> Result<()> {
        if self.servers.is_empty() {
            self.servers.push(self.start_at_client("echo", &format!("serve {CLIENT_PORT}"))?);
            let address = SocketAddr::from((self.pod.net.client4, CLIENT_PORT));
            until("the client's echo", TIMEOUT, || Ok(self.pod.net.connect(address).ok()))?;
        }
        Ok(())
    }

    /// The echo of the guest serves, once and for all, and can be reached.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn serve_in_guest(&mut self) -> Result<()> {
        if !self.guest_serves {
            self.send_agent()?;
            self.machine.linux()?.start(&format!("/tmp/agent serve {GUEST_PORT}"), GUEST_PORT)?;
            self.guest_serves = true;
        }
        Ok(())
    }

    /// Sends the agent to the guest over the network.
    fn send_agent(&mut self) -> Result<()> {
        if self.has_agent {
            return Ok(());
        }
        if self.machine.linux()?.is_pod() {
            // It is there, and the pod's range of ports is set.
            self.machine.linux()?.sh("cp /podvirt/perf-agent /tmp/agent", TIMEOUT)?;
            self.has_agent = true;
            return Ok(());
        }
        let program = fs::read(program_dir("perf-agent")?.join("perf-agent"))?;
        let address = SocketAddr::from((self.pod.net.client4, AGENT_PORT));
        let listener = self.pod.net.listen(address)?;
        let sent = thread::spawn(move || -> Result<()> { Ok(peer::accept(&listener)?.write_all(&program)?) });
        let guest = self.machine.linux()?;
        guest
            .sh(&format!("socat -u TCP4:{address} CREATE:/tmp/agent && chmod +x /tmp/agent"), TIMEOUT * 2)?;
        guest.sh(&format!("echo {PORT_RANGE} >/proc/sys/net/ipv4/ip_local_port_range"), TIMEOUT)?;
        sent.join().ok().context("the sender panicked")??;
        self.has_agent = true;
        Ok(())
    }

    /// What has been used so far.
    ///
    /// # Errors
    /// Something has ended.
    pub(crate) fn sample(&self) -> Result<Sample> {
        let backend = self.backend.as_ref().map(|b| usage::cpu(b.process.init_pid()?)).transpose()?;
        Ok(Sample {
            at: Instant::now(),
            busy: usage::busy()?,
            ours: usage::cpu(Pid::this())?.total(),
            backend,
            frontend: self.machine.cpu()?,
        })
    }

    /// What has been used since.
    ///
    /// # Errors
    /// Something has ended.
    pub(crate) fn since(&self, before: &Sample) -> Result<Used> {
        let now = self.sample()?;
        let machine = now.busy - before.busy;
        Ok(Used {
            backend: now.backend.zip(before.backend).map(|(now, before)| now - before),
            frontend: now.frontend - before.frontend,
            machine,
            wall: (now.at - before.at).as_secs_f64(),
            others: (machine - (now.ours - before.ours)).max(0.0),
        })
    }

    /// What the backend printed, in short.
    pub(crate) fn log(&self) -> String {
        self.backend.as_ref().map(|b| excerpt(&b.process.log())).unwrap_or_default()
    }

    /// Whether a case can be measured here.
    pub(crate) fn check(&self, case: Case) -> Result<()> {
        let guest = matches!(self.machine, Machine::Linux(_));
        let fits = match case {
            Case::Echo | Case::Txonly => matches!(self.machine, Machine::Testpmd(_)),
            Case::Ceiling | Case::Pairs | Case::Receiver => matches!(self.machine, Machine::Double(_)),
            Case::Peers => guest || matches!(self.machine, Machine::Double(_)),
            Case::Micro | Case::Ports | Case::Migration => false,
            _ => guest,
        };
        ensure!(fits, "{case} cannot be measured with {}", self.setup.frontend);
        Ok(())
    }
}

/// Has the node agent's library steer every port to netd.
fn steer(pod: &Pod) -> Result<Steering> {
    let namespace = Namespace::open(&Path::new("/run/netns").join(pod.net.pod.name()))?;
    let steering = Steering::start(namespace, pod.path("ports.sock"))?;
    until("steering", TIMEOUT, || Ok(steering.report().attached.then_some(())))?;
    Ok(steering)
}

/// The agent's answer: the last line.
///
/// # Errors
/// It is none.
pub(crate) fn parse(text: &str) -> Result<Value> {
    let line = text.lines().last().context("the agent is silent")?;
    serde_json::from_str(line).with_context(|| format!("not the agent's answer: {text}"))
}

/// A number of the agent's answer.
pub(crate) fn number(answer: &Value, name: &str) -> Result<f64> {
    answer.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} in {answer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_last_line_and_its_numbers_are_found() {
        let answer = parse("warning\n{\"per_second\": 12.5}\n").unwrap();
        assert_eq!(number(&answer, "per_second").unwrap(), 12.5);
        assert!(number(&answer, "p50").unwrap_err().to_string().contains("p50"));
        assert!(parse("").is_err() && parse("Error: refused").is_err());
    }
}
