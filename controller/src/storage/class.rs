//! How a snapshot of a claim is taken, and what a machine's status tells of its volumes: pure functions of the caches.

use podvirt_api::csi::DEFAULT_CLASS;
use podvirt_api::snapshot::claim;
use podvirt_api::v1::{VirtualMachine, Volume, VolumeSnapshotStatus};

use super::{Storage, backend, class_of};
use crate::data::look::name_of;
use crate::data::{DataVolumes, Served};

/// Several classes are for the driver, and none of them is the default one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} matching VolumeSnapshotClasses for {class}")]
pub struct Ambiguous {
    count: usize,
    class: String,
}

/// Name of the VolumeSnapshotClass for claims of a storage class, if there is one.
///
/// # Errors
///
/// [`Ambiguous`].
pub fn snapshot_class(class: &str, storage: &Storage) -> Result<Option<String>, Ambiguous> {
    // What the cache has of a kind that is gone does not count.
    if storage.snapshot_classes.served() == Served::No {
        return Ok(None);
    }
    let Some(known) = storage.classes.named(class) else { return Ok(None) };
    let profile = storage.profiles.named(class);
    let told =
        profile.and_then(|profile| profile.status.snapshot_class.clone()).filter(|name| !name.is_empty());
    if let Some(told) = told {
        return Ok(storage.snapshot_classes.named(&told).map(|_| told));
    }
    let all = storage.snapshot_classes.all();
    let mut matching: Vec<_> = all.iter().filter(|one| one.driver == known.provisioner).collect();
    matching.sort_by_key(|one| &one.metadata.name);
    let is_default = |annotations: &std::collections::BTreeMap<_, _>| annotations.contains_key(DEFAULT_CLASS);
    let found = match matching.len() {
        0 => return Ok(None),
        1 => matching.first(),
        _ => matching.iter().find(|one| one.metadata.annotations.as_ref().is_some_and(is_default)),
    };
    let ambiguous = || Ambiguous { count: matching.len(), class: class.to_owned() };
    found.map(|one| one.metadata.name.clone()).ok_or_else(ambiguous)
}

/// Of which volumes of a machine snapshots can be taken, and why not of the others. `None` while the caches are not filled.
pub fn snapshot_statuses(
    vm: &VirtualMachine,
    storage: &Storage,
    data: &DataVolumes,
) -> Option<Vec<VolumeSnapshotStatus>> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.map_or(&[][..], |spec| &spec.volumes);
    let caches = [
        storage.claims.served(),
        storage.classes.served(),
        storage.snapshot_classes.served(),
        storage.profiles.served(),
        data.served(),
    ];
    let needs = volumes.iter().any(|volume| claim(volume).is_some());
    if needs && caches.contains(&Served::Unknown) {
        return None;
    }
    let state = backend::volume_of(vm, storage);
    Some(volumes.iter().chain(&state).map(|volume| of_volume(vm, volume, storage, data)).collect())
}

fn of_volume(
    vm: &VirtualMachine,
    volume: &Volume,
    storage: &Storage,
    data: &DataVolumes,
) -> VolumeSnapshotStatus {
    let name = &volume.name;
    let because =
        |reason: String| VolumeSnapshotStatus { name: name.clone(), enabled: false, reason: Some(reason) };
    let Some(claim) = claim(volume) else {
        return because(format!("Snapshot is not supported for this volumeSource type [{name}]"));
    };
    let Some(class) = storage_class(vm, volume, claim, storage, data) else {
        return because("PVC not found".to_owned());
    };
    match snapshot_class(&class, storage) {
        Ok(Some(_)) => VolumeSnapshotStatus { name: name.clone(), enabled: true, reason: None },
        Ok(None) => because(format!(
            "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [{class}] [{name}]"
        )),
        Err(error) => because(error.to_string()),
    }
}

/// The storage class of a volume: what its DataVolume or the machine's template of this says, else what its claim says, which may
/// be none. `None`: there is no claim yet.
fn storage_class(
    vm: &VirtualMachine,
    volume: &Volume,
    claim: &str,
    storage: &Storage,
    data: &DataVolumes,
) -> Option<String> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let said = |spec: &serde_json::Value| spec["pvc"]["storageClassName"].as_str().map(ToOwned::to_owned);
    if volume.data_volume.is_some()
        && let Some(data) = data.get(namespace, claim)
    {
        if let Some(class) = said(&data.spec).filter(|class| !class.is_empty()) {
            return Some(class);
        }
        let mut templates = vm.spec.data_volume_templates.iter();
        let of_template = templates.find(|one| name_of(one) == claim).and_then(|one| said(&one.spec));
        if of_template.is_some() {
            return of_template;
        }
    }
    let claim = storage.claims.get(namespace, claim)?;
    Some(class_of(&claim).unwrap_or_default().to_owned())
}

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;
