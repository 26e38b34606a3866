//! The backend claim of a machine, which keeps the state of its firmware and TPM and the overlays of its disks
//! ([`podvirt_api::state`]): pure functions of the caches.
//!
//! ```text
//!  no claim ──made──> pending ──bound, or its class waits for a pod──> ready ──> launcher pod
//!                        │
//!                        └── lost, or of a class that is not there: waits, and a condition says why
//! ```
//!
//! Of a machine's claims the newest counts that has its label, is not being deleted and belongs to the machine's owner. A claim
//! of an owner that is gone, which the garbage collector has not come to yet, is no machine's any more. Names look like those
//! that the API server makes and follow from the UID of what a claim is made for: it cannot be made twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::backup;
use podvirt_api::names::condition::reason;
use podvirt_api::names::{label, label_value, short_name};
use podvirt_api::quantity::binary_text;
use podvirt_api::state::{self, PERSISTENT_STATE_FOR};
use podvirt_api::v1::{
    KubeVirtConfiguration, PersistentVolumeClaimInfo, PersistentVolumeClaimVolumeSource, VirtualMachine,
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration, Volume, VolumeStatus,
};

use super::{Storage, class_of, is_bound};
use crate::kept::Served;

const READ_WRITE_MANY: &str = "ReadWriteMany";
const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const FILESYSTEM: &str = "Filesystem";

/// The backend claim of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    /// The machine keeps nothing. It may have a claim still of when it did.
    Unneeded(Option<Arc<PersistentVolumeClaim>>),
    /// The caches are not filled.
    Unknown,
    /// It is to be made.
    Missing(Box<PersistentVolumeClaim>),
    /// It cannot be used yet, or made: reason and message of a condition.
    Waits(Option<Arc<PersistentVolumeClaim>>, &'static str, String),
    /// It can be used.
    Ready(Arc<PersistentVolumeClaim>),
}

impl Backend {
    /// The claim, if it is there.
    pub fn claim(&self) -> Option<&PersistentVolumeClaim> {
        match self {
            Backend::Waits(claim, ..) => claim.as_deref(),
            Backend::Ready(claim) => Some(claim),
            Backend::Unneeded(_) | Backend::Unknown | Backend::Missing(_) => None,
        }
    }
}

/// The backend claim of `vmi`.
pub fn look(vmi: &VirtualMachineInstance, storage: &Storage, config: &KubeVirtConfiguration) -> Backend {
    let claim = of_machine(vmi, storage);
    if !state::has_claim(vmi) {
        return Backend::Unneeded(claim);
    }
    if [storage.claims.served(), storage.classes.served(), storage.profiles.served()]
        .contains(&Served::Unknown)
    {
        return Backend::Unknown;
    }
    let Some(claim) = claim else {
        return match class(storage, config) {
            Ok(class) => {
                let mode = mode(&class, storage, config);
                let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
                let label =
                    (PERSISTENT_STATE_FOR, label_value(vmi.metadata.name.as_deref().unwrap_or_default()));
                Backend::Missing(Box::new(make(vmi, uid, label, (class, mode), size(vmi, storage))))
            }
            Err(message) => Backend::Waits(None, reason::FAILED_BACKEND_STORAGE_CREATE, message.into()),
        };
    };
    match obstacle(&claim, storage) {
        None => Backend::Ready(claim),
        Some((reason, message)) => Backend::Waits(Some(claim), reason, message),
    }
}

/// The claim that keeps the state of `vmi`, by its label; or by the name that such claims once had.
pub fn of_machine(vmi: &VirtualMachineInstance, storage: &Storage) -> Option<Arc<PersistentVolumeClaim>> {
    let owners = vmi.metadata.owner_references.iter().flatten().map(|owner| owner.uid.as_str());
    let owners: Vec<&str> = owners.chain(vmi.metadata.uid.as_deref()).collect();
    found(&vmi.metadata, &owners, storage)
}

/// The claim that keeps the state of a machine, if it keeps any, as a volume that a snapshot is taken of; upstream's name.
pub fn volume_of(vm: &VirtualMachine, storage: &Storage) -> Option<Volume> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let owners: Vec<&str> = vm.metadata.uid.iter().map(String::as_str).collect();
    let claim =
        spec.filter(|spec| state::is_kept(spec)).and_then(|_| found(&vm.metadata, &owners, storage))?;
    let source = PersistentVolumeClaimVolumeSource {
        claim_name: claim.metadata.name.clone().unwrap_or_default(),
        ..PersistentVolumeClaimVolumeSource::default()
    };
    let name = volume_name(vm.metadata.name.as_deref().unwrap_or_default());
    Some(Volume { name, persistent_volume_claim: Some(source), ..Volume::default() })
}

