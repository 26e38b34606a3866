mod handed_over;
mod images;
mod kept;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::names::MIGRATION_FINALIZER;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};
use serde_json::{Value, json};

use super::decide::{Action, Decision, Observed, PENDING_LIMIT, Turn, UNSCHEDULABLE_LIMIT, Way, decide};
use super::kept::Claims;
use crate::settings::Settings;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn ago(seconds: u64) -> String {
    (now() - SignedDuration::from_secs(i64::try_from(seconds).unwrap())).to_string()
}

fn laid_over(mut object: Value, more: &Value) -> Value {
    json_patch::merge(&mut object, more);
    object
}

/// A migration in `phase`, with `more` laid over it.
fn migration(phase: &str, more: Value) -> Migration {
    let object = json!({
        "metadata": {"name": "move", "namespace": "shop", "uid": "j1", "finalizers": [MIGRATION_FINALIZER],
            "creationTimestamp": ago(10), "labels": {"kubevirt.io/vmi-name": "web"}},
        "spec": {"vmiName": "web"},
        "status": {"phase": phase},
    });
    serde_json::from_value(laid_over(object, &more)).unwrap()
}

/// The machine, running on n1, with `more` laid over it.
fn machine(more: Value) -> VirtualMachineInstance {
    let object = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "labels": {"kubevirt.io/nodeName": "n1"}},
        "spec": {"domain": {"memory": {"guest": "64Mi"},
            "devices": {"interfaces": [{"name": "default", "passtBinding": {}}]}},
            "networks": [{"name": "default", "pod": {}}]},
        "status": {"phase": "Running", "nodeName": "n1", "activePods": {"p1": "n1"},
            "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    });
    serde_json::from_value(laid_over(object, &more)).unwrap()
}

/// The machine once its migration was handed over.
fn handed(more: Value) -> VirtualMachineInstance {
    let state = json!({"migrationUid": "j1", "sourceNode": "n1", "sourcePod": "virt-launcher-web-p1",
        "targetNode": "n2", "targetPod": "virt-launcher-web-p2"});
    machine(json!({"status": {"activePods": {"p2": "n2"}, "migrationState": laid_over(state, &more)}}))
}

/// The target pod, with `more` laid over it.
fn pod(more: Value) -> Pod {
    let object = json!({
        "metadata": {"name": "virt-launcher-web-p2", "namespace": "shop", "uid": "p2", "creationTimestamp": ago(5),
            "labels": {"kubevirt.io/migrationJobUID": "j1"}},
        "spec": {"containers": [{"name": "compute", "image": "launcher:1"}]},
        "status": {"phase": "Pending"},
    });
    serde_json::from_value(laid_over(object, &more)).unwrap()
}

fn running() -> Pod {
    pod(json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running", "containerStatuses": [
        {"name": "compute", "image": "launcher:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}}}]}}))
}

fn ended() -> Pod {
    pod(
        json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Failed", "reason": "Evicted", "message": "no memory"}}),
    )
}

struct Scene<'a> {
    vmi: Option<&'a VirtualMachineInstance>,
    source: Option<&'a Pod>,
    target: Option<&'a Pod>,
    siblings: &'a [Arc<Migration>],
    kept: Claims,
    turn: Turn,
    way: Way,
}

impl Default for Scene<'_> {
    fn default() -> Self {
        Scene {
            vmi: None,
            source: None,
            target: None,
            siblings: &[],
            kept: Claims::default(),
            turn: Turn::Now,
            way: Way::default(),
        }
    }
}

impl Scene<'_> {
    fn see(&self, migration: &Migration) -> Decision {
        let settings = Settings::default();
        let seen = Observed {
            migration,
            vmi: self.vmi,
            source: self.source,
            target: self.target,
            attachment: None,
            kept: self.kept.clone(),
            siblings: self.siblings,
            turn: self.turn,
            way: Some(&self.way),
            settings: &settings,
            launcher_image: "launcher:1",
            limits: podvirt_api::resources::AutoLimits::default(),
            host_model: Default::default(),
        };
        let decision = decide(&seen, now());
        // Seen again before the machine's write was: nothing is told twice while the phase stands.
        if decision.migration.status.phase == migration.status.phase && decision.vmi.is_none() {
            let again = decide(&Observed { migration: &decision.migration, ..seen }, now());
            assert_eq!(again.migration, decision.migration);
            assert_eq!(again.notes, [], "told again");
        }
        decision
    }
}

fn look(migration: &Migration, vmi: &VirtualMachineInstance, target: Option<&Pod>) -> Decision {
    Scene { vmi: Some(vmi), target, ..Scene::default() }.see(migration)
}

