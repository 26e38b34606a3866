//! Two pods with the same addresses at one bridge, of which one is heard, and a guest that moves between them.
//!
//! ```text
//!   guest ── tap0 ── TapPump ── Double ══ netd (process, pod 0) ── eth0 ─┐
//!   10.9.0.2/24, fd00:9::2/64        ╚══ netd (process, pod 1) ── eth0 ─┴─ br0  world
//!                                        10.9.0.2/24, fd00:9::2/64          10.9.0.1/24, fd00:9::1/64
//! ```
//!
//! A pod that is silent is at another bridge, where no peer is. The guest moves as with QEMU: memory is copied by the
//! dirty log while it runs, and the state goes through the frontend's pipes.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frontend_double::{Double, Options, Position, Source, TapOptions, TapPump};
use podvirt_proto::netd::v1::StatusResponse;
use podvirt_proto::steering::{self, Answer, Offer};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use super::helper::{Fault, Helper};
use crate::bed::{Family, GUEST_MAC, MAC, Namespace, eventually};
use crate::daemon::Daemon;
use crate::update::{counter, on_runtime};
use netctl::client::Client;
use netd::net::Mode;

/// The port of the socket to which netd lets UDP ports be steered, in both pods.
pub(crate) const STEERED: u16 = 7100;

/// Which of the pods' ports lead to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// 7000 to 7008, each by a listener. Those of UDP have other places among the listeners of the second pod.
    Forwarded,
    /// Every UDP port. No program steers them here: what comes is what is sent to [`STEERED`].
    Steered,
}

/// A netd process in a pod.
pub(crate) struct Process {
    daemon: Daemon,
    /// The end of the helper that steers its ports.
    steering: Option<Socket>,
    dir: TempDir,
}

impl Process {
    /// By this build's program or the one that PODVIRT_NETD names; `other`: by that of PODVIRT_OTHER_NETD, for migrations
    /// between versions. `more` is added to its configuration.
    fn start(pod: &Namespace, other: bool, ports: Ports, more: &str) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let (section, listeners) = match ports {
            Ports::Forwarded => {
                let udp = if other { "6999-7008" } else { "7000-7009" };
                (format!("{{tcp: '7000-7009', udp: '{udp}'}}"), 20)
            }
            Ports::Steered => {
                (format!("{{tcp: none, udp: all, steering: {}/ports.sock}}", dir.path().display()), 1)
            }
        };
        let config = format!(
            "vhost_user: {{socket: {0}/vm.sock}}\ncontrol: {{socket: {0}/control.sock}}\n\
             mac: '{MAC}'\nguest: {{mac: '{GUEST_MAC}'}}\nports: {section}\n\
             limits: {{flows: 20000, new_flows_per_second: 1000000, new_flows_burst: 1000000}}\n{more}\n",
            dir.path().display()
        );
        let file = dir.path().join("netd.yaml");
        std::fs::write(&file, config).unwrap();
        let program = std::env::var_os("PODVIRT_OTHER_NETD").filter(|_| other);
        let program = program.or_else(|| std::env::var_os("PODVIRT_NETD"));
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_netd").into());
        let launch = || Daemon::launch(Command::new(program), |command| command.arg("--config").arg(&file));
        let daemon = pod.run(launch);
        let mut process = Process { daemon, steering: None, dir };
        eventually("the ports", || (process.status().listeners == listeners).then_some(()));
        process.steering = (ports == Ports::Steered).then(|| process.hold_ports());
        process
    }

    /// Says that its ports are steered, so that it opens no listeners of its own.
    fn hold_ports(&self) -> Socket {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&SockAddr::unix(self.dir.path().join("ports.sock")).unwrap()).unwrap();
        let (offer, _sockets) = steering::recv::<Offer>(socket.as_fd()).unwrap().unwrap();
        assert!(offer.udp && !offer.held);
        // In place of the program and its maps.
        let nothing = File::open("/dev/null").unwrap();
        steering::send(socket.as_fd(), &Answer { attached: true, error: None }, &[nothing.as_fd(); 3])
            .unwrap();
        socket
    }

    pub(crate) fn vhost_user(&self) -> PathBuf {
        self.dir.path().join("vm.sock")
    }

    pub(crate) fn dial(&self) -> UnixStream {
        UnixStream::connect(self.vhost_user()).unwrap()
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        on_runtime(counter(&self.control(), name))
    }

    /// How often something was dropped or reset for a reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        let ask = async {
            let counters = Client::connect(&self.control()).await.unwrap().counters().await.unwrap();
            counters.dropped.into_iter().filter(|d| d.name == reason).map(|d| d.value).sum()
        };
        on_runtime(ask)
    }

    /// Its memory in KiB: what it has had at most since it began.
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// How many descriptors it has.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.daemon.0.id())).unwrap().count()
    }

    pub(crate) fn status(&self) -> StatusResponse {
        on_runtime(async { Client::connect(&self.control()).await.unwrap().status().await.unwrap() })
    }
}

