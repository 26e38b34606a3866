//! Processors, memory, firmware, clock.

use std::collections::HashMap;

use crate::problem::{Problems, Reason};
use crate::vmi::{Clock, DomainSpec, Efi, FeatureState, Firmware, KernelBoot, MAX_VCPUS};

use super::is_uuid;

/// Least memory of a machine, bytes: upstream's, below what any firmware starts in.
const MIN_MEMORY: u64 = 1_000_000;

const DOMAIN: &str = "spec.domain";

pub(super) fn check(domain: &DomainSpec, problems: &mut Problems) {
    resources(domain, problems);
    if let Some(cpu) = &domain.cpu {
        if cpu.count() > u64::from(MAX_VCPUS) {
            problems.add(
                Reason::FieldValueInvalid,
                format!("{DOMAIN}.cpu"),
                format!(
                    "sockets × cores × threads is {}; at most {MAX_VCPUS} processors are allowed",
                    cpu.count()
                ),
            );
        }
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (n, feature) in cpu.features.iter().enumerate() {
            let field = format!("{DOMAIN}.cpu.features[{n}].name");
            if feature.name.is_empty() {
                problems.required(field, "a feature's name is required");
            } else if let Some(other) = seen.get(feature.name.as_str()) {
                problems.duplicate(field, &feature.name, &format!("{DOMAIN}.cpu.features[{other}].name"));
            } else {
                seen.insert(&feature.name, n);
            }
        }
    }
    match domain.memory.as_ref().and_then(|m| m.guest.as_ref()) {
        None => problems.required(
            format!("{DOMAIN}.memory.guest"),
            "memory.guest, resources.requests.memory or resources.limits.memory is required",
        ),
        // Where it comes from the request, that is told.
        Some(guest)
            if guest.value() < MIN_MEMORY && domain.resources.requests.get("memory") != Some(guest) =>
        {
            problems.invalid(format!("{DOMAIN}.memory.guest"), guest, "at least 1M is allowed");
        }
        Some(_) => {}
    }
    if let Some(machine) = &domain.machine
        && machine.kind != "q35"
        && !machine.kind.strip_prefix("pc-q35-").is_some_and(is_version)
    {
        problems.add(
            Reason::FieldValueNotSupported,
            format!("{DOMAIN}.machine.type"),
            format!(
                "'{}' is not supported by podvirt; 'q35' or a version of it such as 'pc-q35-10.0' is allowed",
                machine.kind
            ),
        );
    }
    if let Some(firmware) = &domain.firmware {
        firmware_and_kernel(firmware, domain, problems);
    }
    if let Some(clock) = &domain.clock {
        check_clock(clock, problems);
    }
}

/// Whether a text is a version of a machine type: QEMU's own, or a distribution's as in `rhel9.6.0`.
fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn resources(domain: &DomainSpec, problems: &mut Problems) {
    let resources = &domain.resources;
    for (what, map) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in map {
            let field = format!("{DOMAIN}.resources.{what}.{name}");
            if !["memory", "cpu", "ephemeral-storage"].contains(&name.as_str()) {
                problems.add(
                    Reason::FieldValueNotSupported,
                    field,
                    "not supported by podvirt; allowed: memory, cpu, ephemeral-storage",
                );
            } else if quantity.is_negative() {
                problems.invalid(field, quantity, "zero, which is as if it were not set, or more is allowed");
            } else if what == "requests"
                && name == "memory"
                && quantity.is_positive()
                && quantity.value() < MIN_MEMORY
            {
                problems.invalid(field, quantity, "at least 1M is allowed");
            }
        }
    }
    for (name, request) in &resources.requests {
        if let Some(limit) = resources.limits.get(name).filter(|limit| limit.is_positive())
            && request > limit
        {
            problems.invalid(
                format!("{DOMAIN}.resources.requests.{name}"),
                request,
                &format!("at most the limit {limit} is allowed"),
            );
        }
    }
}

fn firmware_and_kernel(firmware: &Firmware, domain: &DomainSpec, problems: &mut Problems) {
    let path = |field: &str| format!("{DOMAIN}.firmware.{field}");
    if !firmware.uuid.is_empty() && !is_uuid(&firmware.uuid) {
        problems.invalid(path("uuid"), &firmware.uuid, "a UUID is allowed");
    }
    // A text of the SMBIOS tables, unlike the serial numbers of disks.
    if firmware.serial.len() > 256 || firmware.serial.bytes().any(|b| !(b.is_ascii_graphic() || b == b' ')) {
        problems.invalid(
            path("serial"),
            &firmware.serial,
            "at most 256 printable characters of ASCII are allowed",
        );
    }
    let use_serial = firmware
        .bootloader
        .as_ref()
        .and_then(|b| b.bios.as_ref())
        .and_then(|b| b.use_serial)
        .unwrap_or(false);
    if use_serial && domain.devices.autoattach_serial_console == Some(false) {
        problems.invalid(
            path("bootloader.bios.useSerial"),
            true,
            "autoattachSerialConsole is off: there is no serial console to use",
        );
    }
    let bootloader = firmware.bootloader.as_ref();
    // Upstream's words.
    if bootloader.is_some_and(|one| one.efi.is_some() && one.bios.is_some()) {
        let field = path("bootloader");
        let message = format!("{field} has both EFI and BIOS configured, but they are mutually exclusive.");
        problems.add(Reason::FieldValueInvalid, field, message);
    }
    let secure = bootloader.and_then(|one| one.efi.as_ref()).is_some_and(Efi::is_secure);
    let smm = domain.features.as_ref().and_then(|features| features.smm.as_ref());
    if secure && !smm.is_some_and(FeatureState::is_on) {
        let message = format!(
            "{DOMAIN} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled."
        );
        problems.add(Reason::FieldValueInvalid, DOMAIN, message);
    }
    let Some(KernelBoot { kernel_args, container }) = &firmware.kernel_boot else { return };
    let Some(container) = container else {
        if !kernel_args.is_empty() {
            problems.required(path("kernelBoot.container"), "kernelArgs need a kernel to go to");
        }
        return;
    };
    if container.image.is_empty() {
        problems.required(path("kernelBoot.container.image"), "an image is required");
    }
    if container.kernel_path.is_empty() {
        problems
            .required(path("kernelBoot.container.kernelPath"), "the kernel's path in the image is required");
    }
    for (field, value) in [("kernelPath", &container.kernel_path), ("initrdPath", &container.initrd_path)] {
        if !value.is_empty() && !is_path_in_image(value) {
            problems.invalid(path(&format!("kernelBoot.container.{field}")), value, PATH_IN_IMAGE);
        }
    }
}

/// What is allowed for a path in an image.
pub(super) const PATH_IN_IMAGE: &str =
    "the absolute path of a file, without '.', '..' and empty parts, is allowed";

/// Whether a path names a file of the image that it is read from, in one spelling: with a slash at its end at most.
pub(super) fn is_path_in_image(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    !path.contains('\0') && rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn check_clock(clock: &Clock, problems: &mut Problems) {
    if clock.utc.is_some() && !clock.timezone.is_empty() {
        problems.invalid(
            format!("{DOMAIN}.clock.timezone"),
            &clock.timezone,
            "either utc or timezone is allowed",
        );
    }
    let zone = |b: u8| b.is_ascii_alphanumeric() || b"/_+-".contains(&b);
    if !clock.timezone.bytes().all(zone) {
        problems.invalid(
            format!("{DOMAIN}.clock.timezone"),
            &clock.timezone,
            "a name as in 'Europe/Berlin' is allowed",
        );
    }
}
