//! Judgements on nodes and pods in each state.

use serde_json::{Value, json};

use super::*;

const LIMIT: Duration = Duration::from_secs(300);

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn node(heartbeat: Option<&str>, ready: &str) -> Node {
    let annotations = heartbeat.map(|beat| json!({"kubevirt.io/heartbeat": beat}));
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {"conditions": [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn machine(phase: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "u1"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase, "nodeName": "n1"},
    }))
    .unwrap()
}

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "virt-launcher-vm-x"}, "status": status})).unwrap()
}

#[test]
fn a_node_is_silent_when_it_is_gone_or_its_heartbeat_stopped_or_its_kubelet_is_lost() {
    // Heartbeat, seconds for which it has not changed here, Ready; silent why.
    for (beat, steady, ready, expected) in [
        (Some("2026-03-01T11:59:00Z"), 60, "True", None),
        (Some("2026-03-01T11:55:01Z"), 299, "True", None),
        (Some("2026-03-01T11:54:00Z"), 360, "True", Some(Silence::Heartbeat)),
        // Just started: an old heartbeat may be one of a clock that is behind.
        (Some("2026-03-01T11:50:00Z"), 0, "True", None),
        (Some("2026-03-01T11:50:00Z"), 130, "True", None),
        (Some("2026-03-01T11:50:00Z"), 150, "True", Some(Silence::Heartbeat)),
        // A clock that is ahead.
        (Some("2026-03-01T13:00:00Z"), 200, "True", None),
        (Some("2026-03-01T13:00:00Z"), 300, "True", Some(Silence::Heartbeat)),
        (Some("yesterday"), 10, "True", None),
        (Some("yesterday"), 150, "True", Some(Silence::Heartbeat)),
        (Some("2026-03-01T11:59:00Z"), 60, "Unknown", Some(Silence::Kubelet)),
        (Some("2026-03-01T11:59:00Z"), 60, "False", None),
        (None, 9000, "True", None),
        (None, 9000, "Unknown", Some(Silence::Kubelet)),
    ] {
        let node = node(beat, ready);
        let found = silence(Some(&node), Duration::from_secs(steady), now(), LIMIT);
        assert_eq!(found, expected, "{beat:?} {steady} {ready}");
    }
    assert_eq!(silence(None, Duration::ZERO, now(), LIMIT), Some(Silence::Gone));
}

#[test]
fn a_short_limit_is_obeyed() {
    let node = node(Some("2026-03-01T11:59:00Z"), "True");
    let limit = Duration::from_secs(20);
    assert_eq!(silence(Some(&node), Duration::from_secs(19), now(), limit), None);
    assert_eq!(silence(Some(&node), Duration::from_secs(20), now(), limit), Some(Silence::Heartbeat));
}

