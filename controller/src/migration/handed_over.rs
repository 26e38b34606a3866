//! A migration that the nodes carry out: what they write is repeated, and what they cannot say is decided.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use podvirt_api::migration::{has_ended, is_at_target};
use podvirt_api::names::event;
use podvirt_api::v1::{
    MigrationAbortStatus as AbortStatus, VirtualMachineInstance,
    VirtualMachineInstanceMigrationConditionType as ConditionType,
    VirtualMachineInstanceMigrationPhase as Phase, VirtualMachineInstanceMigrationState as State,
};

use super::decide::{Decision, Observed, age, lost};
use super::kept;
use super::status::{phase, reached, set_phase, set_true, true_since};

/// How long the nodes have to prepare and to start, each. A handler may be restarting just then.
pub(super) const PREPARE_LIMIT: Duration = Duration::from_secs(300);
/// How long the source's handler has to end a migration whose target pod was lost. After that the controller says what
/// is certain then: the guest is not at the target.
pub(super) const LOST_GRACE: Duration = Duration::from_secs(60);

/// Follows what the nodes write.
pub(super) fn follow(
    seen: &Observed<'_>,
    vmi: &VirtualMachineInstance,
    decision: &mut Decision,
    now: Timestamp,
) {
    let own = |state: &&State| state.migration_uid == seen.migration.uid();
    let Some(state) = vmi.status.migration_state.as_ref().filter(own) else {
        decision.fail("the machine was made anew, or another migration of it was handed over", now);
        return;
    };
    if has_ended(state) {
        ended(state, vmi, decision, now);
        return;
    }
    advance(state, decision, now);
    // What is at the target already is not called back.
    if is_at_target(state) {
        decision.actions.extend(kept::settle(seen));
        return;
    }
    let started = state.start_timestamp.clone().flatten().is_some();
    if seen.migration.metadata.deletion_timestamp.is_some() {
        let kind = ConditionType::MigrationAbortRequested;
        set_true(&mut decision.migration.status, &kind, "Deleted", "the migration was deleted", now);
        if !started {
            decision.vmi = Some(broken_off(vmi, now, "the migration was deleted before it started", true));
        } else if state.abort_requested != Some(true) {
            decision.vmi = Some(abort_requested(vmi, None));
        }
    } else if let Some(why) = lost(seen.target) {
        target_lost(seen, vmi, state, started, &why, decision, now);
    } else if !started {
        let phase = phase(&decision.migration);
        let left = PREPARE_LIMIT.saturating_sub(age(reached(&decision.migration.status, &phase), now));
        if left.is_zero() {
            let (part, node) = match phase {
                Phase::TargetReady => ("virt-handler did not start the migration", &state.source_node),
                _ => ("virt-handler did not prepare the target", &state.target_node),
            };
            let node = node.as_deref().unwrap_or_default();
            let why = format!("node {node}: {part} within {} s", PREPARE_LIMIT.as_secs());
            decision.vmi = Some(broken_off(vmi, now, &why, false));
        } else {
            decision.look_in(left);
        }
    }
}

/// The phase that the nodes have reached. None is gone back to.
fn advance(state: &State, decision: &mut Decision, now: Timestamp) {
    let ready = state.target_node_address.as_ref().is_some_and(|address| !address.is_empty())
        && !state.target_direct_migration_node_ports.is_empty();
    let here = phase(&decision.migration);
    let reached = if state.start_timestamp.clone().flatten().is_some() {
        Phase::Running
    } else if ready && here == Phase::PreparingTarget {
        Phase::TargetReady
    } else {
        return;
    };
    if here != reached {
        set_phase(&mut decision.migration.status, reached, now);
        decision.migration.status.migration_state = Some(state.clone());
    }
}

/// The nodes said how it ended.
fn ended(state: &State, vmi: &VirtualMachineInstance, decision: &mut Decision, now: Timestamp) {
    decision.migration.status.migration_state = Some(state.clone());
    if state.failed == Some(true) {
        if state.abort_status == Some(AbortStatus::Succeeded) {
            decision.aborted(now);
        } else {
            let why = state.failure_reason.as_deref().unwrap_or("the nodes do not say why");
            decision.fail(why, now);
        }
        return;
    }
    // One write of the source's handler says both; a reader of the one has the other.
    if vmi.status.node_name.is_none() || vmi.status.node_name != state.target_node {
        return;
    }
    set_phase(&mut decision.migration.status, Phase::Succeeded, now);
    let name = |node: &Option<String>| node.clone().unwrap_or_default();
    let message = format!(
        "the machine was migrated from node {} to node {}",
        name(&state.source_node),
        name(&state.target_node)
    );
    decision.note(false, event::SUCCESSFUL_MIGRATION, message);
    let left =
        vmi.status.evacuation_node_name.as_ref().filter(|node| Some(*node) != vmi.status.node_name.as_ref());
    if left.is_some() {
        let mut evacuated = vmi.clone();
        evacuated.status.evacuation_node_name = None;
        decision.vmi = Some(evacuated);
    }
}

/// The target pod cannot take the machine any more. A source that has not started is told so; one that has breaks off
/// by itself or because it is asked to, and says how it ended.
fn target_lost(
    seen: &Observed<'_>,
    vmi: &VirtualMachineInstance,
    state: &State,
    started: bool,
    why: &str,
    decision: &mut Decision,
    now: Timestamp,
) {
    if !started {
        decision.vmi = Some(broken_off(vmi, now, why, false));
        return;
    }
    let kind = ConditionType::MigrationAbortRequested;
    set_true(&mut decision.migration.status, &kind, "TargetLost", why, now);
    let since = true_since(&seen.migration.status, &kind);
    let left = LOST_GRACE.saturating_sub(age(since, now));
    if since.is_some() && left.is_zero() {
        decision.vmi = Some(broken_off(vmi, now, why, false));
        return;
    }
    if state.abort_requested != Some(true) {
        decision.vmi = Some(abort_requested(vmi, Some(why)));
    }
    decision.look_in(left);
}

/// The machine with an end of its migration that no virt-handler can write.
fn broken_off(
    vmi: &VirtualMachineInstance,
    now: Timestamp,
    why: &str,
    aborted: bool,
) -> VirtualMachineInstance {
    let mut vmi = vmi.clone();
    let state = vmi.status.migration_state.get_or_insert_default();
    state.failed = Some(true);
    state.completed = Some(true);
    state.end_timestamp = Some(Some(Time(now)));
    state.failure_reason.get_or_insert_with(|| why.to_owned());
    if aborted {
        state.abort_requested = Some(true);
        state.abort_status = Some(AbortStatus::Succeeded);
    }
    vmi
}

/// The machine with the source's handler asked to break off.
fn abort_requested(vmi: &VirtualMachineInstance, why: Option<&str>) -> VirtualMachineInstance {
    let mut vmi = vmi.clone();
    let state = vmi.status.migration_state.get_or_insert_default();
    state.abort_requested = Some(true);
    if let Some(why) = why {
        state.failure_reason.get_or_insert_with(|| why.to_owned());
    }
    vmi
}
