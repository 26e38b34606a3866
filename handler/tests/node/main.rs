//! The loop, its launchers and its API server together, with the machine played by the test.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod pod_end;
mod rest;
mod support;

use std::time::Duration;

use podvirt_proto::domain::{Status, reason};
use rest::{put, rest};
use serde_json::json;
use support::api::Api;
use support::launcher::Launcher;
use support::{Ground, POD, VMI, coming, pod, pod_of, running, target_pod, vmi, vmi_of, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_machine_lives_from_scheduled_to_succeeded() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    // The launcher comes later, and is seen to come.
    let launcher = Launcher::start(&ground);
    let running = api.wait_phase("Running").await;
    assert_eq!(running["status"]["phaseTransitionTimestamps"][0]["phase"], "Running");
    assert_eq!(launcher.calls("SyncVirtualMachine"), 1);
    api.wait_event("Started").await;

    launcher.set(Status::Paused, reason::IO_ERROR);
    launcher.tell().await;
    let paused = |vmi: &serde_json::Value| vmi["status"]["conditions"][0]["reason"] == "PausedIOError";
    api.wait("the pause is told", paused).await;
    launcher.set(Status::Running, reason::UNPAUSED);
    launcher.tell().await;

    api.edit(|vmi| vmi["metadata"]["deletionTimestamp"] = jiff::Timestamp::now().to_string().into());
    launcher.called("ShutdownVirtualMachine").await;
    launcher.set(Status::Shutoff, reason::SHUTDOWN);
    launcher.tell().await;
    launcher.die();
    api.wait_phase("Succeeded").await;
    api.wait_event("Stopped").await;

    assert_eq!(ground.records().all().unwrap().len(), 1);
    api.remove();
    within("the record goes with the VMI", async {
        while !ground.records().all().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    handler.stop().await;
}

#[tokio::test]
async fn launchers_that_hang_hold_up_no_other_machine() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let hung: Vec<Launcher> = (0..15)
        .map(|n| {
            let (vmi, pod) = (format!("hung-vmi-{n}"), format!("hung-pod-{n}"));
            ground.add_pod(&pod);
            let name = format!("hung-{n}");
            api.put_pod(pod_of(&name, &vmi, &pod));
            api.put(vmi_of(&name, &vmi, &pod, "Running"));
            Launcher::hung(&ground, &vmi, &pod)
        })
        .collect();
    let handler = ground.handler(&api);
    // All of them are waited for at one time.
    within("each is asked while the others hang", async {
        while hung.iter().any(|launcher| *launcher.open_calls().borrow() == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    api.put(vmi("Scheduled"));
    let launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;
    assert_eq!(launcher.calls("SyncVirtualMachine"), 1);
    handler.stop().await;
}

#[tokio::test]
async fn a_launcher_that_hangs_costs_its_own_series_alone() {
    let (ground, api, handler, launcher) = running().await;
    let (vmi, pod) = ("hung-vmi", "hung-pod");
    ground.add_pod(pod);
    api.put_pod(pod_of("hung", vmi, pod));
    api.put(vmi_of("hung", vmi, pod, "Running"));
    let hung = Launcher::hung(&ground, vmi, pod);
    within("the other one is looked at", hung.open_calls().wait_for(|open| *open > 0)).await.unwrap();

    let statistics = handler.statistics.clone().with_deadline(Duration::from_secs(2));
    let series = r#"namespace="n",name="a",kubernetes_vmi_label_kubevirt_io_nodeName="node1"} 2048.0"#;
    let text = within("the deadline", statistics.text()).await.unwrap();
    assert!(text.contains(series) && !text.contains("hung"), "{text}");
    // Another scrape at that moment has the same round's reports.
    let again = within("they are there", statistics.text()).await.unwrap();
    assert_eq!((again, launcher.calls("GetDomainStats")), (text, 1));
    handler.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_not_read() {
    let (_ground, _api, handler, launcher) = running().await;
    let memory = r#""Memory":{"RSS":2,"RSSSet":true}"#;
    let disks = "{},".repeat(4 << 20 >> 2);
    launcher.answer_statistics(format!(r#"{{"Name":"n_a",{memory},"Block":[{disks}{{}}]}}"#));
    // A round before the handler has heard that the machine runs asks no launcher.
    let asked = async {
        loop {
            let text = handler.statistics.text().await.unwrap();
            if launcher.calls("GetDomainStats") > 0 {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let text = within("the launcher is asked", asked).await;
    assert!(!text.contains("2048.0"), "{text}");
    handler.stop().await;
}

#[tokio::test]
async fn a_launcher_is_reached_again_when_a_connection_to_it_says_no_more() {
    let (_ground, api, handler, launcher) = running().await;
    launcher.stall();
    launcher.set(Status::Paused, reason::IO_ERROR);
    // A change makes the handler look.
    api.edit(|vmi| vmi["metadata"]["annotations"] = json!({"a": "b"}));
    let paused = |vmi: &serde_json::Value| vmi["status"]["conditions"][0]["reason"] == "PausedIOError";
    api.wait("the launcher is asked by another connection", paused).await;
    handler.stop().await;
}

#[tokio::test]
async fn a_refused_vmi_says_why_and_is_offered_again() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let launcher = Launcher::start(&ground);
    launcher.refuse("the disk of volume a is no qcow2");
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    let told = |vmi: &serde_json::Value| {
        let condition = &vmi["status"]["conditions"][0];
        condition["status"] == "False" && condition["message"] == "the disk of volume a is no qcow2"
    };
    api.wait("the refusal is told", told).await;
    assert_eq!(api.wait_event("SyncFailed").await, "the disk of volume a is no qcow2");
    launcher.refuse("");
    let running = api.wait_phase("Running").await;
    assert!(running["status"]["conditions"][0].is_null(), "{running}");
    handler.stop().await;
}

#[tokio::test]
async fn an_end_that_was_told_to_an_earlier_process_is_not_lost() {
    let (ground, api, handler, launcher) = running().await;
    handler.stop().await;
    // What the stopped process heard in its last moment.
    let record = ground.records().all().unwrap().remove(0);
    launcher.set(Status::Shutoff, reason::PANICKED);
    let end = podvirt_proto::domain::Domain {
        uid: VMI.into(),
        status: Status::Shutoff,
        reason: reason::PANICKED.into(),
        ..Default::default()
    };
    record.save_end(Some(end)).unwrap();
    launcher.die();
    let handler = ground.handler(&api);
    let failed = api.wait_phase("Failed").await;
    assert_eq!(failed["status"]["reason"], "GuestPanicked");
    handler.stop().await;
}

#[tokio::test]
async fn a_launcher_that_dies_without_a_word_is_judged_by_its_exit_code() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let terminated = json!({ "exitCode": 137, "reason": "OOMKilled" });
    let mut ended = pod();
    ended["status"] = json!({ "phase": "Failed", "containerStatuses": [{
        "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": terminated },
    }] });
    api.put_pod(ended);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    let launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;
    launcher.die();
    let failed = api.wait_phase("Failed").await;
    assert_eq!(failed["status"]["reason"], "LauncherFailed");
    assert!(api.wait_event("Stopped").await.contains("137 (OOMKilled)"));
    handler.stop().await;
}

#[tokio::test]
async fn a_pod_that_the_vmi_names_and_that_is_another_machines_is_not_touched() {
    let (ground, api) = (Ground::new(), Api::start().await);
    // The VMI says of another machine's pod that it is its own: nothing of it may be listened to, or replaced.
    let notify = ground.listen("public", "", podvirt_api::names::path::NOTIFY_SOCKET);
    let launcher = Launcher::start(&ground);
    launcher.set(Status::Running, reason::BOOTED);
    for stranger in ["ownerReferences", "nodeName"] {
        let mut pod = pod();
        match stranger {
            "nodeName" => pod["spec"]["nodeName"] = "node0".into(),
            _ => pod["metadata"]["ownerReferences"][0]["uid"] = "another".into(),
        }
        for phase in ["Scheduled", "Running"] {
            api.put_pod(pod.clone());
            api.put(vmi(phase));
            let handler = ground.handler(&api);
            api.looked_for_a_pod(2).await;
            assert_eq!(launcher.calls("SyncVirtualMachine"), 0);
            let address = rest(handler.rest.clone()).await;
            let answer = put(address, "pause").await;
            assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
            handler.stop().await;
        }
        assert_eq!(launcher.calls("PauseVirtualMachine"), 0);
    }
    ground.dir(POD, "public", "").connect(podvirt_api::names::path::NOTIFY_SOCKET).await.unwrap();
    notify.accept().await.expect("it is the victim's socket still");
}

#[tokio::test]
async fn a_target_pod_that_the_vmi_names_and_that_is_another_machines_is_not_touched() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let launcher = Launcher::start(&ground);
    for stranger in ["ownerReferences", "migrationJobUID", "nodeName"] {
        let mut pod = target_pod();
        match stranger {
            "nodeName" => pod["spec"]["nodeName"] = "node0".into(),
            "migrationJobUID" => pod["metadata"]["labels"]["kubevirt.io/migrationJobUID"] = "other".into(),
            _ => pod["metadata"]["ownerReferences"][0]["uid"] = "another".into(),
        }
        api.put_pod(pod);
        api.put(coming());
        let handler = ground.handler(&api);
        api.looked_for_a_pod(2).await;
        assert_eq!(launcher.calls("SyncMigrationTarget"), 0, "{stranger}");
        handler.stop().await;
    }
}

#[tokio::test]
async fn a_machine_that_came_is_found_in_its_pod_by_the_next_process() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let mut came = vmi("Running");
    came["status"]["migrationState"] = coming()["status"]["migrationState"].clone();
    came["status"]["migrationState"]["completed"] = true.into();
    came["status"]["migrationState"]["endTimestamp"] = jiff::Timestamp::now().to_string().into();
    let mut first = pod();
    first["spec"]["nodeName"] = "node0".into();
    first["metadata"]["uid"] = "33333333-3333-4333-8333-333333333333".into();
    api.put_pod(first);
    api.put_pod(target_pod());
    api.put(came);
    let launcher = Launcher::start(&ground);
    launcher.set(Status::Paused, reason::IO_ERROR);
    let handler = ground.handler(&api);
    let paused = |vmi: &serde_json::Value| vmi["status"]["conditions"][0]["reason"] == "PausedIOError";
    api.wait("a pause", paused).await;
    handler.stop().await;
}

#[tokio::test]
async fn a_machine_whose_vmi_was_removed_while_no_handler_watched_is_ended() {
    let (ground, api, handler, launcher) = running().await;
    handler.stop().await;
    api.remove();
    let handler = ground.handler(&api);
    launcher.called("KillVirtualMachine").await;
    launcher.die();
    within("the record goes", async {
        while !ground.records().all().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    handler.stop().await;
}

#[tokio::test]
async fn a_machine_whose_vmi_a_new_list_lacks_is_ended() {
    let (_ground, api, handler, launcher) = running().await;
    // The watches break off, and the VMI is gone when they begin anew.
    api.remove_and_forget();
    launcher.called("KillVirtualMachine").await;
    handler.stop().await;
}

#[tokio::test]
async fn a_machine_whose_pod_is_gone_has_failed() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.remove_pod();
    // Its launcher's socket would be there: a pod that does not exist has none.
    let launcher = Launcher::start(&ground);
    api.put(vmi("Running"));
    let handler = ground.handler(&api);
    let failed = api.wait_phase("Failed").await;
    assert_eq!(failed["status"]["reason"], "LauncherGone", "{failed}");
    assert_eq!(launcher.calls("GetDomain"), 0);
    handler.stop().await;
}

#[tokio::test]
async fn a_machine_that_comes_is_made_room_for_announced_and_taken_over() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put(coming());
    let handler = ground.handler(&api);
    let launcher = Launcher::start(&ground);
    // The pod is seen some time later.
    api.put_pod(target_pod());
    let state = |vmi: &serde_json::Value| vmi["status"]["migrationState"].clone();
    let offered =
        api.wait("address and ports", |vmi| !state(vmi)["targetDirectMigrationNodePorts"].is_null()).await;
    assert_eq!(state(&offered)["targetNodeAddress"], "127.0.0.1");
    let ports = state(&offered)["targetDirectMigrationNodePorts"].as_object().unwrap().clone();
    let mut logical: Vec<_> = ports.values().map(|port| port.as_i64().unwrap()).collect();
    logical.sort_unstable();
    assert_eq!(logical, [0, 49152, 49153, 49154]);
    assert_eq!(launcher.calls("SyncMigrationTarget"), 1);
    assert_eq!(launcher.calls("SyncVirtualMachine"), 0);
    // The node that the controller has named as the source gets through, and this node itself does not.
    let (tcp, _) = ports.iter().find(|(_, logical)| **logical == 49152).unwrap();
    let inside = ground.listen("public", "", &podvirt_proto::migration::socket_name("m", 49152).unwrap());
    for (node, passes) in [("node1", false), ("node0", true)] {
        let mut stream = support::dial("127.0.0.1".parse().unwrap(), tcp.parse().unwrap(), node).await;
        let mut byte = [0; 1];
        let ends = stream.read(&mut byte);
        let through = tokio::select! {
            accepted = inside.accept() => accepted.is_ok(),
            _ = ends => false,
        };
        assert_eq!(through, passes, "{node}");
    }
    // A client without a certificate gets nothing out of a port.
    let port = ports.keys().next().unwrap().parse::<u16>().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"hello, this is no TLS").await.unwrap();
    let mut answer = Vec::new();
    let _reset = within("the end", stream.read_to_end(&mut answer)).await;
    assert!(answer.len() < 16, "an alert at most: {answer:?}");

    api.edit(|vmi| {
        vmi["status"]["migrationState"]["startTimestamp"] = jiff::Timestamp::now().to_string().into();
    });
    launcher.set(Status::Running, reason::MIGRATED);
    launcher.tell().await;
    api.wait("the arrival", |vmi| !state(vmi)["targetNodeDomainReadyTimestamp"].is_null()).await;
    // The source's handler hands over.
    api.edit(|vmi| {
        vmi["status"]["nodeName"] = "node1".into();
        vmi["metadata"]["labels"]["kubevirt.io/nodeName"] = "node1".into();
        vmi["status"]["migrationState"]["completed"] = true.into();
        vmi["status"]["migrationState"]["endTimestamp"] = jiff::Timestamp::now().to_string().into();
    });
    launcher.called("FinalizeVirtualMachineMigration").await;
    let done =
        |vmi: &serde_json::Value| vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_null();
    api.wait("the end of the label", done).await;
    // From here on it is a machine of this node.
    launcher.set(Status::Paused, reason::IO_ERROR);
    launcher.tell().await;
    let paused = |vmi: &serde_json::Value| vmi["status"]["conditions"][0]["reason"] == "PausedIOError";
    api.wait("a pause", paused).await;
    let refused = TcpStream::connect(("127.0.0.1", port)).await;
    assert!(refused.is_err(), "the listeners are closed");
    assert_eq!(launcher.calls("SyncVirtualMachine"), 0);
    handler.stop().await;
}

#[tokio::test]
async fn a_migration_that_failed_is_cleaned_up_at_the_target() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put_pod(target_pod());
    api.put(coming());
    let handler = ground.handler(&api);
    let launcher = Launcher::start(&ground);
    launcher.called("SyncMigrationTarget").await;
    api.edit(|vmi| {
        vmi["status"]["migrationState"]["completed"] = true.into();
        vmi["status"]["migrationState"]["failed"] = true.into();
    });
    launcher.called("SignalTargetPodCleanup").await;
    let done =
        |vmi: &serde_json::Value| vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_null();
    let vmi = api.wait("the end of the label", done).await;
    assert_eq!((&vmi["status"]["phase"], &vmi["status"]["nodeName"]), (&json!("Running"), &json!("node0")));
    handler.stop().await;
}
