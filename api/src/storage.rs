//! What a live migration does with the volumes of a machine: the one rule by which virt-controller judges and by which
//! both launchers act.
//!
//! ```text
//!  claims ──> virt-controller ──> status.volumeStatus[].persistentVolumeClaimInfo   what is known of each claim
//!                            └──> status.migrationMethod, LiveMigratable            its judgement, by `fates`
//!  the machine with its status ──> virt-handler ──> launchers at both ends          `verdict`, before anything moves
//! ```
//!
//! The file on a claim is the same file at both ends, or the machine does not move: a claim is never copied, since a copy
//! of a file onto itself destroys it. The one exception is a volume that moves to another claim ([`moving`]): the pod at the
//! target has it. So a launcher goes by virt-controller's judgement and by nothing else. It finds the
//! fates by the same rule from the same status, and moves the machine only if the method that virt-controller wrote is the
//! one that they lead to. Without that judgement, and with one that contradicts, the launcher refuses the migration.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::v1::{
    PersistentVolumeClaimInfo, PersistentVolumeClaimVolumeSource, StorageMigratedVolumeInfo, UtilityVolume,
    VirtualMachineInstance, VirtualMachineInstanceConditionType as ConditionType,
    VirtualMachineInstanceMigrationMethod as Method, Volume, VolumeStatus,
};

/// What becomes of a volume when its machine moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Both ends have the same file, on a claim.
    Shared,
    /// It is a file of the pod. What the guest wrote is copied.
    Copied,
    /// It is on another claim at the target, to which it is copied.
    Moved,
    /// It is made anew from the manifest; where the guest could write to it, it is copied besides.
    MadeAnew,
}

/// Why a machine cannot be moved with its volumes, or why that is not certain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Two nodes cannot have the claim at a time.
    #[error(
        "volume {volume}: PersistentVolumeClaim {claim} is not ReadWriteMany, nor ReadOnlyMany under a volume with \
         readOnly: true, and podvirt does not copy claims"
    )]
    Local {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
    },
    /// The volume is of one node.
    #[error("volume {0}: a hostDisk is a file of its node")]
    HostDisk(String),
    /// The volume has another source, or none.
    #[error(
        "volume {0}: its source cannot be moved; allowed: containerDisk, emptyDisk, ephemeral, persistentVolumeClaim, \
         dataVolume, cloudInitNoCloud, cloudInitConfigDrive, configMap, secret, downwardAPI, serviceAccount, \
         sysprep and downwardMetrics"
    )]
    Source(String),
    /// The machine's status does not tell of the claim.
    #[error("status.volumeStatus: nothing is told of PersistentVolumeClaim {claim} of the volume {volume}")]
    Untold {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
    },
    /// virt-controller has not said how the machine moves, or has said that it cannot.
    #[error("status.migrationMethod: virt-controller has not said how the machine moves")]
    Unjudged,
    /// virt-controller says something else than the volumes do.
    #[error(
        "status.migrationMethod: '{told}' contradicts the machine's volumes, by which it is {own}; nothing is moved"
    )]
    Contradiction {
        /// What virt-controller wrote.
        told: String,
        /// What follows from the volumes.
        own: Method,
    },
}

/// A claim that a volume names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the machine only reads it.
    pub read_only: bool,
}

/// The claim of a volume, if it has one. That of a DataVolume has the DataVolume's name.
pub fn claim(volume: &Volume) -> Option<Claim<'_>> {
    if let Some(data) = &volume.data_volume {
        return Some(Claim { name: &data.name, read_only: false });
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(Claim { name: &claim.claim_name, read_only: claim.read_only == Some(true) });
    }
    if let Some(dump) = &volume.memory_dump {
        return Some(Claim { name: &dump.claim_name, read_only: false });
    }
    // The overlay takes the writes: the claim itself is never written.
    let claim = volume.ephemeral.as_ref()?.persistent_volume_claim.as_ref()?;
    Some(Claim { name: &claim.claim_name, read_only: true })
}

/// Whether a volume's disk is plugged once its machine runs, and may be unplugged; also a volume that a dump of the machine's memory
/// is written to, which is no disk.
pub fn is_hotpluggable(volume: &Volume) -> bool {
    if volume.memory_dump.is_some() {
        return true;
    }
    let data = volume.data_volume.as_ref().and_then(|data| data.hotpluggable);
    let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.hotpluggable);
    data == Some(true) || claim == Some(true)
}

