//! The claims with the state of firmware and TPM.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;

fn claim(name: &str, mode: &str, labels: Value) -> Arc<PersistentVolumeClaim> {
    let claim = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels}, "spec": {"accessModes": [mode]}});
    Arc::new(serde_json::from_value(claim).unwrap())
}

fn kept() -> VirtualMachineInstance {
    machine(json!({
        "spec": {"domain": {"devices": {"tpm": {"persistent": true}}}},
        "status": {"volumeStatus": [{"name": "persistent-state-for-web-a",
            "persistentVolumeClaimInfo": {"claimName": "persistent-state-for-web-a", "accessModes": ["ReadWriteOnce"]}}]},
    }))
}

fn see(migration: &Migration, vmi: &VirtualMachineInstance, kept: Claims) -> Decision {
    Scene { vmi: Some(vmi), kept, ..Scene::default() }.see(migration)
}

fn mounted(pod: &Pod) -> Option<String> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let state = volumes.iter().find(|volume| volume.name == "vm-state")?;
    Some(state.persistent_volume_claim.as_ref()?.claim_name.clone())
}

fn has_flag(pod: &Pod) -> bool {
    let compute = pod.spec.as_ref().unwrap().containers[0].command.clone().unwrap();
    compute.iter().any(|word| word == "--shared-state")
}

#[test]
fn a_claim_of_one_node_gets_another_beside_it() {
    let source = claim("persistent-state-for-web-a", "ReadWriteOnce", json!({"persistent-state-for": "web"}));
    let target =
        claim("persistent-state-for-web-b", "ReadWriteOnce", json!({"kubevirt.io/migrationName": "move"}));
    let wanted = Some(Ok(Box::new(target.as_ref().clone())));
    let seen = Claims { source: Some(source), target: None, wanted };
    let decision = see(&migration("Pending", json!({})), &kept(), seen);
    let [Action::CreateClaim(made), Action::Create(pod)] = decision.actions.as_slice() else {
        panic!("{:?}", decision.actions)
    };
    assert_eq!(made.metadata.name, target.metadata.name);
    assert_eq!(mounted(pod).as_deref(), Some("persistent-state-for-web-b"));
    assert!(!has_flag(pod));
    let state = decision.migration.status.migration_state.unwrap();
    assert_eq!(state.source_persistent_state_pvc_name.as_deref(), Some("persistent-state-for-web-a"));
    assert_eq!(state.target_persistent_state_pvc_name.as_deref(), Some("persistent-state-for-web-b"));
}

#[test]
fn a_claim_of_several_nodes_is_both_ends() {
    let source = claim("persistent-state-for-web-a", "ReadWriteMany", json!({"persistent-state-for": "web"}));
    let seen = Claims { source: Some(source), ..Claims::default() };
    let decision = see(&migration("Pending", json!({})), &kept(), seen);
    let [Action::Create(pod)] = decision.actions.as_slice() else { panic!("{:?}", decision.actions) };
    assert_eq!(mounted(pod).as_deref(), Some("persistent-state-for-web-a"));
    assert!(has_flag(pod));
    let none = see(&migration("Pending", json!({})), &kept(), Claims::default());
    assert_eq!(none.migration.status.phase, Some(Phase::Failed));
    assert!(
        none.notes[0].message.contains("no backend-storage PVC found in VMI volume status"),
        "{:?}",
        none.notes
    );
}

#[test]
fn the_machine_keeps_the_claim_that_it_is_at() {
    let source = || Some(claim("a", "ReadWriteOnce", json!({"persistent-state-for": "web"})));
    let new = || Some(claim("b", "ReadWriteOnce", json!({"kubevirt.io/migrationName": "move"})));
    let owned = || Some(claim("b", "ReadWriteOnce", json!({"persistent-state-for": "web"})));
    let seen = |source, target| Claims { source, target, wanted: None };
    let keep = Action::KeepClaim { name: "b".into(), uid: "b".into(), machine: "web".into() };
    let delete = |name: &str| Action::DeleteClaim { name: name.into(), uid: name.into() };
    let finalizers =
        |decision: &Decision| decision.migration.metadata.finalizers.clone().unwrap_or_default().len();

    let there = handed(json!({"startTimestamp": ago(5), "targetNodeDomainReadyTimestamp": ago(1)}));
    assert_eq!(
        see(&migration("Running", json!({})), &there, seen(source(), new())).actions,
        std::slice::from_ref(&keep)
    );

    let over = migration("Succeeded", json!({}));
    let decision = see(&over, &there, seen(source(), new()));
    assert_eq!((decision.actions.as_slice(), finalizers(&decision)), ([keep].as_slice(), 1));
    let decision = see(&over, &there, seen(source(), owned()));
    assert_eq!((decision.actions.as_slice(), finalizers(&decision)), ([delete("a")].as_slice(), 1));
    let decision = see(&over, &there, seen(None, owned()));
    assert_eq!((decision.actions.as_slice(), finalizers(&decision)), ([].as_slice(), 0));

    let failed = migration("Failed", json!({}));
    let decision = see(&failed, &kept(), seen(source(), new()));
    assert_eq!((decision.actions.as_slice(), finalizers(&decision)), ([delete("b")].as_slice(), 1));
    let decision = see(&failed, &kept(), seen(source(), None));
    assert_eq!((decision.actions.as_slice(), finalizers(&decision)), ([].as_slice(), 0));
    // It failed in the words of a controller that did not see the guest arrive.
    let decision = see(&failed, &there, seen(source(), owned()));
    assert_eq!(decision.actions, [delete("a")]);
}
