//! The PodDisruptionBudgets of machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use podvirt_api::migration::{eviction_strategy, is_final, migratable};
use podvirt_api::names::label;
use podvirt_api::v1::{
    EvictionStrategy, KubeVirtConfiguration, VirtualMachineInstance,
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstancePhase as Phase,
};

use super::evacuate::key;

/// Start of the budgets' names (upstream's).
const PREFIX: &str = "kubevirt-disruption-budget-";

/// A budget to write or to delete.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Write it.
    Apply(Box<PodDisruptionBudget>),
    /// Delete it.
    Delete {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

impl Change {
    /// Namespace and name.
    pub fn object(&self) -> (&str, &str) {
        match self {
            Change::Apply(budget) => (
                budget.metadata.namespace.as_deref().unwrap_or_default(),
                budget.metadata.name.as_deref().unwrap_or_default(),
            ),
            Change::Delete { namespace, name, .. } => (namespace, name),
        }
    }
}

/// What to change, so that each machine that needs one has its budget and no other is left.
pub fn changes(
    machines: &[Arc<VirtualMachineInstance>],
    migrations: &[Arc<Migration>],
    there: &[Arc<PodDisruptionBudget>],
    config: &KubeVirtConfiguration,
) -> Vec<Change> {
    let moving: BTreeSet<String> = migrations
        .iter()
        .filter(|m| !is_final(m))
        .map(|m| key(m.namespace(), m.spec.vmi_name.as_deref()))
        .collect();
    let mut left: BTreeMap<(String, String), &Arc<PodDisruptionBudget>> = there
        .iter()
        .map(|budget| ((budget.namespace().unwrap_or_default(), budget.name_any()), budget))
        .collect();
    let mut changes = Vec::new();
    for machine in machines.iter().filter(|machine| is_protected(machine, config)) {
        let moves = moving.contains(&key(machine.namespace(), machine.metadata.name.as_deref()));
        let wanted = budget(machine, if moves { 2 } else { 1 });
        let known = left.remove(&(machine.namespace().unwrap_or_default(), wanted.name_any()));
        if !known.is_some_and(|known| holds(known, &wanted)) {
            changes.push(Change::Apply(Box::new(wanted)));
        }
    }
    let surplus = left.into_iter().filter(|(_, b)| is_ours(b) && b.metadata.deletion_timestamp.is_none());
    changes.extend(surplus.map(|((namespace, name), budget)| Change::Delete {
        namespace,
        name,
        uid: budget.uid().unwrap_or_default(),
    }));
    changes
}

/// Whether a budget is as `wanted`, in what is written of it. What users and their tools add beside that (labels,
/// annotations, owners, `unhealthyPodEvictionPolicy`) is theirs and stays.
fn holds(known: &PodDisruptionBudget, wanted: &PodDisruptionBudget) -> bool {
    let ours = |budget: &PodDisruptionBudget| {
        budget.spec.as_ref().map(|spec| (spec.min_available.clone(), spec.selector.clone()))
    };
    ours(known) == ours(wanted)
        && wanted.labels().iter().all(|(key, value)| known.labels().get(key) == Some(value))
        && wanted.owner_references().iter().all(|owner| known.owner_references().contains(owner))
}

/// Whether an eviction must not end the machine.
fn is_protected(machine: &VirtualMachineInstance, config: &KubeVirtConfiguration) -> bool {
    let over = matches!(machine.status.phase, Some(Phase::Succeeded | Phase::Failed));
    !over
        && machine.metadata.deletion_timestamp.is_none()
        && match eviction_strategy(machine, config) {
            EvictionStrategy::LiveMigrate | EvictionStrategy::External => true,
            EvictionStrategy::LiveMigrateIfPossible => migratable(machine).is_ok(),
            _ => false,
        }
}

fn is_ours(budget: &PodDisruptionBudget) -> bool {
    budget.name_any().starts_with(PREFIX)
        && budget.owner_references().iter().any(|owner| owner.kind == "VirtualMachineInstance")
}

fn budget(machine: &VirtualMachineInstance, pods: i32) -> PodDisruptionBudget {
    let uid = machine.uid().unwrap_or_default();
    let of_machine = BTreeMap::from([(label::CREATED_BY.to_owned(), uid.clone())]);
    PodDisruptionBudget {
        metadata: ObjectMeta {
            // By the whole UID: a few letters of it are not the machine's alone.
            name: Some(format!("{PREFIX}{uid}")),
            namespace: machine.namespace(),
            labels: Some(of_machine.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: podvirt_api::API_VERSION.into(),
                kind: "VirtualMachineInstance".into(),
                name: machine.name_any(),
                uid,
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(pods)),
            selector: Some(LabelSelector { match_labels: Some(of_machine), match_expressions: None }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(strategy: &str, migratable: &str, phase: &str) -> Arc<VirtualMachineInstance> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "m1"},
                "spec": {"domain": {"devices": {}}, "evictionStrategy": strategy},
                "status": {"phase": phase, "conditions": [{"type": "LiveMigratable", "status": migratable}]},
            }))
            .unwrap(),
        )
    }

    fn open(phase: &str) -> Arc<Migration> {
        let object: Value = json!({"metadata": {"name": "m", "namespace": "shop"}, "spec": {"vmiName": "web"},
            "status": {"phase": phase}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn applied(changes: &[Change]) -> Arc<PodDisruptionBudget> {
        let [Change::Apply(budget)] = changes else { panic!("{changes:?}") };
        let mut budget = budget.as_ref().clone();
        budget.metadata.uid = Some("b1".into());
        Arc::new(budget)
    }

    #[test]
    fn the_budget_follows_strategy_and_condition() {
        let config = KubeVirtConfiguration::default();
        for (strategy, migratable, phase, protected) in [
            ("LiveMigrate", "True", "Running", true),
            ("LiveMigrate", "False", "Running", true),
            ("External", "False", "Running", true),
            ("LiveMigrateIfPossible", "True", "Running", true),
            ("LiveMigrateIfPossible", "False", "Running", false),
            ("None", "True", "Running", false),
            ("LiveMigrate", "True", "Failed", false),
        ] {
            let made = changes(&[machine(strategy, migratable, phase)], &[], &[], &config);
            assert_eq!(!made.is_empty(), protected, "{strategy} {migratable} {phase}");
        }
    }

    #[test]
    fn two_pods_must_stay_while_the_machine_migrates_and_nothing_is_written_twice() {
        let config = KubeVirtConfiguration::default();
        let all = [machine("LiveMigrate", "True", "Running")];
        let one = applied(&changes(&all, &[], &[], &config));
        assert_eq!(one.spec.as_ref().unwrap().min_available, Some(IntOrString::Int(1)));
        assert_eq!(changes(&all, &[], std::slice::from_ref(&one), &config), []);
        let two = applied(&changes(&all, &[open("Scheduling")], &[one], &config));
        assert_eq!(two.spec.as_ref().unwrap().min_available, Some(IntOrString::Int(2)));
        assert_eq!(changes(&all, &[open("Scheduling")], std::slice::from_ref(&two), &config), []);
        let back = applied(&changes(&all, &[open("Succeeded")], std::slice::from_ref(&two), &config));
        assert_eq!(back.spec.as_ref().unwrap().min_available, Some(IntOrString::Int(1)));
        let gone = changes(&[], &[], &[two], &config);
        assert!(matches!(&gone[..], [Change::Delete { uid, .. }] if uid == "b1"), "{gone:?}");
    }

    #[test]
    fn what_others_add_to_a_budget_is_left_and_what_they_change_of_ours_is_not() {
        let config = KubeVirtConfiguration::default();
        let all = [machine("LiveMigrate", "True", "Running")];
        let made = applied(&changes(&all, &[], &[], &config));
        let changed = |more: Value| {
            let mut budget = serde_json::to_value(made.as_ref()).unwrap();
            json_patch::merge(&mut budget, &more);
            changes(&all, &[], &[Arc::new(serde_json::from_value(budget).unwrap())], &config)
        };
        let mut owners = serde_json::to_value(made.owner_references()).unwrap();
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "backup", "uid": "c1"});
        owners.as_array_mut().unwrap().push(other);
        for more in [
            json!({"metadata": {"labels": {"team": "shop"}, "annotations": {"argocd": "x"}}}),
            json!({"metadata": {"ownerReferences": owners}}),
            json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}),
        ] {
            assert_eq!(changed(more.clone()), [], "{more}");
        }
        for more in [
            json!({"metadata": {"labels": {"kubevirt.io/created-by": "m9"}}}),
            json!({"metadata": {"ownerReferences": []}}),
            json!({"spec": {"minAvailable": 0}}),
            json!({"spec": {"selector": {"matchLabels": {"team": "shop"}}}}),
        ] {
            assert_eq!(applied(&changed(more.clone())).spec, made.spec, "{more}");
        }
    }

    #[test]
    fn each_of_two_machines_has_its_budget_whatever_their_uids() {
        let config = KubeVirtConfiguration::default();
        let mut all = Vec::new();
        // The UIDs have the same hash of five letters.
        for uid in ["66a0523a-60ed-4121-bf2c-05c023fb24a3", "901cd0be-33d0-4a43-944c-f976fa0261c9"] {
            let mut machine = machine("LiveMigrate", "True", "Running").as_ref().clone();
            machine.metadata.uid = Some(uid.into());
            all.push(Arc::new(machine));
        }
        let made = changes(&all, &[], &[], &config);
        let budgets: Vec<_> = made.chunks(1).map(applied).collect();
        assert_ne!(budgets[0].metadata.name, budgets[1].metadata.name);
        assert_eq!(changes(&all, &[], &budgets, &config), []);
        // Those of names that were made otherwise are replaced.
        let mut before = budgets[0].as_ref().clone();
        before.metadata.name = Some(format!("{PREFIX}bcdfg"));
        let changed = changes(&all[..1], &[], &[Arc::new(before)], &config);
        assert!(matches!(&changed[..], [Change::Apply(_), Change::Delete { .. }]), "{changed:?}");
    }

    #[test]
    fn a_budget_that_the_controller_did_not_make_is_left() {
        let mut other = PodDisruptionBudget::default();
        other.metadata.name = Some("mine".into());
        assert_eq!(changes(&[], &[], &[Arc::new(other)], &KubeVirtConfiguration::default()), []);
    }
}
