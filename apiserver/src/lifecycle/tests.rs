use super::*;

fn vm(spec: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm1", "namespace": "ns"}, "spec": spec, "status": {"created": true},
    }))
    .unwrap()
}

fn with_strategy(strategy: &str) -> VirtualMachine {
    vm(json!({ "runStrategy": strategy }))
}

fn vmi(phase: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "vm1", "namespace": "ns", "uid": "u-7"},
        "spec": {"domain": {"devices": {}}, "terminationGracePeriodSeconds": 30},
        "status": {"phase": phase},
    }))
    .unwrap()
}

/// The outcome in short: what is patched, or why not.
fn short(outcome: Result<Change, Status>) -> String {
    match outcome {
        Ok(Change::Spec(patch)) => format!("spec {}", last_value(&patch)),
        Ok(Change::Status(patch)) => format!("status {}", last_value(&patch)),
        Err(status) => format!("{} {}", status.code, status.message.rsplit("\": ").next().unwrap()),
    }
}

fn last_value(patch: &Patch) -> String {
    let operations = serde_json::to_value(patch).unwrap();
    operations.as_array().unwrap().last().unwrap()["value"].to_string()
}

const START: &str = r#"status [{"action":"Start"}]"#;
const STOP: &str = r#"status [{"action":"Stop","uid":"u-7"}]"#;
const BOTH: &str = r#"status [{"action":"Stop","uid":"u-7"},{"action":"Start"}]"#;
const PAUSED: &str = r#"status [{"action":"Start","data":{"paused":"true"}}]"#;

#[test]
fn starting_by_strategy_and_phase() {
    for (strategy, phase, paused, outcome) in [
        ("Halted", None, false, "spec \"Always\""),
        ("Halted", None, true, PAUSED),
        ("Halted", Some("Succeeded"), false, "spec \"Always\""),
        ("Halted", Some("Running"), false, "409 VM is already running"),
        ("Manual", None, false, START),
        ("Manual", None, true, PAUSED),
        ("Manual", Some("Succeeded"), false, BOTH),
        ("Manual", Some("Failed"), false, BOTH),
        ("Manual", Some("Scheduling"), false, "409 VM is already running"),
        ("Manual", Some(""), false, START),
        ("Manual", Some("Unknown"), false, START),
        ("RerunOnFailure", None, false, START),
        ("RerunOnFailure", Some("Succeeded"), false, BOTH),
        (
            "RerunOnFailure",
            Some("Failed"),
            false,
            "409 RerunOnFailure does not support starting VM from failed state",
        ),
        ("Always", None, false, "409 Always does not support manual start requests"),
        ("Always", Some("Running"), false, "409 VM is already running"),
        ("Once", None, false, "409 Once does not support manual start requests"),
        ("WaitAsReceiver", None, false, "501 spec.runStrategy WaitAsReceiver is not supported by podvirt"),
    ] {
        let options = StartOptions { paused: Some(paused), ..StartOptions::default() };
        let vmi = phase.map(vmi);
        let got = short(start(&with_strategy(strategy), vmi.as_ref(), &options));
        assert_eq!(got, outcome, "{strategy} {phase:?} paused {paused}");
    }
}

#[test]
fn a_machine_that_a_snapshot_or_a_restore_holds_is_told_to_wait() {
    let held = |field: &str, strategy: &str| {
        let mut vm = serde_json::to_value(with_strategy(strategy)).unwrap();
        vm["status"][field] = json!("one");
        serde_json::from_value::<VirtualMachine>(vm).unwrap()
    };
    let starts = |vm: &VirtualMachine| short(start(vm, None, &StartOptions::default()));
    let stops = |vm: &VirtualMachine| {
        short(stop(vm, Some(&vmi("Running")), &StopOptions::default()).map(|stop| stop.vm))
    };
    let snapshot = "409 Cannot update vm running state until snapshot \"one\" completes";
    let restore = "409 Cannot update VM runStrategy until restore \"one\" completes";
    assert_eq!(starts(&held("snapshotInProgress", "Halted")), snapshot);
    assert_eq!(stops(&held("snapshotInProgress", "Always")), snapshot);
    assert_eq!(starts(&held("restoreInProgress", "Halted")), restore);
    assert_eq!(stops(&held("restoreInProgress", "Always")), "spec \"Halted\"", "the restore may wait for it");
    // A request is kept until then.
    assert_eq!(starts(&held("restoreInProgress", "Manual")), START);
}

#[test]
fn stopping_by_strategy_and_phase() {
    let not_running = "409 VM is not running";
    let sooner = "409 Halted only supports manual stop requests with a shorter graceperiod";
    for (strategy, phase, grace, outcome) in [
        ("Always", Some("Running"), None, "spec \"Halted\""),
        ("Always", None, None, "spec \"Halted\""),
        ("Once", Some("Running"), None, "spec \"Halted\""),
        ("RerunOnFailure", Some("Running"), None, STOP),
        ("RerunOnFailure", Some("Failed"), None, "spec \"Halted\""),
        ("RerunOnFailure", Some("Succeeded"), None, not_running),
        ("RerunOnFailure", None, None, not_running),
        ("Manual", Some("Running"), None, STOP),
        ("Manual", Some("Scheduling"), None, STOP),
        ("Manual", Some("Succeeded"), None, not_running),
        ("Halted", None, None, not_running),
        ("Halted", Some("Running"), None, sooner),
        ("Halted", Some("Running"), Some(30), sooner),
        ("Halted", Some("Running"), Some(0), STOP),
    ] {
        let options = StopOptions { grace_period: grace, ..StopOptions::default() };
        let vmi = phase.map(vmi);
        let got = short(stop(&with_strategy(strategy), vmi.as_ref(), &options).map(|stop| stop.vm));
        assert_eq!(got, outcome, "{strategy} {phase:?} {grace:?}");
    }
    // virt-controller runs it again.
    let mut evicted = vmi("Succeeded");
    evicted.status.reason = Some("ShutDownWithPod".into());
    let stopped = |strategy: &str| {
        short(stop(&with_strategy(strategy), Some(&evicted), &StopOptions::default()).map(|stop| stop.vm))
    };
    assert_eq!(stopped("RerunOnFailure"), "spec \"Halted\"");
    assert_eq!(stopped("Manual"), not_running);
}