#[test]
fn a_heartbeat_is_steady_since_it_was_first_seen_as_it_is() {
    let (mut heartbeats, start) = (Heartbeats::default(), std::time::Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let (first, second) = (node(Some("a"), "True"), node(Some("b"), "True"));
    assert_eq!(heartbeats.observe(&first, at(0)), Duration::ZERO);
    assert_eq!(heartbeats.observe(&first, at(60)), Duration::from_secs(60));
    assert_eq!(heartbeats.observe(&second, at(70)), Duration::ZERO);
    assert_eq!(heartbeats.observe(&second, at(75)), Duration::from_secs(5));
    heartbeats.keep(&BTreeSet::new());
    assert_eq!(heartbeats.observe(&second, at(80)), Duration::ZERO);
}

#[test]
fn a_pod_may_run_until_it_is_known_to_have_ended() {
    let running = json!({"state": {"running": {}}});
    let ended = json!({"state": {"terminated": {"exitCode": 0}}});
    for (status, expected) in [
        (json!({"phase": "Running", "containerStatuses": [running]}), true),
        (json!({"phase": "Running", "containerStatuses": [ended, running]}), true),
        (json!({"phase": "Running", "containerStatuses": [ended, ended]}), false),
        (json!({"phase": "Pending"}), true),
        (json!(null), true),
        (json!({"phase": "Unknown"}), true),
        (json!({"phase": "Succeeded"}), false),
        (json!({"phase": "Failed"}), false),
    ] {
        let pod = pod(status.clone());
        assert_eq!(may_run(&pod), expected, "{status}");
        assert!(!has_ended(Some(&pod), false), "left to the controller that reads how it ended, {status}");
        assert_eq!(has_ended(Some(&pod), true), expected, "vouched for, {status}");
    }
    assert!(has_ended(None, false) && has_ended(None, true));
}

#[test]
fn a_deleted_pod_past_its_grace_period_on_a_silent_node_may_still_run() {
    let mut pod = pod(json!({"phase": "Running"}));
    pod.metadata.deletion_timestamp = Some(Time("2026-03-01T09:00:00Z".parse().unwrap()));
    pod.metadata.deletion_grace_period_seconds = Some(60);
    assert!(may_run(&pod) && !has_ended(Some(&pod), false));
}

#[test]
fn only_the_taint_out_of_service_vouches_for_a_node() {
    let tainted = |key: &str| {
        let mut node = node(None, "Unknown");
        let taints = json!({"taints": [{"key": key, "effect": "NoExecute"}]});
        node.spec = Some(serde_json::from_value(taints).unwrap());
        node
    };
    assert!(is_vouched_for(&tainted("node.kubernetes.io/out-of-service")));
    assert!(!is_vouched_for(&tainted("node.kubernetes.io/unreachable")));
    assert!(!is_vouched_for(&node(None, "Unknown")));
}

#[test]
fn only_phases_that_the_node_writes_are_failed_and_only_there() {
    for (phase, expected) in [
        ("Pending", false),
        ("Scheduling", false),
        ("Scheduled", true),
        ("Running", true),
        ("Unknown", true),
        ("Succeeded", false),
        ("Failed", false),
    ] {
        assert_eq!(is_open(&machine(phase), "n1"), expected, "{phase}");
        assert!(!is_open(&machine(phase), "n2"));
    }
    let failed = failed(&machine("Running"), now());
    assert_eq!(failed.status.phase, Some(Phase::Failed));
    assert_eq!(failed.status.reason.as_deref(), Some("NodeUnresponsive"));
    assert_eq!(failed.status.phase_transition_timestamps.len(), 1);
    assert_eq!(failed.status.node_name.as_deref(), Some("n1"));
}

#[tokio::test]
async fn the_api_server_is_asked_of_machines_whose_pods_are_gone_and_of_no_others() {
    let machines: Vec<VirtualMachineInstance> = ["gone", "runs"]
        .into_iter()
        .map(|name| {
            let mut vmi = serde_json::to_value(machine("Running")).unwrap();
            let more =
                json!({"metadata": {"name": name, "uid": name, "labels": {"kubevirt.io/nodeName": "n1"}}});
            json_patch::merge(&mut vmi, &more);
            serde_json::from_value(vmi).unwrap()
        })
        .collect();
    let there = serde_json::to_value(&machines).unwrap();
    let (client, asked) = podvirt_daemon::testing::recorded("ns", move |(what, body)| {
        if what.contains("/pods/") {
            return Some(podvirt_daemon::testing::failure(404, "NotFound", "it is gone"));
        }
        let found = there.as_array()?.iter().find(|vmi| {
            let name = vmi["metadata"]["name"].as_str().unwrap_or_default();
            what.trim_end_matches("/status").ends_with(&format!("/{name}"))
        });
        let mut found = found?.clone();
        if body.is_object() {
            json_patch::merge(&mut found, body);
        }
        Some((200, found))
    });
    let (view, mut writer) = View::new();
    let events = machines.iter().cloned().map(watcher::Event::InitApply);
    for event in [watcher::Event::Init].into_iter().chain(events).chain([watcher::Event::InitDone]) {
        writer.apply_watcher_event(&event);
    }
    let labels = json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "runs"});
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "runs", "uid": "runs",
        "controller": true});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name_of(&machines[1]), "namespace": "ns", "uid": "p", "labels": labels,
            "ownerReferences": [owner]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let notes = crate::expectations::Expectations::default();
    for event in [watcher::Event::Init, watcher::Event::InitApply(pod), watcher::Event::InitDone] {
        view.pods().apply(event, &notes);
    }
    let watch = Watch {
        recorder: Recorder::new(client.clone(), "virt-controller", None),
        client,
        config: Config::default(),
        nodes: kube::runtime::reflector::store().0,
        view,
        heartbeats: Heartbeats::default(),
    };
    watch.fail_ended("n1", None, Silence::Gone).await.unwrap();
    let asked: Vec<String> = asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect();
    let base = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/gone";
    assert_eq!(asked[0], format!("GET {base}"));
    assert!(asked[1].starts_with("GET /api/v1/namespaces/ns/pods/virt-launcher-gone-"), "{asked:?}");
    assert!(asked.iter().any(|what| what.starts_with(&format!("PATCH {base}"))), "{asked:?}");
    assert!(!asked.iter().any(|what| what.contains("runs")), "{asked:?}");
}
