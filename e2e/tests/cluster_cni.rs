//! Networks of Multus on the cluster: addresses that belong to virtual machines, by podvirt-cni, served by netd.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::names::pod::interface as pod_interface;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};
use serde_json::Value;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// Pods that are started at once, and the collector's next pass.
const MANY: Duration = Duration::from_secs(180);
/// The port of the tiny guest's greeter, which then echoes.
const GREETER: u16 = 7777;

/// A network of podvirt-cni on the segment that spans the nodes. Its name is the namespace's: addresses are unique within
/// a name, and another test's are none of this one's. Its version is one that every runtime knows: what a pod's first
/// network answers goes to the runtime, which may not know 1.1.0.
fn network(namespace: &Namespace<'_>, subnet: u8) {
    let name = namespace.name();
    let config = format!(
        r#"{{"cniVersion": "1.0.0", "name": "{name}", "type": "podvirt-cni", "bridge": "br1",
            "capabilities": {{"mac": true, "ips": true}},
            "ipam": {{"ranges": [[{{"subnet": "172.30.{subnet}.0/24"}}], [{{"subnet": "fd00:30:{subnet}::/64"}}]]}}}}"#
    );
    let manifest = serde_json::json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "flat"}, "spec": {"config": config},
    });
    namespace.apply(&manifest.to_string()).unwrap();
}

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

fn objects(namespace: &Namespace<'_>, kind: &str) -> Vec<Value> {
    let text = namespace.kubectl(&["get", kind, "-A", "-o", "json"]).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let ours = |object: &&Value| object["spec"]["network"] == namespace.name();
    all["items"].as_array().into_iter().flatten().filter(ours).cloned().collect()
}

/// Addresses that are held on the network.
fn held(namespace: &Namespace<'_>) -> BTreeSet<String> {
    let held = objects(namespace, "leasedaddresses");
    held.iter().map(|object| object["spec"]["address"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the network's addresses are free again.
fn wait_freed(namespace: &Namespace<'_>, kept: &BTreeSet<String>) {
    namespace.until("the addresses are free", MANY, || Ok((held(namespace) == *kept).then_some(()))).unwrap();
}

fn other(node: &str) -> &'static str {
    if node == "node1" { "node2" } else { "node1" }
}

/// A node on which nothing new starts, until this is dropped.
struct Cordoned<'n>(&'n Namespace<'n>, String);

impl<'n> Cordoned<'n> {
    fn new(namespace: &'n Namespace<'n>, node: &str) -> Self {
        namespace.kubectl(&["cordon", node]).unwrap();
        Self(namespace, node.to_owned())
    }
}

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        drop(self.0.kubectl(&["uncordon", &self.1]));
    }
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
fn flat_machine(namespace: &Namespace<'_>, subnet: u8) -> (v1::VirtualMachineInstance, String) {
    network(namespace, subnet);
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
    (instance, node)
}

#[test]
fn a_machine_has_its_address_on_a_second_network_and_keeps_it_on_another_node() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, 41);
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
    let lease = objects(&namespace, "addressleases")
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
    let moved = {
        let _away = Cordoned::new(&namespace, &node);
        namespace.virtctl(&["restart", "vm"]).unwrap();
        let elsewhere = |i: &v1::VirtualMachineInstance| {
            i.metadata.uid != instance.metadata.uid
                && i.status.node_name.as_deref() == Some(other(&node))
                && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
        };
        namespace.wait("vm", "the machine on the other node", BOOT, elsewhere).unwrap()
    };
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
    wait_freed(&namespace, &kept);
}

