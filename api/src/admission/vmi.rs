//! VirtualMachineInstances.
//!
//! A VirtualMachineInstance has no status subresource: every user who may change it could write its status.
//! So a user's change of the status is undone, one of the specification refused.

use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::defaults::{self, Choices};
use crate::error::chain;
use crate::fields::{On, check_annotations};
use crate::names::{self, annotation, label};
use crate::problem::{Problems, Reason};
use crate::validate::{placement, validate};
use crate::{ParseError, VirtualMachineInstance, v1};
use crate::{gates, hooks, kernel, plugin};

use super::ratchet::Change;
use super::{By, EMULATED_MACHINES, add_missing, is_emulated, numbers, object_at, probe, same, stored};

/// Annotations that stay as they are while the instance is there: each pod that it moves into is made from them, and has to be
/// like the one before.
const FIXED: [&str; 3] = [annotation::MASQUERADE, annotation::HOOK_SIDECARS, annotation::BINDING_PLUGINS];

/// Puts the name of the revision, and how far changes of disks are tracked, from the status of `given`, the object as it was sent,
/// into the status of the new instance. Only virt-controller, which makes instances for VirtualMachines, can set them.
pub fn mutate_told(object: &mut Value, given: &Value, by: By) {
    if by == By::User {
        return;
    }
    let given = &given["status"];
    let revision = &given["virtualMachineRevisionName"];
    if revision.is_string() {
        add_missing(object, &json!({"status": {"virtualMachineRevisionName": revision}}));
    }
    let tracking = &given["changedBlockTracking"]["state"];
    if tracking.is_string() {
        add_missing(object, &json!({"status": {"changedBlockTracking": {"state": tracking}}}));
    }
}

/// Makes of a new VirtualMachineInstance what is stored: with its defaults and its finalizer, and with a status that says no
/// more than how much memory and how many processors it begins with.
///
/// Addresses, UUID and host name are left open: they follow the identity, which the object does not have yet.
pub fn mutate_create(object: &mut Value, config: &v1::KubeVirtConfiguration) {
    let Some(map) = object.as_object_mut() else { return };
    map.remove("status");
    if let Some(metadata) = object_at(map, "metadata") {
        let finalizers = metadata.entry("finalizers").or_insert(Value::Null);
        if finalizers.is_null() {
            *finalizers = json!([]);
        }
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|f| f == names::VMI_FINALIZER)
        {
            list.push(names::VMI_FINALIZER.into());
        }
    }
    object.get_mut("spec").into_iter().for_each(numbers::to_texts);
    let Ok(mut vmi) = VirtualMachineInstance::from_value(object.clone()) else { return };
    defaults::fill(&mut vmi, &Choices::of(config));
    let filled = json!({ "spec": vmi.spec, "status": first_status(&vmi) });
    add_missing(object, &filled);
    stored::fill(&mut object["spec"], config);
}

/// What the status tells from the beginning, as upstream's: the guest's memory and processors by the specification.
fn first_status(vmi: &VirtualMachineInstance) -> Value {
    let domain = &vmi.spec.domain;
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let memory =
        guest.map(|guest| json!({"guestAtBoot": guest, "guestCurrent": guest, "guestRequested": guest}));
    let cpu = domain.cpu.as_ref();
    let topology = cpu.map(|cpu| json!({"cores": cpu.cores, "sockets": cpu.sockets, "threads": cpu.threads}));
    let mut status = json!({});
    for (name, value) in [("memory", memory), ("currentCPUTopology", topology)] {
        if let Some(value) = value {
            status[name] = value;
        }
    }
    status
}

/// Has a new VirtualMachineInstance say what carries its binding `masquerade`, where the cluster's `way` is not podvirt's own.
/// It stays so for as long as the instance is there, whatever the cluster says later.
pub fn mutate_masquerade(object: &mut Value, way: Option<&str>) {
    let interfaces = object["spec"]["domain"]["devices"]["interfaces"].as_array();
    let has = interfaces.into_iter().flatten().any(|interface| interface["masquerade"].is_object());
    if let Some(way) = way.filter(|way| has && *way != kernel::BY_NETD) {
        add_missing(object, &json!({"metadata": {"annotations": {annotation::MASQUERADE: way}}}));
    }
}

