//! The ways by which a cluster leads to a guest, and what its network tells it, by each binding to the pod's network.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use podvirt_api::v1;
use podvirt_bed_tools::Console;
use podvirt_e2e::cluster::{BOOT, ClientPod, Cluster, Manifest, Namespace, Running, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// What is longer than any answer.
const ANSWER: Duration = Duration::from_secs(3);
/// The port of the tiny guest's greeter.
const GREETER: u16 = 7777;
/// Connections of which two endpoints would have both some.
const MANY: u32 = 30;

/// The nodes' addresses.
const NODES: [[&str; 2]; 2] = [["192.168.77.1", "fd00:77::1"], ["192.168.77.2", "fd00:77::2"]];

/// How a machine is bound to the pod's network.
#[derive(Clone, Copy)]
struct Binding {
    interface: &'static str,
    annotations: &'static str,
    /// Whether the guest has the pod's IPv6 address as well.
    ipv6: bool,
}

const PASST: Binding = Binding { interface: "passtBinding: {}", annotations: "", ipv6: true };
const PLUGIN: Binding = Binding { interface: "binding: {name: passt}", annotations: "", ipv6: true };
const MASQUERADE: Binding = Binding { interface: "masquerade: {}", annotations: "", ipv6: true };
const BY_KERNEL: Binding =
    Binding { interface: "masquerade: {}", annotations: "podvirt.io/masquerade: nftables", ipv6: true };
const BRIDGE: Binding = Binding { interface: "bridge: {}", annotations: "", ipv6: false };

/// A running machine with a shell.
struct Guest<'n> {
    namespace: &'n Namespace<'n>,
    instance: v1::VirtualMachineInstance,
    addresses: BTreeSet<IpAddr>,
    console: Console,
    _running: Running,
}

impl<'n> Guest<'n> {
    fn start(namespace: &'n Namespace<'n>, binding: Binding, more: &str, spec: &str) -> Guest<'n> {
        Guest::with(namespace, binding, more, Manifest { name: "vm", spec, ..Default::default() })
    }

    /// `manifest` with an interface of this binding, of which `more` says more.
    fn with(namespace: &'n Namespace<'n>, binding: Binding, more: &str, manifest: Manifest<'_>) -> Guest<'n> {
        let Binding { interface, annotations, ipv6 } = binding;
        let comma = if manifest.devices.is_empty() { "" } else { ", " };
        let devices =
            format!("{}{comma}interfaces: [{{name: default, {interface}{more}}}]", manifest.devices);
        let manifest = Manifest { annotations, devices: &devices, ..manifest };
        namespace.apply(&manifest.machine()).unwrap();
        let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
        let (console, running) = namespace.shell("vm").unwrap();
        let status = namespace.launcher("vm").unwrap().status.unwrap();
        let mut addresses: BTreeSet<IpAddr> =
            status.pod_ips.iter().flatten().map(|address| address.ip.parse().unwrap()).collect();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        addresses.retain(|address| ipv6 || address.is_ipv4());
        Guest { namespace, instance, addresses, console, _running: running }
    }

    fn sh(&mut self, command: &str) -> String {
        self.console.sh(command, COMMAND).unwrap()
    }

    /// Its one interface is told as it is: the guest's MAC address, the pod's addresses.
    fn is_told(&mut self) {
        let all = self.addresses.clone();
        let listed = |i: &v1::VirtualMachineInstance| -> BTreeSet<IpAddr> {
            let first = i.status.interfaces.first();
            first.iter().flat_map(|i| &i.ip_addresses).map(|address| address.parse().unwrap()).collect()
        };
        let instance = self
            .namespace
            .wait("vm", "the pod's addresses in the status", SOON, |i| listed(i) == all)
            .unwrap();
        assert_eq!(instance.status.interfaces.len(), 1);
        let interface = instance.status.interfaces.first().unwrap();
        assert_eq!(interface.name.as_deref(), Some("default"));
        assert_eq!(interface.pod_interface_name.as_deref(), Some("eth0"));
        let mac = self.sh("cat /sys/class/net/e*/address");
        assert_eq!(interface.mac.as_deref(), Some(mac.as_str()));
        assert!(interface.ip_address.as_ref().is_some_and(|ip| all.contains(&ip.parse().unwrap())));
    }
}

/// What the guest says to this process at a port of an address.
fn greeting(address: IpAddr, port: u16) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    let mut text = Vec::new();
    let mut byte = [0];
    while text.last() != Some(&b'\n') {
        stream.read_exact(&mut byte).ok()?;
        text.push(byte[0]);
    }
    String::from_utf8(text).ok().filter(|said| said.starts_with("GUEST-HELLO"))
}

