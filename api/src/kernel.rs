//! Interfaces on the pod's own network that the kernel carries, where a machine asks for that.
//!
//! ```text
//!        the launcher pod's network namespace
//!   guest ── tap0 ── k6t-eth0 ──(NAT: 10.0.2.2 behind the pod's addresses)── eth0 ── the pod's network
//!               └───── dhcp0 ── virt-launcher: DHCP, router advertisements
//! ```
//!
//! By the binding `bridge` the guest takes the pod's place on the pod's network, with its IPv4 address and its MAC address:
//!
//! ```text
//!   guest ── tap0 ── k6t-eth0 ── eth0 ── the pod's network        eth0-pod: the pod's address and routes, as they were
//!               └───── dhcp0 ── virt-launcher: DHCP
//! ```
//!
//! virt-handler makes the devices and the rules, which takes privilege; virt-launcher names the tap to libvirt and answers
//! the guest's questions about its addresses. Both take the names from here, which are upstream's but for `dhcp0` and `eth0-pod`. Without
//! the annotation [`annotation::MASQUERADE`] a netd serves the binding `masquerade`.

use std::collections::BTreeMap;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::bridge::Bridged;
use crate::guest_network;
use crate::mac::MacAddr;
use crate::mesh::Mesh;
use crate::names::annotation;
use crate::names::pod::PRIMARY_INTERFACE;
use crate::netd::Port;
use crate::plugin::Joint;
use crate::vmi::{Network, PortProtocol, VirtualMachineInstance};

/// What carries the binding `masquerade`: a value of [`annotation::MASQUERADE`].
pub const BY_NETD: &str = "netd";
/// The same: the kernel, by nftables.
pub const BY_NFTABLES: &str = "nftables";

/// The bridge in the pod.
pub const BRIDGE: &str = "k6t-eth0";
/// The guest's tap device in the pod.
pub const TAP: &str = "tap0";
/// The tap device by which virt-launcher answers the guest's questions about its addresses.
pub const SERVICES: &str = "dhcp0";
/// The interface of no network that keeps what the pod's had before the guest took its place: addresses, routes, MTU, MAC address.
pub const KEPT: &str = "eth0-pod";
/// The Ethernet address of the bridge, which is the guest's gateway: the same in every pod, since a guest that moves keeps it in mind.
pub const BRIDGE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// The guest's networks where the manifest names none (upstream's).
const NETWORK_V4: &str = "10.0.2.0/24";
const NETWORK_V6: &str = "fd10:0:2::/120";

/// The machine's interface that the kernel carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masqueraded {
    /// Place among the machine's interfaces, from 0.
    pub index: usize,
    /// Name of the interface and of its network.
    pub name: String,
    /// The guest's Ethernet address.
    pub mac: MacAddr,
    /// Queue pairs.
    pub queues: u64,
    /// The guest's IPv4 address in its network.
    pub guest_v4: Ipv4Net,
    /// The guest's IPv6 address in its network.
    pub guest_v6: Ipv6Net,
    /// Ports that lead to the guest; none listed means all.
    pub ports: Vec<Port>,
    /// Whether Istio's proxy is in the pod.
    pub proxied: bool,
}

/// The interface of `vmi` that takes the place of the pod's, by a bridge; `vmi` is valid. When the guest has that
/// place, its Ethernet address is that of [`KEPT`].
pub fn replaced(vmi: &VirtualMachineInstance) -> Option<Bridged> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let (index, interface) = interfaces
        .filter(|(_, i)| vmi.joint(i).is_bridge())
        .find(|(_, i)| vmi.network_of(i).is_some_and(Network::is_primary))?;
    Some(Bridged {
        index,
        name: interface.name.clone(),
        pod_interface: PRIMARY_INTERFACE.into(),
        bridge: BRIDGE.into(),
        tap: TAP.into(),
        kept: KEPT.into(),
        services: SERVICES.into(),
        mac: interface.mac_address.parse().ok(),
        queues: crate::bridge::queue_pairs(vmi, interface),
        is_told: vmi.joint(interface) == Joint::Bridge,
    })
}

/// Whether a machine with these annotations has the kernel carry the binding `masquerade`.
pub fn by_nftables(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(annotation::MASQUERADE).is_some_and(|way| way == BY_NFTABLES)
}

