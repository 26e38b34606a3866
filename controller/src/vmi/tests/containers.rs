//! What is told of containers that do not begin, end again and again, or are evicted.

use super::*;

/// A pod that came to its node so many seconds ago, and whose netd has this state.
fn on_its_node(seconds: i64, phase: &str, netd: Value) -> Arc<Pod> {
    let since = now() - jiff::SignedDuration::from_secs(seconds);
    let mut made = json!({
        "spec": {
            "nodeName": "n1",
            "initContainers": [{"name": "volumeroot", "image": "disk:1"}, {"name": "netd", "image": "launcher:1"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "seed", "projected": {"sources": [
                    {"secret": {"name": "user", "optional": true}}, {"secret": {"name": "user"}},
                ]}},
            ],
        },
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": since.to_string()},
            ],
        },
    });
    if !netd.is_null() {
        let status = |name: &str, state: &Value| {
            json!({"name": name, "image": "launcher:1", "imageID": "", "ready": false, "restartCount": 3,
                "state": state, "lastState": {"terminated": {"exitCode": 1, "message": NETD_SAID}}})
        };
        made["status"]["initContainerStatuses"] =
            json!([status("volumeroot", &json!({"running": {}})), status("netd", &netd)]);
        made["status"]["containerStatuses"] = json!([status("compute", &json!({"running": {}}))]);
    }
    pod("p1", made)
}

const NETD_SAID: &str = "netd: the configuration has 1 wrong setting(s)\n  guest.dns[0]: '127.0.0.1'\n";

#[test]
fn containers_that_are_not_begun_are_told_of_after_a_while() {
    let decision = look(&machine("Scheduling", json!({})), &[on_its_node(5, "Pending", Value::Null)]);
    assert_eq!(condition(&decision, "Synchronized"), None);
    assert_eq!((decision.look_again, told(&decision).len()), (Some(Duration::from_secs(10)), 0));
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    let pod = pod(
        "p1",
        json!({"status": {"containerStatuses": [{"name": "compute", "image": "launcher:1",
        "imageID": "", "ready": false, "restartCount": 0, "state": creating}]}}),
    );
    assert_eq!(told(&look(&machine("Scheduling", json!({})), &[pod])), [""; 0], "not at first");
    let decision = look(&machine("Scheduling", json!({})), &[on_its_node(15, "Pending", Value::Null)]);
    assert_eq!(told(&decision), ["ContainerCreating"]);
    let message = &decision.notes[0].message;
    for part in ["volumeroot", "image disk:1", "node n1", "PersistentVolumeClaim data, Secret user;"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let mut vmi = decision.vmi;
    vmi.status.phase = Some(Phase::Scheduling);
    let decision = look(&vmi, &[running(json!({}))]);
    assert_eq!(condition(&decision, "Synchronized"), None, "gone once they run");
}

#[test]
fn a_sidecar_that_ends_again_and_again_is_told_of_until_the_guest_runs() {
    let crashing = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let decision =
        look(&handed_over("Scheduled", json!({})), &[on_its_node(60, "Running", crashing.clone())]);
    assert_eq!(told(&decision), ["CrashLoopBackOff"]);
    // In one line.
    assert!(decision.notes[0].message.ends_with("1 wrong setting(s); guest.dns[0]: '127.0.0.1'"));
    assert!(decision.look_again.is_some());
    let (status, reason, _) = condition(&decision, "Synchronized").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "CrashLoopBackOff"));

    let again = look(&decision.vmi, &[on_its_node(60, "Running", crashing.clone())]);
    assert_eq!(told(&again), [""; 0]);
    let healthy =
        json!({"running": {"startedAt": (now() - jiff::SignedDuration::from_secs(30)).to_string()}});
    let recovered = look(&decision.vmi, &[on_its_node(60, "Running", healthy)]);
    assert_eq!(condition(&recovered, "Synchronized"), None);

    // What virt-handler says is its own, and so is all of it once the guest runs.
    let theirs = json!({"status": {"conditions": [{
        "type": "Synchronized", "status": "False", "reason": "Waiting", "message": "netd's socket",
    }]}});
    let healthy = json!({"running": {}});
    let kept = look(&handed_over("Scheduled", theirs), &[on_its_node(60, "Running", healthy)]);
    assert_eq!(condition(&kept, "Synchronized").unwrap().1, "Waiting");
    let decision = look(&handed_over("Running", json!({})), &[on_its_node(60, "Running", crashing)]);
    assert_eq!(condition(&decision, "Synchronized"), None);
}

