//! Pods of IPv6 alone, and pods whose gateway is outside of their prefix.

use std::net::{IpAddr, TcpListener};
use std::process::Stdio;

use podvirt_api::v1;
use podvirt_e2e::cluster::talk::{self, GREETER, host};
use podvirt_e2e::cluster::{
    Binding, Cluster, Guest, Joined, Manifest, Namespace, Node, Running, SEGMENT, SOON, Security,
};
use serde_json::{Value, json};

use crate::{on, second, start};

/// Bytes that go to a guest and come back.
const BULK: usize = 256 << 10;
/// A port of UDP at which a guest echoes.
const ECHO: u16 = 5353;
/// The control plane's addresses.
const HERE: [&str; 2] = ["192.168.77.100", "fd00:77::100"];

/// Data goes through both ways, by connections in either direction, and so do datagrams.
fn speaks(guest: &mut Guest<'_>, families: &[&str]) {
    guest.sh(&format!("socat UDP6-RECVFROM:{ECHO},fork PIPE &")).unwrap();
    for &address in &guest.addresses {
        guest.namespace.until("a greeting", SOON, || Ok(talk::greeting(address, GREETER))).unwrap();
        talk::bulk(address, GREETER, BULK).unwrap();
        guest.namespace.until("an echo", SOON, || Ok(talk::echo(address, ECHO).ok())).unwrap();
    }
    for here in families {
        let here: IpAddr = here.parse().unwrap();
        let listener = TcpListener::bind((here, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        guest.sh(&format!("socat -u /dev/null TCP:{}:{port},connect-timeout=10", host(here))).unwrap();
        let (_, from) = listener.accept().unwrap();
        assert!(guest.addresses.contains(&from.ip()), "{from}");
        guest.sh(&format!("ping -c 1 -W 10 {here}")).unwrap();
    }
}

/// The instance tells of one interface with these addresses, and no others.
fn is_told(guest: &Guest<'_>) {
    let told = |i: &v1::VirtualMachineInstance| -> Vec<IpAddr> {
        let of = i.status.interfaces.first().map(|i| i.ip_addresses.clone()).unwrap_or_default();
        of.iter().map(|address| address.parse().unwrap()).collect()
    };
    let all = |i: &v1::VirtualMachineInstance| {
        let told = told(i);
        told.len() == guest.addresses.len() && guest.addresses.iter().all(|address| told.contains(address))
    };
    guest.namespace.wait(&guest.name, "the addresses in the status", SOON, all).unwrap();
}

/// It is reached by virtctl.
fn is_forwarded(guest: &Guest<'_>) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut virtctl = guest.namespace.cluster().virtctl().unwrap();
    let target = format!("vmi/{}", guest.name);
    virtctl.args(["-n", guest.namespace.name(), "port-forward", &target, &format!("{port}:{GREETER}")]);
    let _virtctl = Running(virtctl.stdout(Stdio::null()).spawn().unwrap());
    let greets = || Ok(talk::greeting("127.0.0.1".parse().unwrap(), port));
    guest.namespace.until("a greeting by virtctl port-forward", SOON, greets).unwrap();
}

#[test]
fn long_a_pod_of_ipv6_alone_gives_its_guest_ipv6_alone() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let six = |plugins: &mut Vec<Value>| {
        let ipam = &mut plugins[0]["ipam"];
        ipam["ranges"] = json!([ipam["ranges"][1]]);
        ipam["routes"] = json!([{"dst": "::/0"}]);
    };
    let six = namespace.first_network("six", cluster.node(1), six).unwrap();
    let range = json!([[{"subnet": "fd00:31:77::/64", "rangeStart": "fd00:31:77::10"}]]);
    let ipam = json!({"type": "host-local", "ranges": range});
    namespace.network("served", &json!({"type": "bridge", "bridge": SEGMENT, "ipam": ipam})).unwrap();
    let _joined = Joined::segment(&[("fd00:31:77::250".parse().unwrap(), 64)]).unwrap();
    let second = Manifest {
        name: "second",
        spec: &format!("networks: [{{name: served, multus: {{networkName: served}}}}], {}", on("node1")),
        devices: "interfaces: [{name: served, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&second.machine()).unwrap();
    let bridge = Manifest { name: "bridge", annotations: &six, spec: &on("node1"), ..Default::default() };
    Binding::BRIDGE.apply(&namespace, &bridge, "").unwrap();

    // The cluster's resolver has no address of IPv6.
    let dns =
        format!("dnsPolicy: None, dnsConfig: {{nameservers: ['{}'], searches: [machines.example]}}", HERE[1]);
    let bindings = [Binding::PASST, Binding::MASQUERADE, Binding::BY_KERNEL];
    for (binding, mut guest) in start(&namespace, &bindings, &six, &dns) {
        println!("{}", binding.name);
        assert!(guest.addresses.len() == 1 && guest.addresses[0].is_ipv6(), "{:?}", guest.addresses);
        assert_eq!(guest.sh("ip -4 -o addr show scope global").unwrap(), "");
        assert!(!guest.sh("ip -6 route show default").unwrap().is_empty());
        speaks(&mut guest, &HERE[1..]);
        is_told(&guest);
        is_forwarded(&guest);
        let resolver = guest.sh("cat /etc/resolv.conf /tmp/dhcp6.env").unwrap();
        assert!(resolver.contains("nameserver fd00:0077:0000:0000:0000:0000:0000:0100"), "{resolver}");
        assert!(resolver.contains("search=machines.example"), "{resolver}");
    }

    println!("on a network of Multus");
    let mut guest = Guest::of(&namespace, "second").unwrap();
    let told = |i: &v1::VirtualMachineInstance| {
        i.status.interfaces.first().map(|i| i.ip_addresses.clone()).unwrap_or_default()
    };
    let instance =
        namespace.wait("second", "the address in the status", SOON, |i| told(i).len() == 1).unwrap();
    guest.addresses = told(&instance).iter().map(|address| address.parse().unwrap()).collect();
    assert_eq!(guest.sh("ip -4 -o addr show scope global").unwrap(), "");
    speaks(&mut guest, &["fd00:31:77::250"]);

    // In the pod's place a guest would have nothing.
    let why = "has no IPv4 address";
    let says = |i: &v1::VirtualMachineInstance| {
        let mut conditions = i.status.conditions.iter();
        conditions.any(|c| c.status == "False" && c.message.as_deref().is_some_and(|told| told.contains(why)))
    };
    namespace.wait("bridge", "the reason in a condition", SOON, says).unwrap();
}

/// A plugin behind another one in a list: addresses are hosts' (/32, /128), and their gateways are those of [`GATEWAYS`], as
/// routed networks have them. `routes` go by the gateway; the node finds the pod by the bridge.
const OFF_LINK: &str = r#"#!/bin/sh
set -e
conf=$(cat)
case $CNI_COMMAND in
  ADD) ;;
  VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'; exit ;;
  *) exit ;;
