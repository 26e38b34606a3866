//! VirtualMachineInstanceReplicaSets: a number of instances from one template.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize as _;
use serde_json::Value;

use crate::fields::{On, Place, Resource, check, check_annotations};
use crate::hooks;
use crate::problem::{Problems, Reason};
use crate::selector::{Labels, Selector};
use crate::v1;

use super::By;
use super::ratchet::Change;
use super::vm::{is_being_deleted, of_template};
use super::vmi::{reserved_labels, unreadable};

/// Judges a new replica set.
pub fn validate(object: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    judge(Change { old: &[], new: object }, config, by)
}

/// Judges a change of a replica set. What is wrong with it already and stays as it is does not count.
pub fn validate_update(old: &Value, new: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    if is_being_deleted(new) {
        // Only its finalizers go; an object that older rules took must not stay for ever.
        return Problems::default();
    }
    judge(Change { old: &[old], new }, config, by)
}

fn judge(change: Change<'_>, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    let object = change.new;
    let mut problems = Problems::default();
    check(Resource::ReplicaSet, Place::Cluster, object, &mut problems);
    let template = &object["spec"]["template"];
    if template.is_null() {
        problems.required("spec.template", "a template is required");
        return change.ratchet(problems);
    }
    let metadata = &template["metadata"];
    if by == By::User {
        reserved_labels(&metadata["labels"], "spec.template.metadata.labels", &mut problems);
    }
    let wishes = &metadata["annotations"];
    check_annotations(On::Vmi, wishes, "spec.template.metadata.annotations", &mut problems);
    hooks::check_allowed(wishes, "spec.template.metadata.annotations", config, &mut problems);
    let mut problems = change.ratchet(problems);
    // It is about two fields, of which either may have changed.
    selected(&object["spec"]["selector"], &metadata["labels"], "spec.template", &mut problems);
    if problems.0.iter().any(|p| p.field.starts_with("spec.template.spec")) {
        return problems;
    }
    let mut found = Problems(of_template(template, &Value::Null, object, config));
    for problem in &mut found.0 {
        problem.field = format!("spec.template.{}", problem.field);
    }
    if let Err(error) = v1::VirtualMachineInstanceReplicaSet::deserialize(object)
        && found.is_empty()
        && problems.is_empty()
    {
        found = unreadable("spec", &error);
    }
    problems.0.extend(change.ratchet(found).0);
    problems
}

/// Judges whether the selector of an object finds what the object makes from its template at `path`: else it would make
/// objects without end.
pub(super) fn selected(selector: &Value, labels: &Value, path: &str, problems: &mut Problems) {
    const FIELD: &str = "spec.selector";
    if selector.is_null() {
        problems.required(FIELD, format!("a selector that matches {path}.metadata.labels is required"));
        return;
    }
    let given = match LabelSelector::deserialize(selector) {
        Ok(given) => given,
        Err(error) => {
            problems.0.extend(unreadable(FIELD, &error).0);
            return;
        }
    };
    let labels = Labels::deserialize(labels).unwrap_or_default();
    if labels.is_empty() {
        let field = format!("{path}.metadata.labels");
        problems.required(
            field,
            "selector does not match labels: a label is required, by which it finds what is made",
        );
        return;
    }
    match Selector::of(Some(&given)) {
        Ok(selector) if selector.matches(&labels) => {}
        Ok(_) => problems.add(
            Reason::FieldValueInvalid,
            FIELD,
            format!("selector does not match labels: it has to match {path}.metadata.labels"),
        ),
        Err(error) => problems.add(Reason::FieldValueInvalid, FIELD, error.to_string()),
    }
}
