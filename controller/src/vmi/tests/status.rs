//! What the status says while the guest runs.

use super::*;

#[test]
fn the_machine_is_ready_when_its_guest_runs_and_its_pod_is() {
    let ready = |status: &str, reason: &str| {
        running(json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": reason}]}}))
    };
    for (phase, pod, status, reason_) in [
        ("Running", ready("True", ""), "True", ""),
        ("Running", ready("False", "ReadinessGatesNotReady"), "False", "ReadinessGatesNotReady"),
        ("Running", running(json!({})), "False", "PodConditionMissing"),
        ("Scheduled", ready("True", ""), "False", "GuestNotRunning"),
    ] {
        let decision = look(&handed_over(phase, json!({})), &[pod]);
        let (is, why, _) = condition(&decision, "Ready").unwrap();
        assert_eq!((is.as_str(), why.as_str()), (status, reason_));
    }
}

#[test]
fn the_gate_opens_when_the_guest_runs_and_closes_while_it_is_paused() {
    let gates = |phase: &str, paused: bool, gate: Option<&str>| -> Vec<bool> {
        let conditions = if paused { json!([{"type": "Paused", "status": "True"}]) } else { json!([]) };
        let vmi = handed_over(phase, json!({"status": {"conditions": conditions}}));
        let conditions =
            gate.map(|status| json!({"type": "kubevirt.io/virtual-machine-unpaused", "status": status}));
        let pod = running(json!({"status": {"conditions": Vec::from_iter(conditions)}}));
        let actions = look(&vmi, &[pod]).actions.into_iter();
        let gates = actions.filter_map(|a| if let Action::Gate { open, .. } = a { Some(open) } else { None });
        gates.collect()
    };
    assert_eq!(gates("Scheduled", false, None), [false; 0], "there is no guest yet");
    assert_eq!(gates("Running", false, None), [true]);
    assert_eq!(gates("Running", false, Some("True")), [false; 0]);
    assert_eq!(gates("Running", true, Some("True")), [false]);
    assert_eq!(gates("Running", true, Some("False")), [false; 0]);
    assert_eq!(gates("Running", false, Some("False")), [true]);
}

#[test]
fn the_pod_is_labelled_with_its_machines_node() {
    let decision = look(&machine("Scheduling", json!({})), &[running(json!({"metadata": {"labels": null}}))]);
    let [Action::Label { key, value, uid, .. }] = &decision.actions[..] else {
        panic!("{:?}", decision.actions)
    };
    assert_eq!((*key, value.as_str(), uid.as_str()), ("kubevirt.io/nodeName", "n1", "p1"));
    assert_eq!(look(&machine("Scheduling", json!({})), &[running(json!({}))]).actions, []);
}

#[test]
fn what_the_handler_says_is_left_alone() {
    let told = json!([{"type": "Synchronized", "status": "False", "reason": "Synchronizing with the Domain failed."},
        {"type": "AgentConnected", "status": "True"}]);
    let vmi = handed_over("Running", json!({"status": {"conditions": told}}));
    let decision = look(&vmi, &[running(json!({}))]);
    assert_eq!(reason(&decision, "Synchronized"), "Synchronizing with the Domain failed.");
    assert!(condition(&decision, "AgentConnected").is_some());
}

#[test]
fn a_conditions_time_is_that_of_its_last_turn() {
    let first = look(&machine("Scheduling", json!({})), &[pod("p1", json!({}))]);
    let time = |d: &Decision| {
        let ready = d.vmi.status.conditions.iter().find(|c| c.r#type.as_str() == "Ready").unwrap();
        ready.last_transition_time.clone().unwrap().unwrap().0
    };
    assert_eq!(time(&first), now());
    let (settings, told) = (Settings::default(), Told::new());
    let pods = [running(json!({}))];
    let seen = Observed {
        pods: &pods,
        claims_told: Some(&told),
        ..Observed::alone(&first.vmi, &settings, "launcher:1")
    };
    let later = decide(&seen, now() + jiff::SignedDuration::from_secs(9));
    assert_eq!(time(&later), now(), "still false");
}

#[test]
fn a_machine_that_is_to_leave_its_node_says_so_and_so_does_its_pod() {
    let marks = |leaving: &str, annotations: Value| {
        let conditions = json!([{"type": "EvictionRequested", "status": "True"}]);
        let status = json!({"evacuationNodeName": leaving, "conditions": conditions});
        let pod = running(json!({"metadata": {"annotations": annotations}}));
        let decision = look(&handed_over("Running", json!({ "status": status })), &[pod]);
        let told = decision.actions.iter().find_map(|action| match action {
            Action::Annotate { annotations, .. } => {
                annotations.get("descheduler.alpha.kubernetes.io/eviction-in-progress").cloned()
            }
            _ => None,
        });
        (condition(&decision, "EvictionRequested").is_some(), told)
    };
    let there = || json!({"descheduler.alpha.kubernetes.io/eviction-in-progress": "true"});
    assert_eq!(marks("n1", json!({})), (true, Some(Some("true".into()))));
    assert_eq!(marks("n1", there()), (true, None));
    assert_eq!(marks("", there()), (false, Some(None)), "it has moved, or the eviction was taken back");
    assert_eq!(marks("", json!({})), (false, None));
}
