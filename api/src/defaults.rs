//! What holds when a manifest is silent; upstream's defaults, except where podvirt has another binding.
//!
//! Setting defaults twice changes nothing, and a default never replaces what the manifest says. Addresses and
//! identities are made from namespace, name and uid, so that they are the same at every start.

use crate::mac::{MacAddr, hash64};
use crate::vmi::{
    CdRomTarget, Cpu, CpuFeaturePolicy, DEFAULT_GRACE_PERIOD_SECONDS, Disk, DiskBus, DiskTarget, DnsPolicy,
    FeatureState, Features, Firmware, Interface, InterfacePasstBinding, InterfaceState, Machine, Memory,
    Network, PodNetwork, PortProtocol, RebootPolicy, TrayState, VirtualMachineInstance,
};

/// Name of the interface and network that a manifest without any gets.
pub const DEFAULT_NETWORK_NAME: &str = "default";

/// Sets everything that the manifest leaves open.
pub fn set_defaults(vmi: &mut VirtualMachineInstance) {
    if vmi.metadata.namespace.is_empty() {
        "default".clone_into(&mut vmi.metadata.namespace);
    }
    let spec = &mut vmi.spec;
    spec.termination_grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
    spec.dns_policy.get_or_insert(DnsPolicy::ClusterFirst);
    if spec.hostname.is_empty() {
        spec.hostname = host_name(&vmi.metadata.name);
    }
    if spec.architecture.is_empty() {
        "amd64".clone_into(&mut spec.architecture);
    }
    machine(vmi);
    network(vmi);
    disks(vmi);
}

/// The longest host name that a VM's name gives: up to its first dot, at most 63 letters (RFC 1035, 2.3.4).
fn host_name(name: &str) -> String {
    let label: String = name.split('.').next().unwrap_or_default().chars().take(63).collect();
    label.trim_end_matches('-').to_owned()
}

fn machine(vmi: &mut VirtualMachineInstance) {
    let identity = [vmi.metadata.namespace.as_str(), vmi.metadata.name.as_str(), vmi.metadata.uid.as_str()];
    let uuid = uuid(&identity);
    let domain = &mut vmi.spec.domain;

    let machine = domain.machine.get_or_insert_with(Machine::default);
    if machine.kind.is_empty() {
        "q35".clone_into(&mut machine.kind);
    }

    // Only a CPU count that the manifest gives nowhere else comes from the resources, as sockets.
    let resources = &domain.resources;
    let from_resources = resources.limits.get("cpu").or_else(|| resources.requests.get("cpu"));
    let cpu = domain.cpu.get_or_insert_with(Cpu::default);
    if cpu.cores == 0 && cpu.sockets == 0 && cpu.threads == 0 {
        cpu.sockets = from_resources.map_or(1, |q| u32::try_from(q.value()).unwrap_or(u32::MAX)).max(1);
    }
    for count in [&mut cpu.cores, &mut cpu.sockets, &mut cpu.threads] {
        *count = (*count).max(1);
    }
    for feature in &mut cpu.features {
        feature.policy.get_or_insert(CpuFeaturePolicy::Require);
    }

    let memory = domain.memory.get_or_insert_with(Memory::default);
    if memory.guest.is_none() {
        memory.guest = resources.requests.get("memory").or_else(|| resources.limits.get("memory")).cloned();
    }

    let firmware = domain.firmware.get_or_insert_with(Firmware::default);
    if firmware.uuid.is_empty() {
        firmware.uuid = uuid;
    }
    let features = domain.features.get_or_insert_with(Features::default);
    features.acpi.get_or_insert_with(FeatureState::default).enabled.get_or_insert(true);
    domain.reboot_policy.get_or_insert(RebootPolicy::Reboot);

    let devices = &mut domain.devices;
    for on in [
        &mut devices.autoattach_pod_interface,
        &mut devices.autoattach_graphics_device,
        &mut devices.autoattach_serial_console,
        &mut devices.log_serial_console,
        &mut devices.autoattach_mem_balloon,
    ] {
        on.get_or_insert(true);
    }
}

/// A UUID of version 8 (RFC 9562, section 5.8) from `words`.
fn uuid(words: &[&str]) -> String {
    let high = hash64(words);
    let low = hash64(&[words, &["uuid"]].concat());
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff,
    )
}

