//! Interfaces of the binding `bridge`, and of network binding plugins with the attachment `managedTap` ([`Joint::is_bridge`]):
//! the guest is a host of its own on a network of Multus.
//!
//! ```text
//!        the launcher pod's network namespace                     the network
//!   guest ── tap<hash> ── k6t-<hash> ── pod<hash> ────────────────  switch
//!            of user 107   bridge       what Multus has made
//! ```
//!
//! Where the network gives the pod's interface an IPv4 address, it is the guest's: `kept<hash>` keeps it in the pod, and
//! virt-launcher tells it to the guest by DHCP through `dhcp<hash>`.
//!
//! virt-handler makes them, which takes privilege; virt-launcher names the tap to libvirt. Both take the names
//! from here, which are upstream's.

use crate::mac::MacAddr;
use crate::names::pod;
use crate::plugin::Joint;
use crate::vmi::{Cpu, Interface, InterfaceState, Network, VirtualMachineInstance};

/// The most queue pairs that a tap device has (the kernel's `MAX_TAP_QUEUES`).
const MAX_QUEUE_PAIRS: u64 = 256;

/// One interface that is bound by a bridge, and the names of what belongs to it in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridged {
    /// Place among the machine's interfaces, from 0.
    pub index: usize,
    /// Name of the interface and of its network.
    pub name: String,
    /// The pod's interface on the network.
    pub pod_interface: String,
    /// The bridge in the pod.
    pub bridge: String,
    /// The tap device in the pod.
    pub tap: String,
    /// The interface of no network that keeps what the pod's had where that had an IPv4 address: addresses, routes, MTU, and the
    /// guest's Ethernet address.
    pub kept: String,
    /// The tap device by which virt-launcher tells the guest of these.
    pub services: String,
    /// The guest's Ethernet address; none: that which the pod's interface has.
    pub mac: Option<MacAddr>,
    /// Queue pairs.
    pub queues: u64,
    /// Whether virt-launcher tells the guest its addresses.
    pub is_told: bool,
}

impl Interface {
    /// Whether it is unplugged: neither the pod nor the guest is to have it.
    pub fn is_absent(&self) -> bool {
        self.state == Some(InterfaceState::Absent)
    }
}

/// The interfaces of `vmi` that are bound by a bridge; `vmi` has its defaults and is valid. One on the pod's first network
/// is none of them, as it is not valid.
pub fn bridged(vmi: &VirtualMachineInstance) -> Vec<Bridged> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let one = |(index, interface): (usize, &Interface)| {
        let joint = Some(vmi.joint(interface)).filter(|joint| joint.is_bridge() && !interface.is_absent())?;
        let network = vmi.network_of(interface).filter(|network| !Network::is_primary(network))?;
        Some(Bridged {
            index,
            name: interface.name.clone(),
            pod_interface: pod::interface(&network.name),
            bridge: pod::bridge(&network.name),
            tap: pod::tap(&network.name),
            kept: pod::kept(&network.name),
            services: pod::services(&network.name),
            mac: Some(interface.mac_address.parse().ok()?),
            queues: queue_pairs(vmi, interface),
            is_told: joint == Joint::Bridge,
        })
    };
    interfaces.filter_map(one).collect()
}

/// Queue pairs of an interface with a tap device: as many as the machine has processors where it asks for several. Only
/// virtio's card has several.
pub fn queue_pairs(vmi: &VirtualMachineInstance, interface: &Interface) -> u64 {
    let domain = &vmi.spec.domain;
    let wanted = domain.devices.network_interface_multiqueue.unwrap_or(false) && interface.is_virtio();
    if wanted { domain.cpu.as_ref().map_or(1, Cpu::count).min(MAX_QUEUE_PAIRS) } else { 1 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_upstreams_and_queues_are_processors() {
        let machine = |multiqueue: bool| {
            let mut vmi = VirtualMachineInstance::from_value(json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "vm", "namespace": "shop"},
                "spec": {
                    "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}],
                    "domain": {"cpu": {"cores": 4}, "devices": {
                        "networkInterfaceMultiqueue": multiqueue,
                        "interfaces": [{"name": "default", "passtBinding": {}},
                            {"name": "blue", "bridge": {}, "macAddress": "52-54-00-00-00-02"}],
                    }},
                },
            }))
            .unwrap();
            crate::defaults::set_defaults(&mut vmi);
            bridged(&vmi)
        };
        let found = machine(true);
        let expected = Bridged {
            index: 1,
            name: "blue".into(),
            pod_interface: "pod16477688c0e".into(),
            bridge: "k6t-16477688c0e".into(),
            tap: "tap16477688c0e".into(),
            kept: "kept16477688c0e".into(),
            services: "dhcp16477688c0e".into(),
            mac: Some(MacAddr([0x52, 0x54, 0, 0, 0, 2])),
            queues: 4,
            is_told: true,
        };
        assert_eq!(found, [expected]);
        assert!(found[0].bridge.len() <= 15, "the kernel's limit of a name");
        assert_eq!(machine(false)[0].queues, 1);
    }
}
