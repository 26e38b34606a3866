//! The export of a backup: how it is made, and what its links tell. Pure functions.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use podvirt_api::backup::{GROUP, KIND};
use podvirt_api::v1::{
    BackupVolumeInfo, ExportBackupEndpoint as Endpoint, VirtualMachineBackup as Backup,
    VirtualMachineExport as Export, VirtualMachineExportBackup as Offered, VirtualMachineExportLink as Link,
    VirtualMachineExportPhase as Phase, VirtualMachineExportSpec, VirtualMachineInstanceBackupStatus as Told,
};

use super::super::instance;
use super::end;

/// The export as it is to be: it lives as long as the backup.
pub(super) fn wanted(backup: &Backup, now: Timestamp) -> Export {
    // The API's times have whole seconds: rounded up, the span is from the second in which the export is made to the backup's end.
    let left = end(backup).map_or(0, |end| end.duration_since(now).as_millis().max(0));
    let ttl = format!("{}s", (left + 999) / 1000);
    Export {
        metadata: ObjectMeta {
            name: backup.metadata.name.clone(),
            namespace: backup.metadata.namespace.clone(),
            owner_references: backup.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineExportSpec {
            source: TypedLocalObjectReference {
                api_group: Some(GROUP.to_owned()),
                kind: KIND.to_owned(),
                name: backup.name_any(),
            },
            token_secret_ref: backup.spec.token_secret_ref.clone(),
            ttl_duration: Some(ttl),
        },
        ..Export::default()
    }
}

/// Whether the backup controls the export.
pub(super) fn is_own(export: &Export, backup: &Backup) -> bool {
    let mut owners = export.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == backup.metadata.uid.as_ref())
}

/// The volumes of a backup with their endpoints, and the certificates by which clients check these; none while there are none.
pub(super) fn offer(told: &Told, export: &Export) -> Option<(Vec<BackupVolumeInfo>, String)> {
    let volumes = instance::volumes(told);
    if export.status.phase != Some(Phase::Ready) || volumes.is_empty() {
        return None;
    }
    let links = export.status.links.as_ref()?;
    // An address from outside the cluster first, as upstream. Its certificate is not always known.
    let usable = |link: &&Link| !link.backups.is_empty() && !link.cert.is_empty();
    let of = |link: &Option<Link>| link.as_ref().filter(usable).cloned();
    let link = of(&links.external).or_else(|| of(&links.internal))?;
    let found = |name: &str| link.backups.iter().find(|offered| offered.name == name);
    let url = |offered: Option<&Offered>, of: &Endpoint| {
        offered?.endpoints.iter().find(|one| one.endpoint == *of).map(|one| one.url.clone())
    };
    let told = |volume: BackupVolumeInfo| {
        let offered = found(&volume.volume_name);
        let (data, map) = (url(offered, &Endpoint::Data), url(offered, &Endpoint::Map));
        BackupVolumeInfo { data_endpoint: data, map_endpoint: map, ..volume }
    };
    Some((volumes.into_iter().map(told).collect(), link.cert))
}

/// Volumes with the endpoints that are `known` of them already.
pub(in super::super) fn with_endpoints(
    volumes: Vec<BackupVolumeInfo>,
    known: &[BackupVolumeInfo],
) -> Vec<BackupVolumeInfo> {
    let with = |volume: BackupVolumeInfo| match known.iter().find(|one| one.volume_name == volume.volume_name)
    {
        Some(known) => BackupVolumeInfo {
            data_endpoint: known.data_endpoint.clone(),
            map_endpoint: known.map_endpoint.clone(),
            ..volume
        },
        None => volume,
    };
    volumes.into_iter().map(with).collect()
}

/// Volumes that cannot be read any more.
pub(in super::super) fn without_endpoints(volumes: Vec<BackupVolumeInfo>) -> Vec<BackupVolumeInfo> {
    let without = |volume| BackupVolumeInfo { data_endpoint: None, map_endpoint: None, ..volume };
    volumes.into_iter().map(without).collect()
}
