//! Which machines get another pod without being asked for it.
//!
//! Three kinds of machines need one: those whose specification asks for what comes with another pod (condition
//! `MigrationRequired`), those whose volumes move to other claims (`VolumesChange`), and those whose launcher is of an older image (label `kubevirt.io/outdatedLauncherImage`). The
//! KubeVirt object says what the cluster does about them (`workloadUpdateStrategy`):
//!
//! | methods | machines that can be migrated | others |
//! |---|---|---|
//! | none | are only counted | are only counted |
//! | `LiveMigrate` | are migrated, as many at a time as may run | are only counted |
//! | `Evict` | are evicted | are evicted |
//! | both | are migrated | are evicted |
//!
//! A machine whose volumes move is never evicted: its disks would be in parts. Machines have their turn one after the other by name, and
//! the next turn begins behind the last.
//!
//! Migrations of this kind are upkeep: they leave room to evacuations, wait behind users' migrations, and after
//! failures. Evictions come in batches. Nothing begins before virt-operator has replaced all daemons: the new
//! launchers need them.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use podvirt_api::migration::{defaults, is_final, migratable};
use podvirt_api::names::condition::reason::VOLUMES_CHANGE_CANCELLATION;
use podvirt_api::names::condition::{MIGRATION_REQUIRED, TRUE, VOLUMES_CHANGE};
use podvirt_api::names::{annotation, label};
use podvirt_api::v1::{
    MigrationPriority, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstancePhase as Phase,
};

use super::evacuate::{Asked, key, machine_key, migration_for};
use crate::migration::admit::Limits;
use crate::migration::is_held_up;
use crate::settings::Settings;

/// Longest value of a label, characters.
const LABEL_MAX: usize = 63;

/// What to do now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Machines that need another pod.
    pub outdated: usize,
    /// Machines to migrate.
    pub migrate: Vec<Arc<VirtualMachineInstance>>,
    /// Migrations to abort: their machines' volumes stay on the claims that they had.
    pub abort: Vec<Arc<Migration>>,
    /// Machines to evict, if a batch is due.
    pub evict: Vec<Arc<VirtualMachineInstance>>,
}

/// Which machines had their turn last, as [keys](key): the next turn begins behind them. So machines that can never move, or whose eviction
/// is always refused, do not keep the others from theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The last machine that was migrated.
    pub migrated: String,
    /// The last machine that was evicted.
    pub evicted: String,
}

/// What to do with the machines. `batch_due`: the last batch of evictions is long enough ago. `turns` is brought up to date.
pub fn plan(
    machines: &[Arc<VirtualMachineInstance>],
    migrations: &[Arc<Migration>],
    asked: &Asked,
    settings: &Settings,
    batch_due: bool,
    turns: &mut Turns,
) -> Plan {
    let (mut moving, mut places): (BTreeSet<String>, usize) = Default::default();
    for migration in migrations.iter().filter(|migration| !is_final(migration)) {
        let is_new = moving.insert(key(migration.namespace(), migration.spec.vmi_name.as_deref()));
        places += usize::from(is_new && !is_held_up(migration));
    }
    places += asked.made.iter().filter(|machine| moving.insert((*machine).clone())).count();
    moving.extend(asked.refused.iter().cloned());
    let mut wanted: Vec<&Arc<VirtualMachineInstance>> =
        machines.iter().filter(|machine| needs_another_pod(machine)).collect();
    let mut plan = Plan { outdated: wanted.len(), ..Plan::default() };
    if !settings.is_rolled_out {
        return plan;
    }
    plan.abort = open_upkeep(migrations, machines);
    wanted.retain(|machine| !moving.contains(&machine_key(machine)));
    wanted.sort_by_key(|machine| machine_key(machine));
    let (move_them, mut rest): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|machine| settings.live_migrates && migratable(machine).is_ok());
    // An end in the middle of a move leaves disks in parts. What the instance tells of the former claims holds until the next pass over it:
    // the machine is migrated after that, or by its next migration.
    rest.retain(|machine| !has_volumes_to_move(machine));
    let room = Limits::of(&defaults(&settings.configuration)).cluster.saturating_sub(places);
    plan.migrate = next(move_them, room, &mut turns.migrated);
    if settings.evicts && batch_due {
        plan.evict = next(rest, settings.batch, &mut turns.evicted);
    }
    plan
}

