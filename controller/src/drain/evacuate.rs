//! Which machines are migrated because they are to leave their node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use podvirt_api::migration::{defaults, eviction_strategy, has_ended, is_at_target, is_final, migratable};
use podvirt_api::names::{MIGRATION_FINALIZER, annotation, label, label_value};
use podvirt_api::v1::{
    EvictionStrategy, KubeVirtConfiguration, MigrationPriority, VirtualMachineInstance,
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstancePhase as Phase,
};

use crate::migration::admit::Limits;
use crate::migration::is_held_up;

type Machine = Arc<VirtualMachineInstance>;

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Machines to migrate now.
    pub migrate: Vec<Machine>,
    /// Migrations to abort: their machines' evacuations were cancelled.
    pub abort: Vec<Arc<Migration>>,
    /// Machines that are to leave and cannot, and why.
    pub blocked: Vec<(Machine, String)>,
}

/// A machine's name over all namespaces.
pub fn key(namespace: Option<String>, name: Option<&str>) -> String {
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

/// The [key] of a machine.
pub(super) fn machine_key(machine: &VirtualMachineInstance) -> String {
    key(machine.namespace(), machine.metadata.name.as_deref())
}

/// Whether machines are to leave the node.
pub fn is_tainted(node: &Node, taint: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|t| t.key == taint && t.effect == "NoSchedule")
}

/// What became of migrations that were asked for and are not among those that are seen, by the [keys](key) of their machines.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// They were made.
    pub made: Vec<String>,
    /// They were refused, and it is too early to ask again.
    pub refused: BTreeSet<String>,
}

/// Decides.
///
/// As many evacuations are open at a time as may run, whatever users have asked for meanwhile: an evacuation that waits for its turn
/// is the next to start, and one that was not made because users' migrations fill the queue would never be. An evacuation that is
/// [held up](is_held_up) by its own machine, or by a quota of its namespace, takes no place.
pub fn plan(
    machines: &[Machine],
    migrations: &[Arc<Migration>],
    tainted: &BTreeSet<String>,
    asked: &Asked,
    config: &KubeVirtConfiguration,
) -> Plan {
    let limits = Limits::of(&defaults(config));
    let (mut moving, mut evacuating): (BTreeSet<String>, BTreeSet<String>) = Default::default();
    for migration in migrations.iter().filter(|m| !is_final(m)) {
        let machine = key(migration.namespace(), migration.spec.vmi_name.as_deref());
        let evacuates = migration.annotations().contains_key(annotation::EVACUATION_MIGRATION);
        if evacuates && !is_held_up(migration) {
            evacuating.insert(machine.clone());
        }
        moving.insert(machine);
    }
    evacuating.extend(asked.made.iter().cloned());
    moving.extend(asked.made.iter().chain(&asked.refused).cloned());
    let mut of_node: BTreeMap<&str, usize> = BTreeMap::new();
    for machine in machines.iter().filter(|machine| evacuating.contains(&machine_key(machine))) {
        *of_node.entry(machine.status.node_name.as_deref().unwrap_or_default()).or_default() += 1;
    }
    let mut room = limits.cluster.saturating_sub(evacuating.len());
    let mut plan = Plan { abort: cancelled(machines, migrations, tainted), ..Plan::default() };
    let mut leaving: Vec<&Machine> = machines
        .iter()
        .filter(|machine| leaves(machine, tainted, config) && !moving.contains(&machine_key(machine)))
        .collect();
    leaving.sort_by_key(|machine| machine_key(machine));
    for machine in leaving {
        let node = machine.status.node_name.as_deref().unwrap_or_default();
        if let Err(why) = migratable(machine) {
            plan.blocked.push((machine.clone(), why));
            continue;
        }
        let here = of_node.entry(node).or_default();
        if room > 0 && *here < limits.node {
            room -= 1;
            *here += 1;
            plan.migrate.push(machine.clone());
        }
    }
    plan
}

/// Whether the machine is to leave its node by way of a migration.
fn leaves(
    machine: &VirtualMachineInstance,
    tainted: &BTreeSet<String>,
    config: &KubeVirtConfiguration,
) -> bool {
    let Some(node) = &machine.status.node_name else { return false };
    let lives = machine.metadata.deletion_timestamp.is_none() && machine.status.phase == Some(Phase::Running);
    let marked = machine.status.evacuation_node_name.as_ref() == Some(node);
    lives
        && match eviction_strategy(machine, config) {
            // Another controller sees to it.
            EvictionStrategy::External => false,
            EvictionStrategy::LiveMigrate => marked || tainted.contains(node),
            EvictionStrategy::LiveMigrateIfPossible => {
                migratable(machine).is_ok() && (marked || tainted.contains(node))
            }
            _ => false,
        }
}

