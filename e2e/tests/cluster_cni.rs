//! Networks of Multus on the cluster: addresses that belong to virtual machines, by podvirt-cni, served by netd.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::names::pod::interface as pod_interface;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Flat, Manifest, Namespace, SOON, Security};
use serde_json::Value;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// Pods that are started at once, and the collector's next pass.
const MANY: Duration = Duration::from_secs(180);
/// The port of the tiny guest's greeter, which then echoes.
const GREETER: u16 = 7777;

/// A pod of a test's own on a node, with `net1` on the network.
fn peer(namespace: &Namespace<'_>, name: &str, node: &str, more: Value) {
    let mut pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/networks": "flat"}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": 107, "runAsGroup": 107, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
                "sysctls": [{"name": "net.ipv4.ping_group_range", "value": "107 107"}],
            },
            "containers": [{
                "name": "peer", "image": "podvirt/tools:dev", "command": ["sleep", "infinity"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["metadata"][key] = value.clone();
    }
    namespace.apply(&pod.to_string()).unwrap();
}

/// What Multus says of a pod's interface: addresses and MAC address.
fn attached(pod: &Pod, interface: &str) -> Option<(Vec<String>, String)> {
    let text = pod.annotations().get("k8s.v1.cni.cncf.io/network-status")?;
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    let found = all.into_iter().find(|one| one["interface"] == interface)?;
    let ips = found["ips"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Some((ips.collect(), found["mac"].as_str().unwrap_or_default().to_owned()))
}

/// What the guest's greeter says to a pod.
fn greeting(namespace: &Namespace<'_>, from: &str, host: &str) -> Option<String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let command = format!("socat -T 5 - TCP:{host}:{GREETER},connect-timeout=5 </dev/null");
    namespace.exec(from, &["sh", "-c", &command]).ok().filter(|text| text.contains("GUEST-HELLO"))
}

fn other(node: &str) -> &'static str {
    if node == "node1" { "node2" } else { "node1" }
}

/// The machine's interface of the name `flat`, once it has its addresses.
fn flat(namespace: &Namespace<'_>) -> v1::VirtualMachineInstanceNetworkInterface {
    let found = |i: &v1::VirtualMachineInstance| {
        let mut interfaces = i.status.interfaces.iter();
        interfaces.find(|i| i.name.as_deref() == Some("flat") && i.ip_addresses.len() == 2).cloned()
    };
    let instance = namespace.wait("vm", "the address in the status", SOON, |i| found(i).is_some()).unwrap();
    found(&instance).unwrap()
}

/// A machine with nothing but a network of this subnet, and a peer on its node.
fn flat_machine<'n>(
    namespace: &'n Namespace<'n>,
    subnet: u8,
) -> (Flat<'n>, v1::VirtualMachineInstance, String) {
    let network = Flat::new(namespace, subnet).unwrap();
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: flat, multus: {networkName: flat}}]",
        devices: "interfaces: [{name: flat, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let node = instance.status.node_name.clone().unwrap();
    peer(namespace, "peer", &node, Value::Null);
    namespace.wait_pod("peer", SOON).unwrap();
    (network, instance, node)
}

