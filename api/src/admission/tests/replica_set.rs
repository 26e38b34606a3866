use super::super::replica_set::{validate, validate_update};
use super::*;

fn set(selector: Value, template: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 2, "selector": selector, "template": template},
    })
}

fn right() -> Value {
    set(
        json!({"matchLabels": {"app": "web"}}),
        json!({"metadata": {"labels": {"app": "web"}}, "spec": small()}),
    )
}

#[test]
fn a_set_whose_selector_finds_its_instances_is_taken() {
    assert_eq!(validate(&right(), &config(), By::User), Problems::default());
}

#[test]
fn a_set_that_would_not_find_what_it_makes_is_refused() {
    let labels = json!({"metadata": {"labels": {"app": "web"}}, "spec": small()});
    for (selector, template, field) in [
        (json!({"matchLabels": {"app": "db"}}), labels.clone(), "spec.selector"),
        (Value::Null, labels.clone(), "spec.selector"),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w"]}]}),
            labels.clone(),
            "spec.selector",
        ),
        (json!({"matchLabels": 7}), labels, "spec.selector"),
        (json!({}), json!({"spec": small()}), "spec.template.metadata.labels"),
        (json!({}), Value::Null, "spec.template"),
    ] {
        let found = validate(&set(selector.clone(), template), &config(), By::User);
        assert_eq!(found.0.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), [field], "{selector}");
    }
    // Also when the labels change under a selector that stays.
    let mut new = right();
    new["spec"]["template"]["metadata"]["labels"] = json!({"app": "db"});
    assert_eq!(
        fields(&validate_update(&right(), &new, &config(), By::User)),
        [("spec.selector", Reason::FieldValueInvalid)]
    );
}

#[test]
fn problems_of_the_template_have_its_path() {
    let mut object = right();
    let template = &mut object["spec"]["template"];
    template["spec"]["domain"]["devices"]["gpus"] = json!([{"name": "g"}]);
    template["metadata"]["labels"]["kubevirt.io/nodeName"] = json!("n");
    assert_eq!(
        fields(&validate(&object, &config(), By::User)),
        [
            ("spec.template.spec.domain.devices.gpus", Reason::FieldValueNotSupported),
            ("spec.template.metadata.labels", Reason::FieldValueNotSupported),
        ]
    );
    let mut object = right();
    object["spec"]["template"]["spec"]["domain"]["devices"]["disks"] = json!([{"name": "d"}]);
    object["spec"]["replicas"] = json!(-1);
    assert_eq!(
        fields(&validate(&object, &config(), By::User)),
        [
            ("spec.replicas", Reason::FieldValueInvalid),
            ("spec.template.spec.domain.devices.disks[0].name", Reason::FieldValueNotFound),
        ]
    );
}

#[test]
fn a_set_that_older_rules_took_can_be_scaled_and_let_go() {
    let mut old = right();
    old["spec"]["template"]["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
    let mut new = old.clone();
    new["spec"]["replicas"] = json!(0);
    assert_eq!(validate_update(&old, &new, &config(), By::User), Problems::default());
    new["spec"]["template"]["spec"]["hostname"] = json!("h");
    assert!(!validate_update(&old, &new, &config(), By::User).is_empty());
    new["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(validate_update(&old, &new, &config(), By::User), Problems::default());
}
