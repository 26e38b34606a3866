//! Istio's sidecar beside a machine: what goes through the proxy, what goes past it, and how both end.

use std::collections::BTreeSet;
use std::io::Read;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use podvirt_api::v1;
use podvirt_e2e::cluster::mesh::{ISTIO, Mesh, Proxy, rules};
use podvirt_e2e::cluster::{BOOT, Binding, Manifest, Namespace, SOON, Security};

use crate::machine::{
    GREETER, Machine, SSH, WEB, cluster, connect, datagram_from_guest, echo, echoes, from_guest, get,
    greeted, host,
};

/// A machine that asks for a sidecar which leaves SSH alone.
pub(crate) const INJECT: &str =
    "sidecar.istio.io/inject: 'true', traffic.sidecar.istio.io/excludeInboundPorts: '22'";
pub(crate) const CONTAINER: &str = "istio-proxy";
/// Istio's ports.
const RESERVED: [u16; 10] = [15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];
/// Connections that the proxy has opened to the pod's own ports, and to the world.
const INBOUND: [&str; 2] = [
    "cluster.InboundPassthroughCluster.upstream_cx_total",
    "cluster.InboundPassthroughClusterIpv6.upstream_cx_total",
];
const OUTBOUND: &str = "cluster.PassthroughCluster.upstream_cx_total";

fn manifest(annotations: &str) -> Manifest<'_> {
    Manifest { name: "vm", annotations, ..Default::default() }
}

/// What of the machine goes through the proxy does so, and the rest past it, by both families.
fn stands_between(machine: &mut Machine<'_>) {
    machine.is_served();
    let sidecar = machine.sidecar(CONTAINER, ISTIO);
    for ((address, here), inbound) in machine.addresses.clone().into_iter().zip(machine.here).zip(INBOUND) {
        // Into the guest: HTTP, which the proxy understands, at two ports, and what it does not.
        let was = sidecar.count(inbound).unwrap();
        for port in [WEB, 8081] {
            let page = get(address, port, "/live").unwrap();
            assert!(page.contains(" 200 OK") && page.ends_with("yes\n"), "{page}");
            assert!(page.contains("server: istio-envoy"), "{page}");
        }
        let (mut stream, seen) = greeted(address, GREETER).unwrap();
        echoes(&mut stream).unwrap();
        // The proxy's own address is one that the guest cannot answer: it is shown its gateway.
        assert_ne!(seen, here, "the proxy hides the client");
        assert!(sidecar.count(inbound).unwrap() >= was + 3);
        // Past the proxy: the guest sees the client.
        let was = sidecar.count(inbound).unwrap();
        let (mut stream, seen) = greeted(address, SSH).unwrap();
        echoes(&mut stream).unwrap();
        assert_eq!(seen, here);
        machine.namespace.until("an echo", SOON, || Ok(echo(address).ok())).unwrap();
        assert_eq!(sidecar.count(inbound).unwrap(), was);

        // Out of it.
        let was = sidecar.count(OUTBOUND).unwrap();
        assert_eq!(from_guest(machine, here), (address, "a line of the guest".to_owned()));
        assert_eq!(sidecar.count(OUTBOUND).unwrap(), was + 1);
        assert_eq!(datagram_from_guest(machine, here), address);
        assert_eq!(sidecar.count(OUTBOUND).unwrap(), was + 1);

        // The mesh's own ports are the proxy's.
        let health = get(address, 15021, "/healthz/ready").unwrap();
        assert!(health.ends_with("ready"), "{health}");
        let metrics = get(address, 15090, "/stats/prometheus").unwrap();
        assert!(metrics.contains("envoy_cluster_upstream_cx_total"), "{metrics}");
    }
}