/// Open migrations that were made for an eviction's mark which their machines no longer have.
///
/// A machine whose guest is at the target is not called back. What was made for a node's taint is no eviction's.
fn cancelled(
    machines: &[Machine],
    migrations: &[Arc<Migration>],
    tainted: &BTreeSet<String>,
) -> Vec<Arc<Migration>> {
    let by_uid: BTreeMap<&str, &Machine> =
        machines.iter().filter_map(|machine| Some((machine.metadata.uid.as_deref()?, machine))).collect();
    let is_cancelled = |migration: &Migration| {
        let annotations = migration.annotations();
        let uid = annotations.get(annotation::EVACUATED_MACHINE_UID).map(String::as_str);
        let Some(machine) = uid.and_then(|uid| by_uid.get(uid)) else { return false };
        let (status, node) = (&machine.status, annotations.get(annotation::EVACUATION_MIGRATION));
        let state = status.migration_state.as_ref();
        let own = state.filter(|state| state.migration_uid == migration.metadata.uid);
        machine.metadata.namespace == migration.metadata.namespace
            && node.is_some_and(|node| !tainted.contains(node))
            && status.node_name.as_ref() == node
            && status.evacuation_node_name.as_ref() != node
            && own.is_none_or(|state| !is_at_target(state) && !has_ended(state))
    };
    let open = migrations.iter().filter(|m| !is_final(m) && m.metadata.deletion_timestamp.is_none());
    open.filter(|migration| is_cancelled(migration)).cloned().collect()
}

/// The migration that takes a machine off its node.
pub fn migration(machine: &VirtualMachineInstance) -> Migration {
    let node = machine.status.node_name.clone().unwrap_or_default();
    let is_marked = machine.status.evacuation_node_name.as_ref() == Some(&node);
    let why = (annotation::EVACUATION_MIGRATION, node);
    let urgency = MigrationPriority::Systemcritical;
    let mut migration = migration_for(machine, "kubevirt-evacuation-", why, urgency);
    if let Some(uid) = machine.uid().filter(|_| is_marked) {
        migration.annotations_mut().insert(annotation::EVACUATED_MACHINE_UID.into(), uid);
    }
    migration
}

