//! What to do for a snapshot: a pure function of what is there and the time.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use podvirt_api::snapshot::{FINALIZER, deadline, deletes, ends, progresses};
use podvirt_api::v1::{
    VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
    VirtualMachineSnapshotStatus as Status,
};

use super::source::Source;
use super::status::status;

/// How often a source is looked at that cannot be held yet.
const AGAIN: Duration = Duration::from_secs(5);

/// What is seen.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The machine that it is of, if it is there.
    pub source: Option<Source<'a>>,
    /// What keeps the machine from being held.
    pub obstacle: Option<&'a str>,
    /// The content, if it is there.
    pub content: Option<&'a Content>,
    /// What went wrong when the content was to be made.
    pub error: Option<&'a str>,
    /// Now.
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put the finalizer on the snapshot.
    AddFinalizer,
    /// Hold the source.
    Lock,
    /// Make the content.
    MakeContent,
    /// Delete the content.
    DeleteContent,
    /// Let go of the source.
    Unlock,
    /// Take the finalizer away. After the status.
    RemoveFinalizer,
}

/// What a pass leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// The status as it shall be.
    pub status: Status,
    /// When to look again if nothing happens before.
    pub again_after: Option<Duration>,
}

/// Whether the next thing is to hold the source, so that it is worth a look what keeps it from that.
pub(super) fn wants_source(snapshot: &Snapshot, source: Source<'_>, now: Timestamp) -> bool {
    is_begun(snapshot)
        && progresses(snapshot)
        && !ends(snapshot, now)
        && !source.is_locked_by(&snapshot.name_any())
}

/// A snapshot says first that it has begun.
fn is_begun(snapshot: &Snapshot) -> bool {
    snapshot.status.phase.is_some()
}

/// Decides on what is seen.
pub fn decide(seen: &Observed<'_>) -> Plan {
    let Observed { snapshot, source, content, now, .. } = *seen;
    let (name, ending) = (snapshot.name_any(), ends(snapshot, now));
    let has_finalizer = snapshot.finalizers().iter().any(|one| one == FINALIZER);
    let mut actions = Vec::new();
    if !ending && !has_finalizer {
        actions.push(Action::AddFinalizer);
    }
    // The status that this pass writes counts, too: the source is unlocked before a client reads that the snapshot is ready.
    let next = Snapshot { status: status(seen), ..snapshot.clone() };
    let takes = progresses(snapshot) && progresses(&next);
    let mut holds = false;
    let mut again_after = None;
    if let Some(source) = source.filter(|_| is_begun(snapshot)) {
        let is_locked = source.is_locked_by(&name);
        if takes && !ending {
            holds = true;
            if !is_locked {
                again_after = Some(AGAIN);
                if seen.obstacle.is_none() {
                    actions.push(Action::Lock);
                }
            } else if content.is_none() {
                again_after = seen.obstacle.map(|_| AGAIN);
                if seen.obstacle.is_none() {
                    actions.push(Action::MakeContent);
                }
            }
        } else {
            let goes = content.is_some_and(|content| deletes(snapshot, content));
            let lets_go = !takes && !ending || !goes;
            if lets_go && source.is_held_by(&name) {
                actions.push(Action::Unlock);
            }
            holds = source.is_held_by(&name) && !lets_go;
        }
    }
    let deleted = snapshot.metadata.deletion_timestamp.is_some();
    if let Some(content) = content.filter(|content| ending && deletes(snapshot, content))
        && content.metadata.deletion_timestamp.is_none()
    {
        actions.push(Action::DeleteContent);
    }
    if deleted && !holds && has_finalizer {
        actions.push(Action::RemoveFinalizer);
    }
    let left = deadline(snapshot).filter(|_| progresses(snapshot) && !ending);
    let left = left.map(|deadline| Duration::try_from(deadline.duration_since(now)).unwrap_or_default());
    // A moment behind the deadline, so that it is over then.
    let left = left.map(|left| left + Duration::from_millis(100));
    Plan { actions, status: next.status, again_after: again_after.into_iter().chain(left).min() }
}
