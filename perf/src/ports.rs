//! What all ports cost: the memory they take of kernel and netd, and connections accepted a second, with a listener and
//! steered to.
//!
//! Memory is that of a netd to which all ports lead, TCP and UDP by IPv4 and IPv6, without a guest: the maps that it holds, as the
//! kernel accounts for them, the program, the sockets by the size of the kernel's objects, and what its own private
//! memory is more than that of a netd without any port.
//!
//! One thread in the pod's network accepts and closes, one in the client's connects, waits for the end and resets, for some
//! time; plain and steered take turns, so that what slows one slows the other. For these this program plays netd: it lends
//! its own listener to the node agent's library.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket, sockopt,
};
use nix::unistd::{SysconfVar, sysconf};
use podvirt_e2e::{Backend, BackendOptions, Net, NetOptions, Pod, until};
use podvirt_proto::steering::{Answer, Held, Offer, VERSION, recv, send};
use serde::{Deserialize, Serialize};
use virt_handler::ports::{Namespace, Steering};

use crate::machine::{self, Machine};
use crate::report::{cell, table};
use crate::stats::Summary;
use crate::usage;

/// How often memory is measured, with all ports and with none: where a heap ends differs by some pages.
const STARTS: usize = 3;
/// For steering to stand: two looks of the agent, with room for a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// A netd to which every port leads.
const ALL: &str = "-t all -u all --steering /w/ports.sock";
/// A netd to which none leads.
const NONE: &str = "-t none -u none";
/// What the kernel keeps for the sockets beside their files: names of its caches and how many objects. IPv6's two
/// serve both families; three are of UNIX sockets: netd's listener for the agent and both ends of their connection.
const OBJECTS: [(&str, u32); 4] = [("TCPv6", 1), ("UDPv6", 1), ("sock_inode_cache", 5), ("filp", 8)];
/// Size of a UNIX socket, which has no line of its own in /proc/slabinfo everywhere; rounded up, in bytes.
const UNIX_SOCKET: f64 = 1024.0;
/// The program's pages at most: its instructions, and what they are compiled to.
const PROGRAM_PAGES: f64 = 2.0;

/// How long and how often connections are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// One measurement.
    pub(crate) run: Duration,
    /// Turns of plain and steered.
    pub(crate) rounds: usize,
}

impl Extent {
    /// For a result that stands.
    pub(crate) const WHOLE: Extent = Extent { run: Duration::from_secs(2), rounds: 5 };
    /// For a look.
    pub(crate) const QUICK: Extent = Extent { run: Duration::from_millis(300), rounds: 1 };
}

/// The port of the plain listener, which the program leaves alone because it is listened on.
const PLAIN: u16 = 8080;
/// A port that no program listens on.
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
    /// Kernel memory of program, maps and sockets, bytes.
    pub(crate) kernel_bytes: f64,
    /// Private memory of netd, bytes; an older file tells only of the maps.
    #[serde(default)]
    pub(crate) user_bytes: Option<f64>,
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
        let memory = match self.user_bytes {
            Some(user) => {
                format!("which take {:.0} bytes of kernel memory and {user:.0} of netd's", self.kernel_bytes)
            }
            None => format!("whose maps take {:.0} bytes of kernel memory", self.kernel_bytes),
        };
        format!(
            "\n## All ports\n\nEvery port of a pod leads to two sockets by a program at the kernel's socket lookup, {memory}; a \
             listener for each port takes 295 MiB. What a connection through it costs beside a \
             listener of its own, measured in turns ({}, commit {}; `perf ports`):\n\n{}",
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
    let text = measure(Extent::WHOLE)?.write(results)?;
    Ok(out.write_all(text.as_bytes())?)
}

