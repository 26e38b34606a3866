//! `migrations.kubevirt.io/v1alpha1` MigrationPolicy: how the machines that it selects are migrated.
//!
//! A policy selects by labels of the machine and of its namespace. Of those that match, the one that names most
//! labels holds; of equals, the first by name. What it does not set is as the KubeVirt object says.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Labels and the values that they must have.
pub type Labels = BTreeMap<String, String>;

/// How machines are migrated that a policy selects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPolicy {
    /// Name of the policy.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What it says.
    #[serde(default)]
    pub spec: MigrationPolicySpec,
}

/// What a policy says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationPolicySpec {
    /// Which machines it is for. Without, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selectors: Option<Selectors>,
    /// Whether a guest may be slowed down that writes faster than it is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// Bytes a second that a migration may use; 0: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    /// Seconds for each GiB of a guest.
    #[serde(rename = "completionTimeoutPerGiB", skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gib: Option<i64>,
    /// Whether a guest may go on at the target before it is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// Whether a guest may be paused that does not converge in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
}

/// Which machines a policy is for. Both must match; an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selectors {
    /// Labels of the namespace.
    pub namespace_selector: Labels,
    /// Labels of the machine.
    pub virtual_machine_instance_selector: Labels,
}

kind!(
    MigrationPolicy,
    "migrations.kubevirt.io",
    "v1alpha1",
    "MigrationPolicy",
    "migrationpolicies",
    ClusterResourceScope
);

/// The policy that holds for a machine with these labels in a namespace with those.
pub fn matching<'a>(
    policies: &'a [MigrationPolicy],
    machine: &Labels,
    namespace: &Labels,
) -> Option<&'a MigrationPolicy> {
    let has =
        |labels: &Labels, wanted: &Labels| wanted.iter().all(|(key, value)| labels.get(key) == Some(value));
    let weight = |policy: &MigrationPolicy| {
        let selectors = policy.spec.selectors.as_ref()?;
        let (of_namespace, of_machine) =
            (&selectors.namespace_selector, &selectors.virtual_machine_instance_selector);
        let matches = has(namespace, of_namespace) && has(machine, of_machine);
        // More about the machine goes before more about its namespace.
        matches.then(|| (of_namespace.len() + of_machine.len(), of_machine.len()))
    };
    let mut found: Option<(&MigrationPolicy, (usize, usize))> = None;
    for policy in policies {
        let Some(weight) = weight(policy) else { continue };
        let better = found.is_none_or(|(other, known)| {
            weight > known || (weight == known && policy.metadata.name < other.metadata.name)
        });
        if better {
            found = Some((policy, weight));
        }
    }
    found.map(|(policy, _)| policy)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, selectors: Value) -> MigrationPolicy {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"selectors": selectors}})).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_policy_that_names_most_labels_holds() {
        let policies = [
            policy("all", json!({})),
            policy("none", Value::Null),
            policy("b-db", json!({"virtualMachineInstanceSelector": {"app": "db"}})),
            policy("a-db", json!({"virtualMachineInstanceSelector": {"app": "db"}})),
            policy("shop", json!({"namespaceSelector": {"team": "shop"}})),
            policy(
                "shop-db",
                json!({"namespaceSelector": {"team": "shop"}, "virtualMachineInstanceSelector": {"app": "db"}}),
            ),
        ];
        for (machine, namespace, name) in [
            (labels(&[]), labels(&[]), "all"),
            (labels(&[("app", "db")]), labels(&[]), "a-db"),
            (labels(&[("app", "web")]), labels(&[("team", "shop")]), "shop"),
            (labels(&[("app", "db"), ("x", "y")]), labels(&[("team", "shop")]), "shop-db"),
        ] {
            let found = matching(&policies, &machine, &namespace).unwrap();
            assert_eq!(found.metadata.name.as_deref(), Some(name));
        }
        assert_eq!(matching(&policies[1..2], &labels(&[]), &labels(&[])), None, "it selects nothing");
    }

    #[test]
    fn the_names_are_upstreams() {
        let given = json!({"selectors": {"namespaceSelector": {}, "virtualMachineInstanceSelector": {"a": "b"}},
            "allowAutoConverge": true, "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 3,
            "allowPostCopy": false, "allowWorkloadDisruption": true});
        let spec: MigrationPolicySpec = serde_json::from_value(given.clone()).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap(), given);
    }
}
