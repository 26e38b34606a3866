//! What comes next in a restore: a pure function of what is there and the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use podvirt_api::cdi::{DataVolume, POPULATED_FOR, Phase};
use podvirt_api::error::chain;
use podvirt_api::snapshot::{
    DEFAULT_DEADLINE, LAST_RESTORE, RESTORE_FINALIZER, claim as snapshot_claim, restored_by, restores,
    volumes,
};
use podvirt_api::state;
use podvirt_api::v1::{
    SnapshotVirtualMachine, TargetReadinessPolicy as Readiness, VirtualMachine,
    VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content, VolumeRestore, VolumeRestorePolicy,
};

use super::machine::{restored, template};
use super::names;
use crate::claim::{Ownership, ownership};
use crate::data::look::name_of;
use crate::storage::is_bound;

/// What is said of a target that runs.
const WAIT_FOR_EVER: &str =
    "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore";
const WAIT: &str = "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore, or the \
                    operation will fail after 5m0s";
const TOO_LATE: &str =
    "Restore target failed to be ready within 5m0s. Please power off the target VM before attempting restore";
const AT_ONCE: &str = "Restore target VMI must be powered off before restore operation";
pub(super) const STOPPING: &str = "Automatically stopping restore target for restore operation";
const ANOTHER: &str = "restore source and restore target are different but restore target already exists";

const OF_ANOTHER_MACHINE: &str = "Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)";

/// Whether a machine that was stored keeps the state of its firmware or TPM.
pub(crate) fn is_kept(stored: &SnapshotVirtualMachine) -> bool {
    let template = stored.spec.as_ref().and_then(|spec| spec.template.as_ref());
    template.and_then(|template| template.spec.as_ref()).is_some_and(state::is_kept)
}

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The restore.
    pub restore: &'a Restore,
    /// The machine of its target's name, if it is there.
    pub target: Option<&'a VirtualMachine>,
    /// Whether the machine has an instance that has not ended.
    pub runs: bool,
    /// The snapshot and its content, if both are ready.
    pub snapshot: Result<(&'a Snapshot, &'a Content), &'a str>,
    /// The claims of the names that the restore has noted.
    pub claims: &'a BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// Storage classes of which claims wait for a pod.
    pub waiting: &'a [String],
    /// The DataVolumes of the names that the restored machine has in its templates.
    pub data: &'a BTreeMap<String, Arc<DataVolume>>,
    /// Now.
    pub now: Timestamp,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing: it is over.
    Rest,
    /// Say that it has begun.
    Begin,
    /// Let go of the target: the restore is being deleted.
    End,
    /// Finalizer and owner of the restore.
    Adopt,
    /// The target runs: say so.
    Wait(&'static str),
    /// The target runs: stop it.
    Stop,
    /// The target was not off in time.
    Fail(&'static str),
    /// It cannot go on: say so, and try again later.
    Problem(String),
    /// Hold the target, so that it is not started.
    Hold,
    /// Note what the volumes are restored to.
    Note(Vec<VolumeRestore>),
    /// Make, and delete, claims; wait for them.
    Claims(Vec<Claim>),
    /// Mark claims as those of DataVolumes, and note the DataVolumes.
    Mark(Vec<VolumeRestore>),
    /// Make DataVolumes of the templates at these places; wait for them.
    DataVolumes(Vec<usize>),
    /// Note the DataVolumes that the machine will name no more.
    Obsolete(Vec<String>),
    /// Write the machine.
    Machine(Box<VirtualMachine>),
    /// Owners, and the end.
    Settle,
}

/// What becomes of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is made from the VolumeSnapshot of the restore at this place.
    Make(usize),
    /// It is deleted, to be made anew. Its DataVolume must leave that to the restore.
    Replace {
        /// The claim.
        name: String,
        /// Its UID.
        uid: String,
        /// The DataVolume that owns it.
        data: Option<String>,
    },
}

