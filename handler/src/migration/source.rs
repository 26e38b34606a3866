//! The node that a machine leaves.
//!
//! Written here: `startTimestamp`, before the launcher is asked to begin; `mode`, `abortStatus`; and the end, which is either `failed` with a reason while the
//! machine runs on here, or the hand-over, once the target's handler has said that the machine is there, or should have.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podvirt_api::migration::{COMPLETION_TIMEOUT_PER_GIB, PROGRESS_TIMEOUT};
use podvirt_api::v1::{self, MigrationAbortStatus, VirtualMachineInstanceMigrationState as State};
use podvirt_proto::domain::reason;
use podvirt_proto::migration::{AbortStatus, Migration, Options};

use super::{
    Decision, LATER, Open, SOON, Session, Step, UNHEARD, View, arrived, begun, close, fail, hand_over,
    is_over, mode, passed, report, state_of, uid, wind_up, written,
};
use crate::vm::Launcher;

/// Milliseconds that a guest stands still at most: the default of upstream's cluster configuration.
const MAX_DOWNTIME_MS: u64 = 900;

pub(super) fn decide(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    if is_over(state) {
        // The guest goes on here, and so do its connections. An earlier process of virt-handler may have left sockets
        // in the pod.
        let goes_on = state.failed == Some(true) && begun(state).is_some();
        return match view.session.swept {
            _ if goes_on => wind_up(view, state),
            true => close(view),
            false => Decision::step(Step::Close),
        };
    }
    let report = report(view, state);
    if has_moved(view, state, report) {
        // It may still be unknown there: that is written within moments, or when the target's handler is back. Or it stands
        // still there, for the launcher's word was lost: this is the other way to it.
        let told = report.and_then(|report| report.end_timestamp_ms).filter(|_| has_left(report));
        let told = told.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
        return match arrived(state) {
            None if told.is_none_or(|at| passed(view, at) < UNHEARD) => Decision::again(SOON),
            _ => hand_over(view, state, new),
        };
    }
    if let Some(report) = report.filter(|report| report.completed && report.failed) {
        if arrived(state).is_some() {
            // Both believe to have it, and the target has said so first.
            return hand_over(view, state, new);
        }
        if let Some(status) = report.abort_status {
            state_of(new).abort_status = Some(word(status));
        }
        return fail(view, new, &report.failure_reason);
    }
    if view.domain.is_some_and(|domain| domain.status.is_final()) {
        return fail(view, new, "the machine ended while it was moved");
    }
    match report {
        Some(report) => running(view, state, report, new),
        None => before(view, state, new),
    }
}

/// Whether the launcher says so.
fn has_left(report: Option<&Migration>) -> bool {
    report.is_some_and(|report| report.completed && !report.failed)
}

/// Whether the machine is no longer here.
fn has_moved(view: &View<'_>, state: &State, report: Option<&Migration>) -> bool {
    let left = view.domain.is_some_and(|d| d.status.is_final() && d.reason == reason::MIGRATED);
    let told = has_left(report);
    // No launcher is left to tell, and the target has the machine.
    let gone = matches!(view.launcher, Launcher::Gone(_)) && arrived(state).is_some();
    left || told || gone
}

/// Memory is copied.
fn running(
    view: &View<'_>,
    state: &State,
    report: &Migration,
    new: &mut v1::VirtualMachineInstance,
) -> Decision {
    let written_state = state_of(new);
    written_state.mode = Some(mode(report.mode));
    if state.abort_requested == Some(true) {
        written_state.abort_status = Some(MigrationAbortStatus::Aborting);
        if may_cancel(view) {
            return Decision::step(Step::Cancel);
        }
    }
    // After a restart of ours the launcher goes on for a moment on connections that are gone; repair is wanted still.
    if view.session.armed { Decision::again(LATER) } else { Decision::step(Step::Arm) }
}

/// Whether the launcher is to be asked to abort, for the first time or again.
fn may_cancel(view: &View<'_>) -> bool {
    view.session.cancelled.is_none_or(|last| passed(view, last) >= LATER)
}

/// Nothing is copied yet, as far as the launcher's report tells.
fn before(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    let lives = matches!(view.launcher, Launcher::Ready | Launcher::Silent(_));
    if state.abort_requested == Some(true) && view.session.asked && lives {
        // It moves already and its report is older, or it never heard of the migration: its answer tells which.
        state_of(new).abort_status = Some(MigrationAbortStatus::Aborting);
        let asks = view.launcher == Launcher::Ready && may_cancel(view);
        return if asks { Decision::step(Step::Cancel) } else { Decision::again(SOON) };
    }
    if state.abort_requested == Some(true) {
        state_of(new).abort_status = Some(MigrationAbortStatus::Succeeded);
        return fail(view, new, "it was aborted before it began");
    }
    if view.launcher != Launcher::Ready || !view.domain.is_some_and(|domain| domain.status.is_active()) {
        return Decision::again(SOON);
    }
    let Some(there) = offered(state) else { return Decision::again(LATER) };
    let Session { armed, open, trouble, refused, .. } = view.session;
    if !refused.is_empty() {
        return fail(view, new, refused);
    }
    if !armed {
        return Decision::step(Step::Arm);
    }
    if open.as_ref() != Some(&there) {
        let wait = !trouble.is_empty();
        return Decision { again: wait.then_some(SOON), ..Decision::step(Step::Open(Some(there))) };
    }
    if begun(state).is_none() {
        // First, and refused if the controller gave it up meanwhile: only this node ends what has begun. If this process
        // dies before the launcher hears of it the next one comes here again.
        state_of(new).start_timestamp = written(view.now);
        return Decision::again(Duration::ZERO);
    }
    Decision::step(Step::Begin(options(state)))
}

/// Where the target's handler listens.
fn offered(state: &State) -> Option<Open> {
    let address = state.target_node_address.clone().filter(|address| !address.is_empty())?;
    let ports = state.target_direct_migration_node_ports.clone();
    (!ports.is_empty()).then_some(Open { address, ports })
}

/// The launcher's options by the merged configuration.
fn options(state: &State) -> Options {
    let config = state.migration_configuration.clone().unwrap_or_default();
    let seconds = |given: Option<i64>, default: i64| u64::try_from(given.unwrap_or(default)).unwrap_or(0);
    Options {
        migration_uid: uid(state).to_owned(),
        bandwidth: config.bandwidth_per_migration.as_ref().map_or(0, bytes),
        progress_timeout: seconds(config.progress_timeout, PROGRESS_TIMEOUT),
        completion_timeout_per_gib: seconds(config.completion_timeout_per_gi_b, COMPLETION_TIMEOUT_PER_GIB),
        max_downtime_ms: MAX_DOWNTIME_MS,
        allow_auto_converge: config.allow_auto_converge == Some(true),
        allow_workload_disruption: config.allow_workload_disruption == Some(true),
        is_unsafe: config.unsafe_migration_override == Some(true),
    }
}

fn bytes(quantity: &Quantity) -> u64 {
    quantity.0.parse::<podvirt_api::Quantity>().map_or(0, |quantity| quantity.value())
}

fn word(status: AbortStatus) -> MigrationAbortStatus {
    match status {
        AbortStatus::Aborting => MigrationAbortStatus::Aborting,
        AbortStatus::Succeeded => MigrationAbortStatus::Succeeded,
        AbortStatus::Failed => MigrationAbortStatus::Failed,
    }
}