/// How a move went.
pub(crate) struct Moved {
    /// From the last ring's stop to the first one's start.
    pub(crate) downtime: Duration,
    /// The process that the guest has left, until this is dropped.
    pub(crate) source: Process,
    /// Bytes of the state.
    pub(crate) state: u64,
}

/// Guest, pods and world.
pub(crate) struct Place {
    pub(crate) guest: Namespace,
    pub(crate) world: Arc<Namespace>,
    pub(crate) pods: [Arc<Namespace>; 2],
    ports: Ports,
    /// The pod in which the guest is.
    pub(crate) at: usize,
    pub(crate) process: Process,
    pub(crate) pump: TapPump,
    pub(crate) helper: Option<Helper>,
}

impl Place {
    pub(crate) fn new(ports: Ports) -> Place {
        let world = Namespace::new().unwrap();
        // Bridges have the address of a port otherwise, which comes and goes.
        for (name, address) in [("br0", "02:00:00:00:09:01"), ("br1", "02:00:00:00:09:ff")] {
            world.ip(&format!(
                "link add {name} address {address} type bridge mcast_snooping 0 forward_delay 0\n\
                 link set {name} up\n"
            ));
        }
        // The world does not answer at the second bridge.
        world.sysctl("ipv4/conf/br1/arp_ignore", "8");
        world.sysctl("ipv6/conf/br1/disable_ipv6", "1");
        world.ip("addr add 10.9.0.1/24 dev br0\naddr add fd00:9::1/64 dev br0 nodad\n");
        let pods = [0, 1].map(|i| {
            let pod = Namespace::new().unwrap();
            world.ip(&format!(
                "link add pod{i} type veth peer name eth0 address 02:00:00:00:09:02 netns {}\n\
                 link set pod{i} master br{i} up\n",
                pod.path().display()
            ));
            pod.ip("addr add 10.9.0.2/24 dev eth0\naddr add fd00:9::2/64 dev eth0 nodad\nlink set eth0 up\n\
                 route add default via 10.9.0.1\nroute add default via fd00:9::1\n");
            if ports == Ports::Steered {
                // The kernel chooses the steered socket's port.
                pod.sysctl("ipv4/ip_local_port_range", &format!("{STEERED} {STEERED}"));
            }
            Arc::new(pod)
        });
        let world = Arc::new(world);
        let guest = Namespace::new().unwrap();
        let [v4, v6] = families();
        guest.ip(&format!(
            "tuntap add dev tap0 mode tap vnet_hdr\nlink set tap0 address {GUEST_MAC} mtu 1500\n\
             addr add {}/24 dev tap0\naddr add {}/64 dev tap0 nodad\nlink set tap0 up\n\
             route add default via {} dev tap0\nroute add default via {} dev tap0\n",
            v4.guest, v6.guest, v4.gateway, v6.gateway
        ));
        announce(&pods[0]);
        let process = Process::start(&pods[0], false, ports, "");
        let options = Options { queue_size: 128, mem_mib: 1, ..Options::default() };
        let double = Double::from_stream(process.dial(), &options).unwrap();
        let tap = TapOptions { name: "tap0".into(), netns: Some(guest.path()) };
        let pump = TapPump::start(double, &tap).unwrap();
        let helper = Some(Helper::serve(&process.vhost_user(), Fault::None, || {}));
        Place { guest, world, pods, ports, at: 0, process, pump, helper }
    }