/// Whether an object was last restored by this restore.
pub(super) fn is_done(restore: &Restore, metadata: &ObjectMeta) -> bool {
    let told = metadata.annotations.as_ref().and_then(|all| all.get(LAST_RESTORE));
    told.is_some_and(|told| *told == restored_by(restore))
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Next {
    let Observed { restore, target, .. } = *seen;
    if restore.metadata.deletion_timestamp.is_some() {
        return if has_finalizer(restore) { Next::End } else { Next::Rest };
    }
    if restore.status.complete.is_none() && restore.status.conditions.is_empty() {
        return Next::Begin;
    }
    if !restores(restore) {
        return Next::Rest;
    }
    let lacks_owner = target.is_some() && restore.owner_references().is_empty();
    if lacks_owner || !has_finalizer(restore) {
        return Next::Adopt;
    }
    if seen.runs {
        return running(seen);
    }
    let (snapshot, content) = match seen.snapshot {
        Ok(ready) => ready,
        Err(why) => return Next::Problem(why.to_owned()),
    };
    let Some(stored) = &content.spec.source.virtual_machine else {
        return Next::Problem("unexpected snapshot source".into());
    };
    let of = stored.metadata.as_ref().and_then(|metadata| metadata.name.as_deref());
    if of != Some(&restore.spec.target.name) && is_kept(stored) {
        return Next::Problem(OF_ANOTHER_MACHINE.into());
    }
    let done = target.is_some_and(|vm| is_done(restore, &vm.metadata));
    if let Some(vm) = target.filter(|_| !done) {
        let of = snapshot.status.source_uid.as_ref();
        if of.is_some() && of != vm.metadata.uid.as_ref() {
            return Next::Problem(ANOTHER.into());
        }
        match vm.status.restore_in_progress.as_deref() {
            None => return Next::Hold,
            Some(other) if other != restore.name_any() => {
                return Next::Problem(format!("vm restore {other} in progress"));
            }
            Some(_) => {}
        }
    }
    match noted(restore, stored, content) {
        Ok(all) if is_other(&restore.status.restores, &all) => return Next::Note(all),
        Ok(_) => {}
        Err(why) => return Next::Problem(why),
    }
    match of_claims(seen) {
        Ok(None) => {}
        Ok(Some(claims)) => return Next::Claims(claims),
        Err(why) => return Next::Problem(why),
    }
    if done {
        return Next::Settle;
    }
    if let Some(marked) = marked(seen, stored) {
        return Next::Mark(marked);
    }
    let vm = match restored(restore, stored, target) {
        Ok(vm) => vm,
        Err(error) => return Next::Problem(chain(&error)),
    };
    match of_data(seen, &vm) {
        Ok(None) => {}
        Ok(Some(places)) => return Next::DataVolumes(places),
        Err(why) => return Next::Problem(why),
    }
    if let Some(there) = target {
        let stays = |name: &str| vm.spec.data_volume_templates.iter().any(|one| name_of(one) == name);
        let goes = there.spec.data_volume_templates.iter().map(name_of).filter(|name| !stays(name));
        let goes: Vec<String> = goes.map(ToOwned::to_owned).collect();
        if goes != restore.status.deleted_data_volumes {
            return Next::Obsolete(goes);
        }
    }
    Next::Machine(Box::new(vm))
}

fn has_finalizer(restore: &Restore) -> bool {
    restore.finalizers().iter().any(|one| one == RESTORE_FINALIZER)
}

fn running(seen: &Observed<'_>) -> Next {
    let policy = seen.restore.spec.target_readiness_policy.clone().unwrap_or(Readiness::WaitGracePeriod);
    let made = seen.restore.metadata.creation_timestamp.as_ref().map_or(seen.now, |time| time.0);
    let is_late = made.checked_add(DEFAULT_DEADLINE).is_ok_and(|end| end < seen.now);
    match policy {
        Readiness::WaitEventually => Next::Wait(WAIT_FOR_EVER),
        Readiness::StopTarget if seen.target.is_some() => Next::Stop,
        Readiness::StopTarget => Next::Wait(WAIT_FOR_EVER),
        Readiness::FailImmediate => Next::Fail(AT_ONCE),
        Readiness::WaitGracePeriod if is_late => Next::Fail(TOO_LATE),
        Readiness::WaitGracePeriod => Next::Wait(WAIT),
        Readiness::Other(word) => Next::Problem(format!("unknown targetReadinessPolicy: {word}")),
    }
}

/// What the volumes are restored to: what is noted stays.
fn noted(
    restore: &Restore,
    stored: &SnapshotVirtualMachine,
    content: &Content,
) -> Result<Vec<VolumeRestore>, String> {
    let left_out =
        |name: &str| volumes(stored).iter().any(|one| one.name == name && one.memory_dump.is_some());
    let backups = content.spec.volume_backups.iter().filter(|one| !left_out(&one.volume_name));
    let of = |backup: &podvirt_api::v1::VolumeBackup| {
        let known = restore.status.restores.iter().find(|one| one.volume_name == backup.volume_name);
        if let Some(known) = known {
            return Ok(known.clone());
        }
        let metadata = backup.persistent_volume_claim.metadata.as_ref();
        let claim = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
        let none = || format!("VolumeSnapshotName missing of volume {}", backup.volume_name);
        Ok(VolumeRestore {
            volume_name: backup.volume_name.clone(),
            persistent_volume_claim: names::restored(restore, &backup.volume_name, claim),
            volume_snapshot_name: backup.volume_snapshot_name.clone().ok_or_else(none)?,
            ..VolumeRestore::default()
        })
    };
    backups.map(of).collect()
}

fn is_other(before: &[VolumeRestore], after: &[VolumeRestore]) -> bool {
    before != after
}

/// What becomes of the claims: `None` when all are there.
fn of_claims(seen: &Observed<'_>) -> Result<Option<Vec<Claim>>, String> {
    let restore = seen.restore;
    let in_place = restore.spec.volume_restore_policy == Some(VolumeRestorePolicy::InPlace);
    let (mut steps, mut waits) = (Vec::new(), false);
    for (place, to) in restore.status.restores.iter().enumerate() {
        let name = &to.persistent_volume_claim;
        let Some(claim) = seen.claims.get(name) else {
            steps.push(Claim::Make(place));
            continue;
        };
        if claim.metadata.deletion_timestamp.is_some() {
            waits = true;
        } else if !is_done(restore, &claim.metadata) {
            if !in_place {
                return Err(format!("PersistentVolumeClaim {name} exists, and this restore has not made it"));
            }
            if !seen.target.is_some_and(|vm| is_of_target(vm, &claim.metadata)) {
                let target = &restore.spec.target.name;
                return Err(format!(
                    "PersistentVolumeClaim {name} exists, and VirtualMachine {target} does not have it: \
                     volumeRestorePolicy InPlace replaces claims of the target only"
                ));
            }
            let data = DataVolume::of_claim(&claim.metadata).map(ToOwned::to_owned);
            steps.push(Claim::Replace { name: name.clone(), uid: claim.uid().unwrap_or_default(), data });
        } else if !is_bound(claim) {
            let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
            let phase = claim.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            if !phase.is_empty() && phase != "Pending" {
                return Err(format!("PersistentVolumeClaim {name} is {phase}"));
            }
            waits |= class.is_none_or(|class| !seen.waiting.contains(&class));
        }
    }
    Ok((waits || !steps.is_empty()).then_some(steps))
}

/// Whether a claim is one of the target's: a volume of its template names the claim, or its firmware's and TPM's state is on the claim.
fn is_of_target(vm: &VirtualMachine, claim: &ObjectMeta) -> bool {
    let name = claim.name.as_deref();
    let machine = vm.metadata.name.as_deref().unwrap_or_default();
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let mut volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    let label = claim.labels.as_ref().and_then(|labels| labels.get(state::PERSISTENT_STATE_FOR));
    let has_state = label.is_some_and(|label| label == machine)
        || name == Some(&format!("{}-{machine}", state::PERSISTENT_STATE_FOR));
    volumes.any(|volume| snapshot_claim(volume) == name)
        || has_state && ownership(&vm.metadata, claim) != Ownership::Foreign
}

/// The notes with the names of DataVolumes, where those or marks of their claims are missing.
fn marked(seen: &Observed<'_>, stored: &SnapshotVirtualMachine) -> Option<Vec<VolumeRestore>> {
    let spec = stored.spec.as_ref()?;
    let mut all = seen.restore.status.restores.clone();
    let mut lacks = false;
    for to in &mut all {
        let volume = volumes(stored).iter().find(|volume| volume.name == to.volume_name);
        let Some(data) = volume.and_then(|volume| volume.data_volume.as_ref()) else { continue };
        if template(spec, &data.name).is_none() {
            continue;
        }
        let name = names::restored(seen.restore, &to.volume_name, &data.name);
        let claim = seen.claims.get(&to.persistent_volume_claim);
        let mark = claim.and_then(|claim| claim.metadata.annotations.as_ref()?.get(POPULATED_FOR));
        lacks |= mark != Some(&name);
        to.data_volume_name = Some(name);
    }
    (lacks || all != seen.restore.status.restores).then_some(all)
}

/// Places of the templates whose DataVolumes are to be made: `None` when all are there.
fn of_data(seen: &Observed<'_>, vm: &VirtualMachine) -> Result<Option<Vec<usize>>, String> {
    let (mut missing, mut waits) = (Vec::new(), false);
    for (place, template) in vm.spec.data_volume_templates.iter().enumerate() {
        let name = name_of(template);
        match seen.data.get(name) {
            Some(data) => waits |= !matches!(data.phase(), Phase::Usable | Phase::WaitsForConsumer),
            None => {
                let Some(claim) = seen.claims.get(name) else {
                    return Err(format!("DataVolume {name}: its claim does not exist and should"));
                };
                let marks = claim.metadata.annotations.as_ref().and_then(|all| all.get(POPULATED_FOR));
                if marks.is_some_and(|mark| mark == name) && claim.owner_references().is_empty() {
                    missing.push(place);
                }
            }
        }
    }
    Ok((waits || !missing.is_empty()).then_some(missing))
}
