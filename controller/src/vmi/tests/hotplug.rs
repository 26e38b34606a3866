//! Volumes that are plugged into a running machine, and the pods that hold their claims.

use podvirt_api::names::{attachment_name, target_attachment_name};
use podvirt_api::v1::PersistentVolumeClaimInfo;

use super::*;
use crate::template::{claims_of, volumes_of};
use crate::vmi::data::Filling;
use crate::vmi::observe;

/// A running machine with these hotpluggable volumes, whose claims have their names; its status tells of `told`.
fn plugged(volumes: &[&str], told: Value) -> VirtualMachineInstance {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
    let volumes: Vec<Value> = volumes.iter().map(volume).collect();
    handed_over("Running", json!({"spec": {"volumes": volumes}, "status": {"volumeStatus": told}}))
}

/// The attachment pod of the launcher pod `launcher` for these volumes.
fn attachment(launcher: &str, uid: &str, volumes: &[&str], ready: bool) -> Arc<Pod> {
    let claims: Vec<Value> = volumes
        .iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    let pod = json!({
        "metadata": {"name": attachment_name(launcher, volumes.iter().copied()), "namespace": "shop", "uid": uid,
            "labels": {"kubevirt.io": "hotplug-disk"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": launcher, "controller": true}]},
        "spec": {"containers": [{"name": "hotplug-disk"}], "volumes": claims},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// What is told of claims that are bound.
fn bound(names: &[&str]) -> Told {
    let info = |name: &&str| {
        let info = json!({"claimName": name, "capacity": {"storage": "1Gi"}});
        ((*name).to_owned(), serde_json::from_value::<PersistentVolumeClaimInfo>(info).unwrap())
    };
    names.iter().map(info).collect()
}

struct Scene<'a> {
    vmi: &'a VirtualMachineInstance,
    pods: &'a [Arc<Pod>],
    attachments: &'a [Arc<Pod>],
    told: Told,
    problems: &'a [(String, Problem)],
}

impl Scene<'_> {
    fn see(&self) -> Decision {
        let settings = Settings::default();
        let seen = Observed {
            pods: self.pods,
            attachments: self.attachments,
            plug_claims: self.problems,
            claims_told: Some(&self.told),
            end_seen: SEEN_FOR,
            ..Observed::alone(self.vmi, &settings, "launcher:1")
        };
        decide(&seen, now())
    }
}

/// Names and claims of pods that are made, and names of those that are deleted.
fn done(decision: &Decision) -> (Vec<(String, String)>, Vec<String>) {
    let (mut made, mut deleted) = (Vec::new(), Vec::new());
    for action in &decision.actions {
        match action {
            Action::Create(pod) => {
                let claims: Vec<&str> = volumes_of(pod).collect();
                made.push((pod.metadata.name.clone().unwrap(), claims.join(" ")));
            }
            Action::Delete { uid, .. } => deleted.push(uid.clone()),
            _ => {}
        }
    }
    (made, deleted)
}

/// What the status tells of volumes: name, phase and the UID of the attachment pod.
fn told(decision: &Decision) -> Vec<String> {
    let line = |told: &podvirt_api::v1::VolumeStatus| {
        let uid = told.hotplug_volume.as_ref().and_then(|hotplug| hotplug.attach_pod_uid.clone());
        let phase = told.phase.as_ref().map_or("-", |phase| phase.as_str());
        format!("{} {phase} {}", told.name, uid.unwrap_or_else(|| "-".into()))
    };
    decision.vmi.status.volume_status.iter().map(line).collect()
}

fn ready(name: &str, pod: &str) -> Value {
    json!({"name": name, "target": "sda", "phase": "Ready", "hotplugVolume": {"attachPodName": pod, "attachPodUID": pod}})
}

#[test]
fn one_pod_holds_the_claims_that_are_usable_and_its_uid_is_told_once_it_is_ready() {
    let vmi = plugged(&["b", "a", "late"], json!([]));
    let pods = [running(json!({}))];
    let late = [("late".to_owned(), Problem::Missing)];
    let scene = |attachments: &[Arc<Pod>]| {
        Scene { vmi: &vmi, pods: &pods, attachments, told: bound(&["a", "b"]), problems: &late }.see()
    };
    let first = scene(&[]);
    assert_eq!(done(&first).0, [(attachment_name("p1", ["a", "b"]), "a b".to_owned())]);
    assert_eq!(told(&first), ["a Bound -", "b Bound -", "late Pending -"]);
    let note = first.notes.iter().find(|note| note.reason == "FailedPvcNotFound").unwrap();
    assert_eq!(note.message, "volume late: PVC late not found");
    let starts = scene(&[attachment("p1", "x", &["a", "b"], false)]);
    assert_eq!(done(&starts), (vec![], vec![]));
    assert_eq!(told(&starts), ["a AttachedToNode -", "b AttachedToNode -", "late Pending -"]);
    let runs = scene(&[attachment("p1", "x", &["a", "b"], true)]);
    assert_eq!(told(&runs), ["a AttachedToNode x", "b AttachedToNode x", "late Pending -"]);
}

#[test]
fn a_pod_is_replaced_once_the_next_one_is_ready_and_the_machine_keeps_what_it_has() {
    let pods = [running(json!({}))];
    let vmi = plugged(&["a", "b"], json!([ready("a", "x")]));
    let scene = |vmi: &VirtualMachineInstance, attachments: &[Arc<Pod>]| {
        Scene { vmi, pods: &pods, attachments, told: bound(&["a", "b"]), problems: &[] }.see()
    };
    let before = attachment("p1", "x", &["a"], true);
    let added = scene(&vmi, std::slice::from_ref(&before));
    assert_eq!(done(&added), (vec![(attachment_name("p1", ["a", "b"]), "a b".to_owned())], vec![]));
    assert_eq!(told(&added)[0], "a Ready x");
    let comes = scene(&vmi, &[before.clone(), attachment("p1", "y", &["a", "b"], false)]);
    assert_eq!(done(&comes), (vec![], vec![]));
    let there = scene(&vmi, &[before, attachment("p1", "y", &["a", "b"], true)]);
    assert_eq!(done(&there).1, ["x"]);
    assert_eq!(told(&there), ["a Ready y", "b AttachedToNode y"]);
}

/// A machine that gets a volume each second, whose pods take `start` seconds to be ready, in virtual time. Seconds until each volume was
/// attached, and the most attachment pods that there were at a time.
fn stream(count: usize, start: i64) -> (Vec<i64>, usize) {
    let names: Vec<String> = (0..count).map(|n| format!("v{n:02}")).collect();
    let (pods, settings) = ([running(json!({}))], Settings::default());
    let mut told = json!([]);
    let mut there: Vec<(i64, Arc<Pod>)> = Vec::new();
    let mut attached = std::collections::BTreeMap::new();
    let (mut most, mut made) = (0, 0);
    for second in 0..600 {
        let now = now() + jiff::SignedDuration::from_secs(second);
        let come = names.len().min(usize::try_from(second).unwrap() + 1);
        let volumes: Vec<&str> = names[..come].iter().map(String::as_str).collect();
        for (born, pod) in &mut there {
            let ready = if second - *born >= start { "True" } else { "False" };
            let conditions = json!([{"type": "Ready", "status": ready}]);
            Arc::make_mut(pod).status.as_mut().unwrap().conditions =
                serde_json::from_value(conditions).unwrap();
        }
        let vmi = plugged(&volumes, told);
        let attachments: Vec<_> = there.iter().map(|(_, pod)| pod.clone()).collect();
        let claims = bound(&volumes);
        let seen = Observed {
            pods: &pods,
            attachments: &attachments,
            claims_told: Some(&claims),
            ..Observed::alone(&vmi, &settings, "launcher:1")
        };
        let decision = decide(&seen, now);
        for action in decision.actions {
            match action {
                Action::Create(pod) => {
                    let volumes: Vec<&str> = volumes_of(&pod).collect();
                    made += 1;
                    let mut pod = attachment("p1", &format!("a{made}"), &volumes, false);
                    Arc::make_mut(&mut pod).metadata.creation_timestamp =
                        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
                    there.push((second, pod));
                }
                Action::Delete { uid, .. } => there.retain(|(_, pod)| observe::uid(pod) != uid),
                _ => {}
            }
        }
        most = most.max(there.len());
        // virt-handler plugs what is attached.
        let mut status = decision.vmi.status.volume_status;
        for volume in &mut status {
            if volume.hotplug_volume.as_ref().is_some_and(|hotplug| hotplug.attach_pod_uid.is_some()) {
                volume.phase = Some("Ready".into());
                attached.entry(volume.name.clone()).or_insert(second);
            }
        }
        told = serde_json::to_value(status).unwrap();
        if attached.len() == count && there.len() == 1 {
            let waited = names.iter().enumerate().map(|(n, name)| attached[name] - i64::try_from(n).unwrap());
            return (waited.collect(), most);
        }
    }
    panic!("not all volumes are attached: {attached:?}; pods: {}", there.len());
}

#[test]
fn a_stream_of_volumes_starves_none_of_them_and_leaves_no_pods() {
    for start in [2, 3, 20] {
        let (waited, most) = stream(40, start);
        // Each waits for the pod that starts when it comes, and for its own.
        assert!(waited.iter().all(|seconds| *seconds <= 2 * start + 2), "{start}: {waited:?}");
        assert!(most <= 3, "{start}: {most} pods");
    }
}

#[test]
fn a_pod_that_does_not_start_is_not_waited_for() {
    let pods = [running(json!({}))];
    let vmi = plugged(&["a", "b"], json!([]));
    let made = |more: Value| {
        let mut starts = serde_json::to_value(&*attachment("p1", "x", &["a"], false)).unwrap();
        json_patch::merge(&mut starts, &more);
        let attachments = [Arc::new(serde_json::from_value(starts).unwrap())];
        done(
            &Scene {
                vmi: &vmi,
                pods: &pods,
                attachments: &attachments,
                told: bound(&["a", "b"]),
                problems: &[],
            }
            .see(),
        )
    };
    assert_eq!(made(json!({})), (vec![], vec![]), "it starts");
    let next = || (vec![(attachment_name("p1", ["a", "b"]), "a b".to_owned())], vec!["x".to_owned()]);
    let nowhere = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    assert_eq!(made(json!({"status": {"conditions": [nowhere]}})), next());
    assert_eq!(made(json!({"metadata": {"creationTimestamp": "2026-01-01T11:58:00Z"}})), next());
    assert_eq!(made(json!({"metadata": {"creationTimestamp": "2026-01-01T11:58:01Z"}})), (vec![], vec![]));
}

#[test]
fn a_removed_volume_keeps_its_pod_until_the_launcher_has_closed_its_disk() {
    let pods = [running(json!({}))];
    let scene = |phase: &str, attachments: &[Arc<Pod>]| {
        let mut status = ready("a", "x");
        status["phase"] = phase.into();
        let vmi = plugged(&[], json!([status]));
        Scene { vmi: &vmi, pods: &pods, attachments, told: bound(&[]), problems: &[] }.see()
    };
    let holder = attachment("p1", "x", &["a"], true);
    let open = scene("Ready", std::slice::from_ref(&holder));
    assert_eq!((done(&open), told(&open)), ((vec![], vec![]), vec!["a Ready x".to_owned()]));
    let closed = scene("UnMountedFromPod", std::slice::from_ref(&holder));
    assert_eq!((done(&closed).1, told(&closed)), (vec!["x".to_owned()], vec!["a Detaching x".to_owned()]));
    assert!(told(&scene("Detaching", &[])).is_empty());
    // A user has deleted the pod: the machine goes on with the disk.
    assert_eq!(told(&scene("Ready", &[])), ["a Ready x"]);
}

#[test]
fn a_claim_that_waits_for_its_first_use_gets_one_and_delays_no_other() {
    let pods = [running(json!({}))];
    let vmi = plugged(&["a", "b", "c"], json!([]));
    let mut claims = bound(&["a", "b"]);
    claims
        .insert("c".into(), PersistentVolumeClaimInfo { claim_name: Some("c".into()), ..Default::default() });
    let waits = [("b".to_owned(), Problem::Filling(Filling::WaitsForConsumer))];
    let decision = Scene { vmi: &vmi, pods: &pods, attachments: &[], told: claims, problems: &waits }.see();
    let made: Vec<String> = done(&decision).0.into_iter().map(|(_, claims)| claims).collect();
    assert_eq!(made, ["b", "c", "a"]);
    assert_eq!(told(&decision), ["a Bound -", "b Pending -", "c Pending -"]);
}

#[test]
fn a_target_gets_its_pod_before_the_machine_moves_and_nothing_changes_while_it_does() {
    let target = running(
        json!({"metadata": {"uid": "p2", "name": "t", "labels": {"kubevirt.io/migrationJobUID": "j"}},
        "spec": {"nodeName": "n2"}}),
    );
    let pods = [running(json!({})), target];
    let own = attachment("p1", "x", &["a"], true);
    let vmi = plugged(&["a"], json!([ready("a", "x")]));
    let scene = |vmi: &VirtualMachineInstance| {
        let attachments = std::slice::from_ref(&own);
        Scene { vmi, pods: &pods, attachments, told: bound(&["a", "b"]), problems: &[] }.see()
    };
    assert_eq!(done(&scene(&vmi)).0, [(target_attachment_name("p2"), "a".to_owned())]);
    let state = json!({"migrationUid": "j", "sourcePod": "virt-launcher-web-p1", "targetPod": "t"});
    let mut moves = plugged(&["a", "b"], json!([ready("a", "x")]));
    moves.status.migration_state = Some(serde_json::from_value(state).unwrap());
    assert_eq!(done(&scene(&moves)), (vec![], vec![]));
}

#[test]
fn what_moves_to_another_claim_is_on_that_claim_at_the_target_alone() {
    let info = |claim: &str| json!({"claimName": claim});
    let mut told_of = ready("a", "x");
    told_of["persistentVolumeClaimInfo"] = info("a");
    let mut vmi = plugged(&["a"], json!([told_of]));
    vmi.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name = "other".into();
    let moved = json!([{"volumeName": "a", "sourcePVCInfo": info("a"), "destinationPVCInfo": info("other")}]);
    vmi.status.migrated_volumes = serde_json::from_value(moved).unwrap();
    let target = running(
        json!({"metadata": {"uid": "p2", "name": "t", "labels": {"kubevirt.io/migrationJobUID": "j"}},
        "spec": {"nodeName": "n2"}}),
    );
    let pods = [running(json!({})), target];
    let see = |attachments: &[Arc<Pod>], told: Told| {
        Scene { vmi: &vmi, pods: &pods, attachments, told, problems: &[] }.see()
    };
    let made = |decision: &Decision| {
        let claims = decision.actions.iter().filter_map(|action| match action {
            Action::Create(pod) => {
                Some(claims_of(pod).map(|(_, claim)| claim.to_owned()).collect::<Vec<_>>())
            }
            _ => None,
        });
        claims.collect::<Vec<_>>()
    };
    let own = attachment("p1", "x", &["a"], true);
    let decision = see(std::slice::from_ref(&own), bound(&["other"]));
    assert_eq!((made(&decision), done(&decision).1), (vec![vec!["other".to_owned()]], vec![]));
    // A target's attachment pod that was made before the volume began to move has the former claim.
    let mut stale = attachment("p2", "y", &["a"], true);
    Arc::make_mut(&mut stale).metadata.name = Some(target_attachment_name("p2"));
    let decision = see(&[own.clone(), stale.clone()], bound(&["other"]));
    assert_eq!((made(&decision), done(&decision).1), (vec![], vec!["y".to_owned()]));
    let volumes = Arc::make_mut(&mut stale).spec.as_mut().unwrap().volumes.as_mut().unwrap();
    volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name = "other".into();
    assert_eq!(done(&see(&[own.clone(), stale], bound(&["other"]))), (vec![], vec![]));
    // Storage that waits for its first use gets it on the target's node.
    let waits = Told::from([("other".to_owned(), serde_json::from_value(info("other")).unwrap())]);
    let decision = see(std::slice::from_ref(&own), waits);
    let first = decision.actions.iter().filter_map(|action| match action {
        Action::Create(pod) => Some(observe::is_consumer(pod) && observe::controls(&pods[1], pod)),
        _ => None,
    });
    assert_eq!(first.collect::<Vec<_>>(), [true]);
}

#[test]
fn attachment_pods_of_a_launcher_pod_that_has_ended_are_deleted() {
    let vmi = plugged(&["a"], json!([ready("a", "x")]));
    let attachments = [attachment("p1", "x", &["a"], true)];
    let pods = [ended(0, 1)];
    let decision =
        Scene { vmi: &vmi, pods: &pods, attachments: &attachments, told: bound(&["a"]), problems: &[] }.see();
    assert_eq!(done(&decision).1, ["x"]);
}

#[test]
fn the_file_of_a_memory_dump_is_named_before_a_pod_has_its_claim_and_stays() {
    let dumped = |told: Value| {
        let volume = podvirt_api::memory_dump::volume("dump");
        handed_over("Running", json!({"spec": {"volumes": [volume]}, "status": {"volumeStatus": told}}))
    };
    let pods = [running(json!({}))];
    let see = |vmi: &VirtualMachineInstance, attachments: &[Arc<Pod>]| {
        Scene { vmi, pods: &pods, attachments, told: bound(&["dump"]), problems: &[] }.see()
    };
    let launcher = pods[0].metadata.uid.clone().unwrap();
    let vmi = dumped(json!([]));
    let decision = see(&vmi, &[]);
    let file = |decision: &Decision| {
        let told = &decision.vmi.status.volume_status[0];
        podvirt_api::memory_dump::file(told).unwrap().to_owned()
    };
    let name = file(&decision);
    assert!(name.contains("-dump-") && name.ends_with(".memory.dump"), "{name}");
    let (made, _) = done(&decision);
    assert_eq!(made.len(), 1);
    let command = decision.actions.iter().find_map(|action| match action {
        Action::Create(pod) => pod.spec.as_ref()?.containers[0].command.clone(),
        _ => None,
    });
    let command = command.unwrap();
    assert!(command.iter().any(|word| word.contains(&format!("\"dump\":\"{name}\""))), "{command:?}");

    // While it is written, and after, its pod stays; once the launcher has let go of it, the pod goes.
    let pod = [attachment(&launcher, "h", &["dump"], true)];
    let at = |phase: &str| {
        json!([{"name": "dump", "target": "", "phase": phase, "hotplugVolume": {"attachPodName": "h", "attachPodUID": "h"},
            "memoryDumpVolume": {"claimName": "dump", "targetFileName": "f"}}])
    };
    for phase in ["MemoryDumpInProgress", "MemoryDumpCompleted", "MemoryDumpFailed"] {
        let decision = see(&dumped(at(phase)), &pod);
        assert_eq!((told(&decision), file(&decision).as_str()), (vec![format!("dump {phase} h")], "f"));
        assert_eq!(done(&decision).1, Vec::<String>::new(), "{phase}");
        let without = handed_over("Running", json!({"status": {"volumeStatus": at(phase)}}));
        assert_eq!(done(&see(&without, &pod)).1, Vec::<String>::new(), "{phase}: the launcher has the file");
    }
    let without = handed_over("Running", json!({"status": {"volumeStatus": at("UnMountedFromPod")}}));
    assert_eq!(done(&see(&without, &pod)).1, ["h"]);
}
