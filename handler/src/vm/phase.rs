//! From a machine's state to its VMI's phase.
//!
//! The mapping is KubeVirt's, so that what waits for a phase waits for the same thing here. `Destroyed` tells two
//! stories: with a grace period and a guest that can be asked (ACPI), the guest did not obey in time, which is a
//! failure; without, the guest was not asked, and the end was as wanted.

use podvirt_api::names::condition::reason::SHUT_DOWN_WITH_POD;
use podvirt_api::names::pod::ENDED_WITH_POD;
use podvirt_api::v1::{self, VirtualMachineInstancePhase as Phase};
use podvirt_proto::domain::{Domain, Status, reason};

use crate::migration::{LEFT, is_under_way};

use super::{EXIT_WAIT, Exit, Launcher, MISSING, POD_END_WAIT, SOCKET_WAIT, View, elapsed, grace_period};

/// Why a machine is paused when a migration broke after the guest had moved.
const POSTCOPY_FAILED: &str = "PostcopyFailed";

/// How a machine ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ending {
    /// `Succeeded` or `Failed`.
    pub phase: Phase,
    /// A word for `status.reason`; empty where the guest has shut down by its own will.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// The phase that follows, or how the machine ended.
pub(super) fn next(view: &View<'_>) -> Result<Phase, Ending> {
    let current = view.vmi.status.phase.clone().unwrap_or_default();
    if !matches!(current, Phase::Scheduled | Phase::Running) {
        // Before: the controller's. After: final, and nothing follows.
        return Ok(current);
    }
    match view.domain {
        Some(domain) if domain.status == Status::Paused && domain.reason == POSTCOPY_FAILED => Err(Ending {
            phase: Phase::Failed,
            reason: "MigrationFailed",
            message: "the machine's memory is on two nodes and cannot be joined".into(),
        }),
        // A guest that is on its way down still runs; its end is reported for itself.
        Some(domain) if domain.status.is_active() => Ok(Phase::Running),
        // It runs elsewhere: its phase is written there.
        Some(domain) if domain.status.is_final() && domain.reason == reason::MIGRATED => Ok(current),
        Some(domain) if domain.status.is_final() && awaits_pod(view) => Ok(current),
        Some(domain) if domain.status.is_final() => Err(ended(view, domain)),
        _ => without_machine(view, current),
    }
}

/// Whether the machine's end is one that the kubelet's eviction of its pod leads to: the launcher asks the guest to power
/// off then, and ends the machine when it does not in time. Its pod tells, see [`View::exit`].
pub fn may_be_evicted(vmi: &v1::VirtualMachineInstance, domain: &Domain) -> bool {
    let by_itself = [reason::PANICKED, reason::CRASHED, reason::FAILED, reason::MIGRATED];
    let running = matches!(vmi.status.phase, Some(Phase::Scheduled | Phase::Running));
    running
        && vmi.metadata.deletion_timestamp.is_none()
        && domain.status == Status::Shutoff
        && !by_itself.contains(&domain.reason.as_str())
}

/// Whether the machine ended with its pod, which has not told yet why it ends.
pub(super) fn awaits_pod(view: &View<'_>) -> bool {
    let with_pod = view.domain.is_some_and(|d| d.ended_with_pod && may_be_evicted(view.vmi, d));
    let untold = matches!(view.exit, Exit::Unknown | Exit::Ending(..));
    with_pod && untold && view.ended_since.is_some_and(|since| elapsed(since, view.now) < POD_END_WAIT)
}

