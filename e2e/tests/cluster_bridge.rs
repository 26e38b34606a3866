//! Machines that are hosts of their own on a segment that spans the nodes: the binding `bridge` on networks of Multus.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::Read;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use podvirt_api::names::pod as names;
use podvirt_api::v1;
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Running, SEGMENT, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// The MTU of the test's networks.
const MTU: u32 = 1400;

/// A network on the segment, by the standard plugin `bridge` or by podvirt-cni; without addresses.
fn network(namespace: &Namespace<'_>, name: &str, kind: &str, more: &serde_json::Value) {
    let mut config = serde_json::json!({"type": kind, "bridge": SEGMENT, "mtu": MTU});
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    namespace.network(name, &config).unwrap();
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
    assert_eq!(guest.sh("cat /sys/class/net/eth1/carrier"), "0");
    let uid = namespace.wait_phase("one", "Running", SOON).unwrap().metadata.uid;
    let both = ["default", "segment"];
    let mut cables = ["1", "0"];
    // The segment's, which was pulled from the start, and then the one that leads to a netd.
    for (index, state) in [(1, "up"), (1, "down"), (1, "up"), (0, "down"), (0, "up")] {
        let path = format!("/spec/template/spec/domain/devices/interfaces/{index}/state");
        // `replace` would fail: the manifest gives eth0 no state.
        let patch = serde_json::json!([{"op": "add", "path": path, "value": state}]);
        namespace.kubectl(&["patch", "vm", "one", "--type=json", "-p", &patch.to_string()]).unwrap();
        cables[index] = if state == "up" { "1" } else { "0" };
        namespace
            .until(&format!("a cable of {} that is {state}", both[index]), SOON, || {
                Ok((guest.sh(&format!("cat /sys/class/net/eth{index}/carrier")) == cables[index])
                    .then_some(()))
            })
            .unwrap();
        let tells = |i: &v1::VirtualMachineInstance| {
            let of = i.status.interfaces.iter().find(|i| i.name.as_deref() == Some(both[index]));
            of.is_some_and(|i| i.link_state.as_deref() == Some(state))
        };
        namespace.wait("one", "the link in the status", SOON, tells).unwrap();
        // The other one stays.
        let other = 1 - index;
        assert_eq!(guest.sh(&format!("cat /sys/class/net/eth{other}/carrier")), cables[other]);
    }
    // netd serves the guest as before.
    guest.sh("udhcpc -i eth0 -n -q -t 8 -T 1 -s /etc/udhcpc.sh >/dev/null 2>&1");
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
fn long_cards_of_other_models_are_the_guests_and_boot_from_the_segment() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "standard", "bridge", &serde_json::Value::Null);
    apply(&namespace, "peer", "standard", "", "");
    let mut peer = Guest::of(&namespace, "peer");
    peer.sh("ip link set eth1 up; (tcpdump -Z root -n -e -l -c 1 -i eth1 ether src 02:00:00:00:56:01 and udp port 67 >/tmp/seen 2>&1 &)");

    // The guest's kernel has no driver of them, but it counts them; the boot code of one speaks for it.
    let models = [
        ("e1000", "0x8086:0x100e"),
        ("e1000e", "0x8086:0x10d3"),
        ("igb", "0x8086:0x10c9"),
        ("ne2k_pci", "0x10ec:0x8029"),
        ("pcnet", "0x1022:0x2000"),
        ("rtl8139", "0x10ec:0x8139"),
    ];
    let (mut networks, mut interfaces) = (String::new(), String::new());
    for (n, (model, _)) in models.iter().enumerate() {
        networks += &format!(", {{name: n{n}, multus: {{networkName: standard}}}}");
        interfaces += &format!(", {{name: n{n}, bridge: {{}}, model: {model}}}");
    }
    let manifest = Manifest {
        name: "cards",
        spec: &format!("networks: [{{name: default, pod: {{}}}}{networks}]"),
        devices: &format!("interfaces: [{{name: default, passtBinding: {{}}}}{interfaces}]"),
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    // With an order for the card alone, the machine boots from nothing else.
    apply(
        &namespace,
        "boots",
        "standard",
        "",
        ", model: e1000, bootOrder: 1, macAddress: '02-00-00-00-56-01'",
    );
    namespace
        .until("the boot code's question on the segment", BOOT, || {
            Ok(peer.sh("cat /tmp/seen").contains("02:00:00:00:56:01 >").then_some(()))
        })
        .unwrap();
    let mut cards = Guest::of(&namespace, "cards");
    let found =
        cards.sh("cd /sys/bus/pci/devices; for d in *; do echo $(cat $d/vendor):$(cat $d/device); done");
    for (model, card) in models {
        assert!(found.lines().any(|line| line.trim() == card), "{model}: {found}");
    }

    // By netd there is virtio alone.
    let refused = Manifest {
        name: "refused",
        devices: "interfaces: [{name: default, passtBinding: {}, model: e1000}]",
        ..Default::default()
    };
    let error = namespace.apply(&refused.machine()).unwrap_err().to_string();
    assert!(error.contains("spec.template.spec.domain.devices.interfaces[0].model: 'e1000'"), "{error}");
}

