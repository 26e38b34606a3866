//! One run: a fresh pod, one backend, one guest, and what is measured on them, in this order:
//!
//! 1. boot, until the guest has its addresses;
//! 2. idle: the backend's memory and whether it uses CPU time with nothing to do, before any payload;
//! 3. round trips of one byte over one TCP connection;
//! 4. bulk TCP, one stream, guest to host (`g2h`), then host to guest (`h2g`).
//!
//! The peer of the guest is in the client's network namespace, across a veth pair from the pod. CPU time is read
//! before iperf3 starts and after it has reported, so that it belongs to all of iperf3's bytes, those of the warm-up
//! too. What the machine's processors did beside backend, guest and peer in that time is written down: kernel threads
//! and other people's programs, which is why a measurement may have to be thrown away.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use podvirt_e2e::{
    Backend, BackendOptions, Boot, Guest, NetOptions, Pod, Process, RunningBackend, Vhost, until,
};
use serde::{Deserialize, Serialize};

use crate::iperf::Report;
use crate::stats::percentile;
use crate::usage::{self, Cpu, Memory};

/// The state of a listening socket in /proc/net/tcp6.
const LISTEN: &str = "0A";
/// Where the guest's echo connects to.
const ECHO: u16 = 7002;
/// For what takes no time unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an idle backend is watched.
const IDLE: Duration = Duration::from_millis(500);
/// How long round trips are counted.
const ROUND_TRIPS: Duration = Duration::from_secs(1);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// The guest sends.
    G2h,
    /// The host sends.
    H2g,
}

impl Direction {
    /// Both, in the order they are measured in.
    pub(crate) const ALL: [Direction; 2] = [Direction::G2h, Direction::H2g];

    /// As in keys of results.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Direction::G2h => "g2h",
            Direction::H2g => "h2g",
        }
    }

    /// The port of iperf3's server: each has its own, since the last one may still be ending.
    fn port(self) -> u16 {
        match self {
            Direction::G2h => 5201,
            Direction::H2g => 5202,
        }
    }
}

/// How long a bulk measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Length {
    /// What counts, in seconds.
    pub(crate) seconds: u32,
    /// What goes before, in seconds.
    pub(crate) warm_up_seconds: u32,
}

/// Everything one run gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Counted from 0; runs of the same round are compared with each other.
    pub(crate) round: u32,
    /// `netd` or `passt`.
    pub(crate) backend: String,
    /// The guest's MTU in bytes.
    pub(crate) mtu: u16,
    /// Processors that were busy with other things when the run began.
    pub(crate) others_cpus: f64,
    /// From the guest's start until it had its addresses.
    pub(crate) boot_seconds: f64,
    /// The guest's kernel.
    pub(crate) guest_kernel: String,
    /// The backend's memory before any payload.
    pub(crate) idle: Memory,
    /// The share of a processor that the backend used with nothing to do.
    pub(crate) idle_cpus: f64,
    /// One-byte round trips over TCP.
    pub(crate) round_trip: RoundTrip,
    /// Bulk measurements.
    pub(crate) tests: Vec<Test>,
}

/// One-byte round trips between host and guest over one TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundTrip {
    /// Median in microseconds.
    pub(crate) median_us: f64,
    /// 99th percentile in microseconds.
    pub(crate) p99_us: f64,
    /// How many there were.
    pub(crate) count: usize,
}

/// One bulk measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Test {
    /// Which way.
    pub(crate) direction: Direction,
    /// Throughput at the receiver after the warm-up.
    pub(crate) gbits: f64,
    /// The same for each second.
    pub(crate) course_gbits: Vec<f64>,
    /// Segments sent again.
    pub(crate) retransmits: Option<u64>,
    /// 10^9 bytes received, those of the warm-up included.
    pub(crate) gigabytes: f64,
    /// From before iperf3's start until after its report.
    pub(crate) wall_seconds: f64,
    /// The backend's CPU time in that time.
    pub(crate) backend: Cpu,
    /// The guest's: for the host, the guest's kernel is a program too.
    pub(crate) guest: Cpu,
    /// iperf3's on the host.
    pub(crate) peer: Cpu,
    /// CPU seconds in that time that belong to none of them.
    pub(crate) others_seconds: f64,
}

