//! What becomes of libvirt's job.

use std::sync::Arc;
use std::time::Duration;

use podvirt_proto::domain::Backup;
use tokio::time::sleep;
use tracing::{info, warn};

use super::super::report::{millis, now};
use super::super::shared::Shared;
use super::place::Place;
use super::room::Room;
use crate::hypervisor::{BackupEnd, Hypervisor, HypervisorError};

/// Between two looks at the job.
const LOOK: Duration = Duration::from_millis(300);
/// Looks that may fail, one after the other, before the backup is given up for lost: libvirt may be starting again.
const FAILED_LOOKS: u32 = 100;

/// How a job has ended, as far as the launcher sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// As the hypervisor says.
    Told(BackupEnd),
    /// With the machine.
    Gone,
    /// The hypervisor cannot be asked any more, and why.
    Lost(String),
}

/// What asks for the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// In push mode it ends by itself.
    ByItself,
    /// In pull mode it ends when it is asked to, which has not happened.
    Unasked,
    /// In pull mode, and it was asked to.
    Asked,
}

/// Why a job that has ended so has failed; none: it has not. libvirt calls a job in pull mode complete that it was asked to abort.
pub(super) fn failure(ends: Ends, seen: Seen) -> Option<String> {
    match (ends, seen) {
        (_, Seen::Told(BackupEnd::Failed(why)) | Seen::Lost(why)) => Some(why),
        (Ends::ByItself, Seen::Told(BackupEnd::Complete)) | (Ends::Asked, _) => None,
        (Ends::ByItself, Seen::Told(BackupEnd::Aborted)) => Some("backup aborted".to_owned()),
        (Ends::Unasked, Seen::Told(_)) => Some("the job has ended before it was asked to".to_owned()),
        (_, Seen::Gone) => Some("the machine has ended".to_owned()),
    }
}

/// A job that has begun.
#[derive(Debug)]
pub(super) struct Job {
    /// Where QEMU writes.
    pub(super) place: Place,
    /// Whether it is one in pull mode.
    pub(super) pulls: bool,
    /// The room that it is to leave.
    pub(super) room: Option<Room>,
}

/// Tells of the backup's end.
pub(super) async fn follow(shared: Arc<Shared>, mut backup: Backup, job: Job) {
    let Job { place, pulls, room } = job;
    let (mut failures, mut full) = (0, None);
    let seen = loop {
        sleep(LOOK).await;
        let room = room.clone();
        let look = move |hypervisor: &dyn Hypervisor| {
            let backups = hypervisor.backups()?;
            let end = backups.end()?;
            let full = room.filter(|_| end.is_none()).and_then(|room| room.ends());
            full.is_some().then(|| backups.abort()).transpose()?;
            Ok((end, full))
        };
        match shared.call(look).await {
            Ok((None, now_full)) => {
                failures = 0;
                full = now_full.or(full);
            }
            Ok((Some(end), _)) => break Seen::Told(end),
            Err(HypervisorError::NotRunning(_)) => break Seen::Gone,
            Err(error) => {
                failures += 1;
                if failures >= FAILED_LOOKS {
                    break Seen::Lost(error.to_string());
                }
            }
        }
    };
    let ends = match shared.pull.end() {
        _ if !pulls => Ends::ByItself,
        true => Ends::Asked,
        false => Ends::Unasked,
    };
    backup.ended_at_ms = Some(millis(now()));
    let failure = full.or_else(|| failure(ends, seen));
    if pulls || failure.is_some() {
        place.clear();
    }
    match failure {
        None => info!(backup = backup.name, "the backup is complete"),
        Some(why) => {
            warn!(backup = backup.name, why, "the backup has failed");
            (backup.failed, backup.message) = (true, why);
        }
    }
    shared.facts.send_modify(|facts| facts.backup = Some(backup));
}
