//! The machine that a snapshot is of: pure functions of what is seen.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use podvirt_api::cdi::DataVolume;
use podvirt_api::snapshot::{SOURCE_FINALIZER, claim};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceConditionType as Condition, Volume,
};

use crate::data::DataVolumes;
use crate::storage::{Storage, backend, is_bound, uses};
use crate::vm::is_final;

/// What a source says while its snapshot holds it.
pub(super) const LOCKED: &str = "Source locked and operation in progress";
/// What it says before that.
pub(super) const NOT_LOCKED: &str = "Source not locked";

/// A machine and its instance.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The machine.
    pub vm: &'a VirtualMachine,
    /// Its instance, if it has one.
    pub vmi: Option<&'a VirtualMachineInstance>,
}

impl Source<'_> {
    /// Its instance, unless that has ended: then it uses nothing, and its conditions are of the past.
    pub(super) fn living(&self) -> Option<&VirtualMachineInstance> {
        self.vmi.filter(|vmi| !is_final(vmi))
    }

    fn has(&self, kind: &Condition) -> bool {
        let is = |vmi: &VirtualMachineInstance| {
            vmi.status.conditions.iter().any(|one| one.r#type == *kind && one.status == "True")
        };
        self.living().is_some_and(is)
    }

    /// Whether it has an instance that has not ended.
    pub fn is_online(&self) -> bool {
        self.living().is_some()
    }

    /// Whether the guest stands still.
    pub fn is_paused(&self) -> bool {
        self.has(&Condition::Paused)
    }

    /// Whether the guest's agent answers.
    pub fn has_agent(&self) -> bool {
        self.has(&Condition::AgentConnected)
    }

    /// Whether the guest can be asked to freeze its file systems.
    pub fn freezes(&self) -> bool {
        self.has_agent() && !self.is_paused()
    }

    /// Whether the snapshot of this name is the one that the machine is held by, in part at least.
    pub fn is_held_by(&self, snapshot: &str) -> bool {
        self.vm.status.snapshot_in_progress.as_deref() == Some(snapshot)
    }

    /// Whether the snapshot of this name holds the machine.
    pub fn is_locked_by(&self, snapshot: &str) -> bool {
        self.is_held_by(snapshot) && self.vm.finalizers().iter().any(|one| one == SOURCE_FINALIZER)
    }
}

/// The volumes of a machine, and the one with the state of its firmware and TPM.
pub(super) fn volumes(vm: &VirtualMachine, storage: &Storage) -> Vec<Volume> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.map_or(&[][..], |spec| &spec.volumes);
    volumes.iter().cloned().chain(backend::volume_of(vm, storage)).collect()
}

/// Names of the claims of a machine's volumes.
pub(super) fn claims(vm: &VirtualMachine, storage: &Storage) -> Vec<String> {
    volumes(vm, storage).iter().filter_map(claim).map(ToOwned::to_owned).collect()
}

/// What keeps a machine's volumes from being taken by the snapshot of this name, in upstream's words. `pods` use its claims.
pub(super) fn obstacle(
    source: Source<'_>,
    snapshot: &str,
    storage: &Storage,
    data: &DataVolumes,
    pods: usize,
) -> Option<String> {
    let vm = source.vm;
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let claims = claims(vm, storage);
    for name in &claims {
        let Some(claim) = storage.claims.get(namespace, name) else {
            return Some(wrong(vm, "volume doesnt exist", name));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(wrong(vm, "volume is being deleted", name));
        }
        if !is_bound(&claim) {
            return Some(wrong(vm, "volume not bound", name));
        }
        if !is_filled(&claim, namespace, data) {
            return Some(wrong(vm, "volume not populated", name));
        }
    }
    if !source.is_online() && pods > 0 {
        return Some(format!("source is offline but {pods} pods using PVCs {}", claims.join(" ")));
    }
    let other = vm.status.snapshot_in_progress.as_deref().filter(|name| *name != snapshot);
    other.map(|other| format!("snapshot {other:?} in progress"))
}

fn wrong(vm: &VirtualMachine, what: &str, claim: &str) -> String {
    format!("source {}/{} {what}: {claim}", vm.namespace().unwrap_or_default(), vm.name_any())
}

/// Whether CDI has filled a claim, or it is not CDI's to fill.
pub(crate) fn is_filled(claim: &PersistentVolumeClaim, namespace: &str, data: &DataVolumes) -> bool {
    let Some(name) = DataVolume::of_claim(&claim.metadata) else { return true };
    data.get(namespace, name).is_some_and(|data| data.status.phase == "Succeeded")
}

/// How many of these pods use a claim of the machine's volumes.
pub(super) fn users(vm: &VirtualMachine, storage: &Storage, pods: &[Pod]) -> usize {
    let claims = claims(vm, storage);
    pods.iter().filter(|pod| claims.iter().any(|claim| uses(pod, claim))).count()
}
