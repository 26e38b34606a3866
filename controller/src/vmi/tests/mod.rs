mod claims;
mod containers;
mod data;
mod hotplug;
mod migration;
mod status;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podvirt_api::cdi::DataVolume;
use podvirt_api::names::VMI_FINALIZER;
use podvirt_api::names::pod::ENDED_WITH_POD;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use serde_json::{Value, json};

use super::claims::{Problem, Told};
use super::decide::{Action, Decision, HANDOVER_GRACE, Observed, decide, needs_claims, refused};
use super::ends::SEEN_FOR;
use crate::settings::Settings;
use crate::template::pod_name;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A machine in `phase`, with `more` laid over it.
fn machine(phase: &str, more: Value) -> VirtualMachineInstance {
    let mut vmi = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "finalizers": [VMI_FINALIZER]},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
        "status": {"phase": phase},
    });
    json_patch::merge(&mut vmi, &more);
    serde_json::from_value(vmi).unwrap()
}

fn handed_over(phase: &str, more: Value) -> VirtualMachineInstance {
    let mut status = json!({
        "metadata": {"labels": {"kubevirt.io/nodeName": "n1"}},
        "status": {"nodeName": "n1", "activePods": {"p1": "n1"}},
    });
    json_patch::merge(&mut status, &more);
    machine(phase, status)
}

/// The launcher pod `uid` of the machine, with `more` laid over it.
fn pod(uid: &str, more: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": format!("virt-launcher-web-{uid}"), "namespace": "shop", "uid": uid},
        "spec": {"containers": [{"name": "compute", "image": "launcher:1"}]},
        "status": {"phase": "Pending"},
    });
    json_patch::merge(&mut pod, &more);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn running(more: Value) -> Arc<Pod> {
    let mut status = json!({
        "metadata": {"labels": {"kubevirt.io/nodeName": "n1"}},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running", "qosClass": "Burstable",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "compute", "image": "launcher:1", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"running": {}}}],
        },
    });
    json_patch::merge(&mut status, &more);
    pod("p1", status)
}

/// A pod that ended with `code` so many seconds ago.
fn ended(code: i32, seconds: i64) -> Arc<Pod> {
    let at = now() - jiff::SignedDuration::from_secs(seconds);
    running(json!({"status": {
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "containerStatuses": [{"name": "compute", "image": "launcher:1", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": code, "finishedAt": at.to_string()}}}],
    }}))
}

fn waiting(reason: &str) -> Arc<Pod> {
    pod(
        "p1",
        json!({"spec": {"nodeName": "n1"}, "status": {"initContainerStatuses": [{
            "name": "volumeroot", "image": "disk:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": "no such image"}},
        }]}}),
    )
}

fn with_claims(vmi: &VirtualMachineInstance, pods: &[Arc<Pod>], claims: &[(String, Problem)]) -> Decision {
    let (settings, told) = (Settings::default(), Told::new());
    let see = |vmi: &VirtualMachineInstance| {
        let seen = Observed {
            pods,
            claims,
            claims_told: Some(&told),
            end_seen: SEEN_FOR,
            ..Observed::alone(vmi, &settings, "launcher:1")
        };
        decide(&seen, now())
    };
    let decision = see(vmi);
    // What is decided holds: seen again, it leads on by a phase or two, then nothing more is written or told.
    let mut vmi = decision.vmi.clone();
    for _ in 0..3 {
        let again = see(&vmi);
        if again.vmi == vmi {
            assert_eq!(again.notes, [], "told again");
            return decision;
        }
        vmi = again.vmi;
    }
    panic!("the status does not settle: {:?}", vmi.status);
}

