//! Instance types, preferences and machines that name them, as users send them.

use super::super::instancetype::{mutate, validate_instancetype, validate_preference};
use super::super::vm::{self, validate_update_with, validate_with};
use super::*;
use crate::instancetype::{Matcher, Specs, Subject};

const MANIFESTS: &str = include_str!("instancetypes.yaml");

fn documents() -> Vec<Value> {
    MANIFESTS.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

fn document(name: &str) -> Value {
    documents().into_iter().find(|object| object["metadata"]["name"] == name).unwrap()
}

/// What `object` names, of the documents.
fn named(object: &Value) -> Specs {
    let spec = |subject| {
        let matcher = Matcher::in_object(object, subject)?;
        let kind = subject.kind(matcher.scope(subject).unwrap());
        let is =
            |other: &Value| other["kind"] == kind && other["metadata"]["name"] == matcher.name().unwrap();
        documents().into_iter().find(is).map(|found| found["spec"].clone())
    };
    Specs {
        instancetype: spec(Subject::Instancetype).map(|spec| serde_json::from_value(spec).unwrap()),
        preference: spec(Subject::Preference).map(|spec| serde_json::from_value(spec).unwrap()),
    }
}

/// What is told of a machine after the mutating webhook has set its defaults.
fn judged(object: &Value) -> Vec<String> {
    let specs = named(object);
    let mut object = object.clone();
    mutate(&mut object, &specs);
    vm::mutate(&mut object, &config());
    lines(&validate_with(&object, &specs, &config(), By::User))
}

#[test]
fn the_kinds_are_taken() {
    for object in documents() {
        match object["kind"].as_str().unwrap() {
            kind if kind.ends_with("Instancetype") => {
                assert_eq!(validate_instancetype(&object), Problems::default());
            }
            kind if kind.ends_with("Preference") => {
                assert_eq!(validate_preference(&object), (Problems::default(), Vec::new()));
            }
            _ => {}
        }
    }
}

#[test]
fn an_instance_type_is_judged_as_upstream_does() {
    for (memory, expected) in [
        (json!({"guest": "1Gi", "overcommitPercent": 15}), None),
        (json!({"guest": "1Gi", "overcommitPercent": 101}), Some("must be in range between 0 and 100.")),
        (json!({"guest": "1Gi", "overcommitPercent": -1}), Some("must be in range between 0 and 100.")),
        (
            json!({"guest": "1Gi", "overcommitPercent": 15, "hugepages": {"pageSize": "2Mi"}}),
            Some("spec.memory.hugepages should not be requested together."),
        ),
    ] {
        let found = validate_instancetype(&json!({"spec": {"cpu": {"guest": 1}, "memory": memory}}));
        assert_eq!(found.0.len(), usize::from(expected.is_some()), "{memory}");
        for problem in found.0 {
            assert_eq!(problem.field, "spec.memory.overcommitPercent");
            assert!(problem.message.ends_with(expected.unwrap()), "{problem}");
        }
    }
}

#[test]
fn a_preference_is_judged_as_upstream_does() {
    let fields = |cpu: Value| {
        let (problems, warnings) = validate_preference(&json!({"spec": {"cpu": cpu}}));
        (problems.0.into_iter().map(|p| p.field).collect::<Vec<_>>(), warnings)
    };
    let no = |found: Vec<String>| (found, Vec::<String>::new());
    assert_eq!(fields(json!({"preferredCPUTopology": "spread"})), no(vec![]));
    assert_eq!(
        fields(json!({"preferredCPUTopology": "wide"})),
        no(vec!["spec.cpu.preferredCPUTopology".into()])
    );
    let spread = |options: Value| fields(json!({"preferredCPUTopology": "spread", "spreadOptions": options}));
    assert_eq!(spread(json!({"across": "Nodes"})), no(vec!["spec.cpu.spreadOptions.across".into()]));
    let ratio = "spec.cpu.spreadOptions.ratio".to_owned();
    assert_eq!(spread(json!({"across": "CoresThreads", "ratio": 3})), no(vec![ratio.clone()]));
    assert_eq!(spread(json!({"ratio": 0})), no(vec![ratio]));
    let (problems, warnings) = fields(json!({"preferredCPUTopology": "preferCores"}));
    assert!(problems.is_empty());
    let warning = "PreferredCPUTopology preferCores is deprecated for removal in a future release, please use cores instead";
    assert_eq!(warnings, [warning]);
}

#[test]
fn machines_are_taken_with_what_they_name() {
    for name in ["vm-clarge-virtio", "vm-cluster-csmall"] {
        assert_eq!(judged(&document(name)), [""; 0], "{name}");
    }
    // It may come later: virt-controller waits for it.
    assert_eq!(judged(&document("vm-without")), [""; 0]);
}

#[test]
fn a_field_of_the_instance_types_is_a_conflict() {
    let conflict = "spec.template.spec.domain.memory.guest: VM field(s) spec.template.spec.domain.memory.guest \
                    conflicts with selected instance type";
    assert_eq!(judged(&document("vm-csmall")), [conflict]);
}

#[test]
fn what_is_not_carried_out_is_refused_with_the_field_that_asks() {
    let told = judged(&document("vm-accelerated"));
    let by = "VirtualMachineClusterInstancetype \"accelerated\" asks for it by";
    for (field, source) in [
        ("domain.cpu.dedicatedCpuPlacement", "spec.cpu.dedicatedCPUPlacement"),
        ("domain.memory.hugepages", "spec.memory.hugepages"),
        ("domain.devices.gpus", "spec.gpus"),
    ] {
        let expected = format!("spec.template.spec.{field}: not supported by podvirt; {by} {source}");
        assert!(told.contains(&expected), "{told:#?}");
    }
    assert_eq!(told.len(), 3, "{told:#?}");
    let told = judged(&document("vm-clarge-windows"));
    assert_eq!(told.len(), 1, "{told:#?}");
    let by = "VirtualMachinePreference \"windows\" asks for it by spec.features.preferredHyperv";
    assert!(told[0].ends_with(by), "{told:#?}");
}

#[test]
fn annotations_of_an_instance_type_are_judged_as_the_templates() {
    let annotations = json!({"hooks.kubevirt.io/hookSidecars": "[{\"image\": \"i\"}]", "kubevirt.io/ignitiondata": "x", "a": "b"});
    let instancetype = json!({"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}, "annotations": annotations});
    let specs = Specs { instancetype: serde_json::from_value(instancetype).unwrap(), ..Specs::default() };
    let object = machine(json!({"runStrategy": "Halted", "instancetype": {"name": "noted"},
        "template": {"spec": {"domain": {"devices": {}}}}}));
    let told = lines(&validate_with(&object, &specs, &config(), By::User));
    for key in ["hooks.kubevirt.io/hookSidecars", "kubevirt.io/ignitiondata"] {
        let field = format!("spec.template.metadata.annotations[{key}]: ");
        let by = "VirtualMachineClusterInstancetype \"noted\" asks for it by spec.annotations";
        assert!(told.iter().any(|line| line.starts_with(&field) && line.ends_with(by)), "{key}: {told:#?}");
    }
    assert_eq!(told.len(), 2, "{told:#?}");
}

#[test]
fn a_machine_keeps_what_its_preference_says_of_its_hardware() {
    let preference = json!({"preferredArchitecture": "amd64", "machine": {"preferredMachineType": "pc-q35-9.0"},
        "preferredTerminationGracePeriodSeconds": 7});
    let specs = Specs { preference: serde_json::from_value(preference).unwrap(), ..Specs::default() };
    let mut object =
        machine(json!({"runStrategy": "Halted", "preference": {"name": "p"}, "template": {"spec": small()}}));
    mutate(&mut object, &specs);
    vm::mutate(&mut object, &config());
    let spec = &object["spec"]["template"]["spec"];
    assert_eq!(spec["domain"]["machine"]["type"], "pc-q35-9.0");
    assert_eq!(spec["terminationGracePeriodSeconds"], Value::Null, "it is the preference's");
    object["spec"]["template"]["spec"]["domain"]["machine"]["type"] = json!("q35");
    mutate(&mut object, &specs);
    assert_eq!(
        object["spec"]["template"]["spec"]["domain"]["machine"]["type"], "q35",
        "its owner's word stands"
    );
}

#[test]
fn matchers_are_judged_as_upstream_does() {
    let told = |matcher: Value| {
        let object =
            machine(json!({"runStrategy": "Halted", "preference": matcher, "template": {"spec": small()}}));
        fields(&validate_with(&object, &Specs::default(), &config(), By::User))
            .into_iter()
            .map(|(field, _)| field.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(told(json!({"name": "a", "kind": "VirtualMachinePreference"})), [""; 0]);
    assert_eq!(told(json!({})), ["spec.preference"]);
    assert_eq!(told(json!({"name": "a", "inferFromVolume": "v"})), ["spec.preference.name"]);
    assert_eq!(told(json!({"kind": "x", "name": "a"})), ["spec.preference.kind"]);
    // It becomes a part of a path.
    assert_eq!(told(json!({"name": "../../secrets/a"})), ["spec.preference.name"]);
    let policy = json!({"name": "a", "inferFromVolumeFailurePolicy": "Hope"});
    assert_eq!(told(policy), ["spec.preference.inferFromVolumeFailurePolicy"]);
    assert_eq!(told(json!({"name": "a", "size": 1})), ["spec.preference.size"]);
}

#[test]
fn a_change_is_judged_by_what_the_machine_names_then() {
    let update = |change: &dyn Fn(&mut Value)| {
        let old = document("vm-accelerated");
        let mut new = old.clone();
        change(&mut new);
        let specs = named(&new);
        lines(&validate_update_with(&old, &new, &specs, &config(), By::User)).len()
    };
    // As the cluster's administrator changed the instance type since.
    assert_eq!(update(&|new| new["spec"]["runStrategy"] = json!("Always")), 0);
    assert_eq!(update(&|new| new["spec"]["template"]["spec"]["hostname"] = json!("h")), 3);
    assert_eq!(update(&|new| new["spec"]["instancetype"]["name"] = json!("cluster-csmall")), 0);
    let mut old = document("vm-clarge-virtio");
    old["spec"]["instancetype"]["revisionName"] = json!("r");
    let mut new = old.clone();
    new["spec"]["instancetype"]["name"] = json!("csmall");
    let found = validate_update_with(&old, &new, &named(&new), &config(), By::User);
    assert_eq!(fields(&found), [("spec.instancetype.revisionName", Reason::FieldValueInvalid)]);
}
