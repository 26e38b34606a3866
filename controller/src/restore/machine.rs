//! The machine that a restore leads to: a pure function.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use podvirt_api::admission::snapshot::PATCHED_PATHS;
use podvirt_api::defaults::uuid;
use podvirt_api::names::label;
use podvirt_api::patch::Patch;
use podvirt_api::snapshot::{LAST_RESTORE, restored_by};
use podvirt_api::v1::{
    PersistentVolumeClaimVolumeSource, SnapshotVirtualMachine, VirtualMachine,
    VirtualMachineRestore as Restore, VirtualMachineRunStrategy as Strategy, VirtualMachineSpec, Volume,
};

use super::decide::is_kept;
use crate::data::look::name_of;

/// Why a restore leads to no machine.
#[derive(Debug, thiserror::Error)]
pub(super) enum MachineError {
    #[error(transparent)]
    Machine(#[from] serde_json::Error),
    #[error("spec.patches")]
    Refused(#[from] podvirt_api::patch::PatchError),
    #[error("spec.patches")]
    NoMachine(#[source] serde_json::Error),
    #[error("spec.template.metadata.labels: only podvirt may set the label {0}")]
    Reserved(String),
}

/// The place of a DataVolume among the templates of a machine.
pub(super) fn template(spec: &VirtualMachineSpec, data: &str) -> Option<usize> {
    spec.data_volume_templates.iter().position(|template| name_of(template) == data)
}

/// The machine `target`, or a new one, as the snapshot has it, on the restored claims.
///
/// # Errors
///
/// A patch of the restore cannot be applied, or the machine has what admission does not let its user write.
pub(super) fn restored(
    restore: &Restore,
    stored: &SnapshotVirtualMachine,
    target: Option<&VirtualMachine>,
) -> Result<VirtualMachine, MachineError> {
    let of = stored.spec.clone().unwrap_or_default();
    let spec = on_claims(restore, of);
    let mut vm = match target {
        Some(there) => {
            let mut vm = VirtualMachine { spec, ..there.clone() };
            // It runs when it is started, as before.
            (vm.spec.running, vm.spec.run_strategy) = match (there.spec.running, &there.spec.run_strategy) {
                (Some(_), _) => (Some(false), None),
                (None, strategy) => (None, strategy.clone()),
            };
            vm
        }
        None => {
            let metadata = stored.metadata.clone().unwrap_or_default();
            let mut vm = VirtualMachine { spec, ..VirtualMachine::default() };
            vm.metadata.name = Some(restore.spec.target.name.clone());
            vm.metadata.namespace = restore.namespace();
            (vm.metadata.labels, vm.metadata.annotations) = (metadata.labels, metadata.annotations);
            if is_kept(stored) {
                same_uuid(&mut vm, &stored.metadata.clone().unwrap_or_default());
            }
            if vm.spec.running.is_some() {
                vm.spec.running = Some(false);
            } else {
                vm.spec.run_strategy = Some(Strategy::Halted);
            }
            vm
        }
    };
    vm.metadata.annotations.get_or_insert_default().insert(LAST_RESTORE.into(), restored_by(restore));
    let vm = if target.is_none() { patched(vm, &restore.spec.patches)? } else { vm };
    // virt-controller writes the machine, and may set these: the author of the snapshot's content or of the patches may not.
    let labels = vm.spec.template.as_ref().and_then(|template| template.metadata.as_ref()?.labels.as_ref());
    match labels.into_iter().flat_map(|labels| labels.keys()).find(|name| label::is_reserved(name)) {
        Some(name) => Err(MachineError::Reserved(name.clone())),
        None => Ok(vm),
    }
}

/// Gives a machine that is made anew the UUID that it had: what its TPM holds is found by that.
fn same_uuid(vm: &mut VirtualMachine, was: &ObjectMeta) {
    let spec = vm.spec.template.as_mut().and_then(|template| template.spec.as_mut());
    let Some(firmware) = spec.map(|spec| spec.domain.firmware.get_or_insert_default()) else { return };
    if firmware.uuid.as_deref().is_none_or(str::is_empty) {
        let words = [&was.namespace, &was.name, &was.uid].map(|word| word.as_deref().unwrap_or_default());
        firmware.uuid = Some(uuid(&words));
    }
}

/// The specification with the restored claims and DataVolumes in the places of those of the snapshot.
fn on_claims(restore: &Restore, of: VirtualMachineSpec) -> VirtualMachineSpec {
    let mut spec = of.clone();
    let volumes =
        spec.template.as_mut().and_then(|template| template.spec.as_mut()).map(|spec| &mut spec.volumes);
    let Some(volumes) = volumes else { return spec };
    volumes.retain(|volume| volume.memory_dump.is_none());
    let mut renamed = Vec::new();
    for volume in volumes {
        let Some(to) = restore.status.restores.iter().find(|one| one.volume_name == volume.name) else {
            continue;
        };
        if let Some(data) = &mut volume.data_volume {
            match (template(&of, &data.name), &to.data_volume_name) {
                (Some(place), Some(name)) => {
                    renamed.push((place, name.clone()));
                    data.name.clone_from(name);
                }
                _ => {
                    *volume = Volume {
                        name: volume.name.clone(),
                        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                            claim_name: to.persistent_volume_claim.clone(),
                            ..PersistentVolumeClaimVolumeSource::default()
                        }),
                        ..Volume::default()
                    }
                }
            }
        } else if let Some(claim) = &mut volume.persistent_volume_claim {
            claim.claim_name.clone_from(&to.persistent_volume_claim);
        }
    }
    for (place, name) in renamed {
        if let Some(template) = spec.data_volume_templates.get_mut(place) {
            template.metadata.get_or_insert_default().name = Some(name);
        }
    }
    spec
}

/// The machine with the operations of a JSON patch, each of which is a text, applied. A replacement of what is not there adds it.
fn patched(vm: VirtualMachine, patches: &[String]) -> Result<VirtualMachine, MachineError> {
    if patches.is_empty() {
        return Ok(vm);
    }
    let patch = Patch::from_operations(patches, &PATCHED_PATHS)?;
    let mut object = serde_json::to_value(&vm)?;
    patch.apply_or_add(&mut object)?;
    serde_json::from_value(object).map_err(MachineError::NoMachine)
}
