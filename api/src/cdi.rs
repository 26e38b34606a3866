//! `cdi.kubevirt.io/v1beta1`: what podvirt reads of the Containerized Data Importer's objects, which fill claims with disk
//! images.
//!
//! A DataVolume makes a claim of its own name and fills it. CDI's specification of it is handed on as it is given; of its
//! status podvirt goes by the phase and three conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Group of these resources.
pub const GROUP: &str = "cdi.kubevirt.io";
/// Version of these resources.
pub const VERSION: &str = "v1beta1";
/// Kind of a DataVolume, which its claim names as its controller.
pub const DATA_VOLUME: &str = "DataVolume";
/// Annotation of a DataVolume: it takes over a claim of its name that has no owner.
pub const ALLOW_CLAIM_ADOPTION: &str = "cdi.kubevirt.io/allowClaimAdoption";
/// Annotation of a DataVolume: its claim is filled by another hand than CDI's.
pub const PREPOPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// Annotation of a claim: the DataVolume that is to be its owner, for which it was filled.
pub const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";

/// A claim and what it is filled with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolume {
    /// Its name is the claim's.
    pub metadata: ObjectMeta,
    /// Source and size, in CDI's words.
    pub spec: Value,
    /// How far it is.
    #[serde(skip_serializing_if = "crate::object::unset")]
    pub status: DataVolumeStatus,
}

/// How far a DataVolume is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolumeStatus {
    /// One of CDI's words.
    pub phase: String,
    /// Among them Bound, Running and Ready.
    pub conditions: Vec<DataVolumeCondition>,
}

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolumeCondition {
    /// Bound, Running or Ready.
    pub r#type: String,
    /// True, False or Unknown.
    pub status: String,
    /// A word.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What CDI knows of a storage class, whose name it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageProfile {
    /// Its name is the storage class's.
    pub metadata: ObjectMeta,
    /// What CDI has found.
    #[serde(skip_serializing_if = "crate::object::unset")]
    pub status: StorageProfileStatus,
}

/// What CDI has found of a storage class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageProfileStatus {
    /// How snapshots of its claims are taken.
    pub snapshot_class: Option<String>,
    /// What claims can be, the best first.
    pub claim_property_sets: Vec<ClaimPropertySet>,
}

/// What a claim of a storage class can be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimPropertySet {
    /// Access modes.
    pub access_modes: Vec<String>,
    /// `Block` or `Filesystem`.
    pub volume_mode: Option<String>,
}

/// CDI's settings, as CDI has taken them over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CdiConfig {
    /// Its name is [`CdiConfig::NAME`].
    pub metadata: ObjectMeta,
    /// The settings.
    #[serde(skip_serializing_if = "crate::object::unset")]
    pub status: CdiConfigStatus,
}

impl CdiConfig {
    /// Name of the one object of this kind.
    pub const NAME: &str = "config";
}

/// CDI's settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CdiConfigStatus {
    /// What file systems take of the claims that they are on.
    pub filesystem_overhead: Option<FilesystemOverhead>,
}

/// The part of a claim that its file system takes, from 0 to 1, as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesystemOverhead {
    /// Of claims of other storage classes.
    pub global: String,
    /// By storage class.
    pub storage_class: BTreeMap<String, String>,
}

/// What a machine has to know of a DataVolume's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The claim is filled, or will be once the machine's own pod asks for it: the machine may start.
    Usable,
    /// CDI begins once a pod that uses the claim has a node. That must be a pod that does not read the claim yet.
    WaitsForConsumer,
    /// CDI fills the claim, or is about to.
    Filling,
    /// CDI has given up.
    Failed,
}

