//! Instance types: what they set, and what the template must not set beside them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::quantity;
use crate::v1::{
    Cpu, DiskIothreads, Memory, VirtualMachineInstanceSpec, VirtualMachineInstancetypeSpec,
    VirtualMachinePreferenceSpec,
};

use super::conflict::{Conflict, Conflicts};
use super::{Specs, is_open, preference, topology};

/// Applies an instance type and a preference to a machine's specification, which stands at `path`, and to its annotations.
///
/// # Errors
///
/// The fields that both the machine and its instance type set. The machine is changed in part then.
pub fn apply(
    path: &str,
    specs: &Specs,
    spec: &mut VirtualMachineInstanceSpec,
    metadata: &mut ObjectMeta,
) -> Result<(), Conflicts> {
    if let Some(instancetype) = &specs.instancetype {
        let mut conflicts = Conflicts::default();
        placement(path, instancetype, spec, &mut conflicts);
        cpu(path, instancetype, specs.preference.as_ref(), spec, &mut conflicts);
        memory(path, instancetype, spec, &mut conflicts);
        devices(path, instancetype, spec, &mut conflicts);
        annotations(instancetype, metadata, &mut conflicts);
        conflicts.into_result()?;
    }
    if let Some(preference) = &specs.preference {
        preference::prefer(preference, spec, metadata);
    }
    Ok(())
}

fn placement(
    path: &str,
    instancetype: &VirtualMachineInstancetypeSpec,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts,
) {
    if !instancetype.node_selector.is_empty() {
        if spec.node_selector.is_empty() {
            spec.node_selector.clone_from(&instancetype.node_selector);
        } else {
            conflicts.add(path, "nodeSelector");
        }
    }
    if !is_open(instancetype.scheduler_name.as_deref()) {
        if is_open(spec.scheduler_name.as_deref()) {
            spec.scheduler_name.clone_from(&instancetype.scheduler_name);
        } else {
            conflicts.add(path, "schedulerName");
        }
    }
}

/// Whether the machine asks for `resource` by `requests` and by `limits`.
fn asks(spec: &VirtualMachineInstanceSpec, resource: &str) -> [bool; 2] {
    let given = spec.domain.resources.as_ref();
    let requests = given.and_then(|given| given.requests.as_ref());
    let limits = given.and_then(|given| given.limits.as_ref());
    [requests, limits].map(|map| map.is_some_and(|map| map.contains_key(resource)))
}

fn cpu(
    path: &str,
    instancetype: &VirtualMachineInstancetypeSpec,
    preference: Option<&VirtualMachinePreferenceSpec>,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts,
) {
    let before = conflicts.0.len();
    let wanted = &instancetype.cpu;
    let [requests, limits] = asks(spec, "cpu");
    conflicts.add_if(requests, path, "domain.resources.requests.cpu");
    conflicts.add_if(limits, path, "domain.resources.limits.cpu");
    let cpu = spec.domain.cpu.get_or_insert_with(Cpu::default);
    let is_true = |flag: Option<bool>| flag == Some(true);
    for (is_set, field) in [
        (cpu.sockets.unwrap_or(0) != 0, "domain.cpu.sockets"),
        (cpu.cores.unwrap_or(0) != 0, "domain.cpu.cores"),
        (cpu.threads.unwrap_or(0) != 0, "domain.cpu.threads"),
        (!is_open(cpu.model.as_deref()) && wanted.model.is_some(), "domain.cpu.model"),
        (
            is_true(cpu.dedicated_cpu_placement) && wanted.dedicated_cpu_placement.is_some(),
            "domain.cpu.dedicatedCPUPlacement",
        ),
        (
            is_true(cpu.isolate_emulator_thread) && wanted.isolate_emulator_thread.is_some(),
            "domain.cpu.isolateEmulatorThread",
        ),
        (cpu.numa.is_some() && wanted.numa.is_some(), "domain.cpu.numa"),
        (cpu.realtime.is_some() && wanted.realtime.is_some(), "domain.cpu.realtime"),
    ] {
        conflicts.add_if(is_set, path, field);
    }
    if conflicts.0.len() > before {
        return;
    }
    replace(&mut cpu.model, wanted.model.as_ref());
    replace(&mut cpu.dedicated_cpu_placement, wanted.dedicated_cpu_placement.filter(|on| *on).as_ref());
    replace(&mut cpu.isolate_emulator_thread, wanted.isolate_emulator_thread.filter(|on| *on).as_ref());
    replace(&mut cpu.numa, wanted.numa.as_ref());
    replace(&mut cpu.realtime, wanted.realtime.as_ref());
    replace(&mut cpu.max_sockets, wanted.max_sockets.as_ref());
    topology::arrange(cpu, wanted.guest, preference);
}

/// Puts a value that is there in the place of `into`.
fn replace<T: Clone>(into: &mut Option<T>, value: Option<&T>) {
    if let Some(value) = value {
        *into = Some(value.clone());
    }
}

