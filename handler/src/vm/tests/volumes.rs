//! Volumes that are plugged into the running machine.

use podvirt_proto::domain::{Disk, MemoryDump};
use serde_json::{Value, json};

use super::*;

/// A running machine with the volume `data`, hotpluggable, in its specification or not; what its status tells of it; the launcher
/// has its disk, and the guest.
fn pass(wanted: bool, told: Value, held: bool, plugged: bool) -> Pass {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}});
    let volumes = if wanted { vec![volume] } else { vec![] };
    pass.vmi.spec.volumes = serde_json::from_value(volumes.into()).unwrap();
    let mut status = json!({"name": "data", "target": ""});
    json_patch::merge(&mut status, &told);
    pass.vmi.status.volume_status =
        serde_json::from_value(json!([status, {"name": "root", "target": "vda"}])).unwrap();
    let domain = pass.domain.as_mut().unwrap();
    domain.volumes = if held { vec!["data".into()] } else { vec![] };
    let disk =
        |name: &str, target: &str| Disk { name: name.into(), target: target.into(), ..Disk::default() };
    domain.disks = vec![disk("root", "vda")];
    if plugged {
        domain.disks.push(disk("data", "sda"));
    }
    pass
}

fn attached(phase: &str, uid: &str) -> Value {
    json!({"phase": phase, "hotplugVolume": {"attachPodName": "hp", "attachPodUID": uid}})
}

/// The volume's phase, its target and the event.
fn seen(pass: &Pass) -> (String, String, Vec<&'static str>) {
    let decision = pass.decide();
    let told = &decision.status.volume_status[0];
    let phase = told.phase.as_ref().map(|phase| phase.as_str().to_owned()).unwrap_or_default();
    (phase, told.target.clone(), decision.events.iter().map(|event| event.reason).collect())
}

#[test]
fn a_volumes_phase_follows_the_launchers_report() {
    for (wanted, phase, held, plugged, next, event) in [
        (true, "AttachedToNode", false, false, "AttachedToNode", None),
        (true, "AttachedToNode", true, false, "MountedToPod", Some("VolumeMountedToPod")),
        (true, "AttachedToNode", true, true, "Ready", Some("VolumeReady")),
        (true, "MountedToPod", true, true, "Ready", Some("VolumeReady")),
        (true, "Ready", true, true, "Ready", None),
        (false, "Ready", true, true, "Ready", None),
        (false, "Ready", true, false, "Ready", None),
        (false, "Ready", false, false, "UnMountedFromPod", Some("VolumeUnMountedFromPod")),
        (false, "Detaching", false, false, "Detaching", None),
    ] {
        let pass = pass(wanted, attached(phase, "u"), held, plugged);
        let target = if plugged { "sda" } else { "" };
        let expected = (next.to_owned(), target.to_owned(), event.into_iter().collect());
        assert_eq!(seen(&pass), expected, "{wanted} {phase} {held} {plugged}");
    }
    // One that the machine was started with has no phase.
    let fixed = pass(true, json!({}), false, true);
    assert_eq!(seen(&fixed), (String::new(), "sda".into(), vec![]));
}

#[test]
fn a_handler_that_comes_new_sees_what_is_to_be_plugged_and_unplugged() {
    for (wanted, uid, held, plugged, due) in [
        (true, "u", false, false, true),
        (true, "", false, false, false),
        (true, "u", true, true, false),
        (false, "u", true, true, true),
        (false, "u", false, false, false),
    ] {
        let pass = pass(wanted, attached("AttachedToNode", uid), held, plugged);
        let sync = due.then(|| Action::Sync(spec_hash(&pass.vmi)));
        assert_eq!(pass.decide().action, sync, "{wanted} {uid} {held} {plugged}");
    }
}

#[test]
fn the_launcher_hears_of_a_volume_whose_attachment_pod_is_ready() {
    let mut before = pass(true, attached("AttachedToNode", ""), false, false);
    before.memory.synced = Some(spec_hash(&before.vmi));
    assert_eq!(before.decide().action, None);
    let mut after = pass(true, attached("AttachedToNode", "u"), false, false);
    after.memory.synced = before.memory.synced;
    assert_eq!(after.decide().action, Some(Action::Sync(spec_hash(&after.vmi))));
}

