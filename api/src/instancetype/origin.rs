//! Which field of an instance type or a preference has set a field of the machine.
//!
//! A machine is judged with both applied to it. What is wrong then stands at a path of the template, where its owner finds
//! nothing: this table leads from there to the field that asks.

use serde::Serialize;
use serde_json::Value;

use super::Specs;
use super::matcher::Subject;
use Subject::{Instancetype, Preference};

/// Path of the machine, without indices; whose field sets it; that field. The first that fits and is set holds.
#[rustfmt::skip] // One row a line.
const ORIGINS: &[(&str, Subject, &str)] = &[
    ("spec.nodeSelector", Instancetype, "spec.nodeSelector"),
    ("spec.schedulerName", Instancetype, "spec.schedulerName"),
    ("spec.domain.cpu.model", Instancetype, "spec.cpu.model"),
    ("spec.domain.cpu.dedicatedCpuPlacement", Instancetype, "spec.cpu.dedicatedCPUPlacement"),
    ("spec.domain.cpu.isolateEmulatorThread", Instancetype, "spec.cpu.isolateEmulatorThread"),
    ("spec.domain.cpu.numa", Instancetype, "spec.cpu.numa"),
    ("spec.domain.cpu.realtime", Instancetype, "spec.cpu.realtime"),
    ("spec.domain.cpu.maxSockets", Instancetype, "spec.cpu.maxSockets"),
    ("spec.domain.cpu.features", Preference, "spec.cpu.preferredCPUFeatures"),
    ("spec.domain.cpu", Instancetype, "spec.cpu.guest"),
    ("spec.domain.memory.hugepages", Instancetype, "spec.memory.hugepages"),
    ("spec.domain.memory.maxGuest", Instancetype, "spec.memory.maxGuest"),
    ("spec.domain.memory", Instancetype, "spec.memory.guest"),
    ("spec.domain.resources.requests.memory", Instancetype, "spec.memory.overcommitPercent"),
    ("spec.domain.devices.gpus", Instancetype, "spec.gpus"),
    ("spec.domain.devices.hostDevices", Instancetype, "spec.hostDevices"),
    ("spec.domain.ioThreadsPolicy", Instancetype, "spec.ioThreadsPolicy"),
    ("spec.domain.ioThreads", Instancetype, "spec.ioThreads"),
    ("spec.domain.launchSecurity", Instancetype, "spec.launchSecurity"),
    ("metadata.annotations", Instancetype, "spec.annotations"),
    ("metadata.annotations", Preference, "spec.annotations"),
    ("spec.architecture", Preference, "spec.preferredArchitecture"),
    ("spec.subdomain", Preference, "spec.preferredSubdomain"),
    ("spec.terminationGracePeriodSeconds", Preference, "spec.preferredTerminationGracePeriodSeconds"),
    ("spec.domain.machine.type", Preference, "spec.machine.preferredMachineType"),
    ("spec.domain.clock.timer", Preference, "spec.clock.preferredTimer"),
    ("spec.domain.clock", Preference, "spec.clock.preferredClockOffset"),
    ("spec.domain.features.acpi", Preference, "spec.features.preferredAcpi"),
    ("spec.domain.features.apic", Preference, "spec.features.preferredApic"),
    ("spec.domain.features.hyperv", Preference, "spec.features.preferredHyperv"),
    ("spec.domain.features.kvm", Preference, "spec.features.preferredKvm"),
    ("spec.domain.features.pvspinlock", Preference, "spec.features.preferredPvspinlock"),
    ("spec.domain.features.smm", Preference, "spec.features.preferredSmm"),
    ("spec.domain.firmware.bootloader.bios.useSerial", Preference, "spec.firmware.preferredUseBiosSerial"),
    ("spec.domain.firmware.bootloader.bios", Preference, "spec.firmware.preferredUseBios"),
    ("spec.domain.firmware.bootloader.efi", Preference, "spec.firmware.preferredEfi"),
    ("spec.domain.firmware.bootloader.efi", Preference, "spec.firmware.preferredUseEfi"),
    ("spec.domain.devices.useVirtioTransitional", Preference, "spec.devices.preferredUseVirtioTransitional"),
    ("spec.domain.devices.blockMultiQueue", Preference, "spec.devices.preferredBlockMultiQueue"),
    ("spec.domain.devices.networkInterfaceMultiqueue", Preference, "spec.devices.preferredNetworkInterfaceMultiQueue"),
    ("spec.domain.devices.disableHotplug", Preference, "spec.devices.preferredDisableHotplug"),
    ("spec.domain.devices.sound.model", Preference, "spec.devices.preferredSoundModel"),
    ("spec.domain.devices.rng", Preference, "spec.devices.preferredRng"),
    ("spec.domain.devices.tpm", Preference, "spec.devices.preferredTPM"),
    ("spec.domain.devices.autoattachGraphicsDevice", Preference, "spec.devices.preferredAutoattachGraphicsDevice"),
    ("spec.domain.devices.autoattachMemBalloon", Preference, "spec.devices.preferredAutoattachMemBalloon"),
    ("spec.domain.devices.autoattachPodInterface", Preference, "spec.devices.preferredAutoattachPodInterface"),
    ("spec.domain.devices.autoattachSerialConsole", Preference, "spec.devices.preferredAutoattachSerialConsole"),
    ("spec.domain.devices.autoattachInputDevice", Preference, "spec.devices.preferredAutoattachInputDevice"),
    ("spec.domain.devices.disks.disk.bus", Preference, "spec.devices.preferredDiskBus"),
    ("spec.domain.devices.disks.lun.bus", Preference, "spec.devices.preferredLunBus"),
    ("spec.domain.devices.disks.cdrom.bus", Preference, "spec.devices.preferredCdromBus"),
    ("spec.domain.devices.disks.blockSize", Preference, "spec.devices.preferredDiskBlockSize"),
    ("spec.domain.devices.disks.cache", Preference, "spec.devices.preferredDiskCache"),
    ("spec.domain.devices.disks.io", Preference, "spec.devices.preferredDiskIO"),
    ("spec.domain.devices.disks.dedicatedIOThread", Preference, "spec.devices.preferredDiskDedicatedIoThread"),
    ("spec.domain.devices.interfaces.model", Preference, "spec.devices.preferredInterfaceModel"),
    ("spec.domain.devices.interfaces.masquerade", Preference, "spec.devices.preferredInterfaceMasquerade"),
    ("spec.domain.devices.inputs.bus", Preference, "spec.devices.preferredInputBus"),
    ("spec.domain.devices.inputs.type", Preference, "spec.devices.preferredInputType"),
    ("spec.domain.devices.panicDevices.model", Preference, "spec.devices.preferredPanicDeviceModel"),
];