/// The name of that volume.
pub fn volume_name(machine: &str) -> String {
    crate::restore::names::joined(PERSISTENT_STATE_FOR, machine)
}

fn found(machine: &ObjectMeta, owners: &[&str], storage: &Storage) -> Option<Arc<PersistentVolumeClaim>> {
    let (namespace, name) = (machine.namespace.as_deref()?, machine.name.as_deref()?);
    let is_ours = |claim: &Arc<PersistentVolumeClaim>| {
        let mut of = claim.metadata.owner_references.iter().flatten().peekable();
        let owned = of.peek().is_none() || of.any(|owner| owners.contains(&owner.uid.as_str()));
        owned && claim.metadata.deletion_timestamp.is_none()
    };
    let newest = labelled(namespace, name, storage)
        .filter(is_ours)
        .max_by_key(|claim| claim.metadata.creation_timestamp.as_ref().map(|at| at.0));
    newest
        .or_else(|| storage.claims.get(namespace, &format!("{PERSISTENT_STATE_FOR}-{name}")).filter(is_ours))
}

/// The claims with the label of a machine, whatever they belong to.
pub fn labelled(
    namespace: &str,
    machine: &str,
    storage: &Storage,
) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> + use<> {
    let label = label_value(machine);
    let found = storage.claims.with_text(namespace, &label).into_iter();
    found.filter(move |claim| state_label(claim) == Some(label.as_str()))
}

/// By which texts the cache of claims is indexed: the machines whose state is on them.
pub(super) fn machines(claim: &PersistentVolumeClaim) -> Vec<String> {
    state_label(claim).map(ToOwned::to_owned).into_iter().collect()
}

/// The machine whose state is on a claim, by the claim's label.
pub fn state_label(claim: &PersistentVolumeClaim) -> Option<&str> {
    label_of(claim, PERSISTENT_STATE_FOR)
}

/// A label of a claim.
pub fn label_of<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whether two nodes can have the claim at a time.
pub fn is_shared(claim: &PersistentVolumeClaim) -> bool {
    let told = claim.status.as_ref().and_then(|status| status.access_modes.as_deref());
    let asked = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    state::is_shared(told.filter(|modes| !modes.is_empty()).or(asked).unwrap_or_default())
}

/// The claim for the target of `migration`, of the kind of `source`.
///
/// A target that had a claim of several nodes' while the source has one of one node's would be told that the state is there already.
pub fn for_target(
    vmi: &VirtualMachineInstance,
    migration: &Migration,
    source: &PersistentVolumeClaim,
    storage: &Storage,
    config: &KubeVirtConfiguration,
) -> Result<PersistentVolumeClaim, &'static str> {
    let class = class(storage, config)?;
    let mode = if is_shared(source) { READ_WRITE_MANY } else { READ_WRITE_ONCE };
    let uid = migration.metadata.uid.as_deref().unwrap_or_default();
    let name = migration.metadata.name.as_deref().unwrap_or_default();
    let label = (label::MIGRATION_NAME, label_value(name));
    Ok(make(vmi, uid, label, (class, mode), size(vmi, storage)))
}

/// The storage class of new claims.
fn class(storage: &Storage, config: &KubeVirtConfiguration) -> Result<String, &'static str> {
    if let Some(class) = configured(config) {
        return Ok(class.to_owned());
    }
    let is_default = |class: &StorageClass, annotation: &str| {
        class
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(annotation))
            .is_some_and(|value| value == "true")
    };
    let classes = storage.classes.all();
    // Of several the latest, as Kubernetes itself chooses.
    let age = |class: &Arc<StorageClass>| {
        let meta = &class.metadata;
        (meta.creation_timestamp.as_ref().map(|at| at.0), meta.name.clone())
    };
    let default = |annotation: &str| {
        classes.iter().filter(|class| is_default(class, annotation)).max_by_key(|class| age(class))
    };
    let found = default(state::DEFAULT_VIRT_CLASS).or_else(|| default(state::DEFAULT_CLASS));
    found.and_then(|class| class.metadata.name.clone()).ok_or("no default storage class found")
}

