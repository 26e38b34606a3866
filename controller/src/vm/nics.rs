//! Interfaces that come and go while the machine runs.
//!
//! # Theory of operation
//!
//! An interface on a network of Multus beside the pod's own need not wait for the next start. What the template says of
//! such interfaces is written into the running instance; the controller of instances, virt-handler and virt-launcher
//! bring pod and guest to it.
//!
//! ```text
//! template                             instance                              then
//! a new interface                      it is appended                        the pod is attached, the guest gets it
//! state: absent                        state: absent                         the guest loses it, then the pod
//!   … and the status has it no more    it is removed, with its network
//!     … and the instance has it not    (the template loses both as well)
//! another networkName                  the same                              the machine moves to a pod that has it
//! ```
//!
//! An instance's interfaces keep their places, since a pod's netds are counted by them: a new one comes last, and one that
//! is gone stays in the list, `absent`, while one of netd's comes after it.
//!
//! What only a pod that is made anew can have waits for the next start where the machine does not move: an interface with
//! `sriov`, and another network of one.
//!
//! Nothing is written while the instance does not run or moves: its pods are made from what stands there. A change of
//! anything else waits for the next start. The digest that the instance carries is of the template as far as the instance
//! has it, so that it changes together with the instance's interfaces.

use podvirt_api::MacAddr;
use podvirt_api::migration::is_under_way;
use podvirt_api::v1::{
    Interface, InterfaceState, Network, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstancePhase as Phase, VirtualMachineInstanceSpec,
};

use super::instance::{is_outdated, template_digest};

/// Interfaces and networks, as they are and as they are to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Present interfaces.
    pub old_interfaces: Vec<Interface>,
    /// Present networks.
    pub old_networks: Vec<Network>,
    /// Interfaces to be.
    pub interfaces: Vec<Interface>,
    /// Networks to be.
    pub networks: Vec<Network>,
    /// The digest to go with them; none where the instance's own is to stay.
    pub digest: Option<String>,
    /// What it comes to, for people.
    pub message: String,
}

/// Whether the interface can come and go while the machine runs: one on a network of Multus beside the pod's own, which
/// netd or a bridge joins the guest with.
pub fn is_pluggable(spec: &VirtualMachineInstanceSpec, interface: &Interface) -> bool {
    let network = spec.networks.iter().find(|network| network.name == interface.name);
    let other = interface.masquerade.is_some()
        || interface.sriov.is_some()
        || interface.macvtap.is_some()
        || interface.passt.is_some()
        || interface.slirp.is_some()
        || interface.binding.is_some()
        // A running machine has free ports of PCI Express alone.
        || !interface.is_express();
    !other && network.is_some_and(|network| network.multus.is_some() && !network.is_primary())
}

/// Whether the network's interface is a device of the node, which keeps the machine from moving to another one.
fn is_of_device(spec: &VirtualMachineInstanceSpec, network: &str) -> bool {
    interfaces(spec).iter().any(|interface| interface.name == network && interface.sriov.is_some())
}

/// Takes out of `spec`, a template's, what the instance with the spec `present` need not be started anew for.
pub fn leave_pluggable_out(spec: &mut VirtualMachineInstanceSpec, present: &VirtualMachineInstanceSpec) {
    let has = |name: &str| present.domain.devices.interfaces.iter().any(|there| there.name == name);
    let left: Vec<String> = interfaces(spec)
        .iter()
        .filter(|interface| !has(&interface.name) && is_pluggable(spec, interface))
        .map(|interface| interface.name.clone())
        .collect();
    drop_interfaces(spec, &left);
    for network in &mut spec.networks {
        let there = present.networks.iter().find(|there| there.name == network.name);
        if let (Some(multus), Some(there)) =
            (&mut network.multus, there.and_then(|there| there.multus.as_ref()))
            && multus.default != Some(true)
            && !is_of_device(present, &network.name)
        {
            multus.network_name.clone_from(&there.network_name);
        }
    }
}

/// Takes unplugged interfaces out of a template: a machine that starts has none.
pub fn leave_absent_out(spec: &mut VirtualMachineInstanceSpec) {
    let absent: Vec<String> =
        interfaces(spec).iter().filter(|i| i.is_absent()).map(|i| i.name.clone()).collect();
    drop_interfaces(spec, &absent);
}

/// The MAC address of an interface whose manifest names none: the same at every start.
pub fn address(interface: &mut Interface, namespace: &str, name: &str) {
    if interface.mac_address.as_deref().unwrap_or_default().is_empty() {
        interface.mac_address = Some(MacAddr::derived(&[namespace, name, "", &interface.name]).to_string());
    }
}