esac
bridge=$(echo "$conf" | jq -r .bridge) routes=$(echo "$conf" | jq -r '.routes[]')
pod() { nsenter --net="$CNI_NETNS" ip "$@"; }
ip addr replace 169.254.1.1/32 dev "$bridge"; ip addr replace fe80::1/64 dev "$bridge" nodad
for a in $(pod -o addr show dev "$CNI_IFNAME" scope global | awk '{print $4}'); do
  pod addr del "$a" dev "$CNI_IFNAME"
  case $a in
    *:*) pod addr add "${a%/*}/128" dev "$CNI_IFNAME" nodad; ip route replace "${a%/*}" dev "$bridge" ;;
    *) pod addr add "${a%/*}/32" dev "$CNI_IFNAME"; ip route replace "${a%/*}" dev "$bridge" ;;
  esac
done
pod route replace 169.254.1.1 dev "$CNI_IFNAME"
for r in $routes; do
  case $r in
    *:*) pod -6 route replace "$r" via fe80::1 dev "$CNI_IFNAME" ;;
    *) pod route replace "$r" via 169.254.1.1 dev "$CNI_IFNAME" ;;
  esac
done
echo "$conf" | jq '.prevResult | .cniVersion = "1.0.0" | .routes = []
  | .ips |= map((.address | contains(":")) as $six | .gateway = (if $six then "fe80::1" else "169.254.1.1" end)
    | .address |= (split("/")[0] + (if $six then "/128" else "/32" end)))'
"#;

/// The plugin on a node. Its file stays there, since pods that go ask for it; what it gives the node goes with the value.
struct OffLink<'c>(Node<'c>);