#[test]
fn an_evicted_pod_is_told_in_the_kubelets_words() {
    let evicted = running(json!({"status": {
        "phase": "Failed", "reason": "Evicted",
        "message": "Usage of EmptyDir volume \"ephemeral-disks\" exceeds the limit \"1Gi\". ",
    }}));
    let decision = look(&machine("Scheduling", json!({})), &[evicted]);
    assert_eq!(decision.vmi.status.reason.as_deref(), Some("Evicted"));
    assert!(decision.notes[0].message.contains("Usage of EmptyDir volume"), "{:?}", decision.notes);
    // The pod's own reason comes later than the condition.
    let evicted = running(json!({"status": {"phase": "Failed", "conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on memory",
    }]}}));
    let decision = look(&machine("Scheduling", json!({})), &[evicted]);
    assert_eq!(decision.vmi.status.reason.as_deref(), Some("Evicted"));
    assert!(decision.notes[0].message.ends_with("low on memory"), "{:?}", decision.notes);
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_once_and_forgotten_when_it_can() {
    let decision = look(&machine("Scheduling", json!({})), &[waiting("ErrImagePull")]);
    let (status, reason, message) = condition(&decision, "Synchronized").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ErrImagePull"));
    assert_eq!(message, "container volumeroot (image disk:1): no such image");
    assert_eq!(told(&decision), ["ErrImagePull"]);
    let later = look(&decision.vmi, &[waiting("ImagePullBackOff")]);
    assert_eq!(condition(&later, "Synchronized").unwrap().1, "ImagePullBackOff");
    assert_eq!(told(&later), [""; 0], "the same trouble");
    let pulled = look(&later.vmi, &[waiting("PodInitializing")]);
    assert_eq!(condition(&pulled, "Synchronized"), None);
}

#[test]
fn a_sidecar_that_ends_again_and_again_is_one_trouble_until_it_runs_for_a_while() {
    let sidecar = |state: Value| {
        let end = json!({"terminated": {"exitCode": 1, "message": "no file in /disk\n"}});
        pod(
            "p1",
            json!({"spec": {"nodeName": "n1"}, "status": {"initContainerStatuses": [{
                "name": "volumeroot", "image": "disk:1", "imageID": "", "ready": false, "restartCount": 2,
                "state": state, "lastState": end,
            }]}}),
        )
    };
    let since = |seconds| (now() - jiff::SignedDuration::from_secs(seconds)).to_string();
    let mut vmi = machine("Scheduling", json!({}));
    let mut events = 0;
    for state in [
        json!({"terminated": {"exitCode": 1, "message": "no file in /disk"}}),
        json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}),
        json!({"running": {"startedAt": since(1)}}),
        json!({"terminated": {"exitCode": 1, "message": "no file in /disk"}}),
    ] {
        let decision = look(&vmi, &[sidecar(state)]);
        let (_, reason, message) = condition(&decision, "Synchronized").unwrap();
        assert_eq!(reason, "CrashLoopBackOff");
        assert_eq!(message, "container volumeroot (image disk:1): ended with code 1: no file in /disk");
        assert!(decision.look_again.is_some());
        events += decision.notes.len();
        vmi = decision.vmi;
    }
    assert_eq!(events, 1);
    let decision = look(&vmi, &[sidecar(json!({"running": {"startedAt": since(10)}}))]);
    assert_eq!(condition(&decision, "Synchronized"), None);
}
