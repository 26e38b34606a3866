//! A migration among the others of its machine: which of them it waits for, and what is left of it when it has
//! ended.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::migration::{ended_at, is_at_target, is_final, pod_by_migration};
use podvirt_api::names::{MIGRATION_FINALIZER, annotation};
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationPhase as Phase,
};

use super::decide::{Action, Decision, LOOK_AGAIN, Observed, since};
use super::kept;
use super::status::{phase, reached};
use crate::vmi::observe;

/// Ended migrations of a machine that are kept (upstream's number).
pub const KEPT: usize = 5;
/// Wait after the first of a row of failed migrations that the cluster asked for; it doubles with each.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(20);
/// Longest wait after these.
pub const MAX_BACKOFF: Duration = Duration::from_secs(480);

/// When to look again whether the cache shows what became of claims.
const CLAIMS_AGAIN: Duration = Duration::from_secs(1);

/// An older migration of the machine that has not ended.
pub(super) fn rival<'a>(seen: &Observed<'a>) -> Option<&'a str> {
    let age = |m: &Migration| (m.metadata.creation_timestamp.as_ref().map(|t| t.0), m.uid());
    let own = age(seen.migration);
    let open = |m: &&Arc<Migration>| m.uid() != seen.migration.uid() && !is_final(m) && age(m) < own;
    seen.siblings.iter().find(open)?.metadata.name.as_deref()
}

/// How long a migration that the cluster asked for still waits for the failed ones before it.
pub fn backoff(migration: &Migration, siblings: &[Arc<Migration>], now: Timestamp) -> Option<Duration> {
    let own = [annotation::EVACUATION_MIGRATION, annotation::WORKLOAD_UPDATE_MIGRATION];
    if !own.iter().any(|key| migration.annotations().contains_key(*key)) {
        return None;
    }
    let mut ended: Vec<(Timestamp, bool)> = siblings
        .iter()
        .filter(|m| m.uid() != migration.uid())
        .filter_map(|m| match phase(m) {
            Phase::Succeeded => Some((reached(&m.status, &Phase::Succeeded)?, false)),
            // One that a user ended says nothing on whether the next one works.
            Phase::Failed if m.metadata.deletion_timestamp.is_none() => {
                Some((reached(&m.status, &Phase::Failed)?, true))
            }
            _ => None,
        })
        .collect();
    ended.sort();
    let row = ended.iter().rev().take_while(|(_, failed)| *failed).count();
    let (last, _) = ended.last().filter(|_| row > 0)?;
    let failures = u32::try_from(row - 1).unwrap_or(u32::MAX);
    let delay = podvirt_api::delay::doubled(FIRST_BACKOFF, MAX_BACKOFF, failures);
    let left = delay.saturating_sub(since(*last, now));
    (!left.is_zero()).then_some(left)
}

/// An ended migration: its target pod goes, unless the machine is in it, and then so does its finalizer. Old ones are
/// deleted.
pub(super) fn finish(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) {
    let own = seen
        .vmi
        .and_then(|vmi| vmi.status.migration_state.as_ref())
        .filter(|state| state.migration_uid == seen.migration.uid());
    let inhabited = |pod: &Pod| {
        seen.vmi.is_some_and(|vmi| {
            own.is_some_and(is_at_target) || pod_by_migration(vmi) == Some(observe::name(pod))
        })
    };
    // A machine that is over keeps its pods for users who want to read their logs.
    let succeeded = phase(seen.migration) == Phase::Succeeded;
    let left = seen.target.filter(|pod| !succeeded && !inhabited(pod));
    // Its launcher is told by virt-handler that nothing will come.
    let leaving = left.and_then(|pod| observe::leaving(pod, own.and_then(ended_at), now));
    let claims = kept::settle(seen);
    match left {
        Some(pod) if !observe::is_terminating(pod) && leaving.is_none() => {
            decision.actions.push(Action::DeletePod {
                name: observe::name(pod).to_owned(),
                uid: observe::uid(pod).to_owned(),
            });
        }
        Some(_) => {}
        None if !claims.is_empty() => {}
        None => {
            if let Some(finalizers) = &mut decision.migration.metadata.finalizers {
                finalizers.retain(|f| f != MIGRATION_FINALIZER);
            }
        }
    }
    if left.is_some() {
        decision.look_in(leaving.unwrap_or(LOOK_AGAIN));
    }
    if !claims.is_empty() {
        decision.look_in(CLAIMS_AGAIN);
        decision.actions.extend(claims);
    }
    decision.actions.extend(surplus(seen));
}

/// Ended migrations that are not kept.
fn surplus(seen: &Observed<'_>) -> Vec<Action> {
    let kept = if seen.vmi.is_some() { KEPT } else { 0 };
    let mut ended: Vec<&Arc<Migration>> =
        seen.siblings.iter().filter(|m| is_final(m) && m.metadata.deletion_timestamp.is_none()).collect();
    ended.sort_by_key(|m| (m.metadata.creation_timestamp.as_ref().map(|t| t.0), m.uid()));
    let surplus = ended.len().saturating_sub(kept);
    ended
        .into_iter()
        .take(surplus)
        .map(|m| Action::DeleteMigration { name: m.name_any(), uid: m.uid().unwrap_or_default() })
        .collect()
}
