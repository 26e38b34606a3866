//! `spec.dataVolumeTemplates` of a VirtualMachine, judged as upstream does: fields have upstream's paths. What a DataVolume's
//! specification says beyond that is CDI's to judge.

use std::collections::HashSet;

use serde_json::Value;

use crate::budget::weigh;
use crate::problem::{Problems, Reason};
use crate::v1::MAX_TEMPLATES_BYTES;
use crate::validate::is_dns_subdomain;

/// Most bytes of memory that a template takes, by [`weigh`]: the controllers hold all machines' templates, whose specifications
/// have no schema of their own. A DataVolume has some ten objects and a few texts.
const MAX_TEMPLATE_BYTES: usize = 64 << 10;

/// Judges what the templates of a machine, which stand at `path`, take of memory together.
pub(super) fn check_weight(templates: &Value, path: &str, problems: &mut Problems) {
    let bytes = weigh(templates);
    if bytes > MAX_TEMPLATES_BYTES {
        let message = format!(
            "the templates take {bytes} bytes of memory together; at most {MAX_TEMPLATES_BYTES} are allowed"
        );
        problems.add(Reason::FieldValueInvalid, path, message);
    }
}

/// Judges the templates of the machine `object`.
pub(super) fn check(object: &Value, problems: &mut Problems) {
    let before = problems.0.len();
    each(object, problems);
    // One that is too large alone is told by its own path.
    if problems.0.len() == before {
        check_weight(&object["spec"]["dataVolumeTemplates"], "spec.dataVolumeTemplates", problems);
    }
}

fn each(object: &Value, problems: &mut Problems) {
    let templates = object["spec"]["dataVolumeTemplates"].as_array();
    let referenced = referenced(object);
    for (n, template) in templates.into_iter().flatten().enumerate() {
        // Upstream's own spelling.
        let path = format!("spec.dataVolumeTemplate[{n}]");
        let own = &object["metadata"]["namespace"];
        let named = &template["metadata"]["namespace"];
        if named.as_str().is_some_and(|namespace| !namespace.is_empty()) && !own.is_null() && named != own {
            problems.add(
                Reason::FieldValueInvalid,
                format!("spec.dataVolumeTemplates[{n}]"),
                format!("the DataVolume's namespace {named} differs from the VirtualMachine's, {own}"),
            );
        }
        let bytes = weigh(template);
        if bytes > MAX_TEMPLATE_BYTES {
            problems.add(
                Reason::FieldValueInvalid,
                format!("spec.dataVolumeTemplates[{n}].spec"),
                format!(
                    "the template takes {bytes} bytes of memory; at most {MAX_TEMPLATE_BYTES} are allowed"
                ),
            );
            continue;
        }
        let before = problems.0.len();
        one(template, &path, problems);
        if problems.0.len() == before
            && !template["metadata"]["name"].as_str().is_some_and(|name| referenced.contains(name))
        {
            problems.required(
                path,
                "a volume of spec.template with dataVolume.name or persistentVolumeClaim.claimName of this name is required",
            );
        }
    }
}

fn one(template: &Value, path: &str, problems: &mut Problems) {
    let name = template["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        problems.required(format!("{path}.name"), "a name is required");
        return;
    }
    if !is_dns_subdomain(name) {
        problems.invalid(format!("{path}.name"), name, "at most 253 of a-z, 0-9, '-' and '.' are allowed");
        return;
    }
    let given = |value: &Value| !value.is_null();
    let spec = &template["spec"];
    let claim = match (given(&spec["pvc"]), given(&spec["storage"])) {
        (true, false) => &spec["pvc"],
        (false, true) => &spec["storage"],
        (both, _) => {
            let message =
                if both { "either pvc or storage is allowed" } else { "pvc or storage is required" };
            problems.add(Reason::FieldValueInvalid, format!("{path}.PVC.Storage"), message);
            return;
        }
    };
    let is_populated = given(&claim["dataSource"]) || given(&claim["dataSourceRef"]);
    let has_source = given(&spec["source"]) || given(&spec["sourceRef"]);
    if is_populated && has_source {
        let message = "source and sourceRef are not allowed beside the claim's dataSource or dataSourceRef";
        problems.add(Reason::FieldValueInvalid, format!("{path}.source"), message);
        return;
    }
    if !is_populated && !has_source {
        let message = "source or sourceRef, or the claim's dataSource or dataSourceRef, is required";
        problems.add(Reason::FieldValueInvalid, format!("{path}.source.sourceRef"), message);
        return;
    }
    if let Some(source) = spec["source"].as_object() {
        let sources = source.values().filter(|value| given(value)).count();
        if sources != 1 {
            let message = format!("one source is allowed; there are {sources}");
            problems.add(Reason::FieldValueInvalid, format!("{path}.source"), message);
        }
    }
}