fn look(vmi: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> Decision {
    with_claims(vmi, pods, &[])
}

fn phase(decision: &Decision) -> Phase {
    decision.vmi.status.phase.clone().unwrap()
}

/// Status, reason and message of a condition.
fn condition(decision: &Decision, kind: &str) -> Option<(String, String, String)> {
    let found = decision.vmi.status.conditions.iter().find(|c| c.r#type.as_str() == kind)?;
    Some((
        found.status.clone(),
        found.reason.clone().unwrap_or_default(),
        found.message.clone().unwrap_or_default(),
    ))
}

fn reason(decision: &Decision, kind: &str) -> String {
    condition(decision, kind).map(|(_, reason, _)| reason).unwrap_or_default()
}

fn told(decision: &Decision) -> Vec<&str> {
    decision.notes.iter().map(|n| n.reason.as_str()).collect()
}

fn deleted(decision: &Decision) -> Vec<&str> {
    let deleted = decision.actions.iter().filter_map(|action| match action {
        Action::Delete { uid, .. } => Some(uid.as_str()),
        _ => None,
    });
    deleted.collect()
}

#[test]
fn a_new_machine_is_pending_and_kept_until_its_pod_is_gone() {
    let mut vmi = machine("", json!({}));
    vmi.metadata.finalizers = None;
    vmi.status.phase = None;
    let decision = look(&vmi, &[]);
    assert_eq!(phase(&decision), Phase::Pending);
    assert_eq!(decision.vmi.metadata.finalizers.as_deref(), Some(&[VMI_FINALIZER.to_owned()][..]));
    assert_eq!(decision.vmi.status.runtime_user, Some(107));
    assert_eq!(decision.actions, []);
    let times = &decision.vmi.status.phase_transition_timestamps;
    assert_eq!((times.len(), times[0].phase.clone()), (1, Some(Phase::Pending)));
}

#[test]
fn a_pending_machine_gets_its_one_pod() {
    let decision = look(&machine("Pending", json!({})), &[]);
    assert_eq!(phase(&decision), Phase::Pending, "until the pod is seen");
    let [Action::Create(made)] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    assert_eq!(made.metadata.name, Some(pod_name("web", "m1")));
    assert_eq!(reason(&decision, "Ready"), "PodNotExists");
    let decision = look(&machine("Pending", json!({})), &[pod("p1", json!({}))]);
    assert_eq!((phase(&decision), decision.actions), (Phase::Scheduling, vec![]));
}

#[test]
fn a_machine_waits_for_its_claims_and_says_which() {
    let vmi = machine("Pending", json!({}));
    let missing = [("data".to_owned(), Problem::Missing)];
    let decision = with_claims(&vmi, &[], &missing);
    assert_eq!(decision.actions, []);
    assert!(decision.look_again.is_some());
    let (status, reason, message) = condition(&decision, "Synchronized").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "FailedPvcNotFound"));
    assert!(message.contains("shop/data does not exist"), "{message}");
    assert_eq!(told(&decision), ["FailedPvcNotFound"]);

    let found = look(&decision.vmi, &[]);
    assert_eq!((condition(&found, "Synchronized"), found.actions.len()), (None, 1));
}

#[test]
fn a_pod_that_no_node_takes_is_made_anew_where_the_machine_may_run_now() {
    let vmi = |phase: &str, node: &str| {
        machine(phase, json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}))
    };
    let decision = look(&vmi("Pending", "nowhere"), &[]);
    let [Action::Create(made)] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    let mut made = Pod::clone(made);
    made.metadata.uid = Some("p1".into());
    let made = Arc::new(made);
    let laid_over = |more: Value| {
        let mut pod = serde_json::to_value(&*made).unwrap();
        json_patch::merge(&mut pod, &more);
        Arc::<Pod>::new(serde_json::from_value(pod).unwrap())
    };
    for phase_before in ["Pending", "Scheduling"] {
        let same = look(&vmi(phase_before, "nowhere"), std::slice::from_ref(&made));
        assert_eq!((phase(&same), deleted(&same)), (Phase::Scheduling, vec![]));
        let mended = look(&vmi(phase_before, "n1"), std::slice::from_ref(&made));
        assert_eq!((phase(&mended), deleted(&mended)), (Phase::Pending, vec!["p1"]));
        assert_eq!(told(&mended).contains(&"PlacementChanged"), phase_before == "Scheduling");
        let taken = laid_over(json!({"spec": {"nodeName": "n2"}}));
        let decision = look(&vmi(phase_before, "n1"), &[taken]);
        assert_eq!((phase(&decision), deleted(&decision)), (Phase::Scheduling, vec![]), "it is starting");
        let older = laid_over(json!({"metadata": {"annotations": {"podvirt.io/placement-digest": null}}}));
        assert_eq!(
            deleted(&look(&vmi(phase_before, "n1"), &[older])),
            [""; 0],
            "a pod of an earlier release"
        );
    }
    let going = laid_over(json!({"metadata": {"deletionTimestamp": NOW}}));
    let decision = look(&vmi("Pending", "n1"), &[going]);
    assert_eq!((phase(&decision), decision.actions), (Phase::Pending, vec![]), "its name is not free yet");
    let decision = look(&vmi("Pending", "n1"), &[]);
    let [Action::Create(anew)] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    assert_eq!(anew.spec.as_ref().unwrap().node_selector.as_ref().unwrap()["kubernetes.io/hostname"], "n1");
}

