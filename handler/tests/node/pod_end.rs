//! Machines that end with their pods.

use podvirt_proto::domain::reason;
use serde_json::json;

use crate::support::api::Api;
use crate::support::launcher::Launcher;
use crate::support::{self, Ground, pod, vmi};

/// The machine's pod whose container `compute` has ended with this code.
fn ended(phase: &str, code: i32) -> serde_json::Value {
    let mut pod = pod();
    pod["status"] = json!({ "phase": phase, "containerStatuses": [{
        "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": code, "reason": "Error" } },
    }] });
    pod
}

/// A machine that ran and ended with its pod, of which the API server does not tell why yet; and its handler, which waits.
async fn with_pod(ground: &Ground, api: &Api) -> (Launcher, support::Handler) {
    let mut runs = pod();
    runs["status"] = json!({ "phase": "Running" });
    api.put_pod(runs);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(api);
    let launcher = Launcher::start(ground);
    api.wait_phase("Running").await;
    launcher.end_with_pod(reason::SHUTDOWN);
    launcher.tell().await;
    api.wait("the wait is told", waits).await;
    (launcher, handler)
}

fn waits(vmi: &serde_json::Value) -> bool {
    vmi["status"]["conditions"][0]["reason"] == "Waiting"
}

#[tokio::test]
async fn a_guest_that_powered_off_in_time_has_failed_when_the_kubelet_says_that_it_evicted_its_pod() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let (launcher, handler) = with_pod(&ground, &api).await;
    launcher.die();
    // The kubelet's last word may come after that on the container.
    api.put_pod(ended("Running", 7));
    api.looked_for_a_pod(1).await;
    let mut pod = ended("Failed", 7);
    pod["status"]["reason"] = "Evicted".into();
    pod["status"]["message"] = "Usage of EmptyDir volume \"ephemeral-disks\" exceeds the limit".into();
    api.put_pod(pod);
    let failed = api.wait_phase("Failed").await;
    assert_eq!(failed["status"]["reason"], "Evicted");
    assert!(failed["status"]["conditions"][0]["message"].as_str().unwrap().contains("ephemeral-disks"));
    assert!(api.wait_event("Stopped").await.contains("ephemeral-disks"));
    handler.stop().await;
}

#[tokio::test]
async fn the_wait_for_a_pods_end_goes_on_in_the_next_process() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let (launcher, handler) = with_pod(&ground, &api).await;
    handler.stop().await;
    launcher.die();
    let handler = ground.handler(&api);
    api.put_pod(ended("Running", 7));
    api.looked_for_a_pod(1).await;
    assert!(waits(&api.wait_phase("Running").await));
    let mut pod = ended("Failed", 7);
    pod["status"]["reason"] = "Evicted".into();
    api.put_pod(pod);
    assert_eq!(api.wait_phase("Failed").await["status"]["reason"], "Evicted");
    handler.stop().await;
}

#[tokio::test]
async fn a_guest_that_powered_off_with_its_pod_has_succeeded_unless_it_was_evicted() {
    let mut deleted = pod();
    deleted["status"] = json!({ "phase": "Running" });
    deleted["metadata"]["deletionTimestamp"] = jiff::Timestamp::now().to_string().into();
    for end in [deleted, ended("Failed", 7)] {
        let (ground, api) = (Ground::new(), Api::start().await);
        let (launcher, handler) = with_pod(&ground, &api).await;
        api.put_pod(end);
        let succeeded = api.wait_phase("Succeeded").await;
        assert!(succeeded["status"]["conditions"].as_array().is_none_or(Vec::is_empty), "{succeeded}");
        launcher.die();
        handler.stop().await;
    }
}
