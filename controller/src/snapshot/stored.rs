//! What a content holds: the machine's specification, and each claim's.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};
use podvirt_api::instancetype::copied_name;
use podvirt_api::snapshot::{CONTENT_FINALIZER, claim, content_name, volume_snapshot_name};
use podvirt_api::v1::{
    SnapshotPersistentVolumeClaim, SnapshotVirtualMachine, SourceSpec, VirtualMachine,
    VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
    VirtualMachineSnapshotContentSpec, VirtualMachineSpec, VolumeBackup,
};

use super::source::{Source, volumes};
use crate::claim::{Ownership, ownership};
use crate::storage::{Ambiguous, Storage, class_of, is_bound, snapshot_class};
use crate::vm::instancetype::refs;

/// Why a content was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server refused or could not be asked.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// It is not clear how a snapshot is to be taken.
    #[error(transparent)]
    Class(#[from] Ambiguous),
    /// What the machine was started with cannot be read.
    #[error("vm revision {0}: {1}")]
    Revision(String, String),
}

impl Error {
    /// For people.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Api(source) => crate::attachments::reason_of(source),
            other => other.to_string(),
        }
    }
}

/// The content of a snapshot as its source is now.
///
/// # Errors
///
/// [`Error`].
pub(super) async fn content(
    client: &Client,
    snapshot: &Snapshot,
    source: Source<'_>,
    storage: &Storage,
) -> Result<Content, Error> {
    let vm = source.vm;
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(client.clone(), &vm.namespace().unwrap_or_default());
    let mut volume_backups = Vec::new();
    for volume in &volumes(vm, storage) {
        let Some(name) = claim(volume) else { continue };
        let Some(claim) = claims.get_opt(name).await?.filter(is_bound) else { continue };
        let class = class_of(&claim).map(|class| snapshot_class(class, storage)).transpose()?.flatten();
        if class.is_none() {
            tracing::info!(
                volume = volume.name,
                claim = name,
                "no VolumeSnapshotClass: the volume is left out"
            );
            continue;
        }
        volume_backups.push(VolumeBackup {
            volume_name: volume.name.clone(),
            persistent_volume_claim: SnapshotPersistentVolumeClaim {
                metadata: Some(plain(&claim.metadata)),
                spec: claim.spec,
            },
            volume_snapshot_name: Some(volume_snapshot_name(snapshot, &volume.name)),
        });
    }
    let mut spec = specification(client, source).await?;
    keep_revisions(client, snapshot, vm, &mut spec).await?;
    let stored = SnapshotVirtualMachine {
        metadata: Some(plain(&vm.metadata)),
        spec: Some(spec),
        ..SnapshotVirtualMachine::default()
    };
    let metadata = ObjectMeta {
        name: Some(content_name(snapshot)),
        namespace: snapshot.namespace(),
        finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    let spec = VirtualMachineSnapshotContentSpec {
        virtual_machine_snapshot_name: Some(snapshot.name_any()),
        source: SourceSpec { virtual_machine: Some(stored) },
        volume_backups,
    };
    Ok(Content { metadata, spec, ..Content::default() })
}

fn plain(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { managed_fields: None, ..metadata.clone() }
}

/// What a machine runs with, or would: that of its last start, but for its disks, which are as they are now.
async fn specification(client: &Client, source: Source<'_>) -> Result<VirtualMachineSpec, Error> {
    let vm = source.vm;
    let Some(vmi) = source.living() else { return Ok(vm.spec.clone()) };
    let name = vmi.status.virtual_machine_revision_name.clone().unwrap_or_default();
    let revisions: Api<ControllerRevision> =
        Api::namespaced(client.clone(), &vm.namespace().unwrap_or_default());
    let revision = revisions.get(&name).await?;
    let data = revision.data.map(|data| data.0["spec"].clone()).unwrap_or_default();
    let mut spec: VirtualMachineSpec =
        serde_json::from_value(data).map_err(|error| Error::Revision(name, error.to_string()))?;
    spec.data_volume_templates.clone_from(&vm.spec.data_volume_templates);
    let now = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let then = spec.template.as_mut().and_then(|template| template.spec.as_mut());
    if let (Some(now), Some(then)) = (now, then) {
        then.volumes.clone_from(&now.volumes);
        then.domain.devices.disks.clone_from(&now.domain.devices.disks);
    }
    Ok(spec)
}

/// Copies the revisions of the instance type and of the preference, which go with the machine, for the snapshot.
async fn keep_revisions(
    client: &Client,
    snapshot: &Snapshot,
    vm: &VirtualMachine,
    spec: &mut VirtualMachineSpec,
) -> Result<(), Error> {
    let (of_type, of_preference) = (vm.status.instancetype_ref.as_ref(), vm.status.preference_ref.as_ref());
    let own = |given: &Option<String>, known: Option<&str>| {
        given.clone().filter(|name| !name.is_empty()).or_else(|| known.map(ToOwned::to_owned))
    };
    let owner = || snapshot.controller_owner_ref(&());
    let (from, to) = (vm.name_any(), snapshot.name_any());
    if let Some(matcher) = &mut spec.instancetype
        && let Some(name) = own(&matcher.revision_name, of_type.and_then(refs::revision))
    {
        matcher.revision_name =
            Some(copy_revision(client, &vm.metadata, &name, (&from, &to), owner()).await?);
    }
    if let Some(matcher) = &mut spec.preference
        && let Some(name) = own(&matcher.revision_name, of_preference.and_then(refs::revision))
    {
        matcher.revision_name =
            Some(copy_revision(client, &vm.metadata, &name, (&from, &to), owner()).await?);
    }
    Ok(())
}

/// Copies a revision under a name in which `names` has its first in place of its second, for another owner. Returns the name.
///
/// # Errors
///
/// The API server refused or could not be asked.
pub(crate) async fn copy_revision(
    client: &Client,
    near: &ObjectMeta,
    name: &str,
    (from, to): (&str, &str),
    owner: Option<OwnerReference>,
) -> Result<String, kube::Error> {
    let revisions: Api<ControllerRevision> =
        Api::namespaced(client.clone(), near.namespace.as_deref().unwrap_or_default());
    let of = revisions.get(name).await?;
    let owner_uid = owner.as_ref().map(|owner| owner.uid.clone());
    let wanted = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(copied_name(name, from, to)),
            labels: of.metadata.labels,
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: of.data,
        revision: of.revision,
    };
    let copy = wanted.name_any();
    match revisions.create(&PostParams::default(), &wanted).await {
        // The user's own revision, whose name has nothing of the machine's.
        Err(kube::Error::Api(status)) if status.is_already_exists() && copy == name => Ok(copy),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let owner = ObjectMeta { uid: owner_uid, ..ObjectMeta::default() };
            let there = revisions.get_opt(&copy).await?;
            match there.map(|there| ownership(&owner, &there.metadata)) {
                Some(Ownership::Ours | Ownership::Unowned) => Ok(copy),
                // It goes with another owner.
                _ => Err(kube::Error::Api(status)),
            }
        }
        made => made.map(|_| copy),
    }
}