fn configured(config: &KubeVirtConfiguration) -> Option<&str> {
    config.vm_state_storage_class.as_deref().filter(|class| !class.is_empty())
}

/// The access mode of new claims: the best that CDI knows of the class. Where it knows none, a class that was chosen for this is
/// taken for one of several nodes', and the default class is not.
fn mode(class: &str, storage: &Storage, config: &KubeVirtConfiguration) -> &'static str {
    let otherwise = if configured(config).is_some() { READ_WRITE_MANY } else { READ_WRITE_ONCE };
    let Some(profile) = storage.profiles.named(class) else { return otherwise };
    let sets = profile.status.claim_property_sets.iter();
    let modes: Vec<&str> = sets
        .filter(|set| set.volume_mode.as_deref() == Some(FILESYSTEM))
        .flat_map(|set| set.access_modes.iter().map(String::as_str))
        .collect();
    [READ_WRITE_MANY, READ_WRITE_ONCE].into_iter().find(|mode| modes.contains(mode)).unwrap_or(otherwise)
}

/// Bytes that a new claim is asked for.
fn size(vmi: &VirtualMachineInstance, storage: &Storage) -> u64 {
    if !backup::is_tracked(vmi) {
        return state::size(None);
    }
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let volumes = vmi.spec.volumes.iter().filter(|volume| backup::can_be_tracked(volume));
    let claims =
        volumes.filter_map(|volume| storage.claims.get(namespace, podvirt_api::storage::claim(volume)?.name));
    state::size(Some(claims.map(|claim| bytes(&claim)).sum()))
}

/// How large a claim is, or is to be.
fn bytes(claim: &PersistentVolumeClaim) -> u64 {
    let there = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let asked = || claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref();
    let text = there.or_else(asked).and_then(|sizes| sizes.get("storage"));
    let quantity = text.and_then(|text| text.0.parse::<podvirt_api::Quantity>().ok());
    quantity.map_or(0, |quantity| quantity.value())
}

fn make(
    vmi: &VirtualMachineInstance,
    uid: &str,
    (key, value): (&str, String),
    (class, mode): (String, &str),
    size: u64,
) -> PersistentVolumeClaim {
    let meta = &vmi.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    // Of a machine that nothing owns it goes with the instance: then little is kept, but nothing is left behind.
    let itself = || {
        vec![OwnerReference {
            api_version: podvirt_api::API_VERSION.into(),
            kind: "VirtualMachineInstance".into(),
            name: name.to_owned(),
            uid: meta.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]
    };
    let labels = [(key, value), (state::APPLY_STORAGE_PROFILE, "true".to_owned())];
    let request = BTreeMap::from([("storage".to_owned(), Quantity(binary_text(size)))]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(short_name(&format!("{}-", state::base(name)), uid)),
            namespace: meta.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: meta
                .owner_references
                .clone()
                .filter(|owners| !owners.is_empty())
                .or_else(|| Some(itself())),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            resources: Some(VolumeResourceRequirements { requests: Some(request), limits: None }),
            storage_class_name: Some(class),
            volume_mode: Some(FILESYSTEM.into()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// Why the claim cannot be used yet: reason and message of a condition, in upstream's words.
fn obstacle(claim: &PersistentVolumeClaim, storage: &Storage) -> Option<(&'static str, String)> {
    let probe = |message: String| Some((reason::FAILED_BACKEND_STORAGE_PROBE, message));
    if is_bound(claim) {
        return None;
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
        return probe("backend storage PVC lost".into());
    }
    let Some(class) = class_of(claim) else { return probe("no storage class name".into()) };
    let Some(known) = storage.classes.named(class) else {
        return probe(format!("storage class {class} not found"));
    };
    if known.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") {
        return None;
    }
    Some((reason::BACKEND_STORAGE_NOT_READY, "PVC pending".into()))
}

/// The entry of a claim in the machine's status.
pub fn entry(claim: &PersistentVolumeClaim) -> VolumeStatus {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
    VolumeStatus {
        name: name.clone(),
        persistent_volume_claim_info: Some(PersistentVolumeClaimInfo {
            claim_name: Some(name),
            access_modes: modes,
            ..PersistentVolumeClaimInfo::default()
        }),
        ..VolumeStatus::default()
    }
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
