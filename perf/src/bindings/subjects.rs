//! Machines and pods that are measured, and the pod on the other node.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_e2e::Console;
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::cluster::mesh::{ISTIO, Sidecar};
use podvirt_e2e::cluster::{BOOT, ClientPod, Manifest, Namespace, Running, SOON};

use crate::cgroups::Cgroups;

/// The port of the echo, everywhere.
pub(super) const ECHO: u16 = 8001;
/// The port of iperf3's server, everywhere.
pub(super) const BULK: u16 = 5201;
/// Memory of a machine in MiB, as [`Manifest`] has it.
pub(super) const GUEST_MIB: u64 = 256;
/// Where the programs are, in guests and pods.
pub(super) const AGENT: &str = "/tmp/agent";
/// The container of a proxy.
const PROXY: &str = "istio-proxy";
/// What puts the proxy into a pod: as label of a pod, as annotation of a machine.
const INJECT: &str = "sidecar.istio.io/inject: 'true'";
/// Connections that the proxy has opened to what is in its pod, and to the world.
const COUNTERS: [&str; 2] =
    ["cluster.InboundPassthroughCluster.upstream_cx_total", "cluster.PassthroughCluster.upstream_cx_total"];
/// Connections that are opened one after another need ports; the kernel's default is half of these.
const PORT_RANGE: &str = "10000 65535";

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// In results, and the name of its objects.
    pub(super) key: &'static str,
    /// For people.
    pub(super) name: &'static str,
    /// The interface of a machine, the inside of a YAML flow mapping; a plain pod has none.
    binding: Option<&'static str>,
    /// Its annotations.
    annotations: &'static str,
    /// With a proxy.
    pub(super) meshed: bool,
}

/// In this order in the tables; the first rounds begin with the first.
pub(super) const KINDS: [Kind; 8] = [
    machine("passt", "`passtBinding`, netd", "passtBinding: {}", "", false),
    machine("masquerade", "`masquerade`, netd", "masquerade: {}", "", false),
    machine("nftables", "`masquerade`, kernel", "masquerade: {}", "podvirt.io/masquerade: nftables", false),
    machine("bridge", "`bridge`", "bridge: {}", "", false),
    Kind { key: "pod", name: "plain pod", binding: None, annotations: "", meshed: false },
    machine("mesh-masquerade", "`masquerade`, netd", "masquerade: {}", "", true),
    machine(
        "mesh-nftables",
        "`masquerade`, kernel",
        "masquerade: {}",
        "podvirt.io/masquerade: nftables",
        true,
    ),
    Kind { key: "mesh-pod", name: "plain pod", binding: None, annotations: "", meshed: true },
];

const fn machine(
    key: &'static str,
    name: &'static str,
    binding: &'static str,
    annotations: &'static str,
    meshed: bool,
) -> Kind {
    Kind { key, name, binding: Some(binding), annotations, meshed }
}

/// A shell in a guest, by its console, or in a pod.
pub(super) enum End<'n> {
    /// In this order: the console ends with the program.
    Guest { console: Box<Console>, _running: Running },
    /// Its first container.
    Pod(ClientPod<'n>),
}

impl End<'_> {
    /// Runs a command that must succeed, and returns what it printed.
    ///
    /// # Errors
    /// It fails, or takes longer than `limit` in a guest.
    pub(super) fn sh(&mut self, command: &str, limit: Duration) -> Result<String> {
        match self {
            End::Guest { console, .. } => console.sh(command, limit),
            End::Pod(pod) => pod.sh(command),
        }
    }

    /// Fetches the agent, and serves what the other side measures with.
    ///
    /// # Errors
    /// Something does not start.
    fn equip(&mut self, library: SocketAddr) -> Result<()> {
        self.sh(&format!("socat -u TCP:{library} CREATE:{AGENT} && chmod +x {AGENT}"), BOOT)?;
        if matches!(self, End::Guest { .. }) {
            self.sh(&format!("echo {PORT_RANGE} >/proc/sys/net/ipv4/ip_local_port_range"), SOON)?;
        }
        let serve = format!("{AGENT} serve {ECHO} >/tmp/echo.log 2>&1 &");
        let bulk = format!("iperf3 --server --json --port {BULK} >/dev/null 2>&1 &");
        for (port, program) in [(ECHO, serve), (BULK, bulk)] {
            let listens = format!("ss -Hltn | grep -q ':{port} '");
            let wait =
                format!("i=0; until {listens}; do i=$((i + 1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done");
            self.sh(&format!("{program} ({wait})"), SOON).with_context(|| format!("port {port}"))?;
        }
        Ok(())
    }
}