#[test]
fn a_network_of_multus_can_be_the_machines_first() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, 42);
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: flat, multus: {networkName: flat, default: true}}]",
        devices: "interfaces: [{name: flat, passtBinding: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    peer(&namespace, "peer", other(&instance.status.node_name.unwrap()), Value::Null);
    namespace.wait_pod("peer", SOON).unwrap();
    let interface = flat(&namespace);
    assert_eq!(interface.pod_interface_name.as_deref(), Some("eth0"));
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let told = console.sh("ip -o addr show dev eth0 scope global", COMMAND).unwrap();
    for address in &interface.ip_addresses {
        assert!(told.contains(&format!(" {address}/")), "{told}");
        assert!(held(&namespace).contains(address));
        namespace
            .until(&format!("greeting at {address}"), SOON, || Ok(greeting(&namespace, "peer", address)))
            .unwrap();
    }
}

#[test]
fn the_target_of_a_migration_has_the_machines_address_and_is_not_heard() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let (instance, node) = flat_machine(&namespace, 43);
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
    // The segment asks everybody for somebody who is not there.
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
    assert!(interface.ip_addresses.iter().all(|a| held(&namespace).contains(a)));
}

#[test]
fn a_machine_that_moves_keeps_its_address_and_a_connection_goes_on() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let (_, node) = flat_machine(&namespace, 45);
    let before = flat(&namespace);
    let address = before.ip_addresses.iter().find(|a| a.contains('.')).unwrap();
    let (console, running) = namespace.shell("vm").unwrap();
    drop((console, running));
    namespace.until("greeting", SOON, || Ok(greeting(&namespace, "peer", address))).unwrap();

    // One connection: each number comes back before the next one is sent.
    let echo = format!(
        "exec 3<>/dev/tcp/{address}/{GREETER}; read -r hello <&3; i=0; \
         while i=$((i+1)); echo n$i >&3 && read -t 120 -r back <&3 && [ \"$back\" = n$i ]; do echo $i >/tmp/count; done; \
         echo \"after $i: $back\" >/tmp/broken"
    );
    let echo = format!("setsid bash -c '{echo}' >/dev/null 2>&1 </dev/null &");
    namespace.exec("peer", &["bash", "-c", &echo]).unwrap();
    let count =
        || namespace.exec("peer", &["cat", "/tmp/count"]).ok().and_then(|n| n.trim().parse::<u64>().ok());
    let goes_on = |from: u64| {
        let next = namespace.until("the connection goes on", SOON, || Ok(count().filter(|now| *now > from)));
        next.unwrap_or_else(|error| {
            panic!("{:?}: {error:#}", namespace.exec("peer", &["cat", "/tmp/broken"]))
        })
    };
    let mut counted = goes_on(0);
    let mut at = node;
    for _ in 0..2 {
        namespace.virtctl(&["migrate", "vm"]).unwrap();
        let there = other(&at);
        let moved = |i: &v1::VirtualMachineInstance| {
            let state = i.status.migration_state.as_ref();
            i.status.node_name.as_deref() == Some(there) && state.is_some_and(|s| s.completed == Some(true))
        };
        namespace.wait("vm", "the machine on the other node", BOOT, moved).unwrap();
        counted = goes_on(count().unwrap_or(counted));
        namespace
            .until("greeting after the move", SOON, || Ok(greeting(&namespace, "peer", address)))
            .unwrap();
        assert_eq!(flat(&namespace).ip_addresses, before.ip_addresses);
        at = there.to_owned();
    }
    assert!(namespace.exec("peer", &["cat", "/tmp/broken"]).is_err(), "the connection ended");
}

#[test]
fn pods_that_start_at_once_have_different_addresses_and_leave_none() {
    /// Pods, on both nodes.
    const PODS: usize = 10;
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, 44);
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
    assert_eq!(held(&namespace), addresses);
    let from = namespace.exec(&names[0], &["ping", "-c", "1", "-W", "10", addresses.first().unwrap()]);
    from.unwrap();
    namespace.kubectl(&["delete", "pods", "--all", "--wait=false"]).unwrap();
    wait_freed(&namespace, &BTreeSet::new());
    assert_eq!(objects(&namespace, "addressleases"), Vec::<Value>::new());
}
