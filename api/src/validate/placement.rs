//! Where the launcher pod may run: affinity, tolerations and topology spread constraints.
//!
//! The pod gets them as they are. Kubernetes would refuse the pod of a machine that was taken long before, so they are judged
//! with the machine, by the API server's rules as upstream has them.

use std::collections::HashMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{is_dns_label, is_label_name, is_label_value};
use crate::problem::{Problems, Reason};
use crate::v1::VirtualMachineInstanceSpec;

const KEY: &str = "a label's name is allowed, as in 'kubernetes.io/hostname'";
const WEIGHT: &str = "a whole number from 1 to 100 is allowed";

/// Judges where a machine may run.
pub(crate) fn check(spec: &VirtualMachineInstanceSpec, problems: &mut Problems) {
    if let Some(affinity) = &spec.affinity {
        self::affinity(affinity, problems);
    }
    for (n, toleration) in spec.tolerations.iter().enumerate() {
        let path = format!("spec.tolerations[{n}]");
        one_of(&toleration.operator, &format!("{path}.operator"), &["Equal", "Exists"], problems);
        one_of(
            &toleration.effect,
            &format!("{path}.effect"),
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            problems,
        );
    }
    spread(&spec.topology_spread_constraints, problems);
}

/// A text that is not set, or one of these.
fn one_of(given: &Option<String>, path: &str, allowed: &[&str], problems: &mut Problems) {
    if let Some(text) = given.as_deref().filter(|text| !text.is_empty() && !allowed.contains(text)) {
        problems.invalid(path, text.escape_debug(), &format!("one of {} is allowed", allowed.join(", ")));
    }
}

fn affinity(affinity: &core::Affinity, problems: &mut Problems) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let path = "spec.affinity.nodeAffinity";
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            let path = format!("{path}.{REQUIRED}.nodeSelectorTerms");
            if selector.node_selector_terms.is_empty() {
                problems.required(path.clone(), "a term is required");
            }
            for (n, term) in selector.node_selector_terms.iter().enumerate() {
                node_term(term, &format!("{path}[{n}]"), problems);
            }
        }
        let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (n, term) in preferred.enumerate() {
            let path = format!("{path}.{PREFERRED}[{n}]");
            weight(term.weight, &path, problems);
            node_term(&term.preference, &format!("{path}.preference"), problems);
        }
    }
    let pods = affinity.pod_affinity.as_ref().map(|a| {
        (
            "podAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let others = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            "podAntiAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (name, required, preferred) in pods.into_iter().chain(others) {
        for (n, term) in required.iter().flatten().enumerate() {
            pod_term(term, &format!("spec.affinity.{name}.{REQUIRED}[{n}]"), problems);
        }
        for (n, term) in preferred.iter().flatten().enumerate() {
            let path = format!("spec.affinity.{name}.{PREFERRED}[{n}]");
            weight(term.weight, &path, problems);
            pod_term(&term.pod_affinity_term, &format!("{path}.podAffinityTerm"), problems);
        }
    }
}

fn weight(weight: i32, path: &str, problems: &mut Problems) {
    if !(1..=100).contains(&weight) {
        problems.invalid(format!("{path}.weight"), weight, WEIGHT);
    }
}

fn key(key: &str, path: &str, problems: &mut Problems) {
    if key.is_empty() {
        problems.required(path, KEY);
    } else if !is_label_name(key) {
        problems.invalid(path, key.escape_debug(), KEY);
    }
}

fn node_term(term: &core::NodeSelectorTerm, path: &str, problems: &mut Problems) {
    for (n, rule) in term.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{n}]");
        let count = rule.values.as_ref().map_or(0, Vec::len);
        match rule.operator.as_str() {
            "In" | "NotIn" if count == 0 => {
                problems.required(format!("{path}.values"), "a value is required");
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                unwanted(&rule.operator, &path, problems);
            }
            "Gt" | "Lt" if count != 1 => problems.required(format!("{path}.values"), "one value is required"),
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => problems.invalid(
                format!("{path}.operator"),
                other.escape_debug(),
                "one of In, NotIn, Exists, DoesNotExist, Gt, Lt is allowed",
            ),
        }
        key(&rule.key, &format!("{path}.key"), problems);
    }
    for (n, rule) in term.match_fields.iter().flatten().enumerate() {
        let path = format!("{path}.matchFields[{n}]");
        let values = rule.values.as_deref().unwrap_or_default();
        if !["In", "NotIn"].contains(&rule.operator.as_str()) {
            let operator = rule.operator.escape_debug();
            problems.invalid(format!("{path}.operator"), operator, "In and NotIn are allowed");
        } else if values.len() != 1 {
            problems.required(format!("{path}.values"), "one value is required");
        }
        if rule.key != "metadata.name" {
            problems.invalid(format!("{path}.key"), rule.key.escape_debug(), "metadata.name is allowed");
            continue;
        }
        for (n, name) in values.iter().enumerate().filter(|(_, name)| !super::is_dns_subdomain(name)) {
            let field = format!("{path}.values[{n}]");
            problems.invalid(field, name.escape_debug(), "the name of a node is allowed");
        }
    }
}