impl Test {
    /// The backend's CPU seconds for 10^9 bytes.
    pub(crate) fn cpu_per_gb(&self) -> f64 {
        self.backend.total() / self.gigabytes
    }

    /// How many processors others kept busy.
    pub(crate) fn others_cpus(&self) -> f64 {
        self.others_seconds / self.wall_seconds
    }
}

// In the order in which they end.
struct Bench {
    begin: Instant,
    guest: Guest,
    backend: RunningBackend,
    pod: Pod,
}

/// Makes one run.
///
/// # Errors
/// Something did not start or broke down; the backend's log is part of the error.
pub(crate) fn run(backend: Backend, round: u32, mtu: u16, length: Length) -> Result<Run> {
    let others_cpus = others()?;
    let pod = Pod::new(NetOptions::default())?;
    let options = BackendOptions { mtu: Some(mtu), ..Default::default() };
    let running = backend.start(&pod, &options)?;
    let begin = Instant::now();
    // IPv4 only: the guest is ready a second earlier.
    let vhost = Vhost { kernel: vec!["pv.dhcp=4".into()], memory_mib: 512, ..Default::default() };
    let guest = match Guest::boot(Boot::Uml, &pod, &vhost) {
        Ok(guest) => guest,
        Err(error) => bail!("{error:#}\n{}", running.process.log()),
    };
    let boot_seconds = begin.elapsed().as_secs_f64();
    if guest.said("mtu")? != mtu.to_string() {
        bail!("the guest's MTU is {}, not {mtu}", guest.said("mtu")?);
    }
    let guest_kernel = guest.said("kernel")?.to_owned();
    let mut bench = Bench { begin, guest, backend: running, pod };
    let idle_cpus = bench.idle_cpus()?;
    let idle = usage::memory(bench.backend.process.init_pid()?)?;
    let measured = (|| {
        let round_trip = bench.round_trip().context("round trips")?;
        let mut tests = Vec::new();
        for direction in Direction::ALL {
            tests.push(bench.bulk(direction, length).with_context(|| format!("{direction:?}"))?);
        }
        anyhow::Ok((round_trip, tests))
    })();
    let (round_trip, tests) = match measured {
        Ok(measured) => measured,
        Err(error) => bail!("{error:#}\n{}", bench.backend.process.log()),
    };
    let backend = backend.to_string();
    Ok(Run {
        round,
        backend,
        mtu,
        others_cpus,
        boot_seconds,
        guest_kernel,
        idle,
        idle_cpus,
        round_trip,
        tests,
    })
}

/// Processors that are busy now, when nothing of ours runs.
pub(crate) fn others() -> Result<f64> {
    let (begin, before) = (Instant::now(), usage::busy()?);
    sleep(IDLE);
    Ok((usage::busy()? - before).max(0.0) / begin.elapsed().as_secs_f64())
}

impl Bench {
    fn idle_cpus(&self) -> Result<f64> {
        let init = self.backend.process.init_pid()?;
        let (begin, before) = (Instant::now(), usage::cpu(init)?);
        sleep(IDLE);
        Ok((usage::cpu(init)? - before).total() / begin.elapsed().as_secs_f64())
    }