#[test]
fn long_a_guest_is_told_the_address_that_its_network_gives_the_pod() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let ipam = serde_json::json!({"ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "172.31.57.0/24", "rangeStart": "172.31.57.10", "gateway": "172.31.57.1"}]],
        "routes": [{"dst": "198.51.100.0/24", "gw": "172.31.57.1"}],
    }});
    network(&namespace, "given", "bridge", &ipam);
    // Addresses are counted by node.
    for name in ["one", "two"] {
        apply(&namespace, name, "given", &on("node1"), "");
    }
    let mut guests = ["one", "two"].map(|name| Guest::of(&namespace, name));
    let ask = "ip link set eth1 up; udhcpc -i eth1 -n -q -t 8 -T 1 -O staticroutes -s /etc/udhcpc.sh >/dev/null 2>&1; \
               ip -o -4 addr show dev eth1 scope global; cat /tmp/dhcp.env";
    let mut given = Vec::new();
    for (guest, name) in guests.iter_mut().zip(["one", "two"]) {
        let pod = namespace.launcher(name).unwrap();
        let told_by_multus = &pod.metadata.annotations.as_ref().unwrap()["k8s.v1.cni.cncf.io/network-status"];
        let networks: serde_json::Value = serde_json::from_str(told_by_multus).unwrap();
        let interface = names::interface("segment");
        let of_it =
            networks.as_array().unwrap().iter().find(|n| n["interface"] == interface.as_str()).unwrap();
        let address: IpAddr = of_it["ips"][0].as_str().unwrap().parse().unwrap();
        let has = guest.sh(ask);
        assert!(has.contains(&format!(" {address}/24 ")), "{has}");
        assert!(has.contains("staticroutes=198.51.100.0/24 172.31.57.1"), "{has}");
        let tells = |i: &v1::VirtualMachineInstance| {
            told(i).is_some_and(|i| i.ip_address == Some(address.to_string()))
        };
        namespace.wait(name, "the address in the status", SOON, tells).unwrap();
        given.push(address);
    }
    for (guest, other) in guests.iter_mut().zip(given.iter().rev()) {
        guest.sh(&format!("ping -c 3 -W 10 {other}"));
    }
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

/// The greeter of the tiny guest.
const GREETER: u16 = 7777;

/// Waits for the guest's greeting at this address.
fn greeting(namespace: &Namespace<'_>, address: IpAddr) {
    let greets = || {
        let Ok(mut stream) = TcpStream::connect_timeout(&(address, GREETER).into(), COMMAND) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(COMMAND))?;
        let mut text = [0; 11];
        Ok(stream.read_exact(&mut text).is_ok_and(|()| &text == b"GUEST-HELLO").then_some(()))
    };
    namespace.until(&format!("a greeting by {address}"), SOON, greets).unwrap();
}

/// The IPv4 address of a pod.
fn v4(pod: &Pod) -> IpAddr {
    let status = pod.status.clone().unwrap();
    let addresses = status.pod_ips.into_iter().flatten().map(|address| address.ip.parse().unwrap());
    addresses.into_iter().find(IpAddr::is_ipv4).unwrap()
}

