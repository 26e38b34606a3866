//! Sizes of links: what the pod's is, the guest's is; and a path may be narrower than both.

use std::net::{IpAddr, UdpSocket};

use podvirt_e2e::cluster::talk::{self, GREETER, host};
use podvirt_e2e::cluster::{Binding, ClientPod, Cluster, Guest, Node, SEGMENT, SOON, Security};
use podvirt_e2e::until;
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

/// What a node sends to this process goes in smaller packets, as by a tunnel, until this is dropped.
struct Narrow<'c>(Node<'c>);

/// The control plane's addresses.
const HERE: [&str; 2] = ["192.168.77.100", "fd00:77::100"];

impl<'c> Narrow<'c> {
    fn new(node: Node<'c>, mtu: u32) -> Narrow<'c> {
        let narrow = Narrow(node);
        for at in HERE {
            let mtu = mtu.to_string();
            node.run(&["ip", "route", "replace", at, "dev", "eth0", "mtu", &mtu]).unwrap();
        }
        narrow
    }
}

impl Drop for Narrow<'_> {
    fn drop(&mut self) {
        for at in HERE {
            drop(self.0.run(&["ip", "route", "del", at, "dev", "eth0"]));
        }
    }
}

/// Whether a datagram of this length comes here, of the guest's.
fn datagram(guest: &mut Guest<'_>, here: IpAddr, length: usize) -> bool {
    let socket = UdpSocket::bind((here, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    // A refusal by its own kernel, which has learnt meanwhile, is none of the command's.
    let send = format!("head -c {length} /dev/zero | socat -u -b 4096 - UDP:{}:{port} || true", host(here));
    guest.sh(&send).unwrap();
    let mut text = [0; 4096];
    until("a datagram", SOON / 30, || Ok(socket.recv(&mut text).ok())).is_ok_and(|size| size == length)
}

#[test]
fn long_a_path_that_is_narrower_than_the_link_is_learnt_by_every_binding() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let guests = start(&namespace, &Binding::ALL, "", "");
    let _narrow = Narrow::new(cluster.node(1), 1300);
    for (binding, mut guest) in guests {
        println!("{}", binding.name);
        for &address in &guest.addresses {
            guest.namespace.until("a greeting", SOON, || Ok(talk::greeting(address, GREETER))).unwrap();
            talk::bulk(address, GREETER, BULK).unwrap();
        }
        for here in
            HERE.map(|at| at.parse::<IpAddr>().unwrap()).into_iter().filter(|at| binding.ipv6 || at.is_ipv4())
        {
            // The first one that is too large is told to be; then the guest's kernel knows, and sends fragments.
            let comes = || Ok(datagram(&mut guest, here, 1400).then_some(()));
            namespace.until("a datagram in fragments", SOON, comes).unwrap();
            // By its path: the shell has a smaller `ip` of its own.
            let learns = || {
                let route = guest.sh(&format!("/bin/ip route get {here}"))?;
                Ok(route.contains("mtu 1300").then_some(()))
            };
            namespace.until("a guest that knows of the path", SOON, learns).unwrap();
        }
    }
}
