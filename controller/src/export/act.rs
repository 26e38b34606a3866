//! Carries out the steps of a plan.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::export::{CONTENT_TYPE, DISK_CONTENT, TOKEN_LENGTH, expires, manifest_name, restored_name};
use podvirt_api::names::{SUBRESOURCES_GROUP, event};
use podvirt_api::resources::exporter;
use podvirt_api::snapshot;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineExport as Export, VirtualMachineSnapshotContent as Content,
};
use podvirt_daemon::pki::{self, Purpose};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::controller::Shared;
use super::decide::Action;
use super::pod::{self, Exported, Settings};
use super::source::Seen;
use super::view::NO_CA;
use super::{manifest, source};
use crate::attachments::reason_of;
use crate::failure::Error;
use crate::restore;
use crate::snapshot as snapshots;

/// What a pass has seen beside the export.
pub(super) struct Scene<'a> {
    pub(super) source: &'a Seen,
    pub(super) pod: Option<&'a Pod>,
    pub(super) vm: Option<&'a VirtualMachine>,
    pub(super) content: Option<&'a Content>,
    pub(super) parameters: &'a str,
    pub(super) now: Timestamp,
}

/// Letters and digits that cannot be guessed.
fn random(length: usize) -> Result<String, Error> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = vec![0; length];
    let filled = pki::provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| Error::Refused("the system gives no random numbers".to_owned()))?;
    // 32 letters divide a byte's values evenly.
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect())
}

/// Makes an object; whether it was not there before.
///
/// # Errors
///
/// The API server refuses it.
pub(crate) async fn make<K>(client: &Client, object: &K, what: &str) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), object).await {
        Ok(_) => {
            tracing::info!(name = object.name_any(), "{what} made");
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => {
            Err(Error::Refused(format!("{what} {} not made: {}", object.name_any(), reason_of(&error))))
        }
    }
}

/// Carries out one step.
pub(super) async fn act(
    shared: &Shared,
    export: &Export,
    scene: &Scene<'_>,
    made: &mut Option<Pod>,
    action: &Action,
) -> Result<(), Error> {
    let context = &shared.context;
    let (client, recorder) = (&context.client, &context.recorder);
    let namespace = export.namespace().unwrap_or_default();
    match action {
        Action::Expire => {
            let api: Api<Export> = Api::namespaced(client.clone(), &namespace);
            let only = Preconditions { uid: export.uid(), resource_version: None };
            tracing::info!("its time is over");
            gone(api.delete(&export.name_any(), &DeleteParams::default().preconditions(only)).await)
        }
        Action::MakeService => {
            let service: Service = pod::service(export);
            if make(client, &service, "Service").await? {
                let message = format!("Created service {namespace}/{}", service.name_any());
                recorder.normal(export, event::SERVICE_CREATED, &message).await;
            }
            Ok(())
        }
        Action::MakeClaims(places) => make_claims(shared, export, scene, places).await,
        Action::MakeToken(name) => {
            let secret: Secret = pod::token(export, name, random(TOKEN_LENGTH)?);
            if make(client, &secret, "Secret").await? {
                let message = format!("Created default secret {namespace}/{name}");
                recorder.normal(export, event::SECRET_CREATED, &message).await;
            }
            Ok(())
        }
        Action::MakePod(token) => {
            *made = Box::pin(make_pod(shared, export, scene, token)).await?;
            Ok(())
        }
        Action::MakeCertificate => {
            let Some(pod) = made.as_ref().or(scene.pod) else { return Ok(()) };
            let Some(name) = pod::certificate_secret(pod) else { return Ok(()) };
            let ca = shared.authority.ca();
            let pair = ca.pair.ok_or_else(|| Error::Refused(NO_CA.to_owned()))?;
            let life = context.cluster.now_or_default().rotation.server.duration;
            let names = pod::dns_names(export);
            let subject = names.first().cloned().unwrap_or_default();
            let leaf = pki::make_leaf(&pair, &subject, &names, Purpose::Server, scene.now, life);
            let leaf = leaf.map_err(|error| Error::Refused(format!("certificate not made: {error}")))?;
            if make(client, &pod::certificate(pod, name, leaf), "Secret").await? {
                recorder.normal(export, event::SECRET_CREATED, "Created exporter pod secret").await;
            }
            Ok(())
        }
        Action::DeletePod { reason, message } => {
            let Some(pod) = scene.pod else { return Ok(()) };
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let only = Preconditions { uid: pod.uid(), resource_version: None };
            gone(pods.delete(&pod.name_any(), &DeleteParams::default().preconditions(only)).await)?;
            recorder.warning(export, reason, message).await;
            Ok(())
        }
    }
}

