//! What all ports cost: connections accepted a second and kernel memory, with a listener and steered to.
//!
//! One thread in the pod's network accepts and closes, one in the client's connects, waits for the end and resets, for two
//! seconds; plain and steered take turns, so that what slows one slows the other. This program plays netd: it lends its own listener
//! to the node agent's library, and reads the memory of what it gets back from `/proc/self/fdinfo`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket, sockopt,
};
use podvirt_e2e::{Net, NetOptions};
use podvirt_proto::steering::{Answer, Held, Offer, VERSION, recv, send};
use serde::{Deserialize, Serialize};
use virt_handler::ports::{Namespace, Steering};

use crate::machine::{self, Machine};
use crate::report::{cell, table};
use crate::stats::Summary;

/// One measurement.
const RUN: Duration = Duration::from_secs(2);
/// Turns of plain and steered.
const ROUNDS: usize = 5;
/// The port of the plain listener, which the program leaves alone because it is listened on.
const PLAIN: u16 = 8080;
/// A port that nobody listens on.
const STEERED: u16 = 9090;

/// The file `perf/results/ports.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ports {
    /// UTC.
    pub(crate) date: String,
    /// The state of the sources.
    pub(crate) commit: String,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// Connections a second through a listener of their port, by family.
    pub(crate) plain_per_second: [Summary; 2],
    /// The same, steered to a listener of another port.
    pub(crate) steered_per_second: [Summary; 2],
    /// Steered divided by plain, the median of the rounds, by family.
    pub(crate) ratio: [f64; 2],
    /// Kernel memory of program and maps, bytes.
    pub(crate) kernel_bytes: u64,
}

impl Ports {
    /// The last result, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(results: &Path) -> Result<Option<Ports>> {
        crate::read(&results.join("ports.json"))
    }

    /// Writes the file and returns its text.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, results: &Path) -> Result<String> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(results.join("ports.json"), &text)?;
        Ok(text)
    }

    /// What the page tells of it.
    pub(crate) fn section(&self) -> String {
        let rows: Vec<Vec<String>> = ["IPv4", "IPv6"]
            .iter()
            .enumerate()
            .map(|(i, family)| {
                let (plain, steered) = (self.plain_per_second[i], self.steered_per_second[i]);
                let ratio = format!("{:.2}", self.ratio[i]);
                vec![(*family).to_owned(), cell(Some(plain), 0), cell(Some(steered), 0), ratio]
            })
            .collect();
        let head = ["accepted connections a second", "plain listener", "steered", "steered ÷ plain"];
        format!(
            "\n## All ports\n\nEvery port of a pod leads to two sockets by a program at the kernel's socket lookup, whose maps take {} \
             bytes of kernel memory; a listener for each port takes 295 MiB. What a connection through it costs beside a \
             listener of its own, measured in turns ({}, commit {}; `perf ports`):\n\n{}",
            self.kernel_bytes,
            self.date,
            self.commit,
            table(&head, &rows)
        )
    }
}

/// Measures, prints and writes the file.
///
/// # Errors
/// Without root, or when the network or the steering cannot be had.
pub(crate) fn run(results: &Path, out: &mut impl Write) -> Result<()> {
    let text = measure()?.write(results)?;
    Ok(out.write_all(text.as_bytes())?)
}

/// Measures.
///
/// # Errors
/// Without root, or when the network or the steering cannot be had.
pub(crate) fn measure() -> Result<Ports> {
    let net = Net::up(NetOptions::default())?;
    let listener = |port| net.pod.enter(move || Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?));
    let (plain, own) = (listener(PLAIN)?, listener(0)?);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("ports.sock");
    let server = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    bind(server.as_raw_fd(), &UnixAddr::new(&path)?)?;
    listen(&server, Backlog::new(1)?)?;
    let _steering = Steering::start(Namespace::open(&Path::new("/run/netns").join(net.pod.name()))?, path)?;
    let agent = accepted(&server)?;
    let offer = Offer { version: VERSION, tcp: true, ..Offer::default() };
    send(agent.as_fd(), &offer, &[own.as_fd()])?;
    let (answer, fds) = recv::<Answer>(agent.as_fd())?.context("the agent has closed")?;
    let held = Held::from_fds(fds).with_context(|| format!("not attached: {answer:?}"))?;
    let kernel_bytes = memory(&held)?;

    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (family, rates) in rates.iter_mut().enumerate() {
            for ((listener, port), rates) in [(&plain, PLAIN), (&own, STEERED)].into_iter().zip(rates) {
                rates.push(rate(&net, listener, Net::pod_addresses(port)[family])?);
            }
        }
    }
    let summary =
        |family: usize, way: usize| Summary::of(rates[family][way].iter().copied()).context("no rounds");
    let ratio = |family: usize| {
        let [plain, steered] = &rates[family];
        Summary::of(plain.iter().zip(steered).map(|(p, s)| s / p)).map(|s| s.median).context("no rounds")
    };
    Ok(Ports {
        date: machine::now()?,
        commit: machine::commit(),
        machine: Machine::this()?,
        plain_per_second: [summary(0, 0)?, summary(1, 0)?],
        steered_per_second: [summary(0, 1)?, summary(1, 1)?],
        ratio: [ratio(0)?, ratio(1)?],
        kernel_bytes,
    })
}

fn accepted(server: &OwnedFd) -> Result<OwnedFd> {
    use std::os::unix::net::UnixListener;
    // A listener of any kind accepts alike.
    let listener = UnixListener::from(server.try_clone()?);
    Ok(OwnedFd::from(listener.accept()?.0))
}

/// `memlock` of link, maps and program, as the kernel accounts for them.
fn memory(held: &Held) -> Result<u64> {
    let mut bytes = 0;
    for fd in [&held.sockets, &held.closed] {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let line = info.lines().find_map(|l| l.strip_prefix("memlock:")).context("no memlock in fdinfo")?;
        bytes += line.trim().parse::<u64>()?;
    }
    Ok(bytes)
}

/// Connections a second to `to`, which `listener` accepts.
fn rate(net: &Net, listener: &TcpListener, to: SocketAddr) -> Result<f64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // The last one is this program's own, to end the wait.
                drop(listener.accept());
            }
        });
        let counted = net.client.enter(|| {
            let start = Instant::now();
            let mut count = 0u32;
            while start.elapsed() < RUN {
                let mut stream = TcpStream::connect(to)?;
                // Its end before the next one's beginning: a full queue of connections would cost a second each time.
                stream.read_exact(&mut [0]).err().context("the listener speaks")?;
                // No TIME-WAIT: the ports would run out.
                setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
                count += 1;
            }
            Ok(f64::from(count) / start.elapsed().as_secs_f64())
        });
        stop.store(true, Ordering::Relaxed);
        net.client.enter(|| Ok(TcpStream::connect(to)?))?;
        counted
    })
}
