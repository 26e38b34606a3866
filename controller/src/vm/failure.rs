//! Starts that fail again and again.
//!
//! A start failed when the instance ended without its guest ever having run. The first such failure delays the
//! next start by 10 s, the n-th in a row by 10 n² s, at most 300 s. A guest that runs ends the row: a machine that
//! ran and then ended is started again at once.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase, VirtualMachineStartFailure,
    VirtualMachineStatus,
};

use super::{Strategy, is_final};

/// Longest delay of a start.
pub const MAX_DELAY_SECONDS: i64 = 300;
/// Delay after the first failure.
const FIRST_DELAY_SECONDS: i64 = 10;

/// Delay of the next start after `count` failures in a row.
fn delay_seconds(count: i64) -> i64 {
    FIRST_DELAY_SECONDS.saturating_mul(count.saturating_mul(count)).min(MAX_DELAY_SECONDS)
}

/// Whether the guest ran at any time.
fn has_run(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.phase == Some(Phase::Running)
        || vmi.status.phase_transition_timestamps.iter().any(|at| at.phase == Some(Phase::Running))
}

/// Counts a failed start once, and forgets all of them when a guest runs or nothing would start it again.
pub fn count(
    status: &mut VirtualMachineStatus,
    strategy: Strategy,
    vmi: Option<&VirtualMachineInstance>,
    now: Timestamp,
) {
    if !matches!(strategy, Strategy::Always | Strategy::RerunOnFailure) || vmi.is_some_and(has_run) {
        status.start_failure = None;
        return;
    }
    // One that is deleted was told to end.
    let Some(failed) = vmi.filter(|vmi| is_final(vmi) && vmi.metadata.deletion_timestamp.is_none()) else {
        return;
    };
    let known = status.start_failure.take().unwrap_or_default();
    if known.last_failed_vmiuid == failed.uid() {
        status.start_failure = Some(known);
        return;
    }
    let count = known.consecutive_fail_count.unwrap_or(0).saturating_add(1);
    let retry = now.saturating_add(SignedDuration::from_secs(delay_seconds(count))).unwrap_or(Timestamp::MAX);
    status.start_failure = Some(VirtualMachineStartFailure {
        consecutive_fail_count: Some(count),
        last_failed_vmiuid: failed.uid(),
        retry_after_timestamp: Some(Some(Time(retry))),
    });
}

/// How long the next start must wait.
pub fn time_left(status: &VirtualMachineStatus, now: Timestamp) -> Option<SignedDuration> {
    let retry = status.start_failure.as_ref()?.retry_after_timestamp.clone()??.0;
    Some(retry.duration_since(now)).filter(SignedDuration::is_positive)
}
