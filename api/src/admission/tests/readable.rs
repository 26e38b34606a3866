use super::*;
use crate::fields::{Place, Resource, check};

#[test]
fn a_machine_that_the_controllers_could_not_read_is_refused_also_while_it_is_deleted() {
    for (metadata, word) in [
        (json!({"name": 123}), "123"),
        (json!({"creationTimestamp": ""}), ""),
        (json!({"ownerReferences": "x"}), "x"),
        (json!({"deletionGracePeriodSeconds": 1.5}), "1.5"),
    ] {
        for deleted in [Value::Null, json!("2026-01-01T00:00:00Z")] {
            let mut vm = machine(json!({
                "runStrategy": "Halted", "template": {"metadata": metadata, "spec": small()},
            }));
            let mut found = Problems::default();
            check(Resource::Vm, Place::Cluster, &vm, &mut found);
            assert_eq!(found, Problems::default(), "the fields' table lets it pass");
            vm["metadata"]["deletionTimestamp"] = deleted;
            let problems = vm::validate(&vm, &config(), By::User);
            assert_eq!(
                fields(&problems),
                [("spec.template.metadata", Reason::FieldValueTypeInvalid)],
                "{metadata}"
            );
            assert!(problems.0[0].to_string().contains(word), "{problems:?}");
        }
    }
    let mut vm = machine(json!({"runStrategy": "Halted", "template": {
        "metadata": {"name": "x", "creationTimestamp": null}, "spec": small(),
    }}));
    assert_eq!(vm::validate(&vm, &config(), By::User), Problems::default());
    vm["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    vm["spec"]["running"] = json!("maybe");
    assert_eq!(fields(&vm::validate(&vm, &config(), By::User)), [("spec", Reason::FieldValueTypeInvalid)]);
}

#[test]
fn an_instance_does_not_become_unreadable_by_a_change() {
    let old = instance(small());
    let mut new = old.clone();
    new["spec"]["nodeSelector"] = json!([]);
    for by in [By::User, By::Daemon] {
        assert_eq!(fields(&vmi::validate_update(&old, &new, by)), [("spec", Reason::FieldValueTypeInvalid)]);
        assert_eq!(vmi::validate_update(&new, &new, by), Problems::default(), "its finalizers may go");
    }
}
