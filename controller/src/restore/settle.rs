//! The end of a restore: owners, what the machine names no more, and the machine let go.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::names::{label, label_value};
use podvirt_api::snapshot::OWNED_BY_MACHINE;
use podvirt_api::state::PERSISTENT_STATE_FOR;
use podvirt_api::v1::{VirtualMachine, VirtualMachineRestore as Restore};
use podvirt_daemon::patch;
use serde_json::json;

use super::act::claims;
use super::claim::{self, owns};
use super::controller::Context;
use crate::claim::{Ownership, ownership};
use crate::data::look::name_of;
use crate::failure::Error;
use crate::storage::backend;

/// Gives the machine what was made for it, and deletes the DataVolumes that it names no more.
pub(super) async fn tidy(context: &Context, restore: &Restore, vm: &VirtualMachine) -> Result<(), Error> {
    own_revisions(context, vm).await?;
    if owns(restore) {
        own_claims(context, restore, vm).await?;
        own_data(context, vm).await?;
    }
    own_state(context, restore, vm).await?;
    let (api, namespace) = (data_volumes(context, vm), vm.namespace().unwrap_or_default());
    for name in &restore.status.deleted_data_volumes {
        // A template can name any DataVolume.
        let Some(data) = context.data.get(&namespace, name) else { continue };
        if ownership(&vm.metadata, &data.metadata) != Ownership::Ours {
            continue;
        }
        match api.delete(name, &only(&data.metadata)).await {
            Ok(_) => tracing::info!(data_volume = name, "DataVolume deleted: the machine names it no more"),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Deletes the very object that was seen.
fn only(object: &ObjectMeta) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid: object.uid.clone(), resource_version: None })
}

/// Lets the machine go, if this restore holds it.
pub(super) async fn let_go(context: &Context, restore: &Restore, vm: &VirtualMachine) -> Result<(), Error> {
    if vm.status.restore_in_progress.as_deref() != Some(&restore.name_any()) {
        return Ok(());
    }
    let machines: Api<VirtualMachine> =
        Api::namespaced(context.client.clone(), &vm.namespace().unwrap_or_default());
    let mut free = vm.clone();
    free.status.restore_in_progress = None;
    // The volume of a memory dump is not restored.
    free.status.memory_dump_request = None;
    match patch::status_subresource(&machines, vm, &free).await {
        Err(patch::Error::Gone(_)) => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

async fn own_claims(context: &Context, restore: &Restore, vm: &VirtualMachine) -> Result<(), Error> {
    let api = claims(context, restore);
    for to in restore.status.restores.iter().filter(|to| to.data_volume_name.is_none()) {
        let name = &to.persistent_volume_claim;
        let Some(claim) = api.get_opt(name).await? else { continue };
        let is_meant = claim.annotations().get(OWNED_BY_MACHINE) == Some(&restore.name_any());
        if !is_meant || !claim.owner_references().is_empty() {
            continue;
        }
        let change = json!({"metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { OWNED_BY_MACHINE: null },
            "ownerReferences": claim::owner(vm).map(|owner| vec![owner]),
        }});
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    }
    Ok(())
}

/// Has the restored state of firmware and TPM be the machine's: its claim gets the machine's label, and the one before it goes.
async fn own_state(context: &Context, restore: &Restore, vm: &VirtualMachine) -> Result<(), Error> {
    let (namespace, machine) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let volume = backend::volume_name(&machine);
    let Some(to) = restore.status.restores.iter().find(|to| to.volume_name == volume) else { return Ok(()) };
    let (api, name) = (claims(context, restore), &to.persistent_volume_claim);
    let change = json!({"metadata": {"labels": { PERSISTENT_STATE_FOR: label_value(&machine) }}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    let others = backend::labelled(&namespace, &machine, &context.storage);
    for other in others.filter(|claim| claim.metadata.name.as_ref() != Some(name)) {
        // A claim of an owner that is gone is left to the garbage collector.
        if matches!(ownership(&vm.metadata, &other.metadata), Ownership::Foreign | Ownership::Leaving) {
            continue;
        }
        match api.delete(&other.name_any(), &only(&other.metadata)).await {
            Ok(_) => tracing::info!(claim = other.name_any(), "claim deleted: the machine has another state"),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn data_volumes(context: &Context, vm: &VirtualMachine) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<DataVolume>(&());
    Api::namespaced_with(context.client.clone(), &vm.namespace().unwrap_or_default(), &kind)
}

async fn own_data(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    for name in vm.spec.data_volume_templates.iter().map(name_of) {
        let Some(data) = context.data.get(&namespace, name) else { continue };
        if !data.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true)) {
            let change = json!({"metadata": {
                "uid": data.metadata.uid,
                "labels": { label::CREATED_BY: vm.uid() },
                "ownerReferences": claim::owner(vm).map(|owner| vec![owner]),
            }});
            data_volumes(context, vm).patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        }
    }
    Ok(())
}

async fn own_revisions(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let of_type = vm.spec.instancetype.as_ref().and_then(|one| one.revision_name.as_deref());
    let of_preference = vm.spec.preference.as_ref().and_then(|one| one.revision_name.as_deref());
    let revisions: Api<ControllerRevision> =
        Api::namespaced(context.client.clone(), &vm.namespace().unwrap_or_default());
    for name in [of_type, of_preference].into_iter().flatten().filter(|name| !name.is_empty()) {
        let Some(revision) = revisions.get_opt(name).await? else { continue };
        if revision.owner_references().is_empty() {
            let owners = claim::owner(vm).map(|owner| vec![owner]);
            let change = json!({"metadata": {"uid": revision.uid(), "ownerReferences": owners}});
            revisions.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        }
    }
    Ok(())
}