    /// Makes this pod heard, once. The other one goes on to be heard, but what its kernel sends, such as a look whether a
    /// neighbour is still there, leads no frame back to it.
    pub(crate) fn activation(&self, pod: usize) -> impl FnOnce() + Send + use<> {
        let (world, there) = (Arc::clone(&self.world), Arc::clone(&self.pods[pod]));
        move || {
            port(&world, pod, true);
            world.ip(&format!(
                "link set pod{} type bridge_slave learning off\nlink set pod{pod} type bridge_slave learning on\n",
                1 - pod
            ));
            announce(&there);
        }
    }

    fn double(&mut self) -> &mut Double {
        self.pump.double().unwrap()
    }

    /// Copies the memory while the guest runs, and stops it: where its rings stand.
    pub(crate) fn stop_guest(&mut self) -> Vec<Position> {
        self.double().begin_copy().unwrap();
        for _ in 0..3 {
            self.double().copy_dirty();
        }
        self.pump.pause().unwrap();
        let positions = self.double().stop_rings().unwrap();
        self.double().copy_dirty();
        assert_eq!(self.double().uncopied(), [0; 0], "written and not marked");
        positions
    }

    /// The guest goes on where it was.
    pub(crate) fn go_on(&mut self, positions: &[Position]) {
        self.double().end_copy().unwrap();
        self.double().go_on(positions).unwrap();
        self.pump.resume().unwrap();
    }

    /// A netd in the other pod.
    pub(crate) fn target(&self) -> Process {
        self.target_with("")
    }

    /// The same with more configuration.
    fn target_with(&self, more: &str) -> Process {
        Process::start(&self.pods[1 - self.at], self.at == 0, self.ports, more)
    }

    /// Moves the guest to the other pod.
    pub(crate) fn migrate(&mut self) -> Moved {
        self.migrate_with("")
    }

    /// The same to a netd with more configuration.
    pub(crate) fn migrate_with(&mut self, more: &str) -> Moved {
        let target = self.target_with(more);
        let helper = Helper::serve(&target.vhost_user(), Fault::None, self.activation(1 - self.at));
        self.migrate_to(target, Some(helper))
    }

    pub(crate) fn migrate_to(&mut self, target: Process, helper: Option<Helper>) -> Moved {
        let positions = self.stop_guest();
        self.carry_over(&positions, target, helper)
    }

    /// Moves a guest that stands still.
    pub(crate) fn carry_over(
        &mut self,
        positions: &[Position],
        target: Process,
        helper: Option<Helper>,
    ) -> Moved {
        let since = Instant::now();
        let (loaded, state) = self.double().transfer(target.dial()).unwrap();
        let left: Source = self.double().arrive(loaded, positions).unwrap();
        self.pump.resume().unwrap();
        let downtime = since.elapsed();
        // QEMU's end at the source.
        drop(left);
        let source = std::mem::replace(&mut self.process, target);
        let old_helper = std::mem::replace(&mut self.helper, helper);
        eventually("the source's end", || (!source.status().frontend_connected).then_some(()));
        drop(old_helper);
        self.at = 1 - self.at;
        Moved { downtime, source, state }
    }

    /// The source's pod ends: nothing of it is heard any more.
    pub(crate) fn end(&self, moved: Moved) {
        eventually("the address's move", || (self.process.counter("migrations_in") == 1).then_some(()));
        drop(moved.source);
        port(&self.world, 1 - self.at, false);
    }
}

/// The families of these pods.
pub(crate) fn families() -> [Family; 2] {
    crate::bed::families(Mode::Passthrough)
}

/// Whether the pod is heard.
fn port(world: &Namespace, pod: usize, heard: bool) {
    world.ip(&format!("link set pod{pod} master br{}\n", i32::from(!heard)));
}

/// The bridge learns where the pod's address is.
fn announce(pod: &Namespace) {
    let socket = pod.ping("10.9.0.1:0".parse().unwrap());
    eventually("a way to the world", || {
        let _ = socket.send(&[8, 0, 0, 0, 0, 0, 0, 1]);
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        (&socket).read(&mut [0; 64]).ok()
    });
}
