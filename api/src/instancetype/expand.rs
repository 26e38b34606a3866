//! The template as instances are made from it.

use serde_json::{Value, json};

use crate::admission::vm::DEFAULT_GRACE_PERIOD_SECONDS;
use crate::defaults::{self, Binding, Choices, DEFAULT_NETWORK_NAME};
use crate::mac::MacAddr;
use crate::v1::{
    Devices, Disk, Input, InputType, Interface, InterfaceBridge, InterfaceMasquerade, InterfacePasstBinding,
    KubeVirtConfiguration, Network, PodNetwork, VirtualMachine, VirtualMachineInstanceSpec,
    VirtualMachineInstanceTemplateSpec,
};
use crate::{VirtualMachineInstance, admission};

use super::conflict::Conflicts;
use super::{Specs, apply, preference, topology};

/// Name of the input device that comes by itself (upstream's).
const DEFAULT_INPUT: &str = "default-0";

/// Lets the devices come that a machine gets by itself, so that a preference can say what they are like.
pub fn attach(specs: &Specs, spec: &mut VirtualMachineInstanceSpec, choices: &Choices) {
    let devices = &mut spec.domain.devices;
    if let Some(preferred) = specs.preference.as_ref().and_then(|preference| preference.devices.as_ref()) {
        preference::autoattach(preferred, devices);
    }
    attach_input(devices);
    let preferred = specs.preference.as_ref().and_then(|preference| preference.devices.as_ref());
    if preferred.is_none_or(|preferred| preferred.preferred_input_type.is_none()) {
        // As the launcher takes it; a word that is written must be one of the API's.
        devices.inputs.iter_mut().filter(|input| input.r#type.is_empty()).for_each(|input| {
            input.r#type = InputType::Tablet;
        });
    }
    for volume in spec.volumes.iter().filter(|volume| volume.memory_dump.is_none()) {
        let is_shown = devices.disks.iter().any(|disk| disk.name == volume.name)
            || devices.filesystems.iter().any(|filesystem| filesystem.name == volume.name);
        if !is_shown {
            devices.disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
        }
    }
    let is_alone = devices.interfaces.is_empty() && spec.networks.is_empty();
    if is_alone && devices.autoattach_pod_interface != Some(false) {
        let mut interface = Interface { name: DEFAULT_NETWORK_NAME.into(), ..Interface::default() };
        match choices.binding {
            Binding::Passt => interface.passt_binding = Some(InterfacePasstBinding {}),
            Binding::Masquerade => interface.masquerade = Some(InterfaceMasquerade {}),
            Binding::Bridge => interface.bridge = Some(InterfaceBridge {}),
        }
        devices.interfaces.push(interface);
        let pod = Some(PodNetwork::default());
        spec.networks.push(Network { name: DEFAULT_NETWORK_NAME.into(), pod, ..Network::default() });
    }
}

/// Lets the input device come that `autoattachInputDevice` asks for.
pub fn attach_input(devices: &mut Devices) {
    if devices.autoattach_input_device == Some(true) && devices.inputs.is_empty() {
        devices.inputs.push(Input { name: DEFAULT_INPUT.into(), ..Input::default() });
    }
}

/// Applies instance type and preference to a template, whose specification stands at `path`.
///
/// # Errors
///
/// The fields that both set, or processors that cannot be spread as the preference wants. The template is changed in
/// part then.
pub fn expand_template(
    path: &str,
    specs: &Specs,
    template: &mut VirtualMachineInstanceTemplateSpec,
    choices: &Choices,
) -> Result<(), Conflicts> {
    if specs.is_empty() {
        return Ok(());
    }
    topology::check_spread(specs.instancetype.as_ref(), specs.preference.as_ref())?;
    let spec = template.spec.get_or_insert_default();
    attach(specs, spec, choices);
    apply::apply(path, specs, spec, template.metadata.get_or_insert_default())
}

/// The machine with its instance type and its preference in its template, with all defaults, and naming neither.
///
/// # Errors
///
/// The fields that both the template and the instance type set.
pub fn expand(
    vm: &VirtualMachine,
    specs: &Specs,
    config: &KubeVirtConfiguration,
) -> Result<VirtualMachine, Conflicts> {
    let mut expanded = vm.clone();
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(expanded);
    }
    let template = expanded.spec.template.get_or_insert_default();
    let choices = Choices::of(config);
    expand_template("spec.template.spec", specs, template, &choices)?;
    if let Some(spec) = &mut template.spec {
        // The webhook leaves it to a preference, if there is one.
        spec.termination_grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
        *spec = filled(spec, &choices);
    }
    expanded.spec.instancetype = None;
    expanded.spec.preference = None;
    expanded.status.instancetype_ref = None;
    expanded.status.preference_ref = None;
    Ok(expanded)
}

/// A specification with the defaults that its instance would get. One that podvirt does not carry out is left as it is.
pub(crate) fn filled(spec: &VirtualMachineInstanceSpec, choices: &Choices) -> VirtualMachineInstanceSpec {
    let mut object = json!({ "spec": spec });
    let Ok(mut vmi) = VirtualMachineInstance::from_value(object.clone()) else { return spec.clone() };
    defaults::fill(&mut vmi, choices);
    admission::add_missing(&mut object, &json!({ "spec": vmi.spec }));
    let read = |value: &mut Value| serde_json::from_value(value["spec"].take()).ok();
    read(&mut object).unwrap_or_else(|| spec.clone())
}

/// Gives the interfaces that came by themselves, and are not in the template of `vm`, the address that they have without an
/// instance type.
pub fn machine_address(vm: &VirtualMachine, template: &mut VirtualMachineInstanceTemplateSpec) {
    let own = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let own = own.map_or(&[][..], |spec| &spec.domain.devices.interfaces);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let identity = [&vm.metadata.namespace, &vm.metadata.name, &vm.metadata.uid].map(text);
    for interface in template.spec.iter_mut().flat_map(|spec| &mut spec.domain.devices.interfaces) {
        let came = own.iter().all(|known| known.name != interface.name);
        if came && super::is_open(interface.mac_address.as_deref()) {
            let words = identity.iter().chain([&interface.name]).map(String::as_str).collect::<Vec<_>>();
            interface.mac_address = Some(MacAddr::derived(&words).to_string());
        }
    }
}
