//! Volumes of a running machine that move to other claims (`updateVolumesStrategy: Migration`).
//!
//! # Theory of operation
//!
//! The template names another claim for a volume. The machine moves to a pod that has this claim, and what is on the former claim
//! is copied while the guest runs. What stands where, in this order:
//!
//! ```text
//!                        instance: volume   migratedVolumes     volumeStatus   condition VolumesChange
//!  before                the former claim   -                   the former     -
//!  asked for             the new claim      former -> new       the former     True     one write of this controller
//!  the machine arrived   the new claim      -                   the new        -        one write of the source's virt-handler
//!  reverted              the new claim      former -> new       the former     False    the migration is being aborted
//!    … none is under way the former claim   -                   the former     False
//! ```
//!
//! While the third and the fourth column are of one piece both launchers copy ([`podvirt_api::storage::moving`]); in all other
//! states they take a claim for one that both nodes share. So nothing is written while a migration is under way, and the controller of
//! migrations hands no target pod over that has other claims than the instance names.
//!
//! A migration that fails is tried again, as upkeep is, for as long as the template asks for it. When the instance ends meanwhile,
//! the new claims hold parts of disks: the machine is not started (condition `ManualRecoveryRequired`) until the template names the
//! former claims again, or the strategy is another one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use podvirt_api::cdi::{CdiConfig, Phase as DataPhase};
use podvirt_api::migration::is_under_way;
use podvirt_api::names::condition::{FALSE, TRUE, VOLUMES_CHANGE, reason};
use podvirt_api::storage::{claim, is_hotpluggable};
use podvirt_api::v1::{
    PersistentVolumeClaimInfo, StorageMigratedVolumeInfo, VirtualMachine, VirtualMachineConditionType,
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase, VirtualMachineInstanceSpec,
    VirtualMachineStatus, Volume, VolumeMigrationState,
};
use podvirt_daemon::patch::{list, unchanged};
use serde_json::{Value, json};

use super::condition;
use super::instance::{TEMPLATE_DIGEST, template_digest};
use super::is_final;
use crate::data::DataVolumes;
use crate::kept::Kept;
use crate::vmi::claims::info as claim_info;
use crate::vmi::migratable;
use crate::vmi::status::set_condition;

/// The strategy by which volumes move.
const MIGRATION: &str = "Migration";
/// Message of the condition while they do (upstream's words).
const MIGRATES: &str = "migrate volumes";
/// Why a machine is not started (upstream's words).
const ENDED: &str = "VMI was removed or was final during the volume migration";

/// What is to be done about volumes with other claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Moves {
    /// Nothing, for now.
    #[default]
    None,
    /// The instance is changed.
    Change {
        /// Operations of a JSON patch.
        operations: Vec<Value>,
        /// What they come to, for people.
        message: String,
        /// The volumes that move, where they begin to.
        begun: Vec<StorageMigratedVolumeInfo>,
    },
    /// The volumes cannot move: the claims are used from the next start on.
    Refused(String),
}

/// Whether the machine's volumes move to other claims.
pub fn is_asked_for(vm: &VirtualMachine) -> bool {
    vm.spec.update_volumes_strategy.as_ref().is_some_and(|strategy| strategy.as_str() == MIGRATION)
}

/// A volume whose claim is another one in the template.
struct Other<'a> {
    there: &'a Volume,
    wanted: &'a Volume,
}

impl Other<'_> {
    fn claims(&self) -> Option<(&str, &str)> {
        Some((claim(self.there)?.name, claim(self.wanted)?.name))
    }
}

/// The volumes of the template that are on other claims than the instance's.
fn others<'a>(
    spec: &'a VirtualMachineInstanceSpec,
    present: &'a VirtualMachineInstanceSpec,
) -> impl Iterator<Item = Other<'a>> {
    let own = |volume: &&Volume| {
        volume.ephemeral.is_none() && volume.memory_dump.is_none() && claim(volume).is_some()
    };
    present.volumes.iter().filter(own).filter_map(move |there| {
        let wanted = spec.volumes.iter().filter(own).find(|wanted| wanted.name == there.name)?;
        if is_medium(spec, wanted) {
            return None;
        }
        let other = Other { there, wanted };
        other.claims().is_some_and(|(there, wanted)| there != wanted).then_some(other)
    })
}