#[test]
fn a_grace_period_goes_to_the_running_instance_only() {
    let options = |grace| StopOptions { grace_period: grace, ..StopOptions::default() };
    let always = with_strategy("Always");
    let stop_with = |vmi: Option<&VirtualMachineInstance>, grace| stop(&always, vmi, &options(grace));
    let running = vmi("Running");
    let patch = stop_with(Some(&running), Some(0)).unwrap().instance.unwrap();
    assert_eq!(
        serde_json::to_value(&patch).unwrap(),
        json!([
            {"op": "test", "path": "/spec/terminationGracePeriodSeconds", "value": 30},
            {"op": "replace", "path": "/spec/terminationGracePeriodSeconds", "value": 0},
        ])
    );
    assert_eq!(stop_with(Some(&running), Some(30)).unwrap().instance, None, "nothing to change");
    assert_eq!(stop_with(Some(&running), None).unwrap().instance, None);
    assert_eq!(stop_with(Some(&vmi("Failed")), Some(0)).unwrap().instance, None);
    assert_eq!(stop_with(None, Some(0)).unwrap().instance, None);
    assert_eq!(stop_with(Some(&running), Some(-1)).unwrap_err().code, 400);
    let longer = stop_with(Some(&running), Some(31)).unwrap_err();
    assert!(longer.code == 400 && longer.message.contains("0 to 30 seconds"), "{}", longer.message);
    assert!(stop_with(None, Some(31)).is_ok(), "there is nothing to wait for");
}

#[test]
fn restarting_by_strategy_and_phase() {
    for (strategy, phase, outcome) in [
        ("Always", Some("Running"), BOTH),
        ("Manual", Some("Running"), BOTH),
        ("RerunOnFailure", Some("Running"), BOTH),
        ("Always", None, "409 VM is not running"),
        ("Halted", Some("Running"), "409 Halted does not support manual restart requests"),
        ("Once", Some("Running"), "409 Once does not support manual restart requests"),
    ] {
        let vmi = phase.map(vmi);
        let got = restart(&with_strategy(strategy), vmi.as_ref(), &RestartOptions::default());
        assert_eq!(short(got.map(|restart| restart.vm)), outcome, "{strategy} {phase:?}");
    }
    for (grace, outcome) in
        [(None, Ok(false)), (Some(0), Ok(true)), (Some(1), Err(400)), (Some(-1), Err(400))]
    {
        let options = RestartOptions { grace_period_seconds: grace, ..RestartOptions::default() };
        let got = restart(&with_strategy("Always"), Some(&vmi("Running")), &options);
        assert_eq!(got.map(|restart| restart.force).map_err(|status| status.code), outcome, "{grace:?}");
    }
}

#[test]
fn the_older_field_is_used_where_the_vm_has_it() {
    let halted = vm(json!({ "running": false }));
    let Change::Spec(patch) = start(&halted, None, &StartOptions::default()).unwrap() else { panic!() };
    assert_eq!(
        serde_json::to_value(&patch).unwrap(),
        json!([
            {"op": "test", "path": "/spec/running", "value": false},
            {"op": "replace", "path": "/spec/running", "value": true},
        ])
    );
    for spec in
        [json!({}), json!({"running": true, "runStrategy": "Always"}), json!({"runStrategy": "Never"})]
    {
        assert_eq!(run_strategy(&vm(spec)).unwrap_err().code, 500);
    }
}

#[test]
fn a_request_under_way_gives_way_to_stop_only() {
    let mut busy = with_strategy("Manual");
    busy.status.state_change_requests = vec![start_request(false)];
    let refused = "409 unable to complete request: stop/start already underway";
    assert_eq!(short(start(&busy, None, &StartOptions::default())), refused);
    let running = vmi("Running");
    let again = restart(&busy, Some(&running), &RestartOptions::default()).map(|restart| restart.vm);
    assert_eq!(short(again), refused);
    let Change::Status(patch) = stop(&busy, Some(&running), &StopOptions::default()).unwrap().vm else {
        panic!()
    };
    assert_eq!(
        serde_json::to_value(&patch).unwrap(),
        json!([
            {"op": "test", "path": "/status/stateChangeRequests", "value": [{"action": "Start"}]},
            {"op": "replace", "path": "/status/stateChangeRequests", "value": [{"action": "Stop", "uid": "u-7"}]},
        ])
    );
}

#[test]
fn a_vm_without_a_status_gets_one() {
    let mut fresh = with_strategy("Manual");
    fresh.status = VirtualMachineStatus::default();
    let Change::Status(patch) = start(&fresh, None, &StartOptions::default()).unwrap() else { panic!() };
    assert_eq!(
        serde_json::to_value(&patch).unwrap(),
        json!([{"op": "add", "path": "/status", "value": {"stateChangeRequests": [{"action": "Start"}]}}])
    );
}
