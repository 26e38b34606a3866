//! A pod beside a machine, and a guest: what they get at by the network, and what they take of it from others.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_e2e::cluster::talk::host;
use podvirt_e2e::cluster::{ClientPod, Cluster, Node, Running, SOON, Security};

use super::{HONEST, Honest, NODE, PODVIRT};

/// Where clouds have the service that knows the node's credentials.
const METADATA: &str = "169.254.169.254";
/// A port of the pod's loopback on which something of the pod's own listens.
const LOOPBACK_PORT: u16 = 9901;
/// A port of the guest at which connections wait to be accepted.
const BACKLOG_PORT: u16 = 7779;
/// Connections to each port of podvirt's daemons: far more than any has a use for.
const CONNECTIONS: usize = 400;
/// Connections to the guest, and datagrams, each by a flow of its own.
const FLOWS: usize = 3000;
const DATAGRAMS: usize = 20_000;

/// The metadata service of a cloud, as a node's pods have it; gone with the value.
struct Metadata<'c> {
    cluster: &'c Cluster,
    node: Node<'c>,
    asked: Arc<AtomicUsize>,
}

impl<'c> Metadata<'c> {
    fn start(cluster: &'c Cluster, node: Node<'c>) -> Metadata<'c> {
        let own = ["addr", "replace", &format!("{METADATA}/32"), "dev", "lo"];
        assert!(cluster.command("ip").args(own).status().unwrap().success());
        let route = ["ip", "route", "replace", METADATA, "via", &cluster.address().to_string()];
        node.run(&route).unwrap();
        let listener = TcpListener::bind((METADATA.parse::<Ipv4Addr>().unwrap(), 80)).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                drop(stream.and_then(|mut stream| stream.write_all(b"CREDENTIALS\n")));
            }
        });
        Metadata { cluster, node, asked }
    }
}

impl Drop for Metadata<'_> {
    fn drop(&mut self) {
        drop(self.node.run(&["ip", "route", "del", METADATA]));
        let own = ["addr", "del", &format!("{METADATA}/32"), "dev", "lo"];
        drop(self.cluster.command("ip").args(own).status());
    }
}

/// The guest gets neither at the cloud's metadata nor at what listens on its pod's loopback, which pods and the pod's own containers do.
fn reaches_nothing_of_the_node(honest: &mut Honest<'_>, client: &ClientPod<'_>, metadata: &Metadata<'_>) {
    let ask = |host: &str, port: u16| {
        format!("socat -T 3 - TCP:{host}:{port},connect-timeout=3 </dev/null 2>/dev/null")
    };
    let answer = client.sh(&ask(METADATA, 80)).unwrap();
    assert!(answer.contains("CREDENTIALS"), "{answer}");
    let (asked, denied) =
        (metadata.asked.load(Ordering::Relaxed), honest.guest.dropped(0, "egress_denied").unwrap());
    let answer = honest.guest.sh(&format!("{} || true", ask(METADATA, 80))).unwrap();
    assert!(!answer.contains("CREDENTIALS"), "{answer}");
    assert_eq!(metadata.asked.load(Ordering::Relaxed), asked);
    assert!(honest.guest.dropped(0, "egress_denied").unwrap() > denied);

    let namespace = honest.guest.namespace;
    let launcher = namespace.launcher(HONEST).unwrap().name_any();
    let compute = |command: &str| {
        namespace.kubectl(&["exec", &launcher, "-c", "compute", "--", "sh", "-c", command]).unwrap()
    };
    for listen in ["TCP4-LISTEN", "TCP6-LISTEN"] {
        let own = if listen.contains('4') { "127.0.0.1" } else { "[::1]" };
        compute(&format!(
            "setsid socat {listen}:{LOOPBACK_PORT},bind={own},fork,reuseaddr SYSTEM:'echo LOOPBACK' >/dev/null 2>&1 &"
        ));
        namespace
            .until("the pod's own listener", SOON, || {
                Ok(compute(&format!("{} || true", ask(own, LOOPBACK_PORT)))
                    .contains("LOOPBACK")
                    .then_some(()))
            })
            .unwrap();
    }
    let gateways = honest.guest.sh("ip route show default; ip -6 route show default").unwrap();
    let gateways =
        gateways.lines().filter_map(|line| line.split_whitespace().nth(2)).map(|gateway| match gateway {
            link if link.starts_with("fe80") => format!("[{link}%eth0]"),
            gateway => gateway.to_owned(),
        });
    let mut tried: Vec<String> = gateways.collect();
    assert!(!tried.is_empty());
    tried.extend(honest.guest.addresses.iter().map(|address| host(*address)));
    tried.extend(["127.0.0.1", "127.0.0.6", "[::1]", "[::6]"].map(str::to_owned));
    for at in tried {
        let answer = honest.guest.sh(&format!("{} || true", ask(&at, LOOPBACK_PORT))).unwrap();
        assert!(!answer.contains("LOOPBACK"), "{at}: {answer}");
    }
}