/// What is to be changed in the running instance; none where it is as the template says.
pub fn of_instance(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Change> {
    let moves = vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    if vmi.status.phase != Some(Phase::Running) || vmi.metadata.deletion_timestamp.is_some() || moves {
        return None;
    }
    let template = vm.spec.template.as_ref()?.spec.as_ref()?;
    let mut wanted = vmi.spec.clone();
    let mut said = Vec::new();
    for interface in interfaces(template) {
        let name = &interface.name;
        let present = wanted.domain.devices.interfaces.iter_mut().find(|present| present.name == *name);
        match present {
            None if !interface.is_absent() && is_pluggable(template, interface) => {
                let network = template.networks.iter().find(|network| network.name == *name)?;
                let mut interface = interface.clone();
                let meta = &vm.metadata;
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                address(&mut interface, &text(&meta.namespace), &text(&meta.name));
                wanted.domain.devices.interfaces.push(interface);
                wanted.networks.push(network.clone());
                said.push(format!("{name} is plugged"));
            }
            Some(present)
                if interface.is_absent() && !present.is_absent() && is_pluggable(template, interface) =>
            {
                present.state = Some(InterfaceState::Absent);
                said.push(format!("{name} is unplugged"));
            }
            _ => {}
        }
    }
    for network in &mut wanted.networks {
        let of_template = template.networks.iter().find(|there| there.name == network.name);
        if let (Some(present), Some(there)) =
            (&mut network.multus, of_template.and_then(|n| n.multus.as_ref()))
            && present.default != Some(true)
            && !is_of_device(&vmi.spec, &network.name)
            && present.network_name != there.network_name
        {
            said.push(format!("{} changes to the network {}", network.name, there.network_name));
            present.network_name.clone_from(&there.network_name);
        }
    }
    let gone = gone(&wanted, vmi);
    said.extend(gone.iter().map(|name| format!("{name} is gone")));
    drop_interfaces(&mut wanted, &gone);
    if said.is_empty() {
        return None;
    }
    let digest = (!is_outdated(vm, vmi)).then(|| template_digest(vm, &wanted));
    Some(Change {
        old_interfaces: vmi.spec.domain.devices.interfaces.clone(),
        old_networks: vmi.spec.networks.clone(),
        interfaces: wanted.domain.devices.interfaces,
        networks: wanted.networks,
        digest,
        message: said.join(", "),
    })
}

/// Unplugged interfaces of `spec` that neither guest nor pod has any more, by the status of `vmi`.
fn gone(spec: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance) -> Vec<String> {
    let is_told = |name: &str| vmi.status.interfaces.iter().any(|told| told.name.as_deref() == Some(name));
    let mut gone = Vec::new();
    for interface in interfaces(spec).iter().rev() {
        if interface.is_absent() && !is_told(&interface.name) {
            gone.push(interface.name.clone());
        } else if interface.bridge.is_none() {
            // Sockets of netds are counted by place: the interfaces before this netd's have to keep theirs.
            break;
        }
    }
    gone
}

/// The template without unplugged interfaces that the instance has no more; none where there are none of these.
pub fn of_template(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Option<Change> {
    let template = vm.spec.template.as_ref()?.spec.as_ref()?;
    let known = |name: &str| {
        vmi.is_some_and(|vmi| {
            interfaces(&vmi.spec).iter().any(|there| there.name == name)
                || vmi.status.interfaces.iter().any(|told| told.name.as_deref() == Some(name))
        })
    };
    let gone: Vec<String> = interfaces(template)
        .iter()
        .filter(|interface| {
            interface.is_absent() && is_pluggable(template, interface) && !known(&interface.name)
        })
        .map(|interface| interface.name.clone())
        .collect();
    if gone.is_empty() {
        return None;
    }
    let mut wanted = template.clone();
    drop_interfaces(&mut wanted, &gone);
    Some(Change {
        old_interfaces: template.domain.devices.interfaces.clone(),
        old_networks: template.networks.clone(),
        interfaces: wanted.domain.devices.interfaces,
        networks: wanted.networks,
        digest: None,
        message: format!("{} removed from the template: unplugged", gone.join(", ")),
    })
}

fn interfaces(spec: &VirtualMachineInstanceSpec) -> &[Interface] {
    &spec.domain.devices.interfaces
}

/// Removes interfaces with their networks.
fn drop_interfaces(spec: &mut VirtualMachineInstanceSpec, names: &[String]) {
    spec.domain.devices.interfaces.retain(|interface| !names.contains(&interface.name));
    spec.networks.retain(|network| !names.contains(&network.name));
}

#[cfg(test)]
#[path = "nics_tests.rs"]
mod tests;