/// Names of the DataVolumes and claims that the machine's volumes name.
fn referenced(object: &Value) -> HashSet<&str> {
    let volumes = object["spec"]["template"]["spec"]["volumes"].as_array();
    let names = volumes
        .into_iter()
        .flatten()
        .flat_map(|volume| [&volume["dataVolume"]["name"], &volume["persistentVolumeClaim"]["claimName"]]);
    names.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(template: Value) -> Vec<(String, Reason)> {
        let object = json!({"metadata": {"namespace": "shop"}, "spec": {
            "dataVolumeTemplates": [template],
            "template": {"spec": {"volumes": [{"name": "a", "dataVolume": {"name": "root"}}]}},
        }});
        let mut problems = Problems::default();
        check(&object, &mut problems);
        problems.0.into_iter().map(|problem| (problem.field, problem.reason)).collect()
    }

    fn template(name: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name}, "spec": spec})
    }

    #[test]
    fn templates_that_upstream_takes_are_taken() {
        for spec in [
            json!({"source": {"registry": {"url": "docker://x"}}, "storage": {}}),
            json!({"sourceRef": {"kind": "DataSource", "name": "debian"}, "pvc": {}}),
            json!({"storage": {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}}),
        ] {
            assert_eq!(found(template("root", spec.clone())), [], "{spec}");
        }
    }

    #[test]
    fn a_template_costs_a_cache_little() {
        let objects = json!(vec![json!({"a": 0}); 60_000]);
        let large = template("root", json!({"source": {"blank": {}}, "storage": {}, "x": objects}));
        assert_eq!(
            found(large),
            [("spec.dataVolumeTemplates[0].spec".to_owned(), Reason::FieldValueInvalid)]
        );
        let text = json!({"source": {"http": {"url": "x".repeat(32 << 10)}}, "storage": {}});
        assert_eq!(found(template("root", text.clone())), []);
        let mut object = json!({"spec": {"dataVolumeTemplates": vec![template("root", text); 40]}});
        let volumes = json!([{"name": "a", "dataVolume": {"name": "root"}}]);
        object["spec"]["template"]["spec"]["volumes"] = volumes;
        let mut problems = Problems::default();
        check(&object, &mut problems);
        assert_eq!(problems.0.len(), 1, "{problems}");
        assert_eq!(problems.0[0].field, "spec.dataVolumeTemplates");
    }

    #[test]
    fn what_is_wrong_is_told_by_upstreams_paths() {
        let blank = json!({"blank": {}});
        for (given, field, reason) in [
            (template("", json!({})), "spec.dataVolumeTemplate[0].name", Reason::FieldValueRequired),
            (template("A_", json!({})), "spec.dataVolumeTemplate[0].name", Reason::FieldValueInvalid),
            (
                template("root", json!({"source": blank})),
                "spec.dataVolumeTemplate[0].PVC.Storage",
                Reason::FieldValueInvalid,
            ),
            (
                template("root", json!({"source": blank, "pvc": {}, "storage": {}})),
                "spec.dataVolumeTemplate[0].PVC.Storage",
                Reason::FieldValueInvalid,
            ),
            (
                template("root", json!({"storage": {}})),
                "spec.dataVolumeTemplate[0].source.sourceRef",
                Reason::FieldValueInvalid,
            ),
            (
                template("root", json!({"storage": {"dataSource": {}}, "source": blank})),
                "spec.dataVolumeTemplate[0].source",
                Reason::FieldValueInvalid,
            ),
            (
                template("root", json!({"storage": {}, "source": {"blank": {}, "upload": {}}})),
                "spec.dataVolumeTemplate[0].source",
                Reason::FieldValueInvalid,
            ),
            (
                template("other", json!({"storage": {}, "source": blank})),
                "spec.dataVolumeTemplate[0]",
                Reason::FieldValueRequired,
            ),
            (
                json!({"metadata": {"name": "root", "namespace": "other"}, "spec": {"storage": {}, "source": blank}}),
                "spec.dataVolumeTemplates[0]",
                Reason::FieldValueInvalid,
            ),
        ] {
            assert_eq!(found(given.clone()), [(field.to_owned(), reason)], "{given}");
        }
    }
}
