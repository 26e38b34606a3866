//! Another netd process in the place of one that runs, with several queue pairs and with many flows.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etherparse::PacketBuilder;
use frontend_double::{Double, HEADER, Options};
use netctl::client::Client;
use netctl::upgrade::Upgrade;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_proto::netd::v1::StatusResponse;
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{GUEST_MAC, MAC, Pod, Setup, TIMEOUT, assert_reset, eventually, with_pod};
use crate::daemon::Daemon;
use crate::pairs::{datagram, datagram_to, received};

/// Queue pairs of the guest.
const PAIRS: usize = 2;
/// The guest's first port.
const FIRST: u16 = 1024;

/// A netd process beside the bed's own, which has no frontend and no ports.
pub(crate) struct Process {
    daemon: Daemon,
    dir: TempDir,
}

impl Process {
    /// `ports` is the configuration's section.
    pub(crate) fn start(pod: &Pod, ports: &str) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "vhost_user: {{socket: {0}/vm.sock, queue_pairs: {PAIRS}}}\ncontrol: {{socket: {0}/control.sock}}\n\
             mac: '{MAC}'\nguest: {{mac: '{GUEST_MAC}'}}\nports: {ports}\n\
             limits: {{flows: 30000, new_flows_per_second: 1000000, new_flows_burst: 1000000}}\n\
             timeouts: {{udp_unreplied: 600s, udp_replied: 600s}}\n",
            dir.path().display()
        );
        let file = dir.path().join("netd.yaml");
        std::fs::write(&file, config).unwrap();
        let daemon = pod.pod.run(|| Daemon::start(|command| command.arg("--config").arg(&file)));
        Process { daemon, dir }
    }

    pub(crate) fn plug(&self) -> Double {
        let stream = UnixStream::connect(self.dir.path().join("vm.sock")).unwrap();
        Double::from_stream(stream, &Options { pairs: PAIRS, ..Options::default() }).unwrap()
    }

    /// Puts another process in the place of this process, which ends.
    pub(crate) fn update(&mut self, pod: &Pod) {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_netd"));
        let upgrade = Upgrade { binary, arguments: None, timeout: TIMEOUT };
        let upgraded = pod.pod.run(|| on_runtime(upgrade.run(&self.control()))).unwrap();
        assert!(upgraded.answers);
        let mut old = std::mem::replace(&mut self.daemon, Daemon(upgraded.child));
        assert!(old.0.wait().unwrap().success());
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn counter(&self, name: &str) -> u64 {
        on_runtime(counter(&self.control(), name))
    }

    pub(crate) fn status(&self) -> StatusResponse {
        on_runtime(async { Client::connect(&self.control()).await.unwrap().status().await.unwrap() })
    }
}

pub(crate) async fn counter(socket: &Path, name: &str) -> u64 {
    let counters = Client::connect(socket).await.unwrap().counters().await.unwrap();
    let value = counters.counters.into_iter().find(|c| c.name == name).map(|c| c.value);
    value.unwrap_or_else(|| panic!("no counter {name}"))
}

pub(crate) fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn without_ports() -> Setup {
    Setup { ports: Vec::new(), ..Setup::default() }
}

/// The guest's flows, by their pairs in turn, and where the client sees each come from.
struct Flows {
    client: UdpSocket,
    seen: Vec<SocketAddr>,
}

impl Flows {
    fn open(pod: &Pod, double: &mut Double, count: u16) -> Flows {
        let client = pod.client.udp(pod.families()[0].client(5000));
        let mut flows = Flows { client, seen: Vec::new() };
        for i in 0..count {
            let from = flows.say(double, i, "hello");
            flows.seen.push(from);
        }
        flows
    }