/// The pod on the other node.
pub(super) struct Peer<'n> {
    /// A shell in it.
    pub(super) end: End<'n>,
    /// Its IPv4 address.
    pub(super) address: IpAddr,
    /// Its cgroups.
    pub(super) cgroups: Cgroups,
}

impl<'n> Peer<'n> {
    /// Starts it.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(namespace: &'n Namespace<'n>, library: SocketAddr) -> Result<Peer<'n>> {
        let client = ClientPod::start(namespace, "peer", "node2", "")?;
        let pod = namespace.wait_pod("peer", SOON)?;
        let mut end = End::Pod(client);
        end.equip(library)?;
        Ok(Peer { end, address: v4(&pod)?, cgroups: Cgroups::of(&pod)? })
    }
}

/// A machine or pod on node 1.
pub(super) struct Subject<'n> {
    /// What it is.
    pub(super) kind: Kind,
    /// A shell in it.
    pub(super) end: End<'n>,
    /// Where others find it, by IPv4.
    pub(super) address: IpAddr,
    /// Its pod's cgroups.
    pub(super) cgroups: Cgroups,
    sidecar: Option<Sidecar<'n>>,
}

impl<'n> Subject<'n> {
    /// Asks for a machine; pods are there so soon that they need not be asked for beforehand.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) fn ask(namespace: &Namespace<'_>, kind: Kind) -> Result<()> {
        let Some(binding) = kind.binding else { return Ok(()) };
        let devices = format!("interfaces: [{{name: default, {binding}}}]");
        let inject = if kind.meshed { INJECT } else { "" };
        let all = [kind.annotations, inject].into_iter().filter(|a| !a.is_empty()).collect::<Vec<_>>();
        let manifest = Manifest {
            name: kind.key,
            annotations: &all.join(", "),
            spec: "nodeSelector: {kubernetes.io/hostname: node1}",
            devices: &devices,
            ..Default::default()
        };
        namespace.apply(&manifest.instance())
    }

    /// Waits until it runs and has all it needs.
    ///
    /// # Errors
    /// It does not come up.
    pub(super) fn ready(
        namespace: &'n Namespace<'n>,
        kind: Kind,
        library: SocketAddr,
    ) -> Result<Subject<'n>> {
        let (mut end, pod) = if kind.binding.is_some() {
            namespace.wait_phase(kind.key, "Running", BOOT)?;
            let (console, running) = namespace.shell(kind.key)?;
            (End::Guest { console: Box::new(console), _running: running }, namespace.launcher(kind.key)?)
        } else {
            let labels = if kind.meshed { INJECT } else { "" };
            let client = ClientPod::start(namespace, kind.key, "node1", labels)?;
            (End::Pod(client), namespace.wait_pod(kind.key, SOON)?)
        };
        let sidecar = kind.meshed.then(|| Sidecar::of(namespace, &pod.name_any(), PROXY, ISTIO));
        end.equip(library)?;
        let (address, cgroups) = (v4(&pod)?, Cgroups::of(&pod)?);
        Ok(Subject { kind, end, address, cgroups, sidecar })
    }

    /// Connections that its proxy has opened, inwards and outwards; none without a proxy.
    ///
    /// # Errors
    /// The proxy does not answer.
    pub(super) fn proxied(&self) -> Result<Option<[u64; 2]>> {
        let Some(sidecar) = &self.sidecar else { return Ok(None) };
        let [inwards, outwards] = COUNTERS.map(|counter| sidecar.count(counter));
        Ok(Some([inwards?, outwards?]))
    }
}

fn v4(pod: &Pod) -> Result<IpAddr> {
    let all = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    let mut all = all.filter_map(|a| a.ip.parse::<IpAddr>().ok());
    all.find(IpAddr::is_ipv4).with_context(|| format!("{} has no IPv4 address", pod.name_any()))
}

/// Gives the agent to each that connects, for as long as this program runs.
///
/// # Errors
/// The agent is not built.
pub(super) fn library(here: IpAddr) -> Result<SocketAddr> {
    let program = fs::read(program_dir("perf-agent")?.join("perf-agent"))?;
    ensure!(!program.is_empty(), "perf-agent is empty");
    let listener = TcpListener::bind((here, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for mut reader in listener.incoming().flatten() {
            // One at a time; one that gives up asks again.
            drop(reader.write_all(&program));
        }
    });
    Ok(address)
}
