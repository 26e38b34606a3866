//! What to do for a backup: a pure function of what is there and the time.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use podvirt_api::backup::{Command, FINALIZER, Options, is_pulled, state, target_volume};
use podvirt_api::migration::is_under_way;
use podvirt_api::names::path;
use podvirt_api::v1::{
    BackupCheckpoint, BackupConditionType as Condition, BackupMode, BackupType,
    ChangedBlockTrackingState as Tracking, VirtualMachineBackup as Backup,
    VirtualMachineBackupTracker as Tracker, VirtualMachineExport as Export, VirtualMachineInstance,
    VirtualMachineInstanceBackupStatus as Told,
};
use podvirt_api::validate::is_dns_label;

use super::instance::{self, told_of};
use super::plan::{Action, Plan, Step, plan};
use super::status::{self, Outcome, Phase, phase};
use super::{pull, tracker};

/// Longest name of a volume.
const LABEL: usize = 63;
/// Why a backup is ended for the sake of its machine's node.
const EVACUATION_MESSAGE: &str = "the machine leaves its node";
/// How the output of a backup can leave the machine.
const MODES: [BackupMode; 2] = [BackupMode::Push, BackupMode::Pull];

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The backup.
    pub backup: &'a Backup,
    /// The tracker that is its source, if it is one and there.
    pub tracker: Option<&'a Tracker>,
    /// Name of its machine, as far as it is known.
    pub machine: &'a str,
    /// Whether the machine is there.
    pub is_there: bool,
    /// The machine's instance.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// The claim that it is written to.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The export of the backup's name.
    pub export: Option<&'a Export>,
    /// The backup that holds the instance, if it is there.
    pub holder: Option<&'a Backup>,
    /// Whether the machine is to leave its node, and waits for the backup only.
    pub evacuates: bool,
    /// Now.
    pub now: Timestamp,
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Plan {
    let step = match phase(&seen.backup.status) {
        Phase::Initializing => initializing(seen),
        Phase::Running => running(seen),
        Phase::Ended => Step::Rests(own(seen).map(|_| Action::Release)),
        Phase::Done => {
            let goes = is_deleted(seen.backup) && has_finalizer(seen.backup);
            Step::Stays(pull::left(seen).or_else(|| goes.then_some(Action::RemoveFinalizer)))
        }
    };
    plan(seen, step)
}

/// What becomes of a backup of which an action was refused, as `why` says; none where it stays as it is.
pub(super) fn refused(seen: &Observed<'_>, action: &Action, why: &str) -> Option<Plan> {
    let step = match action {
        Action::Start(_) => Step::Waits(None, format!("the machine does not begin the backup: {why}")),
        Action::Export(_) => Step::Prepares(None, format!("the machine does not offer its disks: {why}")),
        Action::MakeExport(_) => Step::Prepares(None, why.to_owned()),
        _ => return None,
    };
    Some(plan(seen, step))
}

