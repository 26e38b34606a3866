//! The claims that a machine's volumes name, and what its status tells of its volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use podvirt_api::cdi::{CdiConfig, DataVolume};
use podvirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, VolumeStatus};
use podvirt_api::{state, storage};

use super::data::{self, Filling};
use crate::data::{DataVolumes, Served};
use crate::kept::Kept;
use crate::storage::backend::{self, Backend};
use crate::storage::overhead;
use crate::template::claim_names;

/// Ends of the names of annotations of a claim whose storage is allocated as a whole, with the text `true`. What is before them
/// is CDI's, or a storage's own.
const ALLOCATED: [&str; 2] = ["/storage.preallocation", "/storage.thick-provisioned"];

/// What keeps a claim from being mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is none of this name.
    Missing,
    /// A DataVolume has not filled it.
    Filling(Filling),
}

/// A machine's claims as the API server has them, by name; `None` is a claim that does not exist.
pub type Claims = BTreeMap<String, Option<PersistentVolumeClaim>>;

/// What a machine's status tells of its claims, by name.
pub type Told = BTreeMap<String, PersistentVolumeClaimInfo>;

/// Reads every claim of `vmi`.
///
/// # Errors
///
/// The API server could not be asked.
pub async fn read(
    api: &Api<PersistentVolumeClaim>,
    vmi: &VirtualMachineInstance,
) -> Result<Claims, kube::Error> {
    let mut claims = Claims::new();
    for name in claim_names(vmi) {
        if !claims.contains_key(name) {
            claims.insert(name.to_owned(), api.get_opt(name).await?);
        }
    }
    Ok(claims)
}

/// Those of the machine's claims that have a problem, in the order of the volumes.
pub fn problems(vmi: &VirtualMachineInstance, claims: &Claims, data: &DataVolumes) -> Vec<(String, Problem)> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let judged = claim_names(vmi).map(|name| {
        let claim = claims.get(name).and_then(Option::as_ref);
        let problem = match claim {
            // One that is not bound is no problem: a storage class may wait for the pod.
            Some(claim) => filling(claim, namespace, data).map(Problem::Filling),
            None => Some(Problem::Missing),
        };
        (name, problem)
    });
    judged.filter_map(|(name, problem)| Some((name.to_owned(), problem?))).collect()
}

/// What keeps a claim from being used that a DataVolume fills.
fn filling(claim: &PersistentVolumeClaim, namespace: &str, data: &DataVolumes) -> Option<Filling> {
    let name = DataVolume::of_claim(&claim.metadata)?;
    // The first list of DataVolumes may be to come.
    if data.served() == Served::Unknown {
        return Some(Filling::Goes(None));
    }
    data::judge(data.get(namespace, name).as_deref(), name)
}

/// By which texts machines are found for a claim: the claims of their volumes, and what the name of a claim with their own state contains.
pub(super) fn index_texts(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut texts: Vec<String> = claim_names(vmi).map(ToOwned::to_owned).collect();
    if state::has_claim(vmi) {
        texts.push(state::base(vmi.metadata.name.as_deref().unwrap_or_default()));
    }
    texts
}

/// The texts of [`index_texts`] that a machine with the claim of this name may have.
pub(super) fn lookup_texts(claim: &str) -> Vec<&str> {
    let parts = claim.match_indices(state::PERSISTENT_STATE_FOR).flat_map(move |(begin, known)| {
        (begin + known.len()..=claim.len()).filter_map(move |end| claim.get(begin..end))
    });
    std::iter::once(claim).chain(parts).collect()
}

/// Whether a volume of the machine has the claim of this namespace and name, or any claim where none is given. A DataVolume's
/// claim has the DataVolume's name.
pub fn names_one(vmi: &VirtualMachineInstance, claim: Option<(&str, &str)>) -> bool {
    let Some((namespace, name)) = claim else {
        return claim_names(vmi).next().is_some() || state::has_claim(vmi);
    };
    let is_backend = || {
        let machine = vmi.metadata.name.as_deref().unwrap_or_default();
        state::has_claim(vmi) && name.contains(&state::base(machine))
    };
    vmi.metadata.namespace.as_deref() == Some(namespace)
        && (claim_names(vmi).any(|named| named == name) || is_backend())
}

