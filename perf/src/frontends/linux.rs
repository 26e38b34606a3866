//! The tiny guest: on a vhost-user socket as in the end-to-end tests, or behind a tap device or QEMU's own network. In its
//! place may stand a shell in the pod itself, without a guest.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use podvirt_e2e::artefacts::{artefact, program_dir};
use podvirt_e2e::{Boot, Console, Family, Guest, Pod, Process, Vhost, uml_command, uml_container};

use super::masquerade;
use crate::bed::{GUEST_PORT, TIMEOUT};
use crate::plan::{Case, Frontend, Peer, Setup};

/// Boot of a guest; TCG on a busy machine is slow.
const BOOT: Duration = Duration::from_secs(120);
/// slirp's network.
const SLIRP: [&str; 3] = ["10.0.2.15/24", "10.0.2.2", "fe80::2"];

/// A running guest.
pub(crate) enum Linux {
    /// On a vhost-user socket.
    Vhost(Box<Guest>),
    /// On something else.
    Other(Console, Process),
    /// No guest: a shell in a container of the pod.
    Pod(Console, Process),
}

impl Linux {
    /// What it runs in.
    pub(crate) fn process(&self) -> &Process {
        match self {
            Linux::Vhost(guest) => &guest.process,
            Linux::Other(_, process) | Linux::Pod(_, process) => process,
        }
    }

    /// Its console.
    pub(crate) fn console(&mut self) -> &mut Console {
        match self {
            Linux::Vhost(guest) => &mut guest.console,
            Linux::Other(console, _) | Linux::Pod(console, _) => console,
        }
    }

    /// Whether its programs are processes of the pod.
    pub(crate) fn is_pod(&self) -> bool {
        matches!(self, Linux::Pod(..))
    }

    /// Runs a command that must succeed.
    ///
    /// # Errors
    /// It fails or takes longer than `limit`.
    pub(crate) fn sh(&mut self, command: &str, limit: Duration) -> Result<String> {
        self.console().sh(command, limit)
    }

    /// Starts a program in the background that serves a port, and waits until it does.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn start(&mut self, program: &str, port: u16) -> Result<()> {
        let listens = format!("ss -Hltun | grep -q ':{port} '");
        let wait =
            format!("i=0; until {listens}; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 50000; done");
        self.sh(&format!("{program} >/tmp/{port}.log 2>&1 & ({wait})"), TIMEOUT).map(drop)
    }

    /// The release of its kernel.
    ///
    /// # Errors
    /// The guest is gone.
    pub(crate) fn kernel(&mut self) -> Result<String> {
        self.sh("uname -r", TIMEOUT)
    }
}

/// Boots the guest and gives it addresses.
///
/// # Errors
/// It does not come up; what it printed is part of the error.
pub(crate) fn start(pod: &Pod, setup: &Setup, peer: Peer) -> Result<Linux> {
    // Twenty thousand connections are memory of the guest, too.
    let memory_mib = if setup.cases.contains(&Case::Flows) { 1024 } else { 512 };
    match peer {
        Peer::Netd | Peer::Passt => {
            let boot = if setup.frontend == Frontend::Tcg { Boot::Qemu } else { Boot::Uml };
            // IPv4 alone is ready a second earlier.
            let dhcp = if setup.family == Family::V4 { "pv.dhcp=4" } else { "pv.dhcp=46" };
            let vhost = Vhost {
                kernel: vec![dhcp.into()],
                memory_mib,
                processor: Some(processor()?),
                ..Default::default()
            };
            let guest = Guest::boot(boot, pod, &vhost)?;
            let mtu = guest.said("mtu")?;
            ensure!(mtu == setup.mtu.to_string(), "the guest's MTU is {mtu}, not {}", setup.mtu);
            Ok(Linux::Vhost(Box::new(guest)))
        }
        Peer::Tap => {
            masquerade::set_up(pod, setup.mtu, &[GUEST_PORT])?;
            let netdev = format!("tap,id=net,ifname={},script=no,downscript=no,vhost=off", masquerade::TAP);
            let mut guest = match setup.frontend {
                Frontend::Uml => uml(pod, memory_mib, setup.mtu)?,
                _ => qemu(pod, memory_mib, &netdev)?,
            };
            guest.sh(&masquerade::addresses(setup.mtu, setup.family == Family::V6), TIMEOUT)?;
            Ok(guest)
        }
        Peer::Slirp => {
            ensure!(setup.frontend == Frontend::Tcg, "slirp is a part of QEMU");
            let forward = |p| format!("hostfwd={p}::{GUEST_PORT}-:{GUEST_PORT}");
            let netdev = format!("user,id=net,ipv6=off,{},{}", forward("tcp"), forward("udp"));
            let mut guest = qemu(pod, memory_mib, &netdev)?;
            guest.sh(&by_hand(setup.mtu, SLIRP[0], SLIRP[1]), TIMEOUT)?;
            Ok(guest)
        }
        Peer::Plain => {
            let container = pod.container("plain")?.ro(&program_dir("perf-agent")?, "/podvirt");
            let (process, mut console) = container.spawn_with_console(&["sh"])?;
            console.sh("true", TIMEOUT)?;
            Ok(Linux::Pod(console, process))
        }
    }
}