fn ended(view: &View<'_>, domain: &Domain) -> Ending {
    if let Exit::Evicted(why) = view.exit
        && may_be_evicted(view.vmi, domain)
    {
        return evicted(why);
    }
    let told = |sentence: &str| {
        if domain.message.is_empty() {
            sentence.to_owned()
        } else {
            format!("{sentence}: {}", domain.message)
        }
    };
    let failed = |reason, sentence: &str| Ending { phase: Phase::Failed, reason, message: told(sentence) };
    let why = if domain.ended_with_pod { SHUT_DOWN_WITH_POD } else { "" };
    let succeeded = |sentence: &str| Ending { phase: Phase::Succeeded, reason: why, message: told(sentence) };
    match domain.reason.as_str() {
        reason::PANICKED => failed("GuestPanicked", "the guest's kernel panicked"),
        reason::CRASHED => failed("MachineCrashed", "the machine's process died"),
        reason::FAILED => failed("StartFailed", "the machine could not be started"),
        _ if domain.status == Status::Crashed => failed("MachineCrashed", "the machine crashed"),
        reason::DESTROYED if grace_period(view.vmi).is_zero() || !has_acpi(view) => {
            succeeded("the machine was ended without asking the guest")
        }
        reason::DESTROYED => {
            failed("GracePeriodExpired", "the guest did not power off in time and was ended")
        }
        _ => succeeded("the machine was shut down"),
    }
}

fn evicted(why: &str) -> Ending {
    let message = format!("the kubelet ended the launcher's pod: {why}");
    Ending { phase: Phase::Failed, reason: "Evicted", message }
}

/// There is no machine, or the launcher does not tell of one.
fn without_machine(view: &View<'_>, current: Phase) -> Result<Phase, Ending> {
    let failed = |reason, message: String| Err(Ending { phase: Phase::Failed, reason, message });
    match view.launcher {
        Launcher::Gone(since) => match view.exit {
            // Its machine may have moved, and its word of that be lost: where it is now tells.
            Exit::Code(0, _) if is_under_way(view.vmi) && elapsed(since, view.now) < LEFT => Ok(current),
            // The kubelet may have evicted the pod.
            Exit::Ending(..) if elapsed(since, view.now) < EXIT_WAIT => Ok(current),
            Exit::Code(code, _) | Exit::Ending(code, _) if is_well(*code) => Err(Ending {
                phase: Phase::Succeeded,
                reason: if *code == i32::from(ENDED_WITH_POD) { SHUT_DOWN_WITH_POD } else { "" },
                message: "the launcher ended as it should".into(),
            }),
            Exit::Code(code, word) | Exit::Ending(code, word) => {
                failed("LauncherFailed", format!("the launcher ended with exit code {code} ({word})"))
            }
            Exit::Evicted(why) => Err(evicted(why)),
            Exit::NoPod => failed("LauncherGone", "the launcher's pod is gone".into()),
            Exit::Unknown | Exit::Untold if elapsed(since, view.now) >= EXIT_WAIT => {
                failed("LauncherGone", "the launcher died without a word".into())
            }
            Exit::Unknown | Exit::Untold => Ok(current),
        },
        Launcher::Absent(since) if elapsed(since, view.now) >= SOCKET_WAIT => {
            let message = format!("the launcher's socket did not appear within {} s", SOCKET_WAIT.as_secs());
            failed("LauncherNotReady", message)
        }
        // It says so itself: no way is known here by which the machine was taken down.
        Launcher::Ready
            if current == Phase::Running
                && view.missing_since.is_some_and(|since| elapsed(since, view.now) >= MISSING) =>
        {
            failed("MachineVanished", "the launcher has no machine any more".into())
        }
        Launcher::Ready | Launcher::Absent(_) | Launcher::Silent(_) => Ok(current),
    }
}

/// Whether a launcher ends with this code when its guest has shut down.
fn is_well(code: i32) -> bool {
    code == 0 || code == i32::from(ENDED_WITH_POD)
}

/// Whether the guest can be asked to power off; the API's default is yes.
fn has_acpi(view: &View<'_>) -> bool {
    let features = view.vmi.spec.domain.features.as_ref();
    features.and_then(|f| f.acpi.as_ref()).and_then(|acpi| acpi.enabled) != Some(false)
}