/// The guest does not get at the proxy's administration, whatever address it takes for the pod's.
fn administration_is_closed(machine: &mut Machine<'_>) {
    let ready = |text: &str| text.contains("LIVE");
    // The pod's containers do.
    assert!(ready(&machine.sidecar(CONTAINER, ISTIO).admin("ready").unwrap()));
    let curl = ["exec", &machine.pod(), "-c", "compute", "--", "curl", "-s", "http://127.0.0.1:15000/ready"];
    assert!(ready(&machine.namespace.kubectl(&curl).unwrap()));
    let gateways = machine.sh("ip route show default; ip -6 route show default").unwrap();
    let gateways =
        gateways.lines().filter_map(|line| line.split_whitespace().nth(2)).map(|gateway| match gateway {
            link if link.starts_with("fe80") => format!("[{link}%eth0]"),
            gateway if gateway.contains(':') => format!("[{gateway}]"),
            gateway => gateway.to_owned(),
        });
    let mut tried: Vec<String> = gateways.collect();
    assert!(!tried.is_empty());
    tried.extend(machine.addresses.iter().map(|address| host(*address)));
    tried.extend(["127.0.0.1", "127.0.0.6", "[::1]", "[::6]"].map(str::to_owned));
    for host in tried {
        let said = machine.fetch(&format!("http://{host}:15000/ready"));
        assert!(!ready(&said), "{host}: {said}");
    }
}

/// Those of the mesh's ports on which it listens are its own, and netd listens on none of the rest.
fn reserved_are_the_meshs(machine: &Machine<'_>) {
    let tables = ["exec", &machine.pod(), "-c", "compute", "--", "cat", "/proc/net/tcp", "/proc/net/tcp6"];
    let tables = machine.namespace.kubectl(&tables).unwrap();
    // The local address, the state and the user are the columns 1, 3 and 7; 0A is a listener.
    let listeners = tables.lines().filter_map(|row| {
        let row: Vec<&str> = row.split_whitespace().collect();
        let port = row.get(1)?.rsplit(':').next()?;
        (*row.get(3)? == "0A")
            .then_some((u16::from_str_radix(port, 16).ok()?, row.get(7)?.parse::<u32>().ok()?))
    });
    let listeners: BTreeSet<(u16, u32)> = listeners.filter(|(port, _)| RESERVED.contains(port)).collect();
    let proxys = [15000, 15001, 15006, 15020, 15021, 15090].map(|port| (port, rules::ISTIO));
    assert_eq!(listeners, BTreeSet::from(proxys));
}

fn status(pod: &Pod, name: &str) -> Option<ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter().find(|s| s.name == name).cloned()
}

fn ended(pod: &Pod, name: &str) -> Option<i32> {
    Some(status(pod, name)?.state?.terminated?.exit_code)
}

/// The guest switches itself off, and all containers of its pod end.
fn ends_with_the_machine(namespace: &Namespace<'_>, machine: &mut Machine<'_>) {
    drop(machine.sh("(sleep 1; poweroff -f) &"));
    let over = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Succeeded");
    let pod = namespace.wait::<Pod>(&machine.pod(), "a pod that has succeeded", SOON, over).unwrap();
    for name in ["compute", CONTAINER] {
        assert_eq!(ended(&pod, name), Some(0), "{name}");
    }
    namespace.wait_phase("vm", "Succeeded", SOON).unwrap();
}

#[test]
fn a_sidecar_stands_between_a_machine_and_the_world() {
    between_a_machine_and_the_world(Binding::PASST);
}

#[test]
fn long_a_sidecar_stands_between_a_machine_behind_masquerade_and_the_world() {
    between_a_machine_and_the_world(Binding::MASQUERADE);
}

#[test]
fn long_a_sidecar_stands_between_a_machine_behind_the_kernels_masquerade_and_the_world() {
    between_a_machine_and_the_world(Binding::BY_KERNEL);
}

fn between_a_machine_and_the_world(binding: Binding) {
    let cluster = cluster();
    // Istio's init container has NET_ADMIN.
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy::default()).unwrap();
    let once = Manifest { run: "Once", ..manifest(INJECT) };
    let mut machine = Machine::start(&namespace, binding, &once);
    // The proxy was there first.
    let init: Vec<String> = machine
        .pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .map(|c| c.name.clone())
        .collect();
    assert_eq!(init[..2], ["istio-init", "istio-proxy"]);
    assert_eq!(init.contains(&"netd".to_owned()), binding.by_netd(), "{init:?}");
    stands_between(&mut machine);
    administration_is_closed(&mut machine);
    reserved_are_the_meshs(&machine);
    ends_with_the_machine(&namespace, &mut machine);
}

