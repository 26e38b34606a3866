//! What is asked of the guest's agent, and what a guest is told by the machine's buttons; manifests.

use serde_json::json;

use crate::fake::{Fake, Reply};

const VMI: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvm";

#[tokio::test]
async fn what_the_agent_tells_is_printed_as_json() {
    let told = json!({"guestAgentVersion": "9.2.0", "os": {"id": "debian"}, "items": []});
    let answer = told.clone();
    let fake = Fake::start(move |_| Reply::Json(200, answer.clone())).await;
    for (command, subresource) in
        [("guestosinfo", "guestosinfo"), ("userlist", "userlist"), ("fslist", "filesystemlist")]
    {
        let done = fake.run(&[command, "testvm"]).await;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{command}");
        assert!(done.out.contains("\n  \"guestAgentVersion\": \"9.2.0\""), "{}", done.out);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&done.out).unwrap(), told);
        assert_eq!(fake.lines().pop().unwrap(), format!("GET {VMI}/{subresource}"));
    }
}

#[tokio::test]
async fn a_machine_without_an_agent_is_told_with_the_servers_words() {
    let message = "VMI does not have guest agent connected";
    let fake = Fake::start(move |_| Reply::status(409, "Conflict", message)).await;
    let done = fake.run(&["fslist", "testvm"]).await;
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.err,
        format!("error: cannot list the filesystems of VMI \"testvm\" in namespace \"blue\": {message}\n")
    );
}

#[tokio::test]
async fn an_object_graph_is_asked_for_with_its_options() {
    let graph = json!({"objectReference": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "testvm"}});
    let answer = graph.clone();
    let fake = Fake::start(move |_| Reply::Json(200, answer.clone())).await;
    let done = fake.run(&["objectgraph", "testvm"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&done.out).unwrap(), graph);
    let words = ["objectgraph", "--vmi", "testvm", "--exclude-optional", "--selector=a=b,c=d", "-o", "yaml"];
    let done = fake.run(&words).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(done.out.contains("\n  kind: VirtualMachine\n"), "{}", done.out);
    let seen = fake.seen();
    let asked: Vec<_> = seen.iter().map(|asked| (asked.line.as_str(), asked.body.as_str())).collect();
    let vm = VMI.replace("instances", "s");
    let labels = r#"{"includeOptionalNodes":false,"labelSelector":{"matchLabels":{"a":"b","c":"d"}}}"#;
    let expected = [
        (&*format!("GET {vm}/objectgraph"), r#"{"includeOptionalNodes":true}"#),
        (&*format!("GET {VMI}/objectgraph"), labels),
    ];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn buttons_are_pressed_as_upstream_does() {
    let fake = Fake::start(|_| Reply::ok()).await;
    for (command, subresource) in [("reset", "reset"), ("soft-reboot", "softreboot")] {
        let done = fake.run(&[command, "testvm"]).await;
        let out = format!("VMI testvm was scheduled to {command}\n");
        assert_eq!((done.code, done.out, done.err.as_str()), (Some(0), out, ""));
        assert_eq!(fake.lines().pop().unwrap(), format!("PUT {VMI}/{subresource}"));
    }
}

#[tokio::test]
async fn a_manifest_is_written_and_no_cluster_is_asked() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let done =
        fake.run(&["create", "vm", "--name=web", "--user=joe", "--cloud-init=none", "-n", "red"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    for line in ["kind: VirtualMachine", "  name: web", "  namespace: red", "  runStrategy: Always"] {
        assert!(done.out.lines().any(|one| one == line), "{line}: {}", done.out);
    }
    let done = fake.run(&["create", "vm", "--run-strategy=often"]).await;
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""));
    assert!(done.err.starts_with("error: failed to parse \"--run-strategy\" flag: "), "{}", done.err);
    assert!(fake.seen().is_empty());
}
