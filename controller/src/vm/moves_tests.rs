use serde_json::json;

use super::*;
use crate::vm::instance::{is_outdated, render};

fn claim_of(name: &str, mode: &str) -> (String, Option<PersistentVolumeClaim>) {
    let claim =
        json!({"metadata": {"name": name}, "spec": {"accessModes": [mode]}, "status": {"phase": "Bound"}});
    (name.to_owned(), Some(serde_json::from_value(claim).unwrap()))
}

fn vm(claim: &str, strategy: &str) -> VirtualMachine {
    let vm = json!({
        "metadata": {"name": "vm", "namespace": "shop", "uid": "u"},
        "spec": {
            "updateVolumesStrategy": strategy,
            "template": {"spec": {
                "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": claim}}],
            }},
        },
    });
    serde_json::from_value(vm).unwrap()
}

/// The instance that `vm` starts, on a claim of one node.
fn running(vm: &VirtualMachine) -> VirtualMachineInstance {
    let mut vmi = render(vm, false);
    vmi.metadata.resource_version = Some("7".into());
    let claim = claim(&vmi.spec.volumes[0]).unwrap().name.to_owned();
    vmi.status = serde_json::from_value(json!({
        "phase": "Running",
        "volumeStatus": [{"name": "root", "target": "vda",
            "persistentVolumeClaimInfo": {"claimName": claim, "accessModes": ["ReadWriteOnce"]}}],
    }))
    .unwrap();
    vmi
}

