//! The claim that a volume of a snapshot is restored to: a pure function.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use podvirt_api::cdi::POPULATED_FOR;
use podvirt_api::csi::{GROUP, VOLUME_SNAPSHOT, VolumeSnapshot};
use podvirt_api::names::label_value;
use podvirt_api::quantity;
use podvirt_api::snapshot::{LAST_RESTORE, OWNED_BY_MACHINE, RESTORE_LABELS, RESTORE_NAME, restored_by};
use podvirt_api::state::PERSISTENT_STATE_FOR;
use podvirt_api::v1::{
    SnapshotVirtualMachine, VirtualMachine, VirtualMachineRestore as Restore, VolumeBackup,
    VolumeOwnershipPolicy, VolumeRestore,
};

/// Annotations that say how the claim of the snapshot was bound and filled.
const OF_ANOTHER: [&str; 6] = [
    "pv.kubernetes.io",
    "volume.beta.kubernetes.io",
    "cdi.kubevirt.io",
    "volume.kubernetes.io",
    "k8s.io/CloneRequest",
    "k8s.io/CloneOf",
];
/// Whether what is restored is to belong to the machine.
pub(super) fn owns(restore: &Restore) -> bool {
    restore.spec.volume_ownership_policy != Some(VolumeOwnershipPolicy::None)
}

/// The owner that a machine is.
pub(super) fn owner(vm: &VirtualMachine) -> Option<OwnerReference> {
    Some(OwnerReference { block_owner_deletion: Some(true), ..vm.controller_owner_ref(&())? })
}

/// The claim.
pub(super) fn restored(
    restore: &Restore,
    target: Option<&VirtualMachine>,
    vm: &SnapshotVirtualMachine,
    backup: &VolumeBackup,
    volume: &VolumeRestore,
    taken: &VolumeSnapshot,
) -> PersistentVolumeClaim {
    let of = backup.persistent_volume_claim.metadata.clone().unwrap_or_default();
    let name = restore.metadata.name.clone().unwrap_or_default();
    let source = vm.metadata.clone().unwrap_or_default();
    let mut claim = of_backup(&volume.persistent_volume_claim, backup, taken);
    let mut labels = claim.metadata.labels.unwrap_or_default();
    let texts = [source.name.clone(), source.namespace.clone()].map(Option::unwrap_or_default);
    for (label, text) in RESTORE_LABELS.iter().zip(&texts) {
        labels.insert((*label).to_owned(), label_value(text));
    }
    let mut annotations = claim.metadata.annotations.unwrap_or_default();
    for one in restore.spec.volume_restore_overrides.iter() {
        if one.volume_name.as_deref() == Some(&backup.volume_name) {
            labels.extend(one.labels.clone());
            annotations.extend(one.annotations.clone());
        }
    }
    annotations.insert(RESTORE_NAME.into(), name.clone());
    annotations.insert(LAST_RESTORE.into(), restored_by(restore));
    let mut owners = None;
    let mut of_owner = of.owner_references.iter().flatten();
    if let Some(data) = &volume.data_volume_name {
        annotations.insert(POPULATED_FOR.into(), data.clone());
    } else if owns(restore) {
        match target {
            Some(vm) => owners = owner(vm).map(|owner| vec![owner]),
            None if of_owner.any(|owner| is_machine(owner, &source)) => {
                annotations.insert(OWNED_BY_MACHINE.into(), name);
            }
            None => {}
        }
    }
    claim.metadata = ObjectMeta {
        namespace: restore.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: owners,
        ..claim.metadata
    };
    claim
}

/// A claim with what was taken of the claim of a backup, which it is like but for its name.
pub(crate) fn of_backup(name: &str, backup: &VolumeBackup, taken: &VolumeSnapshot) -> PersistentVolumeClaim {
    let of = backup.persistent_volume_claim.metadata.clone().unwrap_or_default();
    let mut labels = of.labels.unwrap_or_default();
    // It is the machine's state only once the machine is restored.
    labels.remove(PERSISTENT_STATE_FOR);
    let mut annotations = of.annotations.unwrap_or_default();
    annotations.retain(|name, _| !OF_ANOTHER.iter().any(|start| name.starts_with(start)));
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(specification(backup, taken)),
        status: None,
    }
}

fn is_machine(owner: &OwnerReference, source: &ObjectMeta) -> bool {
    owner.kind == "VirtualMachine"
        && Some(&owner.name) == source.name.as_ref()
        && Some(&owner.uid) == source.uid.as_ref()
}

/// As the claim of the snapshot was, as large as the snapshot at least.
fn specification(backup: &VolumeBackup, taken: &VolumeSnapshot) -> PersistentVolumeClaimSpec {
    let of = backup.persistent_volume_claim.spec.clone().unwrap_or_default();
    let name = backup.volume_snapshot_name.clone().unwrap_or_default();
    let mut resources = of.resources.unwrap_or_default();
    if let Some(least) = taken.status.as_ref().and_then(|status| status.restore_size.clone()) {
        let requests = resources.requests.get_or_insert_with(BTreeMap::new);
        let bytes = |quantity: &Quantity| quantity.0.parse::<quantity::Quantity>().ok();
        let asked = requests.get("storage").and_then(bytes);
        if asked.is_none() || asked < bytes(&least) {
            requests.insert("storage".into(), least);
        }
    }
    let group = Some(GROUP.to_owned());
    PersistentVolumeClaimSpec {
        access_modes: of.access_modes,
        resources: Some(resources),
        storage_class_name: of.storage_class_name,
        volume_mode: of.volume_mode,
        data_source: Some(TypedLocalObjectReference {
            api_group: group.clone(),
            kind: VOLUME_SNAPSHOT.into(),
            name: name.clone(),
        }),
        data_source_ref: Some(TypedObjectReference {
            api_group: group,
            kind: VOLUME_SNAPSHOT.into(),
            name,
            ..TypedObjectReference::default()
        }),
        ..PersistentVolumeClaimSpec::default()
    }
}