#[test]
fn a_machine_has_its_address_on_a_second_network_and_keeps_it_on_another_node() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let network = Flat::new(&namespace, 41).unwrap();
    for node in ["node1", "node2"] {
        peer(&namespace, &format!("peer-{node}"), node, Value::Null);
    }
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: default, pod: {}}, {name: flat, multus: {networkName: flat}}]",
        devices: "interfaces: [{name: default, passtBinding: {}}, {name: flat, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let node = instance.status.node_name.clone().unwrap();
    for peer in ["peer-node1", "peer-node2"] {
        namespace.wait_pod(peer, SOON).unwrap();
    }
    let before = flat(&namespace);
    assert_eq!(before.pod_interface_name, Some(pod_interface("flat")));
    assert!(before.info_source.as_deref().unwrap().contains("multus-status"), "{before:?}");
    let lease = network
        .objects("addressleases")
        .unwrap()
        .into_iter()
        .find(|l| l["spec"]["owner"]["name"] == "vm")
        .unwrap();
    for address in &before.ip_addresses {
        let listed = lease["status"]["addresses"].as_array().unwrap().iter();
        assert!(listed.filter_map(Value::as_str).any(|a| a.split('/').next() == Some(address)), "{lease}");
    }

    let configure = "ip link set eth1 up; udhcpc -i eth1 -n -q -t 8 -T 1 -O staticroutes -s /etc/udhcpc.sh >/dev/null 2>&1; \
                     udhcpc6 -i eth1 -n -q -t 8 -T 1 -s /etc/udhcpc6.sh >/dev/null 2>&1; ip -o addr show dev eth1 scope global";
    let meet = |on: &str| {
        let (mut console, _running) = namespace.shell("vm").unwrap();
        let told = console.sh(configure, Duration::from_secs(60)).unwrap();
        let from = format!("peer-{}", other(on));
        for address in &before.ip_addresses {
            assert!(told.contains(&format!(" {address}/")), "{told}");
            // In, from the other node, on the second network; and its ports are the guest's on the pod's, too.
            namespace
                .until(&format!("greeting at {address}"), SOON, || Ok(greeting(&namespace, &from, address)))
                .unwrap();
        }
        let launcher = namespace.launcher("vm").unwrap();
        for ip in launcher.status.as_ref().unwrap().pod_ips.iter().flatten() {
            namespace
                .until(&format!("greeting at {}", ip.ip), SOON, || Ok(greeting(&namespace, &from, &ip.ip)))
                .unwrap();
        }
        // Out, by each: the second network has no way to anywhere else, so the guest's default route is not there.
        let there = namespace.wait_pod(&from, SOON).unwrap();
        let addresses = attached(&there, "net1").unwrap().0;
        for address in addresses.iter().filter(|a| a.contains('.')) {
            console.sh(&format!("ping -c 1 -W 10 {address}"), COMMAND).unwrap();
        }
        assert_eq!(console.sh("ip route | grep -c ^default", COMMAND).unwrap(), "1");
        let kubernetes = "socat -u /dev/null TCP:kubernetes.default.svc.cluster.local:443,connect-timeout=10";
        console.sh(kubernetes, COMMAND).unwrap();
        attached(&launcher, &pod_interface("flat")).unwrap()
    };
    let (ips, mac) = meet(&node);

    // Another pod, another node: the same.
    let place = serde_json::json!({"nodeSelector": {"kubernetes.io/hostname": other(&node)}});
    let patch = serde_json::json!({"spec": {"template": {"spec": place}}}).to_string();
    namespace.kubectl(&["patch", "vm", "vm", "--type=merge", "-p", &patch]).unwrap();
    namespace.virtctl(&["restart", "vm"]).unwrap();
    let elsewhere = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != instance.metadata.uid
            && i.status.node_name.as_deref() == Some(other(&node))
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    let moved = namespace.wait("vm", "the machine on the other node", BOOT, elsewhere).unwrap();
    let after = flat(&namespace);
    assert_eq!((after.ip_addresses, &after.mac), (before.ip_addresses.clone(), &before.mac));
    assert_eq!(meet(&moved.status.node_name.unwrap()), (ips, mac));

    let kept: BTreeSet<String> = ["node1", "node2"]
        .iter()
        .flat_map(|node| {
            attached(&namespace.wait_pod(&format!("peer-{node}"), SOON).unwrap(), "net1").unwrap().0
        })
        .collect();
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachine>("vm", BOOT).unwrap();
    network.wait_freed(&kept).unwrap();
}

/// A pod of another namespace that asks for an address on the network of `namespace` by a definition of its own.
fn request(namespace: &Namespace<'_>, thief: &Namespace<'_>, name: &str, node: &str, address: &str) {
    let path = ["get", "network-attachment-definitions", "flat", "-o", "jsonpath={.spec.config}"];
    let config: Value = serde_json::from_str(&namespace.kubectl(&path).unwrap()).unwrap();
    assert_eq!(config["name"], namespace.name(), "{config}");
    thief.network("flat", &config).unwrap();
    let wish = serde_json::json!([{"name": "flat", "interface": "net1", "ips": [address]}]);
    let annotations = serde_json::json!({"annotations": {"k8s.v1.cni.cncf.io/networks": wish.to_string()}});
    peer(thief, name, node, annotations);
}

