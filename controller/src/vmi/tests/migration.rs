//! Machines with a second pod: the target of a migration.

use podvirt_api::storage::{self, Fate};

use super::*;
use crate::vmi::claims::{self, Claims};

/// The machine, on `node`, whose migration from n1 to n2 has the fields of `state` besides.
fn migrating(node: &str, state: Value) -> VirtualMachineInstance {
    let mut migration = json!({"migrationUid": "j1", "sourceNode": "n1", "sourcePod": "virt-launcher-web-p1",
        "targetNode": "n2", "targetPod": "virt-launcher-web-p2"});
    json_patch::merge(&mut migration, &state);
    handed_over(
        "Running",
        json!({"metadata": {"labels": {"kubevirt.io/nodeName": node}},
            "status": {"nodeName": node, "activePods": {"p2": "n2"}, "migrationState": migration}}),
    )
}

fn target(more: Value) -> Arc<Pod> {
    let mut pod = serde_json::to_value(&*running(json!({}))).unwrap();
    json_patch::merge(
        &mut pod,
        &json!({"metadata": {"name": "virt-launcher-web-p2", "uid": "p2", "labels": {
            "kubevirt.io/migrationJobUID": "j1", "kubevirt.io/nodeName": null}},
            "spec": {"nodeName": "n2", "containers": [{"name": "compute", "image": "launcher:2"}]}}),
    );
    json_patch::merge(&mut pod, &more);
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[test]
fn the_target_of_a_migration_is_neither_the_machines_pod_nor_one_too_many() {
    let pods = [running(json!({})), target(json!({}))];
    for vmi in [handed_over("Running", json!({})), migrating("n1", json!({}))] {
        let decision = look(&vmi, &pods);
        assert_eq!(phase(&decision), Phase::Running);
        assert_eq!(deleted(&decision), [""; 0]);
        assert!(
            decision.actions.iter().all(|action| !matches!(action, Action::Gate { uid, .. } if uid == "p2"))
        );
        assert_eq!(decision.vmi.status.active_pods, vmi.status.active_pods);
    }
    let alone = look(&handed_over("Running", json!({})), &pods[1..]);
    assert_eq!(phase(&alone), Phase::Failed, "the machine was not in the target's pod");
}

#[test]
fn a_machine_that_moved_is_in_the_target_and_its_old_pod_goes() {
    let moved = migrating("n2", json!({"completed": true, "targetNodeDomainReadyTimestamp": NOW}));
    let decision = look(&moved, &[running(json!({})), target(json!({}))]);
    assert_eq!((phase(&decision), deleted(&decision)), (Phase::Running, vec!["p1"]));
    assert!(decision.actions.contains(&Action::Gate {
        name: "virt-launcher-web-p2".into(),
        uid: "p2".into(),
        open: true,
        reason: "NotPaused"
    }));
    assert_eq!(decision.vmi.status.launcher_container_image_version.as_deref(), Some("launcher:2"));
    assert_eq!(decision.vmi.status.active_pods.len(), 2, "the old one is still to be cleaned up");
    let later = look(&moved, &[target(json!({}))]);
    assert_eq!(later.vmi.status.active_pods.keys().collect::<Vec<_>>(), ["p2"]);
    // On to a third node: the pod that was a target is the source now, and goes like any.
    let mut on = moved.clone();
    let state = on.status.migration_state.as_mut().unwrap();
    (state.source_node, state.source_pod) = (Some("n2".into()), Some("virt-launcher-web-p2".into()));
    (state.target_node, state.target_pod) = (Some("n1".into()), Some("virt-launcher-web-p1".into()));
    on.status.node_name = Some("n1".into());
    assert_eq!(deleted(&look(&on, &[running(json!({})), target(json!({}))])), ["p2"]);
}

#[test]
fn a_machine_whose_launcher_is_of_another_image_has_the_label() {
    let label = "kubevirt.io/outdatedLauncherImage";
    let labelled = |decision: &Decision| {
        decision.vmi.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label))
    };
    let of =
        |image: &str| handed_over("Running", json!({"status": {"launcherContainerImageVersion": image}}));
    let old = look(&of("launcher:0"), &[running(json!({}))]);
    assert!(labelled(&old));
    assert!(!labelled(&look(&of("launcher:1"), &[running(json!({}))])));
    let mut moved = old.vmi.clone();
    moved.status.launcher_container_image_version = Some("launcher:1".into());
    assert!(!labelled(&look(&moved, &[running(json!({}))])));
}

