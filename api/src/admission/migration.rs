//! VirtualMachineInstanceMigrations.
//!
//! Whether a migration can be made depends on its machine, which the caller looks up. What is found here may change
//! before the migration is stored: virt-controller judges again.

use serde_json::{Map, Value};

use crate::fields::{On, check_annotations};
use crate::migration::migratable;
use crate::names::{self, label};
use crate::problem::{Problems, Reason};
use crate::v1::{MigrationPriority, VirtualMachineInstance, VirtualMachineInstancePhase as Phase};

use super::ratchet::Change;
use super::{By, object_at, same};

const VMI_NAME: &str = "spec.vmiName";

/// Makes of a new migration what is stored: with its finalizer and the label by which its machine finds it, without a
/// status.
pub fn mutate_create(object: &mut Value) {
    let name = vmi_name(object).map(names::label_value);
    let Some(map) = object.as_object_mut() else { return };
    map.remove("status");
    let Some(metadata) = object_at(map, "metadata") else { return };
    let finalizers = metadata.entry("finalizers").or_insert(Value::Null);
    if finalizers.is_null() {
        *finalizers = Value::Array(Vec::new());
    }
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == names::MIGRATION_FINALIZER)
    {
        list.push(names::MIGRATION_FINALIZER.into());
    }
    if let (Some(labels), Some(name)) = (object_at(metadata, "labels"), name) {
        labels.insert(label::MIGRATION_VMI.into(), name.into());
    }
}

/// Name of the machine that a migration is for.
pub fn vmi_name(object: &Value) -> Option<&str> {
    object["spec"]["vmiName"].as_str().filter(|name| !name.is_empty())
}

/// Judges a new migration of `vmi`, of which the migrations `open` have not ended.
pub fn validate_create(object: &Value, vmi: Option<&VirtualMachineInstance>, open: &[String]) -> Problems {
    let mut problems = Problems::default();
    spec(&object["spec"], &mut problems);
    wishes(object, &mut problems);
    let Some(name) = vmi_name(object) else {
        problems
            .required(VMI_NAME.to_owned(), "the name of the VirtualMachineInstance to migrate is required");
        return problems;
    };
    let Some(vmi) = vmi else {
        let message = format!("the VirtualMachineInstance '{name}' does not exist in this namespace");
        problems.add(Reason::FieldValueNotFound, VMI_NAME, message);
        return problems;
    };
    let phase = vmi.status.phase.clone().unwrap_or_default();
    if vmi.metadata.deletion_timestamp.is_some() {
        let message = format!("the VirtualMachineInstance '{name}' is being deleted");
        problems.add(Reason::FieldValueInvalid, VMI_NAME, message);
    } else if matches!(phase, Phase::Succeeded | Phase::Failed) {
        let message = format!("the VirtualMachineInstance '{name}' is {phase}: it has ended");
        problems.add(Reason::FieldValueInvalid, VMI_NAME, message);
    } else if phase == Phase::Running
        && let Err(why) = migratable(vmi)
    {
        // Of a machine that does not run yet it is not known whether it can be migrated. virt-controller judges that when the
        // machine runs; until then its migration waits.
        let message = format!("the VirtualMachineInstance '{name}' cannot be migrated: {why}");
        problems.add(Reason::FieldValueInvalid, VMI_NAME, message);
    }
    if let Some(other) = open.first() {
        let message = format!(
            "the VirtualMachineInstance '{name}' is being migrated by '{other}': wait for its end, or delete it"
        );
        problems.add(Reason::FieldValueDuplicate, VMI_NAME, message);
    }
    problems
}

fn spec(spec: &Value, problems: &mut Problems) {
    for field in ["sendTo", "receive"] {
        if !spec[field].is_null() {
            problems.add(
                Reason::FieldValueNotSupported,
                format!("spec.{field}"),
                "not supported by podvirt: machines are not migrated between clusters",
            );
        }
    }
    if let Some(text) = spec["priority"].as_str().filter(|text| !text.is_empty())
        && matches!(MigrationPriority::from(text), MigrationPriority::Other(_))
    {
        problems.invalid(
            "spec.priority",
            text,
            "'system-critical', 'user-triggered' or 'system-maintenance' is allowed",
        );
    }
}

/// Notes annotations of a migration that ask for something that is not carried out.
fn wishes(object: &Value, problems: &mut Problems) {
    check_annotations(On::Migration, &object["metadata"]["annotations"], "metadata.annotations", problems);
}

