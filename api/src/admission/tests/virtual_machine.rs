use super::super::vm::{mutate, validate, validate_update};
use super::*;

#[test]
fn a_change_is_judged_by_the_parts_that_it_changes() {
    let mut old = machine(json!({
        "runStrategy": "Always", "instancetype": {"name": "a"}, "template": {"spec": small()},
    }));
    old["spec"]["template"]["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
    let update = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        mutate(&mut new, &config());
        let found = validate_update(&old, &new, &config(), By::User);
        found.0.iter().map(|p| p.field.clone()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(update(&|new| new["spec"]["runStrategy"] = json!("Halted")), none);
    assert_eq!(update(&|new| new["metadata"]["labels"] = json!({"a": "b"})), none);
    assert_eq!(update(&|new| new["spec"]["running"] = json!(true)), ["spec.running"]);
    assert_eq!(
        update(&|new| new["spec"]["instancetype"]["name"] = json!("b")),
        ["spec.template.spec.domain.devices.clientPassthrough"]
    );
    assert_eq!(
        update(&|new| new["spec"]["template"]["spec"]["hostname"] = json!("h")),
        ["spec.template.spec.domain.devices.clientPassthrough"]
    );
    assert_eq!(update(&|new| new["spec"]["template"] = Value::Null), ["spec.template"]);
}

#[test]
fn the_template_keeps_its_machine_type_and_has_a_longer_grace_period() {
    let mut object = machine(json!({"runStrategy": "Always", "template": {"spec": small()}}));
    mutate(&mut object, &config());
    let spec = &object["spec"]["template"]["spec"];
    assert_eq!(spec["domain"]["machine"]["type"], "q35");
    assert_eq!(spec["terminationGracePeriodSeconds"], 180);
    assert_eq!(spec["architecture"], "amd64");
    assert_eq!(spec["domain"].get("cpu"), None, "set with each instance");
    assert_eq!(validate(&object, &config(), By::User), Problems::default());
}

#[test]
fn a_machine_may_be_kept_without_memory_and_its_instance_may_not() {
    let spec = json!({"domain": {"devices": {}}});
    let object = machine(json!({"runStrategy": "Halted", "template": {"spec": spec}}));
    assert_eq!(validate(&object, &config(), By::User), Problems::default());
    let instance = vmi::validate_create(&instance(spec), &config(), By::User);
    assert_eq!(fields(&instance), [("spec.domain.memory.guest", Reason::FieldValueRequired)]);
}

#[test]
fn a_status_asks_for_no_volume() {
    let old = machine(json!({"runStrategy": "Halted", "template": {"spec": small()}}));
    let with = |status: Value| {
        let mut object = old.clone();
        object["status"] = status;
        object
    };
    let requests = json!({"volumeRequests": [{"removeVolumeOptions": {"name": "a"}}]});
    let judged = |old: &Value, new: &Value, by: By| {
        super::super::vm::validate_status(old, new, by).0.into_iter().map(|p| p.field).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(judged(&old, &with(requests.clone()), By::User), ["status.volumeRequests"]);
    assert_eq!(judged(&old, &with(requests.clone()), By::Daemon), none);
    assert_eq!(judged(&with(requests.clone()), &with(requests), By::User), none, "it was there before");
    assert_eq!(
        judged(&old, &with(json!({"printableStatus": "Stopped", "volumeRequests": []})), By::User),
        none
    );
    assert_eq!(judged(&old, &with(json!({"ready": "x"})), By::User), ["status"]);
}

#[test]
fn run_strategy_and_running_exclude_each_other_and_one_is_required() {
    let template = json!({"spec": small()});
    let cases = [
        (json!({"running": true}), vec![]),
        (json!({"runStrategy": "Manual"}), vec![]),
        (json!({}), vec![("spec.runStrategy", Reason::FieldValueRequired)]),
        (
            json!({"running": false, "runStrategy": "Halted"}),
            vec![("spec.running", Reason::FieldValueInvalid)],
        ),
        (
            json!({"runStrategy": "WaitAsReceiver"}),
            vec![("spec.runStrategy", Reason::FieldValueNotSupported)],
        ),
    ];
    for (mut spec, wanted) in cases {
        spec["template"] = template.clone();
        assert_eq!(fields(&validate(&machine(spec.clone()), &config(), By::User)), wanted, "{spec}");
    }
}

#[test]
fn problems_of_the_template_have_its_path() {
    let template = json!({
        "metadata": {"labels": {"kubevirt.io/nodeName": "n"}},
        "spec": {
            "domain": {"memory": {"guest": "1"}, "devices": {"disks": [{"name": "d"}]}},
        },
    });
    let object =
        machine(json!({"runStrategy": "Halted", "template": template, "updateVolumesStrategy": "Elsewhere"}));
    assert_eq!(
        fields(&validate(&object, &config(), By::User)),
        [
            ("spec.updateVolumesStrategy", Reason::FieldValueNotSupported),
            ("spec.template.metadata.labels", Reason::FieldValueNotSupported),
            ("spec.template.spec.domain.memory.guest", Reason::FieldValueInvalid),
            ("spec.template.spec.domain.devices.disks[0].name", Reason::FieldValueNotFound),
        ]
    );
    let object = machine(json!({"runStrategy": "Halted"}));
    assert_eq!(
        fields(&validate(&object, &config(), By::User)),
        [("spec.template", Reason::FieldValueRequired)]
    );
}

#[test]
fn an_object_that_is_being_deleted_is_let_go() {
    let mut object = machine(json!({"instancetype": {}}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(validate(&object, &config(), By::User), Problems::default());
    // Also one that the controllers cannot read; it must not become such a one now.
    let mut unreadable = object.clone();
    unreadable["spec"]["template"] = json!({"spec": {"domain": 7}});
    let mut let_go = unreadable.clone();
    let_go["metadata"]["finalizers"] = json!([]);
    assert_eq!(validate_update(&unreadable, &let_go, &config(), By::User), Problems::default());
    assert!(!validate_update(&object, &unreadable, &config(), By::User).is_empty());
}