/// The volumes of a machine, those that its backups write to among them.
pub fn volumes(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Cow<'_, Volume>> {
    let utility = vmi.spec.utility_volumes.iter().map(utility).map(Cow::Owned);
    vmi.spec.volumes.iter().map(Cow::Borrowed).chain(utility)
}

/// A utility volume as a volume of a machine: its claim comes and goes while the machine runs, and no disk has it.
fn utility(volume: &UtilityVolume) -> Volume {
    let source = PersistentVolumeClaimVolumeSource {
        claim_name: volume.claim_name.clone(),
        read_only: volume.read_only,
        hotpluggable: Some(true),
    };
    let name = volume.name.clone();
    Volume { name, persistent_volume_claim: Some(source), ..Volume::default() }
}

/// Whether a volume is one that no disk has, but a backup's files.
pub fn is_utility(vmi: &VirtualMachineInstance, volume: &str) -> bool {
    vmi.spec.utility_volumes.iter().any(|utility| utility.name == volume)
}

/// Whether a claim is a block device in the pod, not a directory.
pub fn is_block(claim: &PersistentVolumeClaimInfo) -> bool {
    claim.volume_mode.as_deref() == Some("Block")
}

/// How the volume is moving to another claim: the specification names that claim already, and the status still tells of the one that
/// the machine runs on.
pub fn moving<'a>(vmi: &'a VirtualMachineInstance, volume: &Volume) -> Option<&'a StorageMigratedVolumeInfo> {
    let wanted = claim(volume).filter(|claim| !claim.read_only)?;
    let moved = vmi.status.migrated_volumes.iter().find(|moved| moved.volume_name == volume.name)?;
    let name = |info: &'a Option<PersistentVolumeClaimInfo>| info.as_ref()?.claim_name.as_deref();
    let (source, destination) = (name(&moved.source_pvc_info)?, name(&moved.destination_pvc_info)?);
    let told = vmi.status.volume_status.iter().find(|told| told.name == volume.name)?;
    let here = name(&told.persistent_volume_claim_info)?;
    (destination == wanted.name && here == source && source != destination).then_some(moved)
}

/// The machine has arrived at the target, with the volumes that moved to other claims: its status tells of these now.
pub fn arrived(vmi: &mut VirtualMachineInstance) {
    let moved: Vec<StorageMigratedVolumeInfo> =
        vmi.spec.volumes.iter().filter_map(|volume| moving(vmi, volume).cloned()).collect();
    for moved in moved {
        let told = vmi.status.volume_status.iter_mut().find(|told| told.name == moved.volume_name);
        if let Some(told) = told {
            told.persistent_volume_claim_info = moved.destination_pvc_info;
        }
    }
    if !vmi.status.migrated_volumes.is_empty() {
        vmi.status.migrated_volumes.clear();
        vmi.status.conditions.retain(|condition| condition.r#type != ConditionType::VolumesChange);
    }
}

/// What is told of the claims that a pod of the machine has that is made now, by the volume's name.
pub fn told_of_next(vmi: &VirtualMachineInstance) -> BTreeMap<String, PersistentVolumeClaimInfo> {
    let mut all = told(vmi);
    all.extend(vmi.spec.volumes.iter().filter_map(|volume| {
        Some((volume.name.clone(), moving(vmi, volume)?.destination_pvc_info.clone()?))
    }));
    all
}

/// What the machine's status tells of its volumes' claims, by the volume's name.
pub fn told(vmi: &VirtualMachineInstance) -> BTreeMap<String, PersistentVolumeClaimInfo> {
    let status = &vmi.status.volume_status;
    let of = |volume: &Volume| Some((volume.name.clone(), info(volume, &claim(volume)?, status)?.clone()));
    vmi.spec.volumes.iter().filter_map(of).collect()
}

/// What the status tells of the claim of a volume. What it tells of another claim, which the volume had before, does not count.
fn info<'a>(
    volume: &Volume,
    claim: &Claim<'_>,
    told: &'a [VolumeStatus],
) -> Option<&'a PersistentVolumeClaimInfo> {
    told.iter()
        .find(|status| status.name == volume.name)
        .and_then(|status| status.persistent_volume_claim_info.as_ref())
        .filter(|info| info.claim_name.as_deref() == Some(claim.name))
}

