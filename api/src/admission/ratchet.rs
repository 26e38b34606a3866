//! Changes of objects that older rules took.
//!
//! Rules become stricter with time, and objects that were taken before stay. A change that leaves what is wrong as it
//! is must pass, else their owner could neither stop nor relabel them. So of a changed object's problems those count
//! whose part of the object has changed:
//!
//! | a problem at | counts when this has changed |
//! |---|---|
//! | `spec.running`, `spec.runStrategy` | either of the two |
//! | `spec.template.spec...`, `spec.instancetype...`, `spec.preference...` | one of the three: they are judged together |
//! | `spec.template.metadata.x`, `metadata.x`, `spec.configuration.x`, `x` a map or a field | that field |
//! | `...annotations[key]` | that annotation |
//! | `spec.x...` | `spec.x` |
//!
//! What an older object lacks and a webhook would set now has not changed: the caller tells the object also as it would
//! be stored today, and a part that is as in either of the two has not changed.

use std::collections::HashMap;

use serde_json::Value;

use super::same;
use crate::problem::{Problem, Problems};

/// An object as it is and as it shall be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    /// As it is, in each of its forms; none of a new one.
    pub(super) old: &'a [&'a Value],
    /// As it shall be.
    pub(super) new: &'a Value,
}

impl Change<'_> {
    /// Leaves out the problems of parts that have not changed.
    pub(super) fn ratchet(&self, mut problems: Problems) -> Problems {
        // Many problems are of one part, which may be large.
        let mut touched = HashMap::new();
        problems.0.retain(|problem| {
            let parts = parts(&problem.field).into_iter().map(|part| part.join("\0")).collect::<Vec<_>>();
            *touched.entry(parts).or_insert_with(|| self.touches(problem))
        });
        problems
    }

    fn touches(&self, problem: &Problem) -> bool {
        let parts = parts(&problem.field);
        let as_in = |old: &&Value| parts.iter().all(|part| same(at(old, part), at(self.new, part)));
        !self.old.iter().any(as_in)
    }
}

/// The value at a path of names.
fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(object, |value, name| &value[*name])
}

/// The parts of an object that a problem is about.
fn parts(field: &str) -> Vec<Vec<&str>> {
    let (path, key) = match field.split_once('[') {
        Some((path, rest)) => (path, rest.split_once(']').map(|(key, _)| key)),
        None => (field, None),
    };
    let names: Vec<&str> = path.split('.').collect();
    let length = match names.as_slice() {
        ["spec", "running" | "runStrategy"] => {
            return vec![vec!["spec", "running"], vec!["spec", "runStrategy"]];
        }
        // Upstream's spelling of the templates; each has to be named by a volume.
        ["spec", "dataVolumeTemplate", ..] => {
            return vec![vec!["spec", "dataVolumeTemplates"], vec!["spec", "template", "spec", "volumes"]];
        }
        ["spec", "template", "metadata", ..] => 4,
        // Conflicts with an instance type are told by upstream's paths, which are not all the object's own.
        ["spec", "template", "spec", ..]
        | ["spec", "instancetype" | "preference", ..]
        | ["annotations" | "instancetype", ..] => {
            return vec![
                vec!["spec", "template", "spec"],
                vec!["spec", "instancetype"],
                vec!["spec", "preference"],
            ];
        }
        ["spec", "template" | "configuration", ..] => 3,
        _ => 2,
    };
    let mut part: Vec<&str> = names.into_iter().take(length).collect();
    if part.last() == Some(&"annotations") {
        part.extend(key);
    }
    vec![part]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::problem::Reason;

    fn counts(field: &str, old: &Value, new: &Value) -> bool {
        let mut problems = Problems::default();
        problems.add(Reason::FieldValueNotSupported, field, "not supported by podvirt");
        !Change { old: &[old], new }.ratchet(problems).is_empty()
    }

    #[test]
    fn a_problem_counts_when_its_part_of_the_object_has_changed() {
        let old = json!({
            "metadata": {"annotations": {"a.b/c": "1", "d": "1"}},
            "spec": {
                "runStrategy": "Always", "instancetype": {"name": "a"},
                "template": {"metadata": {"labels": {"x": "1"}}, "spec": {"domain": {"devices": {}}}},
                "dataVolumeTemplates": [{"metadata": {"name": "a"}}],
                "configuration": {"ksmConfiguration": {}, "machineType": "q35"},
            },
        });
        for (pointer, value, touched, untouched) in [
            ("/spec/runStrategy", json!("Halted"), "spec.running", "spec.instancetype"),
            ("/spec/instancetype/name", json!("b"), "spec.instancetype", "spec.runStrategy"),
            (
                "/spec/template/spec/domain/devices",
                json!({"watchdog": {}}),
                "spec.template.spec.volumes[0].name",
                "spec.template.metadata.labels",
            ),
            (
                "/spec/template/metadata/labels/x",
                json!("2"),
                "spec.template.metadata.labels",
                "spec.template.spec.domain",
            ),
            (
                "/spec/configuration/machineType",
                json!("virt"),
                "spec.configuration.machineType",
                "spec.configuration.ksmConfiguration.nodeLabelSelector",
            ),
            (
                "/spec/dataVolumeTemplates/0/metadata/name",
                json!("b"),
                "spec.dataVolumeTemplate[0].name",
                "spec.template.spec.domain",
            ),
            (
                "/metadata/annotations/a.b~1c",
                json!("2"),
                "metadata.annotations[a.b/c]",
                "metadata.annotations[d]",
            ),
        ] {
            let mut new = old.clone();
            *new.pointer_mut(pointer).unwrap() = value;
            assert!(counts(touched, &old, &new), "{pointer} {touched}");
            assert!(!counts(untouched, &old, &new), "{pointer} {untouched}");
            assert!(!counts(touched, &old, &old), "{touched} of an object that stays");
        }
    }

    #[test]
    fn every_problem_of_a_new_object_counts() {
        let mut problems = Problems::default();
        problems.add(Reason::FieldValueNotSupported, "spec.instancetype", "not supported by podvirt");
        let new = json!({"spec": {"instancetype": {}}});
        assert_eq!(Change { old: &[], new: &new }.ratchet(problems.clone()), problems);
    }
}
