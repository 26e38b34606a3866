//! Pods whose gateway is outside of their prefix.

use std::net::{IpAddr, TcpListener};

use podvirt_api::v1;
use podvirt_e2e::cluster::talk::{self, GREETER, host};
use podvirt_e2e::cluster::{Binding, Cluster, Guest, Namespace, Node, SEGMENT, SOON, Security};
use serde_json::{Value, json};

use crate::{second, start};

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
