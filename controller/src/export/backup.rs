//! Exports of backups in pull mode: what a backup offers, and what an exporter pod and its links have of it. Pure functions.
//!
//! ```text
//!  VirtualMachineBackup ── pull mode, Progressing, includedVolumes ──> pod without claims, BACKUP* in its environment ──> links
//!                                                                        ^
//!  virt-launcher ── dials, with a certificate of the exports' CA ────────┘
//! ```
//!
//! The machine's launcher is told of one export, which the backup owns ([`crate::backup`]): another export of the same backup would
//! have nothing to serve, and gets no pod. Words are upstream's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use podvirt_api::backup::is_pulled;
use podvirt_api::export::backup::{CA, TYPE, UID, path};
use podvirt_api::names::condition;
use podvirt_api::v1::{
    BackupConditionType, ExportBackupEndpoint as Endpoint, VirtualMachineBackup as Backup,
    VirtualMachineExport as Export, VirtualMachineExportBackup as Link, VirtualMachineExportBackupEndpoint,
};

use super::pod::variable;
use super::source::{Seen, reason};

/// What a backup offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// The backup's UID.
    pub uid: String,
    /// `Full` or `Incremental`.
    pub kind: String,
    /// Names of its volumes.
    pub volumes: Vec<String>,
}

/// A backup as a source.
pub(super) fn of_backup(export: &Export, backup: Option<&Backup>) -> Seen {
    let waits = |why: String| Seen::waiting(reason::BACKUP_READY, why);
    let Some(backup) = backup else { return waits("VMBackup does not exist yet".to_owned()) };
    let [namespace, name] =
        [&backup.metadata.namespace, &backup.metadata.name].map(|text| text.as_deref().unwrap_or_default());
    if !is_pulled(backup) {
        return waits(format!("VirtualMachineBackup {namespace}/{name} is not in pull mode"));
    }
    let mut owners = export.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| Some(&owner.uid) == backup.metadata.uid.as_ref()) {
        let message = format!(
            "VirtualMachineBackup {namespace}/{name} is read by its own VirtualMachineExport alone, {namespace}/{name}"
        );
        return waits(message);
    }
    let mut conditions = backup.status.conditions.iter();
    let progresses = conditions.find(|one| one.r#type == BackupConditionType::Progressing);
    let volumes: Vec<String> =
        backup.status.included_volumes.iter().map(|volume| volume.volume_name.clone()).collect();
    match (progresses, &backup.status.r#type) {
        (None, _) => waits("VMBackup progressing condition not found".to_owned()),
        (Some(one), Some(kind)) if one.status == condition::TRUE => {
            if volumes.is_empty() {
                return waits("VMBackup has no included volumes".to_owned());
            }
            let uid = backup.metadata.uid.clone().unwrap_or_default();
            let offered = Offered { uid, kind: kind.as_str().to_owned(), volumes };
            Seen {
                populated: true,
                backup: Some(offered),
                ..Seen::waiting(reason::INITIALIZING, String::new())
            }
        }
        _ => waits("VMBackup is not progressing".to_owned()),
    }
}

/// Start of the names of a volume's variables.
fn prefix(place: usize) -> String {
    format!("BACKUP{place}")
}

/// The variables of a pod that serves what is offered; `ca`: the certificates of which the launcher's has to be.
pub(super) fn environment(offered: &Offered, ca: &str) -> Vec<EnvVar> {
    let volumes = offered.volumes.iter().enumerate().flat_map(|(place, volume)| {
        let prefix = prefix(place);
        [
            variable(&format!("{prefix}_BACKUP_PATH"), volume),
            variable(&format!("{prefix}_DATA_URI"), &path(volume, Endpoint::Data.as_str())),
            variable(&format!("{prefix}_MAP_URI"), &path(volume, Endpoint::Map.as_str())),
        ]
    });
    let whole = [(CA, ca), (UID, &offered.uid), (TYPE, &offered.kind)];
    volumes.chain(whole.map(|(name, value)| variable(name, value))).collect()
}

/// The links of what a pod serves, by its environment; `base`: host and path at which clients find it.
pub(super) fn links(pod: &Pod, base: &str) -> Vec<Link> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let environment = containers.filter_map(|container| container.env.as_ref()).flatten();
    let known: BTreeMap<&str, &str> =
        environment.filter_map(|one| Some((one.name.as_str(), one.value.as_deref()?))).collect();
    let of = |place: usize, what: &str| known.get(format!("{}_{what}", prefix(place)).as_str()).copied();
    let volumes = (0..).map_while(|place| Some((place, of(place, "BACKUP_PATH")?)));
    let words = [(Endpoint::Data, "DATA_URI"), (Endpoint::Map, "MAP_URI")];
    let link = |(place, volume): (usize, &str)| {
        let endpoints = words.iter().filter_map(|(endpoint, what)| {
            let url = format!("https://{base}{}", of(place, what)?);
            Some(VirtualMachineExportBackupEndpoint { endpoint: endpoint.clone(), url })
        });
        Link { name: volume.to_owned(), endpoints: endpoints.collect() }
    };
    volumes.map(link).collect()
}
