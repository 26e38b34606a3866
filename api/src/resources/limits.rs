//! Limits that a launcher pod has because its namespace wants them, upstream's rules.
//!
//! A namespace with a ResourceQuota of limits takes no pod without limits. So a machine that says none gets them there, as it
//! does in namespaces that the KubeVirt object selects by `autoCPULimitNamespaceLabelSelector`:
//!
//! | | where | how much |
//! |---|---|---|
//! | processors | a quota has `limits.cpu`, or the namespace is selected | as many as the guest has |
//! | memory | a quota has `limits.memory` | what the pod asks for, twice, or times the namespace's label |

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::names::label;
use crate::quantity::Quantity;
use crate::v1;

/// Limit of memory in thousandths of what the pod asks for, where the namespace says nothing.
const MEMORY_RATIO: u64 = 2000;

/// Limits of a machine that says none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutoLimits {
    /// Whether processors are limited.
    pub cpu: bool,
    /// The limit of memory, in thousandths of what the pod asks for.
    pub memory: Option<u64>,
}

impl AutoLimits {
    /// The limits in a namespace with these quotas and labels.
    pub fn of(
        quotas: &[ResourceQuota],
        labels: &BTreeMap<String, String>,
        config: &v1::KubeVirtConfiguration,
    ) -> AutoLimits {
        let limited = |name: &str| {
            let hard =
                |quota: &ResourceQuota| quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()).cloned();
            quotas.iter().filter_map(hard).any(|hard| hard.contains_key(name))
        };
        let selector = config.auto_cpu_limit_namespace_label_selector.as_ref();
        AutoLimits {
            cpu: limited("limits.cpu") || selector.is_some_and(|selector| selects(selector, labels)),
            memory: limited("limits.memory").then(|| ratio(labels.get(label::MEMORY_LIMIT_RATIO))),
        }
    }
}

/// The label's decimal number in thousandths: at least 1, else two.
fn ratio(label: Option<&String>) -> u64 {
    let given = label.and_then(|text| text.parse::<Quantity>().ok()).map(|ratio| ratio.milli_value());
    given.filter(|ratio| *ratio >= 1000).unwrap_or(MEMORY_RATIO)
}

/// Whether a selector selects what has these labels; an empty one selects everything.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(name, value)| labels.get(name) == Some(value));
    let rules = selector.match_expressions.iter().flatten();
    equal
        && rules.into_iter().all(|rule| {
            let value = labels.get(&rule.key);
            let among = |values: &Vec<String>| value.is_some_and(|value| values.contains(value));
            let is_among = rule.values.as_ref().is_some_and(among);
            match rule.operator.as_str() {
                "In" => is_among,
                "NotIn" => !is_among,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(hard: Value, labels: Value, config: Value) -> AutoLimits {
        let quota = serde_json::from_value(json!({"metadata": {}, "spec": {"hard": hard}})).unwrap();
        AutoLimits::of(
            &[ResourceQuota::default(), quota],
            &serde_json::from_value(labels).unwrap(),
            &serde_json::from_value(config).unwrap(),
        )
    }

    #[test]
    fn a_quota_of_limits_gives_limits() {
        assert_eq!(
            of(json!({"requests.cpu": "1", "pods": "2"}), json!({}), json!({})),
            AutoLimits::default()
        );
        let both = json!({"limits.cpu": "4", "limits.memory": "4Gi"});
        for (ratio, wanted) in [("1.5", 1500), ("1", 1000), ("0.5", 2000), ("x", 2000), ("", 2000)] {
            let labels = json!({"alpha.kubevirt.io/auto-memory-limits-ratio": ratio});
            let found = of(both.clone(), labels, json!({}));
            assert_eq!(found, AutoLimits { cpu: true, memory: Some(wanted) }, "{ratio}");
        }
        assert_eq!(of(both, json!({}), json!({})).memory, Some(2000));
    }

    #[test]
    fn the_cluster_selects_namespaces_whose_machines_processors_are_limited() {
        let cpu = |selector: Value| {
            let config = json!({"autoCPULimitNamespaceLabelSelector": selector});
            of(json!({}), json!({"team": "a", "tier": "1"}), config).cpu
        };
        assert!(cpu(json!({})));
        assert!(cpu(json!({"matchLabels": {"team": "a"}})) && !cpu(json!({"matchLabels": {"team": "b"}})));
        let rule = |operator: &str, key: &str, values: Value| {
            cpu(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        assert!(rule("In", "team", json!(["a"])) && !rule("In", "other", json!(["a"])));
        assert!(!rule("NotIn", "team", json!(["a"])) && rule("NotIn", "other", json!(["a"])));
        assert!(rule("Exists", "tier", json!(null)) && !rule("DoesNotExist", "tier", json!(null)));
        assert!(!rule("Like", "tier", json!(null)));
    }
}
