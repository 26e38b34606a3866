//! What is decided on replica sets and told of them.

use std::sync::Arc;

use jiff::Timestamp;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet,
    VirtualMachineInstanceReplicaSetCondition as Condition,
};
use serde_json::{Value, json};

use super::controller::concerned;
use super::*;
use crate::attempt::Outcome;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

pub(super) fn set(more: &Value) -> ReplicaSet {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "r1", "resourceVersion": "5"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
            "spec": {"domain": {"devices": {}}}}},
    });
    json_patch::merge(&mut set, more);
    serde_json::from_value(set).unwrap()
}

/// An instance of the set in `phase`, ready when it runs.
pub(super) fn instance(name: &str, phase: &str, more: &Value) -> VirtualMachineInstance {
    let ready = if phase == "Running" { "True" } else { "False" };
    let mut vmi = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "9",
            "labels": {"app": "web"}, "creationTimestamp": "2026-03-01T11:00:00Z",
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
                "name": "web", "uid": "r1", "controller": true}]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    });
    json_patch::merge(&mut vmi, more);
    serde_json::from_value(vmi).unwrap()
}

fn decided(set: &ReplicaSet, instances: Vec<VirtualMachineInstance>) -> Plan {
    let instances: Vec<_> = instances.into_iter().map(Arc::new).collect();
    decide(&Observed { set, instances: &instances, waits: false })
}

/// A word for each action, for tables.
fn words(plan: &Plan) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Own { name, owners, .. } => {
            let owned = owners.iter().any(|owner| owner.uid == "r1" && owner.controller == Some(true));
            format!("{} {name}", if owned { "adopt" } else { "release" })
        }
        Action::Create(_) => "create".into(),
        Action::Delete { name, finished: true, .. } => format!("clean {name}"),
        Action::Delete { name, .. } => format!("delete {name}"),
    };
    plan.actions.iter().map(word).collect()
}

fn gone() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-03-01T11:59:00Z"}})
}

#[test]
fn as_many_are_made_as_are_missing() {
    for (there, missing) in [(0, 2), (1, 1), (2, 0)] {
        let there = (0..there).map(|n| instance(&format!("web{n}"), "Running", &json!({}))).collect();
        assert_eq!(words(&decided(&set(&json!({})), there)), vec!["create"; missing]);
    }
    assert_eq!(
        words(&decided(&set(&json!({"spec": {"replicas": null}})), vec![])),
        ["create"],
        "one when not set"
    );
    let many = decided(&set(&json!({"spec": {"replicas": 1000}})), vec![]);
    assert_eq!(many.actions.len(), BURST);
}

#[test]
fn what_goes_counts_no_more_and_what_ended_is_replaced() {
    let losing =
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PodTerminating"}]}});
    for (other, expected) in [
        (instance("b", "Running", &gone()), vec!["create"]),
        (instance("b", "Failed", &json!({})), vec!["create", "clean b"]),
        (instance("b", "Succeeded", &json!({})), vec!["create", "clean b"]),
        (instance("b", "Running", &losing), vec!["create", "clean b"]),
        (instance("b", "Failed", &gone()), vec!["create"]),
        (instance("b", "Pending", &json!({})), vec![]),
    ] {
        let plan = decided(&set(&json!({})), vec![instance("a", "Running", &json!({})), other]);
        assert_eq!(words(&plan), expected);
    }
}

#[test]
fn the_unready_go_first_and_then_the_youngest() {
    let created = |at: &str| json!({"metadata": {"creationTimestamp": at}});
    let all = || {
        vec![
            instance("old", "Running", &created("2026-03-01T10:00:00Z")),
            instance("young", "Running", &created("2026-03-01T11:30:00Z")),
            instance("starting", "Scheduling", &created("2026-03-01T09:00:00Z")),
            instance(
                "unready",
                "Running",
                &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            ),
        ]
    };
    let order = ["delete starting", "delete unready", "delete young", "delete old"];
    for replicas in 0..4 {
        let plan = decided(&set(&json!({"spec": {"replicas": replicas}})), all());
        assert_eq!(words(&plan), order[..4 - replicas]);
        assert_eq!((plan.replicas, plan.ready), (4, 2));
    }
}

#[test]
fn orphans_are_adopted_and_what_is_no_longer_selected_is_released() {
    let orphan = instance("orphan", "Running", &json!({"metadata": {"ownerReferences": null}}));
    let relabelled = instance("other", "Running", &json!({"metadata": {"labels": {"app": "db"}}}));
    let plan = decided(&set(&json!({})), vec![orphan, relabelled]);
    assert_eq!(words(&plan), ["adopt orphan", "release other", "create"]);
    let Action::Own { version, owners, .. } = &plan.actions[0] else { panic!("{plan:?}") };
    assert_eq!((version.as_deref(), owners[0].block_owner_deletion), (Some("9"), Some(true)));
}