/// Judges a change of a migration.
pub fn validate_update(old: &Value, new: &Value, by: By) -> Problems {
    let mut problems = Problems::default();
    if !same(&old["spec"], &new["spec"]) {
        problems.add(
            Reason::FieldValueNotSupported,
            "spec",
            "the specification of a VirtualMachineInstanceMigration cannot be changed: delete it and make another",
        );
    }
    let of = |object: &Value| object["metadata"]["labels"][label::MIGRATION_VMI].clone();
    if by == By::User && of(old) != of(new) {
        let message = format!("only podvirt may change the label {}", label::MIGRATION_VMI);
        problems.add(Reason::FieldValueNotSupported, "metadata.labels", message);
    }
    let mut asked = Problems::default();
    wishes(new, &mut asked);
    problems.0.extend(Change { old: &[old], new }.ratchet(asked).0);
    problems
}

/// A migration of the machine `vmi` with a name that the API server makes up.
pub fn of_machine(vmi: &str, generate_name: &str, added_node_selector: Map<String, Value>) -> Value {
    let mut object = serde_json::json!({
        "apiVersion": crate::API_VERSION,
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "generateName": generate_name,
            "labels": {label::MIGRATION_VMI: names::label_value(vmi)},
            "finalizers": [names::MIGRATION_FINALIZER],
        },
        "spec": {"vmiName": vmi},
    });
    if !added_node_selector.is_empty() {
        object["spec"]["addedNodeSelector"] = Value::Object(added_node_selector);
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vmi(phase: &str, migratable: Option<&str>) -> VirtualMachineInstance {
        let conditions: Vec<_> = migratable
            .map(
                |status| json!({"type": "LiveMigratable", "status": status, "message": "disk root is local"}),
            )
            .into_iter()
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"domain": {"devices": {}}},
            "status": {"phase": phase, "conditions": conditions}}))
        .unwrap()
    }

    fn lines(problems: &Problems) -> Vec<String> {
        problems.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_new_migration_gets_finalizer_and_label_and_loses_a_status() {
        let mut object =
            json!({"metadata": {"name": "m"}, "spec": {"vmiName": "web"}, "status": {"phase": "Running"}});
        mutate_create(&mut object);
        assert_eq!(
            object,
            json!({"metadata": {"name": "m", "finalizers": ["kubevirt.io/migrationJobFinalize"],
                "labels": {"kubevirt.io/vmi-name": "web"}}, "spec": {"vmiName": "web"}})
        );
        let once = object.clone();
        mutate_create(&mut object);
        assert_eq!(object, once);
    }

    #[test]
    fn a_machine_that_has_ended_cannot_be_migrated_or_is_already_is_not() {
        let object = json!({"spec": {"vmiName": "web"}});
        let judge = |vmi: Option<VirtualMachineInstance>, open: &[&str]| {
            let open: Vec<String> = open.iter().map(ToString::to_string).collect();
            lines(&validate_create(&object, vmi.as_ref(), &open))
        };
        assert_eq!(judge(Some(vmi("Running", Some("True"))), &[]), [""; 0]);
        assert_eq!(judge(Some(vmi("Scheduled", None)), &[]), [""; 0], "it waits");
        for (vmi, open, told) in [
            (None, &[][..], "does not exist"),
            (Some(vmi("Succeeded", Some("True"))), &[], "is Succeeded"),
            (Some(vmi("Running", Some("False"))), &[], "cannot be migrated: disk root is local"),
            (Some(vmi("Running", None)), &[], "not known yet"),
            (Some(vmi("Running", Some("True"))), &["other"], "being migrated by 'other'"),
        ] {
            let found = judge(vmi, open);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("spec.vmiName: ") && found[0].contains(told), "{found:?}");
        }
    }

    #[test]
    fn what_is_not_carried_out_is_told_by_its_field() {
        let object = json!({"spec": {"sendTo": {"migrationID": "x"}, "receive": {}, "priority": "now"}});
        let fields: Vec<String> =
            validate_create(&object, None, &[]).0.into_iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["spec.sendTo", "spec.receive", "spec.priority", "spec.vmiName"]);
    }

    #[test]
    fn the_specification_stands() {
        let old =
            json!({"metadata": {"labels": {"kubevirt.io/vmi-name": "web"}}, "spec": {"vmiName": "web"}});
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({"a": "b"});
        assert!(validate_update(&old, &new, By::User).is_empty());
        new["spec"]["priority"] = json!("system-critical");
        new["metadata"]["labels"] = json!({});
        assert_eq!(validate_update(&old, &new, By::User).0.len(), 2);
        assert_eq!(validate_update(&old, &new, By::Daemon).0.len(), 1, "a daemon may not change it either");
    }
}
