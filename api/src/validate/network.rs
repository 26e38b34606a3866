//! Interfaces and networks.

use std::collections::BTreeMap;

use crate::guest_network;
use crate::mac::MacAddr;
use crate::mesh::Mesh;
use crate::plugin::Joint;
use crate::problem::{Problems, Reason};
use crate::vmi::{DhcpOptions, Interface, Network, PodNetwork, PortProtocol, VirtualMachineInstance};

use super::{is_dns_label, is_pci_address};

const INTERFACES: &str = "spec.domain.devices.interfaces";
/// Longest text of a DHCPv4 option (RFC 2132, section 2: one octet of length).
const MAX_DHCP_TEXT: usize = 255;
/// Longest name of an object (Kubernetes' rule).
const MAX_NAME: usize = 253;

pub(super) fn check(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    networks(vmi, problems);
    let mut names = BTreeMap::new();
    let mut macs = BTreeMap::new();
    let mut indices = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (n, interface) in vmi.spec.domain.devices.interfaces.iter().enumerate() {
        let path = format!("{INTERFACES}[{n}]");
        let name_ok = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if interface.name.is_empty() || interface.name.len() > 63 || !interface.name.bytes().all(name_ok) {
            problems.invalid(
                format!("{path}.name"),
                &interface.name,
                "at most 63 letters, digits, '-' and '_' are allowed",
            );
        }
        if let Some(other) = names.insert(&interface.name, n) {
            problems.duplicate(
                format!("{path}.name"),
                &interface.name,
                &format!("{INTERFACES}[{other}].name"),
            );
        }
        if vmi.network_of(interface).is_none() {
            problems.add(
                Reason::FieldValueNotFound,
                format!("{path}.name"),
                format!("'{}' is not the name of a network in spec.networks", interface.name),
            );
        }
        let bindings = [
            interface.passt_binding.is_some(),
            interface.masquerade.is_some(),
            interface.bridge.is_some(),
            interface.sriov.is_some(),
            interface.binding.is_some(),
        ];
        if bindings.into_iter().filter(|given| *given).count() > 1 {
            problems.add(
                Reason::FieldValueInvalid,
                path.clone(),
                "only one of passtBinding, masquerade, bridge, sriov and binding is allowed",
            );
        }
        meshes(vmi, interface, &path, problems);
        if interface.sriov.is_some() {
            sriov(vmi, interface, &path, problems);
        }
        if interface.masquerade.is_some() && vmi.network_of(interface).is_some_and(|n| n.multus.is_some()) {
            problems.add(
                Reason::FieldValueInvalid,
                format!("{path}.masquerade"),
                "masquerade is for the pod's own network; on one of Multus passtBinding and bridge are allowed",
            );
        }
        if interface.is_absent() && vmi.network_of(interface).is_some_and(Network::is_primary) {
            problems.invalid(
                format!("{path}.state"),
                "absent",
                "absent is for networks of Multus beside the pod's own; up and down are allowed here",
            );
        }
        if let Some(allowed) = vmi.wrong_model(interface) {
            problems.invalid(format!("{path}.model"), &interface.model, allowed);
        }
        address(interface, &path, problems);
        if let Ok(mac) = interface.mac_address.parse::<MacAddr>()
            && let Some(other) = macs.insert(mac, n)
        {
            problems.duplicate(
                format!("{path}.macAddress"),
                mac,
                &format!("{INTERFACES}[{other}].macAddress"),
            );
        }
        if interface.acpi_index != 0
            && let Some(other) = indices.insert(interface.acpi_index, n)
        {
            problems.duplicate(
                format!("{path}.acpiIndex"),
                interface.acpi_index,
                &format!("{INTERFACES}[{other}].acpiIndex"),
            );
        }
        if !interface.pci_address.is_empty()
            && let Some(other) = places.insert(interface.pci_address.to_ascii_lowercase(), n)
        {
            problems.duplicate(
                format!("{path}.pciAddress"),
                &interface.pci_address,
                &format!("{INTERFACES}[{other}].pciAddress"),
            );
        }
        ports(interface, &path, problems);
        if let Some(options) = &interface.dhcp_options {
            dhcp(options, &format!("{path}.dhcpOptions"), problems);
        }
    }
}