/// Has a new VirtualMachineInstance say what its network binding plugins are registered with.
/// It stays so for as long as the instance is there, whatever the cluster says later.
pub fn mutate_plugins(object: &mut Value, config: &v1::KubeVirtConfiguration) {
    match plugin::noted(object, config) {
        Some(text) => {
            let Some(metadata) = object.as_object_mut().and_then(|map| object_at(map, "metadata")) else {
                return;
            };
            if let Some(annotations) = object_at(metadata, "annotations") {
                annotations.insert(annotation::BINDING_PLUGINS.into(), text.into());
            }
        }
        None => {
            let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
            if let Some(annotations) = annotations {
                annotations.remove(annotation::BINDING_PLUGINS);
            }
        }
    }
}

/// Undoes a user's change of the status.
pub fn mutate_update(old: &Value, new: &mut Value, by: By) {
    let (By::User, Some(map)) = (by, new.as_object_mut()) else { return };
    match old.get("status") {
        Some(status) if !status.is_null() => map.insert("status".into(), status.clone()),
        _ => map.remove("status"),
    };
}

/// Judges volumes that only virt-controller adds, once a machine runs.
pub(super) fn no_utility_volumes(object: &Value, problems: &mut Problems) {
    if object["spec"]["utilityVolumes"].as_array().is_some_and(|all| !all.is_empty()) {
        let told =
            "virt-controller adds and removes these volumes while the machine runs: none is allowed here";
        problems.add(Reason::FieldValueInvalid, "spec.utilityVolumes", told);
    }
}

/// Judges a new VirtualMachineInstance.
pub fn validate_create(object: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    let mut problems = spec_problems(object, config);
    if by == By::User {
        reserved_labels(&object["metadata"]["labels"], "metadata.labels", &mut problems);
    }
    no_utility_volumes(object, &mut problems);
    wishes(object, &mut problems);
    hooks::check_allowed(&object["metadata"]["annotations"], "metadata.annotations", config, &mut problems);
    plugin::check_noted(object, config, &mut problems);
    problems
}

/// Notes annotations of an instance that ask for something that is not carried out.
fn wishes(object: &Value, problems: &mut Problems) {
    check_annotations(On::Vmi, &object["metadata"]["annotations"], "metadata.annotations", problems);
}

/// Judges a change of a VirtualMachineInstance.
pub fn validate_update(old: &Value, new: &Value, by: By) -> Problems {
    // The controllers could not list it any more. One that could not be read before may lose its finalizers.
    if let Err(error) = v1::VirtualMachineInstance::deserialize(new)
        && v1::VirtualMachineInstance::deserialize(old).is_ok()
    {
        return unreadable("spec", &error);
    }
    let mut problems = Problems::default();
    if by == By::Daemon {
        return problems;
    }
    if !same(&old["spec"], &new["spec"]) {
        problems.add(
            Reason::FieldValueNotSupported,
            "spec",
            "the specification of a VirtualMachineInstance cannot be changed: change the VirtualMachine that it \
             belongs to, or delete it and make another",
        );
    }
    for name in label::RESERVED {
        let (old, new) = (&old["metadata"]["labels"][name], &new["metadata"]["labels"][name]);
        if old != new {
            problems.add(
                Reason::FieldValueNotSupported,
                "metadata.labels",
                format!("only podvirt may change the label {name}"),
            );
        }
    }
    for name in FIXED {
        if old["metadata"]["annotations"][name] != new["metadata"]["annotations"][name] {
            problems.add(
                Reason::FieldValueNotSupported,
                format!("metadata.annotations[{name}]"),
                "it cannot be changed while the instance is there: change it in the template of the \
                 VirtualMachine",
            );
        }
    }
    let mut asked = Problems::default();
    wishes(new, &mut asked);
    problems.0.extend(Change { old: &[old], new }.ratchet(asked).0);
    problems
}

/// Judges a change of volumes of a running instance, which virt-api makes for a user: what was wrong before is not its fault.
pub fn validate_plugged(old: &Value, new: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    Change { old: &[old], new }.ratchet(spec_problems(new, config))
}

/// Notes labels that users may not set.
pub(super) fn reserved_labels(labels: &Value, path: &str, problems: &mut Problems) {
    for name in labels.as_object().into_iter().flat_map(|map| map.keys()).filter(|n| label::is_reserved(n)) {
        problems.add(Reason::FieldValueNotSupported, path, format!("only podvirt may set the label {name}"));
    }
}