/// What gives a guest its MTU and IPv4 address by hand, where it is not told them; `$nic` is its interface then.
pub(crate) fn by_hand(mtu: u16, address: &str, router: &str) -> String {
    let find = "nic=$(ls /sys/class/net | grep -E '^(eth|en|vec)' | head -n 1)";
    format!(
        "{find}; ip link set $nic mtu {mtu} up && ip addr add {address} dev $nic && ip route add default via {router}"
    )
}

fn booted(console: Console, process: Process) -> Result<Linux> {
    match console.wait_for("GUEST-READY", BOOT) {
        Ok(_) => Ok(Linux::Other(console, process)),
        Err(e) => bail!("{e}\n{}\n{}", console.screen(), process.log()),
    }
}

/// The processor of a guest that is User Mode Linux: the last of those that this process may run on.
fn processor() -> Result<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut all = (0..CpuSet::count()).rev();
    all.find(|n| allowed.is_set(*n).unwrap_or(false)).context("no processor is allowed")
}

/// User Mode Linux on the tap device, with its own driver, which takes an MTU above 1500 at its start only.
fn uml(pod: &Pod, memory_mib: u32, mtu: u16) -> Result<Linux> {
    let container = uml_container(pod)?.ro(&pod.path(masquerade::NODE), "/dev/net/tun");
    let line = format!(
        "{} initrd=/guest/initrd.img con0=fd:0,fd:1 con=null ssl=null mem={memory_mib}M \
         vec0:transport=tap,ifname={},depth=128,gro=1,mtu={mtu} quiet pv.dhcp=no",
        uml_command(Some(processor()?)),
        masquerade::TAP
    );
    let (process, console) = container.spawn_with_console(&words(&line))?;
    booted(console, process)
}

fn qemu(pod: &Pod, memory_mib: u32, netdev: &str) -> Result<Linux> {
    let mut container = pod.container("qemu")?.ro(&artefact("tiny")?, "/guest");
    if netdev.starts_with("tap") {
        container = container.ro(&pod.path(masquerade::NODE), "/dev/net/tun");
    }
    // As the guests of the end-to-end tests, but for the network.
    let line = format!(
        "qemu-system-x86_64 -nodefaults -no-user-config -display none -machine q35 -accel tcg,thread=multi -cpu max \
         -smp 1 -m {memory_mib} -chardev socket,id=serial,path=/w/serial.sock,server=on,wait=on -serial chardev:serial \
         -netdev {netdev} -device virtio-net-pci,netdev=net,mac={} -kernel /guest/vmlinux -initrd /guest/initrd.img",
        Guest::MAC
    );
    let mut command = words(&line);
    command.extend([
        "-append".into(),
        "console=ttyS0 quiet mitigations=off init_on_alloc=0 pv.dhcp=no".to_owned(),
    ]);
    let process = container.spawn(&command)?;
    match Console::connect(&pod.path("serial.sock"), TIMEOUT) {
        Ok(console) => booted(console, process),
        Err(e) => bail!("{e}\n{}", process.log()),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
