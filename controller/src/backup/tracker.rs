//! What to do for a tracker: pure functions of what is there.

use kube::ResourceExt;
use podvirt_api::backup::{is_tracked, state};
use podvirt_api::migration::is_under_way;
use podvirt_api::names::annotation;
use podvirt_api::v1::{
    BackupCheckpoint, ChangedBlockTrackingState as Tracking, VirtualMachine, VirtualMachineBackup as Backup,
    VirtualMachineBackupTracker as Tracker, VirtualMachineInstance,
};

use super::instance::runs;
use crate::vm::is_final;

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The tracker.
    pub tracker: &'a Tracker,
    /// Its machine.
    pub vm: Option<&'a VirtualMachine>,
    /// The machine's instance.
    pub vmi: Option<&'a VirtualMachineInstance>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Remove the checkpoint: since it was made, changes were not tracked.
    Forget(String),
    /// Set the flag: the checkpoint is to be redefined.
    Mark,
    /// Have the machine's libvirt know the checkpoint.
    Redefine(BackupCheckpoint),
    /// Remove the flag: the machine's libvirt knows the checkpoint, or there is none.
    Unmark,
}

/// The kind of trackers, as sources of backups name it.
const KIND: &str = "VirtualMachineBackupTracker";

/// Whether the source of a backup is a tracker.
pub(super) fn names_tracker(backup: &Backup) -> bool {
    backup.spec.source.kind == KIND
}

/// The checkpoint of a tracker.
pub(super) fn checkpoint(tracker: &Tracker) -> Option<&BackupCheckpoint> {
    let latest = tracker.status.latest_checkpoint.as_ref();
    latest.filter(|latest| latest.name.as_ref().is_some_and(|name| !name.is_empty()))
}

/// The instance and its node, as the annotation of a tracker names them.
pub(super) fn place(vmi: &VirtualMachineInstance) -> String {
    format!("{}/{}", vmi.uid().unwrap_or_default(), vmi.status.node_name.as_deref().unwrap_or_default())
}

fn is_known_at(tracker: &Tracker, place: &str) -> bool {
    tracker.annotations().get(annotation::DEFINED_FOR).is_some_and(|known| known == place)
}

fn is_marked(tracker: &Tracker) -> bool {
    tracker.status.checkpoint_redefinition_required == Some(true)
}

/// Whether the checkpoint of a tracker is to be redefined before the instance is backed up.
pub(super) fn is_pending(tracker: &Tracker, vmi: &VirtualMachineInstance) -> bool {
    checkpoint(tracker).is_some() && (is_marked(tracker) || !is_known_at(tracker, &place(vmi)))
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Option<Action> {
    let tracker = seen.tracker;
    let unmark = || is_marked(tracker).then_some(Action::Unmark);
    let Some(checkpoint) = checkpoint(tracker) else { return unmark() };
    let tracking = seen.vm.map(|vm| state(vm.status.changed_block_tracking.as_ref()));
    let is_off = |tracking: Tracking| {
        let words = [Tracking::Disabled, Tracking::IncrementalBackupFeatureGateDisabled];
        tracking.is_empty() || words.contains(&tracking)
    };
    if tracking.is_some_and(is_off) {
        return Some(Action::Forget(checkpoint.name.clone().unwrap_or_default()));
    }
    let moves = |vmi: &VirtualMachineInstance| vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    let stays = |vmi: &&VirtualMachineInstance| {
        is_tracked(vmi) && !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none() && !moves(vmi)
    };
    let vmi = seen.vmi.filter(stays)?;
    if is_known_at(tracker, &place(vmi)) {
        return unmark();
    }
    if !is_marked(tracker) {
        return Some(Action::Mark);
    }
    runs(vmi).then(|| Action::Redefine(checkpoint.clone()))
}
