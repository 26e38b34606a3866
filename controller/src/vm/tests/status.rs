//! What the status says.

use super::*;
use crate::vm::instance::Link;

#[test]
fn each_state_has_its_printable_word() {
    let held = |reason: &str| json!({"status": {"conditions": [{"type": "Synchronized", "status": "False", "reason": reason}]}});
    let is = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}});
    let migrating = json!({"status": {"migrationState": {"startTimestamp": "2026-03-01T11:00:00Z"}}});
    let vm = machine("Manual", json!({}));
    for (phase, more, expected) in [
        ("Pending", json!({}), "Starting"),
        ("Scheduling", json!({}), "Starting"),
        ("Scheduled", json!({}), "Starting"),
        ("Running", json!({}), "Running"),
        ("Running", is("Paused"), "Paused"),
        ("Running", migrating, "Migrating"),
        ("Running", deleted.clone(), "Stopping"),
        ("Pending", deleted, "Stopping"),
        ("Succeeded", json!({}), "Stopped"),
        ("Failed", json!({}), "Stopped"),
        ("Unknown", json!({}), "Unknown"),
        ("Scheduling", held("Unschedulable"), "ErrorUnschedulable"),
        ("Scheduling", held("ErrImagePull"), "ErrImagePull"),
        ("Scheduling", held("ImagePullBackOff"), "ImagePullBackOff"),
        ("Pending", held("FailedPvcNotFound"), "ErrorPvcNotFound"),
        ("Pending", is("Provisioning"), "Provisioning"),
    ] {
        let vmi = instance(&vm, phase, more.clone());
        let plan = judged(&vm, Some(&vmi));
        assert_eq!(plan.status.printable_status, Some(expected.into()), "{phase} {more}");
        assert_eq!(plan.status.created, Some(true));
    }
    assert_eq!(judged(&vm, None).status.printable_status, Some("Stopped".into()));
    let starts = judged(&machine("Always", json!({})), None);
    assert_eq!(
        (word(starts.action.as_ref()), starts.status.printable_status),
        ("start", Some("Starting".into()))
    );
    let failing = json!({"status": {"startFailure": {"consecutiveFailCount": 2, "retryAfterTimestamp": "2026-03-01T12:00:09Z"}}});
    assert_eq!(
        judged(&machine("Always", failing), None).status.printable_status,
        Some("CrashLoopBackOff".into())
    );
}

#[test]
fn the_instances_conditions_are_the_machines_and_keep_their_time() {
    let vm = machine("Always", json!({}));
    let vmi = instance(
        &vm,
        "Running",
        json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "AgentConnected", "status": "True"},
            {"type": "LiveMigratable", "status": "False", "reason": "x", "message": "y"},
        ]}}),
    );
    let plan = judged(&vm, Some(&vmi));
    assert_eq!(plan.status.ready, Some(true));
    let words: Vec<_> = plan.status.conditions.iter().map(|c| format!("{}={}", c.r#type, c.status)).collect();
    assert_eq!(words, ["AgentConnected=True", "LiveMigratable=False", "Ready=True"]);

    let vm = VirtualMachine { status: plan.status.clone(), ..vm };
    let later = decide(&vm, Instance::Own(&vmi), now() + SignedDuration::from_secs(60));
    assert_eq!(later.status, plan.status, "nothing to write when nothing changed");

    let plan = decide(&vm, Instance::None, now() + SignedDuration::from_secs(60));
    assert_eq!((plan.status.ready, plan.status.created), (None, None));
    let [ready] = plan.status.conditions.as_slice() else { panic!("{:?}", plan.status.conditions) };
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("VMINotExists")));
    assert_ne!(ready.last_transition_time, vm.status.conditions[2].last_transition_time);
}

