//! The ways by which a cluster leads to a guest, and what its network tells it, by each binding to the pod's network.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;

use k8s_openapi::api::core::v1::Service;
use podvirt_api::v1;
use podvirt_e2e::cluster::talk::{GREETER, echo, greeting, host};
use podvirt_e2e::cluster::{
    Binding, ClientPod, Cluster, Guest, Joined, Manifest, Namespace, Running, SEGMENT, SOON, Security,
};
use serde_json::json;

/// Connections of which two endpoints would have both some.
const MANY: u32 = 30;

/// The nodes' addresses.
const NODES: [[&str; 2]; 2] = [["192.168.77.1", "fd00:77::1"], ["192.168.77.2", "fd00:77::2"]];

/// Its one interface is told as it is: the guest's MAC address, the pod's addresses.
fn is_told(guest: &mut Guest<'_>) {
    let all: BTreeSet<IpAddr> = guest.addresses.iter().copied().collect();
    let listed = |i: &v1::VirtualMachineInstance| -> BTreeSet<IpAddr> {
        let first = i.status.interfaces.first();
        first.iter().flat_map(|i| &i.ip_addresses).map(|address| address.parse().unwrap()).collect()
    };
    let told = guest.namespace.wait("vm", "the pod's addresses in the status", SOON, |i| listed(i) == all);
    let instance = told.unwrap();
    assert_eq!(instance.status.interfaces.len(), 1);
    let interface = instance.status.interfaces.first().unwrap();
    assert_eq!(interface.name.as_deref(), Some("default"));
    assert_eq!(interface.pod_interface_name.as_deref(), Some("eth0"));
    let mac = guest.sh("cat /sys/class/net/e*/address").unwrap();
    assert_eq!(interface.mac.as_deref(), Some(mac.as_str()));
    assert!(interface.ip_address.as_ref().is_some_and(|ip| all.contains(&ip.parse().unwrap())));
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
    let manifest = Manifest { name: "vm", spec: "hostname: chosen, subdomain: names", ..Default::default() };
    let mut guest = Guest::start(&namespace, binding, &manifest, "").unwrap();
    let nodes = NODES.map(|node| node.into_iter().filter(|at| binding.ipv6 || !at.contains(':')).collect());
    let [own, other]: [Vec<&str>; 2] = match guest.node().unwrap() {
        "node1" => nodes,
        _ => nodes.into_iter().rev().collect::<Vec<_>>().try_into().unwrap(),
    };
    is_told(&mut guest);

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
        let of: IpAddr = said.rsplit(' ').next().unwrap().trim_matches(['[', ']']).parse().unwrap();
        assert_eq!(of, known.parse::<IpAddr>().unwrap());
    }
    for node in other {
        assert_eq!(greeting(node.parse().unwrap(), node_port(&local)), None);
    }

    // From the guest to itself, by its own Service.
    for address in cluster_addresses(&by_nodes) {
        let at = host(address);
        let ask = format!("socat -T 5 - TCP:{at}:{GREETER},connect-timeout=5 </dev/null | grep GUEST-HELLO");
        guest.sh(&ask).unwrap();
    }

    // By names: the headless Service's, and the machine's own under it, which the guest has as its domain.
    service(&guest, "names", "clusterIP: None");
    let client = ClientPod::start(&namespace, "client", "node1", "role: client").unwrap();
    let domain = format!("names.{}.svc.cluster.local", namespace.name());
    for name in [domain.clone(), format!("chosen.{domain}")] {
        let resolves = || {
            let said = client.sh(&format!("getent ahosts {name} || true"))?;
            let found = said.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
            let known = guest.addresses.iter().copied().collect::<BTreeSet<IpAddr>>();
            Ok((found.collect::<BTreeSet<IpAddr>>() == known).then_some(()))
        };
        namespace.until(&format!("the addresses of {name}"), SOON, resolves).unwrap();
    }
    assert_eq!(guest.sh("hostname").unwrap(), "chosen");
    let resolver = guest.sh("cat /etc/resolv.conf /tmp/dhcp.env").unwrap();
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
    services(Binding::PASST);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_behind_masquerade() {
    services(Binding::MASQUERADE);
}

/// netd stands in for the plugin, which no object registers here.
#[test]
fn long_every_kind_of_service_leads_to_the_guest_by_the_plugin_that_netd_stands_in_for() {
    services(Binding::PLUGIN);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_behind_the_kernels_masquerade() {
    services(Binding::BY_KERNEL);
}

#[test]
fn long_every_kind_of_service_leads_to_the_guest_in_the_pods_place() {
    services(Binding::BRIDGE);
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
    let mut guest = Guest::start(&namespace, binding, &manifest, "").unwrap();
    has_pairs(&mut guest, "eth0", 2);
    cable(&mut guest, "eth0", 0);
    for address in guest.addresses.clone() {
        let greets = || Ok(greeting(address, GREETER));
        namespace.until(&format!("a greeting at {address}"), SOON, greets).unwrap();
    }
}

/// The card has as many queue pairs, and uses them.
fn has_pairs(guest: &mut Guest<'_>, card: &str, pairs: usize) {
    let pairs = pairs.to_string();
    assert_eq!(guest.sh(&format!("ls -d /sys/class/net/{card}/queues/rx-* | wc -l")).unwrap(), pairs);
    let used =
        guest.sh(&format!("ethtool -l {card} | awk '/^Combined/ {{n = $2}} END {{print n}}'")).unwrap();
    assert_eq!(used, pairs, "{card}");
}

/// Pulls the cable of a card, the interface at this place of the manifest, and plugs it again.
fn cable(guest: &mut Guest<'_>, card: &str, place: usize) {
    let namespace = guest.namespace;
    for (state, carrier) in [("down", "0"), ("up", "1")] {
        let path = format!("/spec/template/spec/domain/devices/interfaces/{place}/state");
        let patch = json!([{"op": "add", "path": path, "value": state}]);
        namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch.to_string()]).unwrap();
        let look = format!("cat /sys/class/net/{card}/carrier");
        let is = || Ok((guest.sh(&look)? == carrier).then_some(()));
        namespace.until(&format!("a cable that is {state}"), SOON, is).unwrap();
        let tells = |i: &v1::VirtualMachineInstance| {
            i.status.interfaces.get(place).is_some_and(|i| i.link_state.as_deref() == Some(state))
        };
        namespace.wait("vm", "the link in the status", SOON, tells).unwrap();
    }
}

