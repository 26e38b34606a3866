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
    let graph =
        json!({"objectReference": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "testvm"}});
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
async fn a_memory_dump_is_asked_for_and_let_go_of() {
    let fake = Fake::start(|_| Reply::ok()).await;
    let vm = VMI.replace("instances", "s");
    for (words, line, says) in [
        (
            &["memory-dump", "get", "testvm", "--claim-name=dump"][..],
            format!("PUT {vm}/memorydump"),
            "Successfully submitted memory dump request of VM testvm\n",
        ),
        (
            &["memory-dump", "remove", "testvm"],
            format!("PUT {vm}/removememorydump"),
            "Successfully submitted remove memory dump association of VM testvm\n",
        ),
    ] {
        let done = fake.run(words).await;
        assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), says, ""));
        assert_eq!(fake.lines().pop().unwrap(), line);
    }
    assert!(fake.seen()[0].body.contains(r#""claimName":"dump""#));
    let seen = fake.seen().len();
    for (words, says) in [
        (&["memory-dump", "show", "testvm"][..], "invalid action type show"),
        (&["memory-dump", "get", "testvm", "--create-claim"], "--create-claim needs --claim-name"),
        (&["memory-dump", "download", "testvm"], "--output"),
    ] {
        let done = fake.run(words).await;
        assert!(done.code == Some(1) && done.err.contains(says), "{}", done.err);
    }
    assert_eq!(fake.seen().len(), seen, "nothing is asked");
}

#[tokio::test]
async fn libguestfs_tools_need_an_image_and_a_claim_that_no_pod_has() {
    const CLAIM: &str = "/api/v1/namespaces/blue/persistentvolumeclaims/data";
    let fake = Fake::start(|asked| {
        let path = asked.line.split(' ').nth(1).unwrap_or_default();
        if path.ends_with("/guestfs") {
            Reply::status(501, "NotImplemented", "guestfs is not supported by podvirt")
        } else if path == CLAIM {
            Reply::Json(200, json!({"spec": {"volumeMode": "Filesystem"}}))
        } else if path.starts_with("/api/v1/namespaces/blue/pods") {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
            Reply::Json(200, json!({"items": [{"spec": {"volumes": volumes}}]}))
        } else {
            Reply::status(404, "NotFound", "not found")
        }
    })
    .await;
    for (words, says) in [
        (&["guestfs", "data"][..], "this server has no image with libguestfs' tools: --image names one"),
        (&["guestfs", "data", "--image=i"], "PVC data is used by another pod"),
        (&["guestfs", "other", "--image=i"], "The PVC other doesn't exist"),
        (&["guestfs", "data", "--image=i", "--pull-policy=Often"], "Invalid pull policy: Often"),
        (&["guestfs", "data", "--gid=1"], "--uid"),
    ] {
        let done = fake.run(words).await;
        assert!(done.code != Some(0) && done.err.contains(says), "{words:?}: {}", done.err);
    }
    assert!(fake.lines().iter().all(|line| line.starts_with("GET ")), "nothing is made");
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
