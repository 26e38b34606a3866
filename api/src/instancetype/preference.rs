//! Preferences: what they fill in where the template is silent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::v1::{
    Clock, Cpu, DevicePreferences, Devices, Disk, DiskTarget, DomainSpec, Efi, FeatureHyperv, Features,
    FirmwarePreferences, Interface, Machine, Network, VirtualMachineInstanceSpec,
    VirtualMachinePreferenceSpec,
};

use super::is_open;

/// Fills in what `preference` says and the machine's specification and annotations leave open.
pub fn prefer(
    preference: &VirtualMachinePreferenceSpec,
    spec: &mut VirtualMachineInstanceSpec,
    metadata: &mut ObjectMeta,
) {
    cpu_features(preference, &mut spec.domain);
    if let Some(devices) = &preference.devices {
        prefer_devices(devices, spec);
    }
    features(preference, &mut spec.domain);
    if let Some(firmware) = &preference.firmware {
        bootloader(firmware, &mut spec.domain);
    }
    prefer_machine(preference, spec);
    clock(preference, &mut spec.domain);
    fill_text(&mut spec.subdomain, preference.preferred_subdomain.as_ref());
    fill(
        &mut spec.termination_grace_period_seconds,
        preference.preferred_termination_grace_period_seconds.as_ref(),
    );
    prefer_architecture(preference, spec);
    if !preference.annotations.is_empty() {
        let there = metadata.annotations.get_or_insert_default();
        for (key, value) in &preference.annotations {
            there.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Fills in the architecture. It is also set in the VirtualMachine itself, before the cluster's.
pub fn prefer_architecture(preference: &VirtualMachinePreferenceSpec, spec: &mut VirtualMachineInstanceSpec) {
    fill_text(&mut spec.architecture, preference.preferred_architecture.as_ref());
}

/// Fills in the machine type. It is also set in the VirtualMachine itself, before the cluster's.
pub fn prefer_machine(preference: &VirtualMachinePreferenceSpec, spec: &mut VirtualMachineInstanceSpec) {
    let preferred = preference.machine.as_ref().and_then(|machine| machine.preferred_machine_type.as_ref());
    if let Some(preferred) = preferred.filter(|preferred| !preferred.is_empty()) {
        let machine = spec.domain.machine.get_or_insert_with(Machine::default);
        fill_text(&mut machine.r#type, Some(preferred));
    }
}

/// Sets what is not set.
fn fill<T: Clone>(into: &mut Option<T>, value: Option<&T>) {
    if into.is_none() {
        *into = value.cloned();
    }
}

/// Sets a text that is not set or says nothing.
fn fill_text(into: &mut Option<String>, value: Option<&String>) {
    if is_open(into.as_deref())
        && let Some(value) = value.filter(|value| !value.is_empty())
    {
        *into = Some(value.clone());
    }
}

/// Sets a word that is not set or says nothing.
macro_rules! fill_word {
    ($into:expr, $value:expr) => {
        if $into.as_ref().is_none_or(|word| word.is_empty())
            && let Some(value) = $value.as_ref().filter(|word| !word.is_empty())
        {
            $into = Some(value.clone());
        }
    };
}

fn cpu_features(preference: &VirtualMachinePreferenceSpec, domain: &mut DomainSpec) {
    let preferred = preference.cpu.as_ref().map_or(&[][..], |cpu| &cpu.preferred_cpu_features);
    if preferred.is_empty() {
        return;
    }
    let there = &mut domain.cpu.get_or_insert_with(Cpu::default).features;
    for feature in preferred {
        if there.iter().all(|known| known.name != feature.name) {
            there.push(feature.clone());
        }
    }
}

/// Fills in which devices come by themselves; to be done before they do.
pub(super) fn autoattach(preferred: &DevicePreferences, devices: &mut Devices) {
    for (into, value) in [
        (&mut devices.autoattach_graphics_device, preferred.preferred_autoattach_graphics_device),
        (&mut devices.autoattach_mem_balloon, preferred.preferred_autoattach_mem_balloon),
        (&mut devices.autoattach_pod_interface, preferred.preferred_autoattach_pod_interface),
        (&mut devices.autoattach_serial_console, preferred.preferred_autoattach_serial_console),
        (&mut devices.autoattach_input_device, preferred.preferred_autoattach_input_device),
    ] {
        fill(into, value.as_ref());
    }
}

fn prefer_devices(preferred: &DevicePreferences, spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    fill(&mut devices.use_virtio_transitional, preferred.preferred_use_virtio_transitional.as_ref());
    fill(&mut devices.block_multi_queue, preferred.preferred_block_multi_queue.as_ref());
    fill(
        &mut devices.network_interface_multiqueue,
        preferred.preferred_network_interface_multi_queue.as_ref(),
    );
    // Upstream's field tells a false from one that is not set as little as this does: the preference goes before it.
    if let Some(disabled) = preferred.preferred_disable_hotplug {
        devices.disable_hotplug = disabled.then_some(true);
    }
    if let Some(sound) = &mut devices.sound {
        fill_text(&mut sound.model, preferred.preferred_sound_model.as_ref());
    }
    fill(&mut devices.rng, preferred.preferred_rng.as_ref());
    fill(&mut devices.tpm, preferred.preferred_tpm.as_ref());
    autoattach(preferred, devices);
    devices.disks.iter_mut().for_each(|disk| prefer_disk(preferred, disk));
    let networks = &spec.networks;
    devices.interfaces.iter_mut().for_each(|interface| prefer_interface(preferred, interface, networks));
    for input in &mut devices.inputs {
        fill_word!(input.bus, preferred.preferred_input_bus);
        if input.r#type.is_empty()
            && let Some(kind) = &preferred.preferred_input_type
        {
            input.r#type = kind.clone();
        }
    }
    for device in &mut devices.panic_devices {
        fill(&mut device.model, preferred.preferred_panic_device_model.as_ref());
    }
}

fn prefer_disk(preferred: &DevicePreferences, disk: &mut Disk) {
    if let Some(target) = &mut disk.cdrom {
        fill_word!(target.bus, preferred.preferred_cdrom_bus);
        return;
    }
    if let Some(target) = &mut disk.lun {
        fill_word!(target.bus, preferred.preferred_lun_bus);
        return;
    }
    let target = disk.disk.get_or_insert_with(DiskTarget::default);
    fill_word!(target.bus, preferred.preferred_disk_bus);
    let is_virtio = target.bus.as_ref().is_some_and(|bus| bus.as_str() == "virtio");
    fill(&mut disk.block_size, preferred.preferred_disk_block_size.as_ref());
    fill_word!(disk.cache, preferred.preferred_disk_cache);
    fill_word!(disk.io, preferred.preferred_disk_io);
    if is_virtio {
        fill(&mut disk.dedicated_iothread, preferred.preferred_disk_dedicated_io_thread.as_ref());
    }
}

fn prefer_interface(preferred: &DevicePreferences, interface: &mut Interface, networks: &[Network]) {
    fill_text(&mut interface.model, preferred.preferred_interface_model.as_ref());
    let is_bound = interface.bridge.is_some()
        || interface.slirp.is_some()
        || interface.masquerade.is_some()
        || interface.sriov.is_some()
        || interface.macvtap.is_some()
        || interface.passt.is_some()
        || interface.passt_binding.is_some()
        || interface.binding.is_some();
    let of_pod =
        networks.iter().find(|network| network.name == interface.name).is_some_and(|n| n.pod.is_some());
    if !is_bound && of_pod {
        fill(&mut interface.masquerade, preferred.preferred_interface_masquerade.as_ref());
    }
}

fn features(preference: &VirtualMachinePreferenceSpec, domain: &mut DomainSpec) {
    let Some(preferred) = &preference.features else { return };
    let there = domain.features.get_or_insert_with(Features::default);
    // As upstream, which cannot tell one that is not set: the preference goes before the template.
    if preferred.preferred_acpi.is_some() {
        there.acpi.clone_from(&preferred.preferred_acpi);
    }
    fill(&mut there.apic, preferred.preferred_apic.as_ref());
    fill(&mut there.kvm, preferred.preferred_kvm.as_ref());
    fill(&mut there.pvspinlock, preferred.preferred_pvspinlock.as_ref());
    fill(&mut there.smm, preferred.preferred_smm.as_ref());
    if let Some(preferred) = &preferred.preferred_hyperv {
        hyperv(preferred, there.hyperv.get_or_insert_with(FeatureHyperv::default));
    }
}

fn hyperv(preferred: &FeatureHyperv, there: &mut FeatureHyperv) {
    macro_rules! each {
        ($($field:ident)*) => { $( fill(&mut there.$field, preferred.$field.as_ref()); )* };
    }
    each!(evmcs frequencies ipi reenlightenment relaxed reset runtime spinlocks synic synictimer tlbflush vapic vpindex vendorid);
}

fn bootloader(preferred: &FirmwarePreferences, domain: &mut DomainSpec) {
    let there = domain.firmware.get_or_insert_default().bootloader.get_or_insert_default();
    if preferred.preferred_use_bios == Some(true) && there.bios.is_none() && there.efi.is_none() {
        there.bios = Some(crate::v1::Bios::default());
    }
    if let Some(bios) = &mut there.bios {
        fill(&mut bios.use_serial, preferred.preferred_use_bios_serial.as_ref());
    }
    if there.bios.is_none() && there.efi.is_none() {
        if preferred.preferred_efi.is_some() {
            there.efi.clone_from(&preferred.preferred_efi);
            return;
        }
        if preferred.preferred_use_efi == Some(true) {
            there.efi = Some(Efi::default());
        }
    }
    if let Some(efi) = &mut there.efi {
        fill(&mut efi.secure_boot, preferred.preferred_use_secure_boot.as_ref());
    }
}

fn clock(preference: &VirtualMachinePreferenceSpec, domain: &mut DomainSpec) {
    let Some(preferred) = &preference.clock else { return };
    let there = domain.clock.get_or_insert_with(Clock::default);
    // An offset is one of the two: half of a preference must not join half of a template.
    if let Some(offset) = &preferred.preferred_clock_offset
        && there.utc.is_none()
        && there.timezone.is_none()
    {
        there.utc.clone_from(&offset.utc);
        there.timezone.clone_from(&offset.timezone);
    }
    fill(&mut there.timer, preferred.preferred_timer.as_ref());
}
