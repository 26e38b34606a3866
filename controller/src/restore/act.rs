//! Carrying out what comes next: claims, DataVolumes, the machine.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, ResourceExt};
use podvirt_api::cdi::{DataVolume, POPULATED_FOR, PREPOPULATED};
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::instancetype::is_same;
use podvirt_api::names::event;
use podvirt_api::snapshot::{LAST_RESTORE, RESTORE_NAME};
use podvirt_api::v1::{
    DataVolumeTemplateSpec, VirtualMachine, VirtualMachineRestore as Restore,
    VirtualMachineSnapshotContent as Content, VolumeRestore,
};
use serde_json::json;

use super::claim;
use super::controller::Context;
use super::decide::Claim;
use crate::attachments::reason_of;
use crate::claim::{Ownership, ownership};
use crate::data::clone::without_foreign_source;
use crate::data::look::name_of;
use crate::data::template::data_volume;
use crate::failure::{Error, is_failed_test};
use crate::snapshot::copy_revision;
use crate::storage::uses;

/// The part of a JSON pointer that an annotation's name is.
fn pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

pub(super) fn claims(context: &Context, restore: &Restore) -> Api<PersistentVolumeClaim> {
    Api::namespaced(context.client.clone(), &restore.namespace().unwrap_or_default())
}

fn refused(what: &str) -> impl FnOnce(kube::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::Refused(format!("{what}: {}", reason_of(&error)))
}

/// Makes or deletes claims. A claim that is deleted is noted with its DataVolume first: the notes as they are to be, if that is so.
pub(super) async fn change_claims(
    context: &Context,
    restore: &Restore,
    target: Option<&VirtualMachine>,
    content: &Content,
    steps: &[Claim],
) -> Result<Option<Vec<VolumeRestore>>, Error> {
    let mut noted = restore.status.restores.clone();
    for step in steps {
        if let Claim::Replace { name, data: Some(data), .. } = step {
            let of = noted.iter_mut().filter(|one| one.persistent_volume_claim == *name);
            of.for_each(|one| one.data_volume_name = Some(data.clone()));
        }
    }
    if noted != restore.status.restores {
        return Ok(Some(noted));
    }
    let api = claims(context, restore);
    ensure_unused(context, restore, steps).await?;
    for step in steps {
        match step {
            Claim::Make(place) => {
                if let Some(to) = restore.status.restores.get(*place) {
                    make_claim(context, restore, target, content, to).await?;
                }
            }
            Claim::Replace { name, uid, data } => {
                if let Some(data) = data {
                    leave_to_us(context, restore, data).await?;
                }
                let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
                match api.delete(name, &DeleteParams::default().preconditions(only)).await {
                    Ok(_) => tracing::info!(claim = name, "claim deleted, to be restored under its name"),
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                    Err(error) => return Err(refused(&format!("claim {name} not deleted"))(error)),
                }
            }
        }
    }
    Ok(None)
}

/// Refuses where a pod has a claim that is to be deleted: it would go at the pod's end, with all that was written until then.
async fn ensure_unused(context: &Context, restore: &Restore, steps: &[Claim]) -> Result<(), Error> {
    let replaced = |step: &Claim| match step {
        Claim::Replace { name, .. } => Some(name.clone()),
        Claim::Make(_) => None,
    };
    let names: Vec<String> = steps.iter().filter_map(replaced).collect();
    if names.is_empty() {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &restore.namespace().unwrap_or_default());
    let pods = pods.list(&ListParams::default()).await?;
    match names.iter().find_map(|name| Some((name, pods.items.iter().find(|pod| uses(pod, name))?))) {
        Some((name, pod)) => {
            let pod = pod.name_any();
            Err(Error::Refused(format!("claim {name} not deleted: pod {pod} uses it")))
        }
        None => Ok(()),
    }
}