fn initializing(seen: &Observed<'_>) -> Step {
    let Observed { backup, machine, .. } = *seen;
    let waits = |why: String| Step::Waits(None, why);
    if own(seen).is_some_and(instance::has_begun) {
        return Step::Begins(None, kind(seen));
    }
    if is_deleted(backup) {
        return end(seen, Outcome::Failed("the backup was deleted before it began".into()));
    }
    if let Some(mode) = backup.spec.mode.as_ref().filter(|mode| !MODES.contains(mode)) {
        return end(seen, Outcome::Failed(format!("there is no mode {mode}; Push and Pull are allowed")));
    }
    if pull::is_over(seen) {
        return end(seen, Outcome::Failed(format!("{} before it began", pull::EXPIRED)));
    }
    if !is_dns_label(&target_volume(&backup.name_any())) {
        let most = LABEL - target_volume("").len();
        let why = format!(
            "its name may have {most} of a-z, 0-9 and '-' at most: a volume of the machine is named by it"
        );
        return end(seen, Outcome::Failed(why));
    }
    // Whatever else is missing: nothing but the backup itself gives back what it has.
    if let Some(vmi) = seen.vmi.filter(|vmi| seen.evacuates && instance::runs(vmi)) {
        return Step::Waits(let_go(seen, vmi), format!("the VirtualMachine {machine} leaves its node"));
    }
    if tracker::names_tracker(backup) && seen.tracker.is_none() {
        return waits(format!("the VirtualMachineBackupTracker {} is not there", backup.spec.source.name));
    }
    if !seen.is_there {
        return waits(format!("the VirtualMachine {machine} is not there"));
    }
    let Some(vmi) = seen.vmi.filter(|vmi| instance::runs(vmi)) else {
        return waits(format!("the VirtualMachine {machine} does not run"));
    };
    if !instance::has_volumes(vmi) {
        return waits(format!("the VirtualMachine {machine} has no volume that can be backed up"));
    }
    let tracking = state(vmi.status.changed_block_tracking.as_ref());
    if tracking != Tracking::Enabled {
        let is = if tracking.is_empty() { "off" } else { tracking.as_str() };
        return waits(format!("changed blocks of the VirtualMachine {machine} are not tracked: it is {is}"));
    }
    if let Some(tracker) = seen.tracker.filter(|tracker| tracker::is_pending(tracker, vmi)) {
        let name = tracker.name_any();
        return waits(format!("the checkpoint of the VirtualMachineBackupTracker {name} is redefined first"));
    }
    if vmi.status.migration_state.as_ref().is_some_and(is_under_way) {
        return waits(format!("the VirtualMachine {machine} migrates"));
    }
    let name = backup.spec.pvc_name.as_deref().unwrap_or_default();
    let Some(claim) = seen.claim else {
        return waits(format!("the PersistentVolumeClaim {name} is not there"));
    };
    if claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        let why = format!("the PersistentVolumeClaim {name} is a block device; a file system is needed");
        return end(seen, Outcome::Failed(why));
    }
    if let Some(other) = instance::told(vmi).filter(|told| !instance::is_of(told, backup)) {
        let why = format!(
            "the VirtualMachineBackup {} of the VirtualMachine {machine} is in progress",
            other.backup_name.as_deref().unwrap_or_default()
        );
        let is_left = other.completed == Some(true) && seen.holder.is_none();
        return Step::Waits(is_left.then_some(Action::Release), why);
    }
    let comes = format!("the PersistentVolumeClaim {name} comes to the VirtualMachine {machine}");
    if !has_finalizer(backup) {
        return Step::Waits(Some(Action::AddFinalizer), comes);
    }
    if !instance::has_target(vmi, backup) {
        return Step::Waits(Some(Action::Attach), comes);
    }
    if !instance::is_mounted(vmi, backup) {
        return waits(comes);
    }
    // Not before: the machine does not migrate from then on, and the claim may never come.
    if own(seen).is_none() {
        return Step::Waits(Some(Action::Hold), comes);
    }
    Step::Begins(Some(Action::Start(start(seen))), kind(seen))
}

fn running(seen: &Observed<'_>) -> Step {
    let failed = |why: &str| Outcome::Failed(why.to_owned());
    let Some(vmi) = seen.vmi else {
        return end(seen, failed("the machine's instance was deleted meanwhile"));
    };
    if !instance::runs(vmi) {
        return end(seen, failed("the machine does not run any more"));
    }
    let Some(told) = own(seen) else {
        return end(seen, failed("what the machine told of it is lost"));
    };
    if told.completed != Some(true) {
        let abort = |why| Step::Aborts(Action::Abort(options(seen.backup, Command::Abort)), why);
        return match seen.backup {
            backup if status::is(&backup.status, Condition::Aborting) => Step::Stays(None),
            backup if is_deleted(backup) => abort(None),
            _ if pull::is_over(seen) => abort(Some(pull::EXPIRED)),
            _ if seen.evacuates => abort(Some(EVACUATION_MESSAGE)),
            backup if is_pulled(backup) => pull::step(seen, told),
            _ => Step::Stays(None),
        };
    }
    if let Some(checkpoint) = unremembered(seen, told) {
        return Step::Stays(Some(Action::Remember(checkpoint)));
    }
    let why = told.backup_msg.clone().filter(|why| !why.is_empty());
    end(
        seen,
        match why {
            why if told.failed == Some(true) => {
                Outcome::Failed(why.unwrap_or_else(|| "the machine has not told why".into()))
            }
            Some(why) => Outcome::Warned(why),
            None => Outcome::Complete,
        },
    )
}

