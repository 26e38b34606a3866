//! Machines that are hosts of their own on a segment that spans the nodes: the binding `bridge` on networks of Multus.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use podvirt_api::names::pod as names;
use podvirt_api::v1;
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Running, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// The MTU of the test's networks.
const MTU: u32 = 1400;

/// A network on the segment, by the standard plugin `bridge` or by podvirt-cni; without addresses.
fn network(namespace: &Namespace<'_>, name: &str, kind: &str, more: &serde_json::Value) {
    let mut config = serde_json::json!({
        "cniVersion": "1.0.0", "name": format!("{}-{name}", namespace.name()), "type": kind, "bridge": "br1", "mtu": MTU,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let manifest = serde_json::json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name}, "spec": {"config": config.to_string()},
    });
    namespace.apply(&manifest.to_string()).unwrap();
}

/// A machine with the pod's network and, as `eth1`, the segment by `network`.
fn apply(namespace: &Namespace<'_>, name: &str, network: &str, node: &str, more: &str) {
    let spec = format!(
        "networks: [{{name: default, pod: {{}}}}, {{name: segment, multus: {{networkName: {network}}}}}]{node}"
    );
    let devices =
        format!("interfaces: [{{name: default, passtBinding: {{}}}}, {{name: segment, bridge: {{}}{more}}}]");
    let manifest = Manifest { name, spec: &spec, devices: &devices, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
}

fn on(node: &str) -> String {
    format!(", nodeSelector: {{kubernetes.io/hostname: {node}}}")
}

/// The machine's interface on the segment by its instance's status.
fn told(instance: &v1::VirtualMachineInstance) -> Option<&v1::VirtualMachineInstanceNetworkInterface> {
    instance.status.interfaces.iter().find(|i| i.name.as_deref() == Some("segment"))
}

/// A guest with its console.
struct Guest {
    console: Console,
    _running: Running,
}

impl Guest {
    fn of(namespace: &Namespace<'_>, name: &str) -> Guest {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
        let (console, running) = namespace.shell(name).unwrap();
        Guest { console, _running: running }
    }

    fn sh(&mut self, command: &str) -> String {
        self.console.sh(command, COMMAND).unwrap()
    }

    /// Gives it an address on the segment; answers the MAC address there.
    fn configure(&mut self, address: &str) -> String {
        self.sh(&format!(
            "ip link set eth1 up; ip addr add {address}/24 dev eth1; cat /sys/class/net/eth1/address"
        ))
    }
}

#[test]
fn two_machines_are_hosts_of_a_segment_that_spans_the_nodes() {
    let cluster = Cluster::get().unwrap();
    // Launcher pods of machines with a bridge are restricted ones as well.
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "standard", "bridge", &serde_json::Value::Null);
    network(&namespace, "own", "podvirt-cni", &serde_json::Value::Null);
    apply(&namespace, "one", "standard", &on("node1"), "");
    apply(&namespace, "two", "own", &on("node2"), ", macAddress: '02:00:00:00:51:02'");
    let (mut one, mut two) = (Guest::of(&namespace, "one"), Guest::of(&namespace, "two"));
    let macs = [one.configure("172.31.51.1"), two.configure("172.31.51.2")];
    assert_eq!(macs[1], "02:00:00:00:51:02");
    assert_eq!(one.sh("cat /sys/class/net/eth1/mtu"), MTU.to_string());

    // Each reaches the other with whole frames, and sees the other's own address.
    let whole = MTU - 28;
    one.sh(&format!("ping -c 3 -W 10 -s {whole} 172.31.51.2"));
    two.sh(&format!("ping -c 3 -W 10 -s {whole} 172.31.51.1"));
    assert!(one.sh("ip neigh show 172.31.51.2").contains(&macs[1]));
    assert!(two.sh("ip neigh show 172.31.51.1").contains(&macs[0]));
    for (name, mac) in [("one", &macs[0]), ("two", &macs[1])] {
        let has = |i: &v1::VirtualMachineInstance| told(i).is_some_and(|i| i.mac.as_ref() == Some(mac));
        let instance = namespace.wait(name, "the interface in the status", SOON, has).unwrap();
        let segment = told(&instance).unwrap();
        assert_eq!(segment.pod_interface_name, Some(names::interface("segment")));
        assert!(segment.info_source.as_deref().unwrap().contains("multus-status"), "{segment:?}");
    }
}