async fn make_claim(
    context: &Context,
    restore: &Restore,
    target: Option<&VirtualMachine>,
    content: &Content,
    to: &VolumeRestore,
) -> Result<(), Error> {
    let none = |what: &str| Error::Refused(format!("volume {}: {what}", to.volume_name));
    let mut backups = content.spec.volume_backups.iter();
    let backup = backups
        .find(|one| one.volume_name == to.volume_name)
        .ok_or_else(|| none("volume backup not found"))?;
    let vm =
        content.spec.source.virtual_machine.as_ref().ok_or_else(|| none("unexpected snapshot source"))?;
    let namespace = restore.namespace().unwrap_or_default();
    let volumes: Api<VolumeSnapshot> = Api::namespaced(context.client.clone(), &namespace);
    let taken = volumes.get_opt(&to.volume_snapshot_name).await?;
    let taken = taken.ok_or_else(|| none(&format!("missing volumeSnapshot {}", to.volume_snapshot_name)))?;
    let made = claim::restored(restore, target, vm, backup, to, &taken);
    match claims(context, restore).create(&PostParams::default(), &made).await {
        Ok(_) => {
            tracing::info!(claim = to.persistent_volume_claim, "claim made");
            Ok(())
        }
        // The cache lags, or the claim of this name goes first.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(refused(&format!("claim {} not made", to.persistent_volume_claim))(error)),
    }
}

fn data_volumes(context: &Context, restore: &Restore) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<DataVolume>(&());
    Api::namespaced_with(context.client.clone(), &restore.namespace().unwrap_or_default(), &kind)
}

/// Tells CDI that the claim of a DataVolume is filled by another hand, so that CDI does not make the claim anew.
async fn leave_to_us(context: &Context, restore: &Restore, data: &str) -> Result<(), Error> {
    let annotations = json!({ RESTORE_NAME: restore.name_any(), PREPOPULATED: data });
    let change = json!({"metadata": {"annotations": annotations}});
    let api = data_volumes(context, restore);
    let done = api.patch(data, &PatchParams::default(), &Patch::Merge(change)).await;
    done.map(drop).map_err(refused(&format!("DataVolume {data} not marked")))
}

/// Marks claims as those of DataVolumes, which will be their owners.
pub(super) async fn mark(context: &Context, restore: &Restore, noted: &[VolumeRestore]) -> Result<(), Error> {
    for to in noted {
        let (name, Some(data)) = (&to.persistent_volume_claim, &to.data_volume_name) else { continue };
        let claim = claims(context, restore).get(name).await?;
        if claim.annotations().get(POPULATED_FOR) == Some(data) {
            continue;
        }
        let change = json!({"metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { POPULATED_FOR: data },
            "ownerReferences": null,
        }});
        let done = claims(context, restore).patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        done.map_err(refused(&format!("claim {name} not marked")))?;
    }
    Ok(())
}

