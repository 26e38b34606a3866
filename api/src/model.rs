//! Models of network cards.
//!
//! virtio's card is made for what carries its frames, a netd or a tap device. The others are real cards' likenesses, for
//! guests without virtio's driver: QEMU carries their frames itself, so they are for interfaces with a tap device, have one
//! queue and tell the guest no MTU.

use crate::plugin::Joint;
use crate::v1;
use crate::vmi::{Interface, VirtualMachineInstance};

/// The model where none is named.
pub const VIRTIO: &str = "virtio";
/// Models that are allowed, upstream's.
pub const MODELS: &[&str] = &[VIRTIO, "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"];
/// Those which are devices of PCI Express: a free port takes them while the machine runs. The others are conventional PCI.
const EXPRESS: [&str; 3] = [VIRTIO, "e1000e", "igb"];

impl Interface {
    /// Whether the card is virtio's.
    pub fn is_virtio(&self) -> bool {
        self.model.is_empty() || self.model == VIRTIO
    }
}

impl v1::Interface {
    /// Whether the card can be plugged into a running machine.
    pub fn is_express(&self) -> bool {
        let model = self.model.as_deref().filter(|model| !model.is_empty()).unwrap_or(VIRTIO);
        EXPRESS.contains(&model)
    }
}

impl VirtualMachineInstance {
    /// What forbids the model of `interface`: the netd that serves it knows virtio alone.
    pub(crate) fn wrong_model(&self, interface: &Interface) -> Option<&'static str> {
        let joint = self.joint(interface);
        if !interface.is_virtio() && joint == Joint::Device {
            return Some("the card is the node's device; none is allowed with sriov");
        }
        let by_netd = !interface.is_virtio() && joint == Joint::Netd;
        by_netd.then_some(if interface.masquerade.is_some() {
            "virtio is allowed with masquerade by netd; the other models are for masquerade by the kernel (annotation \
             podvirt.io/masquerade: nftables) and for bridge"
        } else {
            "virtio is allowed with passtBinding; the other models are for bridge and for masquerade by the kernel"
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(annotations: Value, interface: Value) -> VirtualMachineInstance {
        let mut interface = interface;
        interface["name"] = "n".into();
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "shop", "annotations": annotations},
            "spec": {
                "networks": [{"name": "n", "pod": {}}],
                "domain": {"cpu": {"cores": 4}, "devices": {
                    "networkInterfaceMultiqueue": true, "interfaces": [interface],
                }},
            },
        }))
        .unwrap();
        crate::defaults::set_defaults(&mut vmi);
        vmi
    }

    #[test]
    fn a_tap_takes_every_model_and_netd_takes_virtio() {
        let by_kernel = json!({"podvirt.io/masquerade": "nftables"});
        for model in MODELS {
            for (annotations, binding, allowed) in [
                (json!({}), json!({"bridge": {}}), true),
                (by_kernel.clone(), json!({"masquerade": {}}), true),
                (json!({}), json!({"masquerade": {}}), *model == VIRTIO),
                (by_kernel.clone(), json!({"passtBinding": {}}), *model == VIRTIO),
                (json!({}), json!({}), *model == VIRTIO),
                (json!({}), json!({"passtBinding": {}, "state": "absent"}), *model == VIRTIO),
            ] {
                let mut interface = binding.clone();
                interface["model"] = (*model).into();
                let vmi = machine(annotations, interface);
                let interface = &vmi.spec.domain.devices.interfaces[0];
                assert_eq!(vmi.wrong_model(interface).is_none(), allowed, "{model} {binding}");
            }
        }
        assert_eq!(machine(json!({}), json!({})).spec.domain.devices.interfaces[0].model, VIRTIO);
    }

    #[test]
    fn only_virtio_has_several_queues() {
        let queues = |model: &str| {
            crate::kernel::replaced(&machine(json!({}), json!({"bridge": {}, "model": model})))
                .unwrap()
                .queues
        };
        assert_eq!((queues(VIRTIO), queues("e1000e")), (4, 1));
        let by_kernel = json!({"podvirt.io/masquerade": "nftables"});
        let vmi = machine(by_kernel, json!({"masquerade": {}, "model": "e1000"}));
        assert_eq!(crate::kernel::masqueraded(&vmi).unwrap().queues, 1);
    }
}
