mod annotations;
mod instancetypes;
mod pool;
mod preset;
mod readable;
mod replica_set;
mod the_kubevirt_object;
mod virtual_machine;
mod vmi_create;
mod vmi_update;

use serde_json::{Value, json};

use super::*;
use crate::problem::{Problems, Reason};
use crate::v1::KubeVirtConfiguration;

fn config() -> KubeVirtConfiguration {
    KubeVirtConfiguration::default()
}

fn instance(spec: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "a", "namespace": "default", "labels": {"app": "a"}},
        "spec": spec,
    })
}

fn machine(spec: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": spec,
    })
}

fn small() -> Value {
    json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}})
}

fn lines(problems: &Problems) -> Vec<String> {
    problems.0.iter().map(ToString::to_string).collect()
}

fn fields(problems: &Problems) -> Vec<(&str, Reason)> {
    problems.0.iter().map(|p| (p.field.as_str(), p.reason)).collect()
}

#[test]
fn nothing_set_in_two_ways_is_the_same() {
    assert!(same(&json!({"a": null, "b": []}), &json!({})));
    assert!(!same(&json!({"a": {}}), &json!({})), "an empty object asks for something");
    assert!(!same(&json!([1]), &json!([1, 2])));
}
