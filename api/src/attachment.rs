//! What an attachment pod is told: virt-controller makes such a pod to hold the claims of volumes that are plugged into a running
//! machine, and `virt-launcher attach` in it hands their disks over.

use serde::{Deserialize, Serialize};

use crate::v1::PersistentVolumeClaimInfo;

/// A volume of a machine whose claim an attachment pod holds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    /// The volume's name.
    pub name: String,
    /// Whether the machine only reads it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The file that a dump of the machine's memory is written to; the volume is no disk then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<String>,
    /// Whether the directory of the claim is handed over, which a backup writes into; the volume is no disk then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_directory: bool,
    /// What is known of its claim.
    pub claim: PersistentVolumeClaimInfo,
}