#[test]
fn long_a_machine_takes_the_place_of_its_pod_on_a_network_in_place_of_the_pods_own() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // A part of node1's own addresses that its plugin is far from handing out, on the bridge that leads to them.
    let first = serde_json::json!({"bridge": "cni0", "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "10.11.0.0/24", "rangeStart": "10.11.0.240", "rangeEnd": "10.11.0.250", "gateway": "10.11.0.1"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }});
    network(&namespace, "first", "bridge", &first);
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: first, multus: {networkName: first, default: true}}], \
               nodeSelector: {kubernetes.io/hostname: node1}, readinessProbe: {tcpSocket: {port: 7777}, periodSeconds: 1}",
        devices: "interfaces: [{name: first, bridge: {}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    let mut guest = Guest::of(&namespace, "vm");
    let own = v4(&namespace.launcher("vm").unwrap());
    assert!(own.to_string().starts_with("10.11.0.24"), "{own} is not of the network");
    let has = guest.sh("ip -o -4 addr show scope global; ip -4 route; cat /sys/class/net/e*/mtu");
    assert!(has.contains(&format!(" {own}/24 ")) && has.contains("default via 10.11.0.1"), "{has}");
    assert!(has.ends_with(&MTU.to_string()), "{has}");
    let mac = guest.sh("cat /sys/class/net/e*/address");
    let told = |i: &v1::VirtualMachineInstance| {
        let [only] = i.status.interfaces.as_slice() else { return false };
        only.name.as_deref() == Some("first")
            && only.mac.as_deref() == Some(mac.trim())
            && only.ip_address == Some(own.to_string())
            && only.pod_interface_name.as_deref() == Some(names::PRIMARY_INTERFACE)
    };
    namespace.wait("vm", "an instance with its address", SOON, told).unwrap();
    guest.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10");
    greeting(&namespace, own);
    let ready = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "Ready" && c.status == "True")
    };
    namespace.wait("vm", "a ready instance", SOON, ready).unwrap();
}

#[test]
fn a_machine_takes_the_place_of_its_pod_on_the_pods_network() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest {
        name: "vm",
        spec: "readinessProbe: {tcpSocket: {port: 7777}, periodSeconds: 1}",
        devices: "interfaces: [{name: default, bridge: {}, dhcpOptions: {bootFileName: boot.efi}}]",
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: greeter}}, spec: {{selector: {{vm: vm}}, ports: [{{port: {GREETER}}}]}}}}"
        ))
        .unwrap();
    let mut guest = Guest::of(&namespace, "vm");
    let pod = namespace.launcher("vm").unwrap();
    let own = v4(&pod);

    // The guest has what the pod had, and the pod has it no more.
    let has = guest.sh("ip -o -4 addr show scope global; ip -4 route");
    assert!(has.contains(&format!(" {own}/24 ")) && has.contains("default via "), "{has}");
    let mac = guest.sh("cat /sys/class/net/e*/address");
    let in_pod = |command: &str| {
        let name = pod.metadata.name.as_deref().unwrap();
        namespace.exec(name, &["bash", "-c", command]).unwrap()
    };
    assert!(!in_pod("ip -o -4 addr show dev eth0; ip -o -4 addr show dev k6t-eth0").contains("inet"));
    assert_eq!(in_pod("cat /sys/class/net/eth0-pod/address").trim(), mac.trim());
    assert_ne!(in_pod("cat /sys/class/net/eth0/address").trim(), mac.trim());
    let told = |i: &v1::VirtualMachineInstance| {
        let Some(first) = i.status.interfaces.first() else { return false };
        first.mac.as_deref() == Some(mac.trim()) && first.ip_address == Some(own.to_string())
    };
    namespace.wait("vm", "an instance with its address", SOON, told).unwrap();
    let offer = guest.sh(
        "printf '#!/bin/sh\\nenv >/tmp/offer\\n' >/tmp/show; chmod 755 /tmp/show; \
         udhcpc -i $(ls /sys/class/net | grep ^e) -n -q -f -t 8 -T 1 -O bootfile -O mtu -s /tmp/show >/dev/null 2>&1; cat /tmp/offer",
    );
    assert!(offer.contains("bootfile=boot.efi") && offer.contains("mtu=1500"), "{offer}");

    // Out by names and Services, in by the pod's address and by its own Service, and the kubelet asks the guest.
    guest.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10");
    let ready = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "Ready" && c.status == "True")
    };
    namespace.wait("vm", "a ready instance", SOON, ready).unwrap();
    let service = namespace.wait("greeter", "the service", SOON, |_: &Service| true).unwrap();
    let service: IpAddr = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
    for address in [own, service] {
        greeting(&namespace, address);
    }

    // It stays on its node, and says why.
    let stays = |i: &v1::VirtualMachineInstance| {
        let movable = i.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable");
        movable
            .is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("InterfaceNotLiveMigratable"))
    };
    namespace.wait("vm", "a machine that stays", SOON, stays).unwrap();
}