fn networks(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let mut names = BTreeMap::new();
    let mut primary = None;
    let interfaces = &vmi.spec.domain.devices.interfaces;
    for (n, network) in vmi.spec.networks.iter().enumerate() {
        let path = format!("spec.networks[{n}]");
        if network.name.is_empty() {
            problems.required(format!("{path}.name"), "a name is required");
        }
        if let Some(other) = names.insert(&network.name, n) {
            problems.duplicate(
                format!("{path}.name"),
                &network.name,
                &format!("spec.networks[{other}].name"),
            );
        }
        match (&network.pod, &network.multus) {
            (None, None) => {
                problems
                    .required(format!("{path}.pod"), "a network's kind is required; allowed: pod, multus");
            }
            (Some(_), Some(_)) => {
                problems.add(
                    Reason::FieldValueInvalid,
                    path.clone(),
                    "only one of pod and multus is allowed",
                );
            }
            (None, Some(multus)) => attachment(&multus.network_name, &format!("{path}.multus"), problems),
            (Some(pod), None) => {
                let masquerade = interfaces.iter().any(|i| i.name == network.name && i.masquerade.is_some());
                guest_networks(pod, masquerade, &format!("{path}.pod"), problems);
            }
        }
        if network.is_primary()
            && let Some(other) = primary.replace(n)
        {
            let field = if network.multus.is_some() { "multus.default" } else { "pod" };
            problems.add(
                Reason::FieldValueDuplicate,
                format!("{path}.{field}"),
                format!("spec.networks[{other}] is the pod's first network already; one is allowed"),
            );
        }
        if !interfaces.iter().any(|i| i.name == network.name) {
            problems.add(
                Reason::FieldValueNotFound,
                format!("{path}.name"),
                format!("'{}' is not the name of an interface in {INTERFACES}", network.name),
            );
        }
    }
}

/// Judges the networks that a guest is to have behind masquerade.
fn guest_networks(pod: &PodNetwork, masquerade: bool, path: &str, problems: &mut Problems) {
    let PodNetwork { vm_network_cidr: v4, vm_ipv6_network_cidr: v6 } = pod;
    let right_v4 = v4.is_empty() || guest_network::v4(v4).is_some();
    let right_v6 = v6.is_empty() || guest_network::v6(v6).is_some();
    for (field, text, right, allowed) in [
        ("vmNetworkCIDR", v4, right_v4, guest_network::ALLOWED_V4),
        ("vmIPv6NetworkCIDR", v6, right_v6, guest_network::ALLOWED_V6),
    ] {
        let field = format!("{path}.{field}");
        if !right {
            problems.invalid(field, text, allowed);
        } else if !text.is_empty() && !masquerade {
            problems.invalid(
                field,
                text,
                "it is for an interface with masquerade; another one has the pod's addresses",
            );
        }
    }
}

/// Judges the name of a NetworkAttachmentDefinition.
fn attachment(name: &str, path: &str, problems: &mut Problems) {
    let field = format!("{path}.networkName");
    if name.is_empty() {
        return problems.required(field, "the name of a NetworkAttachmentDefinition is required");
    }
    let (namespace, name_alone) = name.split_once('/').unwrap_or(("default", name));
    let is_name = |n: &str| n.len() <= MAX_NAME && n.split('.').all(is_dns_label);
    if !is_dns_label(namespace) || !is_name(name_alone) {
        problems.invalid(field, name, "a name as in 'storage' or 'shop/storage' is allowed");
    }
}

fn address(interface: &Interface, path: &str, problems: &mut Problems) {
    if !interface.mac_address.is_empty() {
        let field = format!("{path}.macAddress");
        match interface.mac_address.parse::<MacAddr>() {
            Err(error) => problems.invalid(field, &interface.mac_address, &error.to_string()),
            Ok(mac) if !mac.is_usable() => {
                problems.invalid(field, mac, "a unicast address other than zero is allowed");
            }
            Ok(_) => {}
        }
    }
    if !interface.pci_address.is_empty() && !is_pci_address(&interface.pci_address) {
        problems.invalid(
            format!("{path}.pciAddress"),
            &interface.pci_address,
            "an address as in '0000:02:00.0' is allowed",
        );
    }
}