#[test]
fn claims_are_looked_for_only_before_the_pod_is_made() {
    assert!(needs_claims(&machine("Pending", json!({})), &[]));
    assert!(!needs_claims(&machine("Pending", json!({})), &[pod("p1", json!({}))]));
    assert!(!needs_claims(&machine("Scheduling", json!({})), &[]));
    assert!(!needs_claims(&machine("Pending", json!({"metadata": {"deletionTimestamp": NOW}})), &[]));
}

#[test]
fn what_cannot_be_rendered_and_what_is_refused_is_told_once() {
    let vmi =
        machine("Pending", json!({"spec": {"volumes": [{"name": "a", "containerPath": {"path": "/p"}}]}}));
    let decision = look(&vmi, &[]);
    assert_eq!(decision.actions, []);
    let (_, reason, message) = condition(&decision, "Synchronized").unwrap();
    assert_eq!(reason, "FailedCreate");
    assert!(message.starts_with("spec.volumes[0].containerPath is not supported"), "{message}");
    assert_eq!(told(&decision), ["FailedCreate"]);

    let vmi = machine("Pending", json!({}));
    let decision = refused(&vmi, "exceeded quota", now());
    assert_eq!(told(&decision), ["FailedCreate"]);
    let again = refused(&decision.vmi, "exceeded quota, used: 4", now());
    assert_eq!((told(&again), again.vmi == decision.vmi), (vec![], true), "another text is no news");
    let made = look(&decision.vmi, &[pod("p1", json!({}))]);
    assert_eq!(condition(&made, "Synchronized"), None, "the pod is there");

    // What is missing is told anew when it is something else, and so is what comes when nothing is missing any more.
    let missing =
        |vmi: &_, what: &str| refused(vmi, &format!("no such NetworkAttachmentDefinition: {what}"), now());
    let both = missing(&decision.vmi, "shop/a, shop/b");
    assert_eq!(told(&both), ["FailedCreate"]);
    assert_eq!(told(&missing(&both.vmi, "shop/a, shop/b")), [""; 0]);
    let one = missing(&both.vmi, "shop/b");
    assert_eq!(told(&one), ["FailedCreate"]);
    assert_eq!(told(&refused(&one.vmi, "exceeded quota", now())), ["FailedCreate"]);
}

#[test]
fn a_machine_that_no_node_can_run_says_why() {
    let unschedulable = pod(
        "p1",
        json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient memory."}]}}),
    );
    let decision = look(&machine("Scheduling", json!({})), &[unschedulable]);
    assert_eq!(phase(&decision), Phase::Scheduling);
    let (status, reason, message) = condition(&decision, "PodScheduled").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Unschedulable"));
    assert!(message.contains("Insufficient memory"));
    assert_eq!(decision.vmi.status.reason.as_deref(), Some("Unschedulable"));
    assert_eq!(told(&decision), ["FailedScheduling"]);

    let decision = look(&decision.vmi, &[running(json!({}))]);
    assert_eq!((phase(&decision), condition(&decision, "PodScheduled")), (Phase::Scheduled, None));
    assert_eq!(decision.vmi.status.reason, None);

    for reason in ["SchedulingGated", "SchedulerError"] {
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": reason}]);
        let held = look(
            &machine("Scheduling", json!({})),
            &[pod("p1", json!({"status": {"conditions": conditions}}))],
        );
        assert_eq!(held.vmi.status.reason.as_deref(), Some(reason));
        assert_eq!(look(&held.vmi, &[running(json!({}))]).vmi.status.reason, None, "{reason}");
    }
}