impl DataVolume {
    /// What the phase means to a machine.
    pub fn phase(&self) -> Phase {
        match self.status.phase.as_str() {
            "Succeeded" | "PendingPopulation" => Phase::Usable,
            "WaitForFirstConsumer" => Phase::WaitsForConsumer,
            "Failed" => Phase::Failed,
            _ => Phase::Filling,
        }
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&DataVolumeCondition> {
        self.status.conditions.iter().find(|condition| condition.r#type == kind)
    }

    /// What is wrong with it, for people: it failed, or its importer ends with an error.
    pub fn error(&self) -> Option<String> {
        if self.phase() == Phase::Failed {
            let name = self.metadata.name.as_deref().unwrap_or_default();
            return Some(format!("DataVolume {name} has failed"));
        }
        let running = self.condition("Running").filter(|condition| condition.status == "False")?;
        ["Error", "ImagePullFailed"].contains(&running.reason.as_str()).then(|| self.held_up(running))
    }

    /// How far it is, for people: its phase, and what its claim or its importer waits for.
    pub fn progress(&self) -> String {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let waits = ["Bound", "Running"].iter().filter_map(|kind| self.condition(kind));
        let mut waits = waits.filter(|condition| condition.status != "True" && !condition.message.is_empty());
        let phase = if self.status.phase.is_empty() { "Pending" } else { &self.status.phase };
        match waits.next() {
            Some(condition) => format!("DataVolume {name}: {phase}: {}", condition.message),
            None => format!("DataVolume {name}: {phase}"),
        }
    }

    /// That the namespace's quota leaves no room for its claim, for people.
    pub fn beyond_quota(&self) -> Option<String> {
        let bound = self.condition("Bound").filter(|condition| condition.status != "True")?;
        (bound.reason == "ErrExceededQuota").then(|| self.held_up(bound))
    }

    fn held_up(&self, by: &DataVolumeCondition) -> String {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        format!("DataVolume {name} is held up: {}: {}", by.reason, by.message)
    }

    /// Whether `claim`'s owners say that a DataVolume fills it: that DataVolume's name.
    pub fn of_claim(claim: &ObjectMeta) -> Option<&str> {
        let owners = claim.owner_references.iter().flatten();
        let mut controllers = owners.filter(|owner: &&OwnerReference| owner.controller == Some(true));
        let is_data =
            |owner: &&OwnerReference| owner.kind == DATA_VOLUME && owner.api_version.starts_with(GROUP);
        controllers.find(is_data).map(|owner| owner.name.as_str())
    }
}

kind!(
    StorageProfile,
    "cdi.kubevirt.io",
    "v1beta1",
    "StorageProfile",
    "storageprofiles",
    ClusterResourceScope
);
kind!(CdiConfig, "cdi.kubevirt.io", "v1beta1", "CDIConfig", "cdiconfigs", ClusterResourceScope);
kind!(DataVolume, "cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes", NamespaceResourceScope);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(phase: &str, conditions: Value) -> DataVolume {
        let object =
            json!({"metadata": {"name": "disk"}, "status": {"phase": phase, "conditions": conditions}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_machine_may_start_once_its_claim_is_filled_or_waits_for_it() {
        for (phase, means) in [
            ("Succeeded", Phase::Usable),
            ("PendingPopulation", Phase::Usable),
            ("WaitForFirstConsumer", Phase::WaitsForConsumer),
            ("Failed", Phase::Failed),
            ("", Phase::Filling),
            ("ImportInProgress", Phase::Filling),
            ("Unknown", Phase::Filling),
        ] {
            assert_eq!(volume(phase, json!([])).phase(), means, "{phase}");
        }
    }

    #[test]
    fn what_does_not_go_on_by_itself_says_why() {
        let condition = |kind: &str, status: &str, reason: &str| json!([{"type": kind, "status": status, "reason": reason, "message": "m"}]);
        let error = |phase: &str, conditions: Value| volume(phase, conditions).error();
        assert_eq!(error("ImportInProgress", condition("Running", "True", "Pod is running")), None);
        assert_eq!(error("ImportInProgress", condition("Running", "False", "Completed")), None);
        assert_eq!(error("Failed", json!([])).unwrap(), "DataVolume disk has failed");
        let held_up = "DataVolume disk is held up: Error: m";
        assert_eq!(error("ImportInProgress", condition("Running", "False", "Error")).unwrap(), held_up);
        let quota = condition("Bound", "Unknown", "ErrExceededQuota");
        assert_eq!(error("Pending", quota.clone()), None);
        let told = volume("Pending", quota).beyond_quota();
        assert_eq!(told.unwrap(), "DataVolume disk is held up: ErrExceededQuota: m");
    }

    #[test]
    fn how_far_it_is_is_told_with_what_it_waits_for() {
        assert_eq!(volume("", json!([])).progress(), "DataVolume disk: Pending");
        let bound = json!([{"type": "Bound", "status": "True", "message": "b"}, {"type": "Running", "status": "False", "message": "r"}]);
        assert_eq!(volume("ImportScheduled", bound).progress(), "DataVolume disk: ImportScheduled: r");
    }

    #[test]
    fn a_claim_names_its_data_volume() {
        let owner = |kind: &str, controller: bool| -> ObjectMeta {
            serde_json::from_value(json!({"ownerReferences": [
                {"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind, "name": "disk", "uid": "u", "controller": controller},
            ]}))
            .unwrap()
        };
        assert_eq!(DataVolume::of_claim(&owner("DataVolume", true)), Some("disk"));
        assert_eq!(DataVolume::of_claim(&owner("DataVolume", false)), None);
        assert_eq!(DataVolume::of_claim(&owner("DataUpload", true)), None);
        assert_eq!(DataVolume::of_claim(&ObjectMeta::default()), None);
    }
}