/// The interface of `vmi` that the kernel carries; `vmi` has its defaults and is valid.
pub fn masqueraded(vmi: &VirtualMachineInstance) -> Option<Masqueraded> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let (index, interface) = interfaces
        .filter(|(_, i)| vmi.joint(i) == Joint::Nat && !i.is_absent())
        .find(|(_, i)| vmi.network_of(i).is_some_and(Network::is_primary))?;
    let network = vmi.network_of(interface)?.pod.as_ref();
    let or = |given: Option<&String>, usual: &str| match given {
        Some(text) if !text.is_empty() => text.clone(),
        _ => usual.to_owned(),
    };
    Some(Masqueraded {
        index,
        name: interface.name.clone(),
        mac: interface.mac_address.parse().ok()?,
        queues: crate::bridge::queue_pairs(vmi, interface),
        guest_v4: guest_network::v4(&or(network.map(|n| &n.vm_network_cidr), NETWORK_V4))?,
        guest_v6: guest_network::v6(&or(network.map(|n| &n.vm_ipv6_network_cidr), NETWORK_V6))?,
        ports: interface
            .ports
            .iter()
            .map(|p| Port { protocol: p.protocol.unwrap_or(PortProtocol::Tcp), port: p.port })
            .collect(),
        proxied: Mesh::Istio.is_asked(&vmi.metadata),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(annotations: Value, pod: Value, interface: Value) -> Option<Masqueraded> {
        let mut interface = interface;
        interface["name"] = "default".into();
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "shop", "annotations": annotations},
            "spec": {
                "networks": [{"name": "default", "pod": pod}],
                "domain": {"cpu": {"cores": 4}, "devices": {
                    "networkInterfaceMultiqueue": true, "interfaces": [interface],
                }},
            },
        }))
        .unwrap();
        crate::defaults::set_defaults(&mut vmi);
        masqueraded(&vmi)
    }

    #[test]
    fn a_bridge_on_the_pods_network_takes_its_place() {
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {
                "networks": [{"name": "blue", "multus": {"networkName": "n"}}, {"name": "default", "pod": {}}],
                "domain": {"devices": {"interfaces": [{"name": "blue", "bridge": {}}, {"name": "default", "bridge": {}}]}},
            },
        }))
        .unwrap();
        crate::defaults::set_defaults(&mut vmi);
        let found = replaced(&vmi).unwrap();
        assert_eq!((found.index, found.name.as_str(), found.queues), (1, "default", 1));
        assert_eq!([found.pod_interface.as_str(), &found.kept, &found.tap], ["eth0", "eth0-pod", "tap0"]);
        let multus: Vec<_> = crate::bridge::bridged(&vmi).into_iter().map(|one| one.name).collect();
        assert_eq!(multus, ["blue"]);
    }

    #[test]
    fn istios_proxy_is_known_by_the_label_as_by_the_annotation() {
        let of = |labels: Value, annotations: Value| {
            let mut annotations = annotations;
            annotations["podvirt.io/masquerade"] = BY_NFTABLES.into();
            let mut vmi = VirtualMachineInstance::from_value(json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "vm", "labels": labels, "annotations": annotations},
                "spec": {
                    "networks": [{"name": "default", "pod": {}}],
                    "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
                },
            }))
            .unwrap();
            crate::defaults::set_defaults(&mut vmi);
            masqueraded(&vmi).unwrap().proxied
        };
        let asks = || json!({"sidecar.istio.io/inject": "true"});
        assert!(of(json!({}), asks()) && of(asks(), json!({})));
        assert!(!of(json!({}), json!({})) && !of(asks(), json!({"sidecar.istio.io/inject": "false"})));
    }

    #[test]
    fn the_annotation_has_the_kernel_carry_masquerade_and_nothing_else() {
        let asked = json!({"podvirt.io/masquerade": "nftables", "sidecar.istio.io/inject": "true"});
        let given = json!({"masquerade": {}, "macAddress": "52-54-00-00-00-02", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]});
        let found = machine(asked.clone(), json!({}), given.clone()).unwrap();
        assert_eq!(found.mac, MacAddr([0x52, 0x54, 0, 0, 0, 2]));
        assert_eq!((found.queues, found.proxied), (4, true));
        assert_eq!(found.guest_v4.to_string(), "10.0.2.2/24");
        assert_eq!(found.guest_v6.to_string(), "fd10:0:2::2/120");
        let ports: Vec<_> = found.ports.iter().map(|p| (p.protocol.as_str(), p.port)).collect();
        assert_eq!(ports, [("TCP", 80), ("UDP", 53)]);
        let own = json!({"vmNetworkCIDR": "192.0.2.64/26", "vmIPv6NetworkCIDR": "fd20::/64"});
        let found = machine(json!({"podvirt.io/masquerade": "nftables"}), own, given.clone()).unwrap();
        assert_eq!(found.guest_v4.to_string(), "192.0.2.66/26");
        assert_eq!(found.guest_v6.to_string(), "fd20::2/64");
        assert!(!found.proxied);
        for annotations in [json!({}), json!({"podvirt.io/masquerade": "netd"})] {
            assert_eq!(machine(annotations, json!({}), given.clone()), None);
        }
        assert_eq!(machine(asked, json!({}), json!({"passtBinding": {}})), None);
    }
}