#[test]
fn a_machine_starts_once_all_its_volumes_are_attached() {
    let starting = |uid: &str| {
        let mut pass = pass(true, attached("AttachedToNode", uid), false, false);
        pass.domain = Some(domain(Status::NoState, ""));
        pass.vmi.status.phase = Some(Phase::Scheduled);
        pass.vmi.status.volume_status[0].message = Some("PVC is in phase ClaimPending".into());
        pass
    };
    let waits = starting("").decide();
    assert_eq!(waits.action, None);
    let said = waits.status.conditions.iter().find(|c| c.r#type == Type::Synchronized).unwrap();
    let expected = "the disk of volume data: PVC is in phase ClaimPending";
    assert_eq!(said.message.as_deref(), Some(expected));
    assert!(waits.events.is_empty());
    // An event tells what lasts.
    let mut long = starting("");
    let since = json!([{"phase": "Scheduled", "phaseTransitionTimestamp": at(70).to_string()}]);
    long.vmi.status.phase_transition_timestamps = serde_json::from_value(since).unwrap();
    assert!(long.decide().events.iter().any(|event| event.message.ends_with(expected)));
    let ready = starting("u");
    assert_eq!(ready.decide().action, Some(Action::Sync(spec_hash(&ready.vmi))));
}

/// A running machine whose memory is dumped to the volume `data`; the launcher has the file, and tells this of the dump.
fn dumping(wanted: bool, phase: &str, held: bool, report: Option<(Option<u64>, &str)>) -> Pass {
    let mut told = attached(phase, "u");
    told["memoryDumpVolume"] = json!({"claimName": "c", "targetFileName": "f"});
    let mut pass = pass(wanted, told, held, false);
    for volume in &mut pass.vmi.spec.volumes {
        *volume = podvirt_api::memory_dump::volume("c");
        volume.name = "data".into();
    }
    pass.domain.as_mut().unwrap().memory_dump = report.map(|(ended_at_ms, failure)| MemoryDump {
        file: "f".into(),
        volume: "data".into(),
        started_at_ms: 1_000,
        ended_at_ms,
        failure: failure.into(),
    });
    pass
}

#[test]
fn how_a_memory_dump_ends_is_told_and_its_file_let_go_of() {
    for (wanted, phase, held, report, next, event) in [
        (true, "AttachedToNode", false, None, "AttachedToNode", None),
        (true, "AttachedToNode", true, None, "AttachedToNode", None),
        (true, "AttachedToNode", true, Some((None, "")), "MemoryDumpInProgress", Some("VolumeMountedToPod")),
        (true, "MemoryDumpInProgress", true, Some((None, "")), "MemoryDumpInProgress", None),
        (
            true,
            "MemoryDumpInProgress",
            true,
            Some((Some(2_000), "")),
            "MemoryDumpCompleted",
            Some("VolumeReady"),
        ),
        (
            true,
            "AttachedToNode",
            true,
            Some((Some(2_000), "no room")),
            "MemoryDumpFailed",
            Some("MemoryDumpError"),
        ),
        (false, "MemoryDumpCompleted", true, Some((Some(2_000), "")), "MemoryDumpCompleted", None),
        (
            false,
            "MemoryDumpCompleted",
            false,
            Some((Some(2_000), "")),
            "UnMountedFromPod",
            Some("VolumeUnMountedFromPod"),
        ),
        (false, "MemoryDumpFailed", false, None, "UnMountedFromPod", Some("VolumeUnMountedFromPod")),
    ] {
        let pass = dumping(wanted, phase, held, report);
        let expected = (next.to_owned(), String::new(), event.into_iter().collect());
        assert_eq!(seen(&pass), expected, "{wanted} {phase} {held} {report:?}");
    }
    let ended = dumping(true, "MemoryDumpInProgress", true, Some((Some(2_000), "no room"))).decide();
    let told = serde_json::to_value(&ended.status.volume_status[0]).unwrap();
    assert_eq!(told["message"], "Memory dump to pvc data failed: no room");
    let times = json!({"claimName": "c", "targetFileName": "f", "startTimestamp": "1970-01-01T00:00:01Z", "endTimestamp": "1970-01-01T00:00:02Z"});
    assert_eq!(told["memoryDumpVolume"], times);
}

#[test]
fn a_handler_that_comes_new_has_the_memory_dumped_that_is_not_yet() {
    for (report, due) in [(None, true), (Some((None, "")), false), (Some((Some(2_000), "")), false)] {
        let pass = dumping(true, "AttachedToNode", true, report);
        let sync = due.then(|| Action::Sync(spec_hash(&pass.vmi)));
        assert_eq!(pass.decide().action, sync, "{report:?}");
    }
}

#[test]
fn a_guest_that_stands_still_for_a_memory_dump_is_not_paused() {
    let mut pass = dumping(true, "MemoryDumpInProgress", true, Some((None, "")));
    let domain = pass.domain.as_mut().unwrap();
    (domain.status, domain.reason) = (Status::Paused, reason::DUMP.into());
    assert!(pass.decide().status.conditions.iter().all(|condition| condition.r#type != Type::Paused));
}