/// The first `count` of the machines behind the one that had its turn last, which is `last`; they are sorted by their keys.
fn next(
    mut machines: Vec<&Arc<VirtualMachineInstance>>,
    count: usize,
    last: &mut String,
) -> Vec<Arc<VirtualMachineInstance>> {
    let behind = machines.partition_point(|machine| machine_key(machine) <= *last);
    machines.rotate_left(behind);
    machines.truncate(count);
    if let Some(machine) = machines.last() {
        *last = machine_key(machine);
    }
    machines.into_iter().cloned().collect()
}

/// Open migrations of upkeep whose machines' volumes are not to move to other claims any more.
fn open_upkeep(
    migrations: &[Arc<Migration>],
    machines: &[Arc<VirtualMachineInstance>],
) -> Vec<Arc<Migration>> {
    let is_reverted = |migration: &Migration| {
        let name = migration.spec.vmi_name.as_deref();
        let machine = machines.iter().find(|machine| {
            machine.metadata.namespace == migration.metadata.namespace
                && machine.metadata.name.as_deref() == name
        });
        machine.is_some_and(|machine| {
            !machine.status.migrated_volumes.is_empty()
                && machine.status.conditions.iter().any(|condition| {
                    condition.r#type.as_str() == VOLUMES_CHANGE
                        && condition.reason.as_deref() == Some(VOLUMES_CHANGE_CANCELLATION)
                })
        })
    };
    let open = migrations.iter().filter(|migration| {
        !is_final(migration)
            && migration.metadata.deletion_timestamp.is_none()
            && migration.labels().contains_key(label::VOLUME_UPDATE_MIGRATION)
    });
    open.filter(|migration| is_reverted(migration)).cloned().collect()
}