/// Instance type and preference, to be searched for what has set a field.
#[derive(Clone, Debug)]
pub struct Origins {
    instancetype: Value,
    preference: Value,
}

impl Origins {
    /// Of these.
    pub fn of(specs: &Specs) -> Origins {
        fn written(spec: Option<&impl Serialize>) -> Value {
            // Values that were read from JSON can be written again.
            serde_json::json!({ "spec": spec.and_then(|spec| serde_json::to_value(spec).ok()) })
        }
        Origins {
            instancetype: written(specs.instancetype.as_ref()),
            preference: written(specs.preference.as_ref()),
        }
    }

    /// What has set `field` of the machine, which is in `template` as its owner wrote it. Nothing: the owner has.
    pub fn find(&self, field: &str, template: &Value) -> Option<(Subject, &'static str)> {
        if !at(template, field).is_null() {
            return None;
        }
        let plain = plain(field);
        let sets = |(path, subject, source): &&(&str, Subject, &str)| {
            let below = plain.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            let spec = if *subject == Instancetype { &self.instancetype } else { &self.preference };
            below && !at(spec, source).is_null()
        };
        ORIGINS.iter().find(sets).map(|(_, subject, source)| (*subject, *source))
    }
}

/// A path without the indices and keys in brackets.
fn plain(path: &str) -> String {
    let mut depth = 0;
    let keep = |c: &char| {
        depth += i32::from(*c == '[');
        let outside = depth == 0;
        depth -= i32::from(*c == ']');
        outside
    };
    path.chars().filter(keep).collect()
}

/// The value at a path such as `spec.domain.devices.disks[0].disk.bus` or `metadata.annotations[a.b/c]`.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    let (mut value, mut rest) = (object, path);
    while !rest.is_empty() {
        rest = rest.trim_start_matches('.');
        if let Some((key, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            value = match key.parse::<usize>() {
                Ok(index) if value.is_array() => value.get(index).unwrap_or(&Value::Null),
                _ => &value[key],
            };
            rest = behind;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = &value[&rest[..end]];
            rest = &rest[end..];
        }
    }
    value
}
