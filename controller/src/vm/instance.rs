//! The VirtualMachineInstance that a VirtualMachine's template makes.
//!
//! A guest must find its machine unchanged at every start: operating systems tie licences, network names and
//! addresses to the firmware's identity and to MAC addresses. Where the template names none they follow from
//! namespace and name, with the functions the API's defaults use, so that also an export to another cluster or a
//! deleted and restored VirtualMachine keeps them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use podvirt_api::admission::vm::DEFAULT_GRACE_PERIOD_SECONDS;
use podvirt_api::defaults::uuid;
use podvirt_api::instancetype::{Matcher, Subject, attach_input};
use podvirt_api::names;
use podvirt_api::names::annotation;
use podvirt_api::v1::{
    Firmware, Interface, InterfaceState, StartStrategy, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec,
};
use serde::Serialize;

use super::{moves, nics, placement, revision, volumes};

/// Annotation on a VirtualMachineInstance: digest of the template it was made from.
pub const TEMPLATE_DIGEST: &str = "podvirt.io/template-digest";

/// Annotation on a VirtualMachineInstance: digest of the labels and annotations of the template it was made from. A change of
/// them in the VirtualMachine asks for no restart; the instance keeps the generation of the VirtualMachine it was made from.
const METADATA_DIGEST: &str = "podvirt.io/template-metadata-digest";

/// What [`TEMPLATE_DIGEST`] holds for the template as it is now, in an instance with the spec `present`. What takes effect
/// while the machine runs is no part of it: the state of links, [interfaces](nics) and [`volumes`] that come and go, and
/// [where it may run](placement).
pub fn template_digest(vm: &VirtualMachine, present: &VirtualMachineInstanceSpec) -> String {
    let mut spec = vm.spec.template.as_ref().and_then(|template| template.spec.clone());
    spec.iter_mut().for_each(placement::leave_out);
    spec.iter_mut().for_each(volumes::leave_out);
    if moves::is_asked_for(vm) {
        spec.iter_mut().for_each(|spec| moves::leave_out(spec, present));
    }
    digest_of(spec, present)
}

fn digest_of(mut spec: Option<VirtualMachineInstanceSpec>, present: &VirtualMachineInstanceSpec) -> String {
    if let Some(spec) = &mut spec {
        nics::leave_pluggable_out(spec, present);
        for interface in &mut spec.domain.devices.interfaces {
            interface.state = None;
        }
    }
    digest(spec.as_ref())
}

/// Whether `vmi` was made from another template than `vm` has. One made by hand never was.
pub fn is_outdated(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    let Some(made_from) = vmi.annotations().get(TEMPLATE_DIGEST) else { return false };
    let spec = || vm.spec.template.as_ref().and_then(|template| template.spec.clone());
    // Earlier releases' had in it where the machine may run, and the state of links as well.
    *made_from != template_digest(vm, &vmi.spec)
        && *made_from != digest_of(spec(), &vmi.spec)
        && *made_from != digest(spec())
}

/// Whether the template of `vm` has other labels or annotations now than when `vmi` was made from it. False for an instance of a
/// release that did not write their digest.
pub fn has_other_metadata(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    vmi.annotations().get(METADATA_DIGEST).is_some_and(|made_from| *made_from != metadata_digest(vm))
}

fn metadata_digest(vm: &VirtualMachine) -> String {
    let metadata = vm.spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    digest(metadata.map(|metadata| (&metadata.labels, &metadata.annotations)))
}

/// Links that are to be others than they are: place of the interface in the instance, its name, and the state that the
/// template has for it.
pub fn links(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Vec<Link> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let wanted: &[Interface] = spec.map_or(&[], |spec| &spec.domain.devices.interfaces);
    let up = InterfaceState::from(UP);
    let state = |interface: &Interface| {
        interface.state.clone().filter(|state| !state.as_str().is_empty()).unwrap_or(up.clone())
    };
    let present = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let changed = present.filter_map(|(index, interface)| {
        let wanted = wanted.iter().find(|wanted| wanted.name == interface.name)?;
        let link = !wanted.is_absent() && !interface.is_absent();
        let (wanted, name) = (state(wanted), interface.name.clone());
        (link && wanted != state(interface)).then_some(Link { index, name, state: wanted })
    });
    changed.collect()
}