#[test]
fn the_old_pod_is_left_the_time_to_end_by_itself() {
    let ended_before = |seconds: i64| {
        let at = (now() - jiff::SignedDuration::from_secs(seconds)).to_string();
        migrating("n2", json!({"completed": true, "targetNodeDomainReadyTimestamp": NOW, "endTimestamp": at}))
    };
    let runs = || running(json!({}));
    let decision = look(&ended_before(5), &[runs(), target(json!({}))]);
    assert_eq!((deleted(&decision), decision.look_again), (vec![], Some(Duration::from_secs(10))));
    assert_eq!(deleted(&look(&ended_before(5), &[ended(0, 1), target(json!({}))])), ["p1"]);
    assert_eq!(deleted(&look(&ended_before(15), &[runs(), target(json!({}))])), ["p1"], "it does not");
    assert_eq!(deleted(&look(&ended_before(-3600), &[runs(), target(json!({}))])), ["p1"], "a wrong clock");
}

#[test]
fn a_guest_that_was_seen_at_the_target_does_not_end_with_its_source() {
    let leaving = migrating("n1", json!({"startTimestamp": NOW, "targetNodeDomainReadyTimestamp": NOW}));
    for pods in [vec![ended(0, 600), target(json!({}))], vec![target(json!({}))]] {
        let decision = look(&leaving, &pods);
        assert_eq!(phase(&decision), Phase::Running);
        assert_eq!(deleted(&decision), [""; 0]);
        assert_eq!(decision.vmi.status.active_pods.len(), 2);
        assert!(decision.look_again.is_some());
    }
    // No virt-handler has seen the guest there yet: a source that ended well has moved it, as long as the target lives.
    let gone = migrating("n1", json!({"startTimestamp": NOW}));
    let dead = target(json!({"status": {"phase": "Failed"}}));
    for (pods, reached) in [
        (vec![ended(0, 600), target(json!({}))], Phase::Running),
        (vec![target(json!({}))], Phase::Running),
        (vec![ended(0, 600), dead], Phase::Succeeded),
        (vec![ended(1, 600), target(json!({}))], Phase::Failed),
        // It shut down here, when its pod was told to end.
        (vec![ended(ENDED_WITH_POD.into(), 600), target(json!({}))], Phase::Succeeded),
    ] {
        assert_eq!(phase(&look(&gone, &pods)), reached);
    }
    let failed = migrating(
        "n1",
        json!({"startTimestamp": NOW, "failed": true, "targetNodeDomainReadyTimestamp": NOW}),
    );
    assert_eq!(phase(&look(&failed, &[ended(0, 600), target(json!({}))])), Phase::Succeeded);
}

#[test]
fn whether_a_machine_can_move_is_said_once_its_claims_are_known() {
    let vmi = machine(
        "Running",
        json!({"spec": {"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let settings = Settings::default();
    let see = |told: Option<&Told>| {
        let pods = [running(json!({}))];
        let seen =
            Observed { pods: &pods, claims_told: told, ..Observed::alone(&vmi, &settings, "launcher:1") };
        decide(&seen, now())
    };
    let claim = |mode: &str| {
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": [mode]}});
        let claims = Claims::from([("data".to_owned(), Some(serde_json::from_value(claim).unwrap()))]);
        claims::told(&vmi, &claims, &crate::kept::Kept::new().0).unwrap()
    };
    assert_eq!(condition(&see(None), "LiveMigratable"), None);
    let shared = see(Some(&claim("ReadWriteMany")));
    assert_eq!(condition(&shared, "LiveMigratable").unwrap().0, "True");
    // The launchers of both ends read this.
    let written = serde_json::to_value(&shared.vmi).unwrap();
    let read: VirtualMachineInstance = serde_json::from_value(written).unwrap();
    assert_eq!(storage::verdict(&read).unwrap()["root"], Fate::Shared);
    let local = see(Some(&claim("ReadWriteOnce")));
    let (value, reason, message) = condition(&local, "LiveMigratable").unwrap();
    assert_eq!((value.as_str(), reason.as_str()), ("False", "DisksNotLiveMigratable"));
    assert!(message.contains("ReadWriteMany"), "{message}");
    assert_eq!(local.vmi.status.migration_method, None);
}

#[test]
fn a_target_pod_says_since_when_its_machine_is_ready() {
    let said = |more: Value, pod: Value| {
        let decision = look(&migrating("n1", more), &[running(json!({})), target(pod)]);
        let said = decision.actions.iter().find_map(|action| match action {
            Action::Annotate { uid, annotations, .. } if uid == "p2" => Some(annotations.clone()),
            _ => None,
        });
        said.and_then(|mut said| said.remove("kubevirt.io/migration-target-ready-timestamp")).flatten()
    };
    let ready = || json!({"startTimestamp": NOW, "targetNodeDomainReadyTimestamp": NOW});
    assert_eq!(said(ready(), json!({})).as_deref(), Some("2026-01-01 12:00:00 +0000 UTC"));
    assert_eq!(said(json!({"startTimestamp": NOW}), json!({})), None, "the guest is on its way");
    let known = json!({"metadata": {"annotations": {"kubevirt.io/migration-target-ready-timestamp": "x"}}});
    assert_eq!(said(ready(), known), None);
}