/// Whether a volume that is plugged once the machine runs has the claim of this name.
pub fn is_plugged(vmi: &VirtualMachineInstance, name: &str) -> bool {
    let mut volumes = storage::volumes(vmi).filter(|volume| storage::is_hotpluggable(volume));
    volumes.any(|volume| storage::claim(&volume).is_some_and(|claim| claim.name == name))
}

/// What there is to tell of the claims; `None` while one of them does not exist. One that is plugged once the machine runs may be
/// missing: nothing is told of it then. `data_settings`: CDI's.
pub fn told(vmi: &VirtualMachineInstance, claims: &Claims, data_settings: &Kept<CdiConfig>) -> Option<Told> {
    let there = claims.iter().filter(|(name, claim)| claim.is_some() || !is_plugged(vmi, name));
    there.map(|(name, claim)| Some((name.clone(), info(name, claim.as_ref()?, data_settings)))).collect()
}

/// Whether the claims have their volumes: then nothing that is told of them changes but by growth.
pub fn are_bound(claims: &Claims) -> bool {
    claims.values().all(|claim| {
        let status = claim.as_ref().and_then(|claim| claim.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
}

/// What is told of a claim. `data_settings`: CDI's.
pub(crate) fn info(
    name: &str,
    claim: &PersistentVolumeClaim,
    data_settings: &Kept<CdiConfig>,
) -> PersistentVolumeClaimInfo {
    let spec = claim.spec.clone().unwrap_or_default();
    let allocated = |name: &str| ALLOCATED.iter().any(|end| name.contains(end));
    let mut annotations = claim.metadata.annotations.iter().flatten();
    let preallocated = annotations.any(|(name, text)| allocated(name) && text == "true");
    PersistentVolumeClaimInfo {
        claim_name: Some(name.to_owned()),
        access_modes: spec.access_modes.unwrap_or_default(),
        volume_mode: spec.volume_mode,
        capacity: claim.status.as_ref().and_then(|status| status.capacity.clone()),
        requests: spec.resources.and_then(|resources| resources.requests),
        preallocated: preallocated.then_some(true),
        filesystem_overhead: Some(overhead(claim, data_settings)),
    }
}

/// The status of the machine's volumes, sorted by name as upstream sorts them: what it tells of claims is `told`, or what
/// it was while that is not known. What others may have written of a volume stays. The claim with the machine's own state has an
/// entry of its own.
pub(super) fn volume_status(
    vmi: &VirtualMachineInstance,
    told: Option<&Told>,
    backend: &Backend,
) -> Vec<VolumeStatus> {
    let before = |name: &str| vmi.status.volume_status.iter().find(|status| status.name == name).cloned();
    let status = storage::volumes(vmi).map(|volume| {
        let mut status = before(&volume.name)
            .unwrap_or_else(|| VolumeStatus { name: volume.name.clone(), ..VolumeStatus::default() });
        // What moves to another claim is on the former one until it has arrived.
        if let Some(told) = told.filter(|_| storage::moving(vmi, &volume).is_none()) {
            let claim = storage::claim(&volume);
            status.persistent_volume_claim_info = claim.and_then(|claim| told.get(claim.name).cloned());
        }
        status
    });
    let named = |name: &str| storage::volumes(vmi).any(|volume| volume.name == name);
    let status = status.chain(
        // The machine may have the disk of a volume that was removed.
        vmi.status
            .volume_status
            .iter()
            .filter(|status| status.hotplug_volume.is_some() && !named(&status.name))
            .cloned(),
    );
    let mut all: Vec<VolumeStatus> = status.collect();
    all.extend(match backend {
        Backend::Unknown => state::claim(vmi).and_then(before),
        known => known.claim().map(backend::entry),
    });
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_must_exist_but_need_not_be_bound() {
        let pending: PersistentVolumeClaim =
            serde_json::from_value(json!({"status": {"phase": "Pending"}})).unwrap();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "gone"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "pending"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "unread"}},
            ]},
        }))
        .unwrap();
        let claims = Claims::from([("gone".to_owned(), None), ("pending".to_owned(), Some(pending))]);
        let missing = |name: &str| (name.to_owned(), Problem::Missing);
        assert_eq!(problems(&vmi, &claims, &DataVolumes::new().0), [missing("gone"), missing("unread")]);
        assert!(names_one(&vmi, Some(("shop", "gone"))) && names_one(&vmi, None));
        assert!(!names_one(&vmi, Some(("shop", "other"))) && !names_one(&vmi, Some(("else", "gone"))));
    }

    #[test]
    fn a_claim_of_a_data_volume_waits_for_it_and_for_word_of_it() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "disk", "ownerReferences": [
            {"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": "d", "controller": true},
        ]}}))
        .unwrap();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"domain": {"devices": {}}, "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk"}}]},
        }))
        .unwrap();
        let claims = Claims::from([("disk".to_owned(), Some(claim))]);
        let found = |known: &DataVolumes| {
            problems(&vmi, &claims, known).into_iter().next().map(|(_, problem)| problem)
        };
        assert_eq!(
            found(&DataVolumes::new().0),
            Some(Problem::Filling(Filling::Goes(None))),
            "not listed yet"
        );
        let volume = |phase: &str| -> DataVolume {
            serde_json::from_value(
                json!({"metadata": {"name": "disk", "namespace": "shop"}, "status": {"phase": phase}}),
            )
            .unwrap()
        };
        let with = |phase: &str| DataVolumes::with([volume(phase)]);
        assert_eq!(found(&with("Succeeded").0), None);
        assert_eq!(found(&with("ImportInProgress").0), Some(Problem::Filling(Filling::Goes(None))));
        assert_eq!(found(&with("WaitForFirstConsumer").0), Some(Problem::Filling(Filling::WaitsForConsumer)));
        let gone = found(&DataVolumes::with([]).0);
        assert!(matches!(gone, Some(Problem::Filling(Filling::Goes(Some(_))))), "{gone:?}");
    }

    #[test]
    fn a_claims_status_is_told_in_upstreams_words_and_what_others_wrote_stays() {
        let claim = json!({
            "metadata": {"name": "data", "annotations": {"cdi.kubevirt.io/storage.preallocation": "true"}},
            "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        });
        let claims = Claims::from([("data".to_owned(), Some(serde_json::from_value(claim).unwrap()))]);
        assert!(are_bound(&claims));
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
                {"name": "root", "persistentVolumeClaim": {"claimName": "data"}},
            ]},
            "status": {"volumeStatus": [
                {"name": "gone", "target": "vdc"}, {"name": "root", "target": "vda", "size": 7},
            ]},
        }))
        .unwrap();
        let written =
            volume_status(&vmi, told(&vmi, &claims, &Kept::new().0).as_ref(), &Backend::Unneeded(None));
        assert_eq!(
            serde_json::to_value(&written).unwrap(),
            json!([
                {"name": "root", "target": "vda", "size": 7, "persistentVolumeClaimInfo": {
                    "claimName": "data", "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
                    "capacity": {"storage": "2Gi"}, "requests": {"storage": "1Gi"}, "preallocated": true,
                    "filesystemOverhead": "0.055",
                }},
                {"name": "seed", "target": ""},
            ])
        );
        // A claim that is not found later changes nothing.
        let mut later = vmi.clone();
        later.status.volume_status = written.clone();
        let gone = Claims::from([("data".to_owned(), None)]);
        assert!(!are_bound(&gone));
        assert_eq!(
            volume_status(&later, told(&later, &gone, &Kept::new().0).as_ref(), &Backend::Unneeded(None)),
            written
        );
    }
}