/// What a backup that has not begun gives back first, so that the machine can migrate.
fn let_go(seen: &Observed<'_>, vmi: &VirtualMachineInstance) -> Option<Action> {
    let has_target = instance::has_target(vmi, seen.backup).then_some(Action::Detach);
    has_target.or_else(|| own(seen).map(|_| Action::Release))
}

/// Ends the backup once its export is gone and the target's claim has left the instance.
fn end(seen: &Observed<'_>, outcome: Outcome) -> Step {
    if let Some(action) = pull::left(seen) {
        return Step::Stays(Some(action));
    }
    match seen.vmi.filter(|vmi| instance::runs(vmi)) {
        Some(vmi) if instance::has_target(vmi, seen.backup) => Step::Stays(Some(Action::Detach)),
        Some(vmi) if instance::tells_of_target(vmi, seen.backup) => Step::Stays(None),
        _ => Step::Ends(outcome),
    }
}

/// What the instance tells of the backup.
pub(super) fn own<'a>(seen: &Observed<'a>) -> Option<&'a Told> {
    seen.vmi.and_then(|vmi| told_of(vmi, seen.backup))
}

/// The checkpoint that the backup has made and that its tracker has not.
fn unremembered(seen: &Observed<'_>, told: &Told) -> Option<BackupCheckpoint> {
    let known = &seen.tracker?.status.latest_checkpoint;
    let made = told.checkpoint_name.as_ref().filter(|_| told.failed != Some(true))?;
    let volumes = instance::volumes(told);
    let is_known = known.as_ref().is_some_and(|known| known.name.as_ref() == Some(made));
    let creation_time = told.start_timestamp.clone();
    (!is_known).then(|| BackupCheckpoint { name: Some(made.clone()), creation_time, volumes })
}

/// The checkpoint from which the backup copies changes; none: it copies all.
fn since(seen: &Observed<'_>) -> Option<String> {
    let wanted = seen.tracker.filter(|_| seen.backup.spec.force_full_backup != Some(true))?;
    tracker::checkpoint(wanted)?.name.clone()
}

fn kind(seen: &Observed<'_>) -> BackupType {
    if since(seen).is_some() { BackupType::Incremental } else { BackupType::Full }
}

pub(super) fn options(backup: &Backup, cmd: Command) -> Options {
    Options {
        backup_name: backup.name_any(),
        cmd,
        backup_start_time: backup.metadata.creation_timestamp.clone(),
        ..Options::default()
    }
}

fn start(seen: &Observed<'_>) -> Options {
    let backup = seen.backup;
    let at = path::plugged_device(&target_volume(&backup.name_any()));
    Options {
        mode: Some(if is_pulled(backup) { BackupMode::Pull } else { BackupMode::Push }),
        incremental: since(seen),
        target_path: Some(at.display().to_string()),
        skip_quiesce: backup.spec.skip_quiesce == Some(true),
        ..options(backup, Command::Start)
    }
}

pub(super) fn is_deleted(backup: &Backup) -> bool {
    backup.metadata.deletion_timestamp.is_some()
}

pub(super) fn has_finalizer(backup: &Backup) -> bool {
    backup.finalizers().iter().any(|one| one == FINALIZER)
}