fn phase(decision: &Decision) -> &str {
    decision.migration.status.phase.as_ref().map_or("", Phase::as_str)
}

fn told(decision: &Decision) -> Vec<&str> {
    decision.notes.iter().map(|n| n.reason.as_str()).collect()
}

fn why(decision: &Decision) -> &str {
    decision.notes.last().map_or("", |note| note.message.as_str())
}

fn state(decision: &Decision) -> &podvirt_api::v1::VirtualMachineInstanceMigrationState {
    decision.vmi.as_ref().unwrap().status.migration_state.as_ref().unwrap()
}

#[test]
fn a_new_migration_is_pending_and_kept_until_its_pod_is_gone() {
    let new =
        migration("", json!({"metadata": {"finalizers": null, "labels": null}, "status": {"phase": null}}));
    let decision = look(&new, &machine(json!({})), None);
    assert_eq!(phase(&decision), "Pending");
    let meta = &decision.migration.metadata;
    assert_eq!(meta.finalizers.as_deref(), Some(&[MIGRATION_FINALIZER.to_owned()][..]));
    assert_eq!(meta.labels.as_ref().unwrap()["kubevirt.io/vmi-name"], "web");
    assert_eq!(decision.actions, []);
}

#[test]
fn a_pending_migration_makes_its_pod_when_its_turn_has_come() {
    let (pending, vmi) = (migration("Pending", json!({})), machine(json!({})));
    let later = Scene { vmi: Some(&vmi), turn: Turn::Later, ..Scene::default() }.see(&pending);
    assert_eq!((phase(&later), later.actions.len()), ("Pending", 0));
    assert_eq!(later.look_again, Some(Duration::from_secs(3)));
    let urgent = migration("Pending", json!({"spec": {"priority": "system-critical"}}));
    let later = Scene { vmi: Some(&vmi), turn: Turn::Later, ..Scene::default() }.see(&urgent);
    assert_eq!(later.look_again, Some(Duration::from_secs(1)));

    let decision = look(&pending, &vmi, None);
    let [Action::Create(made)] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    assert_eq!(made.metadata.labels.as_ref().unwrap()["kubevirt.io/migrationJobUID"], "j1");
    assert_eq!(phase(&decision), "Pending", "until the pod is seen");
    assert_eq!(phase(&look(&pending, &vmi, Some(&pod(json!({}))))), "Scheduling");
}

#[test]
fn what_cannot_be_migrated_is_not_and_the_reason_is_told() {
    let pending = migration("Pending", json!({}));
    for (vmi, reason) in [
        (
            machine(json!({"status": {"conditions": [
                {"type": "LiveMigratable", "status": "False", "message": "volume root: local"}]}})),
            "volume root: local",
        ),
        (machine(json!({"status": {"phase": "Succeeded"}})), "has ended"),
        (machine(json!({"metadata": {"deletionTimestamp": NOW}})), "has ended"),
    ] {
        let decision = look(&pending, &vmi, None);
        assert_eq!((phase(&decision), told(&decision)), ("Failed", vec!["FailedMigration"]));
        assert!(why(&decision).contains(reason), "{}", why(&decision));
        assert_eq!(decision.actions, []);
    }
    let decision = Scene::default().see(&pending);
    assert_eq!(phase(&decision), "Failed", "there is no machine");
    let between = migration("Pending", json!({"spec": {"receive": {"migrationID": "x"}}}));
    assert!(why(&look(&between, &machine(json!({})), None)).contains("spec.receive"));
    let waits = look(&pending, &machine(json!({"status": {"phase": "Scheduled"}})), None);
    assert_eq!((phase(&waits), waits.actions.len()), ("Pending", 0), "its handler is starting it");
    assert_eq!(waits.notes.len(), 1);
    let message = waits.migration.status.conditions[0].message.as_deref();
    assert_eq!(message, Some("machine web does not run yet: its migration waits"));
    let again = look(&waits.migration, &machine(json!({"status": {"phase": "Scheduled"}})), None);
    assert!(again.notes.is_empty(), "it is told once");
    let runs = look(&waits.migration, &machine(json!({})), None);
    assert_eq!((runs.migration.status.conditions.len(), runs.actions.len()), (0, 1));
}

