//! What keeps a machine from moving for a while: a backup of its disks, and the claims that backups write to. The migration waits.

use kube::ResourceExt;
use podvirt_api::names::condition::TRUE;
use podvirt_api::names::event;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationConditionType as ConditionType,
    VirtualMachineInstanceMigrationPhase as Phase,
};

use super::status::phase;

/// The conditions that tell of it.
pub(super) const KINDS: [ConditionType; 2] =
    [ConditionType::MigrationBlockedByBackup, ConditionType::MigrationBlockedByUtilityVolumes];

/// Whether a migration that has not begun waits for its own machine or its own namespace, and not for its turn: nothing moves by it, and
/// others may.
pub(crate) fn is_held_up(migration: &Migration) -> bool {
    let holds = |kind: &ConditionType| {
        KINDS.contains(kind)
            || [event::MIGRATION_BACKOFF, event::MACHINE_NOT_RUNNING].contains(&kind.as_str())
    };
    is_refused(migration) || waits_with(migration, holds)
}

/// Whether the API server has refused the target pod of a migration: it may do so for as long as the namespace's quota is used up.
pub(super) fn is_refused(migration: &Migration) -> bool {
    waits_with(migration, |kind| {
        *kind == ConditionType::MigrationRejectedByResourceQuota || kind.as_str() == event::FAILED_CREATE
    })
}

/// Whether a migration that has not begun has such a condition.
fn waits_with(migration: &Migration, is: impl Fn(&ConditionType) -> bool) -> bool {
    let has_begun = !matches!(phase(migration), Phase::Pending) && migration.status.phase.is_some();
    let mut conditions = migration.status.conditions.iter();
    !has_begun && conditions.any(|condition| condition.status == TRUE && is(&condition.r#type))
}

/// Which condition tells of it, and what it says; none where the machine may move.
pub(super) fn why(vmi: &VirtualMachineInstance) -> Option<(ConditionType, String)> {
    let machine = vmi.name_any();
    let tracking = vmi.status.changed_block_tracking.as_ref();
    let [by_backup, by_volumes] = KINDS;
    if let Some(backup) = tracking.and_then(|tracking| tracking.backup_status.as_ref()) {
        let backup = backup.backup_name.as_deref().unwrap_or_default();
        return Some((
            by_backup,
            format!("the backup {backup} of machine {machine} is in progress: its migration waits"),
        ));
    }
    let volume = &vmi.spec.utility_volumes.first()?.name;
    Some((by_volumes, format!("machine {machine} has the volume {volume} of a backup: its migration waits")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_machine_stays_while_a_backup_or_its_claim_is_with_it() {
        let told = |tracking: Value, volumes: Value| {
            let vmi = json!({"metadata": {"name": "web"},
                "spec": {"domain": {"devices": {}}, "utilityVolumes": volumes}, "status": {"changedBlockTracking": tracking}});
            why(&serde_json::from_value(vmi).unwrap()).map(|(kind, why)| (kind.as_str().to_owned(), why))
        };
        let said = |kind: &str, why: &str| Some((kind.to_owned(), format!("{why}: its migration waits")));
        assert_eq!(told(Value::Null, json!([])), None);
        assert_eq!(told(json!({"state": "Enabled"}), json!([])), None);
        let volumes = json!([{"name": "copies", "claimName": "c"}]);
        let by_backup =
            told(json!({"state": "Enabled", "backupStatus": {"backupName": "b"}}), volumes.clone());
        assert_eq!(by_backup, said("migrationBlockedByBackup", "the backup b of machine web is in progress"));
        let by_volume = told(Value::Null, volumes);
        let why = "machine web has the volume copies of a backup";
        assert_eq!(by_volume, said("migrationBlockedByUtilityVolumes", why));
    }
}
