//! What holds when a manifest is silent; upstream's defaults, except where podvirt has another binding.
//!
//! Setting defaults twice changes nothing, and a default never replaces what the manifest says. Addresses and
//! identities are made from namespace, name and uid, so that they are the same at every start.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::mac::{MacAddr, hash64};
use crate::quantity::Quantity;
use crate::v1;
use crate::vmi::{
    CdRomTarget, Cpu, CpuFeaturePolicy, DEFAULT_GRACE_PERIOD_SECONDS, Disk, DiskBus, DiskTarget, DnsPolicy,
    DomainSpec, FeatureState, Features, Firmware, I6300EsbWatchdog, InputBus, InputKind, Interface,
    InterfaceBridge, InterfaceMasquerade, InterfacePasstBinding, InterfaceState, MAX_VCPUS, Machine, Memory,
    Network, PodNetwork, PortProtocol, RebootPolicy, TrayState, VirtualMachineInstance,
    VirtualMachineInstanceSpec, Volume, WatchdogAction,
};

/// Name of the interface and network that a manifest without any gets.
pub const DEFAULT_NETWORK_NAME: &str = "default";

/// How an interface is bound to the pod's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The guest has the pod's addresses.
    #[default]
    Passt,
    /// The guest has addresses of its own, behind the pod's.
    Masquerade,
    /// The guest has the pod's place on the pod's network.
    Bridge,
}

/// What holds for machines that say nothing; a cluster's administrator may choose otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Binding of interfaces that name none.
    pub binding: Binding,
    /// Machine type.
    pub machine_type: String,
    /// Processor model; empty leaves it open.
    pub cpu_model: String,
    /// Whether the serial console is logged.
    pub log_serial_console: bool,
}

impl Default for Choices {
    fn default() -> Self {
        Choices {
            binding: Binding::Passt,
            machine_type: "q35".into(),
            cpu_model: String::new(),
            log_serial_console: true,
        }
    }
}

impl Choices {
    /// What a KubeVirt object says; what it leaves open is podvirt's choice.
    pub fn of(config: &v1::KubeVirtConfiguration) -> Self {
        let default = Choices::default();
        let network = config.network.as_ref().and_then(|n| n.default_network_interface.as_deref());
        let amd64 = config.architecture_configuration.as_ref().and_then(|a| a.amd64.as_ref());
        let machine_type = amd64.and_then(|a| a.machine_type.as_ref()).or(config.machine_type.as_ref());
        let options = config.virtual_machine_options.as_ref();
        Choices {
            binding: match network {
                Some("masquerade") => Binding::Masquerade,
                Some("bridge") => Binding::Bridge,
                _ => Binding::Passt,
            },
            machine_type: machine_type.filter(|m| !m.is_empty()).cloned().unwrap_or(default.machine_type),
            cpu_model: config.cpu_model.clone().unwrap_or_default(),
            log_serial_console: options.is_none_or(|o| o.disable_serial_console_log.is_none()),
        }
    }
}

/// Sets everything that the manifest leaves open, as it holds without a cluster.
pub fn set_defaults(vmi: &mut VirtualMachineInstance) {
    set_defaults_with(vmi, &Choices::default());
}

/// Sets everything that the manifest leaves open, as it holds in a cluster with these choices.
pub fn set_defaults_with(vmi: &mut VirtualMachineInstance, choices: &Choices) {
    fill(vmi, choices);
    identify(vmi);
}

/// Sets what does not depend on the machine's identity.
pub(crate) fn fill(vmi: &mut VirtualMachineInstance, choices: &Choices) {
    let spec = &mut vmi.spec;
    spec.termination_grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
    spec.dns_policy.get_or_insert(DnsPolicy::ClusterFirst);
    if spec.architecture.is_empty() {
        "amd64".clone_into(&mut spec.architecture);
    }
    machine(&mut spec.domain, choices);
    network(spec, choices);
    disks(vmi);
}

/// Sets what is made from names and identity: addresses, UUID, host name.
fn identify(vmi: &mut VirtualMachineInstance) {
    let meta = &mut vmi.metadata;
    if meta.namespace.is_empty() {
        "default".clone_into(&mut meta.namespace);
    }
    let (meta, spec) = (&vmi.metadata, &mut vmi.spec);
    if spec.hostname.is_empty() {
        spec.hostname = host_name(&meta.name);
    }
    let identity = [meta.namespace.as_str(), meta.name.as_str(), meta.lasting_uid()];
    let firmware = spec.domain.firmware.get_or_insert_with(Firmware::default);
    if firmware.uuid.is_empty() {
        firmware.uuid = uuid(&identity);
    } else if firmware.uuid.len() == 32 && firmware.uuid.is_ascii() {
        firmware.uuid = with_dashes(&firmware.uuid);
    }
    // Devices are found by their names.
    for (n, input) in spec.domain.devices.inputs.iter_mut().enumerate().filter(|(_, i)| i.name.is_empty()) {
        input.name = format!("input-{n}");
    }
    if let Some(watchdog) = spec.domain.devices.watchdog.as_mut().filter(|w| w.name.is_empty()) {
        "watchdog".clone_into(&mut watchdog.name);
    }
    for volume in &mut spec.volumes {
        for source in
            [&mut volume.cloud_init_no_cloud, &mut volume.cloud_init_config_drive].into_iter().flatten()
        {
            for secret in [&mut source.secret_ref, &mut source.network_data_secret_ref] {
                secret.take_if(|secret| secret.name.is_empty());
            }
        }
    }
    for interface in &mut spec.domain.devices.interfaces {
        if interface.mac_address.is_empty() {
            let words = [&identity[..], &[interface.name.as_str()]].concat();
            interface.mac_address = MacAddr::derived(&words).to_string();
        } else if let Ok(mac) = interface.mac_address.parse::<MacAddr>() {
            // One spelling of all that are allowed.
            interface.mac_address = mac.to_string();
        }
    }
}