    /// The guest says something on a flow; where the client sees it come from.
    fn say(&self, double: &mut Double, i: u16, what: &str) -> SocketAddr {
        let frame = datagram(FIRST + i, what.as_bytes());
        let pair = &mut double.pairs()[usize::from(i) % PAIRS];
        eventually("room in the ring", || pair.send(&frame).unwrap().then_some(()));
        let mut buffer = [0; 64];
        let (n, from) = self.client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], what.as_bytes());
        from
    }

    /// Every flow works in both directions, on its pair, by its own socket.
    fn work(&self, double: &mut Double, what: &str) {
        for (i, seen) in (0..).zip(&self.seen) {
            self.client.send_to(format!("{what} {i}").as_bytes(), seen).unwrap();
            let got = received(double, usize::from(i) % PAIRS, TIMEOUT)
                .unwrap_or_else(|| panic!("flow {i} is not on its pair {what}"));
            assert_eq!(got, format!("{what} {i}").as_bytes());
            assert_eq!(self.say(double, i, what), *seen);
        }
        for pair in 0..PAIRS {
            assert!(received(double, pair, Duration::ZERO).is_none());
        }
    }
}

/// Flows of two pairs over two updates.
fn updates(count: u16) {
    with_pod(without_ports(), move |pod| {
        let mut process = Process::start(pod, "{tcp: none, udp: none}");
        let mut double = process.plug();
        let flows = Flows::open(pod, &mut double, count);
        for generation in 1..=2 {
            process.update(pod);
            let status = process.status();
            assert_eq!((status.generation, status.udp_flows), (generation, u32::from(count)));
            flows.work(&mut double, &format!("after {generation}"));
        }
        assert_eq!(process.counter("udp_flows"), u64::from(count), "opened once");
        for name in ["pair_flows_moved", "pair_frames_passed", "ring_errors"] {
            assert_eq!(process.counter(name), 0, "{name}");
        }
        assert_eq!(process.counter("frontend_connections"), 1);
    });
}

#[test]
fn flows_of_two_pairs_stay_on_theirs_over_an_update() {
    updates(20);
}

#[test]
fn thousands_of_flows_go_on_over_an_update() {
    updates(2000);
}

/// Prints `pause_us` of each update in the new netd's log.
#[test]
#[ignore = "a measurement: cargo test -p netd --release --test datapath -- --ignored --nocapture eighteen_thousand"]
fn eighteen_thousand_flows_go_on_over_an_update() {
    updates(18_000);
}

/// The pod's UDP sockets of IPv4 that have `port` and no peer, by their inodes.
fn unconnected(pod: &Pod, port: u16) -> Vec<u64> {
    let table = pod.pod.run(|| std::fs::read_to_string("/proc/thread-self/net/udp")).unwrap();
    let of_port = |fields: &Vec<&str>| {
        fields[1].ends_with(&format!(":{port:04X}")) && fields[2].trim_matches(['0', ':']).is_empty()
    };
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(of_port).map(|fields| fields[9].parse().unwrap()).collect()
}

#[test]
fn flows_that_share_a_socket_go_on_over_an_update() {
    // More than have sockets of their own.
    const PEERS: u16 = 40;
    with_pod(without_ports(), |pod| {
        let mut process = Process::start(pod, "{tcp: none, udp: none}");
        let mut double = process.plug();
        let v4 = pod.families()[0];
        let peers: Vec<UdpSocket> = (0..PEERS).map(|i| pod.client.udp(v4.client(20_000 + i))).collect();
        let (mut seen, mut shared) = (None, None);
        for generation in 0..=2 {
            let what = format!("in generation {generation}");
            for (i, peer) in (0..PEERS).zip(&peers) {
                let frame = datagram_to(6000, 20_000 + i, what.as_bytes());
                let pair = &mut double.pairs()[0];
                eventually("room in the ring", || pair.send(&frame).unwrap().then_some(()));
                let mut buffer = [0; 64];
                let (n, from) = peer.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..n], what.as_bytes());
                assert_eq!(*seen.get_or_insert(from), from, "another port");
                peer.send_to(&i.to_be_bytes(), from).unwrap();
                let got = received(&mut double, 0, TIMEOUT).expect("no answer came");
                assert_eq!(got, i.to_be_bytes());
            }
            assert_eq!(process.counter("udp_flows"), u64::from(PEERS), "opened once");
            // What waits in the socket is not lost only if it is the same one.
            let sockets = unconnected(pod, 6000);
            // The socket of the first flow hears other peers as well, until it is handed over.
            assert_eq!(sockets.len(), if generation == 0 { 2 } else { 1 });
            assert!(shared.get_or_insert_with(|| sockets.clone()).contains(&sockets[0]), "another socket");
            if generation < 2 {
                process.update(pod);
            }
        }
    });
}

