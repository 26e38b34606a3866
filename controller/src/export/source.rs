//! What an export's source is: pure functions of what the caches have.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podvirt_api::export::restored_name;
use podvirt_api::snapshot::claim;
use podvirt_api::state;
use podvirt_api::v1::{
    ExportConditionType as Condition, VirtualMachine, VirtualMachineExport as Export, VirtualMachineInstance,
    VirtualMachineInstancePhase as Phase, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content,
};

use super::backup::Offered;
use crate::claim::{Ownership, ownership};
use crate::data::DataVolumes;
use crate::snapshot::is_filled;
use crate::storage::{self, Storage, backend};

/// Upstream's reasons.
pub(super) mod reason {
    pub(in super::super) const INITIALIZING: &str = "Initializing";
    pub(in super::super) const IN_USE: &str = "InUse";
    pub(in super::super) const UNKNOWN: &str = "Unknown";
    pub(in super::super) const POD_PENDING: &str = "PodPending";
    pub(in super::super) const POD_READY: &str = "PodReady";
    pub(in super::super) const POD_COMPLETED: &str = "PodCompleted";
    pub(in super::super) const BACKUP_READY: &str = "VirtualMachineBackupReady";
    pub(super) const CLAIM_NOT_FOUND: &str = "PVCNotFound";
    pub(super) const CLAIM_BOUND: &str = "PVCBound";
    pub(super) const CLAIM_PENDING: &str = "PVCPending";
    pub(super) const MACHINE_NOT_FOUND: &str = "VMNotFound";
    pub(super) const MACHINE_EMPTY: &str = "VMNoVolumes";
    pub(super) const NOT_POPULATED: &str = "VolumesNotPopulated";
    pub(super) const SNAPSHOT_NOT_FOUND: &str = "VMSnapshotNotFound";
    pub(super) const SNAPSHOT_EMPTY: &str = "VMSnapshotNoVolumes";
    pub(super) const NOT_CREATED: &str = "NotAllPVCsCreated";
    pub(super) const NOT_READY: &str = "NotAllPVCsReady";
    pub(super) const ALL_READY: &str = "AllPVCsReady";
}

/// What is seen of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Names of the claims that are exported.
    pub claims: Vec<String>,
    /// What a backup offers; it has no claims.
    pub backup: Option<Offered>,
    /// Whether the claims are filled.
    pub populated: bool,
    /// Whether a machine or another pod uses them.
    pub in_use: bool,
    /// Reason and message of the condition Ready while there is no pod.
    pub waits: (&'static str, String),
    /// A further condition: its kind, whether it is met, reason and message.
    pub condition: Option<(Condition, bool, &'static str, String)>,
    /// Whether there is nothing to export.
    pub skipped: bool,
    /// The machine that the claims are of.
    pub machine: Option<String>,
    /// Places in the snapshot's volume backups whose claims are to be made.
    pub missing: Vec<usize>,
    /// Whether no word comes of what is waited for.
    pub looks_again: bool,
}

impl Seen {
    /// Whether the source can be exported now.
    pub fn is_available(&self) -> bool {
        self.populated && !self.in_use && (!self.claims.is_empty() || self.backup.is_some())
    }

    pub(super) fn waiting(waits: &'static str, message: String) -> Self {
        Seen { waits: (waits, message), ..Seen::default() }
    }
}

/// What the caches have.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) storage: &'a Storage,
    pub(super) data: &'a DataVolumes,
}

impl Known<'_> {
    fn is_filled(&self, namespace: &str, name: &str) -> Option<bool> {
        let claim = self.storage.claims.get(namespace, name)?;
        Some(is_filled(&claim, namespace, self.data))
    }

    fn phase(&self, namespace: &str, name: &str) -> Option<String> {
        self.storage.claims.get(namespace, name)?.status.as_ref()?.phase.clone()
    }
}

/// Whether an object is the export's.
pub(super) fn is_own(object: &ObjectMeta, export: &Export) -> bool {
    let mut owners = object.owner_references.iter().flatten();
    owners.any(|owner| Some(&owner.uid) == export.metadata.uid.as_ref())
}

/// Whether a pod that is not the export's own uses a claim.
pub(super) fn uses(pod: &Pod, claim: &str, export: &Export) -> bool {
    storage::uses(pod, claim) && !is_own(&pod.metadata, export)
}

/// A claim; `in_use`: another pod has it.
pub(super) fn of_claim(namespace: &str, name: &str, in_use: bool, known: Known<'_>) -> Seen {
    let Some(populated) = known.is_filled(namespace, name) else {
        let message = format!("PersistentVolumeClaim {namespace}/{name} not found");
        return Seen {
            condition: Some((Condition::PvcReady, false, reason::CLAIM_NOT_FOUND, message)),
            ..Seen::waiting(reason::INITIALIZING, String::new())
        };
    };
    let (bound, why) = match known.phase(namespace, name).as_deref() {
        Some("Bound") => (true, reason::CLAIM_BOUND),
        Some("Pending") | None => (false, reason::CLAIM_PENDING),
        Some(_) => (false, reason::UNKNOWN),
    };
    let waits = if !populated {
        (reason::CLAIM_PENDING, format!("PersistentVolumeClaim {namespace}/{name} is not populated"))
    } else if in_use {
        (reason::IN_USE, format!("PersistentVolumeClaim {namespace}/{name} is in use"))
    } else {
        (reason::INITIALIZING, String::new())
    };
    Seen {
        claims: vec![name.to_owned()],
        populated,
        in_use: populated && in_use,
        waits,
        condition: Some((Condition::PvcReady, bound, why, String::new())),
        looks_again: true,
        ..Seen::default()
    }
}