/// A UUID's 32 digits in the form that QEMU reads.
fn with_dashes(digits: &str) -> String {
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

/// The longest host name that a VM's name gives: up to its first dot, at most 63 letters (RFC 1035, 2.3.4).
fn host_name(name: &str) -> String {
    let label: String = name.split('.').next().unwrap_or_default().chars().take(63).collect();
    label.trim_end_matches('-').to_owned()
}

fn machine(domain: &mut DomainSpec, choices: &Choices) {
    let machine = domain.machine.get_or_insert_with(Machine::default);
    if machine.kind.is_empty() {
        choices.machine_type.clone_into(&mut machine.kind);
    }

    // Only a CPU count that the manifest gives nowhere else comes from the resources, as sockets.
    let resources = &domain.resources;
    let from_resources = resources.limits.get("cpu").or_else(|| resources.requests.get("cpu"));
    let cpu = domain.cpu.get_or_insert_with(Cpu::default);
    if cpu.cores == 0 && cpu.sockets == 0 && cpu.threads == 0 {
        // More processors than a machine can have are not refused here, as upstream does not refuse them: the scheduler finds no
        // node for the pod and says so.
        cpu.sockets =
            from_resources.map_or(1, |q| u32::try_from(q.value()).unwrap_or(MAX_VCPUS)).clamp(1, MAX_VCPUS);
    }
    for count in [&mut cpu.cores, &mut cpu.sockets, &mut cpu.threads] {
        *count = (*count).max(1);
    }
    if cpu.model.is_empty() {
        choices.cpu_model.clone_into(&mut cpu.model);
    }
    for feature in &mut cpu.features {
        feature.policy.get_or_insert(CpuFeaturePolicy::Require);
    }

    let memory = domain.memory.get_or_insert_with(Memory::default);
    if memory.guest.is_none() {
        // An amount of nothing says nothing.
        let some = |map: &BTreeMap<String, Quantity>| map.get("memory").filter(|q| q.is_positive()).cloned();
        memory.guest = some(&resources.requests).or_else(|| some(&resources.limits));
    }

    let features = domain.features.get_or_insert_with(Features::default);
    features.acpi.get_or_insert_with(FeatureState::default).enabled.get_or_insert(true);
    domain.reboot_policy.get_or_insert(RebootPolicy::Reboot);

    let devices = &mut domain.devices;
    for on in [
        &mut devices.autoattach_pod_interface,
        &mut devices.autoattach_graphics_device,
        &mut devices.autoattach_serial_console,
        &mut devices.autoattach_mem_balloon,
    ] {
        on.get_or_insert(true);
    }
    devices.log_serial_console.get_or_insert(choices.log_serial_console);
    for input in &mut devices.inputs {
        input.bus.get_or_insert(InputBus::Usb);
        input.kind.get_or_insert(InputKind::Tablet);
    }
    if let Some(watchdog) = &mut devices.watchdog {
        let model = watchdog.i6300esb.get_or_insert_with(I6300EsbWatchdog::default);
        model.action.get_or_insert(WatchdogAction::Reset);
    }
}

/// A UUID of version 8 (RFC 9562, section 5.8) from `words`.
pub fn uuid(words: &[&str]) -> String {
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

fn network(spec: &mut VirtualMachineInstanceSpec, choices: &Choices) {
    let devices = &mut spec.domain.devices;
    let attach = devices.autoattach_pod_interface.unwrap_or(true);
    if attach && devices.interfaces.is_empty() && spec.networks.is_empty() {
        let name = DEFAULT_NETWORK_NAME.to_owned();
        devices.interfaces.push(Interface { name: name.clone(), ..Interface::default() });
        spec.networks.push(Network { name, pod: Some(PodNetwork::default()), multus: None });
    }
    for interface in &mut devices.interfaces {
        let unbound = interface.passt_binding.is_none()
            && interface.masquerade.is_none()
            && interface.bridge.is_none()
            && interface.sriov.is_none()
            && interface.binding.is_none();
        if unbound {
            // The addresses behind a secondary network are the machine's own.
            let of_pod = spec.networks.iter().any(|n| n.name == interface.name && n.pod.is_some());
            match choices.binding {
                _ if !of_pod => interface.passt_binding = Some(InterfacePasstBinding {}),
                Binding::Passt => interface.passt_binding = Some(InterfacePasstBinding {}),
                Binding::Masquerade => interface.masquerade = Some(InterfaceMasquerade {}),
                Binding::Bridge => interface.bridge = Some(InterfaceBridge {}),
            }
        }
        // The link of a device of the node is the device's own.
        if interface.sriov.is_none() {
            interface.state.get_or_insert(InterfaceState::Up);
        }
        if interface.model.is_empty() {
            crate::model::VIRTIO.clone_into(&mut interface.model);
        }
        for port in &mut interface.ports {
            port.protocol.get_or_insert(PortProtocol::Tcp);
        }
    }
}

fn disks(vmi: &mut VirtualMachineInstance) {
    let spec = &mut vmi.spec;
    let devices = &mut spec.domain.devices;
    let (disks, filesystems) = (&mut devices.disks, &devices.filesystems);
    // A volume that nothing shows is shown as a disk: nothing else could use it. A memory dump's is for no guest.
    let shown = disks.iter().map(|disk| &disk.name).chain(filesystems.iter().map(|system| &system.name));
    let mut shown: HashSet<String> = shown.cloned().collect();
    for volume in spec.volumes.iter().filter(|volume| volume.memory_dump.is_none()) {
        if shown.insert(volume.name.clone()) {
            disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
        }
    }
    // The first of a name counts.
    let volumes: HashMap<&str, &Volume> =
        spec.volumes.iter().rev().map(|volume| (volume.name.as_str(), volume)).collect();
    for disk in disks {
        let bus = match volumes.get(disk.name.as_str()) {
            Some(volume) if volume.downward_metrics.is_some() => DiskBus::Virtio,
            // SATA takes no disk while the machine runs.
            Some(volume) if volume.is_hotpluggable() => DiskBus::Scsi,
            _ => DiskBus::Sata,
        };
        if let Some(CdRomTarget { bus, readonly, tray }) = &mut disk.cdrom {
            bus.get_or_insert(DiskBus::Sata);
            readonly.get_or_insert(true);
            tray.get_or_insert(TrayState::Closed);
        } else if let Some(lun) = &mut disk.lun {
            lun.bus.get_or_insert(DiskBus::Sata);
        } else {
            disk.disk.get_or_insert_with(DiskTarget::default).bus.get_or_insert(bus);
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
    fn a_virtual_machines_addresses_outlive_its_instances() {
        let make = |uid: &str| {
            let mut vmi = VirtualMachineInstance::from_value(serde_json::json!({
                "metadata": {"name": "a", "uid": uid, "ownerReferences": [{"kind": "VirtualMachine", "uid": "v"}]},
            }))
            .unwrap();
            set_defaults(&mut vmi);
            vmi.spec
        };
        assert_eq!(make("first"), make("second"));
    }

    #[test]
    fn a_clusters_choices_hold_where_the_manifest_is_silent() {
        let config: v1::KubeVirtConfiguration = serde_json::from_value(serde_json::json!({
            "cpuModel": "Haswell",
            "machineType": "pc-q35-9.0",
            "network": {"defaultNetworkInterface": "masquerade"},
            "architectureConfiguration": {"amd64": {"machineType": "pc-q35-10.0"}},
            "virtualMachineOptions": {"disableSerialConsoleLog": {}},
        }))
        .unwrap();
        let mut vmi = VirtualMachineInstance::from_yaml(&format!("{HEAD}metadata: {{name: a}}")).unwrap();
        set_defaults_with(&mut vmi, &Choices::of(&config));
        let domain = vmi.spec.domain;
        assert_eq!(domain.machine.unwrap().kind, "pc-q35-10.0");
        assert_eq!(domain.cpu.unwrap().model, "Haswell");
        assert_eq!(domain.devices.log_serial_console, Some(false));
        let interface = &domain.devices.interfaces[0];
        assert!(interface.masquerade.is_some() && interface.passt_binding.is_none());
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
        let text = "{metadata: {name: a}, spec: {domain: {devices: {}}, volumes: [{name: v, \
                    persistentVolumeClaim: {claimName: c, hotpluggable: true}}]}}";
        let mut vmi: VirtualMachineInstance = serde_saphyr::from_str(text).unwrap();
        set_defaults(&mut vmi);
        let bus = vmi.spec.domain.devices.disks[0].disk.as_ref().unwrap().bus;
        assert_eq!(bus, Some(DiskBus::Scsi), "it comes while the machine runs");
        let mut vmi = VirtualMachineInstance::default();
        let source = Some(Default::default());
        vmi.spec.volumes.push(crate::vmi::Volume {
            name: "v".into(),
            memory_dump: source,
            ..Default::default()
        });
        set_defaults(&mut vmi);
        assert!(vmi.spec.domain.devices.disks.is_empty(), "a memory dump is no disk");
    }
}
