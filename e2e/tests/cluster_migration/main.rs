//! Machines that move from one node to the other while they run.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod another_network;
mod bridge;
mod claims;
mod downward;
mod drain;
mod drives;
mod early;
mod failures;
mod filesystems;
mod hotplug;
mod in_place;
mod ipam_claims;
mod leftovers;
mod moving;
mod other_claims;
mod policy;
mod queues;
mod storage;
mod stream;
mod streams;
mod switch_over;
mod upgrade;
mod volumes;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use moving::{Connection, FromGuest, Machine};
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security};

/// A machine in its pod's place, and by what it may move nonetheless.
const IN_PLACE: &str = "interfaces: [{name: default, bridge: {}}]";
const MOVES_IN_PLACE: &str = "kubevirt.io/allow-pod-bridge-network-live-migration: ''";

/// Makes a Service of the machine `vm`'s greeter, and answers its address.
fn greeter(namespace: &Namespace<'_>) -> IpAddr {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: greeter}, spec: {selector: {vm: vm}, ports: [{port: 7777}]}}";
    namespace.apply(service).unwrap();
    let service = namespace.wait("greeter", "the service", SOON, |_: &Service| true).unwrap();
    service.spec.unwrap().cluster_ip.unwrap().parse().unwrap()
}

#[test]
fn a_machine_moves_and_comes_back() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let service = greeter(&namespace);
    let mut machine = Machine::start(&namespace, &Manifest { name: "vm", ..Default::default() });
    machine.is_reached();
    let inwards: Vec<Connection> =
        machine.addresses().into_iter().map(|address| Connection::to(address).unwrap()).collect();
    let outwards = FromGuest::open(&mut machine);
    machine.sh("echo remembered >/tmp/mark; echo written >/dev/vda; sync");

    let source = machine.pod();
    let migration = machine.migrate_by_virtctl();
    machine.has_moved(&migration, &source);
    // The pod's address is another on this cluster: what stood on the old one is ended, and both ends know.
    inwards.into_iter().for_each(Connection::ends_reset);
    outwards.ends_reset(&mut machine);
    machine.is_reached();
    namespace.until("a greeting by the service", SOON, || Ok(Connection::to(service).ok())).unwrap().echoes();
    // Memory and disk came along.
    assert_eq!(machine.sh("cat /tmp/mark"), "remembered");
    machine.sh("echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(machine.sh("head -n 1 /dev/vda"), "written");

    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    machine.is_reached();

    // It ends as any other, wherever it is.
    let pod = machine.pod();
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    namespace.wait_ended(&pod).unwrap();
}

#[test]
fn a_machine_behind_masquerade_moves_and_keeps_its_own_addresses() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let devices = "interfaces: [{name: default, masquerade: {}}]";
    let mut machine = Machine::start(&namespace, &Manifest { name: "vm", devices, ..Default::default() });
    machine.is_reached();
    let own = machine.sh("ip -o addr show scope global | awk '{print $4}'");
    assert!(own.contains("10.0.2.2/"), "{own}");
    let source = machine.pod();
    let migration = machine.migrate_by_virtctl();
    machine.has_moved(&migration, &source);
    machine.is_reached();
    assert_eq!(machine.sh("ip -o addr show scope global | awk '{print $4}'"), own);
}

/// The new pod has another address: the guest is told of it when it renews its lease, and is reached there from then on.
#[test]
fn long_a_machine_in_the_pods_place_moves_and_learns_its_new_address() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let service = greeter(&namespace);
    let manifest =
        Manifest { name: "vm", annotations: MOVES_IN_PLACE, devices: IN_PLACE, ..Default::default() };
    let mut machine = Machine::start(&namespace, &manifest).in_place();
    machine.is_reached();
    let before = machine.addresses();
    let mac = machine.sh("cat /sys/class/net/e*/address");
    let source = machine.pod();
    let migration = machine.migrate_by_virtctl();
    machine.has_moved(&migration, &source);
    assert_ne!(machine.addresses(), before);
    machine.renews();
    machine.is_reached();
    namespace.until("a greeting by the service", SOON, || Ok(Connection::to(service).ok())).unwrap().echoes();
    assert_eq!(machine.sh("cat /sys/class/net/e*/address"), mac);
    let has = machine.sh("ip -4 -o addr show scope global");
    assert!(has.contains(&format!(" {}/", machine.addresses()[0])), "{has}");
}

#[test]
fn long_a_machine_behind_the_kernels_masquerade_moves_with_its_two_pairs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest {
        name: "vm",
        annotations: "podvirt.io/masquerade: nftables",
        domain: "cpu: {cores: 2}",
        devices: "networkInterfaceMultiqueue: true, interfaces: [{name: default, masquerade: {}}]",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    machine.is_reached();
    let own = machine.sh("ip -o addr show scope global | awk '{print $4}'; ip route; ip -6 route");
    assert!(own.contains("10.0.2.2/") && own.contains("fe80::ff:fe00:0"), "{own}");
    assert_eq!(machine.sh("ls -d /sys/class/net/e*/queues/rx-* | wc -l"), "2");
    let source = machine.pod();
    let migration = machine.migrate_by_virtctl();
    machine.has_moved(&migration, &source);
    machine.is_reached();
    assert!(machine.sh("ip -o addr show scope global").contains("10.0.2.2/"));
    // Out again, and the gateway answers here as it did there.
    machine.sh("ping -c 1 -W 5 10.0.2.1");
    machine.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10");
}