fn network(vmi: &mut VirtualMachineInstance) {
    let meta = &vmi.metadata;
    let spec = &mut vmi.spec;
    let devices = &mut spec.domain.devices;
    let attach = devices.autoattach_pod_interface.unwrap_or(true);
    if attach && devices.interfaces.is_empty() && spec.networks.is_empty() {
        let name = DEFAULT_NETWORK_NAME.to_owned();
        devices.interfaces.push(Interface { name: name.clone(), ..Interface::default() });
        spec.networks.push(Network { name, pod: Some(PodNetwork {}) });
    }
    for interface in &mut devices.interfaces {
        interface.passt_binding.get_or_insert(InterfacePasstBinding {});
        interface.state.get_or_insert(InterfaceState::Up);
        if interface.model.is_empty() {
            "virtio".clone_into(&mut interface.model);
        }
        if interface.mac_address.is_empty() {
            let words = [&meta.namespace, &meta.name, &meta.uid, &interface.name].map(String::as_str);
            interface.mac_address = MacAddr::derived(&words).to_string();
        }
        for port in &mut interface.ports {
            port.protocol.get_or_insert(PortProtocol::Tcp);
        }
    }
}

fn disks(vmi: &mut VirtualMachineInstance) {
    let spec = &mut vmi.spec;
    let disks = &mut spec.domain.devices.disks;
    // A volume that no disk shows is shown as one: nothing else could use it.
    for volume in &spec.volumes {
        if !disks.iter().any(|d| d.name == volume.name) {
            disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
        }
    }
    for disk in disks {
        if let Some(CdRomTarget { bus, readonly, tray }) = &mut disk.cdrom {
            bus.get_or_insert(DiskBus::Sata);
            readonly.get_or_insert(true);
            tray.get_or_insert(TrayState::Closed);
        } else {
            disk.disk.get_or_insert_with(DiskTarget::default).bus.get_or_insert(DiskBus::Sata);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(text: &str) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::from_yaml(text).unwrap();
        set_defaults(&mut vmi);
        let mut again = vmi.clone();
        set_defaults(&mut again);
        assert_eq!(vmi, again, "defaults are idempotent");
        vmi
    }

    const HEAD: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n";

    #[test]
    fn a_bare_machine_gets_upstreams_defaults_and_the_pod_network() {
        let vmi = defaulted(&format!(
            "{HEAD}metadata: {{name: vm.example}}\nspec: {{domain: {{memory: {{guest: 64Mi}}}}}}"
        ));
        assert_eq!(vmi.spec.termination_grace_period_seconds, Some(30));
        assert_eq!(vmi.full_name(), "default/vm.example");
        assert_eq!(vmi.spec.hostname, "vm");
        let domain = &vmi.spec.domain;
        assert_eq!(domain.machine.as_ref().unwrap().kind, "q35");
        assert_eq!(domain.cpu.as_ref().unwrap().count(), 1);
        let interface = &domain.devices.interfaces[0];
        assert_eq!((interface.name.as_str(), interface.model.as_str()), ("default", "virtio"));
        assert!(interface.passt_binding.is_some());
        assert!(vmi.network_of(interface).unwrap().pod.is_some());
        assert!(interface.mac_address.parse::<MacAddr>().unwrap().is_usable());
    }

    #[test]
    fn addresses_and_uuid_follow_the_identity() {
        let make = |name: &str| {
            defaulted(&format!("{HEAD}metadata: {{name: {name}}}\nspec: {{domain: {{}}}}")).spec.domain
        };
        let (a, b) = (make("a"), make("b"));
        assert_eq!(a, make("a"));
        assert_ne!(a.devices.interfaces[0].mac_address, b.devices.interfaces[0].mac_address);
        assert_ne!(a.firmware.as_ref().unwrap().uuid, b.firmware.unwrap().uuid);
        assert_eq!(a.firmware.unwrap().uuid.len(), 36);
    }

    #[test]
    fn resources_give_what_memory_and_cpu_leave_open() {
        let vmi = defaulted(&format!(
            "{HEAD}metadata: {{name: a}}\nspec: {{domain: {{resources: {{requests: {{memory: 1Gi, cpu: 1500m}}}}}}}}"
        ));
        let domain = vmi.spec.domain;
        assert_eq!(domain.memory.unwrap().guest.unwrap().value(), 1 << 30);
        assert_eq!(domain.cpu.unwrap().sockets, 2);
    }

    #[test]
    fn no_interface_is_added_when_the_manifest_says_so_or_names_networks() {
        for devices in ["{autoattachPodInterface: false}", "{interfaces: [{name: n}]}"] {
            let vmi =
                defaulted(&format!("{HEAD}metadata: {{name: a}}\nspec: {{domain: {{devices: {devices}}}}}"));
            assert!(vmi.spec.networks.is_empty(), "{devices}");
        }
    }

    #[test]
    fn a_volume_without_a_disk_becomes_a_sata_disk() {
        let vmi = defaulted(&format!(
            "{HEAD}metadata: {{name: a}}\nspec: {{domain: {{}}, volumes: [{{name: v, emptyDisk: {{capacity: 1Gi}}}}]}}"
        ));
        let disk = &vmi.spec.domain.devices.disks[0];
        assert_eq!(disk.name, "v");
        assert_eq!(disk.disk.as_ref().unwrap().bus, Some(DiskBus::Sata));
    }
}