fn unwanted(operator: &str, path: &str, problems: &mut Problems) {
    problems.add(
        Reason::FieldValueInvalid,
        format!("{path}.values"),
        format!("no values are allowed with the operator {operator}"),
    );
}

fn pod_term(term: &core::PodAffinityTerm, path: &str, problems: &mut Problems) {
    for (name, selector) in
        [("labelSelector", &term.label_selector), ("namespaceSelector", &term.namespace_selector)]
    {
        if let Some(selector) = selector {
            labels(selector, &format!("{path}.{name}"), problems);
        }
    }
    for (n, namespace) in term.namespaces.iter().flatten().enumerate() {
        if !is_dns_label(namespace) {
            let field = format!("{path}.namespaces[{n}]");
            problems.invalid(field, namespace.escape_debug(), "at most 63 of a-z, 0-9 and '-' are allowed");
        }
    }
    key(&term.topology_key, &format!("{path}.topologyKey"), problems);
}

/// Judges a selector of labels, which stands at `path`.
pub(crate) fn labels(selector: &LabelSelector, path: &str, problems: &mut Problems) {
    for (name, value) in selector.match_labels.iter().flatten() {
        key(name, &format!("{path}.matchLabels"), problems);
        label_value(value, &format!("{path}.matchLabels[{name}]"), problems);
    }
    for (n, rule) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{n}]");
        let values = rule.values.as_deref().unwrap_or_default();
        match rule.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                problems.required(format!("{path}.values"), "a value is required");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => unwanted(&rule.operator, &path, problems),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => problems.invalid(
                format!("{path}.operator"),
                other.escape_debug(),
                "one of In, NotIn, Exists, DoesNotExist is allowed",
            ),
        }
        key(&rule.key, &format!("{path}.key"), problems);
        for (n, value) in values.iter().enumerate() {
            label_value(value, &format!("{path}.values[{n}]"), problems);
        }
    }
}

fn label_value(value: &str, path: &str, problems: &mut Problems) {
    if !is_label_value(value) {
        problems.invalid(
            path,
            value.escape_debug(),
            "the value of a label is allowed: at most 63 letters, digits, '-', '_' and '.', letters or digits at the ends",
        );
    }
}