/// Whether a hotpluggable volume is the medium of a CD-ROM drive, which is exchanged for another one, and not moved.
pub fn is_medium(spec: &VirtualMachineInstanceSpec, volume: &Volume) -> bool {
    let disks = &spec.domain.devices.disks;
    is_hotpluggable(volume) && disks.iter().any(|disk| disk.name == volume.name && disk.cdrom.is_some())
}

/// Gives the volumes of `spec`, a template's, the claims that they have in an instance with the spec `present`.
pub fn leave_out(spec: &mut VirtualMachineInstanceSpec, present: &VirtualMachineInstanceSpec) {
    let changed: Vec<Volume> = others(spec, present).map(|other| other.there.clone()).collect();
    for there in changed {
        if let Some(volume) = spec.volumes.iter_mut().find(|volume| volume.name == there.name) {
            *volume = there;
        }
    }
}

/// Names of the claims that must be known to judge; none where there is nothing to judge.
pub fn claims_to_know(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Vec<String> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let (true, Some(spec)) = (is_asked_for(vm), spec) else { return Vec::new() };
    let pairs: Vec<_> = others(spec, &vmi.spec).collect();
    let names = pairs.iter().filter_map(Other::claims).flat_map(|(there, wanted)| [there, wanted]);
    names.map(str::to_owned).collect()
}

/// What is known of CDI.
#[derive(Clone, Copy)]
pub struct Cdi<'a> {
    /// DataVolumes.
    pub data: &'a DataVolumes,
    /// CDI's settings.
    pub settings: &'a Kept<CdiConfig>,
}

/// Judges what the template asks for. `claims`: those of [`claims_to_know`].
pub fn judge(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    claims: &BTreeMap<String, Option<PersistentVolumeClaim>>,
    cdi: Cdi<'_>,
    now: Timestamp,
) -> Moves {
    let runs = vmi.status.phase == Some(Phase::Running) && vmi.metadata.deletion_timestamp.is_none();
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let (true, true, Some(spec)) = (runs, is_asked_for(vm), spec) else { return Moves::None };
    let moves = vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    let changed: Vec<Other<'_>> = others(spec, &vmi.spec).collect();
    if !vmi.status.migrated_volumes.is_empty() {
        return reverted(vm, vmi, &changed, moves, now);
    }
    if changed.is_empty() || moves {
        return Moves::None;
    }
    if let Some(why) = invalid(vmi, &changed) {
        return Moves::Refused(why);
    }
    for (_, wanted) in changed.iter().filter_map(Other::claims) {
        let there = claims.get(wanted).and_then(Option::as_ref);
        let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
        let of_data = cdi.data.get(namespace, wanted);
        let why = match (there, of_data) {
            (None, Some(_)) => format!("the PVC {wanted} of its DataVolume doesn't exist yet"),
            (None, None) => format!("persistentvolumeclaim {wanted} not found"),
            (Some(claim), Some(data)) => {
                let is_populated = claim.spec.as_ref().is_some_and(|spec| spec.data_source_ref.is_some());
                if data.phase() != DataPhase::Usable && !is_populated {
                    return Moves::Refused(format!(
                        "invalid volumes to update with migration: DV storage class isn't a CSI or not using volume populators: \
                         [{wanted}]"
                    ));
                }
                continue;
            }
            (Some(_), None) => continue,
        };
        return told(vmi, FALSE, "", &format!("One of the destination volumes doesn't exist: {why}"), now);
    }
    begin(vm, vmi, &changed, claims, cdi.settings, now)
}

