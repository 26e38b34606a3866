//! Disks, boot order, inputs, watchdog.

use std::collections::{BTreeMap, BTreeSet};

use crate::problem::{Problems, Reason};
use crate::vmi::{DiskBus, VirtualMachineInstance};

use super::{is_dns_label, is_pci_address, is_plain_serial, options};

const DEVICES: &str = "spec.domain.devices";

pub(super) fn check(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    disks(vmi, problems);
    options::threads(vmi, problems);
    boot_order(vmi, problems);
    others(vmi, problems);
}

fn disks(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let mut seen = BTreeMap::new();
    for (n, disk) in vmi.spec.domain.devices.disks.iter().enumerate() {
        let path = format!("{DEVICES}.disks[{n}]");
        if !is_dns_label(&disk.name) {
            problems.invalid(
                format!("{path}.name"),
                &disk.name,
                "at most 63 of a-z, 0-9 and '-' are allowed",
            );
        }
        if let Some(other) = seen.insert(&disk.name, n) {
            problems.duplicate(format!("{path}.name"), &disk.name, &format!("{DEVICES}.disks[{other}].name"));
        }
        // A CD-ROM drive may be empty.
        if vmi.volume_of(disk).is_none() && disk.cdrom.is_none() {
            problems.add(
                Reason::FieldValueNotFound,
                format!("{path}.name"),
                format!("'{}' is not the name of a volume in spec.volumes", disk.name),
            );
        }
        let targets = [disk.disk.is_some(), disk.cdrom.is_some(), disk.lun.is_some()];
        if targets.into_iter().filter(|given| *given).count() > 1 {
            problems.add(
                Reason::FieldValueInvalid,
                path.clone(),
                "only one of disk, cdrom and lun is allowed",
            );
        }
        options::check(vmi, disk, &path, problems);
        if disk.cdrom.as_ref().is_some_and(|c| c.readonly == Some(false)) {
            problems.invalid(
                format!("{path}.cdrom.readonly"),
                false,
                "a CD-ROM is read-only: true is allowed",
            );
        }
        if disk.disk.as_ref().is_some_and(|d| d.bus == Some(DiskBus::Sata) && d.readonly) {
            problems.invalid(
                format!("{path}.disk.readonly"),
                true,
                "a disk on the SATA bus can be written: the buses virtio and scsi, and a CD-ROM, are read-only where asked",
            );
        }
        if let Some(target) = &disk.disk
            && !target.pci_address.is_empty()
        {
            let field = format!("{path}.disk.pciAddress");
            if !is_pci_address(&target.pci_address) {
                problems.invalid(field, &target.pci_address, "an address as in '0000:02:00.0' is allowed");
            } else if target.bus != Some(DiskBus::Virtio) {
                problems.invalid(field, &target.pci_address, "only a disk on the virtio bus can have one");
            }
        }
        if !is_plain_serial(&disk.serial) {
            problems.invalid(
                format!("{path}.serial"),
                &disk.serial,
                "at most 256 letters, digits, '_', '.', '+' and '-' are allowed",
            );
        }
    }
}

fn boot_order(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let devices = &vmi.spec.domain.devices;
    let disks =
        devices.disks.iter().enumerate().map(|(n, d)| (format!("{DEVICES}.disks[{n}]"), d.boot_order));
    let interfaces = devices
        .interfaces
        .iter()
        .enumerate()
        .map(|(n, i)| (format!("{DEVICES}.interfaces[{n}]"), i.boot_order));
    let mut seen: BTreeMap<u32, String> = BTreeMap::new();
    for (path, order) in disks.chain(interfaces) {
        let Some(order) = order else { continue };
        let field = format!("{path}.bootOrder");
        match seen.get(&order) {
            Some(other) => problems.duplicate(field, order, other),
            None => {
                seen.insert(order, field);
            }
        }
    }
}

fn others(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let devices = &vmi.spec.domain.devices;
    let mut names = BTreeSet::new();
    for (n, input) in devices.inputs.iter().enumerate() {
        let path = format!("{DEVICES}.inputs[{n}]");
        if !input.name.is_empty() && !names.insert(&input.name) {
            problems.duplicate(format!("{path}.name"), &input.name, "another input device's name");
        }
    }
    if devices.video.is_some() && devices.autoattach_graphics_device == Some(false) {
        problems.add(
            Reason::FieldValueInvalid,
            format!("{DEVICES}.video"),
            "autoattachGraphicsDevice is off: a graphics card is not allowed",
        );
    }
}
