//! Migrations that the nodes carry out.

use super::super::handed_over::{LOST_GRACE, PREPARE_LIMIT};
use super::*;

#[test]
fn phases_repeat_what_the_nodes_write() {
    let target = running();
    let ports = json!({"targetNodeAddress": "10.0.0.2", "targetDirectMigrationNodePorts": {"4711": 0}});
    let started = laid_over(ports.clone(), &json!({"startTimestamp": NOW}));
    for (from, vmi, to) in [
        ("PreparingTarget", json!({}), "PreparingTarget"),
        ("PreparingTarget", json!({"targetNodeAddress": "10.0.0.2"}), "PreparingTarget"),
        ("PreparingTarget", ports.clone(), "TargetReady"),
        ("PreparingTarget", started.clone(), "Running"),
        ("TargetReady", ports, "TargetReady"),
        ("TargetReady", started.clone(), "Running"),
        ("Running", started, "Running"),
    ] {
        let at = migration(
            from,
            json!({"status": {"phaseTransitionTimestamps": [
            {"phase": from, "phaseTransitionTimestamp": NOW}]}}),
        );
        let decision = look(&at, &handed(vmi.clone()), Some(&target));
        assert_eq!(phase(&decision), to, "{from} {vmi}");
        assert!(decision.vmi.is_none());
    }
}

#[test]
fn a_machine_that_moved_has_been_migrated_and_has_left_its_node() {
    let at = migration("Running", json!({}));
    let moved = json!({"startTimestamp": NOW, "targetNodeDomainReadyTimestamp": NOW, "completed": true, "endTimestamp": NOW});
    let mut vmi = handed(moved);
    assert_eq!(phase(&look(&at, &vmi, Some(&running()))), "Running", "the node is not written yet");
    vmi.status.node_name = Some("n2".into());
    let decision = look(&at, &vmi, Some(&running()));
    assert_eq!((phase(&decision), told(&decision)), ("Succeeded", vec!["SuccessfulMigration"]));
    assert!(decision.vmi.is_none());
    assert_eq!(decision.migration.status.migration_state, vmi.status.migration_state);
    vmi.status.evacuation_node_name = Some("n1".into());
    let decision = look(&at, &vmi, Some(&running()));
    assert_eq!(decision.vmi.unwrap().status.evacuation_node_name, None);
    vmi.status.evacuation_node_name = Some("n2".into());
    assert!(look(&at, &vmi, Some(&running())).vmi.is_none(), "it is to leave the target's node, too");
}

#[test]
fn what_the_nodes_say_went_wrong_is_told() {
    let at = migration("Running", json!({}));
    let failed =
        json!({"startTimestamp": NOW, "failed": true, "completed": true, "failureReason": "no route"});
    let decision = look(&at, &handed(failed.clone()), Some(&running()));
    assert_eq!((phase(&decision), told(&decision)), ("Failed", vec!["FailedMigration"]));
    assert!(why(&decision).contains("no route"));
    let aborted = laid_over(failed, &json!({"abortStatus": "Succeeded"}));
    assert_eq!(told(&look(&at, &handed(aborted), Some(&running()))), ["SuccessfulAbortMigration"]);
    let other = handed(json!({"migrationUid": "j9"}));
    assert!(why(&look(&at, &other, Some(&running()))).contains("another migration"));
}

#[test]
fn a_deleted_migration_is_broken_off_where_it_stands() {
    let gone = json!({"metadata": {"deletionTimestamp": NOW}});
    let vmi = machine(json!({}));
    for (at, target) in
        [("Pending", None), ("Scheduling", Some(pod(json!({})))), ("Scheduled", Some(running()))]
    {
        let decision = look(&migration(at, gone.clone()), &vmi, target.as_ref());
        assert_eq!((phase(&decision), told(&decision)), ("Failed", vec!["SuccessfulAbortMigration"]), "{at}");
        assert!(decision.vmi.is_none() && decision.actions.is_empty());
    }
    let decision = look(&migration("PreparingTarget", gone.clone()), &handed(json!({})), Some(&running()));
    let ended = state(&decision);
    assert_eq!((ended.failed, ended.completed, ended.abort_requested), (Some(true), Some(true), Some(true)));
    assert_eq!(ended.abort_status.as_ref().unwrap().as_str(), "Succeeded");

    let at = migration("Running", gone);
    let decision = look(&at, &handed(json!({"startTimestamp": NOW})), Some(&running()));
    let asked = state(&decision);
    assert_eq!((asked.failed, asked.completed, asked.abort_requested), (None, None, Some(true)));
    let waits = look(&at, &handed(json!({"startTimestamp": NOW, "abortRequested": true})), Some(&running()));
    assert!(waits.vmi.is_none() && phase(&waits) == "Running");
    let there = json!({"startTimestamp": NOW, "targetNodeDomainReadyTimestamp": NOW});
    assert!(look(&at, &handed(there), Some(&running())).vmi.is_none(), "too late");
}

#[test]
fn a_lost_target_ends_a_migration_unless_the_machine_is_there_already() {
    let at = migration("PreparingTarget", json!({}));
    for lost in [None, Some(&ended())] {
        let decision = look(&at, &handed(json!({})), lost);
        assert_eq!(state(&decision).failed, Some(true));
        assert!(state(&decision).failure_reason.as_ref().unwrap().contains("the target pod"));
        assert_eq!(phase(&decision), "PreparingTarget", "until the machine is seen so");
    }
    // Once started the source breaks off by itself, or is asked to; only if it does not, the controller says so.
    let at = migration("Running", json!({}));
    let started = json!({"startTimestamp": NOW});
    let decision = look(&at, &handed(started.clone()), None);
    assert_eq!((state(&decision).failed, state(&decision).abort_requested), (None, Some(true)));
    let asked = laid_over(started.clone(), &json!({"abortRequested": true}));
    let since = |seconds: u64| {
        migration(
            "Running",
            json!({"status": {"conditions": [{"type": "migrationAbortRequested", "status": "True",
            "lastTransitionTime": ago(seconds)}]}}),
        )
    };
    assert!(look(&since(59), &handed(asked.clone()), None).vmi.is_none());
    let decision = look(&since(LOST_GRACE.as_secs()), &handed(asked), None);
    assert_eq!((state(&decision).failed, state(&decision).completed), (Some(true), Some(true)));
    let there = laid_over(started, &json!({"targetNodeDomainReadyTimestamp": NOW}));
    assert!(look(&at, &handed(there), None).vmi.is_none(), "the machine's own controller judges");
}

#[test]
fn nodes_that_do_not_prepare_or_start_in_time_end_the_migration() {
    let at = |phase: &str, seconds: u64| {
        migration(
            phase,
            json!({"status": {"phaseTransitionTimestamps": [
            {"phase": phase, "phaseTransitionTimestamp": ago(seconds)}]}}),
        )
    };
    let ports = json!({"targetNodeAddress": "10.0.0.2", "targetDirectMigrationNodePorts": {"4711": 0}});
    for (phase, vmi, node) in [("PreparingTarget", json!({}), "n2"), ("TargetReady", ports, "n1")] {
        let limit = PREPARE_LIMIT.as_secs();
        let decision = look(&at(phase, limit - 1), &handed(vmi.clone()), Some(&running()));
        assert!(decision.vmi.is_none() && decision.look_again == Some(Duration::from_secs(1)));
        let decision = look(&at(phase, limit), &handed(vmi), Some(&running()));
        let why = state(&decision).failure_reason.clone().unwrap();
        assert!(why.starts_with(&format!("node {node}: ")), "{why}");
    }
}