/// Judges what a machine is to be, by the same rules for each user.
pub(super) fn spec_problems(object: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    let mut vmi = match VirtualMachineInstance::from_value(object.clone()) {
        Ok(vmi) => vmi,
        Err(ParseError::Invalid(problems)) => return problems,
        Err(error) => return unreadable("spec", &error),
    };
    if vmi.metadata.name.is_empty() {
        // The API server makes the name of `generateName` after it has asked.
        "generated".clone_into(&mut vmi.metadata.name);
    }
    if let Some(text) = plugin::noted(object, config) {
        // A template has no such note; the instance that is made of it will.
        vmi.metadata.annotations.insert(annotation::BINDING_PLUGINS.into(), text);
    }
    defaults::set_defaults_with(&mut vmi, &Choices::of(config));
    let mut problems = validate(&vmi);
    plugin::check(object, config, &mut problems);
    machine_type(&vmi, config, &mut problems);
    memory_limit(&vmi, config, &mut problems);
    pod_bridge(&vmi, config, &mut problems);
    gates::check(&vmi, config, &mut problems);
    match v1::VirtualMachineInstance::deserialize(object) {
        Ok(wire) => {
            probe::check(&wire.spec, &mut problems);
            placement::check(&wire.spec, &mut problems);
        }
        Err(error) => problems.0.extend(unreadable("spec", &error).0),
    }
    problems
}

/// Says that an object cannot be read because of `field`, or of something in it.
pub(super) fn unreadable(field: &str, error: &dyn std::error::Error) -> Problems {
    let mut problems = Problems::default();
    problems.add(Reason::FieldValueTypeInvalid, field, chain(error));
    problems
}

/// Judges the binding `bridge` on the pod's network, which the cluster may not permit.
fn pod_bridge(vmi: &VirtualMachineInstance, config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    let network = config.network.as_ref();
    let permitted = network.and_then(|network| network.permit_bridge_interface_on_pod_network) != Some(false);
    let on_pods = |index: usize| {
        let interface = vmi.spec.domain.devices.interfaces.get(index);
        interface.and_then(|i| vmi.network_of(i)).is_some_and(|network| network.pod.is_some())
    };
    if let Some(one) = kernel::replaced(vmi).filter(|one| !permitted && on_pods(one.index)) {
        problems.add(
            Reason::FieldValueInvalid,
            format!("spec.domain.devices.interfaces[{}].bridge", one.index),
            "bridge on the pod's network is not permitted in this cluster \
             (spec.configuration.network.permitBridgeInterfaceOnPodNetwork of the KubeVirt object); passtBinding and \
             masquerade are allowed",
        );
    }
}

/// Judges the guest's memory beside its limit. Where machines are changed while they run, upstream takes more than the limit.
fn memory_limit(vmi: &VirtualMachineInstance, config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    let is_staged = config.vm_rollout_strategy.as_ref().is_some_and(|way| way.as_str() == "Stage");
    let domain = &vmi.spec.domain;
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let limit = domain.resources.limits.get("memory").filter(|limit| limit.is_positive());
    // A request above the limit is told already.
    let is_told = guest == domain.resources.requests.get("memory");
    if let Some((guest, limit)) =
        guest.zip(limit).filter(|(guest, limit)| is_staged && !is_told && guest > limit)
    {
        problems.invalid(
            "spec.domain.memory.guest",
            guest,
            &format!("at most spec.domain.resources.limits.memory, {limit}, is allowed"),
        );
    }
}

fn machine_type(vmi: &VirtualMachineInstance, config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    let machine = vmi.spec.domain.machine.as_ref().map_or("", |m| m.kind.as_str());
    let amd64 = config.architecture_configuration.as_ref().and_then(|a| a.amd64.as_ref());
    let chosen =
        amd64.map(|a| &a.emulated_machines).filter(|m| !m.is_empty()).unwrap_or(&config.emulated_machines);
    let (allowed, names) = if chosen.is_empty() {
        (is_emulated(machine, EMULATED_MACHINES), EMULATED_MACHINES.join(", "))
    } else {
        (is_emulated(machine, chosen), chosen.join(", "))
    };
    if !allowed && !problems.0.iter().any(|p| p.field == "spec.domain.machine.type") {
        problems.add(
            Reason::FieldValueInvalid,
            "spec.domain.machine.type",
            format!("'{machine}' is not allowed in this cluster; allowed: {names}"),
        );
    }
}
