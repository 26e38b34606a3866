//! Guests that are more than one host on a segment: with tags, with a bridge inside, with addresses that change.

use podvirt_e2e::cluster::talk::{self, GREETER};
use podvirt_e2e::cluster::{
    Binding, Cluster, Guest, Joined, Manifest, Namespace, Node, SEGMENT, SOON, Security,
};
use serde_json::json;

use crate::on;
use crate::spoof::{ALONE, BEHIND, host_behind, is_refused, other, own, tagged};

/// A machine on a node, with the segment by a network of Multus as `eth1`. The rules by which the kernel carries its pod's network are
/// none of the segment's.
fn apply(namespace: &Namespace<'_>, name: &str, network: &str, node: &str) {
    let spec = format!(
        "networks: [{{name: default, pod: {{}}}}, {{name: segment, multus: {{networkName: {network}}}}}], {}",
        on(node)
    );
    let devices = "interfaces: [{name: default, masquerade: {}}, {name: segment, bridge: {}}]";
    let annotations = Binding::BY_KERNEL.annotations;
    namespace
        .apply(&Manifest { name, annotations, spec: &spec, devices, ..Default::default() }.machine())
        .unwrap();
}

/// Pings between the peer and an address of the guest's, from where the command `inside` leads to.
fn meet(guest: &mut Guest<'_>, inside: &str, own: &str, peer: &mut Guest<'_>, of_peer: &str) {
    guest.sh(&format!("{inside} ping -c 3 -W 10 {of_peer}")).unwrap();
    peer.sh(&format!("ping -c 3 -W 10 {own}")).unwrap();
}

/// Its guest does all that a host of a segment may do, towards a peer that has `eth1` there as well.
fn is_many(guest: &mut Guest<'_>, peer: &mut Guest<'_>, number: u8) {
    guest.sh(&format!("ip link set eth1 up; ip addr add 172.31.83.{number}/24 dev eth1")).unwrap();
    meet(guest, "", &format!("172.31.83.{number}"), peer, "172.31.83.1");

    // Frames with a tag of 802.1Q.
    guest.sh(&tagged("eth1", &format!("172.31.84.{number}"))).unwrap();
    meet(guest, "", &format!("172.31.84.{number}"), peer, "172.31.84.1");
    guest.sh("ip link del tagged").unwrap();

    // Other addresses.
    let mac = guest.sh("cat /sys/class/net/eth1/address").unwrap();
    let (changed, also) = (format!("02:00:00:00:83:{number:02}"), number + 100);
    guest
        .sh(&format!("ip link set eth1 address {changed}; ip addr add 172.31.83.{also}/24 dev eth1"))
        .unwrap();
    peer.sh("ip neigh flush dev eth1").unwrap();
    peer.sh(&format!("ping -c 3 -W 10 172.31.83.{also}")).unwrap();
    assert!(peer.sh(&format!("ip neigh show 172.31.83.{also}")).unwrap().contains(&changed));
    guest.sh(&format!("ip link set eth1 address {mac}")).unwrap();

    // A host behind a bridge in the guest, which hears what is for that host alone.
    let inside = format!("172.31.83.{}", number + 50);
    let mac = host_behind(guest, "eth1", &inside);
    peer.sh("ip neigh flush dev eth1").unwrap();
    meet(guest, BEHIND, &inside, peer, "172.31.83.1");
    assert!(peer.sh(&format!("ip neigh show {inside}")).unwrap().contains(&mac), "{mac}");
    guest.sh(ALONE).unwrap();
}

/// A link of a node's own, joined with the segment, for a macvlan that has it alone.
struct Uplink<'c>(Node<'c>);

const UPLINK: &str = "mv0";

impl<'c> Uplink<'c> {
    fn new(node: Node<'c>) -> Uplink<'c> {
        let make = format!(
            "ip link add {UPLINK} type veth peer name {UPLINK}b; ip link set {UPLINK}b master {SEGMENT}; ip link set {UPLINK}b up; ip link set {UPLINK} up"
        );
        node.run(&["sh", "-ec", &make]).unwrap();
        Uplink(node)
    }
}

impl Drop for Uplink<'_> {
    fn drop(&mut self) {
        drop(self.0.run(&["ip", "link", "del", UPLINK]));
    }
}

#[test]
fn long_a_guest_on_a_segment_may_have_tags_other_addresses_and_hosts_behind_it() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _uplink = Uplink::new(cluster.node(1));
    namespace.network("open", &json!({"type": "bridge", "bridge": SEGMENT})).unwrap();
    namespace.network("checked", &json!({"type": "bridge", "bridge": SEGMENT, "macspoofchk": true})).unwrap();
    namespace.network("passed", &json!({"type": "macvlan", "master": UPLINK, "mode": "passthru"})).unwrap();
    apply(&namespace, "peer", "open", "node2");
    for (name, network) in [("free", "open"), ("checked", "checked"), ("passed", "passed")] {
        apply(&namespace, name, network, "node1");
    }
    let mut peer = Guest::of(&namespace, "peer").unwrap();
    peer.sh("ip link set eth1 up; ip addr add 172.31.83.1/24 dev eth1").unwrap();
    peer.sh(&tagged("eth1", "172.31.84.1")).unwrap();
    for (name, number) in [("free", 11), ("passed", 12)] {
        println!("{name}");
        let mut guest = Guest::of(&namespace, name).unwrap();
        is_many(&mut guest, &mut peer, number);
    }

    // What the network checks it checks: with another MAC address nothing leaves, and with its own all does.
    println!("checked");
    let mut guest = Guest::of(&namespace, "checked").unwrap();
    guest.sh("ip link set eth1 up; ip addr add 172.31.83.13/24 dev eth1").unwrap();
    guest.sh("ping -c 3 -W 10 172.31.83.1").unwrap();
    let mac = guest.sh("cat /sys/class/net/eth1/address").unwrap();
    guest.sh("ip link set eth1 address 02:00:00:00:83:13").unwrap();
    assert!(!guest.succeeds("ping -c 3 -W 2 172.31.83.1").unwrap());
    guest.sh(&format!("ip link set eth1 address {mac}")).unwrap();
    let again = || Ok(guest.succeeds("ping -c 3 -W 2 172.31.83.1")?.then_some(()));
    namespace.until("an answer to its own address", SOON, again).unwrap();
}

/// netd's socket is the pod's: on a macvlan, on which a guest cannot be a host, it is served as anywhere, and sends what is its own and
/// nothing else.
#[test]
fn long_netd_serves_a_guest_on_a_macvlan_and_refuses_what_is_not_its_own() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let range = json!({"subnet": "172.31.85.0/24", "rangeStart": "172.31.85.10"});
    let ipam = json!({"type": "host-local", "ranges": [[range]]});
    namespace.network("vlan", &json!({"type": "macvlan", "master": SEGMENT, "ipam": ipam})).unwrap();
    let _joined = Joined::segment(&[("172.31.85.250".parse().unwrap(), 24)]).unwrap();
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: served, multus: {networkName: vlan}}]",
        devices: "interfaces: [{name: served, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let mut guest = Guest::of(&namespace, "vm").unwrap();
    let own = own(&mut guest);
    let address = own.parse().unwrap();
    namespace.until("a greeting", SOON, || Ok(talk::greeting(address, GREETER))).unwrap();
    talk::bulk(address, GREETER, 1 << 20).unwrap();
    is_refused(&mut guest, &own, &other(&own), "172.31.85.250");
    namespace.until("a greeting again", SOON, || Ok(talk::greeting(address, GREETER))).unwrap();
}
