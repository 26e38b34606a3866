//! VirtualMachinePools: a number of VirtualMachines from one template.

use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::duration;
use crate::fields::{Place, Resource, check};
use crate::names::limits::object_name;
use crate::problem::{Problem, Problems, Reason};
use crate::selector::Selector;
use crate::v1;

use super::ratchet::Change;
use super::replica_set::selected;
use super::vm::is_being_deleted;
use super::vmi::unreadable;
use super::{By, same, vm};

const TEMPLATE: &str = "spec.virtualMachineTemplate";
/// The ways of which a pool may choose one.
const WAYS: [&str; 3] = ["unmanaged", "opportunistic", "proactive"];

/// Judges a new pool.
pub fn validate(object: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    judge(Change { old: &[], new: object }, config, by)
}

/// Judges a change of a pool. What is wrong with it already and stays as it is does not count.
pub fn validate_update(old: &Value, new: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    if is_being_deleted(new) {
        // Only its finalizers go; an object that older rules took must not stay for ever.
        return Problems::default();
    }
    let mut problems = judge(Change { old: &[old], new }, config, by);
    if !same(&old["spec"]["selector"], &new["spec"]["selector"]) {
        problems.add(Reason::FieldValueInvalid, "spec.selector", "selector is immutable after creation.");
    }
    problems
}

fn judge(change: Change<'_>, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    let object = change.new;
    let mut problems = Problems::default();
    check(Resource::Pool, Place::Cluster, object, &mut problems);
    let spec = &object["spec"];
    for (strategy, field) in
        [("scaleInStrategy", "spec.scaleInStrategy"), ("updateStrategy", "spec.updateStrategy")]
    {
        one_way(&spec[strategy], field, &mut problems);
        let policy = &spec[strategy]["proactive"]["selectionPolicy"];
        selectors(
            &policy["selectors"],
            &format!("{field}.proactive.selectionPolicy.selectors"),
            &mut problems,
        );
    }
    max_unavailable(&spec["maxUnavailable"], &mut problems);
    let healing = &spec["autohealing"]["minFailingToStartDuration"];
    if let Some(text) = healing.as_str().filter(|text| duration::parse(text).is_none()) {
        let allowed = "a span of time such as 5m or 1h30m is allowed";
        problems.invalid("spec.autohealing.minFailingToStartDuration", text, allowed);
    }
    let template = &spec["virtualMachineTemplate"];
    if template.is_null() {
        problems.required(TEMPLATE, "a template is required");
        return change.ratchet(problems);
    }
    if problems.is_empty() {
        problems.0.extend(of_template(object, config, by));
    }
    if problems.is_empty()
        && let Err(error) = v1::VirtualMachinePool::deserialize(object)
    {
        problems = unreadable("spec", &error);
    }
    let mut problems = change.ratchet(problems);
    // It is about two fields, of which either may have changed.
    selected(&spec["selector"], &template["metadata"]["labels"], TEMPLATE, &mut problems);
    problems
}

/// What is wrong with the VirtualMachines that the template makes.
fn of_template(object: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Vec<Problem> {
    let template = &object["spec"]["virtualMachineTemplate"];
    let machine = json!({
        "apiVersion": v1::API_VERSION,
        "kind": "VirtualMachine",
        "metadata": {
            "name": object["metadata"]["name"].as_str().map(|pool| object_name(&format!("{pool}-0"))),
            "namespace": object["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    });
    let found = vm::validate(&machine, config, by).0.into_iter();
    found.map(|problem| Problem { field: format!("{TEMPLATE}.{}", problem.field), ..problem }).collect()
}

fn one_way(strategy: &Value, field: &str, problems: &mut Problems) {
    let given: Vec<&str> = WAYS.into_iter().filter(|way| !strategy[*way].is_null()).collect();
    if given.len() > 1 {
        let given = given.join(", ");
        let message = format!("only one strategy can be configured at a time: but found {given} strategies");
        problems.add(Reason::FieldValueInvalid, field, message);
    }
}

fn selectors(selectors: &Value, path: &str, problems: &mut Problems) {
    let mut judge = |field: &str, result: Result<(), String>| {
        if let Err(why) = result {
            problems.add(Reason::FieldValueInvalid, format!("{path}.{field}"), why);
        }
    };
    let labels = &selectors["labelSelector"];
    if !labels.is_null() {
        let read = LabelSelector::deserialize(labels).map_err(|error| error.to_string());
        let read = read.and_then(|one| Selector::of(Some(&one)).map_err(|error| error.to_string()));
        judge("labelSelector", read.map(drop));
    }
    let nodes = &selectors["nodeSelectorRequirementMatcher"];
    if !nodes.is_null() {
        let read = Vec::<NodeSelectorRequirement>::deserialize(nodes).map_err(|error| error.to_string());
        let read = read.and_then(|all| Selector::of_nodes(&all).map_err(|error| error.to_string()));
        judge("nodeSelectorRequirementMatcher", read.map(drop));
    }
}

fn max_unavailable(value: &Value, problems: &mut Problems) {
    let field = "spec.maxUnavailable";
    let allowed = "a number of at least 1, or a percentage from 1% to 100%, is allowed";
    let is_right = match value {
        Value::Null => true,
        Value::Number(number) => {
            number.as_i64().is_some_and(|number| (1..=i64::from(i32::MAX)).contains(&number))
        }
        Value::String(text) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u32>().ok());
            percent.is_some_and(|percent| (1..=100).contains(&percent))
        }
        _ => false,
    };
    if !is_right {
        let shown = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        problems.invalid(field, shown, allowed);
    }
}
