//! What to do for a content: a pure function of what is there and the time; and the VolumeSnapshots that it makes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{DynamicObject, TypeMeta};
use kube::{Resource, ResourceExt};
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::names::label_value;
use podvirt_api::snapshot::{CONTENT_FINALIZER, SOURCE_LABELS, deletes, ends};
use podvirt_api::v1::{
    SnapshotError, SnapshotVolumeSnapshotStatus, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content, VirtualMachineSnapshotContentStatus as Status, VolumeBackup,
};
use serde_json::json;

use super::source::Source;
use super::status::told;

/// When to try again what was refused, and to look whether a content that is being deleted has gone.
pub(super) const AGAIN: Duration = Duration::from_secs(5);

/// VolumeSnapshots by name.
pub(super) type Taken = BTreeMap<String, Arc<VolumeSnapshot>>;

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed<'a> {
    /// The content.
    pub(super) content: &'a Content,
    /// Its snapshot, if it is there.
    pub(super) snapshot: Option<&'a Snapshot>,
    /// The machine that the snapshot is of, if it is there.
    pub(super) source: Option<Source<'a>>,
    /// Its VolumeSnapshots.
    pub(super) taken: &'a Taken,
    /// Now.
    pub(super) now: Timestamp,
}

/// What a pass leads to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The guest's file systems are thawed first. Whether that must succeed before the status is written.
    pub(super) thaw: Option<bool>,
    /// The finalizer is taken away.
    pub(super) lets_go: bool,
    /// Places of the backups whose VolumeSnapshots are to be made, and whether the guest is frozen before.
    pub(super) take: Vec<usize>,
    /// Whether the guest is frozen before they are made.
    pub(super) freeze: bool,
    /// The status as it shall be; none is written where the content goes.
    pub(super) status: Option<Status>,
    /// VolumeSnapshots that have gone, of which people are told.
    pub(super) missing: Vec<String>,
    /// When to look again if nothing happens before.
    pub(super) again_after: Option<Duration>,
}

/// The name of a backup's VolumeSnapshot; none is taken where it has none.
pub(super) fn name_of(backup: &VolumeBackup) -> Option<&str> {
    backup.volume_snapshot_name.as_deref()
}

/// Decides on what is seen.
pub(super) fn decide(seen: &Observed<'_>) -> Plan {
    let Observed { content, snapshot, source, taken, now } = *seen;
    let mut plan = Plan::default();
    let freezes = source.is_some_and(|source| source.freezes());
    let ending = snapshot.is_none_or(|snapshot| ends(snapshot, now));
    let held = snapshot.zip(source).is_some_and(|(snapshot, source)| source.is_held_by(&snapshot.name_any()));
    if ending {
        plan.thaw = (freezes && held).then_some(false);
        plan.lets_go = content.finalizers().iter().any(|one| one == CONTENT_FINALIZER);
        if snapshot.is_some_and(|snapshot| deletes(snapshot, content)) {
            return plan;
        }
    }
    if content.metadata.deletion_timestamp.is_some() {
        plan.again_after = Some(AGAIN);
        return plan;
    }
    let backups = content.spec.volume_backups.iter().enumerate();
    let lacking = backups.filter(|(_, one)| name_of(one).is_some_and(|name| !taken.contains_key(name)));
    let lacking: Vec<usize> = lacking.map(|(place, _)| place).collect();
    let was_created = content.status.creation_time.is_some();
    if !lacking.is_empty() && !was_created && !ending {
        plan.take = lacking;
        plan.freeze = freezes;
        return plan;
    }
    let mut status = content.status.clone();
    status.volume_snapshot_status =
        content.spec.volume_backups.iter().filter_map(|one| of_backup(one, taken)).collect();
    let (created, ready, problem) = judge(&status, content, &lacking, was_created);
    if was_created {
        plan.missing = names(content, &lacking);
    }
    if created && !was_created {
        status.creation_time = Some(Some(Time(now)));
        plan.thaw = (freezes && held).then_some(true);
    }
    match problem {
        None => status.error = None,
        Some(message) if !ready => {
            let known = status.error.as_ref().and_then(|known| known.message.as_deref()) == Some(&message);
            if !known {
                status.error = Some(told(&message, now));
            }
        }
        Some(_) => {}
    }
    status.ready_to_use = Some(ready);
    plan.status = Some(status);
    plan
}

fn names(content: &Content, places: &[usize]) -> Vec<String> {
    let backups = places.iter().filter_map(|place| content.spec.volume_backups.get(*place));
    backups.filter_map(|one| name_of(one).map(ToOwned::to_owned)).collect()
}

fn of_backup(backup: &VolumeBackup, taken: &Taken) -> Option<SnapshotVolumeSnapshotStatus> {
    let name = name_of(backup)?;
    let status = taken.get(name)?.status.clone().unwrap_or_default();
    Some(SnapshotVolumeSnapshotStatus {
        volume_snapshot_name: name.to_owned(),
        creation_time: status.creation_time.map(Some),
        ready_to_use: status.ready_to_use,
        error: status.error.map(|error| SnapshotError { time: error.time.map(Some), message: error.message }),
    })
}

/// Whether all were taken, whether all are ready, and what is wrong.
fn judge(
    status: &Status,
    content: &Content,
    lacking: &[usize],
    was_created: bool,
) -> (bool, bool, Option<String>) {
    if !lacking.is_empty() {
        let names = names(content, lacking).join(",");
        let end = if was_created { "missing" } else { "skipped because vm snapshot is deleted" };
        return (false, false, Some(format!("VolumeSnapshots ({names}) {end}")));
    }
    let all = &status.volume_snapshot_status;
    let created = all.iter().all(|one| one.creation_time.is_some());
    let ready = all.iter().all(|one| one.ready_to_use == Some(true));
    let problem = all.iter().find_map(|one| {
        let message = one.error.as_ref()?.message.as_ref()?;
        Some(format!("VolumeSnapshot {} error: {message}", one.volume_snapshot_name))
    });
    (created, ready, problem)
}

/// The VolumeSnapshot of a backup, by a class.
pub(super) fn volume_snapshot(content: &Content, backup: &VolumeBackup, class: &str) -> DynamicObject {
    let vm =
        content.spec.source.virtual_machine.as_ref().and_then(|vm| vm.metadata.clone()).unwrap_or_default();
    let texts = [vm.name, vm.namespace].map(Option::unwrap_or_default);
    let labels =
        SOURCE_LABELS.iter().zip(&texts).map(|(label, text)| ((*label).to_owned(), label_value(text)));
    let owner = content
        .controller_owner_ref(&())
        .map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
    let metadata = ObjectMeta {
        name: backup.volume_snapshot_name.clone(),
        namespace: content.namespace(),
        labels: Some(labels.collect()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let claim = backup.persistent_volume_claim.metadata.as_ref().and_then(|metadata| metadata.name.clone());
    let spec = json!({
        "source": {"persistentVolumeClaimName": claim},
        "volumeSnapshotClassName": class,
    });
    DynamicObject {
        types: Some(TypeMeta::resource::<VolumeSnapshot>()),
        metadata,
        data: json!({ "spec": spec }),
    }
}
