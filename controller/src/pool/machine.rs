//! The VMs that a pool's template makes.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use podvirt_api::names::label;
use podvirt_api::names::limits::{self, MAX_OBJECT_NAME_BYTES};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstanceSpec, VirtualMachinePool as Pool, VirtualMachineSpec, Volume,
};

use super::choose::index_of;
use super::revision;

/// Bytes that are left for the number in a VM's name, and for the hyphen before it.
const INDEX_MAX_BYTES: usize = 11;

/// The names of `count` new VMs: the pool's name and the lowest numbers that no VM of the namespace has.
pub(super) fn new_names(pool: &Pool, count: usize, taken: &HashSet<String>) -> Vec<String> {
    let pool = pool.name_any();
    let base = limits::shortened(&pool, MAX_OBJECT_NAME_BYTES - INDEX_MAX_BYTES);
    let names = (0..).map(|index: usize| format!("{base}-{index}"));
    names.filter(|name| !taken.contains(name)).take(count).collect()
}

/// A new VM of the pool.
pub(super) fn render(pool: &Pool, name: &str) -> VirtualMachine {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: pool.namespace(),
        owner_references: pool
            .controller_owner_ref(&())
            .map(|owner| vec![OwnerReference { block_owner_deletion: Some(true), ..owner }]),
        ..ObjectMeta::default()
    };
    let mut vm = VirtualMachine { metadata, ..VirtualMachine::default() };
    fill(pool, &mut vm);
    vm
}

/// A VM of the pool as the pool's template has it now. What identifies the machine to its guest stays.
pub(super) fn renewed(pool: &Pool, old: &VirtualMachine) -> VirtualMachine {
    let mut vm = old.clone();
    fill(pool, &mut vm);
    if let (Some(old), Some(new)) = (instance(&old.spec), instance_mut(&mut vm.spec)) {
        keep_identity(old, new);
    }
    vm
}

/// Writes the template into a VM, whose name says its number.
fn fill(pool: &Pool, vm: &mut VirtualMachine) {
    let template = pool.spec.virtual_machine_template.clone().unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let revision = revision::name(pool);
    let mut labels = given.labels.unwrap_or_default();
    labels.insert(label::POOL_REVISION.into(), revision.clone());
    vm.metadata.labels = Some(labels);
    vm.metadata.annotations = given.annotations;
    vm.spec = template.spec.unwrap_or_default();
    let metadata = vm.spec.template.get_or_insert_default().metadata.get_or_insert_default();
    metadata.labels.get_or_insert_with(BTreeMap::new).insert(label::POOL_REVISION.into(), revision);
    let suffix = format!("-{}", index_of(vm));
    let names = pool.spec.name_generation.as_ref();
    let config_maps = names.and_then(|names| names.append_index_to_config_map_refs) == Some(true);
    let secrets = names.and_then(|names| names.append_index_to_secret_refs) == Some(true);
    number_data_volumes(&mut vm.spec, &suffix);
    for volume in instance_mut(&mut vm.spec).into_iter().flat_map(|spec| &mut spec.volumes) {
        number(volume, &suffix, config_maps, secrets);
    }
}

/// Appends the VM's number to the names of its DataVolumes, each VM having its own, and to what refers to them.
fn number_data_volumes(spec: &mut VirtualMachineSpec, suffix: &str) {
    let mut renamed = HashSet::new();
    for metadata in spec.data_volume_templates.iter_mut().filter_map(|template| template.metadata.as_mut()) {
        let name = metadata.name.get_or_insert_default();
        renamed.insert(name.clone());
        *name = limits::shortened_with(name, suffix, MAX_OBJECT_NAME_BYTES);
    }
    for volume in instance_mut(spec).into_iter().flat_map(|spec| &mut spec.volumes) {
        let claim = volume.persistent_volume_claim.as_mut().map(|claim| &mut claim.claim_name);
        let data = volume.data_volume.as_mut().map(|data| &mut data.name);
        for name in claim.into_iter().chain(data).filter(|name| renamed.contains(*name)) {
            *name = limits::shortened_with(name, suffix, MAX_OBJECT_NAME_BYTES);
        }
    }
}

/// Appends the VM's number to what a volume refers to.
fn number(volume: &mut Volume, suffix: &str, config_maps: bool, secrets: bool) {
    if let Some(source) = volume.config_map.as_mut().filter(|_| config_maps) {
        source.name.get_or_insert_default().push_str(suffix);
    }
    if !secrets {
        return;
    }
    if let Some(source) = &mut volume.secret {
        source.secret_name.get_or_insert_default().push_str(suffix);
    }
    let refer = |secret: &mut Option<LocalObjectReference>| {
        if let Some(secret) = secret {
            secret.name.push_str(suffix);
        }
    };
    if let Some(source) = &mut volume.cloud_init_no_cloud {
        refer(&mut source.secret_ref);
        refer(&mut source.network_data_secret_ref);
    }
    if let Some(source) = &mut volume.cloud_init_config_drive {
        refer(&mut source.secret_ref);
        refer(&mut source.network_data_secret_ref);
    }
}

/// Keeps what the guest knows its machine by: the firmware's UUID and serial number, and the type of machine where the
/// template leaves it open.
fn keep_identity(old: &VirtualMachineInstanceSpec, new: &mut VirtualMachineInstanceSpec) {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(old) = &old.domain.firmware {
        let (uuid, serial) = (text(&old.uuid), text(&old.serial));
        if uuid.is_some() || serial.is_some() {
            let firmware = new.domain.firmware.get_or_insert_default();
            firmware.uuid = uuid.or(firmware.uuid.take());
            firmware.serial = serial.or(firmware.serial.take());
        }
    }
    let is_open = new.domain.machine.as_ref().is_none_or(|machine| text(&machine.r#type).is_none());
    if is_open {
        new.domain.machine.clone_from(&old.domain.machine);
    }
}

fn instance(spec: &VirtualMachineSpec) -> Option<&VirtualMachineInstanceSpec> {
    spec.template.as_ref()?.spec.as_ref()
}

fn instance_mut(spec: &mut VirtualMachineSpec) -> Option<&mut VirtualMachineInstanceSpec> {
    spec.template.as_mut()?.spec.as_mut()
}