fn judged(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Moves {
    let claims = [claim_of("old", "ReadWriteOnce"), claim_of("new", "ReadWriteOnce")].into();
    let cdi = Cdi { data: &DataVolumes::new().0, settings: &Kept::new().0 };
    judge(vm, vmi, &claims, cdi, Timestamp::UNIX_EPOCH)
}

fn patched(vmi: &VirtualMachineInstance, moves: &Moves) -> VirtualMachineInstance {
    let Moves::Change { operations, .. } = moves else { panic!("{moves:?}") };
    let mut value = serde_json::to_value(vmi).unwrap();
    let patch: json_patch::Patch = serde_json::from_value(operations.clone().into()).unwrap();
    json_patch::patch(&mut value, &patch).unwrap();
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_volume_moves_to_the_claim_that_the_template_names() {
    let (before, after) = (vm("old", "Replacement"), vm("new", "Migration"));
    let vmi = running(&before);
    assert_eq!(claims_to_know(&after, &vmi), ["old", "new"]);
    assert!(!is_outdated(&after, &vmi), "it needs no restart");
    assert!(is_outdated(&vm("new", "Replacement"), &vmi));
    let moves = judged(&after, &vmi);
    let moving = patched(&vmi, &moves);
    assert_eq!(claim(&moving.spec.volumes[0]).unwrap().name, "new");
    assert!(podvirt_api::storage::moving(&moving, &moving.spec.volumes[0]).is_some());
    let said = moving.status.conditions.iter().find(|c| c.r#type.as_str() == VOLUMES_CHANGE).unwrap();
    assert_eq!((said.status.as_str(), said.message.as_deref()), (TRUE, Some(MIGRATES)));
    assert!(!is_outdated(&after, &moving));
    assert_eq!(judged(&after, &moving), Moves::None, "it is under way");
    // It arrives: nothing is left to do, also where the strategy is another one then.
    let mut there = moving.clone();
    podvirt_api::storage::arrived(&mut there);
    assert_eq!(judged(&after, &there), Moves::None);
    assert!(!is_outdated(&vm("new", "Replacement"), &there));
    // And back.
    assert!(
        matches!(judged(&vm("old", "Migration"), &there), Moves::Change { begun, .. } if begun.len() == 1)
    );
}

#[test]
fn what_is_reverted_stays_once_no_migration_is_under_way() {
    let vmi = running(&vm("old", "Replacement"));
    let moving = patched(&vmi, &judged(&vm("new", "Migration"), &vmi));
    let back = vm("old", "Migration");
    let cancelled = patched(&moving, &judged(&back, &moving));
    assert_eq!(cancelled.spec, moving.spec, "first the migration is aborted");
    let said = cancelled.status.conditions.iter().find(|c| c.r#type.as_str() == VOLUMES_CHANGE).unwrap();
    assert_eq!((said.status.as_str(), said.reason.as_deref()), (FALSE, Some("VolumesChangeCancellation")));
    let mut moves = cancelled.clone();
    let state = json!({"migrationUid": "m", "startTimestamp": "2026-01-01T00:00:00Z"});
    moves.status.migration_state = serde_json::from_value(state).unwrap();
    assert_eq!(judged(&back, &moves), Moves::None);
    let stays = patched(&cancelled, &judged(&back, &cancelled));
    assert_eq!(stays.spec, vmi.spec);
    assert!(stays.status.migrated_volumes.is_empty() && !is_outdated(&back, &stays));
    let third =
        Moves::Refused("The volume can only be reverted to the previous version during the update".into());
    assert_eq!(judged(&vm("third", "Migration"), &moving), third);
}

#[test]
fn what_cannot_move_is_told() {
    let vmi = running(&vm("old", "Replacement"));
    let missing = judged(&vm("none", "Migration"), &vmi);
    let told = patched(&vmi, &missing);
    let said = &told.status.conditions[0];
    assert_eq!(
        said.message.as_deref(),
        Some("One of the destination volumes doesn't exist: persistentvolumeclaim none not found")
    );
    assert_eq!(judged(&vm("none", "Migration"), &told), Moves::None, "once");
    let mut shared = vmi.clone();
    shared.spec.domain.devices.disks[0].shareable = Some(true);
    let why = Moves::Refused("invalid volumes to update with migration: shareable: [root]".into());
    assert_eq!(judged(&vm("new", "Migration"), &shared), why);
    let mut fixed = vmi.clone();
    let mut plugged = vm("new", "Migration");
    let mut of_template = |cdrom: bool| {
        let spec = plugged.spec.template.as_mut().unwrap().spec.as_mut().unwrap();
        spec.volumes[0].persistent_volume_claim.as_mut().unwrap().hotpluggable = Some(true);
        if cdrom {
            spec.domain.devices.disks =
                serde_json::from_value(json!([{"name": "root", "cdrom": {"bus": "sata"}}])).unwrap();
        }
        plugged.clone()
    };
    let why = Moves::Refused("invalid volumes to update with migration: hotplugged: [root]".into());
    assert_eq!(judged(&of_template(false), &fixed), why, "it would be another kind of volume");
    fixed.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().hotpluggable = Some(true);
    assert!(matches!(judged(&of_template(false), &fixed), Moves::Change { begun, .. } if begun.len() == 1));
    assert_eq!(judged(&of_template(true), &fixed), Moves::None, "another medium is put into the drive");
    let mut more = vmi.clone();
    let told = json!({"name": "data", "target": "vdb", "persistentVolumeClaimInfo": {"claimName": "d", "accessModes": ["ReadWriteOnce"]}});
    more.status.volume_status.push(serde_json::from_value(told).unwrap());
    let Moves::Refused(why) = judged(&vm("new", "Migration"), &more) else { panic!() };
    assert_eq!(
        why,
        "cannot migrate the VM. The volume data is RWO and not included in the migration volumes"
    );
}

#[test]
fn a_machine_that_ended_meanwhile_waits_for_a_person() {
    let now = Timestamp::UNIX_EPOCH;
    let vmi = running(&vm("old", "Replacement"));
    let mut after = vm("new", "Migration");
    let moves = judged(&after, &vmi);
    let mut status = VirtualMachineStatus::default();
    tell(&after, Some(&vmi), &moves, &mut status, now);
    let moved = &status
        .volume_update_state
        .as_ref()
        .unwrap()
        .volume_migration_state
        .as_ref()
        .unwrap()
        .migrated_volumes;
    assert_eq!(moved.len(), 1);
    condition::follow(&mut status, Some(&patched(&vmi, &moves)), false, now);
    after.status = status.clone();
    tell(&after, None, &Moves::None, &mut status, now);
    assert!(needs_recovery(&status));
    // The move was done before the guest shut down, and the machine's status is older than that.
    let mut arrived = patched(&vmi, &moves);
    arrived.status.phase = Some("Succeeded".into());
    let mut half = status.clone();
    half.conditions.retain(|c| c.r#type.as_str() != "ManualRecoveryRequired");
    let mut told = half.clone();
    tell(&after, Some(&arrived), &Moves::None, &mut told, now);
    assert!(needs_recovery(&told), "it ended in the middle");
    arrived.status.migrated_volumes.clear();
    tell(&after, Some(&arrived), &Moves::None, &mut half, now);
    assert!(!needs_recovery(&half));
    let mut back = vm("old", "Migration");
    back.status = status.clone();
    tell(&back, None, &Moves::None, &mut status, now);
    assert!(!needs_recovery(&status) && status.volume_update_state.unwrap().volume_migration_state.is_none());
}
