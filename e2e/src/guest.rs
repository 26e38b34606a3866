//! A Linux guest on a vhost-user socket, in a container of the pod.
//!
//! The tiny guest boots under QEMU's TCG in six seconds and as User Mode Linux (UML) in one and a half. Both run the
//! same initramfs; UML moves 10 to 20 times as many bytes a second, QEMU has all of virtio-net.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use podvirt_bed_tools::{Console, Output};

use crate::artefacts::artefact;
use crate::backend::Backend;
use crate::pod::{Pod, Sandbox};
use crate::process::Process;
use crate::qmp::Qmp;

/// Boot to GUEST-READY under TCG on a busy machine; six seconds on an idle one.
const BOOT: Duration = Duration::from_secs(120);
/// The same for a whole distribution.
const BOOT_DEBIAN: Duration = Duration::from_secs(400);
/// A command that does something with the network.
const COMMAND: Duration = Duration::from_secs(60);
/// Start of QEMU until it opens its sockets.
const START: Duration = Duration::from_secs(30);

/// What the guest is and runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The tiny guest under QEMU with TCG, virtio-net-pci.
    Qemu,
    /// Debian with systemd and cloud-init from its disk, under QEMU as well; a minute.
    Debian,
    /// The tiny guest as User Mode Linux with virtio_uml: one CPU, one queue pair, a random MAC address, no offloads of its own.
    Uml,
}

/// How the guest is connected.
#[derive(Clone, Debug)]
pub struct Vhost {
    /// QEMU listens on the socket and the backend connects.
    pub listens: bool,
    /// Queue pairs (QEMU only), as many vCPUs.
    pub queue_pairs: u16,
    /// Further properties of QEMU's virtio-net-pci, e.g. `host_mtu=1400`.
    pub device: Vec<String>,
    /// Further words of the kernel's command line; see `e2e/guest/tiny/init`.
    pub kernel: Vec<String>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// QEMU waits for a guest that comes from elsewhere (QEMU only): the monitor says from where.
    pub incoming: bool,
    /// The one processor that all of its processes share (UML only): see [`uml_command`].
    pub processor: Option<usize>,
    /// The pod's tap device that stands in for the socket (QEMU only); the pod's directory has its node, `tun`.
    pub tap: Option<&'static str>,
}

impl Default for Vhost {
    fn default() -> Vhost {
        Vhost {
            listens: false,
            queue_pairs: 1,
            device: vec![],
            kernel: vec![],
            memory_mib: 256,
            incoming: false,
            processor: None,
            tap: None,
        }
    }
}

/// A running guest; dropping it ends it.
pub struct Guest {
    /// Its serial console.
    pub console: Console,
    /// Its container.
    pub process: Process,
    qmp: Option<Qmp>,
    ready: String,
    boots: usize,
}

impl Guest {
    /// The Ethernet address of a guest under QEMU.
    pub const MAC: &str = "52:54:00:11:22:33";

    /// Boots the guest and waits until it has its addresses.
    ///
    /// # Errors
    /// It does not come up; what it printed is part of the error.
    pub fn boot(boot: Boot, pod: &Pod, vhost: &Vhost) -> Result<Guest> {
        let mut guest = Guest::start(boot, pod, vhost)?;
        guest.wait_ready(if boot == Boot::Debian { BOOT_DEBIAN } else { BOOT })?;
        Ok(guest)
    }

    /// A guest that `process` starts with its serial console on `console`, not connected yet; waits until it has its
    /// addresses. It has no monitor.
    ///
    /// # Errors
    /// It does not come up; what `process` printed is part of the error.
    pub fn attach(process: Process, console: &Path) -> Result<Guest> {
        let console = Console::connect(console, BOOT);
        let console = console.with_context(|| format!("its console: {}", process.log()))?;
        let mut guest = Guest { console, process, qmp: None, ready: String::new(), boots: 0 };
        guest.wait_ready(BOOT)?;
        Ok(guest)
    }

    fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        self.boots += 1;
        match self.console.wait_for_nth("GUEST-READY", self.boots, limit) {
            Ok(line) => self.ready = line,
            Err(e) => bail!("{e}\n{}\n{}", self.console.screen(), self.process.log()),
        }
        Ok(())
    }

    /// Starts it anew from inside, without warning, and waits until it has its addresses again.
    ///
    /// # Errors
    /// It does not come up.
    pub fn reboot(&mut self) -> Result<()> {
        self.console.type_line("reboot -f")?;
        self.wait_ready(BOOT)
    }

    /// Starts a program in the background that serves `port` by TCP or UDP, and waits until it does; what it prints
    /// goes to `/tmp/PORT.log`. [`Guest::unserve`] ends it.
    ///
    /// # Errors
    /// The port is not served.
    pub fn serve(&mut self, port: u16, program: &str) -> Result<()> {
        let listens = format!("ss -Hltun | grep -q ':{port} '");
        let wait =
            format!("i=0; until {listens}; do i=$((i + 1)); [ $i -lt 600 ] || exit 1; usleep 50000; done");
        self.sh(&format!("{program} >/tmp/{port}.log 2>&1 & echo $! >/tmp/{port}.pid; ({wait})")).map(drop)
    }

    /// Ends the program that serves `port`; one that ends by itself is waited for by `wait`.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn unserve(&mut self, port: u16) -> Result<()> {
        self.run(&format!("kill $(cat /tmp/{port}.pid); wait $(cat /tmp/{port}.pid)")).map(drop)
    }

    /// Starts the guest and returns at once.
    ///
    /// # Errors
    /// Its container or QEMU does not start.
    pub fn start(boot: Boot, pod: &Pod, vhost: &Vhost) -> Result<Guest> {
        match boot {
            Boot::Qemu | Boot::Debian => {
                let (image, start) = match boot {
                    Boot::Debian => ("debian", disk_arguments()),
                    _ => ("tiny", kernel_arguments(vhost)),
                };
                let mut container = pod.container("qemu")?.ro(&artefact(image)?, "/guest");
                if vhost.tap.is_some() {
                    container = container.ro(&pod.path("tun"), "/dev/net/tun");
                }
                let process = container.spawn(&[qemu_arguments(vhost), start].concat())?;
                let connected = Console::connect(&pod.path("serial.sock"), START)
                    .and_then(|console| Ok((console, Qmp::connect(&pod.path("qmp.sock"), START)?)));
                let (console, qmp) = connected.with_context(|| format!("QEMU says: {}", process.log()))?;
                Ok(Guest { console, process, qmp: Some(qmp), ready: String::new(), boots: 0 })
            }
            Boot::Uml => {
                let container = uml_container(pod)?;
                let (process, console) = container.spawn_with_console(&uml_arguments(vhost))?;
                Ok(Guest { console, process, qmp: None, ready: String::new(), boots: 0 })
            }
        }
    }

    /// A word of the line it printed when it was ready: `ip`, `ip6`, `mtu`, `nic`, `kernel`, `uptime`.
    ///
    /// # Errors
    /// The line has no such word, or it is empty.
    pub fn said(&self, name: &str) -> Result<&str> {
        let value = self.ready.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        let value = value.filter(|v| !v.is_empty());
        value.with_context(|| format!("the guest is ready without {name}: {}", self.ready))
    }

    /// Runs a shell command in it that must succeed.
    ///
    /// # Errors
    /// It failed, or took more than a minute.
    pub fn sh(&mut self, command: &str) -> Result<String> {
        self.console.sh(command, COMMAND)
    }

    /// Runs a shell command in it.
    ///
    /// # Errors
    /// It took more than a minute.
    pub fn run(&mut self, command: &str) -> Result<Output> {
        self.console.run(command, COMMAND)
    }

    /// Pings `address` from the guest until it answers, at most five times; a first packet may be lost to neighbour
    /// discovery.
    ///
    /// # Errors
    /// There was no answer.
    pub fn ping(&mut self, address: IpAddr) -> Result<()> {
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        self.sh(&format!("for i in 1 2 3 4 5; do ping {family} -c 1 -W 2 {address} && break; done")).map(drop)
    }

    /// QEMU's monitor.
    ///
    /// # Errors
    /// The guest does not run under QEMU.
    pub fn qmp(&mut self) -> Result<&mut Qmp> {
        self.qmp.as_mut().context("this guest has no monitor")
    }

    /// Switches it off as a button would and waits for its end.
    ///
    /// # Errors
    /// It goes on.
    pub fn shut_down(mut self) -> Result<()> {
        match &mut self.qmp {
            Some(qmp) => drop(qmp.execute("system_powerdown", serde_json::json!({}))?),
            None => self.console.type_line("poweroff -f")?,
        }
        self.process.wait(BOOT).map(drop)
    }

    /// Ends it without warning.
    ///
    /// # Errors
    /// It has ended already.
    pub fn kill(mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(BOOT).map(drop)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn kernel_arguments(vhost: &Vhost) -> Vec<String> {
    // init_on_alloc costs a third of the speed under TCG, and the tests of ciphers a second of the start; the mitigations have
    // nothing to protect there.
    let line = format!(
        "console=ttyS0 quiet mitigations=off init_on_alloc=0 cryptomgr.notests {}",
        vhost.kernel.join(" ")
    );
    let mut arguments = words("-kernel /guest/vmlinux -initrd /guest/initrd.img -append");
    arguments.push(line);
    arguments
}

fn disk_arguments() -> Vec<String> {
    words("-snapshot -drive file=/guest/disk.qcow2,if=virtio,format=qcow2")
}

fn qemu_arguments(vhost: &Vhost) -> Vec<String> {
    let (pairs, memory) = (vhost.queue_pairs, vhost.memory_mib);
    let chardev = if vhost.listens { ",server=on,wait=off" } else { ",reconnect-ms=500" };
    let mut device = vec![format!("virtio-net-pci,netdev=net,mac={}", Guest::MAC)];
    // QEMU does not tell a vhost-user backend when the guest changes its offloads: it must not be able to.
    device.push("ctrl_guest_offloads=off".into());
    if pairs > 1 {
        device.push(format!("mq=on,vectors={}", 2 * pairs + 2));
    }
    device.extend_from_slice(&vhost.device);
    let netdev = match vhost.tap {
        Some(tap) => format!("-netdev tap,id=net,ifname={tap},script=no,downscript=no,vhost=off"),
        None => format!(
            "-chardev socket,id=vhost,path=/w/{}{chardev} -netdev vhost-user,id=net,chardev=vhost,queues={pairs}",
            Backend::SOCKET
        ),
    };
    let arguments = [
        "qemu-system-x86_64 -nodefaults -no-user-config -display none",
        "-machine q35,memory-backend=memory -accel tcg,thread=multi -cpu max",
        &format!("-smp {pairs} -m {memory} -object memory-backend-memfd,id=memory,size={memory}M,share=on"),
        // The guest's first words wait for the console.
        "-chardev socket,id=serial,path=/w/serial.sock,server=on,wait=on -serial chardev:serial",
        "-qmp unix:/w/qmp.sock,server=on,wait=off",
        &netdev,
        &format!("-device {}", device.join(",")),
        if vhost.incoming { "-incoming defer" } else { "" },
    ];
    arguments.iter().flat_map(|a| words(a)).collect()
}

/// The program of [`uml_container`] and what is preloaded; all of its processes run on `processor`, if one is given.
///
/// The kernel of User Mode Linux is a process, and so is each address space of its programs; one of all these runs at a time.
/// If the host's scheduler places them on several processors, each system call of the guest wakes two that have gone idle, which
/// can take as long as all the rest of a round trip. A virtual processor of a hypervisor is one thread: what is measured with one
/// processor is nearer to that.
#[must_use]
pub fn uml_command(processor: Option<usize>) -> String {
    let pinned = processor.map_or_else(String::new, |n| format!("taskset --cpu-list {n} "));
    format!("{pinned}env LD_PRELOAD=/mnt/umlwake/wake.so /mnt/uml/linux.uml")
}

/// A container for User Mode Linux and the tiny guest.
///
/// # Errors
/// An artefact cannot be built, or the container cannot be made.
pub fn uml_container(pod: &Pod) -> Result<Sandbox> {
    Ok(pod
        .container("uml")?
        .ro(&artefact("tiny")?, "/guest")
        .ro(&artefact("uml")?, "/mnt/uml")
        .ro(&artefact("umlwake")?, "/mnt/umlwake"))
}

fn uml_arguments(vhost: &Vhost) -> Vec<String> {
    let fixed = [
        &uml_command(vhost.processor),
        "initrd=/guest/initrd.img con0=fd:0,fd:1 con=null ssl=null",
        &format!("mem={}M virtio_uml.device=/w/{}:1", vhost.memory_mib, Backend::SOCKET),
        "quiet",
        &vhost.kernel.join(" "),
    ];
    fixed.iter().flat_map(|a| words(a)).collect()
}