/// The older layout: netd is there before the rules and the proxy, and nothing of Kubernetes ends the proxy.
#[test]
fn long_a_proxy_that_is_an_ordinary_container_ends_with_the_machine() {
    ordinary_container(Binding::PASST);
}

#[test]
fn long_a_proxy_that_is_an_ordinary_container_ends_with_the_machine_behind_masquerade() {
    ordinary_container(Binding::MASQUERADE);
}

#[test]
fn long_a_proxy_that_is_an_ordinary_container_ends_with_the_machine_behind_the_kernels_masquerade() {
    ordinary_container(Binding::BY_KERNEL);
}

fn ordinary_container(binding: Binding) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy::default()).unwrap();
    let annotations = format!("{INJECT}, sidecar.istio.io/nativeSidecar: 'false'");
    let once = Manifest { run: "Once", ..manifest(&annotations) };
    let mut machine = Machine::start(&namespace, binding, &once);
    let init = machine.pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
    let place = |name: &str| init.iter().position(|c| c.name == name);
    if binding.by_netd() {
        assert!(place("netd").unwrap() < place("istio-init").unwrap());
    }
    stands_between(&mut machine);
    administration_is_closed(&mut machine);
    reserved_are_the_meshs(&machine);
    ends_with_the_machine(&namespace, &mut machine);
    // Not by a signal: virt-launcher has asked it.
    let said = namespace.kubectl(&["logs", &machine.pod(), "-c", CONTAINER]).unwrap();
    assert!(
        said.contains("POST /quitquitquit HTTP/1.1 from ") && !said.contains("mesh-agent: SIGTERM"),
        "{said}"
    );
}

#[test]
fn long_a_proxy_that_is_killed_comes_back() {
    killed(Binding::PASST);
}

#[test]
fn long_a_proxy_that_is_killed_before_a_machine_behind_masquerade_comes_back() {
    killed(Binding::MASQUERADE);
}

#[test]
fn long_a_proxy_that_is_killed_before_a_machine_behind_the_kernels_masquerade_comes_back() {
    killed(Binding::BY_KERNEL);
}

fn killed(binding: Binding) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy::default()).unwrap();
    let mut machine = Machine::start(&namespace, binding, &manifest(INJECT));
    machine.is_served();
    let address = machine.addresses[0];
    let (mut through, _) = greeted(address, GREETER).unwrap();
    let (mut past, _) = greeted(address, SSH).unwrap();
    let restarts = |pod: &Pod| status(pod, CONTAINER).map(|s| s.restart_count);
    let sidecar = machine.sidecar(CONTAINER, ISTIO);
    // It is asked for its process beforehand, as there is no other way to end it but by its number.
    let envoy = sidecar.exec(&["pgrep", "-x", "envoy"]).unwrap();
    sidecar.exec(&["kill", "-KILL", envoy.trim()]).unwrap();
    // What was by way of it ends. What was past it goes on, while there is no proxy as well.
    assert_eq!(through.read(&mut [0]).map_err(|e| e.kind()), Ok(0));
    echoes(&mut past).unwrap();
    greeted(address, SSH).unwrap();
    let again = |pod: &Pod| restarts(pod) == Some(1) && status(pod, CONTAINER).is_some_and(|s| s.ready);
    namespace.wait::<Pod>(&machine.pod(), "a proxy that is back", SOON, again).unwrap();
    echoes(&mut past).unwrap();
    stands_between(&mut machine);
    let instance = namespace.wait_phase("vm", "Running", SOON).unwrap();
    assert_eq!(instance.status.node_name, machine.pod.spec.as_ref().unwrap().node_name);
    let same: v1::VirtualMachineInstance = namespace.wait("vm", "the instance", BOOT, |_| true).unwrap();
    assert_eq!(same.metadata.uid, instance.metadata.uid);
    assert!(connect(address, SSH).is_ok());
    assert_eq!(namespace.launcher("vm").unwrap().name_any(), machine.pod());
}
