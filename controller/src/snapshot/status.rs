//! The status of a snapshot: a pure function of what is seen.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use podvirt_api::names::annotation;
use podvirt_api::snapshot::{FREEZE_LIMIT, is_late, set_condition, volumes};
use podvirt_api::v1::{
    Indication, SnapshotConditionType as Condition, SnapshotError, SnapshotVolumesLists, SourceIndication,
    VirtualMachineSnapshotContent as Content, VirtualMachineSnapshotPhase as Phase,
    VirtualMachineSnapshotStatus as Status,
};

use super::decide::Observed;
use super::source::{LOCKED, NOT_LOCKED, Source};

/// What people are told of each indication.
fn message(indication: &Indication) -> &'static str {
    match indication {
        Indication::Online => {
            "Taken while the machine ran. How consistent it is depends on whether the guest's agent froze the file systems."
        }
        Indication::GuestAgent => {
            "The guest's agent was there and was asked to freeze the file systems, so that applications find theirs consistent."
        }
        Indication::NoGuestAgent => {
            "There was no guest agent. What is on the disks is as after a loss of power; applications may find theirs inconsistent."
        }
        Indication::QuiesceTimeout => {
            "The guest's agent froze the file systems, and the guest thawed them before the snapshot was taken. What is on the disks is as after a loss of power."
        }
        Indication::Paused => {
            "Taken while the machine was paused. What is on the disks is as after a loss of power; applications may find theirs inconsistent."
        }
        Indication::Other(_) => "",
    }
}

/// The status after a pass.
pub(super) fn status(seen: &Observed<'_>) -> Status {
    let Observed { snapshot, source, content, now, .. } = *seen;
    let mut status = snapshot.status.clone();
    status.ready_to_use.get_or_insert(false);
    if let Some(source) = source {
        status.source_uid = source.vm.metadata.uid.clone();
    }
    if let Some(content) = content.filter(|content| content.status != Default::default()) {
        status.virtual_machine_snapshot_content_name = Some(content.name_any());
        status.creation_time = content.status.creation_time.clone();
        status.ready_to_use = content.status.ready_to_use;
        status.error = content.status.error.clone();
    }
    if let Some(error) = seen.error {
        let known = status.error.as_ref().and_then(|known| known.message.as_deref()) == Some(error);
        if !known {
            status.error = Some(told(error, now));
        }
    }
    let say = |status: &mut Status, kind, is, reason: &str| {
        set_condition(&mut status.conditions, kind, is, reason, now);
    };
    let is_taken = status.creation_time.is_some();
    if is_late(snapshot, now) {
        status.phase = Some(Phase::Failed);
        say(&mut status, Condition::Failure, true, "snapshot deadline exceeded");
        say(&mut status, Condition::Progressing, false, "Operation failed");
    } else if status.phase == Some(Phase::Succeeded) || is_taken {
        status.phase = Some(Phase::Succeeded);
        say(&mut status, Condition::Progressing, false, "Operation complete");
        if let Some(content) = content {
            status.snapshot_volumes = lists(content).or(status.snapshot_volumes);
        }
    } else {
        status.phase = Some(Phase::InProgress);
        match source {
            Some(source) => {
                let locked = source.is_locked_by(&snapshot.name_any());
                let obstacle = seen.obstacle.map(|why| format!(" {why}")).unwrap_or_default();
                let text = if locked { LOCKED } else { NOT_LOCKED };
                say(&mut status, Condition::Progressing, locked, &format!("{text}{obstacle}"));
                explain(&mut status, content);
                indicate(&mut status, source);
            }
            None => say(&mut status, Condition::Progressing, false, "Source does not exist"),
        }
        if snapshot.metadata.deletion_timestamp.is_some() {
            status.phase = Some(Phase::Deleting);
            say(&mut status, Condition::Progressing, false, "VM snapshot is deleting");
        }
    }
    let ready = status.ready_to_use == Some(true);
    say(&mut status, Condition::Ready, ready, if ready { "Ready" } else { "Not ready" });
    if status.error.is_some() && status.phase != Some(Phase::Failed) {
        say(&mut status, Condition::Progressing, false, "In error state");
    }
    status
}

/// Says with the condition of progress why VolumeSnapshots are not made at present.
fn explain(status: &mut Status, content: Option<&Content>) {
    let progress = status.conditions.iter_mut().find(|one| one.r#type == Condition::Progressing);
    if let Some(progress) = progress {
        progress.message =
            content.and_then(|content| content.annotations().get(annotation::NOT_MADE).cloned());
    }
}

/// An error of now.
pub(super) fn told(message: &str, now: jiff::Timestamp) -> SnapshotError {
    let time = Some(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)));
    SnapshotError { time, message: Some(message.to_owned()) }
}

/// Adds what the source is like to what it was like before.
fn indicate(status: &mut Status, source: Source<'_>) {
    if !source.is_online() {
        status.indications = Vec::new();
        status.source_indications = Vec::new();
        return;
    }
    let before = status.indications.iter().map(|one| (one.as_str().to_owned(), one.clone()));
    let mut all: BTreeMap<String, Indication> = before.collect();
    let mut add = |one: Indication| drop(all.insert(one.as_str().to_owned(), one));
    add(Indication::Online);
    if source.is_paused() {
        add(Indication::Paused);
    } else if source.has_agent() {
        add(Indication::GuestAgent);
        let error = status.error.as_ref().and_then(|error| error.message.as_deref()).unwrap_or_default();
        if error.contains(FREEZE_LIMIT) {
            add(Indication::QuiesceTimeout);
        }
    } else {
        add(Indication::NoGuestAgent);
    }
    status.indications = all.into_values().collect();
    let with_message =
        |one: &Indication| SourceIndication { indication: one.clone(), message: message(one).into() };
    status.source_indications = status.indications.iter().map(with_message).collect();
}

/// The volumes of which there is a VolumeSnapshot, and the others.
fn lists(content: &Content) -> Option<SnapshotVolumesLists> {
    let vm = content.spec.source.virtual_machine.as_ref()?;
    let taken: BTreeSet<&str> =
        content.spec.volume_backups.iter().map(|one| one.volume_name.as_str()).collect();
    let own = volumes(vm);
    // The state of firmware and TPM is on no volume of the machine's own.
    let beside = taken.iter().filter(|name| !own.iter().any(|volume| volume.name == **name));
    let names = own.iter().map(|volume| volume.name.clone()).chain(beside.map(|name| (*name).to_owned()));
    let (included_volumes, excluded_volumes) = names.partition(|name| taken.contains(name.as_str()));
    Some(SnapshotVolumesLists { included_volumes, excluded_volumes })
}
