//! Which machines are migrated because what their specification asks for comes with another pod.
//!
//! The condition `MigrationRequired` says so; the KubeVirt object says whether the cluster sees to it
//! (`workloadUpdateStrategy.workloadUpdateMethods: [LiveMigrate]`). Without that the user's own migration does. These
//! migrations are upkeep: they leave room to evacuations, wait behind users' migrations, and after failures.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use podvirt_api::migration::{defaults, is_final, migratable};
use podvirt_api::names::annotation;
use podvirt_api::names::condition::{MIGRATION_REQUIRED, TRUE};
use podvirt_api::v1::{
    KubeVirtConfiguration, MigrationPriority, VirtualMachineInstance,
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstancePhase as Phase,
};

use super::evacuate::{key, migration_for};
use crate::migration::admit::Limits;

/// The machines to migrate now. `asked`: [keys](key) of machines for which a migration was made that is not among
/// `migrations` yet.
pub fn plan(
    machines: &[Arc<VirtualMachineInstance>],
    migrations: &[Arc<Migration>],
    asked: &[String],
    config: &KubeVirtConfiguration,
) -> Vec<Arc<VirtualMachineInstance>> {
    let open = migrations.iter().filter(|migration| !is_final(migration));
    let mut moving: BTreeSet<String> =
        open.map(|migration| key(migration.namespace(), migration.spec.vmi_name.as_deref())).collect();
    moving.extend(asked.iter().cloned());
    let room = Limits::of(&defaults(config)).cluster.saturating_sub(moving.len());
    let of = |machine: &VirtualMachineInstance| key(machine.namespace(), machine.metadata.name.as_deref());
    let mut wanted: Vec<&Arc<VirtualMachineInstance>> = machines
        .iter()
        .filter(|machine| {
            is_required(machine) && migratable(machine).is_ok() && !moving.contains(&of(machine))
        })
        .collect();
    wanted.sort_by_key(|machine| of(machine));
    wanted.into_iter().take(room).cloned().collect()
}

fn is_required(machine: &VirtualMachineInstance) -> bool {
    let required =
        machine.status.conditions.iter().any(|c| c.r#type.as_str() == MIGRATION_REQUIRED && c.status == TRUE);
    required && machine.metadata.deletion_timestamp.is_none() && machine.status.phase == Some(Phase::Running)
}

/// The migration that takes a machine into a pod that has what it asks for.
pub fn migration(machine: &VirtualMachineInstance) -> Migration {
    let why = (annotation::WORKLOAD_UPDATE_MIGRATION, String::new());
    migration_for(machine, "kubevirt-workload-update-", why, MigrationPriority::Systemmaintenance)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(name: &str, more: Value) -> Arc<VirtualMachineInstance> {
        let mut vmi = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "conditions": [
                {"type": "LiveMigratable", "status": "True"}, {"type": "MigrationRequired", "status": "True"}]},
        });
        json_patch::merge(&mut vmi, &more);
        Arc::new(serde_json::from_value(vmi).unwrap())
    }

    fn open(machine: &str, phase: &str) -> Arc<Migration> {
        let object = json!({"metadata": {"name": "m", "namespace": "shop"}, "spec": {"vmiName": machine},
            "status": {"phase": phase}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn names(
        machines: &[Arc<VirtualMachineInstance>],
        migrations: &[Arc<Migration>],
        asked: &[&str],
    ) -> Vec<String> {
        let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
        let plan = plan(machines, migrations, &asked, &KubeVirtConfiguration::default());
        plan.iter().map(|machine| machine.name_any()).collect()
    }

    #[test]
    fn machines_move_that_have_to_and_can() {
        let conditions = |required: &str, migratable: &str| {
            json!({"status": {"conditions": [{"type": "LiveMigratable", "status": migratable},
                {"type": "MigrationRequired", "status": required}]}})
        };
        let all = [
            machine("has-to", json!({})),
            machine("pending", conditions("False", "True")),
            machine("cannot", conditions("True", "False")),
            machine(
                "need-not",
                json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "True"}]}}),
            ),
            machine("ended", json!({"status": {"phase": "Succeeded"}})),
            machine("ends", json!({"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}})),
        ];
        assert_eq!(names(&all, &[], &[]), ["has-to"]);
        assert_eq!(names(&all, &[open("has-to", "Pending")], &[]), [""; 0], "one at a time");
        assert_eq!(names(&all, &[open("has-to", "Failed")], &[]), ["has-to"], "that one has ended");
        assert_eq!(names(&all, &[], &["shop/has-to"]), [""; 0]);
    }

    #[test]
    fn no_more_are_made_than_may_run_with_all_others() {
        let all: Vec<_> = (0..9).map(|n| machine(&format!("m{n}"), json!({}))).collect();
        assert_eq!(names(&all, &[], &[]).len(), 5);
        assert_eq!(names(&all, &[open("x", "Running"), open("y", "Pending")], &["shop/z"]), ["m0", "m1"]);
    }

    #[test]
    fn the_migration_says_what_it_is_for() {
        let made = serde_json::to_value(migration(&machine("web", json!({})))).unwrap();
        assert_eq!(made["metadata"]["annotations"], json!({"kubevirt.io/workloadUpdateMigration": ""}));
        assert_eq!(made["metadata"]["generateName"], "kubevirt-workload-update-");
        assert_eq!(made["spec"], json!({"vmiName": "web", "priority": "system-maintenance"}));
    }
}