/// The DataVolume of a template that takes over the restored claim `filled`. The template is what the author of the snapshot's content or
/// of the restore's patches says: nothing of another namespace is copied by virt-controller's rights.
pub(super) fn restored_data(
    restore: &Restore,
    target: Option<&VirtualMachine>,
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
    filled: Option<&PersistentVolumeClaim>,
) -> DynamicObject {
    let mut made = data_volume(vm, template);
    let owner = target.filter(|_| claim::owns(restore)).and_then(claim::owner);
    if target.is_none() {
        // There is no machine yet that has a UID.
        made.labels_mut().remove(podvirt_api::names::label::CREATED_BY);
    }
    made.metadata.owner_references = owner.map(|owner| vec![owner]);
    made.annotations_mut().insert(RESTORE_NAME.into(), restore.name_any());
    made.annotations_mut().insert(PREPOPULATED.into(), "true".into());
    let requests = filled.and_then(|claim| claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage"));
    let namespace = restore.namespace().unwrap_or_default();
    without_foreign_source(&mut made.data["spec"], &namespace, storage);
    made
}

/// Makes DataVolumes of templates, which take over the restored claims.
pub(super) async fn make_data(
    context: &Context,
    restore: &Restore,
    target: Option<&VirtualMachine>,
    vm: &VirtualMachine,
    places: &[usize],
) -> Result<(), Error> {
    let namespace = restore.namespace().unwrap_or_default();
    for template in places.iter().filter_map(|place| vm.spec.data_volume_templates.get(*place)) {
        let filled = context.storage.claims.get(&namespace, name_of(template));
        let made = restored_data(restore, target, vm, template, filled.as_deref());
        let name = made.name_any();
        match data_volumes(context, restore).create(&PostParams::default(), &made).await {
            Ok(_) => tracing::info!(data_volume = name, "DataVolume made"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                let why = reason_of(&error);
                let message = format!("Error creating restore DataVolume {name}: {why}");
                context.recorder.warning(restore, event::RESTORE_DATA_VOLUME_CREATE_ERROR, &message).await;
                return Err(Error::Refused(format!("Failed to create restore DataVolume: {why}")));
            }
        }
    }
    Ok(())
}

/// Writes the machine: a new one, or the specification of the one that is there.
pub(super) async fn write_machine(
    context: &Context,
    restore: &Restore,
    target: Option<&VirtualMachine>,
    vm: &VirtualMachine,
) -> Result<(), Error> {
    let mut vm = vm.clone();
    restore_revisions(context, restore, target, &mut vm).await?;
    let machines: Api<VirtualMachine> =
        Api::namespaced(context.client.clone(), &restore.namespace().unwrap_or_default());
    let name = vm.name_any();
    let Some(there) = target else {
        let made = machines.create(&PostParams::default(), &vm).await;
        made.map_err(refused(&format!("VirtualMachine {name} not made")))?;
        tracing::info!(vm = name, "machine made");
        return Ok(());
    };
    let done = vm.annotations().get(LAST_RESTORE).cloned().unwrap_or_default();
    let mut change = vec![
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": there.resource_version()}),
        json!({"op": "replace", "path": "/spec", "value": vm.spec}),
    ];
    if there.metadata.annotations.is_none() {
        change.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let path = format!("/metadata/annotations/{}", pointer(LAST_RESTORE));
    change.push(json!({"op": "add", "path": path, "value": done}));
    let change: json_patch::Patch = serde_json::from_value(change.into()).map_err(kube::Error::SerdeError)?;
    match machines.patch(&name, &PatchParams::default(), &Patch::Json::<()>(change)).await {
        Ok(_) => {
            tracing::info!(vm = name, "machine restored");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_conflict() || is_failed_test(&status) => Err(Error::Stale),
        Err(error) => Err(refused(&format!("VirtualMachine {name} not restored"))(error)),
    }
}

/// Has the machine name its own copies of what the snapshot has of the instance type and the preference.
async fn restore_revisions(
    context: &Context,
    restore: &Restore,
    target: Option<&VirtualMachine>,
    vm: &mut VirtualMachine,
) -> Result<(), Error> {
    let (metadata, name) = (vm.metadata.clone(), vm.name_any());
    let snapshot = restore.spec.virtual_machine_snapshot_name.clone();
    let of_type = vm.spec.instancetype.as_mut().and_then(|one| one.revision_name.as_mut());
    let of_preference = vm.spec.preference.as_mut().and_then(|one| one.revision_name.as_mut());
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let revisions: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    for revision in [of_type, of_preference].into_iter().flatten().filter(|name| !name.is_empty()) {
        let own = revision.replacen(&snapshot, &name, 1);
        if own != *revision
            && let Some(there) = revisions.get_opt(&own).await?
        {
            let of_snapshot = revisions.get(revision).await?;
            if !is_same(&there, &of_snapshot) {
                let new = ObjectMeta::default();
                let machine = target.map_or(&new, |vm| &vm.metadata);
                match ownership(machine, &there.metadata) {
                    Ownership::Ours | Ownership::Unowned => {}
                    Ownership::Foreign | Ownership::Leaving => {
                        let why = format!("ControllerRevision {own} exists, and is not the target's");
                        return Err(Error::Refused(why));
                    }
                }
                // Revisions do not change: another one takes the name.
                let only = Preconditions { uid: there.uid(), resource_version: None };
                revisions.delete(&own, &DeleteParams::default().preconditions(only)).await?;
            }
        }
        let owner = target.and_then(claim::owner);
        *revision = copy_revision(&context.client, &metadata, revision, (&snapshot, &name), owner).await?;
    }
    Ok(())
}