/// What keeps these volumes from moving, in upstream's words.
fn invalid(vmi: &VirtualMachineInstance, changed: &[Other<'_>]) -> Option<String> {
    let disk =
        |other: &Other<'_>| vmi.spec.domain.devices.disks.iter().find(|disk| disk.name == other.there.name);
    let is_filesystem = |other: &Other<'_>| {
        vmi.spec.domain.devices.filesystems.iter().any(|filesystem| filesystem.name == other.there.name)
    };
    let named = |which: &dyn Fn(&Other<'_>) -> bool| {
        let names: Vec<&str> =
            changed.iter().filter(|other| which(other)).map(|other| other.there.name.as_str()).collect();
        names.join(" ")
    };
    let kinds = [
        // A volume that is hotpluggable at one claim alone would be another kind of volume after the move.
        ("hotplugged", named(&|other| is_hotpluggable(other.there) != is_hotpluggable(other.wanted))),
        ("filesystems", named(&is_filesystem)),
        ("shareable", named(&|other| disk(other).is_some_and(|disk| disk.shareable == Some(true)))),
        ("luns", named(&|other| disk(other).is_some_and(|disk| disk.lun.is_some()))),
    ];
    let told: Vec<String> = kinds
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(kind, names)| format!(" {kind}: [{names}]"))
        .collect();
    if !told.is_empty() {
        return Some(format!("invalid volumes to update with migration:{}", told.concat()));
    }
    let stays = |name: &str| !changed.iter().any(|other| other.there.name == name);
    let of_one = vmi.status.volume_status.iter().find(|told| {
        let modes = told.persistent_volume_claim_info.as_ref().map(|info| info.access_modes.as_slice());
        let is_of_one = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
        stays(&told.name) && modes.is_some_and(|modes| !modes.is_empty() && modes.iter().all(is_of_one))
    });
    of_one.map(|told| {
        let name = &told.name;
        format!("cannot migrate the VM. The volume {name} is RWO and not included in the migration volumes")
    })
}