/// Judges whether a mesh that the machine asks for can have this interface. netd's can be had by all of them.
fn meshes(vmi: &VirtualMachineInstance, interface: &Interface, path: &str, problems: &mut Problems) {
    if !vmi.network_of(interface).is_some_and(Network::is_primary) {
        return;
    }
    for mesh in Mesh::asked(&vmi.metadata) {
        let (binding, why) = match vmi.joint(interface) {
            Joint::Bridge => ("bridge", "a mesh's proxy has no address where the guest has the pod's"),
            Joint::ManagedTap | Joint::Tap => {
                ("binding", "a mesh's proxy sees nothing of what the guest sends by a tap device")
            }
            Joint::Nat if mesh != Mesh::Istio => {
                ("masquerade", "the mesh's rules do not know the guest's packets, which the kernel forwards")
            }
            Joint::Nat | Joint::Netd | Joint::Sidecar | Joint::Device => continue,
        };
        problems.add(
            Reason::FieldValueInvalid,
            format!("{path}.{binding}"),
            format!("{why}; with {} passtBinding, and masquerade by netd, are allowed", mesh.key()),
        );
    }
}

/// Judges what goes with the binding `sriov`: what the guest has is the node's device, and podvirt sees nothing of its frames.
fn sriov(vmi: &VirtualMachineInstance, interface: &Interface, path: &str, problems: &mut Problems) {
    if vmi.network_of(interface).is_some_and(Network::is_primary) {
        problems.add(
            Reason::FieldValueInvalid,
            format!("{path}.sriov"),
            "sriov is for networks of Multus beside the pod's own; passtBinding, masquerade and bridge are allowed here",
        );
    }
    if let Some(state) = interface.state {
        problems.invalid(
            format!("{path}.state"),
            state.as_str(),
            "the link of a device by SR-IOV is the device's own, and the interface comes and goes with the machine's next \
             start; none is allowed with sriov",
        );
    }
    if interface.acpi_index != 0 {
        problems.invalid(
            format!("{path}.acpiIndex"),
            interface.acpi_index,
            "podvirt gives a device of the node no index; none is allowed with sriov",
        );
    }
}

fn ports(interface: &Interface, path: &str, problems: &mut Problems) {
    let mut names = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (n, port) in interface.ports.iter().enumerate() {
        let at = format!("{path}.ports[{n}]");
        if port.port == 0 {
            problems.required(format!("{at}.port"), "a number from 1 to 65535 is required");
        }
        let protocol = port.protocol.unwrap_or(PortProtocol::Tcp);
        if let Some(other) = numbers.insert((protocol.as_str(), port.port), n) {
            problems.duplicate(
                format!("{at}.port"),
                format!("{} {}", protocol.as_str(), port.port),
                &format!("{path}.ports[{other}].port"),
            );
        }
        if port.name.is_empty() {
            continue;
        }
        // A service name (RFC 6335, section 5.1), which is what a Service refers to.
        if port.name.len() > 15
            || !is_dns_label(&port.name)
            || port.name.contains("--")
            || !port.name.bytes().any(|b| b.is_ascii_lowercase())
        {
            problems.invalid(
                format!("{at}.name"),
                &port.name,
                "at most 15 of a-z, 0-9 and single '-', with a letter, are allowed",
            );
        }
        if let Some(other) = names.insert(&port.name, n) {
            problems.duplicate(format!("{at}.name"), &port.name, &format!("{path}.ports[{other}].name"));
        }
    }
}

fn dhcp(options: &DhcpOptions, path: &str, problems: &mut Problems) {
    let plain = |text: &str| text.len() <= MAX_DHCP_TEXT;
    let allowed = "at most 255 bytes are allowed";
    for (field, text) in
        [("bootFileName", &options.boot_file_name), ("tftpServerName", &options.tftp_server_name)]
    {
        if !plain(text) {
            problems.invalid(format!("{path}.{field}"), text, allowed);
        }
    }
    for (n, server) in options.ntp_servers.iter().enumerate() {
        if !crate::ip::parse(server).is_some_and(|address| address.is_ipv4()) {
            problems.invalid(format!("{path}.ntpServers[{n}]"), server, "an IPv4 address is allowed");
        }
    }
    let mut codes = BTreeMap::new();
    for (n, option) in options.private_options.iter().enumerate() {
        let at = format!("{path}.privateOptions[{n}]");
        if option.option == 0 {
            problems.required(format!("{at}.option"), "a code from 224 to 254 is required");
        }
        if let Some(other) = codes.insert(option.option, n) {
            problems.duplicate(
                format!("{at}.option"),
                option.option,
                &format!("{path}.privateOptions[{other}].option"),
            );
        }
        if option.value.is_empty() {
            problems.required(format!("{at}.value"), "a text is required");
        } else if !plain(&option.value) {
            problems.invalid(format!("{at}.value"), &option.value, allowed);
        }
    }
}
