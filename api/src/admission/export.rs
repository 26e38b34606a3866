//! VirtualMachineExports, in upstream's fields and words.

use serde_json::Value;

use super::same;
use crate::problem::{Problems, Reason};
use crate::{backup, duration, gates, snapshot, v1};

/// Kinds that can be exported: the kind, how messages call its name and its group, and the group.
const SOURCES: [(&str, &str, &str, &str); 4] = [
    ("PersistentVolumeClaim", "PVC", "PVC", ""),
    ("VirtualMachineSnapshot", "VMSnapshot", "VMSnapshot", snapshot::GROUP),
    ("VirtualMachine", "Virtual Machine", "VM", v1::GROUP),
    (backup::KIND, backup::KIND, backup::KIND, backup::GROUP),
];

/// Judges a new export. The gate of backups is before a backup as a source as well.
pub fn validate_create(object: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    let mut problems = Problems::default();
    let source = &object["spec"]["source"];
    let text = |field: &str| source[field].as_str().unwrap_or_default();
    match SOURCES.iter().find(|(kind, ..)| *kind == text("kind")) {
        Some((_, named, called, group)) => {
            let mut invalid =
                |field: &str, message: String| problems.add(Reason::FieldValueInvalid, field, message);
            if text("name").is_empty() {
                invalid("spec.source.name", format!("{named} name must not be empty"));
            }
            if text("apiGroup") != *group {
                let allowed = if group.is_empty() { "missing or blank" } else { group };
                invalid("spec.source.APIGroup", format!("{called} API group must be {allowed}"));
            }
        }
        None => problems.add(Reason::FieldValueInvalid, "spec.source.kind", "invalid kind"),
    }
    if text("kind") == backup::KIND && !gates::is_open(config, backup::GATE) {
        let message = format!("{} feature gate not enabled", backup::GATE);
        problems.add(Reason::FieldValueInvalid, "spec.source.kind", message);
    }
    if let Some(ttl) = object["spec"]["ttlDuration"].as_str()
        && duration::parse(ttl).is_none()
    {
        problems.invalid("spec.ttlDuration", ttl, "a span of time is, like 30m or 2h");
    }
    super::snapshot::readable::<v1::VirtualMachineExport>(object, &mut problems);
    problems
}

/// Judges a change of an export: the specification stays.
pub fn validate_update(old: &Value, new: &Value) -> Problems {
    let mut problems = Problems::default();
    if !same(&old["spec"], &new["spec"]) {
        problems.add(Reason::FieldValueInvalid, "spec", "spec in immutable after creation");
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(gates: &[&str]) -> v1::KubeVirtConfiguration {
        serde_json::from_value(json!({"developerConfiguration": {"featureGates": gates}})).unwrap()
    }

    fn told(spec: Value) -> Vec<String> {
        let problems = validate_create(&json!({"spec": spec}), &config(&[backup::GATE]));
        problems.0.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
    }

    #[test]
    fn sources_are_judged_in_upstreams_words() {
        for (spec, found) in [
            (json!({"source": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "c"}}), vec![]),
            (json!({"source": {"kind": "PersistentVolumeClaim", "name": "c"}, "ttlDuration": "10m"}), vec![]),
            (
                json!({"source": {"apiGroup": "kubevirt.io", "kind": "PersistentVolumeClaim"}}),
                vec![
                    "spec.source.name: PVC name must not be empty",
                    "spec.source.APIGroup: PVC API group must be missing or blank",
                ],
            ),
            (
                json!({"source": {"kind": "VirtualMachine", "name": "m"}}),
                vec!["spec.source.APIGroup: VM API group must be kubevirt.io"],
            ),
            (
                json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachineSnapshot"}}),
                vec![
                    "spec.source.name: VMSnapshot name must not be empty",
                    "spec.source.APIGroup: VMSnapshot API group must be snapshot.kubevirt.io",
                ],
            ),
            (
                json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachineBackup"}}),
                vec![
                    "spec.source.name: VirtualMachineBackup name must not be empty",
                    "spec.source.APIGroup: VirtualMachineBackup API group must be backup.kubevirt.io",
                ],
            ),
            (
                json!({"source": {"apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackup", "name": "b"}}),
                vec![],
            ),
            (json!({"source": {"kind": "Pod", "name": "p"}}), vec!["spec.source.kind: invalid kind"]),
        ] {
            assert_eq!(told(spec.clone()), found, "{spec}");
        }
        let ttl =
            told(json!({"source": {"kind": "PersistentVolumeClaim", "name": "c"}, "ttlDuration": "soon"}));
        assert!(ttl[0].starts_with("spec.ttlDuration"), "{ttl:?}");
    }

    #[test]
    fn the_gate_of_backups_is_before_an_export_of_one() {
        let of = |kind: &str, group: &str| json!({"spec": {"source": {"apiGroup": group, "kind": kind, "name": "x"}}});
        let closed = validate_create(&of(backup::KIND, backup::GROUP), &config(&[]));
        assert_eq!(closed.0[0].field, "spec.source.kind");
        assert_eq!(closed.0[0].message, "IncrementalBackup feature gate not enabled");
        assert!(validate_create(&of("VirtualMachine", v1::GROUP), &config(&[])).is_empty());
    }

    #[test]
    fn the_specification_stays() {
        let (old, new) = (json!({"spec": {"ttlDuration": "1h"}}), json!({"spec": {"ttlDuration": "2h"}}));
        assert_eq!(validate_update(&old, &new).0[0].message, "spec in immutable after creation");
        assert!(validate_update(&old, &old).is_empty());
    }
}