/// What becomes of each volume of the machine, by the volume's name, as far as the status tells of its claims.
///
/// # Errors
///
/// The machine cannot be moved, or the status does not tell enough.
pub fn fates(vmi: &VirtualMachineInstance) -> Result<BTreeMap<&str, Fate>, Obstacle> {
    vmi.spec.volumes.iter().map(|volume| Ok((volume.name.as_str(), fate(volume, vmi)?))).collect()
}

/// How a machine moves whose volumes have these fates.
pub fn method(fates: &BTreeMap<&str, Fate>) -> Method {
    if fates.values().any(|fate| matches!(fate, Fate::Copied | Fate::Moved)) {
        Method::BlockMigration
    } else {
        Method::LiveMigration
    }
}

/// What becomes of each volume by virt-controller's judgement, for a launcher.
///
/// # Errors
///
/// There is no judgement, or it contradicts what the status tells of the volumes: nothing may be moved.
pub fn verdict(vmi: &VirtualMachineInstance) -> Result<BTreeMap<&str, Fate>, Obstacle> {
    let told = vmi.status.migration_method.as_ref().ok_or(Obstacle::Unjudged)?;
    let fates = fates(vmi)?;
    let own = method(&fates);
    if *told != own {
        return Err(Obstacle::Contradiction { told: told.to_string(), own });
    }
    Ok(fates)
}

