//! Devices of the node, by the binding `sriov`.
//!
//! The machine that runs the tests has no device with SR-IOV. The tests see what leads to one, as far as virt-launcher's
//! libvirt, which does not find it.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod plugin;

use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON, Security};
use serde_json::{Value, json};

use plugin::{ADDRESS, FILES, Plugin, RESOURCE};

/// A machine of the form of upstream's example: by its interface `sriov-net` it asks for a device.
const MACHINE: &str = r#"
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  labels: {special: vmi-sriov}
spec:
  domain:
    devices:
      disks:
      - {name: root, disk: {bus: virtio}}
      - {name: seed, disk: {bus: virtio}}
      interfaces:
      - {name: default, masquerade: {}}
      - {name: sriov-net, sriov: {}}
      rng: {}
    memory: {guest: 256M}
    resources: {}
  networks:
  - {name: default, pod: {}}
  - {name: sriov-net, multus: {networkName: NAMESPACE/fast}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: root, containerDisk: {image: 'podvirt/disk-tiny:dev'}}
  - name: seed
    cloudInitNoCloud:
      networkData: |
        version: 2
        ethernets: {eth1: {dhcp4: true}}
      userData: |-
        #cloud-config
        password: fedora
"#;

/// What the guest has, 1 GiB and 64 MiB.
const LOCKED: u64 = 256_000_000 + ((1024 + 64) << 20);

/// A CNI plugin that tells of the device that Multus names to it, as the SR-IOV CNI plugin does; the pod gets an interface
/// that leads nowhere.
const TELLING: &str = r#"#!/bin/bash
set -e
config=$(cat)
case $CNI_COMMAND in
ADD)
  file=$(jq -r .runtimeConfig.CNIDeviceInfoFile <<<"$config"); mkdir -p "${file%/*}"
  jq '{type: "pci", version: "1.1.0", pci: {"pci-address": .deviceID}}' <<<"$config" >"$file"
  nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type bridge
  jq -n --arg name "$CNI_IFNAME" --arg pod "$CNI_NETNS" '{cniVersion: "1.0.0", interfaces: [{name: $name, sandbox: $pod}]}' ;;
DEL) nsenter --net="$CNI_NETNS" ip link del "$CNI_IFNAME" 2>/dev/null || true ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"#;

/// Makes the network whose pods ask for the device. Its CNI plugin stays: pods leave by it, after the test.
fn network(namespace: &Namespace<'_>) {
    let path = "/opt/cni/bin/test-telling";
    let install = format!("cat >{path} <<'END'\n{TELLING}END\nchmod 755 {path}");
    namespace.cluster().node(1).run(&["bash", "-c", &install]).unwrap();
    let config = json!({
        "cniVersion": "1.0.0", "name": format!("{}-fast", namespace.name()), "type": "test-telling",
        "capabilities": {"CNIDeviceInfoFile": true},
    });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "fast", "annotations": {"k8s.v1.cni.cncf.io/resourceName": RESOURCE}},
        "spec": {"config": config.to_string()},
    });
    namespace.apply(&definition.to_string()).unwrap();
}

/// Waits until a condition of the instance says this, and an event of it.
fn told(namespace: &Namespace<'_>, kind: &str, reason: &str, says: &str) {
    let wrong = |instance: &v1::VirtualMachineInstance| {
        instance.status.conditions.iter().any(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.r#type.as_str() == kind && condition.status == "False" && message.contains(says)
        })
    };
    namespace.wait("vm", &format!("a condition about {says}"), BOOT, wrong).unwrap();
    let about = format!("involvedObject.kind=VirtualMachineInstance,involvedObject.name=vm,reason={reason}");
    let args = ["get", "events", "--field-selector", &about, "-o", "jsonpath={.items[*].message}"];
    let event =
        || Ok(Some(()).filter(|()| namespace.kubectl(&args).is_ok_and(|events| events.contains(says))));
    namespace.until(&format!("an event {reason} about {says}"), SOON, event).unwrap();
}

/// Whether this machine's processes may raise limits (`CAP_SYS_RESOURCE`); what runs in the cluster can do no more.
fn may_raise_limits() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() >> SYS_RESOURCE & 1 == 1
}

#[test]
fn long_a_machine_asks_for_a_device_of_its_network_and_says_why_it_does_not_come() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = MACHINE.replace("NAMESPACE", namespace.name());
    let apply = || {
        namespace
            .cluster()
            .kubectl_with(&["--namespace", namespace.name(), "apply", "-f", "-"], &manifest)
            .unwrap()
    };

    // There is no network, then no device.
    apply();
    let missing = format!("no such NetworkAttachmentDefinition: {}/fast", namespace.name());
    told(&namespace, "Synchronized", "FailedCreate", &missing);
    network(&namespace);
    told(&namespace, "PodScheduled", "FailedScheduling", &format!("Insufficient {RESOURCE}"));

    // There is one, and it is not bound to vfio-pci: its plugin hands out no file of it.
    let plugin = Plugin::new(&cluster);
    told(&namespace, "Synchronized", "SyncFailed", "the launcher's container has no device in /dev/vfio");
    let pod = namespace.launcher("vm").unwrap();
    let (name, spec) = (pod.metadata.name.unwrap(), pod.spec.unwrap());
    let resources = spec.containers[0].resources.clone().unwrap();
    for amounts in [resources.requests, resources.limits] {
        assert_eq!(amounts.unwrap()[RESOURCE].0, "1");
    }
    let info = || {
        let text = namespace.exec(&name, &["cat", "/etc/podinfo/network-info"])?;
        Ok(serde_json::from_str::<Value>(&text).ok())
    };
    let info = namespace.until("what Multus says, in the pod", SOON, info).unwrap();
    assert_eq!(info["interfaces"][0]["network"], "sriov-net");
    assert_eq!(info["interfaces"][0]["deviceInfo"]["pci"]["pci-address"], ADDRESS);
    let stays = |i: &v1::VirtualMachineInstance| {
        let movable = i.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable");
        movable.is_some_and(|c| c.reason.as_deref() == Some("InterfaceNotLiveMigratable"))
    };
    let instance = namespace.wait("vm", "a machine that stays", SOON, stays).unwrap();
    let interface =
        instance.status.interfaces.iter().find(|i| i.name.as_deref() == Some("sriov-net")).unwrap();
    assert_eq!(interface.info_source.as_deref(), Some("multus-status"), "the guest has none");

    // It is: the next pod gets the files, and no driver is behind them.
    namespace.kubectl(&["delete", "vmi", "vm"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    plugin.hand_out_files();
    apply();
    if may_raise_limits() {
        told(&namespace, "Synchronized", "SyncFailed", ADDRESS);
    } else {
        told(&namespace, "Synchronized", "SyncFailed", &format!("needs {LOCKED} bytes of locked memory"));
    }
    let name = namespace.launcher("vm").unwrap().metadata.name.unwrap();
    for file in FILES {
        let owner = namespace.exec(&name, &["stat", "-c", "%u", &format!("/dev/vfio/{file}")]).unwrap();
        assert_eq!(owner.trim(), "107", "{file}");
    }
    if may_raise_limits() {
        let limits = namespace.exec(&name, &["grep", "locked", "/proc/1/limits"]).unwrap();
        assert!(limits.contains(&LOCKED.to_string()), "{limits}");
    }
}