/// Whether volumes of the machine are to move to other claims.
fn has_volumes_to_move(machine: &VirtualMachineInstance) -> bool {
    !machine.status.migrated_volumes.is_empty()
        && machine.status.conditions.iter().any(|c| c.r#type.as_str() == VOLUMES_CHANGE && c.status == TRUE)
}

fn needs_another_pod(machine: &VirtualMachineInstance) -> bool {
    let required = has_volumes_to_move(machine)
        || machine
            .status
            .conditions
            .iter()
            .any(|c| c.r#type.as_str() == MIGRATION_REQUIRED && c.status == TRUE);
    let is_outdated = machine.labels().contains_key(label::OUTDATED_LAUNCHER_IMAGE);
    (required || is_outdated)
        && machine.metadata.deletion_timestamp.is_none()
        && machine.status.phase == Some(Phase::Running)
}

/// The migration that takes a machine into a pod that has what it asks for.
pub fn migration(machine: &VirtualMachineInstance) -> Migration {
    let why = (annotation::WORKLOAD_UPDATE_MIGRATION, String::new());
    let moves = has_volumes_to_move(machine);
    let priority =
        if moves { MigrationPriority::Usertriggered } else { MigrationPriority::Systemmaintenance };
    let mut migration = migration_for(machine, "kubevirt-workload-update-", why, priority);
    if moves {
        let name = machine.name_any();
        let value = if name.len() > LABEL_MAX { machine.uid().unwrap_or_default() } else { name };
        migration.labels_mut().insert(label::VOLUME_UPDATE_MIGRATION.into(), value);
    }
    migration
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
        let made = asked.iter().map(ToString::to_string).collect();
        let asked = Asked { made, ..Asked::default() };
        let settings = Settings { live_migrates: true, is_rolled_out: true, ..Settings::default() };
        told(&plan(machines, migrations, &asked, &settings, true, &mut Turns::default()).migrate)
    }

    fn told(machines: &[Arc<VirtualMachineInstance>]) -> Vec<String> {
        machines.iter().map(|machine| machine.name_any()).collect()
    }

    #[test]
    fn the_strategy_says_what_happens_to_machines_with_an_older_launcher() {
        let old = |name: &str, migratable: &str| {
            let conditions = json!([{"type": "LiveMigratable", "status": migratable}]);
            let labels = json!({"kubevirt.io/outdatedLauncherImage": ""});
            machine(name, json!({"metadata": {"labels": labels}, "status": {"conditions": conditions}}))
        };
        let current = json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "True"}]}});
        let all = [old("a", "True"), old("b", "False"), old("c", "False"), machine("current", current)];
        let planned = |live_migrates, evicts, is_rolled_out, batch_due| {
            let settings = Settings { live_migrates, evicts, is_rolled_out, batch: 2, ..Settings::default() };
            let plan = plan(&all, &[], &Asked::default(), &settings, batch_due, &mut Turns::default());
            assert_eq!(plan.outdated, 3);
            (told(&plan.migrate).join(" "), told(&plan.evict).join(" "))
        };
        let texts = |migrate: &str, evict: &str| (migrate.to_owned(), evict.to_owned());
        assert_eq!(planned(false, false, true, true), texts("", ""));
        assert_eq!(planned(true, false, true, true), texts("a", ""));
        assert_eq!(planned(false, true, true, true), texts("", "a b"), "a batch");
        assert_eq!(planned(true, true, true, true), texts("a", "b c"));
        assert_eq!(planned(true, true, true, false), texts("a", ""), "the last batch was just now");
        assert_eq!(planned(true, true, false, true), texts("", ""), "daemons are being replaced");
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
        assert_eq!(names(&all, &[open("has-to", "Failed")], &[]), ["has-to"], "its migration has ended");
        assert_eq!(names(&all, &[], &["shop/has-to"]), [""; 0]);
    }

    #[test]
    fn no_more_are_made_than_may_run_with_all_others() {
        let all: Vec<_> = (0..9).map(|n| machine(&format!("m{n}"), json!({}))).collect();
        assert_eq!(names(&all, &[], &[]).len(), 5);
        assert_eq!(names(&all, &[open("x", "Running"), open("y", "Pending")], &["shop/z"]), ["m0", "m1"]);
    }

    #[test]
    fn a_machine_whose_volumes_move_is_not_evicted() {
        let moving = |migratable: &str| {
            machine(
                "web",
                json!({"status": {"migratedVolumes": [{"volumeName": "root"}], "conditions": [
                    {"type": "LiveMigratable", "status": migratable}, {"type": "VolumesChange", "status": "True"}]}}),
            )
        };
        let planned = |machine, live_migrates| {
            let settings = Settings {
                live_migrates,
                evicts: true,
                is_rolled_out: true,
                batch: 2,
                ..Settings::default()
            };
            let plan = plan(&[machine], &[], &Asked::default(), &settings, true, &mut Turns::default());
            (told(&plan.migrate).len(), told(&plan.evict).len())
        };
        // The condition is that of the former claims until the next pass over the instance.
        assert_eq!(planned(moving("False"), true), (0, 0));
        assert_eq!(planned(moving("True"), true), (1, 0));
        assert_eq!(planned(moving("False"), false), (0, 0));
        assert_eq!(planned(moving("True"), false), (0, 0));
    }

    #[test]
    fn machines_that_cannot_go_do_not_keep_the_others_from_their_turn() {
        let old = |name: &str, migratable: &str| {
            let conditions = json!([{"type": "LiveMigratable", "status": migratable}]);
            let labels = json!({"kubevirt.io/outdatedLauncherImage": ""});
            machine(name, json!({"metadata": {"labels": labels}, "status": {"conditions": conditions}}))
        };
        let moves = (0..7).map(|n| old(&format!("m{n}"), "True"));
        let all: Vec<_> = moves.chain((0..5).map(|n| old(&format!("x{n}"), "False"))).collect();
        let settings = Settings {
            live_migrates: true,
            evicts: true,
            is_rolled_out: true,
            batch: 3,
            ..Settings::default()
        };
        let mut turns = Turns::default();
        let mut round = || {
            let plan = plan(&all, &[], &Asked::default(), &settings, true, &mut turns);
            (told(&plan.migrate).join(" "), told(&plan.evict).join(" "))
        };
        assert_eq!(round(), ("m0 m1 m2 m3 m4".into(), "x0 x1 x2".into()));
        assert_eq!(round(), ("m5 m6 m0 m1 m2".into(), "x3 x4 x0".into()));
        assert_eq!(round(), ("m3 m4 m5 m6 m0".into(), "x1 x2 x3".into()));
        let held = |name: &str| {
            let mut held = open(name, "Pending").as_ref().clone();
            let condition = json!([{"type": "MigrationBackoff", "status": "True"}]);
            held.status.conditions = serde_json::from_value(condition).unwrap();
            Arc::new(held)
        };
        let waiting: Vec<_> = (0..5).map(|n| held(&format!("m{n}"))).collect();
        assert_eq!(names(&all, &waiting, &[]), ["m5", "m6"], "an evacuation that rests takes no place");
    }

    #[test]
    fn the_migration_says_what_it_is_for() {
        let made = serde_json::to_value(migration(&machine("web", json!({})))).unwrap();
        assert_eq!(made["metadata"]["annotations"], json!({"kubevirt.io/workloadUpdateMigration": ""}));
        assert_eq!(made["metadata"]["generateName"], "kubevirt-workload-update-");
        assert_eq!(made["spec"], json!({"vmiName": "web", "priority": "system-maintenance"}));
    }
}