#[test]
fn a_launcher_without_a_network_that_was_asked_for_is_not_handed_over() {
    let vmi = machine(
        "Scheduling",
        json!({"spec": {"networks": [{"name": "flat", "multus": {"networkName": "flat", "default": true}}]}}),
    );
    let attached = |text: &str| {
        running(json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/network-status": text}}}))
    };
    for pod in [running(json!({})), attached("[]"), attached("garbage")] {
        let decision = look(&vmi, &[pod]);
        assert_eq!(
            (phase(&decision), reason(&decision, "Synchronized").as_str()),
            (Phase::Scheduling, "NetworkNotAttached")
        );
        let (_, _, message) = condition(&decision, "Synchronized").unwrap();
        assert!(message.contains("network flat") && message.contains("Multus on node n1"), "{message}");
    }
    let refused = look(&vmi, &[running(json!({}))]).vmi;
    let decision =
        look(&refused, &[attached(r#"[{"name": "shop/flat", "interface": "eth0", "ips": ["172.30.0.9"]}]"#)]);
    assert_eq!((phase(&decision), condition(&decision, "Synchronized")), (Phase::Scheduled, None));
    let interface = &decision.vmi.status.interfaces[0];
    assert_eq!(interface.ip_address.as_deref(), Some("172.30.0.9"));
}

#[test]
fn a_launcher_that_runs_on_a_node_is_handed_over() {
    let decision = look(&machine("Scheduling", json!({})), &[running(json!({}))]);
    assert_eq!(phase(&decision), Phase::Scheduled);
    let status = &decision.vmi.status;
    assert_eq!(status.node_name.as_deref(), Some("n1"));
    assert_eq!(status.active_pods["p1"], "n1");
    assert_eq!(status.launcher_container_image_version.as_deref(), Some("launcher:1"));
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    assert_eq!(decision.vmi.metadata.labels.as_ref().unwrap()["kubevirt.io/nodeName"], "n1");
    assert_eq!(reason(&decision, "Ready"), "GuestNotRunning");
    assert_eq!(condition(&decision, "LiveMigratable").unwrap().0, "True");

    let early = pod("p1", json!({"spec": {"nodeName": "n1"}}));
    assert_eq!(phase(&look(&machine("Scheduling", json!({})), &[early])), Phase::Scheduling);
}

#[test]
fn a_pod_that_ends_before_the_guest_was_started_fails_the_machine_and_says_why() {
    let refused = pod(
        "p1",
        json!({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no kvm"}}),
    );
    let copy = pod(
        "p1",
        json!({"status": {"phase": "Failed", "initContainerStatuses": [{
            "name": "container-disk-binary", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 2, "message": "disk full\n"}},
        }]}}),
    );
    let evicted = pod("p1", json!({"metadata": {"deletionTimestamp": NOW}}));
    for (pod, reason, message) in [
        (refused, "UnexpectedAdmissionError", "no kvm"),
        (copy, "PodFailed", "container container-disk-binary ended with code 2: disk full"),
        (evicted, "PodTerminating", "was deleted before the guest was started"),
        (ended(1, 0), "PodFailed", "container compute ended with code 1"),
    ] {
        let decision = look(&machine("Scheduling", json!({})), &[pod]);
        assert_eq!(phase(&decision), Phase::Failed, "{reason}");
        assert_eq!(decision.vmi.status.reason.as_deref(), Some(reason));
        assert!(decision.notes[0].message.contains(message), "{:?}", decision.notes);
        assert_eq!(told(&decision), [reason]);
    }
}

#[test]
fn a_machine_whose_pod_is_gone_has_failed() {
    for phase_before in ["Scheduling", "Scheduled", "Running", "Unknown"] {
        let decision = look(&handed_over(phase_before, json!({})), &[]);
        assert_eq!(phase(&decision), Phase::Failed, "{phase_before}");
        assert_eq!(decision.vmi.status.reason.as_deref(), Some("PodDeleted"));
        assert!(decision.vmi.status.active_pods.is_empty());
        assert_eq!(decision.actions, [], "it is not made again");
    }
}

#[test]
fn a_machine_that_is_over_stays_as_it_is() {
    for phase_before in ["Succeeded", "Failed"] {
        for pods in [vec![], vec![ended(1, 900)], vec![running(json!({}))]] {
            let decision = look(&handed_over(phase_before, json!({})), &pods);
            assert_eq!(phase(&decision).as_str(), phase_before);
            assert_eq!(deleted(&decision), [""; 0], "its pod can still be read");
            assert_eq!(told(&decision), [""; 0]);
        }
    }
}

#[test]
fn the_handler_has_time_to_say_how_the_guest_ended() {
    for before in ["Scheduled", "Running"] {
        let grace = i64::try_from(HANDOVER_GRACE.as_secs()).unwrap();
        let decision = look(&handed_over(before, json!({})), &[ended(1, 10)]);
        assert_eq!(phase(&decision).as_str(), before);
        assert_eq!(decision.look_again, Some(HANDOVER_GRACE - Duration::from_secs(10)));
        let decision = look(&handed_over(before, json!({})), &[ended(0, grace)]);
        assert_eq!(phase(&decision), Phase::Succeeded);
        let decision = look(&handed_over(before, json!({})), &[ended(3, grace + 1)]);
        assert_eq!(phase(&decision), Phase::Failed);
        assert!(decision.notes[0].message.contains("ended with code 3"));
        // The guest obeyed when its pod was told to end.
        let with_pod = || ended(ENDED_WITH_POD.into(), grace);
        let decision = look(&handed_over(before, json!({})), &[with_pod()]);
        assert_eq!(phase(&decision), Phase::Succeeded);
        assert_eq!(decision.vmi.status.reason.as_deref(), Some("ShutDownWithPod"));
        let mut evicted = Pod::clone(&with_pod());
        let status = evicted.status.get_or_insert_default();
        (status.reason, status.message) = (Some("Evicted".into()), Some("over the limit".into()));
        let decision = look(&handed_over(before, json!({})), &[Arc::new(evicted)]);
        assert_eq!(phase(&decision), Phase::Failed);
        assert_eq!(decision.vmi.status.reason.as_deref(), Some("Evicted"));
        assert!(decision.notes[0].message.ends_with("over the limit"), "{:?}", decision.notes);
        let sidecars_linger = Arc::new(Pod {
            status: ended(0, grace).status.clone().map(|s| PodStatus { phase: Some("Running".into()), ..s }),
            ..Pod::clone(&ended(0, grace))
        });
        let decision = look(&handed_over(before, json!({})), &[sidecars_linger]);
        assert_eq!(phase(&decision), Phase::Succeeded);
    }
}

#[test]
fn the_status_tells_what_the_pod_asks_for_beside_the_guests_memory() {
    let told = |annotations: Value| {
        let pod = running(json!({"metadata": {"annotations": annotations}}));
        let memory = json!({"guestAtBoot": "64Mi"});
        let decision = look(&machine("Scheduling", json!({"status": {"memory": memory}})), &[pod]);
        assert_eq!(phase(&decision), Phase::Scheduled);
        serde_json::to_value(decision.vmi.status.memory).unwrap()
    };
    assert_eq!(
        told(json!({"kubevirt.io/memory-overhead-bytes": "209715200"})),
        json!({"guestAtBoot": "64Mi", "memoryOverhead": "200Mi"})
    );
    assert_eq!(told(json!({"kubevirt.io/memory-overhead-bytes": "much"})), json!({"guestAtBoot": "64Mi"}));
}

#[test]
fn deletion_takes_the_pods_first_and_the_finalizer_last() {
    let going = |phase: &str| {
        let finalizers = json!([VMI_FINALIZER, "other"]);
        handed_over(phase, json!({"metadata": {"deletionTimestamp": NOW, "finalizers": finalizers}}))
    };
    let decision = look(&going("Running"), &[running(json!({}))]);
    assert_eq!(deleted(&decision), ["p1"]);
    assert_eq!(phase(&decision), Phase::Running, "the guest still runs");
    assert_eq!(decision.vmi.metadata.finalizers.as_ref().unwrap().len(), 2);

    let terminating = running(json!({"metadata": {"deletionTimestamp": NOW}}));
    let decision = look(&going("Running"), &[terminating]);
    assert_eq!((deleted(&decision), reason(&decision, "Ready")), (vec![], "PodTerminating".to_owned()));
    assert_eq!(decision.vmi.metadata.finalizers.as_ref().unwrap().len(), 2);

    let unmet = |phase: &str| {
        let mut vmi = going(phase);
        vmi.status.node_name = None;
        vmi
    };
    for (before, after) in [
        (going("Succeeded"), Phase::Succeeded),
        (unmet("Pending"), Phase::Failed),
        (unmet("Scheduling"), Phase::Failed),
    ] {
        let decision = look(&before, &[]);
        assert_eq!(phase(&decision), after);
        assert_eq!(decision.vmi.metadata.finalizers.as_deref(), Some(&["other".to_owned()][..]));
        assert_eq!(decision.actions, [], "nothing is made for it");
    }
    assert_eq!(deleted(&look(&going("Succeeded"), &[ended(0, 900)])), ["p1"], "also pods that ended");
}

#[test]
fn the_end_of_a_guest_is_seen_before_its_machine_goes() {
    let owner = |controller: bool| {
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "v1",
            "controller": controller}])
    };
    let second = Duration::from_secs(1);
    // What was, whether something controls it, how long the end was seen; the phase after, and what is left.
    for (before, owners, end_seen, after, left) in [
        ("Running", json!([]), Duration::ZERO, Phase::Failed, Some(SEEN_FOR)),
        ("Succeeded", json!([]), Duration::ZERO, Phase::Succeeded, Some(SEEN_FOR)),
        ("Succeeded", json!([]), second, Phase::Succeeded, Some(SEEN_FOR - second)),
        ("Succeeded", owner(false), second, Phase::Succeeded, Some(SEEN_FOR - second)),
        ("Succeeded", json!([]), SEEN_FOR, Phase::Succeeded, None),
        ("Failed", json!([]), 2 * SEEN_FOR, Phase::Failed, None),
        ("Succeeded", owner(true), Duration::ZERO, Phase::Succeeded, None),
    ] {
        let going = json!({"metadata": {"deletionTimestamp": NOW, "ownerReferences": owners}});
        let (settings, told) = (Settings::default(), Told::new());
        let look = |vmi: &VirtualMachineInstance, end_seen| {
            let seen = Observed {
                claims_told: Some(&told),
                end_seen,
                ..Observed::alone(vmi, &settings, "launcher:1")
            };
            decide(&seen, now())
        };
        let kept = |decision: &Decision| {
            decision.vmi.metadata.finalizers.iter().flatten().any(|f| f == VMI_FINALIZER)
        };
        let decision = look(&handed_over(before, going), end_seen);
        let seen = (phase(&decision), kept(&decision), decision.look_again);
        assert_eq!(seen, (after, left.is_some(), left), "{before}");
        // What was written of it meanwhile, that its pod is gone, changes nothing.
        if left.is_some() {
            assert!(kept(&look(&decision.vmi, Duration::ZERO)), "{before}");
            assert!(!kept(&look(&decision.vmi, SEEN_FOR)), "{before}");
        }
    }
}

#[test]
fn pods_beside_the_machines_own_are_deleted() {
    let decision = look(&machine("Scheduling", json!({})), &[pod("p1", json!({})), pod("p2", json!({}))]);
    assert_eq!(deleted(&decision), ["p2"], "the oldest stays");
    let decision = look(&handed_over("Running", json!({})), &[pod("p0", json!({})), running(json!({}))]);
    assert_eq!(deleted(&decision), ["p0"], "the one that runs the guest stays");
    let leaving = pod("p0", json!({"metadata": {"deletionTimestamp": NOW}}));
    let decision = look(&machine("Scheduling", json!({})), &[leaving, running(json!({}))]);
    assert_eq!((phase(&decision), deleted(&decision)), (Phase::Scheduled, vec![]));
}

/// Every phase with every pair of pods: what must hold whatever is seen.
#[test]
fn no_state_makes_two_pods_or_lets_a_machine_go_with_a_pod() {
    let pods = || {
        vec![
            pod("p1", json!({})),
            running(json!({})),
            waiting("ErrImagePull"),
            ended(0, 5),
            ended(1, 500),
            running(json!({"metadata": {"deletionTimestamp": NOW}})),
            pod("p2", json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}})),
        ]
    };
    let mut lists = vec![vec![]];
    for first in pods() {
        lists.push(vec![first.clone()]);
        let uid = first.metadata.uid.clone();
        lists.extend(pods().into_iter().filter(|p| p.metadata.uid != uid).map(|p| vec![first.clone(), p]));
    }
    let phases =
        ["", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed", "Unknown", "Odd"];
    for before in phases {
        for deleting in [false, true] {
            for list in &lists {
                let deletion = if deleting { json!(NOW) } else { Value::Null };
                let mut vmi = machine(before, json!({"metadata": {"deletionTimestamp": deletion}}));
                let over = ["Succeeded", "Failed"].contains(&before);
                for _round in 0..4 {
                    let decision = look(&vmi, list);
                    let what = format!("{before}, deleting {deleting}, pods {}", list.len());
                    let made = decision.actions.iter().filter(|a| matches!(a, Action::Create(_))).count();
                    assert!(made == 0 || (made == 1 && list.is_empty() && !deleting), "{what}");
                    let kept = decision.vmi.metadata.finalizers.iter().flatten().any(|f| f == VMI_FINALIZER);
                    assert_eq!(kept, !(deleting && list.is_empty()), "{what}");
                    if over {
                        assert_eq!(phase(&decision).as_str(), before, "{what}");
                    }
                    let living = list.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).count();
                    let left = living - deleted(&decision).len();
                    if deleting {
                        assert_eq!(left, 0, "{what}");
                    } else if !over && !["Succeeded", "Failed"].contains(&phase(&decision).as_str()) {
                        assert!(left <= 1, "{what}");
                    }
                    vmi = decision.vmi;
                }
            }
        }
    }
}