/// A migration of a machine that this controller makes by itself. `why` is an annotation.
pub(super) fn migration_for(
    machine: &VirtualMachineInstance,
    prefix: &str,
    why: (&str, String),
    priority: MigrationPriority,
) -> Migration {
    let name = machine.name_any();
    let mut migration = Migration::default();
    let meta = &mut migration.metadata;
    meta.generate_name = Some(prefix.into());
    meta.namespace = machine.namespace();
    meta.labels = Some([(label::MIGRATION_VMI.to_owned(), label_value(&name))].into());
    meta.annotations = Some([(why.0.to_owned(), why.1)].into());
    meta.finalizers = Some(vec![MIGRATION_FINALIZER.to_owned()]);
    migration.spec = VirtualMachineInstanceMigrationSpec {
        vmi_name: Some(name),
        priority: Some(priority),
        ..VirtualMachineInstanceMigrationSpec::default()
    };
    migration
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use serde_json::{Value, json};

    use super::*;

    fn machine(name: &str, node: &str, strategy: &str, more: Value) -> Machine {
        let mut vmi = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"domain": {"devices": {}}, "evictionStrategy": strategy},
            "status": {"phase": "Running", "nodeName": node, "evacuationNodeName": node,
                "conditions": [{"type": "LiveMigratable", "status": "True"}]},
        });
        json_patch::merge(&mut vmi, &more);
        Arc::new(serde_json::from_value(vmi).unwrap())
    }

    /// A migration that a user has asked for.
    fn open(machine: &str, phase: &str) -> Arc<Migration> {
        let object = json!({"metadata": {"name": "m", "namespace": "shop"}, "spec": {"vmiName": machine},
            "status": {"phase": phase}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn evacuation(name: &str, phase: &str) -> Arc<Migration> {
        let mut made = migration(&machine(name, "a", "LiveMigrate", json!({})));
        made.status.phase = Some(phase.into());
        Arc::new(made)
    }

    fn names(
        machines: &[Machine],
        migrations: &[Arc<Migration>],
        tainted: &[&str],
        asked: &[&str],
    ) -> Vec<String> {
        let tainted = tainted.iter().map(ToString::to_string).collect();
        let made = asked.iter().map(ToString::to_string).collect();
        let asked = Asked { made, ..Asked::default() };
        let plan = plan(machines, migrations, &tainted, &asked, &KubeVirtConfiguration::default());
        plan.migrate.iter().map(|machine| machine.name_any()).collect()
    }

    #[test]
    fn machines_leave_when_told_to_and_only_those() {
        let stay = json!({"status": {"evacuationNodeName": null}});
        let elsewhere = json!({"status": {"evacuationNodeName": "n9"}});
        let ended = json!({"status": {"phase": "Succeeded"}});
        let all = [
            machine("told", "n1", "LiveMigrate", json!({})),
            machine("possible", "n2", "LiveMigrateIfPossible", json!({})),
            machine("external", "n3", "External", json!({})),
            machine("none", "n3", "None", json!({})),
            machine("stays", "n4", "LiveMigrate", stay.clone()),
            machine("left", "n4", "LiveMigrate", elsewhere),
            machine("ended", "n4", "LiveMigrate", ended),
        ];
        assert_eq!(names(&all, &[], &[], &[]), ["possible", "told"]);
        assert_eq!(names(&all, &[], &["n4"], &[]), ["left", "possible", "stays", "told"]);
        let untold = [machine("none", "n1", "None", stay)];
        assert_eq!(names(&untold, &[], &["n1"], &[]), [""; 0]);
    }

    #[test]
    fn no_more_are_made_than_may_run() {
        let of = |count: usize, node: &str| -> Vec<Machine> {
            (0..count).map(|n| machine(&format!("{node}-{n}"), node, "LiveMigrate", json!({}))).collect()
        };
        assert_eq!(names(&of(5, "a"), &[], &[], &[]), ["a-0", "a-1"], "two a node");
        let all = [of(2, "a"), of(2, "b"), of(2, "c")].concat();
        assert_eq!(names(&all, &[], &[], &[]).len(), 5, "five in all");
        assert_eq!(names(&of(5, "a"), &[evacuation("a-0", "Running")], &[], &[]), ["a-1"]);
        assert_eq!(names(&of(5, "a"), &[evacuation("a-0", "Pending")], &[], &["shop/a-1"]), [""; 0]);
        assert_eq!(
            names(&of(2, "a"), &[evacuation("a-0", "Failed")], &[], &[]),
            ["a-0", "a-1"],
            "the migration of a-0 has ended"
        );
    }

    #[test]
    fn an_evacuation_that_its_own_machine_holds_up_takes_no_place() {
        let of = |nodes: &[&str]| -> Vec<Machine> {
            nodes.iter().map(|name| machine(name, &name[..1], "LiveMigrate", json!({}))).collect()
        };
        let all = of(&["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]);
        let open = |kind: &str, phase: &str| -> Vec<Arc<Migration>> {
            let held = |machine: &Machine| {
                let mut made = evacuation(&machine.name_any(), phase).as_ref().clone();
                let condition = json!([{"type": kind, "status": "True"}]);
                made.status.conditions = serde_json::from_value(condition).unwrap();
                Arc::new(made)
            };
            all[..5].iter().map(held).collect()
        };
        for kind in [
            "migrationBlockedByBackup",
            "migrationBlockedByUtilityVolumes",
            "MigrationBackoff",
            "MachineNotRunning",
            "migrationRejectedByResourceQuota",
            "FailedCreate",
        ] {
            assert_eq!(names(&all, &open(kind, "Pending"), &[], &[]), ["c-1"], "{kind}");
        }
        assert_eq!(names(&all, &open("other", "Pending"), &[], &[]), [""; 0]);
        let runs = open("migrationBlockedByBackup", "Running");
        assert_eq!(names(&all, &runs, &[], &[]), [""; 0], "it has begun since");
    }

    #[test]
    fn a_machine_whose_migration_was_refused_is_left_for_a_while_and_takes_no_place() {
        let all: Vec<Machine> =
            (0..3).map(|n| machine(&format!("a-{n}"), "a", "LiveMigrate", json!({}))).collect();
        let asked = Asked { made: vec![], refused: ["shop/a-0".to_owned()].into() };
        let plan = plan(&all, &[], &BTreeSet::new(), &asked, &KubeVirtConfiguration::default());
        let names: Vec<String> = plan.migrate.iter().map(|machine| machine.name_any()).collect();
        assert_eq!(names, ["a-1", "a-2"]);
    }

    #[test]
    fn what_users_have_asked_for_takes_no_evacuations_place() {
        let stay = json!({"status": {"evacuationNodeName": null}});
        let mut all: Vec<Machine> =
            (0..500).map(|n| machine(&format!("user-{n}"), "a", "LiveMigrate", stay.clone())).collect();
        let asked: Vec<Arc<Migration>> =
            (0..500).map(|n| open(&format!("user-{n}"), if n < 5 { "Running" } else { "Pending" })).collect();
        all.extend((0..3).map(|n| machine(&format!("told-{n}"), "a", "LiveMigrate", json!({}))));
        assert_eq!(names(&all, &asked, &[], &[]), ["told-0", "told-1"]);
        // A machine has one migration at a time.
        let own = [asked.clone(), vec![open("told-0", "Pending")]].concat();
        assert_eq!(names(&all, &own, &[], &[]), ["told-1", "told-2"]);
    }

    #[test]
    fn the_migration_of_a_cancelled_evacuation_is_aborted_unless_the_guest_has_moved() {
        let unmarked = json!({"status": {"evacuationNodeName": null}});
        let made_for = |machine: &Machine, phase: &str| -> Arc<Migration> {
            let mut made = migration(machine);
            made.metadata.uid = Some("m".into());
            made.status.phase = Some(phase.into());
            Arc::new(made)
        };
        let aborted = |machine: &Machine, migration: &Arc<Migration>, tainted: &[&str]| -> usize {
            let tainted = tainted.iter().map(ToString::to_string).collect();
            let config = KubeVirtConfiguration::default();
            let (machines, migrations) = (from_ref(machine), from_ref(migration));
            plan(machines, migrations, &tainted, &Asked::default(), &config).abort.len()
        };
        let marked = machine("web", "n1", "LiveMigrate", json!({}));
        let left = machine("web", "n1", "LiveMigrate", unmarked.clone());
        for phase in ["", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"] {
            let open = made_for(&marked, phase);
            assert_eq!((aborted(&marked, &open, &[]), aborted(&left, &open, &[])), (0, 1), "{phase}");
        }
        let open = made_for(&marked, "Running");
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(aborted(&left, &made_for(&marked, phase), &[]), 0, "{phase}");
        }
        let mut deleted = open.as_ref().clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T12:00:00Z")).unwrap();
        assert_eq!(aborted(&left, &Arc::new(deleted), &[]), 0, "that is asked for already");
        let at_target =
            json!({"migrationUid": "m", "targetNodeDomainReadyTimestamp": "2026-01-01T12:00:00Z"});
        let state = |state: &Value| json!({"status": {"evacuationNodeName": null, "migrationState": state}});
        let moved = machine("web", "n1", "LiveMigrate", state(&at_target));
        assert_eq!(aborted(&moved, &open, &[]), 0, "the guest is at the target");
        let mut earlier = at_target;
        earlier["migrationUid"] = json!("earlier");
        assert_eq!(aborted(&machine("web", "n1", "LiveMigrate", state(&earlier)), &open, &[]), 1);
        let elsewhere = machine("web", "n2", "LiveMigrate", unmarked);
        assert_eq!(aborted(&elsewhere, &open, &[]), 0, "it has left");
        // A machine that was made anew under the name has another UID.
        let anew = json!({"metadata": {"uid": "anew"}, "status": {"evacuationNodeName": null}});
        assert_eq!(aborted(&machine("web", "n1", "LiveMigrate", anew), &open, &[]), 0);
        // Neither a user's migration nor one for a taint belongs to an eviction.
        assert_eq!(aborted(&left, &self::open("web", "Running"), &[]), 0);
        assert_eq!(aborted(&left, &made_for(&left, "Running"), &[]), 0);
        assert_eq!(aborted(&left, &open, &["n1"]), 0, "the node is to be emptied all the same");
    }

    #[test]
    fn a_machine_that_cannot_move_is_told_and_one_that_need_not_is_left() {
        let cannot = json!({"status": {"conditions": [
            {"type": "LiveMigratable", "status": "False", "message": "volume root: local"}]}});
        let all = [
            machine("must", "n1", "LiveMigrate", cannot.clone()),
            machine("may", "n1", "LiveMigrateIfPossible", cannot),
        ];
        let none = Asked::default();
        let plan = plan(&all, &[], &BTreeSet::new(), &none, &KubeVirtConfiguration::default());
        assert_eq!(plan.migrate.len(), 0);
        let [(machine, why)] = &plan.blocked[..] else { panic!("{:?}", plan.blocked) };
        assert_eq!((machine.name_any().as_str(), why.as_str()), ("must", "volume root: local"));
    }

    #[test]
    fn the_migration_says_what_it_is_for() {
        let made = serde_json::to_value(migration(&machine("web", "n1", "LiveMigrate", json!({})))).unwrap();
        assert_eq!(made["metadata"]["annotations"]["kubevirt.io/evacuationMigration"], "n1");
        assert_eq!(made["metadata"]["annotations"]["podvirt.io/evacuated-machine-uid"], "web");
        assert_eq!(made["metadata"]["labels"]["kubevirt.io/vmi-name"], "web");
        assert_eq!(made["spec"], json!({"vmiName": "web", "priority": "system-critical"}));
    }
}