#[test]
fn of_two_migrations_of_a_machine_the_older_one_goes_on() {
    let vmi = machine(json!({}));
    let own = Arc::new(migration("Pending", json!({})));
    let other = |created: u64, phase: &str| {
        Arc::new(migration(
            phase,
            json!({"metadata": {"name": "other", "uid": "j0", "creationTimestamp": ago(created)}}),
        ))
    };
    for (sibling, goes) in [
        (other(20, "Running"), false),
        (other(20, "Pending"), false),
        (other(20, "Failed"), true),
        (other(1, "Pending"), true),
    ] {
        let siblings = [own.clone(), sibling];
        let decision = Scene { vmi: Some(&vmi), siblings: &siblings, ..Scene::default() }.see(&own);
        assert_eq!(phase(&decision) == "Pending", goes);
        assert!(goes || why(&decision).contains("other"));
    }
}

#[test]
fn evacuations_that_fail_in_a_row_are_tried_later_each_time() {
    let vmi = machine(json!({}));
    let evacuation = json!({"metadata": {"annotations": {"kubevirt.io/evacuationMigration": "n1"}}});
    let own = Arc::new(migration("Pending", evacuation));
    let earlier = |n: usize, seconds: u64, phase: &str| {
        Arc::new(migration(
            phase,
            json!({"metadata": {"name": format!("e{n}"), "uid": format!("e{n}")},
            "status": {"phaseTransitionTimestamps": [{"phase": phase, "phaseTransitionTimestamp": ago(seconds)}]}}),
        ))
    };
    for (failures, left) in [
        (vec![], None),
        (vec![earlier(1, 5, "Failed")], Some(15)),
        (vec![earlier(1, 20, "Failed")], None),
        (vec![earlier(1, 30, "Failed"), earlier(2, 5, "Failed")], Some(35)),
        (vec![earlier(1, 30, "Succeeded"), earlier(2, 5, "Failed")], Some(15)),
        (vec![earlier(1, 30, "Failed"), earlier(2, 5, "Succeeded")], None),
        ((1..9).map(|n| earlier(n, 100, "Failed")).collect(), Some(380)),
    ] {
        let siblings: Vec<_> = failures.into_iter().chain([own.clone()]).collect();
        let decision = Scene { vmi: Some(&vmi), siblings: &siblings, ..Scene::default() }.see(&own);
        assert_eq!(decision.actions.is_empty(), left.is_some());
        assert_eq!(told(&decision) == ["MigrationBackoff"], left.is_some());
        if let Some(left) = left {
            assert_eq!(decision.look_again, Some(Duration::from_secs(left.min(30))));
        }
        let by_user = migration("Pending", json!({}));
        let decision = Scene { vmi: Some(&vmi), siblings: &siblings, ..Scene::default() }.see(&by_user);
        assert!(told(&decision) != ["MigrationBackoff"], "a user's own migration does not wait");
    }
}