/// Hosts behind the gateways of two networks of Multus.
const BEHIND: [&str; 2] = ["198.51.100.1", "203.0.113.1"];

impl<'c> OffLink<'c> {
    fn new(node: Node<'c>) -> OffLink<'c> {
        let file = "/opt/cni/bin/off-link";
        let write = format!("cat >{file} <<'PLUGIN'\n{OFF_LINK}PLUGIN\nchmod 755 {file}");
        node.run(&["sh", "-ec", &write]).unwrap();
        for host in BEHIND {
            node.run(&["ip", "addr", "replace", &format!("{host}/32"), "dev", "lo"]).unwrap();
        }
        OffLink(node)
    }

    fn plugin(bridge: &str, routes: &[&str]) -> Value {
        json!({"type": "off-link", "bridge": bridge, "routes": routes})
    }
}

impl Drop for OffLink<'_> {
    fn drop(&mut self) {
        for host in BEHIND {
            drop(self.0.run(&["ip", "addr", "del", &format!("{host}/32"), "dev", "lo"]));
        }
        for bridge in ["cni0", SEGMENT] {
            for (address, family) in [("169.254.1.1/32", "-4"), ("fe80::1/64", "-6")] {
                drop(self.0.run(&["ip", family, "addr", "del", address, "dev", bridge]));
            }
        }
    }
}

/// A network of Multus with one address for each pod, by which one host is found.
fn routed(namespace: &Namespace<'_>, name: &str, subnet: u8, behind: &str) {
    let range =
        json!({"subnet": format!("172.31.{subnet}.0/24"), "rangeStart": format!("172.31.{subnet}.10")});
    let ipam = json!({"type": "host-local", "ranges": [[range]]});
    let plugins = json!([
        {"type": "bridge", "bridge": SEGMENT, "ipam": ipam},
        OffLink::plugin(SEGMENT, &[behind]),
    ]);
    namespace.network(name, &json!({"plugins": plugins})).unwrap();
}

#[test]
fn long_a_gateway_outside_of_the_pods_prefix_leads_the_guest_out() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _plugin = OffLink::new(cluster.node(1));
    let routes = OffLink::plugin("cni0", &["0.0.0.0/0", "::/0"]);
    let hosts = namespace.first_network("hosts", cluster.node(1), |plugins| plugins.push(routes)).unwrap();
    routed(&namespace, "served", 78, BEHIND[0]);
    routed(&namespace, "hosted", 79, BEHIND[1]);
    second(&namespace);

    for (binding, mut guest) in start(&namespace, &Binding::ALL, &hosts, "") {
        println!("{}", binding.name);
        let pod = namespace.launcher(binding.name).unwrap().metadata.name.unwrap();
        let in_pod = namespace.exec(&pod, &["ip", "-4", "route"]).unwrap();
        if matches!(binding.name, "passt" | "bridge") {
            let own = guest.addresses[0];
            assert!(guest.sh("ip -4 -o addr").unwrap().contains(&format!(" {own}/32 ")), "{own}");
            assert!(guest.sh("ip -4 route show default").unwrap().contains("via 169.254.1.1 "));
        } else {
            assert!(in_pod.contains("default via 169.254.1.1 "), "{in_pod}");
        }
        let families = if binding.ipv6 { &HERE[..] } else { &HERE[..1] };
        speaks(&mut guest, families);
        is_told(&guest);
        guest.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10").unwrap();
    }

    println!("on networks of Multus");
    let mut guest = Guest::of(&namespace, "second").unwrap();
    for (card, behind) in [("eth1", BEHIND[0]), ("eth2", BEHIND[1])] {
        let offer = guest.offer(card).unwrap();
        assert_eq!(offer.get("mask").map(String::as_str), Some("32"), "{offer:?}");
        let routes = offer.get("staticroutes").cloned().unwrap_or_default();
        assert!(routes.contains(&format!("{behind}/32 169.254.1.1")), "{offer:?}");
        assert!(routes.contains("169.254.1.1/32 0.0.0.0"), "{offer:?}");
        // The tiny guest's client leaves routes but the default one to others.
        guest
            .sh(&format!(
                "ip addr add {}/32 dev {card}; ip route add 169.254.1.1 dev {card}; ip route add {behind} via 169.254.1.1 dev {card} src {0}; ping -c 1 -W 10 {behind}",
                offer["ip"]
            ))
            .unwrap();
    }
}
