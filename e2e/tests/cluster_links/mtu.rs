//! Sizes of links: what the pod's is, the guest's is.

use std::net::IpAddr;

use podvirt_e2e::cluster::talk::{self, GREETER};
use podvirt_e2e::cluster::{Binding, ClientPod, Cluster, Guest, SEGMENT, SOON, Security};
use serde_json::json;

use crate::{second, start};

/// Bytes that go to a guest and come back.
const BULK: usize = 2 << 20;
/// Headers of an echo request: of IPv4 and of IPv6, with that of ICMP.
const HEADERS: [u32; 2] = [28, 48];

/// The guest's link has this MTU, and nothing that it sends is longer than what the peer takes whole.
fn fills(guest: &mut Guest<'_>, card: &str, mtu: u32, peers: &[IpAddr]) {
    assert_eq!(guest.sh(&format!("cat /sys/class/net/{card}/mtu")).unwrap(), mtu.to_string());
    for peer in peers {
        let payload = mtu - HEADERS[usize::from(peer.is_ipv6())];
        guest.sh(&format!("ping -c 2 -W 10 -I {card} -s {payload} {peer}")).unwrap();
    }
}

/// Data goes through both ways, from this process and from a pod whose link is as the guest's.
fn carries(guest: &Guest<'_>, client: &ClientPod<'_>, addresses: &[IpAddr]) {
    for &address in addresses {
        client.bulk(address, GREETER, BULK).unwrap();
        guest.namespace.until("a greeting", SOON, || Ok(talk::greeting(address, GREETER))).unwrap();
        talk::bulk(address, GREETER, BULK).unwrap();
    }
}

fn holds(mtu: u32) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let sized =
        namespace.first_network("sized", cluster.node(1), |plugins| plugins[0]["mtu"] = mtu.into()).unwrap();
    for (name, subnet) in [("served", 75), ("hosted", 76)] {
        let range =
            json!({"subnet": format!("172.31.{subnet}.0/24"), "rangeStart": format!("172.31.{subnet}.10")});
        let ipam = json!({"type": "host-local", "ranges": [[range]]});
        namespace
            .network(name, &json!({"type": "bridge", "bridge": SEGMENT, "mtu": mtu, "ipam": ipam}))
            .unwrap();
    }
    second(&namespace);
    let annotations = format!("{sized}, k8s.v1.cni.cncf.io/networks: 'served, hosted'");
    let client = ClientPod::annotated(&namespace, "client", "node1", "role: client", &annotations).unwrap();
    let peers = client.addresses().unwrap();

    for (binding, mut guest) in start(&namespace, &Binding::ALL, &sized, "") {
        println!("{}", binding.name);
        assert_eq!(guest.offer("eth0").unwrap().get("mtu"), Some(&mtu.to_string()));
        let peers: Vec<IpAddr> =
            peers.iter().copied().filter(|peer| binding.ipv6 || peer.is_ipv4()).collect();
        fills(&mut guest, "eth0", mtu, &peers);
        carries(&guest, &client, &guest.addresses);
    }

    println!("on networks of Multus");
    let mut guest = Guest::of(&namespace, "second").unwrap();
    for (card, interface) in [("eth1", "net1"), ("eth2", "net2")] {
        assert_eq!(guest.offer(card).unwrap().get("mtu"), Some(&mtu.to_string()));
        guest
            .sh(&format!("udhcpc -i {card} -n -q -t 8 -T 1 -O mtu -s /etc/udhcpc.sh >/dev/null 2>&1"))
            .unwrap();
        let address = |text: &str| text.trim().trim_end_matches("/24").parse::<IpAddr>().unwrap();
        let own = address(&guest.sh(&format!("ip -4 -o addr show dev {card} | awk '{{print $4}}'")).unwrap());
        let of_peer = client.sh(&format!("ip -4 -o addr show dev {interface}")).unwrap();
        let peer = address(of_peer.split_whitespace().nth(3).unwrap());
        fills(&mut guest, card, mtu, &[peer]);
        client.bulk(own, GREETER, BULK).unwrap();
    }
}

#[test]
fn long_the_least_mtu_of_ipv6_is_the_guests_by_every_binding() {
    holds(1280);
}

#[test]
fn long_a_jumbo_mtu_is_the_guests_by_every_binding() {
    holds(9000);
}
