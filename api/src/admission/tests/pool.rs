use super::super::pool::{validate, validate_update};
use super::*;

fn pool(more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"runStrategy": "Always", "template": {"spec": small()}}}},
    });
    for (field, value) in more.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

fn found(more: &Value) -> Vec<String> {
    validate(&pool(more), &config(), By::User).0.iter().map(|p| p.field.clone()).collect()
}

#[test]
fn what_a_pool_can_ask_for_is_taken() {
    let policy = json!({"sortPolicy": "Oldest", "selectors": {
        "labelSelector": {"matchLabels": {"a": "b"}},
        "nodeSelectorRequirementMatcher": [{"key": "cpus", "operator": "Gt", "values": ["4"]}]}});
    for more in [
        json!({}),
        json!({"paused": true, "maxUnavailable": 1, "autohealing": {}}),
        json!({"maxUnavailable": "50%", "nameGeneration": {"appendIndexToConfigMapRefs": true}}),
        json!({"scaleInStrategy": {"proactive": {"selectionPolicy": policy, "statePreservation": "Disabled"}}}),
        json!({"updateStrategy": {"proactive": {"selectionPolicy": policy}}}),
        json!({"updateStrategy": {"opportunistic": {}}, "scaleInStrategy": {"unmanaged": {}}}),
        json!({"autohealing": {"startUpFailureThreshold": 1, "minFailingToStartDuration": "1h30m"}}),
    ] {
        assert_eq!(found(&more), [""; 0], "{more}");
    }
}

#[test]
fn a_pool_may_have_the_longest_name() {
    let mut longest = pool(&json!({}));
    longest["metadata"]["name"] = "w".repeat(253).into();
    let problems = validate(&longest, &config(), By::User).0;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn what_a_pool_cannot_ask_for_is_told_with_its_path() {
    for (more, field) in [
        (json!({"replicas": -1}), "spec.replicas"),
        (json!({"maxUnavailable": 0}), "spec.maxUnavailable"),
        (json!({"maxUnavailable": "50"}), "spec.maxUnavailable"),
        (json!({"maxUnavailable": "101%"}), "spec.maxUnavailable"),
        (json!({"maxUnavailable": true}), "spec.maxUnavailable"),
        (json!({"scaleInStrategy": {"unmanaged": {}, "proactive": {}}}), "spec.scaleInStrategy"),
        (json!({"updateStrategy": {"opportunistic": {}, "proactive": {}}}), "spec.updateStrategy"),
        (
            json!({"scaleInStrategy": {"proactive": {"statePreservation": "Offline"}}}),
            "spec.scaleInStrategy.proactive.statePreservation",
        ),
        (
            json!({"scaleInStrategy": {"opportunistic": {"statePreservation": "Online"}}}),
            "spec.scaleInStrategy.opportunistic.statePreservation",
        ),
        (
            json!({"updateStrategy": {"proactive": {"selectionPolicy": {"sortPolicy": "Largest"}}}}),
            "spec.updateStrategy.proactive.selectionPolicy.sortPolicy",
        ),
        (
            json!({"updateStrategy": {"proactive": {"selectionPolicy": {"selectors": {"labelSelector": {"matchLabels": {"a b": "c"}}}}}}}),
            "spec.updateStrategy.proactive.selectionPolicy.selectors.labelSelector",
        ),
        (
            json!({"scaleInStrategy": {"proactive": {"selectionPolicy": {"selectors": {"nodeSelectorRequirementMatcher": [{"key": "a", "operator": "In"}]}}}}}),
            "spec.scaleInStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher",
        ),
        (
            json!({"autohealing": {"minFailingToStartDuration": "five"}}),
            "spec.autohealing.minFailingToStartDuration",
        ),
        (json!({"selector": {"matchLabels": {"app": "db"}}}), "spec.selector"),
        (json!({"virtualMachineTemplate": null}), "spec.virtualMachineTemplate"),
    ] {
        assert_eq!(found(&more), [field], "{more}");
    }
}

#[test]
fn problems_of_the_template_have_its_path() {
    let template = |spec: Value| json!({"virtualMachineTemplate": {"metadata": {"labels": {"app": "web"}}, "spec": spec}});
    for (spec, field) in [
        (json!({"template": {"spec": small()}}), "spec.virtualMachineTemplate.spec.runStrategy"),
        (
            json!({"runStrategy": "Always", "updateVolumesStrategy": "Elsewhere", "template": {"spec": small()}}),
            "spec.virtualMachineTemplate.spec.updateVolumesStrategy",
        ),
        (
            json!({"runStrategy": "Always", "dataVolumeTemplates": [{"spec": {}}], "template": {"spec": small()}}),
            "spec.virtualMachineTemplate.spec.dataVolumeTemplate[0].name",
        ),
        (
            json!({"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {"gpus": [{"name": "g"}]}}}}}),
            "spec.virtualMachineTemplate.spec.template.spec.domain.devices.gpus",
        ),
        (
            json!({"runStrategy": "Always", "template": {"metadata": {"labels": {"kubevirt.io/nodeName": "n"}}, "spec": small()}}),
            "spec.virtualMachineTemplate.spec.template.metadata.labels",
        ),
    ] {
        assert_eq!(found(&template(spec.clone())), [field], "{spec}");
    }
}

#[test]
fn the_selector_stands_and_what_older_rules_took_can_be_scaled() {
    let mut old = pool(&json!({}));
    old["spec"]["virtualMachineTemplate"]["spec"]["instancetype"] = json!({"name": 7});
    old["spec"]["virtualMachineTemplate"]["spec"]["dataVolumeTemplates"] = json!([{"spec": {}}]);
    let mut new = old.clone();
    new["spec"]["replicas"] = json!(5);
    assert_eq!(validate_update(&old, &new, &config(), By::User), Problems::default());
    new["spec"]["virtualMachineTemplate"]["spec"]["runStrategy"] = json!("Manual");
    assert!(!validate_update(&old, &new, &config(), By::User).is_empty());

    let (old, mut new) = (pool(&json!({})), pool(&json!({})));
    new["spec"]["selector"] = json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
    assert_eq!(
        fields(&validate_update(&old, &new, &config(), By::User)),
        [("spec.selector", Reason::FieldValueInvalid)]
    );
    new["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(validate_update(&old, &new, &config(), By::User), Problems::default());
}