fn spread(constraints: &[core::TopologySpreadConstraint], problems: &mut Problems) {
    const WAYS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    const POLICIES: [&str; 2] = ["Honor", "Ignore"];
    let mut seen = HashMap::new();
    for (n, constraint) in constraints.iter().enumerate() {
        let path = format!("spec.topologySpreadConstraints[{n}]");
        if constraint.max_skew < 1 {
            let field = format!("{path}.maxSkew");
            problems.invalid(field, constraint.max_skew, "a whole number of at least 1 is allowed");
        }
        key(&constraint.topology_key, &format!("{path}.topologyKey"), problems);
        let way = &constraint.when_unsatisfiable;
        if !WAYS.contains(&way.as_str()) {
            let field = format!("{path}.whenUnsatisfiable");
            problems.invalid(field, way.escape_debug(), "one of DoNotSchedule, ScheduleAnyway is allowed");
        }
        one_of(&constraint.node_affinity_policy, &format!("{path}.nodeAffinityPolicy"), &POLICIES, problems);
        one_of(&constraint.node_taints_policy, &format!("{path}.nodeTaintsPolicy"), &POLICIES, problems);
        if let Some(selector) = &constraint.label_selector {
            labels(selector, &format!("{path}.labelSelector"), problems);
        }
        let other = *seen.entry((constraint.topology_key.as_str(), way.as_str())).or_insert(n);
        if other != n {
            problems.duplicate(
                format!("{path}.topologyKey"),
                format!("{} {way}", constraint.topology_key),
                &format!("spec.topologySpreadConstraints[{other}]"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fields(spec: &Value) -> Vec<String> {
        let mut whole = json!({"domain": {"devices": {}}});
        for (name, value) in spec.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(whole).unwrap();
        let mut problems = Problems::default();
        check(&spec, &mut problems);
        problems.0.into_iter().map(|problem| problem.field.replace("spec.", "")).collect()
    }

    #[test]
    fn what_kubernetes_takes_passes() {
        let none: [&str; 0] = [];
        let term = json!({"topologyKey": "kubernetes.io/hostname", "namespaces": ["shop"], "labelSelector": {
            "matchLabels": {"app": "db"}, "matchExpressions": [{"key": "a/b", "operator": "In", "values": ["x", ""]}]}});
        let spec = json!({
            "tolerations": [{}, {"operator": "Exists", "effect": "NoExecute"}, {"operator": "", "effect": ""}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"},
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{
                        "matchExpressions": [{"key": "z", "operator": "Gt", "values": ["3"]}, {"key": "z", "operator": "Exists"}],
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node01"]}]}, {}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {}}]},
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}},
        });
        assert_eq!(fields(&spec), none);
    }

    #[test]
    fn what_kubernetes_would_refuse_is_told_by_its_path() {
        let spec = json!({
            "tolerations": [{"operator": "Like", "effect": "No"}],
            "topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "", "nodeAffinityPolicy": "x"},
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {
                        "matchExpressions": [{"key": "b c", "operator": "Lt"}, {"key": "z", "operator": "Exists", "values": ["a"]}],
                        "matchFields": [{"key": "name", "operator": "Gt", "values": ["a"]}]}}]},
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "", "namespaces": ["A"],
                    "labelSelector": {"matchLabels": {"a": "-"}, "matchExpressions": [{"key": "k", "operator": "Gt"}]}}]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 101, "podAffinityTerm": {"topologyKey": "a/b/c"}}]}},
        });
        let preferred = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]";
        let required = "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
        let apart = "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]";
        assert_eq!(
            fields(&spec),
            [
                "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                &format!("{preferred}.weight"),
                &format!("{preferred}.preference.matchExpressions[0].values"),
                &format!("{preferred}.preference.matchExpressions[0].key"),
                &format!("{preferred}.preference.matchExpressions[1].values"),
                &format!("{preferred}.preference.matchFields[0].operator"),
                &format!("{preferred}.preference.matchFields[0].key"),
                &format!("{required}.labelSelector.matchLabels[a]"),
                &format!("{required}.labelSelector.matchExpressions[0].operator"),
                &format!("{required}.namespaces[0]"),
                &format!("{required}.topologyKey"),
                &format!("{apart}.weight"),
                &format!("{apart}.podAffinityTerm.topologyKey"),
                "tolerations[0].operator",
                "tolerations[0].effect",
                "topologySpreadConstraints[0].maxSkew",
                "topologySpreadConstraints[0].topologyKey",
                "topologySpreadConstraints[0].whenUnsatisfiable",
                "topologySpreadConstraints[0].nodeAffinityPolicy",
                "topologySpreadConstraints[2].topologyKey",
            ]
        );
    }
}
