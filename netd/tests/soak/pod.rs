//! The namespaces, the netd process, and the guest's device.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use frontend_double::{Double, Options, TapOptions, TapPump};
use netctl::client::Client;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::geteuid;
use tempfile::TempDir;

use super::Sample;
use super::daemon::Daemon;

const GUEST_MAC: &str = "52:54:00:11:22:33";
/// How long anything may take that does happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace without a name.
pub(crate) struct Namespace(File);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        Ok(Namespace(made.join().unwrap()?))
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Another handle to it, for a thread.
    pub(crate) fn again(&self) -> Namespace {
        Namespace(self.0.try_clone().unwrap())
    }

    /// Puts the calling thread into it.
    pub(crate) fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
    }

    fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                f()
            });
            inside.join().unwrap()
        })
    }

    fn ip(&self, lines: &[&str]) {
        self.run(|| {
            for line in lines {
                let status =
                    Command::new("ip").args(line.split_whitespace()).status().expect("ip does not run");
                assert!(status.success(), "ip {line}");
            }
        });
    }
}

/// Whether namespaces and taps can be made; otherwise the test fails for root and is passed over, loudly, for others.
pub(crate) fn privileged() -> bool {
    let can = Namespace::new()
        .map(drop)
        .and_then(|()| File::options().read(true).write(true).open("/dev/net/tun").map(drop));
    if let Err(error) = &can {
        assert!(!geteuid().is_root(), "no namespaces or taps: {error}; root needs them for this test");
        eprintln!("SKIPPED: no namespaces or taps: {error}");
    }
    can.is_ok()
}

/// Addresses of one family.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    pub(crate) pod: IpAddr,
    pub(crate) client: IpAddr,
}

/// The pod with netd, the client and the guest. The pump ends before netd does: fields are dropped in their order.
pub(crate) struct Pod {
    pump: Option<TapPump>,
    wire: Option<UnixStream>,
    netd: Daemon,
    dir: TempDir,
    pub(crate) guest: Namespace,
    pub(crate) client: Namespace,
    _pod: Namespace,
}

impl Pod {
    pub(crate) fn new() -> Pod {
        let [pod, client, guest] = [0; 3].map(|_| Namespace::new().unwrap());
        for space in [&pod, &guest] {
            space.run(|| fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap());
        }
        let veth = format!("link add eth0 type veth peer name eth0 netns {}", client.path().display());
        let up = "link set eth0 up";
        pod.ip(&[&veth, "addr add 10.9.0.2/24 dev eth0", "addr add fd00:9::2/64 dev eth0 nodad", up]);
        client.ip(&["addr add 10.9.0.1/24 dev eth0", "addr add fd00:9::1/64 dev eth0 nodad", up]);
        pod.ip(&["route add default via 10.9.0.1", "route add default via fd00:9::1"]);
        let tap = format!("link set tap0 address {GUEST_MAC} up");
        guest.ip(&[
            "tuntap add dev tap0 mode tap vnet_hdr",
            &tap,
            "addr add 10.9.0.2/24 dev tap0",
            "addr add fd00:9::2/64 dev tap0 nodad",
        ]);
        let dir = tempfile::tempdir().unwrap();
        let netd = start(&pod, &dir);
        let mut all = Pod { pump: None, wire: None, netd, dir, guest, client, _pod: pod };
        let stream = all.dial();
        all.attach(Double::from_stream(stream, &Options::default()).unwrap());
        all.idle();
        all
    }

    pub(crate) fn families(&self) -> [Family; 2] {
        [("10.9.0.2", "10.9.0.1"), ("fd00:9::2", "fd00:9::1")]
            .map(|(pod, client)| Family { pod: pod.parse().unwrap(), client: client.parse().unwrap() })
    }

    fn dial(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("vm.sock")).unwrap();
        self.wire = Some(stream.try_clone().unwrap());
        stream
    }

    fn attach(&mut self, double: Double) {
        let options = TapOptions { name: "tap0".into(), netns: Some(self.guest.path()) };
        self.pump = Some(TapPump::start(double, &options).unwrap());
    }

    /// The frontend's connection is lost. It comes back with its rings as they were, or with new ones.
    pub(crate) fn reconnect(&mut self, new: bool) {
        let mut double = self.pump.take().unwrap().stop().unwrap();
        self.wire.take().unwrap().shutdown(Shutdown::Both).unwrap();
        let stream = self.dial();
        if new {
            double = Double::from_stream(stream, &Options::default()).unwrap();
        } else {
            double.reconnect(stream).unwrap();
        }
        self.attach(double);
    }

    async fn without_flows(&self, deadline: Instant) {
        loop {
            let mut client = Client::connect(&self.dir.path().join("control.sock")).await.unwrap();
            let status = client.status().await.unwrap();
            // TIME-WAIT has no socket and lasts a second.
            if status.tcp_flows + status.udp_flows + status.echo_flows == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "flows stay: {status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until netd has no flow, and nothing is left of having asked for that.
    pub(crate) fn idle(&self) {
        let deadline = Instant::now() + TIMEOUT;
        // Its end closes the connections of its clients: until then they are descriptors of netd's, too.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.without_flows(deadline));
        drop(runtime);
        // The last client's connection is closed by netd in its own time.
        let (mut before, mut calm) = (self.sample().descriptors, 0);
        while calm < 20 {
            std::thread::sleep(Duration::from_millis(10));
            let now = self.sample().descriptors;
            calm = if now == before { calm + 1 } else { 0 };
            before = now;
            assert!(Instant::now() < deadline, "descriptors come and go without load");
        }
    }

    /// How many descriptors of each kind netd has.
    pub(crate) fn descriptors(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.netd.0.id())).expect("netd has ended") {
            let target = fs::read_link(entry.unwrap().path()).unwrap().display().to_string();
            // Without the number: `socket:[4242]`.
            let kind = target.split_once(":[").map_or(&*target, |(kind, _)| kind);
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
        kinds
    }

    /// What netd uses now.
    pub(crate) fn sample(&self) -> Sample {
        let proc = PathBuf::from(format!("/proc/{}", self.netd.0.id()));
        let mut status = String::new();
        File::open(proc.join("status")).unwrap().read_to_string(&mut status).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("netd has ended");
        let memory = line.trim().trim_end_matches(" kB").parse().unwrap();
        Sample { memory, descriptors: fs::read_dir(proc.join("fd")).unwrap().count() }
    }
}

fn start(pod: &Namespace, dir: &TempDir) -> Daemon {
    let path = dir.path();
    let config = format!(
        "vhost_user: {{socket: {0}/vm.sock}}\ncontrol: {{socket: {0}/control.sock}}\nguest: {{mac: '{GUEST_MAC}'}}\n\
         ports: {{tcp: '7000,7001', udp: '7000'}}\nlimits: {{new_flows_per_second: 1000000, new_flows_burst: 1000000}}\n\
         timeouts: {{udp_unreplied: 1s, udp_replied: 1s, echo: 1s, tcp_time_wait: 1s}}\n",
        path.display()
    );
    fs::write(path.join("netd.yaml"), config).unwrap();
    pod.run(|| Daemon::start(|command| command.arg("--config").arg(path.join("netd.yaml"))))
}
