//! The test bed: a guest that is a namespace's own TCP/IP stack, netd in the pod's namespace, and a client.
//!
//! ```text
//!   guest ── tap0 ── TapPump ── Double ══ vhost-user ══ netd (in pod) ── eth0 ── veth ── eth0  client
//!   10.9.0.2/24, fd00:9::2/64                            10.9.0.2/24, fd00:9::2/64       10.9.0.1/24, fd00:9::1/64
//! ```
//!
//! In masquerade mode the guest has 10.0.2.2/24 and fd10:0:2::2/64 instead. Guest addresses are set by hand,
//! neighbours are resolved by netd. A further namespace `far` (192.0.2.2/24, 2001:db8::2/64) can be put behind
//! the client, which then routes.
//!
//! Every test runs within [`bounded`], and every socket gives up after [`TIMEOUT`]: a hang is a failure.

mod namespace;
mod netd;
pub(crate) mod raw;
mod traffic;

use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ::netd::net::Mode;
use frontend_double::{Double, Options, TapOptions, TapPump};

use crate::migration::{Place, Ports};
pub(crate) use namespace::{Listener, Namespace};
pub(crate) use netd::{GUEST_MAC, MAC, Netd, Setup, link, tcp, udp};
pub(crate) use raw::Raw;
pub(crate) use traffic::{
    Random, assert_refused_late, assert_reset, content, exchange, expect_end, read_exactly, read_to_end,
    transfer,
};

/// How long anything may take that does happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a whole test may take.
const WHOLE: Duration = Duration::from_secs(100);

/// The two ends of one address family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// The guest's own address.
    pub(crate) guest: IpAddr,
    /// The pod's address, which leads to the guest.
    pub(crate) pod: IpAddr,
    /// The client's address.
    pub(crate) client: IpAddr,
    /// Where the guest sends what is not on its link.
    pub(crate) gateway: IpAddr,
}

/// Both address families, with the pod's link in this mode.
pub(crate) fn families(mode: Mode) -> [Family; 2] {
    let link = link(mode, 1500);
    let (v4, v6) = (link.v4.unwrap(), link.v6.unwrap());
    [
        Family {
            guest: v4.guest.into(),
            pod: v4.pod.into(),
            client: [10, 9, 0, 1].into(),
            gateway: v4.gateway.into(),
        },
        Family {
            guest: v6.guest.into(),
            pod: v6.pod.into(),
            client: "fd00:9::1".parse().unwrap(),
            gateway: v6.gateway.into(),
        },
    ]
}

impl Family {
    pub(crate) fn guest(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.guest, port)
    }

    pub(crate) fn pod(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.pod, port)
    }

    pub(crate) fn client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.client, port)
    }

    /// The wildcard address.
    pub(crate) fn any(&self, port: u16) -> SocketAddr {
        let all: IpAddr = if self.guest.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        SocketAddr::new(all, port)
    }
}

/// The pod and the client, without a guest.
pub(crate) struct Pod {
    pub(crate) netd: Netd,
    pub(crate) pod: Namespace,
    pub(crate) client: Namespace,
    mode: Mode,
}

impl Pod {
    fn new(setup: &Setup) -> io::Result<Pod> {
        let (pod, client) = (Namespace::new()?, Namespace::new()?);
        let mtu = setup.mtu.max(1500);
        pod.ip(&format!(
            "link add eth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}\n\
             addr add 10.9.0.2/24 dev eth0\n\
             addr add fd00:9::2/64 dev eth0 nodad\n\
             link set eth0 up\n",
            client.path().display()
        ));
        client.ip("addr add 10.9.0.1/24 dev eth0\naddr add fd00:9::1/64 dev eth0 nodad\nlink set eth0 up\n");
        pod.ip("route add default via 10.9.0.1\nroute add default via fd00:9::1\n");
        // A link that has just come up may lose what is first sent over it.
        for to in ["10.9.0.1:0", "[fd00:9::1]:0"] {
            let socket = pod.ping(to.parse().unwrap());
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let kind = if to.starts_with('[') { 128 } else { 8 };
            eventually("the client's answer", || {
                // The first attempts may find no route.
                let _ = socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1]);
                (&socket).read(&mut [0; 64]).ok()
            });
        }
        let netd = Netd::start(&pod, setup);
        Ok(Pod { netd, pod, client, mode: setup.mode })
    }

    /// Both address families.
    pub(crate) fn families(&self) -> [Family; 2] {
        families(self.mode)
    }

    /// Puts a namespace behind the client, by a link with this MTU.
    pub(crate) fn far(&self, mtu: u16) -> Namespace {
        let far = Namespace::new().unwrap();
        self.client.ip(&format!(
            "link add far mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}\n\
             addr add 192.0.2.1/24 dev far\n\
             addr add 2001:db8::1/64 dev far nodad\n\
             link set far up\n",
            far.path().display()
        ));
        far.ip("addr add 192.0.2.2/24 dev eth0\naddr add 2001:db8::2/64 dev eth0 nodad\nlink set eth0 up\n");
        far.ip("route add default via 192.0.2.1\nroute add default via 2001:db8::1\n");
        self.client.sysctl("ipv4/ip_forward", "1");
        self.client.sysctl("ipv6/conf/all/forwarding", "1");
        far
    }
}