#[test]
fn a_target_pod_that_does_not_run_in_time_ends_the_migration() {
    let (scheduling, vmi) = (migration("Scheduling", json!({})), machine(json!({})));
    let unschedulable = |seconds: u64| {
        pod(json!({"metadata": {"creationTimestamp": ago(seconds)}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}]}}))
    };
    let decision = look(&scheduling, &vmi, Some(&unschedulable(299)));
    assert_eq!((phase(&decision), told(&decision)), ("Scheduling", vec!["migrationTargetPodUnschedulable"]));
    assert_eq!(decision.look_again, Some(Duration::from_secs(1)));
    let decision = look(&scheduling, &vmi, Some(&unschedulable(UNSCHEDULABLE_LIMIT.as_secs())));
    assert_eq!(phase(&decision), "Failed");
    assert!(why(&decision).contains("0/2 nodes"), "{}", why(&decision));

    let slow = |seconds: u64| {
        pod(json!({"metadata": {"creationTimestamp": ago(seconds)}, "spec": {"nodeName": "n2"}}))
    };
    assert_eq!(phase(&look(&scheduling, &vmi, Some(&slow(899)))), "Scheduling");
    assert_eq!(phase(&look(&scheduling, &vmi, Some(&slow(PENDING_LIMIT.as_secs())))), "Failed");
    assert_eq!(phase(&look(&scheduling, &vmi, Some(&running()))), "Scheduled");
    for lost in [None, Some(&ended())] {
        assert_eq!(phase(&look(&scheduling, &vmi, lost)), "Failed");
    }
    let said = json!({"metadata": {"annotations": {
        "kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "130", "kubevirt.io/migrationPendingPodTimeoutSeconds": "9"}}});
    let said = migration("Scheduling", said);
    for (pod, outcome) in [
        (unschedulable(129), "Scheduling"),
        (unschedulable(130), "Failed"),
        (slow(8), "Scheduling"),
        (slow(9), "Failed"),
    ] {
        assert_eq!(phase(&look(&said, &vmi, Some(&pod))), outcome);
    }
}

#[test]
fn a_target_pod_that_waits_for_a_volume_is_told_with_what_it_waits_for() {
    let (scheduling, vmi) = (migration("Scheduling", json!({})), machine(json!({})));
    let waits = |seconds: u64| {
        pod(json!({
            "spec": {"nodeName": "n2", "volumes": [{"name": "keys", "projected": {"sources": [{"secret": {"name": "keys-of-web"}}]}}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(seconds)}]},
        }))
    };
    let decision = look(&scheduling, &vmi, Some(&waits(14)));
    assert_eq!((decision.notes.len(), decision.look_again), (0, Some(Duration::from_secs(1))));
    let decision = look(&scheduling, &vmi, Some(&waits(15)));
    assert_eq!((phase(&decision), told(&decision)), ("Scheduling", vec!["ContainerCreating"]));
    let [condition] = &decision.migration.status.conditions[..] else { panic!() };
    assert_eq!((condition.r#type.as_str(), condition.status.as_str()), ("targetPodNotStarting", "True"));
    assert!(condition.message.as_deref().unwrap().contains("Secret keys-of-web"), "{condition:?}");
    let pulls = pod(
        json!({"spec": {"nodeName": "n2"}, "status": {"containerStatuses": [{"name": "compute", "image": "i",
        "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]}}),
    );
    let other = look(&decision.migration, &vmi, Some(&pulls));
    assert_eq!((told(&other), other.migration.status.conditions.len()), (vec!["ErrImagePull"], 1));
    let runs = look(&decision.migration, &vmi, Some(&running()));
    assert_eq!((phase(&runs), runs.migration.status.conditions.len()), ("Scheduled", 0));
}

#[test]
fn one_write_of_the_machine_hands_it_to_the_nodes() {
    let (scheduled, target) = (migration("Scheduled", json!({})), running());
    let mut way = Way::default();
    way.configuration.allow_post_copy = Some(true);
    way.configuration.progress_timeout = Some(7);
    way.policy = Some("fast".into());
    let vmi = machine(json!({"status": {"migrationState": {"migrationUid": "j0", "completed": true,
        "endTimestamp": NOW, "failureReason": "x", "failed": true, "sourceNode": "n1",
        "sourcePod": "virt-launcher-web-p1"}}}));
    let decision = Scene { vmi: Some(&vmi), target: Some(&target), way, ..Scene::default() }.see(&scheduled);
    assert_eq!(phase(&decision), "Scheduled", "until the machine is seen so");
    assert_eq!(told(&decision), ["MigrationRestricted"], "netd has no post-copy");
    let written = decision.vmi.as_ref().unwrap();
    assert_eq!(written.metadata.labels.as_ref().unwrap()["kubevirt.io/migrationTargetNodeName"], "n2");
    assert_eq!(written.status.node_name.as_deref(), Some("n1"));
    assert_eq!(written.status.active_pods["p2"], "n2");
    let state = serde_json::to_value(state(&decision)).unwrap();
    assert_eq!(
        state,
        json!({"migrationUid": "j1", "sourceNode": "n1", "sourcePod": "virt-launcher-web-p1", "targetNode": "n2",
            "targetPod": "virt-launcher-web-p2", "migrationPolicyName": "fast",
            "migrationConfiguration":
                {"allowPostCopy": false, "allowWorkloadDisruption": false, "progressTimeout": 7}})
    );
    let seen = look(&scheduled, written, Some(&target));
    assert_eq!((phase(&seen), told(&seen)), ("PreparingTarget", vec!["SuccessfulHandOver"]));
    assert!(seen.vmi.is_none());
}

#[test]
fn a_hand_over_needs_a_machine_that_no_other_migration_moves_and_another_node() {
    let scheduled = migration("Scheduled", json!({}));
    let busy = machine(json!({"status": {"migrationState": {"migrationUid": "j0"}}}));
    assert_eq!(phase(&look(&scheduled, &busy, Some(&running()))), "Failed");
    let mut same = running();
    same.spec.as_mut().unwrap().node_name = Some("n1".into());
    let decision = look(&scheduled, &machine(json!({})), Some(&same));
    assert!(phase(&decision) == "Failed" && why(&decision).contains("n1"));
    assert_eq!(phase(&look(&scheduled, &machine(json!({})), Some(&ended()))), "Failed");
}

#[test]
fn a_backup_that_began_meanwhile_holds_the_hand_over_up_until_the_target_has_waited_too_long() {
    let scheduled = migration("Scheduled", json!({}));
    let held = machine(json!({"status": {"changedBlockTracking": {"backupStatus": {"backupName": "b"}}}}));
    let waits = look(&scheduled, &held, Some(&running()));
    assert_eq!((phase(&waits), &waits.vmi), ("Scheduled", &None));
    assert_eq!(told(&waits), [podvirt_api::names::event::MIGRATION_BLOCKED]);
    let late = laid_over(
        serde_json::to_value(running()).unwrap(),
        &json!({"metadata": {"creationTimestamp": ago(PENDING_LIMIT.as_secs() + 1)}}),
    );
    let late: Pod = serde_json::from_value(late).unwrap();
    let failed = look(&waits.migration, &held, Some(&late));
    assert_eq!(phase(&failed), "Failed");
    let free = machine(json!({"status": {"changedBlockTracking": {"state": "Enabled"}}}));
    let on = look(&waits.migration, &free, Some(&running()));
    assert!(on.vmi.is_some(), "{on:?}");
    assert_eq!(on.migration.status.conditions, []);
}

#[test]
fn an_evacuation_that_rests_after_failures_does_not_wait_for_a_backup() {
    let evacuation = |name: &str, phase: &str, more: Value| {
        let meta =
            json!({"name": name, "uid": name, "annotations": {"kubevirt.io/evacuationMigration": "n1"}});
        let mut all = json!({"metadata": meta, "spec": {"priority": "system-critical"}});
        json_patch::merge(&mut all, &more);
        Arc::new(migration(phase, all))
    };
    let failed = json!({"status": {"phaseTransitionTimestamps": [
        {"phase": "Failed", "phaseTransitionTimestamp": ago(1)}]}});
    let next = evacuation("next", "Pending", json!({}));
    let siblings = [evacuation("first", "Failed", failed), next.clone()];
    let held = machine(json!({"status": {"changedBlockTracking": {"backupStatus": {"backupName": "b"}}}}));
    let decision = Scene { vmi: Some(&held), siblings: &siblings, ..Scene::default() }.see(&next);
    let kinds: Vec<&str> = decision.migration.status.conditions.iter().map(|c| c.r#type.as_str()).collect();
    assert_eq!(kinds, ["MigrationBackoff"], "the backup is not aborted for one that does not move yet");
}

#[test]
fn a_failed_migrations_pod_goes_and_then_the_finalizer() {
    let failed = migration("Failed", json!({}));
    let vmi = handed(json!({"failed": true, "completed": true}));
    let kept =
        |decision: &Decision| decision.migration.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty());
    let decision = look(&failed, &vmi, Some(&running()));
    assert!(
        matches!(&decision.actions[..], [Action::DeletePod { uid, .. }] if uid == "p2") && kept(&decision)
    );
    let going = pod(json!({"metadata": {"deletionTimestamp": NOW}}));
    let decision = look(&failed, &vmi, Some(&going));
    assert!(decision.actions.is_empty() && kept(&decision));
    assert!(!kept(&look(&failed, &vmi, None)));
    // Its launcher is told to leave, and is not stopped while it does.
    let just = handed(json!({"failed": true, "completed": true, "endTimestamp": NOW}));
    assert!(look(&failed, &just, Some(&running())).actions.is_empty());
    // Never the pod that the machine is in.
    let there = handed(json!({"targetNodeDomainReadyTimestamp": NOW}));
    let decision = look(&failed, &there, Some(&running()));
    assert!(decision.actions.is_empty());
    let mut moved = handed(json!({"completed": true}));
    moved.status.node_name = Some("n2".into());
    assert!(look(&failed, &moved, Some(&running())).actions.is_empty());
    let decision = look(&migration("Succeeded", json!({})), &moved, Some(&running()));
    assert!(decision.actions.is_empty() && !kept(&decision));
}

#[test]
fn five_ended_migrations_are_kept_and_none_of_a_machine_that_is_gone() {
    let ended = |n: u64| {
        Arc::new(migration(
            "Succeeded",
            json!({"metadata": {"name": format!("e{n}"), "uid": format!("e{n}"),
            "creationTimestamp": ago(100 - n)}}),
        ))
    };
    let mut siblings: Vec<_> = (0..7).map(ended).collect();
    siblings.push(Arc::new(migration("Running", json!({}))));
    let vmi = machine(json!({}));
    let deleted = |vmi: Option<&VirtualMachineInstance>| -> Vec<String> {
        let decision = Scene { vmi, siblings: &siblings, ..Scene::default() }.see(&siblings[6]);
        let names = decision.actions.iter().map(|action| match action {
            Action::DeleteMigration { name, .. } => name.clone(),
            other => panic!("{other:?}"),
        });
        names.collect()
    };
    assert_eq!(deleted(Some(&vmi)), ["e0", "e1"]);
    assert_eq!(deleted(None).len(), 7);
}
