//! Network binding plugins.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::Read as _;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::v1;
use podvirt_e2e::artefacts::image;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};
use serde_json::{Value, json};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);

/// Binding plugins of one test in the KubeVirt object. Drop removes these plugins; plugins of other tests stay.
struct Registered<'c> {
    cluster: &'c Cluster,
    names: Vec<String>,
}

impl Registered<'_> {
    fn new<'c>(cluster: &'c Cluster, plugins: &Value) -> Registered<'c> {
        let names = plugins.as_object().unwrap().keys().cloned().collect();
        let registered = Registered { cluster, names };
        registered.patch(plugins).unwrap();
        registered
    }

    fn patch(&self, plugins: &Value) -> anyhow::Result<String> {
        let text = json!({"spec": {"configuration": {"network": {"binding": plugins}}}}).to_string();
        self.cluster.kubectl(&[
            "-n",
            "kubevirt",
            "patch",
            "kubevirt",
            "kubevirt",
            "--type=merge",
            "-p",
            &text,
        ])
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let none = self.names.iter().map(|name| (name.clone(), Value::Null)).collect();
        drop(self.patch(&Value::Object(none)));
    }
}

/// A network without addresses.
fn network(namespace: &Namespace<'_>, name: &str, config: Value) {
    let mut config = config;
    config["cniVersion"] = "1.0.0".into();
    config["name"] = format!("{}-{name}", namespace.name()).into();
    let manifest = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name}, "spec": {"config": config.to_string()},
    });
    namespace.apply(&manifest.to_string()).unwrap();
}

/// A machine on the pod's network, and on networks of Multus, each of which a plugin of the network's name joins.
fn machine(name: &str, networks: &[&str], node: &str) -> String {
    let list = |item: fn(&str) -> String| networks.iter().map(|network| item(network)).collect::<String>();
    let multus = list(|network| format!(", {{name: {network}, multus: {{networkName: {network}}}}}"));
    let bound = list(|network| format!(", {{name: {network}, binding: {{name: {network}}}}}"));
    let spec = format!(
        "networks: [{{name: default, pod: {{}}}}{multus}], nodeSelector: {{kubernetes.io/hostname: {node}}}"
    );
    let devices = format!("interfaces: [{{name: default, masquerade: {{}}}}{bound}]");
    Manifest { name, spec: &spec, devices: &devices, ..Default::default() }.machine()
}

/// A CNI plugin that brings the guest's tap device, on the bridge that its network names.
const TAPPED: &str = r#"#!/bin/bash
set -e
config=$(cat) host=t${CNI_CONTAINERID:0:12} id=${CNI_IFNAME#pod}
inside() { nsenter --net="$CNI_NETNS" "$@"; }
case $CNI_COMMAND in
ADD)
  inside ip link add "$CNI_IFNAME" type veth peer name "$host" netns $$
  ip link set "$host" master "$(jq -r .bridge <<<"$config")" up
  inside ip link add "b$id" type bridge
  inside ip tuntap add "tap$id" mode tap user 107 group 107
  for port in "$CNI_IFNAME" "tap$id"; do inside ip link set "$port" master "b$id" up; done
  inside ip link set "b$id" up
  jq -n --arg name "$CNI_IFNAME" --arg pod "$CNI_NETNS" '{cniVersion: "1.0.0", interfaces: [{name: $name, sandbox: $pod}]}' ;;
DEL) ip link del "$host" 2>/dev/null || true ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"#;

/// Puts a CNI plugin of a test on both nodes. It stays there: pods that it has joined to a network leave that by it, after the test.
fn install(cluster: &Cluster, name: &str, script: &str) {
    let path = format!("/opt/cni/bin/{name}");
    let command = format!("cat >{path} <<'END'\n{script}END\nchmod 755 {path}");
    for node in [1, 2] {
        cluster.node(node).run(&["bash", "-c", &command]).unwrap();
    }
}

/// Guests with two cards on the segment: podvirt's bridge joins the one, and the network of the other brings its tap device.
#[test]
fn plugins_join_guests_by_podvirts_bridge_and_by_the_networks_tap_device() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    install(&cluster, "test-tapped", TAPPED);
    network(&namespace, "flat", json!({"type": "bridge", "bridge": "br1"}));
    network(&namespace, "tapped", json!({"type": "test-tapped", "bridge": "br1"}));
    let [one, two] =
        [("one", "node1"), ("two", "node2")].map(|(name, node)| machine(name, &["flat", "tapped"], node));

    let refused = namespace.apply(&one).unwrap_err().to_string();
    let told = "spec.template.spec.domain.devices.interfaces[1].binding.name: 'flat' is not allowed";
    assert!(refused.contains(told), "{refused}");

    let plugins =
        json!({"flat": {"domainAttachmentType": "managedTap"}, "tapped": {"domainAttachmentType": "tap"}});
    let _registered = Registered::new(&cluster, &plugins);
    // Each replica of virt-api hears of them for itself.
    for manifest in [&one, &two] {
        namespace
            .until("the plugins known to virt-api", SOON, || Ok(namespace.apply(manifest).ok()))
            .unwrap();
    }
    let guests = ["one", "two"].map(|name| {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
        namespace.shell(name).unwrap()
    });
    let [(mut one, _one), (mut two, _two)] = guests;

    // Both networks are of one segment: a card answers for its own address alone.
    for guest in [&mut one, &mut two] {
        guest.sh("echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore", COMMAND).unwrap();
    }
    for (card, subnet) in [("eth1", 54), ("eth2", 58)] {
        for (guest, host) in [(&mut one, 1), (&mut two, 2)] {
            let address = format!("172.31.{subnet}.{host}/24");
            let configure = format!("ip link set {card} up; ip addr add {address} dev {card}");
            guest.sh(&configure, COMMAND).unwrap();
        }
        one.sh(&format!("ping -c 3 -W 10 172.31.{subnet}.2"), COMMAND).unwrap();
        two.sh(&format!("ping -c 3 -W 10 172.31.{subnet}.1"), COMMAND).unwrap();
    }
}