/// The pod, the client and a guest.
pub(crate) struct Bed {
    pub(crate) pump: Option<TapPump>,
    /// The frontend's connection, to cut it.
    wire: Option<UnixStream>,
    pub(crate) guest: Namespace,
    rest: Pod,
    features: u64,
    pairs: usize,
}

impl std::ops::Deref for Bed {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.rest
    }
}

impl Bed {
    fn new(setup: &Setup) -> io::Result<Bed> {
        let guest = Namespace::new()?;
        let rest = Pod::new(setup)?;
        let [v4, v6] = rest.families();
        let queues = if setup.pairs > 1 { "multi_queue" } else { "" };
        guest.ip(&format!(
            "tuntap add dev tap0 mode tap vnet_hdr {queues}\n\
             link set tap0 address {GUEST_MAC} mtu {}\n\
             addr add {}/24 dev tap0\n\
             addr add {}/64 dev tap0 nodad\n\
             link set tap0 up\n\
             route add default via {} dev tap0\n\
             route add default via {} dev tap0\n",
            setup.mtu, v4.guest, v6.guest, v4.gateway, v6.gateway
        ));
        let mut bed =
            Bed { pump: None, wire: None, guest, rest, features: setup.features, pairs: setup.pairs };
        bed.plug();
        Ok(bed)
    }

    /// Gives the guest a new device: its rings start from nothing, its addresses and connections stay.
    pub(crate) fn plug(&mut self) {
        let options = Options { features: self.features, pairs: self.pairs, ..Options::default() };
        let stream = self.dial();
        self.attach(Double::from_stream(stream, &options).unwrap());
    }

    /// Loses the frontend's connection and makes another, with which the rings go on.
    pub(crate) fn reconnect(&mut self) {
        let mut double = self.detach();
        double.reconnect(self.dial()).unwrap();
        self.attach(double);
    }

    fn dial(&mut self) -> UnixStream {
        let stream = self.netd.dial();
        self.wire = Some(stream.try_clone().unwrap());
        stream
    }

    /// Joins the guest's tap with a device.
    fn attach(&mut self, double: Double) {
        let options = TapOptions { name: "tap0".into(), netns: Some(self.guest.path()) };
        self.pump = Some(TapPump::start(double, &options).unwrap());
    }

    /// Takes the device from the guest, as a virtual machine does that crashes.
    pub(crate) fn unplug(&mut self) {
        drop(self.detach());
    }

    /// Parts the guest's tap from its device, whose connection is gone.
    fn detach(&mut self) -> Double {
        let double = self.pump.take().unwrap().stop().unwrap();
        self.wire.take().unwrap().shutdown(Shutdown::Both).unwrap();
        double
    }
}

/// Runs `test` with a guest. Without the privilege to make one it fails for root and is passed over, loudly, for others.
pub(crate) fn with_bed(setup: Setup, test: impl FnOnce(&mut Bed) + Send + 'static) {
    if privileged() {
        bounded(move || test(&mut Bed::new(&setup).unwrap()));
    }
}

/// Runs `test` with a pod whose guest the test is itself.
pub(crate) fn with_pod(setup: Setup, test: impl FnOnce(&mut Pod) + Send + 'static) {
    if privileged() {
        bounded(move || test(&mut Pod::new(&setup).unwrap()));
    }
}

/// Runs `test` with two pods between which the guest can move.
pub(crate) fn with_place(test: impl FnOnce(&mut Place) + Send + 'static) {
    with_place_of(Ports::Forwarded, test);
}

/// The same with the choice of which ports lead to the guest.
pub(crate) fn with_place_of(ports: Ports, test: impl FnOnce(&mut Place) + Send + 'static) {
    if privileged() {
        bounded(move || test(&mut Place::new(ports)));
    }
}

fn privileged() -> bool {
    let tun = || std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    let missing = match (Namespace::new(), tun()) {
        (Ok(_), Ok(_)) => return true,
        (Err(e), _) => format!("cannot make a network namespace: {e}"),
        (_, Err(e)) => format!("/dev/net/tun: {e}"),
    };
    assert!(!nix::unistd::geteuid().is_root(), "{missing}; root needs it for this test");
    eprintln!("SKIPPED: {missing}");
    false
}

/// Runs `test` on a thread of its own and fails when that takes too long.
fn bounded(test: impl FnOnce() + Send + 'static) {
    static LOG: Once = Once::new();
    LOG.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init();
    });
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        // Dropped also by a panic.
        let _done = done;
        test();
    });
    match ended.recv_timeout(WHOLE) {
        Err(RecvTimeoutError::Timeout) => panic!("not done after {WHOLE:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// Asks again and again until there is an answer, at most for [`TIMEOUT`].
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        // Asked often enough to be prompt and seldom enough to leave the processor to those asked.
        std::thread::sleep(Duration::from_millis(1));
    }
}