#[test]
fn a_template_that_changes_under_a_running_machine_is_told_until_the_next_start() {
    let vm = machine("Always", json!({}));
    let vmi = instance(&vm, "Running", json!({}));
    assert_eq!(vmi.annotations()[TEMPLATE_DIGEST], template_digest(&vm, &vmi.spec));

    let change = json!({"metadata": {"generation": 4}, "spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}});
    let mut changed = machine("Always", change);
    let plan = judged(&changed, Some(&vmi));
    assert_eq!(plan.action, None);
    let required = of(&plan, &VirtualMachineConditionType::RestartRequired).unwrap();
    assert_eq!(required.status, "True");
    assert_eq!((plan.status.desired_generation, plan.status.observed_generation), (Some(4), Some(3)));
    assert_eq!(plan.warnings.len(), 1);
    changed.status = plan.status;
    assert_eq!(judged(&changed, Some(&vmi)).warnings, []);
    assert_eq!(of(&judged(&changed, None), &VirtualMachineConditionType::RestartRequired), None);

    let elsewhere = machine("Always", json!({"metadata": {"generation": 4}}));
    let plan = judged(&elsewhere, Some(&vmi));
    assert_eq!(plan.action, Some(Action::NoteGeneration { uid: "u1".into(), generation: 4 }));
    let mut by_hand = instance(&vm, "Running", json!({}));
    by_hand.annotations_mut().remove(TEMPLATE_DIGEST);
    assert_eq!(of(&judged(&changed, Some(&by_hand)), &VirtualMachineConditionType::RestartRequired), None);
}

#[test]
fn the_state_of_a_link_is_the_running_instances_without_a_restart() {
    let template = |state: serde_json::Value, cores: u32, generation: i64| {
        let interfaces = json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}, "state": state}]);
        let domain = json!({"cpu": {"cores": cores}, "devices": {"interfaces": interfaces}});
        machine(
            "Always",
            json!({"metadata": {"generation": generation}, "spec": {"template": {"spec": {"domain": domain}}}}),
        )
    };
    let vm = template(json!("up"), 1, 3);
    let vmi = instance(&vm, "Running", json!({}));
    let down = template(json!("down"), 1, 4);
    let plan = judged(&down, Some(&vmi));
    let link = |state: &str| Link { index: 1, name: "b".into(), state: state.into() };
    assert_eq!(plan.action, Some(Action::SetLinks { uid: "u1".into(), links: vec![link("down")] }));
    assert_eq!(of(&plan, &VirtualMachineConditionType::RestartRequired), None);
    // With another change beside it: the link at once, the rest at the next start.
    let plan = judged(&template(json!("down"), 2, 4), Some(&vmi));
    assert!(matches!(plan.action, Some(Action::SetLinks { .. })), "{:?}", plan.action);
    assert!(of(&plan, &VirtualMachineConditionType::RestartRequired).is_some());

    let mut changed = vmi.clone();
    changed.spec.domain.devices.interfaces[1].state = Some("down".into());
    assert_eq!(
        judged(&down, Some(&changed)).action,
        Some(Action::NoteGeneration { uid: "u1".into(), generation: 4 })
    );
    let unset = judged(&template(json!(null), 1, 5), Some(&changed));
    assert_eq!(unset.action, Some(Action::SetLinks { uid: "u1".into(), links: vec![link("up")] }));
    assert_eq!(
        judged(&down, Some(&instance(&vm, "Succeeded", json!({}))))
            .action
            .map(|a| matches!(a, Action::SetLinks { .. })),
        Some(false)
    );
}

#[test]
fn a_failure_stays_until_its_action_has_succeeded() {
    let failed =
        json!({"status": {"conditions": [{"type": "Failure", "status": "True", "reason": "FailedCreate"}]}});
    let vm = machine("Always", failed);
    assert!(of(&judged(&vm, None), &VirtualMachineConditionType::Failure).is_some());
    let vmi = instance(&vm, "Pending", json!({}));
    assert_eq!(of(&judged(&vm, Some(&vmi)), &VirtualMachineConditionType::Failure), None);
}

#[test]
fn where_a_machine_may_run_is_changed_while_it_runs() {
    let template = |spec: serde_json::Value, generation: i64| {
        let mut spec = spec;
        spec["domain"] = json!({"devices": {}});
        machine(
            "Always",
            json!({"metadata": {"generation": generation}, "spec": {"template": {"spec": spec}}}),
        )
    };
    let operations = |plan: &Plan| match &plan.action {
        Some(Action::SetInstance { operations, .. }) => serde_json::to_value(operations).unwrap(),
        other => panic!("{other:?}"),
    };
    let vm = template(json!({"nodeSelector": {"zone": "a"}}), 3);
    let vmi = instance(&vm, "Running", json!({}));
    let tolerations = json!([{"key": "gpu", "operator": "Exists"}]);
    let other = template(json!({"tolerations": tolerations}), 4);
    let plan = judged(&other, Some(&vmi));
    assert_eq!(
        operations(&plan),
        json!([
            {"op": "remove", "path": "/spec/nodeSelector"},
            {"op": "add", "path": "/spec/tolerations", "value": tolerations},
        ])
    );
    assert_eq!(of(&plan, &VirtualMachineConditionType::RestartRequired), None);

    let mut changed = vmi.clone();
    changed.spec =
        serde_json::from_value(json!({"domain": {"devices": {}}, "tolerations": tolerations})).unwrap();
    let noted = Some(Action::NoteGeneration { uid: "u1".into(), generation: 4 });
    assert_eq!(judged(&other, Some(&changed)).action, noted);

    // A machine that moves is being put somewhere by what stands there.
    let mut moves = vmi.clone();
    moves.status.migration_state = Some(serde_json::from_value(json!({"migrationUid": "j1"})).unwrap());
    assert!(!matches!(judged(&other, Some(&moves)).action, Some(Action::SetInstance { .. })));

    // Beside what waits for the next start, it waits as well.
    let mut both = other.clone();
    both.spec.template.as_mut().unwrap().spec.as_mut().unwrap().hostname = Some("h".into());
    let plan = judged(&both, Some(&vmi));
    assert_eq!(plan.action, None);
    assert!(of(&plan, &VirtualMachineConditionType::RestartRequired).is_some());
}