/// What has come of a deletion of the very object that was seen: it is gone in any case, or the deletion has failed.
///
/// # Errors
///
/// It has failed.
pub(crate) fn gone<T>(deleted: Result<T, kube::Error>) -> Result<(), Error> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

/// Makes claims of what a snapshot holds.
async fn make_claims(
    shared: &Shared,
    export: &Export,
    scene: &Scene<'_>,
    places: &[usize],
) -> Result<(), Error> {
    let Some(content) = scene.content else { return Ok(()) };
    let namespace = export.namespace().unwrap_or_default();
    let machine = content.spec.source.virtual_machine.as_ref();
    for backup in places.iter().filter_map(|place| content.spec.volume_backups.get(*place)) {
        let taken = backup.volume_snapshot_name.as_deref().unwrap_or_default();
        let missing = || Error::Refused(format!("VolumeSnapshot {taken} does not exist"));
        let taken = shared.context.storage.snapshots.get(&namespace, taken).ok_or_else(missing)?;
        let of = backup.persistent_volume_claim.metadata.as_ref();
        let of = of.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
        let name = restored_name(&export.name_any(), of);
        let mut claim: PersistentVolumeClaim = restore::of_backup(&name, backup, &taken);
        let volumes = machine.map(snapshot::volumes).unwrap_or_default();
        let is_disk = |volume: &podvirt_api::v1::Volume| {
            volume.name == backup.volume_name && snapshot::claim(volume).is_some()
        };
        if volumes.iter().any(is_disk) {
            let annotations = claim.metadata.annotations.get_or_insert_default();
            annotations.insert(CONTENT_TYPE.to_owned(), DISK_CONTENT.to_owned());
        }
        claim.metadata = ObjectMeta {
            namespace: Some(namespace.clone()),
            owner_references: pod::owner(export),
            ..claim.metadata
        };
        make(&shared.context.client, &claim, "claim").await?;
    }
    Ok(())
}

/// Whether a machine has a claim as a disk, and not as a directory that it shares.
fn has_disk(vm: &VirtualMachine, name: &str) -> bool {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let Some(spec) = spec else { return false };
    let shared = |volume: &podvirt_api::v1::Volume| {
        spec.domain.devices.filesystems.iter().any(|filesystem| filesystem.name == volume.name)
    };
    spec.volumes.iter().any(|volume| snapshot::claim(volume) == Some(name) && !shared(volume))
}

/// Whether a claim holds a machine's disk: by its machine, by itself or by its DataVolume.
fn is_disk(claim: &PersistentVolumeClaim, namespace: &str, scene: &Scene<'_>, shared: &Shared) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    if scene.vm.is_some_and(|vm| has_disk(vm, name)) {
        return true;
    }
    let is = |word: Option<&str>| word.is_none_or(|word| word.is_empty() || word == DISK_CONTENT);
    let annotations = claim.metadata.annotations.as_ref();
    if let Some(said) = annotations.and_then(|all| all.get(CONTENT_TYPE)) {
        return is(Some(said));
    }
    let data = DataVolume::of_claim(&claim.metadata);
    let data = data.and_then(|name| shared.context.data.get(namespace, name));
    data.is_some_and(|data| is(data.spec["contentType"].as_str()))
}

/// The machine with its instance type and its preference in its template.
async fn expanded(client: &Client, vm: &VirtualMachine, namespace: &str) -> Result<VirtualMachine, Error> {
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(vm.clone());
    }
    let path = format!("/apis/{SUBRESOURCES_GROUP}/v1/namespaces/{namespace}/expand-vm-spec");
    let answer = snapshots::put(client, path, &json!(vm)).await;
    let answer =
        answer.map_err(|error| Error::Refused(format!("machine not expanded: {}", reason_of(&error))))?;
    serde_json::from_str(&answer).map_err(|error| Error::Refused(format!("machine not expanded: {error}")))
}