/// The volumes begin to move.
fn begin(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    changed: &[Other<'_>],
    claims: &BTreeMap<String, Option<PersistentVolumeClaim>>,
    data_settings: &Kept<CdiConfig>,
    now: Timestamp,
) -> Moves {
    let info = |name: &str| -> PersistentVolumeClaimInfo {
        let claim = claims.get(name).and_then(Option::as_ref);
        let none = PersistentVolumeClaimInfo { claim_name: Some(name.to_owned()), ..Default::default() };
        claim.map_or(none, |claim| claim_info(name, claim, data_settings))
    };
    let begun: Vec<StorageMigratedVolumeInfo> = changed
        .iter()
        .filter_map(|other| {
            let (there, wanted) = other.claims()?;
            Some(StorageMigratedVolumeInfo {
                volume_name: other.there.name.clone(),
                source_pvc_info: Some(info(there)),
                destination_pvc_info: Some(info(wanted)),
            })
        })
        .collect();
    let mut wanted = vmi.clone();
    for other in changed {
        replace(&mut wanted, other.wanted);
    }
    wanted.status.migrated_volumes.clone_from(&begun);
    if let Err((_, why)) = migratable::judge(&wanted) {
        return Moves::Refused(format!("cannot migrate the volumes as the VMI isn't migratable: {why}"));
    }
    set_condition(&mut wanted.status, VOLUMES_CHANGE, TRUE, "", MIGRATES, now);
    let names: Vec<&str> = begun.iter().map(|moved| moved.volume_name.as_str()).collect();
    let message = format!("volumes move to other claims: {}", names.join(", "));
    Moves::Change { operations: operations(vm, vmi, &wanted), message, begun }
}

/// The template names the former claims again: the migration is aborted, and then the instance has them, too.
fn reverted(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    changed: &[Other<'_>],
    moves: bool,
    now: Timestamp,
) -> Moves {
    if changed.is_empty() {
        return Moves::None;
    }
    let former = |other: &Other<'_>| {
        let moved = vmi.status.migrated_volumes.iter().find(|moved| moved.volume_name == other.there.name);
        let source = moved.and_then(|moved| moved.source_pvc_info.as_ref()?.claim_name.clone());
        source.is_some() && claim(other.wanted).map(|claim| claim.name.to_owned()) == source
    };
    if changed.len() != vmi.status.migrated_volumes.len() || !changed.iter().all(former) {
        return Moves::Refused(
            "The volume can only be reverted to the previous version during the update".to_owned(),
        );
    }
    let said = vmi.status.conditions.iter().find(|c| c.r#type.as_str() == VOLUMES_CHANGE);
    if said.is_none_or(|said| said.status != FALSE) {
        return told(vmi, FALSE, reason::VOLUMES_CHANGE_CANCELLATION, "", now);
    }
    if moves {
        return Moves::None;
    }
    let mut wanted = vmi.clone();
    for other in changed {
        replace(&mut wanted, other.wanted);
    }
    wanted.status.migrated_volumes.clear();
    let message = "volumes stay on the claims that they had".to_owned();
    Moves::Change { operations: operations(vm, vmi, &wanted), message, begun: Vec::new() }
}

fn replace(vmi: &mut VirtualMachineInstance, wanted: &Volume) {
    if let Some(volume) = vmi.spec.volumes.iter_mut().find(|volume| volume.name == wanted.name) {
        volume.clone_from(wanted);
    }
}

/// Sets the condition of the instance, if it is another one.
fn told(vmi: &VirtualMachineInstance, value: &str, why: &str, message: &str, now: Timestamp) -> Moves {
    let mut wanted = vmi.clone();
    if !set_condition(&mut wanted.status, VOLUMES_CHANGE, value, why, message, now) {
        return Moves::None;
    }
    let conditions =
        list("/status/conditions", &json!(vmi.status.conditions), &json!(wanted.status.conditions));
    let operations = [Some(unchanged(vmi)), conditions].into_iter().flatten().collect();
    let message = if message.is_empty() { "the move to other claims is cancelled" } else { message };
    Moves::Change { operations, message: message.to_owned(), begun: Vec::new() }
}

/// The operations that bring the instance to `wanted`, with the digest of the template that it has then.
fn operations(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    wanted: &VirtualMachineInstance,
) -> Vec<Value> {
    let digest = |key: &str| format!("/metadata/annotations/{}", key.replace('/', "~1"));
    let is_current = vmi.annotations().get(TEMPLATE_DIGEST) == Some(&template_digest(vm, &vmi.spec));
    let renewed = is_current.then(
        || json!({"op": "add", "path": digest(TEMPLATE_DIGEST), "value": template_digest(vm, &wanted.spec)}),
    );
    let all = [
        Some(unchanged(vmi)),
        list("/spec/volumes", &json!(vmi.spec.volumes), &json!(wanted.spec.volumes)),
        list(
            "/status/migratedVolumes",
            &json!(vmi.status.migrated_volumes),
            &json!(wanted.status.migrated_volumes),
        ),
        list("/status/conditions", &json!(vmi.status.conditions), &json!(wanted.status.conditions)),
        renewed,
    ];
    all.into_iter().flatten().collect()
}

/// Whether the machine may not be started, because its claims hold parts of disks.
pub fn needs_recovery(status: &VirtualMachineStatus) -> bool {
    status.conditions.iter().any(|condition| {
        condition.r#type == VirtualMachineConditionType::ManualRecoveryRequired && condition.status == TRUE
    })
}

/// Writes what became of volumes that began to move. `before`: the status that is written over.
pub fn tell(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    moves: &Moves,
    status: &mut VirtualMachineStatus,
    now: Timestamp,
) {
    if let Moves::Change { begun, .. } = moves
        && !begun.is_empty()
    {
        let state = VolumeMigrationState { migrated_volumes: begun.clone() };
        status.volume_update_state.get_or_insert_default().volume_migration_state = Some(state);
    }
    let Some(update) = &mut status.volume_update_state else { return };
    let Some(state) = &update.volume_migration_state else { return };
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let has_former = |moved: &StorageMigratedVolumeInfo| {
        let volume = spec?.volumes.iter().find(|volume| volume.name == moved.volume_name)?;
        Some(claim(volume)?.name == moved.source_pvc_info.as_ref()?.claim_name.as_deref()?)
    };
    let recovered = state.migrated_volumes.iter().all(|moved| has_former(moved) != Some(false));
    let kind = VirtualMachineConditionType::ManualRecoveryRequired;
    if recovered || !is_asked_for(vm) {
        update.volume_migration_state = None;
        condition::clear(status, &kind);
        return;
    }
    let moved = match vmi {
        // The machine's copy of the condition may be older than the end of the move.
        Some(vmi) => {
            let mut conditions = vmi.status.conditions.iter();
            !vmi.status.migrated_volumes.is_empty()
                && conditions.any(|c| c.r#type.as_str() == VOLUMES_CHANGE && c.status == TRUE)
        }
        None => vm.status.conditions.iter().any(|c| c.r#type.as_str() == VOLUMES_CHANGE && c.status == TRUE),
    };
    if moved && vmi.is_none_or(is_final) {
        condition::set(status, kind, TRUE, ENDED, "", now);
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