/// Makes a Service that leads to the guest by the families that it has, and returns it.
fn service(guest: &Guest<'_>, name: &str, more: &str) -> Service {
    let both = guest.addresses.iter().any(IpAddr::is_ipv6);
    let families = if both {
        "ipFamilyPolicy: RequireDualStack"
    } else {
        "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]"
    };
    let manifest = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, \
         spec: {{selector: {{vm: vm}}, {families}, ports: [{{port: {GREETER}}}], {more}}}}}"
    );
    guest.namespace.apply(&manifest).unwrap();
    guest.namespace.wait(name, "the service", SOON, |_: &Service| true).unwrap()
}

fn cluster_addresses(service: &Service) -> Vec<IpAddr> {
    let spec = service.spec.as_ref().unwrap();
    spec.cluster_ips.iter().flatten().map(|address| address.parse().unwrap()).collect()
}

fn node_port(service: &Service) -> u16 {
    let ports = service.spec.as_ref().unwrap().ports.as_ref().unwrap();
    u16::try_from(ports[0].node_port.unwrap()).unwrap()
}

/// Which endpoints `MANY` connections of a client meet.
fn endpoints(client: &ClientPod<'_>, address: IpAddr) -> BTreeSet<String> {
    let ask =
        format!("socat -T 2 - TCP:{address}:{GREETER},connect-timeout=2 </dev/null 2>/dev/null | head -n 1");
    let said = client.sh(&format!("for i in $(seq {MANY}); do {ask}; done")).unwrap();
    said.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn services(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut guest = Guest::start(&namespace, binding, "", "hostname: chosen, subdomain: names");
    let nodes = NODES.map(|node| node.into_iter().filter(|at| binding.ipv6 || !at.contains(':')).collect());
    let [own, other]: [Vec<&str>; 2] = match guest.instance.status.node_name.as_deref().unwrap() {
        "node1" => nodes,
        _ => nodes.into_iter().rev().collect::<Vec<_>>().try_into().unwrap(),
    };
    guest.is_told();

    // By a port of every node; and by one of the guest's own node alone, which leaves the client its address.
    let by_nodes = service(&guest, "nodes", "type: NodePort");
    for node in own.iter().chain(&other) {
        let greets = || Ok(greeting(node.parse().unwrap(), node_port(&by_nodes)));
        namespace.until(&format!("a greeting by {node}"), SOON, greets).unwrap();
    }
    let local = service(&guest, "local", "type: NodePort, externalTrafficPolicy: Local");
    for node in own {
        let greets = || Ok(greeting(node.parse().unwrap(), node_port(&local)));
        let said = namespace.until(&format!("a greeting by {node} alone"), SOON, greets).unwrap();
        let known = if node.contains(':') { "fd00:77::100" } else { "192.168.77.100" };
        let of: IpAddr = said.trim().rsplit(' ').next().unwrap().trim_matches(['[', ']']).parse().unwrap();
        assert_eq!(of, known.parse::<IpAddr>().unwrap());
    }
    for node in other {
        assert_eq!(greeting(node.parse().unwrap(), node_port(&local)), None);
    }

    // From the guest to itself, by its own Service.
    for address in cluster_addresses(&by_nodes) {
        let at = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        guest.sh(&format!("socat -T 5 - TCP:{at}:{GREETER},connect-timeout=5 </dev/null | grep GUEST-HELLO"));
    }

    // By names: the headless Service's, and the machine's own under it, which the guest has as its domain.
    service(&guest, "names", "clusterIP: None");
    let client = ClientPod::start(&namespace, "client", "node1", "role: client").unwrap();
    let domain = format!("names.{}.svc.cluster.local", namespace.name());
    for name in [domain.clone(), format!("chosen.{domain}")] {
        let resolves = || {
            let said = client.sh(&format!("getent ahosts {name} || true"))?;
            let found = said.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
            Ok((found.collect::<BTreeSet<IpAddr>>() == guest.addresses).then_some(()))
        };
        namespace.until(&format!("the addresses of {name}"), SOON, resolves).unwrap();
    }
    assert_eq!(guest.sh("hostname"), "chosen");
    let resolver = guest.sh("cat /etc/resolv.conf /tmp/dhcp.env");
    assert!(resolver.contains(&domain), "{resolver}");

    if binding.ipv6 {
        forwarded(&namespace);
    }

    // Beside another endpoint: a client meets both, and with affinity one of them ever after.
    let twin = ClientPod::start(&namespace, "twin", "node2", "vm: vm").unwrap();
    twin.sh(&format!(
        "socat TCP6-LISTEN:{GREETER},fork,reuseaddr SYSTEM:'echo TWIN-HELLO' >/dev/null 2>&1 &"
    ))
    .unwrap();
    let address = cluster_addresses(&by_nodes)[0];
    let met = |number: usize| {
        namespace.until("endpoints", SOON, || Ok((endpoints(&client, address).len() == number).then_some(())))
    };
    met(2).unwrap();
    namespace
        .kubectl(&["patch", "service", "nodes", "-p", "{\"spec\":{\"sessionAffinity\":\"ClientIP\"}}"])
        .unwrap();
    met(1).unwrap();
}

/// The guest greets by way of the API server, which leads to the pod's own ports.
fn forwarded(namespace: &Namespace<'_>) {
    let mut forward = namespace.cluster().kubectl_command();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    forward.args(["-n", namespace.name(), "port-forward", "service/nodes", &format!("{port}:{GREETER}")]);
    let _forward = Running(forward.stdout(Stdio::null()).spawn().unwrap());
    let forwarded = || Ok(greeting("127.0.0.1".parse().unwrap(), port));
    namespace.until("a greeting by kubectl port-forward", SOON, forwarded).unwrap();
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest() {
    services(PASST);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_behind_masquerade() {
    services(MASQUERADE);
}

/// netd stands in for the plugin, which no object registers here.
#[test]
fn long_every_kind_of_service_leads_to_the_guest_by_the_plugin_that_netd_stands_in_for() {
    services(PLUGIN);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_behind_the_kernels_masquerade() {
    services(BY_KERNEL);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_in_the_pods_place() {
    services(BRIDGE);
}

/// The card has a queue pair for each processor, and its cable is pulled and plugged while the machine runs.
fn card(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest {
        name: "vm",
        domain: "cpu: {cores: 2}",
        devices: "networkInterfaceMultiqueue: true",
        ..Default::default()
    };
    let mut guest = Guest::with(&namespace, binding, "", manifest);
    assert_eq!(guest.sh("ls -d /sys/class/net/e*/queues/rx-* | wc -l"), "2");
    for (state, carrier) in [("down", "0"), ("up", "1")] {
        let path = "/spec/template/spec/domain/devices/interfaces/0/state";
        let patch = serde_json::json!([{"op": "add", "path": path, "value": state}]);
        namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch.to_string()]).unwrap();
        namespace
            .until(&format!("a cable that is {state}"), SOON, || {
                Ok((guest.sh("cat /sys/class/net/e*/carrier") == carrier).then_some(()))
            })
            .unwrap();
        let tells = |i: &v1::VirtualMachineInstance| {
            i.status.interfaces.first().is_some_and(|i| i.link_state.as_deref() == Some(state))
        };
        namespace.wait("vm", "the link in the status", SOON, tells).unwrap();
    }
    for address in guest.addresses.clone() {
        let greets = || Ok(greeting(address, GREETER));
        namespace.until(&format!("a greeting at {address}"), SOON, greets).unwrap();
    }
}

#[test]
fn long_the_card_behind_masquerade_has_its_pairs_and_its_cable() {
    card(MASQUERADE);
}

#[test]
fn long_the_card_behind_the_kernels_masquerade_has_its_pairs_and_its_cable() {
    card(BY_KERNEL);
}

#[test]
fn long_the_card_in_the_pods_place_has_its_pairs_and_its_cable() {
    card(BRIDGE);
}

fn dhcp(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let options = "dhcpOptions: {bootFileName: boot.efi, tftpServerName: tftp.example, \
                   ntpServers: [192.0.2.1, 192.0.2.2], privateOptions: [{option: 240, value: ours}]}";
    let mut guest = Guest::start(&namespace, binding, &format!(", {options}"), "");
    guest.is_told();
    let ask = "printf '#!/bin/sh\\nenv >/tmp/offer\\n' >/tmp/show; chmod 755 /tmp/show; \
               udhcpc -i $(ls /sys/class/net | grep ^e) -n -q -f -t 8 -T 1 -O bootfile -O tftp -O ntpsrv -O mtu -O 240 -s /tmp/show >/dev/null 2>&1; \
               cat /tmp/offer";
    let offer = guest.sh(ask);
    let said = |name: &str| {
        offer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    assert_eq!(said("bootfile").as_deref(), Some("boot.efi"), "{offer}");
    assert_eq!(said("tftp").as_deref(), Some("tftp.example"), "{offer}");
    assert_eq!(said("ntpsrv").as_deref(), Some("192.0.2.1 192.0.2.2"), "{offer}");
    assert_eq!(said("opt240").as_deref(), Some("6f757273"), "{offer}");
    assert_eq!(said("mtu").as_deref(), Some("1500"), "{offer}");
}

#[test]
fn long_the_guest_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(PASST);
}

#[test]
fn long_the_guest_behind_masquerade_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(MASQUERADE);
}

#[test]
fn long_the_guest_behind_the_kernels_masquerade_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(BY_KERNEL);
}