/// A link that is to be another one than it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Place of the interface.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// `up` or `down`.
    pub state: InterfaceState,
}

/// The state of a link that the manifest does not name.
const UP: &str = "up";

/// A digest of a part of a manifest, the same in all releases.
pub(crate) fn digest(part: Option<impl Serialize>) -> String {
    // Values that were read from JSON can be written again. Were it not so, all templates would be equal: a
    // machine would run on, and miss a hint.
    let text = serde_json::to_vec(&part).unwrap_or_default();
    // FNV-1a: must be the same in all replicas and versions, and need not withstand an attacker.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Generation of the VirtualMachine that `vmi` was made from, or was found to be equal to.
pub fn generation_of(vmi: &VirtualMachineInstance) -> Option<i64> {
    vmi.annotations().get(annotation::VM_GENERATION)?.parse().ok()
}

/// Annotations that tell which instance type and which preference `vm` names.
fn origins(vm: &VirtualMachine) -> impl Iterator<Item = (String, String)> {
    Subject::ALL.into_iter().filter_map(|subject| {
        let matcher = Matcher::of(vm, subject)?;
        let scope = matcher.scope(subject).ok()?;
        Some((subject.annotation(scope).to_owned(), matcher.name()?.to_owned()))
    })
}

/// The instance to start `vm` with, whose template has its instance type and its preference applied. `paused`: the guest's processors wait for an unpause.
pub fn render(vm: &VirtualMachine, paused: bool) -> VirtualMachineInstance {
    let template = vm.spec.template.clone().unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(annotation::VM_GENERATION.into(), vm.meta().generation.unwrap_or(0).to_string());
    annotations.extend(origins(vm));
    let mut spec = template.spec.unwrap_or_default();
    if vm.spec.preference.is_some() {
        // The webhook has left it to the preference, which says nothing.
        spec.termination_grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
    }
    attach_input(&mut spec.domain.devices);
    nics::leave_absent_out(&mut spec);
    // It comes once the machine runs, if its memory is to be dumped.
    spec.volumes.retain(|volume| volume.memory_dump.is_none());
    annotations.insert(TEMPLATE_DIGEST.into(), template_digest(vm, &spec));
    annotations.insert(METADATA_DIGEST.into(), metadata_digest(vm));
    let metadata = ObjectMeta {
        name: Some(vm.name_any()),
        namespace: vm.namespace(),
        labels: given.labels,
        annotations: Some(annotations),
        owner_references: owner(vm).map(|owner| vec![owner]),
        finalizers: Some(vec![names::VMI_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    identify(&mut spec, &vm.namespace().unwrap_or_default(), &vm.name_any());
    if paused {
        spec.start_strategy = Some(StartStrategy::Paused);
    }
    let mut vmi = VirtualMachineInstance { metadata, spec, ..VirtualMachineInstance::default() };
    vmi.status.virtual_machine_revision_name = Some(revision::name(vm));
    vmi
}

/// The reference that makes `vm` the controller of an instance.
pub(super) fn owner(vm: &VirtualMachine) -> Option<OwnerReference> {
    let owner = vm.controller_owner_ref(&())?;
    Some(OwnerReference { block_owner_deletion: Some(true), ..owner })
}

/// Gives firmware and interfaces the identity that the template leaves open.
fn identify(spec: &mut VirtualMachineInstanceSpec, namespace: &str, name: &str) {
    let firmware = spec.domain.firmware.get_or_insert_with(Firmware::default);
    if firmware.uuid.as_deref().unwrap_or_default().is_empty() {
        firmware.uuid = Some(uuid(&[namespace, name, ""]));
    }
    for interface in &mut spec.domain.devices.interfaces {
        nics::address(interface, namespace, name);
    }
}