#[test]
fn ports_that_thousands_listen_on_are_open_after_an_update_and_who_comes_meanwhile_is_not_refused() {
    with_pod(without_ports(), |pod| {
        // More than are looked after in one turn.
        let mut process = Process::start(pod, "{tcp: '20000-22999', udp: '20000-20099'}");
        let mut double = process.plug();
        process.update(pod);
        assert_eq!((process.status().generation, process.status().listeners), (1, 3100));
        let v4 = pod.families()[0];
        let client = pod.client.udp(v4.client(5001));
        for port in [20_000, 20_099] {
            client.send_to(b"hello", v4.pod(port)).unwrap();
            let pair =
                |double: &mut Double| (0..PAIRS).find_map(|pair| received(double, pair, Duration::ZERO));
            assert_eq!(eventually("a datagram", || pair(&mut double)), b"hello");
        }
        // The guest is told of each; it does not answer.
        let open: Vec<_> =
            [20_000, 21_500, 22_999].map(|port| pod.client.connect(v4.pod(port)).unwrap()).into();
        eventually("flows", || (process.status().tcp_flows as usize == open.len()).then_some(()));
        // Others, while one netd takes the place of the other.
        std::thread::scope(|scope| {
            let comes = scope.spawn(|| {
                (20_000..20_500).map(|p| pod.client.connect(v4.pod(p)).unwrap()).collect::<Vec<_>>()
            });
            process.update(pod);
            let came = comes.join().unwrap();
            eventually("their flows", || {
                (process.status().tcp_flows as usize == open.len() + came.len()).then_some(())
            });
        });
    });
}

/// A SYN of the guest to the client's port.
fn syn(to: u16) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
        .tcp(FIRST, to, 1000, 60_000)
        .syn()
        .write(&mut frame, &[])
        .unwrap();
    frame
}

/// A peer hears nothing of a netd that another one follows, and a RST when one ends that none follows: a FIN would say that the
/// guest has sent all that it had to.
#[test]
fn a_netd_that_ends_resets_its_connections_and_one_that_is_followed_does_not() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        with_pod(without_ports(), move |pod| {
            let mut process = Process::start(pod, "{tcp: '7000', udp: none}");
            let mut double = process.plug();
            let listener = pod.client.listen(pod.families()[0].client(7100));
            let pair = &mut double.pairs()[0];
            eventually("room in the ring", || pair.send(&syn(7100)).unwrap().then_some(()));
            let mut peers = vec![listener.accept().0];
            peers.extend(pod.families().map(|family| pod.client.connect(family.pod(7000)).unwrap()));
            eventually("flows", || (process.status().tcp_flows as usize == peers.len()).then_some(()));
            process.update(pod);
            assert_eq!(process.status().tcp_flows as usize, peers.len());
            for mut peer in &peers {
                peer.set_nonblocking(true).unwrap();
                let error = peer.read(&mut [0; 16]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "the update has told the peer");
                peer.set_nonblocking(false).unwrap();
            }
            kill(Pid::from_raw(process.daemon.0.id().cast_signed()), signal).unwrap();
            peers.iter().for_each(assert_reset);
        });
    }
}