/// Measures.
///
/// # Errors
/// Without root, or when the network or the steering cannot be had.
pub(crate) fn measure(extent: Extent) -> Result<Ports> {
    let (kernel_bytes, user_bytes) = memory()?;
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
    let _held = Held::from_fds(fds).with_context(|| format!("not attached: {answer:?}"))?;

    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..extent.rounds {
        for (family, rates) in rates.iter_mut().enumerate() {
            for ((listener, port), rates) in [(&plain, PLAIN), (&own, STEERED)].into_iter().zip(rates) {
                rates.push(rate(&net, listener, Net::pod_addresses(port)[family], extent.run)?);
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
        user_bytes: Some(user_bytes),
    })
}

fn accepted(server: &OwnedFd) -> Result<OwnedFd> {
    use std::os::unix::net::UnixListener;
    // A listener of any kind accepts alike.
    let listener = UnixListener::from(server.try_clone()?);
    Ok(OwnedFd::from(listener.accept()?.0))
}

/// Memory that all ports take, of the kernel and of netd, in bytes.
fn memory() -> Result<(f64, f64)> {
    let (mut kernel, mut all, mut none) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let (maps, private) = of_netd(ALL)?;
        kernel.push(maps);
        all.push(private);
        none.push(of_netd(NONE)?.1);
    }
    let middle = |values: Vec<f64>| Summary::of(values).map(|s| s.median).context("no starts");
    let page = sysconf(SysconfVar::PAGE_SIZE)?.context("no page size")?;
    #[allow(clippy::cast_precision_loss, reason = "some thousand")]
    let program = page as f64 * PROGRAM_PAGES;
    let sockets = sockets(&fs::read_to_string("/proc/slabinfo")?)? + 3.0 * UNIX_SOCKET;
    Ok((middle(kernel)? + program + sockets, (middle(all)? - middle(none)?).max(0.0)))
}

/// Bytes of the maps that a fresh netd holds, and of its private memory; where it lends its sockets, an agent steers.
fn of_netd(arguments: &str) -> Result<(f64, f64)> {
    let pod = Pod::new(NetOptions::default())?;
    let options = BackendOptions {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        ..Default::default()
    };
    let netd = Backend::Netd.start(&pod, &options)?;
    let steering = if arguments.contains("--steering") {
        let namespace = Namespace::open(&Path::new("/run/netns").join(pod.net.pod.name()))?;
        let steering = Steering::start(namespace, pod.path("ports.sock"))?;
        until("steering", SOON, || Ok(steering.report().attached.then_some(())))
            .with_context(|| format!("{:?}\n{}", steering.report(), netd.process.log()))?;
        Some(steering)
    } else {
        None
    };
    let init = netd.process.init_pid()?;
    let mut maps = 0.0;
    for pid in usage::descendants(init) {
        for info in fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
            maps +=
                usage::kib(&fs::read_to_string(info.path()).unwrap_or_default(), "memlock").unwrap_or(0.0);
        }
    }
    ensure!(steering.is_none() || maps > 0.0, "netd holds no maps: {}", netd.process.log());
    Ok((maps, usage::memory(init)?.anonymous_mib * 1024.0 * 1024.0))
}

/// Bytes of [`OBJECTS`], from /proc/slabinfo (slabinfo(5): the fourth column is an object's size).
fn sockets(slabinfo: &str) -> Result<f64> {
    let size = |name: &str| {
        let line = slabinfo.lines().find(|l| l.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(3)?.parse::<f64>().ok()
    };
    OBJECTS.iter().try_fold(0.0, |sum, (name, count)| {
        Ok(sum + f64::from(*count) * size(name).with_context(|| format!("no {name} in /proc/slabinfo"))?)
    })
}

/// Connections a second to `to`, which `listener` accepts.
fn rate(net: &Net, listener: &TcpListener, to: SocketAddr, time: Duration) -> Result<f64> {
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
            while start.elapsed() < time {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_as_large_as_the_kernel_says() {
        let line = |(name, _): &(&str, u32)| format!("{name}  5 9 100 9 1 : tunables 0 0 0\n");
        let slabinfo: String = OBJECTS.iter().map(line).collect();
        assert_eq!(sockets(&slabinfo).unwrap(), 1500.0);
        assert!(sockets(&slabinfo.replace("UDPv6", "UDP")).unwrap_err().to_string().contains("UDPv6"));
    }
}