/// Ports of podvirt's daemons that pods reach: those of HTTPS, and those of metrics, which the kubelet's probes ask as well.
fn ports(cluster: &Cluster) -> Vec<(String, u16)> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let pods = cluster.block_on(async { pods.list(&ListParams::default()).await }).unwrap().items;
    let daemons = ["virt-api", "virt-controller", "virt-handler", "virt-operator", "virt-exportproxy"];
    let of = |pod: &Pod| pod.labels().get("kubevirt.io").is_some_and(|name| daemons.contains(&name.as_str()));
    let addresses = pods.into_iter().filter(of).filter_map(|pod| pod.status?.pod_ip);
    addresses.flat_map(|address| [8443, 8080].map(|port| (address.clone(), port))).collect()
}

/// Connections of the client's that say nothing, held until this is dropped; how many of each there are.
fn hold(
    client: &ClientPod<'_>,
    cluster: &Cluster,
    namespace: &str,
    what: &[String],
) -> (Running, Vec<usize>) {
    let mut command = cluster.kubectl_command();
    command.args([
        "--namespace",
        namespace,
        "exec",
        "-i",
        client.name(),
        "--",
        "python3",
        "-c",
        include_str!("peer.py"),
    ]);
    let mut child = command.args(what).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Running(child), line.split_whitespace().map(|word| word.parse().unwrap()).collect())
}

/// Each daemon answers the API server at `/healthz`, and virt-handler does what it is asked.
fn daemons_answer(cluster: &Cluster, honest: &Honest<'_>) {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PODVIRT);
    let params = ListParams::default().labels("kubevirt.io in (virt-api, virt-controller, virt-handler)");
    for pod in cluster.block_on(async { pods.list(&params).await }).unwrap().items {
        let path = format!("/api/v1/namespaces/{PODVIRT}/pods/https:{}:8443/proxy/healthz", pod.name_any());
        let answered = || Ok(cluster.kubectl(&["get", "--raw", &path]).ok());
        honest.guest.namespace.until(&path, SOON, answered).unwrap();
    }
    for command in ["pause", "unpause"] {
        let done = || Ok(honest.guest.namespace.virtctl(&[command, "vmi", HONEST]).ok());
        honest.guest.namespace.until(command, SOON, done).unwrap();
    }
}

#[test]
fn a_peer_takes_neither_the_guest_nor_a_daemon_from_others() {
    let cluster = Cluster::get().unwrap();
    let (others, own) =
        (cluster.namespace(Security::Restricted).unwrap(), cluster.namespace(Security::Restricted).unwrap());
    let mut honest = Honest::start(&others);
    let client = ClientPod::start(&own, "peer", NODE, "").unwrap();
    let metadata = Metadata::start(&cluster, cluster.node(1));
    reaches_nothing_of_the_node(&mut honest, &client, &metadata);
    honest.is_unhurt("questions of the guest's to its node and its pod");

    // Connections to the guest that wait to be accepted, and datagrams, each with a flow of its own.
    honest
        .guest
        .sh(&format!(
            "socat TCP6-LISTEN:{BACKLOG_PORT},backlog=4096,reuseaddr EXEC:'sleep 1000' >/dev/null 2>&1 &"
        ))
        .unwrap();
    let address: IpAddr = honest.guest.addresses[0];
    let flows = [FLOWS.to_string(), address.to_string(), BACKLOG_PORT.to_string()];
    let datagrams = ["udp".to_owned(), DATAGRAMS.to_string(), address.to_string(), "9".to_owned()];
    let (held, counts) = hold(&client, &cluster, own.name(), &[&flows[..], &datagrams[..]].concat());
    eprintln!("{counts:?} of {FLOWS} connections and {DATAGRAMS} datagrams");
    assert!(counts[0] > FLOWS / 10, "{counts:?}");
    honest.is_reached("flows of a peer");
    assert!(honest.guest.succeeds(&format!("ping -c 1 -W 10 {}", cluster.address())).unwrap());
    drop(held);
    honest.is_unhurt("flows of a peer");

    // Connections to the daemons that say nothing.
    let ports = ports(&cluster);
    let asked: Vec<String> = ports
        .iter()
        .flat_map(|(address, port)| [CONNECTIONS.to_string(), address.clone(), port.to_string()])
        .collect();
    let (mut held, counts) = hold(&client, &cluster, own.name(), &asked);
    for ((address, port), count) in ports.iter().zip(&counts) {
        eprintln!("{address}:{port}: {count} of {CONNECTIONS} connections");
    }
    honest.is_reached("silent connections to the daemons");
    daemons_answer(&cluster, &honest);
    // They were held all the while.
    assert!(held.0.try_wait().unwrap().is_none());
    drop(held.0.stdin.take());
    drop(held);
    honest.is_unhurt("silent connections to the daemons");
}