fn fate(volume: &Volume, vmi: &VirtualMachineInstance) -> Result<Fate, Obstacle> {
    let name = || volume.name.clone();
    if let Some(claim) = claim(volume) {
        if moving(vmi, volume).is_some() {
            return Ok(Fate::Moved);
        }
        let Some(info) = info(volume, &claim, &vmi.status.volume_status) else {
            return Err(Obstacle::Untold { volume: name(), claim: claim.name.to_owned() });
        };
        let has = |mode: &str| info.access_modes.iter().any(|one| one == mode);
        if !(has("ReadWriteMany") || (claim.read_only && has("ReadOnlyMany"))) {
            return Err(Obstacle::Local { volume: name(), claim: claim.name.to_owned() });
        }
        return Ok(if volume.ephemeral.is_some() { Fate::Copied } else { Fate::Shared });
    }
    if volume.host_disk.is_some() {
        Err(Obstacle::HostDisk(name()))
    } else if volume.container_disk.is_some() || volume.empty_disk.is_some() {
        Ok(Fate::Copied)
    } else if volume.cloud_init_no_cloud.is_some()
        || volume.cloud_init_config_drive.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.service_account.is_some()
        || volume.sysprep.is_some()
        || volume.downward_metrics.is_some()
    {
        Ok(Fate::MadeAnew)
    } else {
        Err(Obstacle::Source(name()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(volume: Value, info: Value, method: Value) -> VirtualMachineInstance {
        let mut volume = volume;
        volume["name"] = "root".into();
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"domain": {"devices": {}}, "volumes": [volume]},
            "status": {"migrationMethod": method,
                "volumeStatus": [{"name": "root", "target": "", "persistentVolumeClaimInfo": info}]},
        }))
        .unwrap()
    }

    fn fate_of(volume: Value, modes: &[&str]) -> Result<Fate, String> {
        let vmi = machine(volume, json!({"claimName": "data", "accessModes": modes}), Value::Null);
        fates(&vmi).map(|fates| fates["root"]).map_err(|obstacle| obstacle.to_string())
    }

    #[test]
    fn a_claim_is_the_same_at_both_ends_or_the_machine_stays() {
        let claim =
            |read_only: bool| json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}});
        let overlay = json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}});
        for (volume, modes, fate) in [
            (claim(false), &["ReadWriteOnce", "ReadWriteMany"][..], Fate::Shared),
            (claim(true), &["ReadOnlyMany"], Fate::Shared),
            (json!({"dataVolume": {"name": "data"}}), &["ReadWriteMany"], Fate::Shared),
            (overlay.clone(), &["ReadWriteMany"], Fate::Copied),
            (overlay.clone(), &["ReadOnlyMany"], Fate::Copied),
        ] {
            assert_eq!(fate_of(volume.clone(), modes), Ok(fate), "{volume} {modes:?}");
        }
        for (volume, modes) in [
            (claim(false), &["ReadWriteOnce"][..]),
            (claim(true), &["ReadWriteOnce"]),
            // It is to be written.
            (claim(false), &["ReadOnlyMany"]),
            (claim(false), &["ReadWriteOncePod"]),
            (claim(false), &[]),
            (overlay, &["ReadWriteOnce"]),
        ] {
            let why = fate_of(volume.clone(), modes).unwrap_err();
            assert!(why.starts_with("volume root: PersistentVolumeClaim data is not ReadWriteMany"), "{why}");
        }
    }

    #[test]
    fn a_volume_moves_from_the_claim_that_the_machine_runs_on_to_another_one() {
        let vmi = |runs_on: &str, moved: Value| {
            let volume = json!({"persistentVolumeClaim": {"claimName": "new"}});
            let mut vmi = machine(
                volume,
                json!({"claimName": runs_on, "accessModes": ["ReadWriteOnce"]}),
                json!("BlockMigration"),
            );
            vmi.status.migrated_volumes = serde_json::from_value(moved).unwrap();
            vmi
        };
        let from = |source: &str, destination: &str| {
            json!([{"volumeName": "root", "sourcePVCInfo": {"claimName": source},
                "destinationPVCInfo": {"claimName": destination, "volumeMode": "Block"}}])
        };
        let moves = vmi("old", from("old", "new"));
        assert_eq!(verdict(&moves).unwrap()["root"], Fate::Moved);
        assert!(told(&moves).is_empty());
        assert!(is_block(&told_of_next(&moves)["root"]));
        let mut there = moves.clone();
        arrived(&mut there);
        assert!(there.status.migrated_volumes.is_empty());
        assert!(is_block(&told(&there)["root"]));
        // The machine has arrived, or what is written is not of one piece: nothing is copied onto itself.
        for other in [
            vmi("new", from("old", "new")),
            vmi("new", from("new", "new")),
            vmi("old", from("old", "third")),
            vmi("old", json!([])),
        ] {
            assert!(verdict(&other).is_err(), "{:?}", other.status);
        }
    }

    #[test]
    fn files_of_the_pod_are_copied_and_those_of_a_node_stay() {
        for (volume, fate) in [
            (json!({"containerDisk": {"image": "d"}}), Fate::Copied),
            (json!({"emptyDisk": {"capacity": "1Gi"}}), Fate::Copied),
            (json!({"cloudInitNoCloud": {"userData": "x"}}), Fate::MadeAnew),
            (json!({"cloudInitConfigDrive": {"userData": "x"}}), Fate::MadeAnew),
            (json!({"configMap": {"name": "x"}}), Fate::MadeAnew),
            (json!({"serviceAccount": {"serviceAccountName": "x"}}), Fate::MadeAnew),
            (json!({"downwardMetrics": {}}), Fate::MadeAnew),
        ] {
            assert_eq!(fate_of(volume.clone(), &[]), Ok(fate), "{volume}");
        }
        for volume in [json!({"hostDisk": {"path": "/x", "type": "Disk", "shared": true}}), json!({})] {
            let why = fate_of(volume.clone(), &["ReadWriteMany"]).unwrap_err();
            assert!(why.starts_with("volume root: "), "{volume}: {why}");
        }
    }

    #[test]
    fn without_a_judgement_or_against_it_nothing_moves() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        let shared = json!({"claimName": "data", "accessModes": ["ReadWriteMany"]});
        let other = json!({"claimName": "other", "accessModes": ["ReadWriteMany"]});
        let disk = json!({"containerDisk": {"image": "d"}});
        let live = json!("LiveMigration");
        for (volume, info, method, why) in [
            (&claim, &shared, json!(null), "status.migrationMethod: virt-controller has not said"),
            (
                &claim,
                &shared,
                json!("BlockMigration"),
                "status.migrationMethod: 'BlockMigration' contradicts",
            ),
            (&claim, &shared, json!("Teleport"), "status.migrationMethod: 'Teleport' contradicts"),
            (
                &claim,
                &json!(null),
                live.clone(),
                "status.volumeStatus: nothing is told of PersistentVolumeClaim data",
            ),
            (
                &claim,
                &other,
                live.clone(),
                "status.volumeStatus: nothing is told of PersistentVolumeClaim data",
            ),
            (&disk, &json!(null), live.clone(), "status.migrationMethod: 'LiveMigration' contradicts"),
        ] {
            let said = verdict(&machine(volume.clone(), info.clone(), method)).unwrap_err().to_string();
            assert!(said.starts_with(why), "{volume} {info}: {said}");
        }
        assert_eq!(verdict(&machine(claim, shared, live)).unwrap()["root"], Fate::Shared);
        assert_eq!(
            verdict(&machine(disk, json!(null), json!("BlockMigration"))).unwrap()["root"],
            Fate::Copied
        );
    }
}