/// The machine whose manifest is exported: of a snapshot, the machine as it was.
fn machine(scene: &Scene<'_>) -> Option<VirtualMachine> {
    let kept = scene.content.and_then(|content| content.spec.source.virtual_machine.clone());
    match kept {
        Some(kept) => Some(VirtualMachine {
            metadata: kept.metadata.unwrap_or_default(),
            spec: kept.spec.unwrap_or_default(),
            status: kept.status.unwrap_or_default(),
            ..VirtualMachine::default()
        }),
        None => scene.vm.cloned(),
    }
}

/// What clients of exporters are to trust, and the exporter of a backup is to trust of the launcher.
fn trusted(shared: &Shared) -> Result<Arc<str>, Error> {
    shared.authority.ca().bundle.ok_or_else(|| Error::Refused(NO_CA.to_owned()))
}

/// Stores what manifests are made of; whether there is any.
async fn make_manifest(shared: &Shared, export: &Export, scene: &Scene<'_>) -> Result<bool, Error> {
    let Some(vm) = machine(scene) else { return Ok(false) };
    let client = &shared.context.client;
    let namespace = export.namespace().unwrap_or_default();
    let vm = expanded(client, &vm, &namespace).await?;
    let bundle = trusted(shared)?;
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let mut claims = Vec::new();
    for name in manifest::claims(&vm) {
        let restored = restored_name(&export.name_any(), &name);
        let from = if scene.content.is_some() { &restored } else { &name };
        if let Some(mut claim) = api.get_opt(from).await? {
            claim.metadata.name = Some(name);
            claims.push(claim);
        }
    }
    let external = shared.authority.external().await;
    let name = manifest_name(&export.name_any());
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: export.namespace(),
            owner_references: pod::owner(export),
            ..ObjectMeta::default()
        },
        data: Some(manifest::data(export, &vm, &claims, &bundle, external.as_ref())),
        ..ConfigMap::default()
    };
    if make(client, &map, "ConfigMap").await? {
        let message = format!("Created exporter data manifest {namespace}/{name}");
        shared.context.recorder.normal(export, event::MANIFEST_CREATED, &message).await;
    }
    Ok(true)
}

async fn make_pod(
    shared: &Shared,
    export: &Export,
    scene: &Scene<'_>,
    token: &str,
) -> Result<Option<Pod>, Error> {
    let context = &shared.context;
    let namespace = export.namespace().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let mut claims = Vec::new();
    for name in &scene.source.claims {
        let claim = api.get(name).await?;
        let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
        claims.push(Exported {
            name: name.clone(),
            is_block: mode == Some("Block"),
            is_disk: is_disk(&claim, &namespace, scene, shared),
        });
    }
    let has_manifest = make_manifest(shared, export, scene).await?;
    let backup = match &scene.source.backup {
        Some(offered) => Some((offered, trusted(shared)?)),
        None => None,
    };
    let settings = context.cluster.now_or_default();
    let server = settings.rotation.server;
    let life = server.duration.saturating_sub(server.renew_before).max(Duration::from_secs(1));
    let rotation = scene.now.checked_add(life).unwrap_or(Timestamp::MAX);
    let secret = format!("secret-{}", random(10)?);
    let wanted = pod::pod(
        export,
        &claims,
        &Settings {
            image: &context.image,
            pull_secrets: &settings.image_pull_secrets,
            resources: exporter(&settings.configuration),
            parameters: scene.parameters,
            deadline: expires(export).map_or(rotation, |end| end.min(rotation)),
            token_secret: token,
            certificate_secret: &secret,
            has_manifest,
            backup: backup.as_ref().map(|(offered, ca)| (*offered, ca.trim())),
        },
    );
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    match pods.create(&PostParams::default(), &wanted).await {
        Ok(pod) => {
            let message = format!("Created exporter pod {namespace}/{}", pod.name_any());
            context.recorder.normal(export, event::EXPORTER_CREATED, &message).await;
            Ok(Some(pod))
        }
        // The cache lags; a pod of the name that is not the export's is told.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let there = pods.get_opt(&wanted.name_any()).await?;
            match there {
                Some(pod) if source::is_own(&pod.metadata, export) => {
                    // Its certificate is another one, which the pass that has made it makes, or the next pass does.
                    Ok(Some(pod))
                }
                Some(pod) => Err(Error::Refused(format!("pod {} belongs to another object", pod.name_any()))),
                None => Ok(None),
            }
        }
        Err(error) => {
            let message = format!("exporter pod {} not made: {}", wanted.name_any(), reason_of(&error));
            Err(Error::Refused(message))
        }
    }
}