fn memory(
    path: &str,
    instancetype: &VirtualMachineInstancetypeSpec,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts,
) {
    let wanted = &instancetype.memory;
    let [requests, limits] = asks(spec, "memory");
    let memory = spec.domain.memory.get_or_insert_with(Memory::default);
    // As upstream, the first of these is told.
    let in_the_way = [
        (memory.guest.is_some(), "domain.memory.guest"),
        (memory.hugepages.is_some() && wanted.hugepages.is_some(), "domain.memory.hugepages"),
        (memory.max_guest.is_some() && wanted.max_guest.is_some(), "domain.memory.maxGuest"),
        (requests, "domain.resources.requests.memory"),
        (limits, "domain.resources.limits.memory"),
    ];
    if let Some((_, field)) = in_the_way.into_iter().find(|(is_set, _)| *is_set) {
        return conflicts.add(path, field);
    }
    // The field is required, so an instance type that sets no memory has 0 there. A machine without memory of its own is then
    // refused when it starts.
    let zero = wanted.guest.0.parse::<quantity::Quantity>().is_ok_and(|guest| guest.value() == 0);
    memory.guest = (!zero).then(|| wanted.guest.clone());
    replace(&mut memory.hugepages, wanted.hugepages.as_ref());
    replace(&mut memory.max_guest, wanted.max_guest.as_ref());
    if let Some(request) = wanted.overcommit_percent.and_then(|percent| overcommitted(&wanted.guest, percent))
    {
        let resources = spec.domain.resources.get_or_insert_default();
        resources.requests.get_or_insert_default().insert("memory".into(), request);
    }
}

/// What a pod asks for where `percent` of the guest's memory are not set aside for it; nothing where all of it is.
fn overcommitted(guest: &Quantity, percent: i64) -> Option<Quantity> {
    let percent = u8::try_from(percent).ok().filter(|percent| (1..=100).contains(percent))?;
    let bytes = guest.0.parse::<quantity::Quantity>().ok()?.value();
    // Upstream calculates in single precision. Only in the same precision is the stored request equal to upstream's.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "upstream's"
    )]
    let bytes = (bytes as f32 * (1.0 - f32::from(percent) / 100.0)) as u64;
    // Written in the largest unit of the guest's own kind that has no fraction.
    let (base, units) = if guest.0.ends_with('i') {
        (1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
    } else {
        (1000, ["", "k", "M", "G", "T", "P", "E"])
    };
    let (mut number, mut unit) = (bytes, 0);
    while number != 0 && number.is_multiple_of(base) && unit + 1 < units.len() {
        number /= base;
        unit += 1;
    }
    Some(Quantity(format!("{number}{}", units[unit])))
}

fn devices(
    path: &str,
    instancetype: &VirtualMachineInstancetypeSpec,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts,
) {
    let domain = &mut spec.domain;
    let pool = instancetype.iothreads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    if let Some(count) = pool {
        let threads = domain.iothreads.get_or_insert_with(DiskIothreads::default);
        if threads.supplemental_pool_thread_count.is_some() {
            conflicts.add(path, "domain.ioThreads.supplementalPoolThreadCount");
        } else {
            threads.supplemental_pool_thread_count = Some(count);
        }
    }
    set(
        &mut domain.iothreads_policy,
        instancetype.iothreads_policy.as_ref(),
        conflicts,
        path,
        "domain.ioThreadsPolicy",
    );
    set(
        &mut domain.launch_security,
        instancetype.launch_security.as_ref(),
        conflicts,
        path,
        "domain.launchSecurity",
    );
    set_list(&mut domain.devices.gpus, &instancetype.gpus, conflicts, path, "domain.devices.gpus");
    let (there, wanted) = (&mut domain.devices.host_devices, &instancetype.host_devices);
    set_list(there, wanted, conflicts, path, "domain.devices.hostDevices");
}

fn set<T: Clone>(
    there: &mut Option<T>,
    wanted: Option<&T>,
    conflicts: &mut Conflicts,
    path: &str,
    field: &str,
) {
    match wanted {
        Some(_) if there.is_some() => conflicts.add(path, field),
        wanted => replace(there, wanted),
    }
}

fn set_list<T: Clone>(there: &mut Vec<T>, wanted: &[T], conflicts: &mut Conflicts, path: &str, field: &str) {
    match wanted {
        [] => {}
        _ if !there.is_empty() => conflicts.add(path, field),
        wanted => there.extend_from_slice(wanted),
    }
}

fn annotations(
    instancetype: &VirtualMachineInstancetypeSpec,
    metadata: &mut ObjectMeta,
    conflicts: &mut Conflicts,
) {
    if instancetype.annotations.is_empty() {
        return;
    }
    let there = metadata.annotations.get_or_insert_default();
    for (key, value) in &instancetype.annotations {
        match there.get(key) {
            Some(other) if other != value => {
                conflicts.0.push(Conflict { field: format!("annotations.{key}"), message: None });
            }
            Some(_) => {}
            None => drop(there.insert(key.clone(), value.clone())),
        }
    }
}