#[test]
fn long_a_cable_is_pulled_and_plugged_while_the_machine_runs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "standard", "bridge", &serde_json::Value::Null);
    apply(&namespace, "one", "standard", "", ", state: down");
    let mut guest = Guest::of(&namespace, "one");
    guest.configure("172.31.53.1");
    let carrier = "cat /sys/class/net/eth1/carrier";
    assert_eq!(guest.sh(carrier), "0");
    let uid = namespace.wait_phase("one", "Running", SOON).unwrap().metadata.uid;
    for (state, expected) in [("up", "1"), ("down", "0"), ("up", "1")] {
        let path = "/spec/template/spec/domain/devices/interfaces/1/state";
        let patch = serde_json::json!([{"op": "replace", "path": path, "value": state}]);
        namespace.kubectl(&["patch", "vm", "one", "--type=json", "-p", &patch.to_string()]).unwrap();
        namespace
            .until(&format!("a cable that is {state}"), SOON, || {
                Ok((guest.sh(carrier) == expected).then_some(()))
            })
            .unwrap();
        let tells =
            |i: &v1::VirtualMachineInstance| told(i).is_some_and(|i| i.link_state.as_deref() == Some(state));
        namespace.wait("one", "the link in the status", SOON, tells).unwrap();
        // The other one stays.
        assert_eq!(guest.sh("cat /sys/class/net/eth0/carrier"), "1");
    }
    // The guest is the same, and nothing asks for a restart.
    assert_eq!(namespace.wait_phase("one", "Running", SOON).unwrap().metadata.uid, uid);
    let noted = |vm: &v1::VirtualMachine| {
        let waits = vm.status.conditions.iter().any(|c| c.r#type.as_str() == "RestartRequired");
        !waits && vm.status.observed_generation == vm.metadata.generation
    };
    namespace.wait("one", "a machine that is as its template says", SOON, noted).unwrap();
}

#[test]
fn long_several_queues_and_several_segments() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "standard", "bridge", &serde_json::Value::Null);
    network(&namespace, "checked", "bridge", &serde_json::json!({"macspoofchk": true}));
    let interface = |name: &str| format!("{{name: {name}, bridge: {{}}}}");
    let devices = format!(
        "networkInterfaceMultiqueue: true, interfaces: [{{name: default, masquerade: {{}}}}, {}, {}]",
        interface("segment"),
        interface("second")
    );
    let spec = "networks: [{name: default, pod: {}}, {name: segment, multus: {networkName: standard}}, \
                {name: second, multus: {networkName: checked}}]";
    let manifest =
        Manifest { name: "both", spec, devices: &devices, domain: "cpu: {cores: 2}", ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    apply(&namespace, "peer", "standard", "", "");
    let (mut both, mut peer) = (Guest::of(&namespace, "both"), Guest::of(&namespace, "peer"));
    peer.configure("172.31.54.2");
    // The segment is one: each of the two finds the peer by itself.
    for (interface, address) in [("eth1", "172.31.54.11"), ("eth2", "172.31.54.12")] {
        both.sh(&format!("ip link set {interface} up; ip addr add {address}/24 dev {interface}"));
        both.sh(&format!("ping -c 3 -W 10 -I {interface} 172.31.54.2"));
        assert_eq!(both.sh(&format!("ls -d /sys/class/net/{interface}/queues/rx-* | wc -l")), "2");
        both.sh(&format!("ip addr flush dev {interface}"));
    }
    let instance =
        namespace.wait("both", "the queues in the status", SOON, |i: &v1::VirtualMachineInstance| {
            told(i).is_some_and(|i| i.queue_count == Some(2))
        });
    let named = |name: &str| Some(name.to_owned());
    let instance = instance.unwrap();
    let pod: Vec<_> = instance.status.interfaces.iter().map(|i| i.pod_interface_name.clone()).collect();
    let expected = [named("eth0"), Some(names::interface("segment")), Some(names::interface("second"))];
    assert_eq!(pod[..3], expected);
}

#[test]
fn long_a_network_on_which_no_guest_can_be_a_host_says_so() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "filtered", "macvlan", &serde_json::json!({"master": "br1"}));
    apply(&namespace, "one", "filtered", "", "");
    let why = "is a macvlan or ipvlan, which takes frames to its own address only";
    let says = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| {
            c.r#type.as_str() == "Synchronized"
                && c.status == "False"
                && c.message.as_deref().is_some_and(|message| message.contains(why))
        })
    };
    namespace.wait("one", "the reason in a condition", SOON, says).unwrap();
    namespace
        .until("the reason in an event", SOON, || {
            let events = namespace.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"])?;
            Ok(events.contains(why).then_some(()))
        })
        .unwrap();
}