    fn round_trip(&mut self) -> Result<RoundTrip> {
        let address = SocketAddr::from((self.pod.net.client4, ECHO));
        let listener = self.pod.net.client.enter(|| Ok(TcpListener::bind(address)?))?;
        listener.set_nonblocking(true)?;
        self.guest.console.type_line(&format!("socat TCP4:{address},nodelay PIPE &"))?;
        let mut stream = until("the guest's connection", PATIENCE, || match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e.into()),
        })?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        round_trips(&mut stream)
    }

    fn bulk(&mut self, direction: Direction, length: Length) -> Result<Test> {
        let port = direction.port();
        let server = self.pod.peer(&format!("iperf3-{}", direction.key())).spawn(&[
            "iperf3",
            "--server",
            "--json",
            "--port",
            &port.to_string(),
        ])?;
        let client = &self.pod.net.client;
        until("iperf3's port", PATIENCE, || {
            let sockets = client.enter(|| Ok(fs::read_to_string("/proc/thread-self/net/tcp6")?))?;
            Ok(listens(&sockets, port).then_some(()))
        })?;
        let before = self.sample(&server)?;
        let Length { seconds, warm_up_seconds } = length;
        let reverse = if direction == Direction::H2g { " --reverse" } else { "" };
        let address = self.pod.net.client4;
        let limit = Duration::from_secs((seconds + warm_up_seconds).into()) + PATIENCE;
        let command = format!(
            "iperf3 --client {address} --port {port} --json --time {seconds} --omit {warm_up_seconds}{reverse}"
        );
        let guests = self.guest.console.run(&command, limit)?.text;
        // The server's report is complete when it can be read.
        let hosts = until("iperf3's report", PATIENCE, || Ok(Report::parse(&server.log()).ok()));
        let after = self.sample(&server)?;
        let guests = Report::parse(&guests)?;
        let hosts = hosts.with_context(|| server.log())?;
        let (sender, receiver) = match direction {
            Direction::G2h => (&guests, &hosts),
            Direction::H2g => (&hosts, &guests),
        };
        let used = after.since(&before);
        Ok(Test {
            direction,
            gbits: receiver.gbits()?,
            course_gbits: receiver.course(),
            retransmits: sender.retransmits(),
            gigabytes: receiver.gigabytes(),
            wall_seconds: used.at,
            backend: used.backend,
            guest: used.guest,
            peer: used.peer,
            others_seconds: (used.busy - used.ours).max(0.0),
        })
    }

    /// What has been used so far, since some beginning.
    fn sample(&self, peer: &Process) -> Result<Sample> {
        Ok(Sample {
            at: self.begin.elapsed().as_secs_f64(),
            busy: usage::busy()?,
            // All that this program started, and itself.
            ours: usage::cpu(Pid::this())?.total(),
            backend: usage::cpu(self.backend.process.init_pid()?)?,
            guest: usage::cpu(self.guest.process.init_pid()?)?,
            peer: usage::cpu(peer.init_pid()?)?,
        })
    }
}

/// Seconds, all of them.
struct Sample {
    at: f64,
    busy: f64,
    ours: f64,
    backend: Cpu,
    guest: Cpu,
    peer: Cpu,
}

impl Sample {
    fn since(&self, before: &Sample) -> Sample {
        Sample {
            at: self.at - before.at,
            busy: self.busy - before.busy,
            ours: self.ours - before.ours,
            backend: self.backend - before.backend,
            guest: self.guest - before.guest,
            peer: self.peer - before.peer,
        }
    }
}

/// Whether somebody listens on a port, from /proc/net/tcp6 (iperf3 listens for both families at once).
fn listens(sockets: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|l| l.ends_with(&port)) && state == Some(LISTEN)
    })
}

/// Sends bytes one by one over an echoing connection.
fn round_trips(stream: &mut (impl Read + Write)) -> Result<RoundTrip> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < ROUND_TRIPS {
        let sent = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    let count = times.len();
    let mut at = |share| percentile(&mut times, share).context("no round trip");
    Ok(RoundTrip { median_us: at(0.5)?, p99_us: at(0.99)?, count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const SOCKETS: &str = "  sl  local_address remote_address st tx_queue rx_queue
   0: 00000000000000000000000000000000:1451 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000";

    #[test]
    fn a_port_is_open_when_somebody_listens_on_it() {
        assert!(listens(SOCKETS, 5201));
        assert!(!listens(SOCKETS, 5202));
        assert!(!listens(&SOCKETS.replace(" 0A ", " 01 "), 5201));
        assert!(!listens("", 5201));
    }

    #[test]
    fn round_trips_are_counted() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let echo = std::thread::spawn(move || {
            let mut writer = far.try_clone().unwrap();
            std::io::copy(&mut &far, &mut writer).unwrap();
        });
        let round_trip = round_trips(&mut near).unwrap();
        drop(near);
        echo.join().unwrap();
        assert!(round_trip.count > 0);
        assert!(round_trip.median_us <= round_trip.p99_us);
    }

    #[test]
    fn a_connection_that_closes_has_no_round_trips() {
        let (mut near, far) = UnixStream::pair().unwrap();
        drop(far);
        assert!(round_trips(&mut near).is_err());
    }
}