#[test]
fn long_the_card_behind_masquerade_has_its_pairs_and_its_cable() {
    card(Binding::MASQUERADE);
}

#[test]
fn long_the_card_behind_the_kernels_masquerade_has_its_pairs_and_its_cable() {
    card(Binding::BY_KERNEL);
}

#[test]
fn long_the_card_in_the_pods_place_has_its_pairs_and_its_cable() {
    card(Binding::BRIDGE);
}

/// Every option that a manifest can name.
const OPTIONS: &str = "dhcpOptions: {bootFileName: boot.efi, tftpServerName: tftp.example, \
                       ntpServers: [192.0.2.1, 192.0.2.2], privateOptions: [{option: 240, value: ours}]}";

fn dhcp(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest { name: "vm", ..Default::default() };
    let mut guest = Guest::start(&namespace, binding, &manifest, OPTIONS).unwrap();
    is_told(&mut guest);
    is_offered(&mut guest, "eth0");
}

/// The network offers by DHCP what [`OPTIONS`] asks for.
fn is_offered(guest: &mut Guest<'_>, card: &str) {
    let offer = guest.offer(card).unwrap();
    let said = |name: &str| offer.get(name).map(String::as_str);
    assert_eq!(said("bootfile"), Some("boot.efi"), "{offer:?}");
    assert_eq!(said("tftp"), Some("tftp.example"), "{offer:?}");
    assert_eq!(said("ntpsrv"), Some("192.0.2.1 192.0.2.2"), "{offer:?}");
    assert_eq!(said("opt240"), Some("6f757273"), "{offer:?}");
    assert_eq!(said("mtu"), Some("1500"), "{offer:?}");
}

#[test]
fn long_the_guest_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(Binding::PASST);
}

#[test]
fn long_the_guest_behind_masquerade_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(Binding::MASQUERADE);
}

#[test]
fn long_the_guest_behind_the_kernels_masquerade_is_told_every_dhcp_option_of_its_manifest() {
    dhcp(Binding::BY_KERNEL);
}

/// Where the network's `ipam` gives an address, on networks of Multus: by netd, and to a host of the segment. That the network
/// lets pass the pod's own address alone is no hindrance to netd. Each card has its queue pairs and its cable.
#[test]
fn long_the_guest_is_told_every_dhcp_option_on_networks_of_multus() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let plugin = |subnet: u8, check: bool| {
        let range =
            json!({"subnet": format!("172.31.{subnet}.0/24"), "rangeStart": format!("172.31.{subnet}.10")});
        json!({"type": "bridge", "bridge": SEGMENT, "mtu": 1500, "macspoofchk": check,
            "ipam": {"type": "host-local", "ranges": [[range]]}})
    };
    namespace.network("checked", &plugin(73, true)).unwrap();
    namespace.network("open", &plugin(74, false)).unwrap();
    let own = [73, 74].map(|subnet| (IpAddr::from([172, 31, subnet, 250]), 24));
    let _joined = Joined::segment(&own).unwrap();
    let devices = format!(
        "networkInterfaceMultiqueue: true, interfaces: [{{name: default, masquerade: {{}}}}, {{name: served, passtBinding: {{}}, {OPTIONS}}}, {{name: hosted, bridge: {{}}, {OPTIONS}}}]"
    );
    let spec = "networks: [{name: default, pod: {}}, {name: served, multus: {networkName: checked}}, {name: hosted, multus: {networkName: open}}]";
    let domain = "cpu: {cores: 2}";
    let manifest = Manifest { name: "vm", spec, domain, devices: &devices, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    let mut guest = Guest::of(&namespace, "vm").unwrap();
    guest.sh("socat UDP4-RECVFROM:5353,fork PIPE &").unwrap();
    for (card, subnet) in [("eth1", 73), ("eth2", 74)] {
        has_pairs(&mut guest, card, 2);
        is_offered(&mut guest, card);
        guest.sh(&format!("udhcpc -i {card} -n -q -t 8 -T 1 -s /etc/udhcpc.sh >/dev/null 2>&1")).unwrap();
        assert_eq!(guest.sh(&format!("cat /sys/class/net/{card}/mtu")).unwrap(), "1500");
        let has = guest.sh(&format!("ip -4 -o addr show dev {card} | awk '{{print $4}}'")).unwrap();
        let address: IpAddr = has.trim_end_matches("/24").parse().unwrap();
        assert!(address.to_string().starts_with(&format!("172.31.{subnet}.")), "{has}");
        namespace.until("an echo", SOON, || Ok(echo(address, 5353).ok())).unwrap();
        namespace.until("a greeting", SOON, || Ok(greeting(address, GREETER))).unwrap();
        guest.sh(&format!("ping -c 1 -W 10 172.31.{subnet}.250")).unwrap();
        cable(&mut guest, card, if card == "eth1" { 1 } else { 2 });
        namespace.until("a greeting again", SOON, || Ok(greeting(address, GREETER))).unwrap();
    }
}