/// A pod of another namespace asks the network's IPAM for the machine's address and is refused; it then asks for a free address and
/// gets it.
fn gives_no_address_of_a_machine(
    network: &Flat<'_>,
    namespace: &Namespace<'_>,
    node: &str,
    addresses: &[String],
) {
    let holders = || {
        let held = network.objects("leasedaddresses").unwrap();
        let mut of_machine: Vec<String> = held
            .into_iter()
            .filter(|object| addresses.iter().any(|address| object["spec"]["address"] == address.as_str()))
            .map(|object| object["spec"].to_string())
            .collect();
        of_machine.sort();
        of_machine
    };
    let before = holders();
    assert_eq!(before.len(), addresses.len(), "{before:?}");
    let thief = namespace.cluster().namespace(Security::Restricted).unwrap();
    let taken = addresses.iter().find(|address| address.contains('.')).unwrap();
    let held = network.held().unwrap();
    let free = (200..250).map(|host| format!("172.30.42.{host}")).find(|address| !held.contains(address));
    let free = free.unwrap();
    request(namespace, &thief, "thief", node, taken);
    request(namespace, &thief, "guest", node, &free);

    // The second one shows that the first is refused for the address.
    let (given, _) = attached(&thief.wait_pod("guest", SOON).unwrap(), "net1").unwrap();
    assert!(given.contains(&free), "{given:?} without {free}");
    let refused = || {
        let about = "involvedObject.name=thief";
        let lines = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
        let events = thief.kubectl(&["get", "events", "--field-selector", about, "-o", lines])?;
        let message = events.lines().find(|line| line.contains("is held by AddressLease"));
        Ok(message.map(str::to_owned))
    };
    let message = thief.until("a refusal of the address", SOON, refused).unwrap();
    let space = namespace.name();
    let holder = format!("{taken} of network {space:?} is held by AddressLease {space}/");
    // The plugin's words stand within those of others, which may escape its quotes.
    assert!(message.replace('\\', "").contains(&holder), "{message} without {holder}");
    let pod = thief.wait("thief", "the pod", SOON, |_: &Pod| true).unwrap();
    assert_eq!(attached(&pod, "net1"), None);
    assert_eq!(holders(), before);
}

#[test]
fn a_network_of_multus_can_be_the_machines_first() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let network = Flat::new(&namespace, 42).unwrap();
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: flat, multus: {networkName: flat, default: true}}]",
        devices: "interfaces: [{name: flat, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let elsewhere = other(&instance.status.node_name.unwrap());
    peer(&namespace, "peer", elsewhere, Value::Null);
    namespace.wait_pod("peer", SOON).unwrap();
    let interface = flat(&namespace);
    assert_eq!(interface.pod_interface_name.as_deref(), Some("eth0"));
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let told = console.sh("ip -o addr show dev eth0 scope global", COMMAND).unwrap();
    for address in &interface.ip_addresses {
        assert!(told.contains(&format!(" {address}/")), "{told}");
        assert!(network.held().unwrap().contains(address));
    }
    let is_reached = || {
        for address in &interface.ip_addresses {
            namespace
                .until(&format!("greeting at {address}"), SOON, || Ok(greeting(&namespace, "peer", address)))
                .unwrap();
        }
    };
    is_reached();
    gives_no_address_of_a_machine(&network, &namespace, elsewhere, &interface.ip_addresses);
    is_reached();
}

#[test]
fn long_the_target_of_a_migration_has_the_machines_address_and_is_not_heard() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let (network, instance, node) = flat_machine(&namespace, 43);
    let interface = flat(&namespace);
    let source = attached(&namespace.launcher("vm").unwrap(), &pod_interface("flat")).unwrap();
    let (_console, _running) = namespace.shell("vm").unwrap();
    let reached = || {
        for address in &interface.ip_addresses {
            namespace
                .until(&format!("greeting at {address}"), SOON, || Ok(greeting(&namespace, "peer", address)))
                .unwrap();
        }
    };
    reached();

    // A pod as virt-controller makes them for migrations, as far as podvirt-cni looks.
    let networks = format!(r#"[{{"name": "flat", "interface": "{}"}}]"#, pod_interface("flat"));
    let more = serde_json::json!({
        "labels": {"kubevirt.io/migrationJobUID": "by-hand"},
        "annotations": {"k8s.v1.cni.cncf.io/networks": networks},
        "ownerReferences": [{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm",
            "uid": instance.metadata.uid, "controller": true,
        }],
    });
    peer(&namespace, "target", other(&node), more);
    let target = namespace.wait_pod("target", SOON).unwrap();
    assert_eq!(attached(&target, &pod_interface("flat")).unwrap().0, source.0);

    // It asks for its neighbours, in both families, and announces itself: nothing of it leaves the pod.
    let there = attached(&namespace.wait_pod("peer", SOON).unwrap(), "net1").unwrap().0;
    for address in &there {
        let command = ["ping", "-c", "2", "-W", "2", "-I", &pod_interface("flat"), address];
        assert!(namespace.exec("target", &command).is_err(), "the silent target reaches {address}");
    }
    // The peer asks the whole segment for an address that no pod has.
    drop(namespace.exec("peer", &["ping", "-c", "1", "-W", "1", "172.30.43.254"]));
    let count = |file: &str| {
        let path = format!("/sys/class/net/{}/statistics/{file}", pod_interface("flat"));
        namespace.exec("target", &["cat", &path]).unwrap().trim().parse::<u64>().unwrap()
    };
    assert_eq!(
        (count("tx_packets"), count("rx_packets") > 0),
        (0, true),
        "the segment is there, and it says nothing"
    );
    reached();

    // A third pod of the machine, and then it goes as one whose migration failed: the machine keeps its address.
    namespace.kubectl(&["delete", "pod", "target"]).unwrap();
    reached();
    assert!(interface.ip_addresses.iter().all(|a| network.held().unwrap().contains(a)));
}