/// A machine with its instance.
pub(super) fn of_machine(
    namespace: &str,
    name: &str,
    vm: Option<&VirtualMachine>,
    vmi: Option<&VirtualMachineInstance>,
    known: Known<'_>,
) -> Seen {
    let machine = Some(name.to_owned());
    let Some(vm) = vm else {
        let message = format!("Virtual Machine {namespace}/{name} not found");
        return Seen { machine, skipped: true, ..Seen::waiting(reason::MACHINE_NOT_FOUND, message) };
    };
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let mut seen = Seen { machine, populated: true, ..Seen::default() };
    let state = backend::volume_of(vm, known.storage);
    // A claim that is to keep the machine's state is made with its first start.
    seen.populated &= state.is_some() || !spec.is_some_and(state::is_kept);
    for volume in spec.iter().flat_map(|spec| &spec.volumes).chain(&state) {
        let Some(name) = claim(volume) else { continue };
        match known.is_filled(namespace, name) {
            Some(filled) => {
                seen.populated &= filled;
                seen.claims.push(name.to_owned());
            }
            // Its claim is made later.
            None if volume.data_volume.is_some() => seen.populated = false,
            None => {}
        }
    }
    let runs = vmi.is_some_and(|vmi| !matches!(vmi.status.phase, Some(Phase::Succeeded | Phase::Failed)));
    seen.waits = if seen.claims.is_empty() && seen.populated {
        seen.skipped = true;
        (reason::MACHINE_EMPTY, format!("Virtual Machine {namespace}/{name} has no volumes"))
    } else if !seen.populated {
        let message = format!("Not all volumes in the Virtual Machine {namespace}/{name} are populated");
        (reason::NOT_POPULATED, message)
    } else if runs {
        seen.in_use = true;
        (reason::IN_USE, format!("Virtual Machine {namespace}/{name} is running"))
    } else {
        (reason::INITIALIZING, String::new())
    };
    seen.looks_again = !seen.populated;
    seen
}

/// A snapshot of a machine with what it holds.
pub(super) fn of_snapshot(
    export: &Export,
    snapshot: Option<&Snapshot>,
    content: Option<&Content>,
    known: Known<'_>,
) -> Seen {
    let namespace = export.metadata.namespace.as_deref().unwrap_or_default();
    let own = export.metadata.name.as_deref().unwrap_or_default();
    let name = &export.spec.source.name;
    let told = |met, why, message: String| Some((Condition::VolumesCreated, met, why, message));
    let empty = format!("VirtualMachineSnapshot {namespace}/{name} does not contain any volume snapshots");
    let Some(snapshot) = snapshot else {
        let message = format!("VirtualMachineSnapshot {namespace}/{name} not found");
        return Seen {
            machine: Some(String::new()),
            condition: told(false, reason::SNAPSHOT_EMPTY, empty),
            skipped: true,
            ..Seen::waiting(reason::SNAPSHOT_NOT_FOUND, message)
        };
    };
    let machine = Some(snapshot.spec.source.name.clone());
    let (true, Some(content)) = (snapshot.status.ready_to_use == Some(true), content) else {
        let message = format!("VirtualMachineSnapshot {namespace}/{name} is not ready to use");
        return Seen {
            machine,
            condition: told(false, reason::NOT_CREATED, message.clone()),
            ..Seen::waiting(reason::NOT_CREATED, message)
        };
    };
    let backups = content.spec.volume_backups.iter().enumerate();
    let mut seen = Seen { machine, ..Seen::waiting(reason::INITIALIZING, String::new()) };
    let mut taken = None;
    for (place, backup) in backups {
        let of = backup.persistent_volume_claim.metadata.as_ref();
        let of = of.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
        let claim = restored_name(own, of);
        match known.storage.claims.get(namespace, &claim) {
            Some(there) if ownership(&export.metadata, &there.metadata) == Ownership::Ours => {
                seen.claims.push(claim);
            }
            // What has the name may be any claim: it is not what the snapshot holds.
            Some(_) => taken = taken.or(Some(claim)),
            None => seen.missing.push(place),
        }
    }
    let bound = |claim: &String| known.phase(namespace, claim).as_deref() == Some("Bound");
    seen.condition = if let Some(claim) = &taken {
        let message = format!("PersistentVolumeClaim {namespace}/{claim} exists, and is not this export's");
        seen.waits = (reason::NOT_CREATED, message.clone());
        told(false, reason::NOT_CREATED, message)
    } else if seen.claims.is_empty() && seen.missing.is_empty() {
        seen.skipped = true;
        told(false, reason::SNAPSHOT_EMPTY, empty)
    } else if !seen.missing.is_empty() {
        told(false, reason::NOT_CREATED, "Not all PVCs have been successfully restored".to_owned())
    } else if seen.claims.iter().all(bound) {
        told(true, reason::ALL_READY, String::new())
    } else {
        told(false, reason::NOT_READY, "Not all PVCs are ready".to_owned())
    };
    seen.populated = seen.missing.is_empty() && taken.is_none();
    seen
}