#[test]
fn a_set_that_rests_claims_and_does_nothing_else() {
    let orphan = || instance("orphan", "Failed", &json!({"metadata": {"ownerReferences": null}}));
    let paused = decided(&set(&json!({"spec": {"paused": true}})), vec![orphan()]);
    assert_eq!((words(&paused), paused.rests), (vec!["adopt orphan".to_owned()], true));
    let deleted = decided(&set(&gone()), vec![orphan(), instance("a", "Running", &json!({}))]);
    assert_eq!((words(&deleted), deleted.replicas), (vec![], 1));
    let instances = [Arc::new(instance("a", "Running", &json!({})))];
    let waiting = decide(&Observed { set: &set(&json!({})), instances: &instances, waits: true });
    assert_eq!((words(&waiting), waiting.replicas, waiting.ready), (vec![], 1, 1));
}

#[test]
fn an_instance_is_made_as_the_template_says() {
    for (metadata, base) in [
        (json!({}), "web"),
        (json!({"generateName": "shop-"}), "shop-"),
        (json!({"generateName": "shop-", "name": "front"}), "front"),
    ] {
        let plan = decided(&set(&json!({"spec": {"template": {"metadata": metadata}}})), vec![]);
        let Action::Create(vmi) = &plan.actions[0] else { panic!("{plan:?}") };
        assert_eq!((vmi.metadata.name.as_deref(), vmi.metadata.generate_name.as_deref()), (None, Some(base)));
        assert_eq!(vmi.metadata.labels.as_ref().unwrap()["app"], "web");
        assert_eq!(vmi.metadata.annotations.as_ref().unwrap()["a"], "b");
        assert_eq!(vmi.metadata.owner_references.as_ref().unwrap()[0].uid, "r1");
    }
}

#[test]
fn a_set_that_would_not_find_what_it_makes_makes_nothing() {
    for spec in [
        json!({"selector": {"matchLabels": {"app": "db"}}}),
        json!({"selector": null}),
        json!({"template": {"metadata": {"labels": null}}}),
    ] {
        let set = set(&json!({ "spec": spec }));
        let plan = decided(&set, vec![]);
        assert!(plan.actions.is_empty() && plan.invalid.is_some(), "{plan:?}");
        let (told, _) = status(&set, &plan, Outcome::Done, now());
        assert_eq!(told.conditions[0].reason.as_deref(), Some("InvalidSpec"));
    }
}

fn reasons(conditions: &[Condition]) -> Vec<(&str, &str)> {
    conditions.iter().map(|one| (one.r#type.as_str(), one.reason.as_deref().unwrap_or_default())).collect()
}

#[test]
fn the_status_counts_and_tells_failures_until_an_attempt_succeeds() {
    let mut set = set(&json!({}));
    let plan =
        decided(&set, vec![instance("a", "Running", &json!({})), instance("b", "Pending", &json!({}))]);
    let failed = |message: &str| Outcome::Failed { reason: "FailedCreate", message: message.into() };
    for (outcome, expected, message) in [
        (Outcome::Waited, vec![], None),
        (failed("quota, used 3"), vec![("ReplicaFailure", "FailedCreate")], Some("quota, used 3")),
        // Another text of the same refusal writes nothing.
        (failed("quota, used 4"), vec![("ReplicaFailure", "FailedCreate")], Some("quota, used 3")),
        (Outcome::Waited, vec![("ReplicaFailure", "FailedCreate")], Some("quota, used 3")),
        (Outcome::Done, vec![], None),
    ] {
        let (told, note) = status(&set, &plan, outcome, now());
        assert_eq!((told.replicas, told.ready_replicas, note), (Some(2), Some(1), None));
        assert_eq!(told.label_selector.as_deref(), Some("app=web"));
        assert_eq!(reasons(&told.conditions), expected);
        assert_eq!(told.conditions.first().and_then(|one| one.message.as_deref()), message);
        set.status = told;
    }
}

#[test]
fn a_pause_is_told_once_and_its_end_too() {
    let mut set = set(&json!({"spec": {"paused": true}}));
    let pass = |set: &mut ReplicaSet| {
        let (told, note) = status(set, &decided(set, vec![]), Outcome::Done, now());
        set.status = told;
        note.map(|(reason, _)| reason)
    };
    assert_eq!(pass(&mut set), Some("SuccessfulPaused"));
    assert_eq!(reasons(&set.status.conditions), [("ReplicaPaused", "Paused")]);
    assert_eq!(pass(&mut set), None);
    set.spec.paused = None;
    assert_eq!(pass(&mut set), Some("SuccessfulResumed"));
    assert!(set.status.conditions.is_empty());
}

#[test]
fn a_change_of_an_instance_wakes_the_sets_that_it_is_about() {
    let other = set(
        &json!({"metadata": {"name": "db", "uid": "r2"}, "spec": {"selector": {"matchLabels": {"app": "db"}}}}),
    );
    let abroad = set(&json!({"metadata": {"namespace": "else", "uid": "r3"}}));
    let sets = [set(&json!({})), other, abroad].map(Arc::new);
    let woken = |vmi: Option<&VirtualMachineInstance>| {
        let found = concerned(&sets, "shop", vmi);
        found.iter().map(|set| set.metadata.uid.clone().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(woken(Some(&instance("a", "Running", &json!({})))), ["r1"]);
    assert_eq!(
        woken(Some(&instance("a", "Running", &json!({"metadata": {"labels": {"app": "db"}}})))),
        ["r1", "r2"]
    );
    assert_eq!(woken(None), ["r1", "r2"], "whose it was is not known");
}