#[test]
fn pods_that_start_at_once_have_different_addresses_and_leave_none() {
    /// Pods, on both nodes.
    const PODS: usize = 10;
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let network = Flat::new(&namespace, 44).unwrap();
    let names: Vec<String> = (0..PODS).map(|n| format!("p{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        peer(&namespace, name, ["node1", "node2"][n % 2], Value::Null);
    }
    let mut given = BTreeSet::new();
    for name in &names {
        let pod = namespace.wait_pod(name, MANY).unwrap();
        let (ips, mac) = attached(&pod, "net1").unwrap();
        assert!(
            ips.len() == 2 && ips.into_iter().chain([mac]).all(|new| given.insert(new)),
            "{name}: {given:?}"
        );
    }
    let addresses: BTreeSet<String> =
        given.into_iter().filter(|a| a.parse::<std::net::IpAddr>().is_ok()).collect();
    assert_eq!(network.held().unwrap(), addresses);
    let from = namespace.exec(&names[0], &["ping", "-c", "1", "-W", "10", addresses.first().unwrap()]);
    from.unwrap();
    namespace.kubectl(&["delete", "pods", "--all", "--wait=false"]).unwrap();
    network.wait_freed(&BTreeSet::new()).unwrap();
    assert_eq!(network.objects("addressleases").unwrap(), Vec::<Value>::new());
}

#[test]
fn long_machines_that_race_for_few_addresses_never_share_one() {
    /// Addresses of each family.
    const ADDRESSES: u8 = 5;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let network = Flat::leasing(&namespace, 46, ADDRESSES).unwrap();
    let manifests: Vec<String> = names
        .iter()
        .map(|name| {
            let spec = "networks: [{name: flat, multus: {networkName: flat}}]";
            let devices = "interfaces: [{name: flat, passtBinding: {}}]";
            Manifest { name, spec, devices, ..Default::default() }.machine()
        })
        .collect();
    namespace.apply(&manifests.join("\n---\n")).unwrap();

    // The addresses that the machines' pods have, as Multus says.
    let given = || -> Vec<(String, BTreeSet<String>)> {
        let has = |name: &&str| {
            let pod = namespace.launcher(name).ok()?;
            Some(((*name).to_owned(), attached(&pod, &pod_interface("flat"))?.0.into_iter().collect()))
        };
        let given: Vec<(String, BTreeSet<String>)> = names.iter().filter_map(has).collect();
        let all: BTreeSet<&String> = given.iter().flat_map(|(_, addresses)| addresses).collect();
        let count: usize = given.iter().map(|(_, addresses)| addresses.len()).sum();
        assert_eq!(all.len(), count, "an address has two machines: {given:?}");
        given
    };
    let come = namespace.until("machines with all the addresses", BOOT, || {
        let now = given();
        Ok((now.len() == usize::from(ADDRESSES)).then_some(now))
    });
    let first = come.unwrap();
    assert!(first.iter().all(|(_, addresses)| addresses.len() == 2), "{first:?}");
    let all: BTreeSet<String> = first.iter().flat_map(|(_, addresses)| addresses.clone()).collect();
    assert_eq!(network.held().unwrap(), all);

    // Machines that go make room for machines that waited.
    let goners: Vec<&str> = first.iter().take(3).map(|(name, _)| name.as_str()).collect();
    namespace.kubectl(&[&["delete", "vm", "--wait=false"], goners.as_slice()].concat()).unwrap();
    let late = |(name, _): &(String, BTreeSet<String>)| first.iter().all(|(known, _)| known != name);
    let come = namespace.until("addresses for the others", BOOT, || {
        let now = given();
        Ok((now.iter().filter(|one| late(one)).count() == 3).then_some(now))
    });
    let later = come.unwrap();
    // One that goes may still be there.
    for (name, _) in later.iter().filter(|(name, _)| !goners.contains(&name.as_str())) {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
    }
    let taken: BTreeSet<String> =
        later.iter().filter(|one| late(one)).flat_map(|(_, addresses)| addresses.clone()).collect();
    assert!(taken.is_subset(&all), "{taken:?} is of {all:?}");

    namespace.kubectl(&["delete", "vm", "--all", "--wait=false"]).unwrap();
    network.wait_freed(&BTreeSet::new()).unwrap();
}