/// The greeter of the tiny guest.
const GREETER: u16 = 7777;

#[test]
fn long_a_plugins_sidecar_alone_joins_the_guest_beside_a_netd() {
    // Fetched before this process is in the cluster's network. QEMU has slirp behind an e1000 alone, of which the usual guest
    // has no driver.
    let images = ["slirp", "kernel-cards"].map(|name| image(name).unwrap());
    let cluster = Cluster::get().unwrap();
    for image in &images {
        cluster.load(image).unwrap();
    }
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _registered = Registered::new(&cluster, &json!({"slirp": {"sidecarImage": "podvirt/slirp:dev"}}));
    let ranges =
        json!([[{"subnet": "172.31.59.0/24", "rangeStart": "172.31.59.10", "gateway": "172.31.59.1"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges});
    network(&namespace, "segment", json!({"type": "bridge", "bridge": "br1", "ipam": ipam}));
    // The netd's interface has several queues, which upstream's sidecar writes without what it takes to be a netd's.
    let manifest = Manifest {
        name: "vm",
        spec: "networks: [{name: default, pod: {}}, {name: segment, multus: {networkName: segment}}]",
        domain: "cpu: {cores: 2}, firmware: {kernelBoot: {kernelArgs: 'console=ttyS0 quiet panic=-1 mitigations=off pv.dhcp=4 \
                 pv.serve=7777', container: {image: 'podvirt/kernel-cards:dev', kernelPath: /vmlinuz, initrdPath: /initrd.img}}}",
        devices: "networkInterfaceMultiqueue: true, interfaces: [{name: default, binding: {name: slirp}, ports: [{port: 7777}]}, \
                  {name: segment, passtBinding: {}}]",
        ..Default::default()
    };
    let machine = manifest.machine();
    namespace.until("the plugins known to virt-api", SOON, || Ok(namespace.apply(&machine).ok())).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut guest, _guest) = namespace.shell("vm").unwrap();
    let mut sh = |command: &str| guest.sh(command, COMMAND).unwrap();

    // By the sidecar's card: the addresses of slirp's DHCP, the cluster's names and Services, and back.
    let driver = sh("basename $(readlink /sys/class/net/eth0/device/driver)");
    assert_eq!(driver.trim(), "e1000");
    let addresses = sh("ip -o -4 addr show dev eth0 scope global");
    assert!(addresses.contains(" 10.0.2.15/24 "), "{addresses}");
    sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10");
    let pod = namespace.launcher("vm").unwrap();
    let address: IpAddr = pod.status.unwrap().pod_ip.unwrap().parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&(address, GREETER).into(), COMMAND).unwrap();
    stream.set_read_timeout(Some(COMMAND)).unwrap();
    let mut text = [0; 11];
    stream.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"GUEST-HELLO");

    // By the netd's, in the same machine.
    sh("net-up 4 eth1");
    let addresses = sh("ip -o -4 addr show dev eth1 scope global");
    assert!(addresses.contains(" 172.31.59.1"), "{addresses}");
    sh("ls -d /sys/class/net/eth1/queues/rx-1");
}

#[test]
fn long_a_guests_link_goes_down_and_up_when_it_has_moved_where_its_plugin_asks_for_that() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    network(&namespace, "segment", json!({"type": "bridge", "bridge": "br1"}));
    let _registered = Registered::new(
        &cluster,
        &json!({"fresh": {"domainAttachmentType": "managedTap", "migration": {"method": "link-refresh"}}}),
    );
    let spec = "networks: [{name: default, pod: {}}, {name: segment, multus: {networkName: segment}}]";
    let devices = "interfaces: [{name: default, masquerade: {}}, {name: segment, binding: {name: fresh}}]";
    let machine = Manifest { name: "vm", spec, devices, ..Default::default() }.machine();
    namespace.until("the plugins known to virt-api", SOON, || Ok(namespace.apply(&machine).ok())).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut guest, running) = namespace.shell("vm").unwrap();
    guest.sh("ip link set eth1 up", COMMAND).unwrap();
    let counts = "cat /sys/class/net/eth0/carrier_down_count /sys/class/net/eth1/carrier_down_count";
    let before = guest.sh(counts, COMMAND).unwrap();
    let source = namespace.launcher("vm").unwrap().metadata.name;
    namespace.virtctl(&["migrate", "vm"]).unwrap();
    drop((guest, running));
    let moved = |pod: &Pod| pod.metadata.name != source;
    namespace
        .until("the other pod", BOOT, || {
            let instance: v1::VirtualMachineInstance =
                namespace.wait("vm", "the instance", SOON, |_| true)?;
            let state = instance.status.migration_state.unwrap_or_default();
            let there = namespace.launcher("vm").ok().filter(moved);
            Ok(state.completed.unwrap_or(false).then_some(there).flatten())
        })
        .unwrap();
    let (mut guest, _running) = namespace.shell("vm").unwrap();
    let numbers = |text: &str| text.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<u32>>();
    let before = numbers(&before);
    let after = namespace
        .until("a link that was down", SOON, || {
            Ok(Some(numbers(&guest.sh(counts, COMMAND)?)).filter(|after| after[1] > before[1]))
        })
        .unwrap();
    assert_eq!((after[0], after[1]), (before[0], before[1] + 1), "that of the plugin alone, once");
    guest.sh("grep 1 /sys/class/net/eth1/carrier", COMMAND).unwrap();
}
