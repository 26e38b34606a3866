//! netd's worker and its vhost-user server, run by threads inside the pod's namespace.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use frontend_double::{Double, Options};
use netd::config::ports::Ports;
use netd::control::{Control, Status};
use netd::counters::{Counters, Reason};
use netd::device::Backend;
use netd::limits::{Limits, Timeouts};
use netd::net::{Link, LinkV4, LinkV6, Mode};
use netd::port::{PortRule, Proto};
use netd::stop::Stopper;
use netd::vhost::{ServeError, ServerConfig, SocketMode, serve};
use netd::wire::MacAddr;
use netd::worker::{self, Handle, Settings};
use tempfile::TempDir;

use super::{Namespace, eventually};

/// netd's own Ethernet address.
pub(crate) const MAC: MacAddr = MacAddr([2, 0, 0x5e, 0x10, 0, 1]);
/// The guest's.
pub(crate) const GUEST_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x11, 0x22, 0x33]);

/// The link to the guest; the pod has 10.9.0.2/24 and fd00:9::2/64.
pub(crate) fn link(mode: Mode, mtu: u16) -> Link {
    let (guest_v4, gateway_v4) = match mode {
        Mode::Passthrough => ([10, 9, 0, 2], [10, 9, 0, 1]),
        Mode::Masquerade => ([10, 0, 2, 2], [10, 0, 2, 1]),
    };
    let guest_v6 = match mode {
        Mode::Passthrough => "fd00:9::2",
        Mode::Masquerade => "fd10:0:2::2",
    };
    Link {
        mode,
        mac: MAC,
        guest_mac: Some(GUEST_MAC),
        mtu,
        v4: Some(LinkV4 {
            guest: guest_v4.into(),
            prefix_len: 24,
            gateway: gateway_v4.into(),
            pod: [10, 9, 0, 2].into(),
            default_route: true,
            routes: vec![],
            loopback: None,
        }),
        v6: Some(LinkV6 {
            guest: guest_v6.parse().unwrap(),
            prefix_len: 64,
            gateway: MAC.link_local(),
            pod: "fd00:9::2".parse().unwrap(),
            default_route: true,
            routes: vec![],
            loopback: None,
        }),
        dns: vec![],
        search: vec![],
        hostname: None,
        fqdn: None,
        dhcp_options: vec![],
        local: vec![],
        egress: Arc::default(),
    }
}

/// A TCP port of the pod that leads to the guest.
pub(crate) fn tcp(pod: u16, guest: u16) -> PortRule {
    PortRule { proto: Proto::Tcp, pod, guest }
}

/// A UDP port of the pod that leads to the guest.
pub(crate) fn udp(pod: u16, guest: u16) -> PortRule {
    PortRule { proto: Proto::Udp, pod, guest }
}

/// How netd is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) mtu: u16,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) ports: Vec<PortRule>,
    pub(crate) port_spec: Ports,
    /// Features that the driver takes, of those on offer.
    pub(crate) features: u64,
    /// Queue pairs on offer.
    pub(crate) pairs: usize,
    /// Whether netd uses the kernel's peek offsets, which older kernels do not have.
    pub(crate) peek_offset: bool,
    /// Whether netd asks the guest on which ports it listens.
    pub(crate) ask_guest: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            mode: Mode::Passthrough,
            mtu: 1500,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            ports: vec![tcp(7000, 7000), tcp(7001, 7001), tcp(8080, 80), udp(7000, 7000), udp(8080, 80)],
            port_spec: Ports::default(),
            features: frontend_double::feature::ALL,
            pairs: 1,
            peek_offset: true,
            ask_guest: false,
        }
    }
}

/// A running netd.
pub(crate) struct Netd {
    pub(crate) control: Handle,
    stop: Stopper,
    server: Option<JoinHandle<Result<(), ServeError>>>,
    directory: TempDir,
}

impl Netd {
    pub(crate) fn start(pod: &Namespace, setup: &Setup) -> Netd {
        let counters = Arc::new(Counters::default());
        let directory = tempfile::tempdir().unwrap();
        let stop = Stopper::new().unwrap();
        let settings = Settings {
            inherited: None,
            limits: setup.limits,
            timeouts: setup.timeouts,
            link: Arc::new(link(setup.mode, setup.mtu)),
            ports: setup.ports.clone(),
            port_spec: setup.port_spec.clone(),
            counters: Arc::clone(&counters),
            pairs: setup.pairs,
            peek_offset: setup.peek_offset,
            spins: true,
            ask_guest: setup.ask_guest,
        };
        let config = ServerConfig {
            socket: directory.path().join("net.sock"),
            mode: SocketMode::Server,
            queue_pairs: setup.pairs,
        };
        let (control, server) = pod.run(|| {
            let control = worker::spawn(settings).unwrap();
            let (sink, counters, stop) =
                (Arc::new(Backend::new(control.clone())), Arc::clone(&counters), stop.clone());
            (
                control,
                std::thread::spawn(move || serve(config, sink, counters, stop, Default::default(), None)),
            )
        });
        Netd { control, stop, server: Some(server), directory }
    }

    /// A connection to the vhost-user socket, once that is there.
    pub(crate) fn dial(&self) -> UnixStream {
        let path = self.directory.path().join("net.sock");
        eventually("the vhost-user socket", || UnixStream::connect(&path).ok())
    }

    /// A guest's device.
    pub(crate) fn plug(&self, options: &Options) -> Double {
        Double::from_stream(self.dial(), options).unwrap()
    }

    /// The counters.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.control.counters()
    }

    /// How often something was dropped for `reason`.
    pub(crate) fn dropped(&self, reason: Reason) -> u64 {
        self.counters().dropped(reason)
    }

    /// What netd tells of itself.
    pub(crate) fn status(&self) -> Status {
        self.control.status().expect("the worker has ended")
    }
}

impl Drop for Netd {
    fn drop(&mut self) {
        let alive = self.control.status().is_some();
        self.stop.stop();
        let served = self.server.take().unwrap().join();
        self.control.shutdown();
        self.control.join();
        if !std::thread::panicking() {
            assert!(alive, "the worker has ended by itself");
            served.expect("the server panicked").unwrap();
        }
    }
}
